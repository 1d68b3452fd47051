# SPDX-License-Identifier: Apache-2.0
"""Checkpoints, copies, optimisers, distributed use, the meta device."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tolerance import FP8_DISTANCE, distance
from twins import numpy

import libte_torch as te

RECIPE = dict(amax_history_len=8)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def trained(steps: int = 3) -> te.Linear:
    m, recipe = te.Linear(16, 8), te.DelayedScaling(**RECIPE)
    for i in range(steps):
        with te.autocast(recipe=recipe):
            y = m(torch.randn(4, 16) * (i + 1))
        y.sum().backward()
    return m


def state(m: te.Linear) -> list[torch.Tensor]:
    return [t.clone() for s in m.fp8_state.slots for t in (s.scale, s.history)]  # type: ignore[union-attr]


def test_s10_round_trip_is_bytes_and_exact() -> None:
    m = trained()
    saved = m.state_dict()
    blob = saved["_extra_state"]
    assert blob.dtype is torch.uint8 and blob.dim() == 1 and blob.device.type == "cpu"
    fresh = te.Linear(16, 8)
    fresh.load_state_dict(saved)
    assert all(torch.equal(a, b) for a, b in zip(state(m), state(fresh)))
    x = torch.randn(4, 16)
    with te.autocast(recipe=te.DelayedScaling(**RECIPE)):
        assert torch.equal(m(x), fresh(x))


def test_s07_s09_size_is_constant() -> None:
    """S07, S09: the bytes do not grow, and depend on the recipe alone."""
    sizes = set()
    m = trained(1)
    for _ in range(5):
        blob = m.state_dict()["_extra_state"]
        sizes.add(blob.numel())
        m.load_state_dict(m.state_dict())
        with te.autocast(recipe=te.DelayedScaling(**RECIPE)):
            m(torch.randn(4, 16))
    assert len(sizes) == 1 and trained(4).state_dict()["_extra_state"].numel() in sizes
    assert te.Linear(16, 8).state_dict()["_extra_state"].numel() == 0  # stateless


def test_s02_plain_torch_weights_load_strictly() -> None:
    m = te.Linear(16, 8)
    m.load_state_dict(torch.nn.Linear(16, 8).state_dict(), strict=True)
    assert m.fp8_state.slots is None


@pytest.mark.parametrize("form", [None, torch.empty(0, dtype=torch.uint8), io.BytesIO(b""), b"", torch.zeros(64, dtype=torch.uint8)])
def test_s03_forms_of_no_state(form: Any) -> None:
    m = te.Linear(16, 8)
    m.set_extra_state(form)
    assert m.fp8_state.slots is None


def test_s03_forms_of_state() -> None:
    m = trained()
    blob = m.get_extra_state()
    for form in (blob, blob.numpy().tobytes(), io.BytesIO(blob.numpy().tobytes())):
        fresh = te.Linear(16, 8)
        fresh.set_extra_state(form)
        assert all(torch.equal(a, b) for a, b in zip(state(m), state(fresh)))


def test_s01_state_of_version_1() -> None:
    m = te.Linear(16, 8)
    m.set_extra_state({
        "scale_fwd": torch.tensor([2.0, 4.0, 8.0]), "scale_inv_fwd": torch.tensor([9.0, 9.0, 9.0]), "amax_history_fwd": torch.ones(16, 3),
        "scale_bwd": torch.tensor([3.0, 5.0]), "scale_inv_bwd": torch.tensor([9.0, 9.0]), "amax_history_bwd": torch.ones(16, 2),
    })
    assert m.fp8_state.slots[0].scale.tolist() == [2, 4] and m.fp8_state.slots[1].scale.tolist() == [3]  # type: ignore[index]
    assert isinstance(m.fp8_state.recipe, te.DelayedScaling)


def test_s04_loading_executes_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "marker"

    class Attack:
        def __reduce__(self) -> Any:
            return open, (str(marker), "w")

    raw = pickle.dumps(Attack())
    with pytest.raises(ValueError, match="pickle"):
        te.Linear(16, 8).set_extra_state(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
    assert not marker.exists()


def test_s05_damaged_state_is_an_error() -> None:
    blob = trained().get_extra_state()
    for n in range(1, blob.numel()):
        m = te.Linear(16, 8)
        with pytest.raises(ValueError, match="_extra_state"):
            m.set_extra_state(blob[:n])
        assert m.fp8_state.slots is None
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        noise = torch.randint(0, 256, (blob.numel(),), generator=generator, dtype=torch.uint8, device="cpu")
        bad = blob.clone()
        i = int(torch.randint(8, 200, (1,), generator=generator, device="cpu"))
        bad[i] = noise[i]
        for damaged in (noise, bad):
            try:
                te.Linear(16, 8).set_extra_state(damaged)
            except ValueError as e:
                assert "_extra_state" in str(e)
    with pytest.raises(ValueError, match="quantises"):
        te.LayerNormMLP(16, 8).set_extra_state(blob)


def test_s06_quantized_tensor_copies() -> None:
    q = te.quantize(torch.randn(8, 16), torch.float8_e4m3fn, columnwise=True)
    assert torch.equal(q._columnwise.view(torch.uint8), q._data.view(torch.uint8).t())
    deep = copy.deepcopy(q)
    assert torch.equal(deep.dequantize(), q.dequantize()) and deep._data.data_ptr() != q._data.data_ptr()
    buffer = io.BytesIO()
    torch.save(q, buffer)
    buffer.seek(0)
    back = torch.load(buffer, weights_only=True)
    assert isinstance(back, te.QuantizedTensor) and torch.equal(back.dequantize(), q.dequantize())
    assert torch.equal(q.cpu().dequantize(), q.dequantize().cpu())
    half = q.to(torch.bfloat16)
    assert half.dtype is torch.bfloat16 and torch.equal(half.dequantize(), q.dequantize().bfloat16())
    assert torch.equal(q + 1, q.dequantize() + 1)


def test_q15_columnwise_only_and_split() -> None:
    values = torch.randn(128, 256)
    q = te.quantize(values, torch.float8_e4m3fn, rowwise=False, columnwise=True)
    assert tuple(q.shape) == (128, 256) and q._data is None
    assert distance(numpy(q.dequantize()), numpy(values)) < FP8_DISTANCE
    for dim in (0, 1):
        for a, b in zip(q.split(64, dim), q.dequantize().split(64, dim)):
            assert torch.equal(a, b)
    q.update_usage(rowwise_usage=True, columnwise_usage=False)
    assert q._columnwise is None and torch.equal(q._data.view(torch.uint8), te.quantize(values, torch.float8_e4m3fn)._data.view(torch.uint8))


def test_q14_transpose_follows_in_place_updates() -> None:
    q = te.quantize(torch.randn(8, 16), torch.float8_e4m3fn, columnwise=True)
    before = q.dequantize()
    q.mul_(2)
    assert distance(numpy(q.dequantize()), numpy(2 * before)) < FP8_DISTANCE
    assert torch.equal(q._columnwise.view(torch.uint8), q._data.view(torch.uint8).t())


@pytest.mark.parametrize("fp8_parameters", [False, True])
def test_optimisers_and_clipping(fp8_parameters: bool) -> None:
    with te.quantized_model_init(enabled=fp8_parameters, recipe=te.Float8CurrentScaling()):
        m = te.TransformerLayer(16, 32, 2, hidden_dropout=0, attention_dropout=0)
    optimizer = torch.optim.AdamW(m.parameters(), lr=1e-2)
    x = torch.randn(3, 2, 16)
    losses = []
    for _ in range(8):
        with te.autocast(recipe=te.Float8CurrentScaling()):
            loss = m(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        assert torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0) > 0
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert isinstance(m.layernorm_mlp.fc1_weight, te.QuantizedTensor) == fp8_parameters


def test_deepcopy_keeps_state_apart() -> None:
    m = trained()
    m.get_extra_state()  # finishes the update that the last backward left
    other = copy.deepcopy(m)
    assert all(torch.equal(a, b) for a, b in zip(state(m), state(other)))
    before = state(m)
    with te.autocast(recipe=te.DelayedScaling(**RECIPE)):
        other(torch.randn(4, 16) * 100)
    assert all(torch.equal(a, b) for a, b in zip(before, state(m)))
    other.to(torch.float64).float()
    pickle.loads(pickle.dumps(trained()))  # DataLoader workers and spawn do this


def test_save_and_load_weights_only(tmp_path: Path) -> None:
    with te.quantized_model_init(recipe=te.DelayedScaling()):
        m = te.Linear(16, 8)
    torch.save(m.state_dict(), tmp_path / "m.pt")
    loaded = torch.load(tmp_path / "m.pt", weights_only=True)
    with te.quantized_model_init(recipe=te.DelayedScaling()):
        fresh = te.Linear(16, 8)
    fresh.load_state_dict(loaded)
    assert torch.equal(fresh.weight.dequantize(), m.weight.dequantize())
    wide = te.Linear(16, 8)
    wide.load_state_dict(loaded)
    assert torch.equal(wide.weight, m.weight.dequantize())


def test_distributed_checkpoint(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    m = trained()
    dcp.save(m.state_dict(), checkpoint_id=tmp_path / "dcp")
    fresh = trained(1)
    target = fresh.state_dict()
    dcp.load(target, checkpoint_id=tmp_path / "dcp")
    fresh.load_state_dict(target)
    assert all(torch.equal(a, b) for a, b in zip(state(m), state(fresh))) and torch.equal(m.weight, fresh.weight)


DDP = """
import os, sys, torch, torch.distributed as dist
import libte_torch as te
rank = int(sys.argv[1])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
dist.init_process_group("gloo", rank=rank, world_size=2)
torch.set_num_threads(1)
torch.set_default_device(os.environ.get("LIBTE_TEST_DEVICE", "cpu"))
torch.manual_seed(rank)
m = torch.nn.parallel.DistributedDataParallel(te.LayerNormMLP(16, 32, activation="swiglu"))
opt = torch.optim.AdamW(m.parameters(), lr=1e-2)
for i in range(3):
    with te.autocast(recipe=te.DelayedScaling(amax_history_len=4)):
        loss = m(torch.randn(4, 16) * (1 + 5 * rank)).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
s = m.module.fp8_state.slots[0]
for t in [*m.parameters(), s.scale, s.history]:
    both = [torch.empty_like(t) for _ in range(2)]
    dist.all_gather(both, t.detach())
    assert torch.equal(*both), "ranks disagree"
torch.manual_seed(7)
x = torch.randn(6, 10)
y = torch.tensor([0, 3, 9, 5, -100, 4])
for smoothing in (0.0, 0.1):
    whole = x.clone().requires_grad_()
    want = te.cross_entropy(whole, y, "none", smoothing); want.sum().backward()
    part = x[:, 5 * rank : 5 * rank + 5].clone().requires_grad_()
    got = te.parallel_cross_entropy(part, y, smoothing, dist_process_group=dist.group.WORLD); got.sum().backward()
    assert torch.allclose(got, want) and torch.allclose(part.grad, whole.grad[:, 5 * rank : 5 * rank + 5])
dist.destroy_process_group()
print("ok", flush=True)
os._exit(0)  # gloo's threads now and then call terminate() at a usual exit, in a script without libte too (torch 2.13)
"""


def test_ddp_two_processes(tmp_path: Path) -> None:
    """Amaxes are reduced over ranks (decisions.md 16); L04 and L05: a vocabulary over two shards."""
    import socket
    import subprocess
    import sys

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    script = tmp_path / "ddp.py"
    script.write_text(DDP)
    ranks = [subprocess.Popen([sys.executable, str(script), str(r), str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for r in (0, 1)]
    outputs = [p.communicate(timeout=180)[0] for p in ranks]
    assert all(o.strip().endswith("ok") for o in outputs), outputs


def test_s08_meta_device() -> None:
    for device in ("meta", torch.device("meta")):
        m = te.TransformerLayer(16, 32, 2, device=device)
        assert all(p.device.type == "meta" for p in m.parameters())
        m.to_empty(device=torch.get_default_device())
        for module in m.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        assert torch.isfinite(m(torch.randn(3, 2, 16))).all()
    with torch.device("meta"):
        assert te.Linear(4, 4).weight.device.type == "meta"  # torch's default device counts


def test_default_device_is_the_cpu_here() -> None:
    if not torch.cuda.is_available():
        assert te.Linear(4, 4).weight.device.type == "cpu"
    assert te.Linear(4, 4, device="cpu").weight.device.type == "cpu"


def test_a_copied_parameter_keeps_its_initial_value() -> None:
    with te.quantized_model_init(recipe=te.DelayedScaling(), preserve_high_precision_init_val=True):
        module = te.Linear(16, 16)
    twin = copy.deepcopy(module)
    assert torch.equal(twin.weight.get_high_precision_init_val(), module.weight.get_high_precision_init_val())
    twin.weight.clear_high_precision_init_val()
    assert twin.weight.get_high_precision_init_val() is None and module.weight.get_high_precision_init_val() is not None


@pytest.mark.parametrize("make", [lambda: te.Linear(16, 16, device="meta"), lambda: te.LayerNorm(16, device="meta"), lambda: te.LayerNormMLP(16, 32, device="meta")])
def test_forward_on_meta_says_what_to_do(make: Any) -> None:
    with pytest.raises(NotImplementedError, match="materialise the module"):
        make()(torch.empty(4, 16, device="meta"))


@pytest.mark.parametrize("state, rule", [
    ({"scale_fwd": "1"}, "scale_fwd must be a floating-point tensor, got str"),
    ({"amax_history_fwd": torch.zeros(4)}, r"amax_history_fwd must be a floating-point tensor \[len >= 1, k\], got torch.float32 \[4\]"),
    ({"amax_history_bwd": torch.zeros(0, 2)}, r"got torch.float32 \[0, 2\]"),
    ({"scale_bwd": torch.ones(2, dtype=torch.int32)}, "got torch.int32"),
    ({"weight": torch.ones(2)}, r"a dict must hold scale_fwd.*has \['weight'\]"),
])
def test_odd_dicts_of_state_are_refused(state: dict, rule: str) -> None:
    m = trained(4)
    before = m.get_extra_state()
    with pytest.raises(ValueError, match=rule):
        m.set_extra_state(state)
    assert torch.equal(before, m.get_extra_state())
    m.set_extra_state({})  # no state
    assert torch.equal(before, m.get_extra_state())
