# SPDX-License-Identifier: Apache-2.0
"""libte_jax.ops: values, the same bits as libte.numpy and libte_torch, refusals at trace time, jit, vmap, the FFI version rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

te = pytest.importorskip("libte_jax", reason="libte_xla.so was not built (no XLA headers)", exc_type=ImportError)
jax = pytest.importorskip("jax")
import jax.numpy as jnp
import libte
import libte.numpy as ten
from jax_calls import calls
from libte.schema import OPS
from libte_jax import _ffi
from tolerance import assert_close

ROWS = [(5, 33), (2, 3, 64), (0, 16)]
ON_CPU = jax.default_backend() == "cpu"


@pytest.mark.parametrize("shape", ROWS)
def test_rmsnorm_is_the_formula(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    x, g = rng.standard_normal(shape, dtype=np.float32), rng.standard_normal(shape[-1], dtype=np.float32)
    y = jax.jit(lambda x, g: te.ops.rmsnorm_forward(x, g, epsilon=1e-3))(x, g)
    assert_close(np.asarray(y), lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(1e-3)) * g, x, g)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_bits_are_those_of_numpy_and_torch(rng: np.random.Generator, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    import libte_torch

    x = jnp.asarray(rng.standard_normal((7, 48)), dtype).at[0, 0].set(1e-40)  # a subnormal where the dtype has it
    g, b = jnp.asarray(rng.standard_normal(48), dtype), jnp.asarray(rng.standard_normal(48), dtype)
    got = te.ops.layernorm_forward(x, g, b, mu=True, rstd=True)
    if ON_CPU:  # numpy's arrays are
        want = ten.layernorm_forward(np.asarray(x), np.asarray(g), np.asarray(b), mu=True, rstd=True)
        for a, w in ((got.y, want.y), (got.mu, want.mu), (got.rstd, want.rstd)):
            assert np.asarray(a).tobytes() == w.tobytes()
    tx, tg, tb = (torch.from_dlpack(t) for t in (x, g, b))
    y, mu, rstd = torch.empty_like(tx), torch.empty(7, device=tx.device), torch.empty(7, device=tx.device)
    libte_torch.ops.layernorm_forward(tx, tg, tb, None, y, None, None, None, None, None, None, mu, rstd, 1e-5, 0)
    assert bytes(y.cpu().view(torch.uint8).numpy()) == np.asarray(got.y).tobytes()


@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2"])
def test_quantise_both_orientations(rng: np.random.Generator, fmt: str) -> None:
    x = rng.standard_normal((6, 20), dtype=np.float32)
    q = jax.jit(lambda x, s: te.ops.quantize(x, y=te.Output(fmt, scale=s, columnwise=True)))(x, jnp.full(1, 3.0))
    want = ten.quantize(x, fmt, 3.0, columnwise=True)
    assert np.asarray(q.data).tobytes() == want.data.tobytes()
    assert np.asarray(q.columnwise).tobytes() == want.columnwise.tobytes()
    assert q.scale_inv[0] == np.float32(1) / np.float32(3) and q.amax[0] == np.abs(x).max()
    rowless = te.Quantized(columnwise=q.columnwise, columnwise_scale_inv=q.scale_inv, scale_inv=q.scale_inv)
    assert np.array_equal(te.ops.dequantize(rowless), te.ops.dequantize(q))


def test_int32_targets_serve_as_int64(rng: np.random.Generator) -> None:
    logits = rng.standard_normal((4, 9), dtype=np.float32)
    target = np.array([1, -100, 8, 0], np.int32)
    loss = te.ops.cross_entropy_forward(logits, target, reduction="none")
    kept = [0, 2, 3]
    assert_close(np.asarray(loss)[kept], lambda x: np.log(np.exp(x).sum(-1)) - x[range(3), target[kept]], logits[kept])
    if ON_CPU:
        assert np.asarray(loss).tobytes() == ten.cross_entropy_forward(logits, target.astype(np.int64), loss=True, reduction="none").tobytes()
    assert loss[1] == 0


def test_in_place_output_accumulates(rng: np.random.Generator) -> None:
    dy, x, w = (rng.standard_normal(s, dtype=np.float32) for s in ((3, 4), (3, 5), (4, 5)))
    before = jnp.ones((4, 5))
    out = te.ops.linear_backward(dy, x, w, dweight=before, flags="accumulate")
    assert_close(np.asarray(out), lambda dy, x: dy.T @ x + 1, dy, x)
    assert np.array_equal(before, np.ones((4, 5)))  # XLA copied it


def test_refusals_come_at_trace_time_with_the_c_message() -> None:
    x, g = jnp.ones((2, 8)), jnp.ones(4)
    with pytest.raises(ValueError, match=r"nvte_rmsnorm_forward: gamma must be \[H\], H = x.shape\[-1\] = 8, got \[4\]"):
        jax.eval_shape(te.ops.rmsnorm_forward, x, g)
    with pytest.raises(ValueError, match="epsilon"):
        jax.eval_shape(lambda x: te.ops.rmsnorm_forward(x, epsilon=-1.0), x)
    with pytest.raises(libte.Error, match="activation takes gelu"):
        te.ops.activation_forward(x, activation="tanhish")
    with pytest.raises(TypeError, match="unexpected or repeated argument 'eps'"):
        te.ops.rmsnorm_forward(x, eps=1e-5)
    with pytest.raises(ValueError, match="x takes a plain array"):
        te.ops.rmsnorm_forward(te.Quantized(x))


@pytest.mark.skipif(not ON_CPU, reason="a kernel on a GPU has nobody to tell")
def test_refusals_that_only_data_tells_carry_the_c_message() -> None:
    with pytest.raises(Exception, match="nvte_cross_entropy_forward: .*target"):
        jax.block_until_ready(jax.jit(te.ops.cross_entropy_forward)(jnp.ones((2, 4)), jnp.array([0, 7], jnp.int32)))


CALLS = calls("f32")
# Their batch is one more leading dimension; the others run one entry after another.
ROW_WISE = {"rmsnorm_forward", "layernorm_forward", "activation_forward", "activation_backward", "gated_activation_forward",
            "gated_activation_backward", "softmax_forward", "softmax_backward", "linear_forward", "dequantize"}


@pytest.mark.parametrize("name", OPS)
def test_vmap(name: str) -> None:
    inputs, outputs, scalars = CALLS[name]
    outputs = {s: d for s, d in outputs.items() if name != "layernorm_forward" or not s.startswith("y_")}
    if name == "layernorm_forward":
        outputs["y"] = "f32"
    if name in ("activation_backward", "linear_forward"):
        outputs = {next(s for s in outputs if s in ("dx", "y")): "f32"}
        inputs = {s: x for s, x in inputs.items() if not s.endswith("_scale")}
    starred = [s.name for s in OPS[name].slots if s.name in inputs and s.part == "data" and OPS[name].field(s.field).star]
    entries = [inputs, {s: np.roll(x, 1, 0) for s, x in inputs.items()}]
    for moving in (list(inputs), starred or list(inputs)[:1]):
        def f(given: dict[str, Any], moving: list[str] = moving) -> Any:
            still = {s: jnp.asarray(x) for s, x in inputs.items() if s not in moving}
            return te.ops.call(name, given | still, outputs, scalars)

        stacked = {s: jnp.stack([jnp.asarray(e[s]) for e in entries]) for s in moving}
        got = jax.jit(jax.vmap(f))(stacked)
        for i, e in enumerate(entries):
            for s, w in f({s: jnp.asarray(e[s]) for s in moving}).items():
                assert np.asarray(got[s][i]).tobytes() == np.asarray(w).tobytes(), s
    assert ("scan" not in str(jax.make_jaxpr(jax.vmap(f))(stacked))) == (name in ROW_WISE)


def test_vmap_in_vmap_and_of_a_gradient(rng: np.random.Generator) -> None:
    from libte_jax import functional as F

    x, g = rng.standard_normal((3, 4, 2, 16), dtype=np.float32), rng.standard_normal(16, dtype=np.float32)
    y = jax.vmap(jax.vmap(lambda x: te.ops.rmsnorm_forward(x, g)))(x)
    assert np.array_equal(y, te.ops.rmsnorm_forward(x, g))
    each = jax.vmap(jax.grad(lambda g, x: F.rmsnorm(x, g).sum()), (None, 0))(g, x)  # a gradient an entry
    for i in range(3):
        assert np.array_equal(each[i], jax.grad(lambda g: F.rmsnorm(x[i], g).sum())(g))


def test_in_place_results_take_the_donated_memory(rng: np.random.Generator) -> None:
    dy, x, w = (jnp.asarray(rng.standard_normal(s, dtype=np.float32)) for s in ((3, 4), (3, 5), (4, 5)))
    f = jax.jit(lambda dweight, dy, x, w: te.ops.linear_backward(dy, x, w, dweight=dweight, flags="accumulate"), donate_argnums=0)
    before = jnp.ones((4, 5)) + 0
    address = before.unsafe_buffer_pointer()
    assert f(before, dy, x, w).unsafe_buffer_pointer() == address
    z = jnp.asarray(rng.standard_normal((64, 32), dtype=np.float32)) + 0
    address, want = z.unsafe_buffer_pointer(), np.asarray(te.ops.activation_forward(z, activation="silu")).copy()
    got = jax.jit(lambda z: te.ops.activation_forward(z, activation="silu", in_place=True), donate_argnums=0)(z)
    assert got.unsafe_buffer_pointer() == address and np.array_equal(got, want)
    kept = jax.jit(lambda x: (te.ops.rmsnorm_forward(x, in_place=True), x + 1))(x)  # x is needed: XLA copies
    assert np.array_equal(kept[0], te.ops.rmsnorm_forward(x)) and np.array_equal(kept[1], x + 1)
    with pytest.raises(ValueError, match="nvte_transpose: in_place must be False"):
        te.ops.transpose(x, in_place=True)
    with pytest.raises(ValueError, match="nvte_rmsnorm_forward: in_place needs y of x's shape and dtype"):
        te.ops.rmsnorm_forward(x, y="bf16", in_place=True)


X, CODES = jnp.ones((4, 8)), jnp.ones((4, 8), jnp.float8_e4m3fn)
BAD: list[tuple[Any, str]] = [
    (lambda: te.ops.rmsnorm_forward(np.zeros((2, 8), object)), "nvte_rmsnorm_forward: x must be an array that JAX takes, got ndarray of object"),
    (lambda: te.ops.rmsnorm_forward("x"), "nvte_rmsnorm_forward: x must be an array that JAX takes, got str"),
    (lambda: te.ops.rmsnorm_forward(X, y=np.zeros((4, 8))), "libte takes no array for a dtype"),
    (lambda: te.ops.rmsnorm_forward(X + 1j), "libte takes no complex64 arrays"),
    (lambda: te.ops.rmsnorm_forward(X, epsilon=1e300), r"nvte_rmsnorm_forward: epsilon must fit f32, got 1e\+300"),
    (lambda: te.ops.rmsnorm_forward(X, epsilon={}), "nvte_rmsnorm_forward: epsilon must be a number or a name, got dict"),
    (lambda: jax.jit(lambda e: te.ops.rmsnorm_forward(X, epsilon=e))(1e-5), "nvte_rmsnorm_forward: epsilon must be known when the call is traced"),
    (lambda: te.ops.quantize(X, y=te.Output("e4m3", compute_scale=True)),
     "nvte_quantize: y.compute_scale must be False, since the operator or its flags lack current_scaling, got True"),
    (lambda: te.ops.linear_forward(X, X, x_quantized=te.Output("e4m3", scale=jnp.ones(1)), weight_quantized=te.Output("e4m3", scale=jnp.ones(1)),
                                   flags="current_scaling"), "x_quantized.compute_scale must be True, since flags have current_scaling, got False"),
    (lambda: te.ops.quantize(X, y=te.Output("e4m3", scale=jnp.ones(3))), r"nvte_quantize: y.scale must be f32 \[1\], got f32 \[3\]"),
    (lambda: te.ops.quantize(X, y=te.Output("e4m3", scale=jnp.ones(1, jnp.bfloat16))), r"nvte_quantize: y.scale must be f32 \[1\], got bf16 \[1\]"),
    (lambda: te.ops.dequantize(te.Quantized(CODES, scale_inv="one")), "nvte_dequantize: x_scale_inv must be an array that JAX takes, got str"),
    (lambda: te.ops.dequantize(te.Quantized(CODES, scale_inv=jnp.ones(2))), r"nvte_dequantize: x.scale_inv must be f32 \[1\], got f32 \[2\]"),
    (lambda: te.ops.gemm(X, X, view=":pairs"), "nvte_gemm: view must be '' .*, got ':pairs'"),
    (lambda: te.ops.linear_forward(X, X, view=":pairs"), r"nvte_linear_forward: weight must have a pair in dimension -3, got \[4, 8\]"),
    (lambda: jax.grad(lambda x: te.ops.rmsnorm_forward(x).sum())(X), "nvte_rmsnorm_forward has no derivative: libte_jax.functional has"),
    (lambda: jax.grad(lambda x: jax.grad(lambda x: te.functional.rmsnorm(x).sum())(x).sum())(X), "nvte_rmsnorm_(forward|backward) has no derivative"),
]


@pytest.mark.parametrize("call,message", BAD, ids=range(len(BAD)))
def test_bad_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises((ValueError, NotImplementedError), match=message):
        call()


def test_scalars_may_be_of_any_library() -> None:
    want = te.ops.rmsnorm_forward(X, epsilon=0.5)
    for e in (np.float32(0.5), jnp.float32(0.5), np.array(0.5)):
        assert np.array_equal(te.ops.rmsnorm_forward(X, epsilon=e), want)


def test_what_is_not_differentiated_may_be_called_inside_grad() -> None:
    dx = jax.jit(jax.grad(lambda x: (te.ops.rmsnorm_forward(jax.lax.stop_gradient(x)) * x).sum()))(X)
    assert np.array_equal(dx, te.ops.rmsnorm_forward(X))


def test_version_rule() -> None:
    _ffi.check_version((0, 1), (0, 3))
    for built, runtime in (((0, 3), (0, 1)), ((1, 0), (0, 3))):
        with pytest.raises(ImportError, match=f"speaks XLA FFI {built[0]}.{built[1]}.*{runtime[0]}.{runtime[1]} or older"):
            _ffi.check_version(built, runtime)


OLD_RUNTIME = """
import pathlib, jax
root = pathlib.Path({root!r})
header = root / "xla/ffi/api/c_api.h"
header.parent.mkdir(parents=True)
header.write_text("#define XLA_FFI_API_MAJOR 0\\n#define XLA_FFI_API_MINOR 0\\n")
jax.ffi.include_dir = lambda: str(root)
def register(*a, **k):
    raise AssertionError("registered a handler that the runtime refuses")
jax.ffi.register_ffi_target = register
try:
    import libte_jax
except ImportError as e:
    print(e)
import jax.numpy
assert jax.numpy.ones(2).sum() == 2  # the back end is whole
"""


def test_an_older_runtime_is_named_before_anything_is_registered(python: Any, tmp_path: Any) -> None:
    out = python(OLD_RUNTIME.replace("{root!r}", repr(str(tmp_path / "include"))), {"JAX_PLATFORMS": "cpu"})
    assert out.returncode == 0, out.stderr
    assert f"libte_xla.so speaks XLA FFI 0.1, but jax {jax.__version__} takes 0.0 or older" in out.stdout
