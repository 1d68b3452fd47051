# SPDX-License-Identifier: Apache-2.0
"""What only a GPU shows of the torch adapter: streams, graphs, threads, no waiting. Run with LIBTE_TEST_DEVICE=cuda."""

from __future__ import annotations

import copy
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Optional

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import libte_torch as te
import twins
from libte_torch import ops
from libte_torch.modules.attention import AttentionConfig

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


def in_threads(work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


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

        in_threads(work)
    assert not wrong


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_a_device_that_is_not_the_current_one() -> None:
    """Handles, compiled kernels and attributes belong to a device; autograd's threads and ours have a current one of their own."""
    x = torch.randn(128, 2, 64, dtype=torch.bfloat16)
    m = layer(attn_input_format="sbhd")

    def step(m: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.detach().clone().requires_grad_(), *m.parameters()]
        for _ in range(2):  # the second step's scales come from the first one's amaxes
            with te.autocast(recipe=te.DelayedScaling(amax_history_len=2)):
                y = m(leaves[0])
            gradients = torch.autograd.grad(y.float().pow(2).sum(), leaves)
        return [t.cpu() for t in (y, *gradients)]

    found: list[list[torch.Tensor]] = [[], [], [], []]

    def work(i: int) -> None:
        device = torch.device("cuda", (i + 1) % 2)  # a thread starts with device 0
        found[i] = step(copy.deepcopy(m).to(device), x.to(device))

    work(0)
    assert torch.cuda.current_device() == 0
    in_threads(work)
    for other in found[1:]:
        assert torch.equal(found[0][0], other[0])
        for a, b in zip(found[0][1:], other[1:]):  # cuDNN's gradients do not repeat bit for bit
            assert (a.float() - b.float()).abs().max() <= 2.0**-5 * a.float().abs().max()


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


def heads(b: int, s: int, h: int, groups: int, d: int) -> list[torch.Tensor]:
    torch.manual_seed(s)
    return [torch.randn(b, s, n, d, dtype=torch.bfloat16, requires_grad=True) for n in (h, groups, groups)]


def attention(implementation: Optional[str], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Forward by name, as an error where that implementation refuses."""
    b, s, h, d = q.shape
    o, stats = torch.empty_like(q), torch.empty(b, h, s, dtype=torch.float32)
    config = AttentionConfig(d**-0.5, 0.0, 1, int(causal), 0, 0, -1, -1, 0)
    ops._eager.variant(implementation=implementation).attention_forward(q, k, v, o, stats, *[None] * 10, *config)
    return o


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [4, 2])
def test_attention_goes_to_cudnn_and_agrees_with_sdpa(causal: bool, groups: int) -> None:
    q, k, v = heads(2, 200, 4, groups, 64)
    core = te.DotProductAttention(4, 64, groups, qkv_format="bshd", attn_mask_type="causal" if causal else "no_mask")

    def sdpa(*qkv: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel([SDPBackend.MATH if qkv[0].dtype == torch.float64 else SDPBackend.CUDNN_ATTENTION]):
            return torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in qkv), is_causal=causal, enable_gqa=groups != 4).transpose(1, 2)

    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    o, naive, want = core(q, k, v).view_as(q), sdpa(q, k, v), sdpa(*exact)
    assert torch.equal(o, attention("cudnn", q, k, v, causal))
    do = torch.randn_like(o)
    results = ((o, *torch.autograd.grad(o, (q, k, v), do)), (naive, *torch.autograd.grad(naive, (q, k, v), do)), (want, *torch.autograd.grad(want, exact, do.double())))
    for ours, theirs, right in zip(*results):
        twins.tolerance.assert_like(twins.numpy(ours), twins.numpy(right), twins.numpy(theirs.float()), "bfloat16")


def test_attention_captured_at_its_first_use() -> None:
    with torch.no_grad():
        q, k, v = heads(1, 136, 2, 2, 64)
        q, k, v = q.clone(), k.clone(), v.clone()
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        attention("cudnn", q[:, :64], k[:, :64], v[:, :64], True)  # opens the library; the plan for 136 is made under capture
        with torch.cuda.graph(graph, stream=side):
            o = attention("cudnn", q, k, v, True)
        for t in (q, k, v):
            t.normal_()
        graph.replay()
        assert torch.equal(o, attention("cudnn", q, k, v, True))


def test_attention_in_threads() -> None:
    inputs = [heads(1, 72 + 8 * i, 2, 2, 64) for i in range(4)]
    want = [attention("cudnn", *qkv, True) for qkv in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()), torch.device("cuda"):
            for j in range(50):
                at = (i + j) % 4
                if not torch.equal(attention("cudnn", *inputs[at], True), want[at]):
                    wrong.append(at)

    torch.cuda.synchronize()
    in_threads(work)
    assert not wrong


def test_deterministic_attention_repeats_its_bits() -> None:
    q, k, v = heads(2, 1000, 4, 2, 64)
    o, stats = torch.empty_like(q), torch.empty(2, 4, 1000, dtype=torch.float32)
    config = AttentionConfig(64**-0.5, 0.0, 1, 1, 0, 0, -1, -1, 0)
    shim = ops._eager.variant(implementation="cudnn", deterministic=True)
    shim.attention_forward(q, k, v, o, stats, *[None] * 10, *config)
    do = torch.randn_like(o)
    runs = []
    for _ in range(4):
        gradients = [torch.empty_like(t) for t in (q, k, v)]
        shim.attention_backward(do, q, k, v, o, stats, *gradients, *[None] * 11, *config)
        runs.append(gradients)
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0]))


Python = Callable[..., "subprocess.CompletedProcess[str]"]
PRODUCT = """
import torch, libte_torch as te
m = te.Linear(512, 256, bias=False, params_dtype=torch.bfloat16, device="cuda")
x, w = (torch.randint(-2, 3, (n, 512), device="cuda").bfloat16() for n in (64, 256))  # sums are exact
m.weight.data.copy_(w)
assert torch.equal(m(x), (x.double() @ w.double().t()).bfloat16())
"""


def test_gemm_choices_are_saved_and_loaded(python: Python, tmp_path: Path) -> None:
    saved, doctored, again, cut = (tmp_path / n for n in ("saved.csv", "doctored.csv", "again.csv", "cut.csv"))
    run = python(PRODUCT, {"TE_HIPBLASLT_ALGO_SAVE": str(saved), "TE_HIPBLASLT_TUNING_RUN_COUNT": "3"})
    assert run.returncode == 0, run.stderr
    library, *rows = saved.read_text().splitlines()
    assert library.startswith(("cuda ", "hip ")) and rows
    # other candidates than those chosen: only a process that loads the file takes them
    other = [row.rsplit(",", 1)[0] + (",1" if row.endswith(",0") else ",0") for row in rows]
    doctored.write_text("\n".join([library, *other]) + "\n")
    run = python(PRODUCT, {"TE_HIPBLASLT_ALGO_LOAD": str(doctored), "TE_HIPBLASLT_ALGO_SAVE": str(again)})
    assert run.returncode == 0, run.stderr
    assert again.read_text() == doctored.read_text()
    cut.write_text(saved.read_text()[:-4])
    run = python(PRODUCT, {"TE_HIPBLASLT_ALGO_LOAD": str(cut)})
    assert run.returncode == 0 and "is not used: a line is damaged" in run.stderr, run.stderr


TURN = """
import torch
from libte_torch import ops
x = torch.randn(256, 512, device="cuda")
y = torch.empty(512, 256, device="cuda")
ops.transpose(x, y, None)
assert torch.equal(y, x.t())
"""


def test_kernels_compiled_at_run_time_are_kept(python: Python, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    environment = {"LIBTE_CACHE_DIR": str(cache), "LIBTE_TRACE": "1", "NVTE_DISABLE_NVRTC": None}
    run = python(TURN, environment)
    assert run.returncode == 0 and "rtc" in run.stderr, run.stderr
    (file,) = cache.iterdir()
    whole, made = file.read_bytes(), file.stat().st_ino
    assert python(TURN, environment).returncode == 0
    assert file.stat().st_ino == made  # found, not made again
    file.write_bytes(whole[:-9])
    run = python(TURN, environment)
    assert run.returncode == 0 and "rtc" in run.stderr and file.read_bytes() == whole
    run = python(TURN, {**environment, "NVTE_DISABLE_NVRTC": "1"})
    assert run.returncode == 0 and "NVTE_DISABLE_NVRTC is set" in run.stderr, run.stderr
