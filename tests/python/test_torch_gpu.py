# SPDX-License-Identifier: Apache-2.0
"""What only a GPU shows of the torch adapter: streams, graphs, threads, no waiting. Run with LIBTE_TEST_DEVICE=cuda."""

from __future__ import annotations

import copy
import threading

import pytest
import torch

import libte_torch as te
from libte_torch import ops

pytestmark = pytest.mark.skipif(torch.get_default_device().type != "cuda", reason="LIBTE_TEST_DEVICE is not cuda")


def layer(**kw: object) -> te.TransformerLayer:
    torch.manual_seed(0)
    return te.TransformerLayer(64, 128, 4, hidden_dropout=0, attention_dropout=0, params_dtype=torch.bfloat16, **kw)  # type: ignore[arg-type]


def test_modules_default_to_the_gpu() -> None:
    torch.set_default_device(None)
    try:
        assert te.Linear(8, 8).weight.device.type == "cuda"
    finally:
        torch.set_default_device("cuda")


def test_no_call_waits_for_the_gpu() -> None:
    m, x = layer(), torch.randn(8, 2, 64, dtype=torch.bfloat16, requires_grad=True)
    for recipe in (te.DelayedScaling(amax_history_len=4), te.Float8CurrentScaling()):
        for i in range(3):
            torch.cuda.set_sync_debug_mode("error" if i else "default")  # the first step opens libraries
            try:
                with te.autocast(recipe=recipe):
                    y = m(x)
                y.sum().backward()
            finally:
                torch.cuda.set_sync_debug_mode("default")


def test_another_stream_gives_the_same_bits() -> None:
    m, x = layer(), torch.randn(8, 2, 64, dtype=torch.bfloat16, requires_grad=True)
    want = m(x)
    (want_dx,) = torch.autograd.grad(want.sum(), x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # whatever ran on another stream would be done before its inputs are
        late = x.detach().clone().requires_grad_()
        got = m(late)
        (dx,) = torch.autograd.grad(got.sum(), late)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(got, want) and torch.equal(dx, want_dx)


def test_threads_share_a_stream() -> None:
    m, xs = te.Linear(512, 512), [torch.randn(64, 512) for _ in range(4)]
    with torch.no_grad():
        def quantised(x: torch.Tensor) -> torch.Tensor:
            with te.autocast(recipe=te.Float8CurrentScaling()):
                return m(x)

        want, wrong = [quantised(x) for x in xs], []

        def work(i: int) -> None:
            with torch.no_grad():
                wrong.extend(i for _ in range(200) if not torch.equal(quantised(xs[i]), want[i]))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong


def test_memory_stays_with_the_caching_allocator() -> None:
    m, x = layer(), torch.randn(8, 2, 64, dtype=torch.bfloat16)
    for _ in range(3):
        m(x).sum().backward()
    before = torch.cuda.memory_allocated(), len(ops._workspaces)
    for _ in range(5):
        m(x).sum().backward()
    assert (torch.cuda.memory_allocated(), len(ops._workspaces)) == before


@pytest.mark.parametrize("recipe", [None, te.DelayedScaling(amax_history_len=4), te.Float8CurrentScaling()], ids=["wide", "delayed", "current"])
def test_graph_of_a_whole_step(recipe: te.Recipe | None) -> None:
    """Forward, backward and the optimiser replayed are the steps run one by one: parameters and FP8 state, bit for bit."""
    data = [torch.randn(8, 2, 64, dtype=torch.bfloat16) * (i + 1) for i in range(6)]

    def train(graphed: bool) -> list[torch.Tensor]:
        m = layer()
        optimizer = torch.optim.SGD(m.parameters(), lr=1e-2)
        x = data[0].clone()

        def step() -> None:
            optimizer.zero_grad(set_to_none=False)
            with te.autocast(enabled=recipe is not None, recipe=recipe):
                y = m(x)
            y.float().square().mean().backward()
            optimizer.step()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for i in range(3):
                x.copy_(data[i])
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        if graphed:
            with torch.cuda.graph(graph):
                step()
        for i in range(3, 6):
            x.copy_(data[i])
            graph.replay() if graphed else step()
        torch.cuda.synchronize()
        out = [p.detach().clone() for p in m.parameters()]
        for part in m.modules():
            if hasattr(part, "fp8_state") and part.fp8_state.slots is not None:
                out += [t.clone() for s in part.fp8_state.slots for t in (s.scale, s.history)]
        return out

    for i, (a, b) in enumerate(zip(train(True), train(False))):
        assert torch.equal(a, b), i


def test_make_graphed_callables() -> None:
    m, x = layer(), torch.randn(8, 2, 64, dtype=torch.bfloat16, requires_grad=True)
    twin = copy.deepcopy(m)  # a backward of m itself on this stream would bind its gradients to it, which no capture may touch
    want = twin(x)
    want_grads = torch.autograd.grad(want.sum(), [x, *twin.parameters()])
    graphed = torch.cuda.make_graphed_callables(m, (x.detach().clone().requires_grad_(),))
    for _ in range(2):
        got = graphed(x)
        grads = torch.autograd.grad(got.sum(), [x, *m.parameters()])
        assert torch.equal(got, want) and all(torch.equal(a, b) for a, b in zip(grads, want_grads))
