# SPDX-License-Identifier: Apache-2.0
"""libte_jax.functional: gradients against jnp formulas in double-checked f32, FP8 linear, delayed-scaling state, dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

te = pytest.importorskip("libte_jax", reason="libte_xla.so was not built (no XLA headers)", exc_type=ImportError)
jax = pytest.importorskip("jax")
import jax.numpy as jnp
from libte import recipe
from libte_jax import functional as F
from tolerance import FP8_DISTANCE, assert_like, distance


def layernorm(x: Any, g: Any, b: Any) -> Any:
    c = x - x.mean(-1, keepdims=True)
    return c / jnp.sqrt((c * c).mean(-1, keepdims=True) + 1e-5) * g + b


def rms(x: Any, g: Any) -> Any:
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g


def silu(x: Any) -> Any:
    return x / (1 + jnp.exp(-x))


def soft(x: Any) -> Any:
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


TARGET = np.array([1, 0, -100, 4], np.int32)
FREQS = np.tile(np.outer(np.arange(3), [1.0, 0.1]), 2).astype(np.float32)


def entropy(x: Any) -> Any:
    rows = jnp.log(jnp.exp(x).sum(-1)) - x[jnp.arange(4), jnp.maximum(TARGET, 0)]
    return jnp.where(TARGET == -100, 0, rows).sum() / 3


def rotate(x: Any) -> Any:
    h = x.shape[-1] // 2
    c, s = (f(FREQS)[:, None, None, :] for f in (jnp.cos, jnp.sin))
    return x * c + jnp.concatenate([-x[..., h:], x[..., :h]], -1) * s


def sdpa(q: Any, k: Any, v: Any) -> Any:
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
    s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", soft(s), v)


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = {
    "rmsnorm": (F.rmsnorm, rms, [(3, 16), (16,)]),
    "layernorm": (F.layernorm, layernorm, [(2, 3, 16), (16,), (16,)]),
    "layernorm_residual": (lambda x, g, b, r: sum(F.layernorm(x, g, b, r)), lambda x, g, b, r: layernorm(x + r, g, b) + x + r,
                           [(3, 16), (16,), (16,), (3, 16)]),
    "activation": (lambda x: F.activation(x, "silu"), silu, [(3, 16)]),
    "gated_activation": (F.gated_activation, lambda x: silu(x[:, :8]) * x[:, 8:], [(3, 16)]),
    "softmax": (lambda x: F.softmax(x, scale=0.5), lambda x: soft(x * 0.5), [(2, 3, 8)]),
    "rope": (lambda x: F.rope(x, FREQS), rotate, [(3, 2, 2, 4)]),
    "cross_entropy": (lambda x: F.cross_entropy(x, TARGET), entropy, [(4, 7)]),
    "attention": (lambda q, k, v: F.attention(q, k, v, mask_kind="causal"), sdpa, [(2, 5, 2, 4)] * 3),
    "linear": (F.linear, lambda x, w, b: x @ w.T + b, [(2, 3, 8), (5, 8), (5,)]),
}


def evaluate(f: Callable[..., Any], weights: np.ndarray, args: list[np.ndarray]) -> list[np.ndarray]:
    def loss(*a: Any) -> Any:
        y = f(*a)
        return (y * weights.astype(y.dtype)).sum(), y

    (_, y), g = jax.jit(jax.value_and_grad(loss, tuple(range(len(args))), has_aux=True))(*args)
    return [np.asarray(t) for t in (y, *g)]


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(rng: np.random.Generator, wide: Any, name: str) -> None:
    ours, formula, shapes = CASES[name]
    args = [rng.standard_normal(s, dtype=np.float32) for s in shapes]
    weights = rng.standard_normal(jax.eval_shape(formula, *args).shape, dtype=np.float32)
    got, naive = evaluate(ours, weights, args), evaluate(formula, weights, args)
    with wide:
        want = evaluate(formula, weights.astype(np.float64), [a.astype(np.float64) for a in args])
    for i, (g, w, n) in enumerate(zip(got, want, naive)):
        assert_like(g, w, n, "float32", f"{name}, {'value' if i == 0 else f'gradient {i - 1}'}")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_linear_keeps_the_dtype(rng: np.random.Generator, dtype: str) -> None:
    wide = [rng.integers(-2, 3, s).astype(np.float32) for s in ((2, 3, 8), (5, 8), (5,))]  # exact in every dtype
    want = evaluate(lambda x, w, b: x @ w.T + b, np.ones((2, 3, 5), np.float32), wide)
    got = evaluate(F.linear, np.ones((2, 3, 5), np.float32), [a.astype(jnp.dtype(dtype)) for a in wide])
    for g, w in zip(got, want):
        assert g.dtype == dtype and np.array_equal(g.astype(np.float32), w)


def test_dropout_replays_its_mask() -> None:
    x = jnp.ones((8, 32))
    key, other = jax.random.key(1), jax.random.key(2)
    y, pull = jax.vjp(lambda x: F.dropout(x, key, 0.5), x)
    assert np.array_equal(pull(x)[0], y) and np.array_equal(pull(x)[0], y)
    assert set(np.unique(y)) == {0, 2}
    assert not np.array_equal(y, F.dropout(x, other, 0.5))


def test_x12_attention_dropout_is_a_function_of_its_key(rng: np.random.Generator) -> None:
    q, k, v = (jnp.asarray(rng.standard_normal((2, 9, 2, 4), dtype=np.float32)) for _ in range(3))

    def pulled(seed: int) -> list[Any]:
        y, pull = jax.vjp(lambda *a: F.attention(*a, key=jax.random.key(seed), dropout=0.5), q, k, v)
        first, second = pull(y), pull(y)
        for a, b in zip(first, second):
            assert np.array_equal(a, b)
        return [y, *first]

    for a, b, c in zip(pulled(1), pulled(1), pulled(2)):
        assert np.array_equal(a, b) and not np.array_equal(a, c)


@pytest.mark.parametrize("make", [recipe.Float8CurrentScaling, lambda: recipe.DelayedScaling(amax_history_len=4)])
def test_fp8_linear(rng: np.random.Generator, make: Callable[[], Any]) -> None:
    r = make()
    x, w, b = (rng.standard_normal(s, dtype=np.float32) for s in ((6, 32), (16, 32), (16,)))
    meta = None if isinstance(r, recipe.Float8CurrentScaling) else F.Fp8Meta.new(F.Fp8.of(r))

    def loss(x: Any, w: Any, b: Any, meta: Any, fp8: Any) -> Any:
        y = F.linear(x, w, b, fp8, meta)
        return (y * y).sum() / 2, y

    if meta is None:
        (_, y), got = jax.value_and_grad(lambda x, w, b: loss(x, w, b, None, r), (0, 1, 2), has_aux=True)(x, w, b)
    else:
        g = jax.jit(jax.value_and_grad(lambda x, w, b, m: loss(x, w, b, m, r), (0, 1, 2, 3), has_aux=True))
        (_, y), got = g(x, w, b, meta)
        next_meta = te.update_fp8_metas(got[3])
        assert got[3].amax_history[0, 0] == np.abs(x).max() and got[3].amax_history[0, 1] == np.abs(w).max()
        assert next_meta.scale[0] == np.float32(448) / np.abs(x).max()
        assert next_meta.scale[2] == np.float32(57344) / np.abs(np.asarray(y)).max()  # dy is y here
        assert np.array_equal(next_meta.amax_history[-1], got[3].amax_history[0]) and not next_meta.amax_history[0].any()
        (_, y), got = g(x, w, b, next_meta)
    (_, wide), want = jax.value_and_grad(lambda x, w, b: loss(x, w, b, None, None), (0, 1, 2), has_aux=True)(x, w, b)
    assert not np.array_equal(y, wide)
    for a, e in zip((y, *got[:3]), (wide, *want)):
        assert distance(np.asarray(a), np.asarray(e)) < FP8_DISTANCE


def test_delayed_scaling_needs_its_state() -> None:
    with pytest.raises(ValueError, match="meta must be given"):
        F.linear(jnp.ones((2, 8)), jnp.ones((4, 8)), None, recipe.DelayedScaling())


@pytest.mark.parametrize("make,name", [(lambda: recipe.DelayedScaling(reduce_amax=False), "reduce_amax"),
                                       (lambda: recipe.DelayedScaling(fp8_dpa=True), "fp8_dpa"),
                                       (lambda: recipe.Float8CurrentScaling(fp8_mha=True), "fp8_mha")])
def test_what_a_recipe_asks_in_vain_is_refused_by_name(make: Callable[[], Any], name: str) -> None:
    with pytest.raises(NotImplementedError, match=f"libte_jax: {name} must be"), te.autocast(recipe=make()):
        pass


X, W = jnp.ones((4, 8)), jnp.ones((6, 8))
Q = jnp.ones((2, 3, 2, 8))
BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: F.linear(None, W), "linear: x must be an array, got NoneType"),
    (lambda: F.linear(X, None), "linear: weight must be an array, got NoneType"),
    (lambda: F.linear(X, W, "b"), "linear: bias must be an array, got str"),
    (lambda: F.linear(X, 1.0), r"nvte_linear_forward: weight must be \[N, K\], K = x.shape\[-1\] = 8, got \[\]"),
    (lambda: F.rmsnorm(te.Quantized(X)), "rmsnorm_forward: x must be an array, got Quantized"),
    (lambda: F.rmsnorm(X, zero_centered="False"), "rmsnorm: zero_centered must be True or False, got 'False'"),
    (lambda: jax.jit(lambda e: F.rmsnorm(X, epsilon=e))(1.0), "nvte_rmsnorm_forward: epsilon must be known when the call is traced"),
    (lambda: F.gated_activation("x", pairs=True), "gated_activation: x must be an array, got str"),
    (lambda: F.dropout(X, jax.random.key(0), "half"), "dropout: p must be a number, got 'half'"),
    (lambda: F.cross_entropy(jnp.ones((2, 3, 8)), jnp.zeros((3, 2), int)),
     r"cross_entropy: logits must be \[\*, V\] and target \[\*\], got \[2, 3, 8\] and \[3, 2\]"),
    (lambda: F.cross_entropy(1.0, 0), r"cross_entropy: logits must be \[\*, V\] and target \[\*\], got \[\] and \[\]"),
    (lambda: F.attention(Q, Q, Q, window=3), r"attention: window must be \(left, right\), got 3"),
    (lambda: F.attention(Q, Q, Q, window=(1, 2, 3)), r"attention: window must be \(left, right\), got \(1, 2, 3\)"),
    # what shapes and dtypes tell is told when the call is traced
    (lambda: jax.eval_shape(F.linear, X.astype(jnp.bfloat16), W), "nvte_linear_forward: weight must have x's dtype bf16, or both must be fp8, got f32"),
    (lambda: jax.eval_shape(lambda x: F.rope(x, FREQS[:2], format="bshd"), jnp.ones((1, 3, 1, 4))),
     r"nvte_rope_forward: the position of token 2 of batch entry 0 must be in freqs' \[0, 2\), got 2"),
]


@pytest.mark.parametrize("call,message", BAD, ids=range(len(BAD)))
def test_bad_arguments_are_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_arguments_may_be_lists_and_0d_arrays() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(F.linear(x.tolist(), x.tolist()), F.linear(x, x))
    assert np.array_equal(F.linear(x.tolist(), x.tolist(), None, recipe.Float8CurrentScaling()), F.linear(x, x, None, recipe.Float8CurrentScaling()))
    assert np.array_equal(F.rmsnorm(x, epsilon=jnp.float32(0.5)), F.rmsnorm(x, epsilon=0.5))
    assert F.cross_entropy([[1.0, 2.0]], [0]) == F.cross_entropy(jnp.array([[1.0, 2.0]]), jnp.array([0]))
