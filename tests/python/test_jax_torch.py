# SPDX-License-Identifier: Apache-2.0
"""torch and JAX give the same bits for the same operator and inputs: every operator, subnormals and NaN among the inputs, torch's memory at odd
addresses, one thread and two. And arrays of torch, JAX and numpy pass to each other's operators without a copy."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

te = pytest.importorskip("libte_jax", reason="libte_xla.so was not built (no XLA headers)", exc_type=ImportError)
jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")
import jax.numpy as jnp
import libte.numpy as tn
from jax_calls import Call, calls
from libte import _call
from libte.schema import OPS
from libte_torch import ops as torch_ops

TORCH = {getattr(torch, n): d for n, d in {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
                                           "uint8": "u8", "int32": "i32", "int64": "i64", "bool": "bool"}.items()}
FROM = {d: t for t, d in TORCH.items()}


def to_torch(x: np.ndarray, dtype: str) -> Any:
    """A torch tensor; on the CPU its memory starts one element after a multiple of 64 bytes. (On GPUs a product's kernel depends on that.)"""
    memory = torch.full((x.nbytes + 128,), 0xFF, dtype=torch.uint8)
    start = -memory.data_ptr() % 64 + x.itemsize if memory.device.type == "cpu" else 0
    part = memory[start:start + x.nbytes]
    if x.nbytes:
        part.copy_(torch.from_numpy(np.ascontiguousarray(x).reshape(-1).view(np.uint8).copy()))
    return part.view(FROM[dtype]).reshape(x.shape)


def in_jax(name: str, call: Call) -> dict[str, np.ndarray]:
    inputs, outputs, scalars = call
    out = te.ops.call(name, {s: jnp.asarray(x) for s, x in inputs.items()}, outputs, scalars)
    return {s: np.asarray(x) for s, x in out.items()}


def in_torch(name: str, call: Call, like: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    inputs, outputs, scalars = call
    op = OPS[name]
    tensors: dict[str, Any] = {}
    for s, x in inputs.items():
        tensors[s] = to_torch(x, "i64" if x.dtype == np.int64 else te.ops.dtype_name(x.dtype))
    for s, x in like.items():
        poison = np.zeros_like(x) if s.endswith("amax") else np.full(x.nbytes, 0xA5, np.uint8).view(x.dtype).reshape(x.shape)
        tensors[s] = to_torch(poison, te.ops.dtype_name(x.dtype))
    slots = [(tensors[s.name],) if s.is_list else tensors.get(s.name) for s in op.slots]
    counts = {f.count for f in op.fields if f.count}
    values = [1 if s.name in counts else scalars.get(s.name, s.default) for s in op.scalars]
    torch_ops._functions[name](*slots, *(_call.dtype_word(v) if isinstance(v, str) else v for v in values))
    return {s: tensors[s].contiguous().cpu().view(torch.uint8).numpy() for s in like}


def main() -> None:
    for dtype in ("f32", "bf16"):
        for name, call in calls(dtype).items():
            j = in_jax(name, call)
            t = in_torch(name, call, j)
            print(json.dumps([f"{name}-{dtype}", {s: [hashlib.sha256(a.tobytes()).hexdigest() for a in (j[s], t[s])] for s in j}]))


@pytest.fixture(scope="module")
def digests(python: Any) -> list[dict[str, Any]]:
    runs = []
    for threads in ("1", "2"):
        out = python(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_jax_torch as t; t.main()",
                     {"LIBTE_NUM_THREADS": threads, "JAX_PLATFORMS": "cpu"}, 300)
        assert out.returncode == 0, out.stderr
        runs.append(dict(map(json.loads, out.stdout.splitlines())))
    return runs


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", OPS)
def test_same_bits(digests: list[dict[str, Any]], name: str, dtype: str) -> None:
    one, two = (run[f"{name}-{dtype}"] for run in digests)
    assert one and set(one) == set(calls(dtype)[name][1])
    for slot, (in_jax_, in_torch_) in one.items():
        assert in_jax_ == in_torch_, slot
        assert two[slot] == [in_jax_, in_torch_], f"{slot}, two threads"


# ---- without a copy ----
@pytest.fixture
def on_cpu() -> Any:
    with jax.default_device(jax.devices("cpu")[0]), torch.device("cpu"):
        yield


def test_arrays_pass_without_a_copy(rng: np.random.Generator, on_cpu: None) -> None:
    x = jnp.asarray(rng.standard_normal((8, 64), dtype=np.float32)) + 0  # JAX's own memory
    address = x.unsafe_buffer_pointer()
    as_torch, as_numpy = torch.from_dlpack(x), tn.from_dlpack(x)
    assert as_torch.data_ptr() == address == as_numpy.ctypes.data
    want = np.asarray(te.ops.rmsnorm_forward(x))
    y, rstd = torch.empty_like(as_torch), torch.empty(8)
    torch_ops.rmsnorm_forward(as_torch, None, None, y, None, None, None, None, None, None, rstd, 1e-5, 0)
    assert np.array_equal(y.numpy(), want) and np.array_equal(tn.rmsnorm_forward(x), want) and np.array_equal(tn.rmsnorm_forward(as_torch), want)

    t = torch.randn(8, 64)  # torch's memory, and numpy's, to JAX's operators
    memory = np.zeros(64 + t.nbytes, np.uint8)
    aligned = memory[-memory.ctypes.data % 64:][:t.nbytes].view(np.float32).reshape(8, 64)
    aligned[:] = t.numpy()
    for foreign in (aligned, torch.from_numpy(aligned)):
        taken = te.ops.asarray(foreign)
        assert isinstance(taken, jax.Array) and taken.unsafe_buffer_pointer() == aligned.ctypes.data
        assert np.array_equal(te.ops.rmsnorm_forward(foreign), tn.rmsnorm_forward(t))
        assert np.array_equal(jax.jit(lambda: te.ops.rmsnorm_forward(foreign))(), tn.rmsnorm_forward(t))
    odd = memory[4 + -memory.ctypes.data % 64:][:t.nbytes - 256].view(np.float32).reshape(7, 64)  # XLA copies what is not aligned
    assert np.array_equal(te.ops.rmsnorm_forward(odd), tn.rmsnorm_forward(odd))


def test_a_tensor_that_torch_tracks_is_refused() -> None:
    with pytest.raises(Exception, match="grad"):
        te.ops.rmsnorm_forward(torch.ones(2, 8, requires_grad=True))
