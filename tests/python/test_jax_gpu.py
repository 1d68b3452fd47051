# SPDX-License-Identifier: Apache-2.0
"""What only a GPU shows of the JAX adapter: command buffers, XLA's stream, both kinds of device in one process, torch's bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

te = pytest.importorskip("libte_jax", reason="libte_xla.so was not built (no XLA headers)", exc_type=ImportError)
jax = pytest.importorskip("jax")
import jax.numpy as jnp
import libte
from jax_calls import calls
from libte import recipe
from libte.schema import OPS
from libte_jax import functional as F

pytestmark = pytest.mark.skipif(jax.default_backend() == "cpu", reason="JAX has no GPU here")


def chain(x: Any, w: Any, gamma: Any) -> Any:
    for _ in range(3):
        x = F.activation(F.linear(F.rmsnorm(x, gamma), w, None, recipe.Float8CurrentScaling()), "silu")
    return x


def inputs() -> tuple[Any, ...]:
    x, w = (jax.random.normal(jax.random.key(i), (256, 256), jnp.bfloat16) for i in range(2))
    return x, w * 0.05, jnp.ones(256, jnp.bfloat16)


def compiled(options: dict[str, Any]) -> Callable[..., Any]:
    return jax.jit(chain).lower(*inputs()).compile(compiler_options=options)


def test_command_buffers_hold_the_calls() -> None:
    """A recorded run repeats kernels: it passes none of libte's doors, and gives the same bits."""
    args = inputs()
    results, calls = [], []
    for run in (compiled({}), compiled({"xla_gpu_enable_command_buffer": ""})):
        y = run(*args)
        counts = []
        for _ in range(8):
            y = None  # the next result gets its memory: nothing is recorded again
            with libte.trace() as t:
                y = run(*args).block_until_ready()
            counts.append(len(t.calls()))
        results.append(np.asarray(y.astype(jnp.float32)))
        calls.append(counts)
    recorded, plain = calls
    assert min(plain) == max(plain) > 0 and recorded[-1] == 0, calls
    assert np.array_equal(*results) and np.isfinite(results[0]).all()


def test_work_is_ordered_with_jax_own() -> None:
    x, w, gamma = inputs()
    big = jnp.ones((4096, 4096), jnp.bfloat16)

    @jax.jit
    def f(x: Any, big: Any) -> Any:
        late = x + (big @ big @ big)[:256, :256] * 0  # not there yet when the call is made
        return te.ops.rmsnorm_forward(late, gamma) + 1

    want = te.ops.rmsnorm_forward(x, gamma) + 1
    for _ in range(5):
        assert np.array_equal(f(x, big), want)


def test_cpu_arrays_run_on_the_cpu() -> None:
    cpu = jax.devices("cpu")[0]
    x, w, _ = inputs()
    for run in (lambda f: f, jax.jit):
        with jax.default_device(cpu), libte.trace() as t:
            here = run(lambda x, w: te.ops.gemm(x, w, flags="trans_b"))(*(jax.device_put(a, cpu) for a in (x, w))).block_until_ready()
        assert here.devices() == {cpu} and {c.implementation for c in t.calls()} == {"cpu"}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", OPS)
def test_torch_gives_the_same_bits(name: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    import test_jax_torch as pair

    call = calls(dtype)[name]
    with torch.device("cuda"):
        ours = pair.in_jax(name, call)
        theirs = pair.in_torch(name, call, ours)
    for slot, x in ours.items():
        assert x.tobytes() == theirs[slot].tobytes(), slot


def test_torch_and_jax_share_memory() -> None:
    torch = pytest.importorskip("torch")
    x = inputs()[0] + 0
    t = torch.from_dlpack(x)
    assert t.is_cuda and t.data_ptr() == x.unsafe_buffer_pointer() == te.ops.asarray(t).unsafe_buffer_pointer()
    assert np.array_equal(te.ops.rmsnorm_forward(t), te.ops.rmsnorm_forward(x))
