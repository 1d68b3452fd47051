# SPDX-License-Identifier: Apache-2.0
"""libte_jax.flax: modules against flax's own and jnp formulas, the published training flow in FP8, dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

te = pytest.importorskip("libte_jax", reason="libte_xla.so was not built (no XLA headers)", exc_type=ImportError)
jax = pytest.importorskip("jax")
pytest.importorskip("flax")
import jax.numpy as jnp
from flax import linen as nn
from libte import recipe
from libte_jax import flax as tf
from tolerance import FP8_DISTANCE, assert_like, distance

RECIPES = [recipe.DelayedScaling(amax_history_len=4), recipe.Float8CurrentScaling()]


def twin(v: Any, x: Any) -> Any:
    """TransformerLayer without dropout in jnp, from its parameters."""
    def norm(p: Any, x: Any) -> Any:
        c = x - x.mean(-1, keepdims=True)
        return c / jnp.sqrt((c * c).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["ln_bias"]

    a, m = v["attention"], v["mlp"]
    qkv = jnp.einsum("bsk,kgcd->bsgcd", norm(a["norm"], x), a["qkv"]["kernel"]) + a["qkv"]["bias"]
    q, k, v_ = (qkv[..., i, :] for i in range(3))
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf)
    e = jnp.exp(s - s.max(-1, keepdims=True))
    o = jnp.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v_)
    x = x + jnp.einsum("bqhd,hdn->bqn", o, a["out"]["kernel"]) + a["out"]["bias"]
    h = jnp.einsum("bsk,kci->bsci", norm(m["norm"], x), m["wi"]["kernel"]) + m["wi"]["bias"]
    h = h[..., 0, :] / (1 + jnp.exp(-h[..., 0, :])) * h[..., 1, :]
    return x + h @ m["wo"]["kernel"] + m["wo"]["bias"]


def test_transformer_layer_is_the_formula(rng: np.random.Generator, wide: Any) -> None:
    layer = tf.TransformerLayer(16, 24, 2, mlp_activations=("silu", "linear"), use_bias=True)
    x = rng.standard_normal((2, 5, 16), dtype=np.float32)
    params = layer.init(jax.random.key(0), x, deterministic=True)["params"]

    def evaluate(f: Any, p: Any, x: Any) -> list[np.ndarray]:
        def run(p: Any, x: Any) -> Any:
            y = f(p, x)
            return (y * y).sum(), y

        (_, y), g = jax.jit(jax.value_and_grad(run, (0, 1), has_aux=True))(p, x)
        return [np.asarray(t) for t in jax.tree.leaves((y, g))]

    got = evaluate(lambda p, x: layer.apply({"params": p}, x, deterministic=True), params, x)
    naive = evaluate(lambda p, x: twin(p, x), params, x)
    with wide:
        doubles = jax.tree.map(lambda t: np.asarray(t, np.float64), params)
        want = evaluate(lambda p, x: twin(p, x), doubles, x.astype(np.float64))
    assert len(got) == len(want) == 14
    for i, (g, w, n) in enumerate(zip(got, want, naive)):
        assert_like(g, w, n, "float32", str(i))


def test_dense_general_contracts_axes(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 4), dtype=np.float32)
    ours, theirs = (m.DenseGeneral((5, 2), axis=(-2, -1), use_bias=True) for m in (tf, nn))
    v = theirs.init(jax.random.key(0), x)
    y = np.asarray(ours.apply(v, x))
    want = np.einsum("bij,ijkl->bkl", x.astype(np.float64), np.asarray(v["params"]["kernel"], np.float64))
    assert_like(y, want, np.asarray(theirs.apply(v, x)), "float32", "DenseGeneral")


@pytest.mark.parametrize("r", RECIPES, ids=["delayed", "current"])
def test_the_published_flow_trains_in_fp8(rng: np.random.Generator, r: Any) -> None:
    layer = tf.TransformerLayer(16, 32, 2, hidden_dropout=0.0, attention_dropout=0.0, intermediate_dropout=0.0)
    x, target = (rng.standard_normal((2, 8, 16), dtype=np.float32) for _ in range(2))
    with te.autocast(enabled=True, recipe=r):
        variables = dict(layer.init(jax.random.key(0), x))
        params = variables.pop("params")
        assert bool(variables) == isinstance(r, recipe.DelayedScaling)

        def loss_fn(params: Any, others: Any) -> Any:
            return ((layer.apply({"params": params, **others}, x) - target) ** 2).mean()

        step = jax.jit(jax.value_and_grad(loss_fn, argnums=(0, 1)))
        losses = []
        for _ in range(6):
            loss, (grads, other_grads) = step(params, variables)
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
            variables = te.update_fp8_metas(other_grads)
            losses.append(float(loss))
        y = layer.apply({"params": params, **variables}, x)
    wide = layer.apply({"params": params}, x)
    assert losses == sorted(losses, reverse=True)
    assert not np.array_equal(y, wide) and distance(np.asarray(y), np.asarray(wide)) < FP8_DISTANCE
    for meta in jax.tree.leaves(variables, is_leaf=lambda m: hasattr(m, "rolled")):
        assert (np.asarray(meta.scale) != 1).all()  # all three tensors of every linear were seen


def test_autocast_is_a_stack() -> None:
    from libte_jax.quantization import current_recipe

    with te.autocast(recipe=RECIPES[1]):
        assert current_recipe() is RECIPES[1]
        with te.fp8_autocast(enabled=False):
            assert current_recipe() is None
        assert current_recipe() is RECIPES[1]
    assert current_recipe() is None


def test_a_jitted_function_follows_autocast(rng: np.random.Generator) -> None:
    if not hasattr(jax, "make_user_context"):
        pytest.skip("this jax caches traces whatever the recipe is")
    layer = tf.DenseGeneral(8)
    x = rng.standard_normal((4, 16), dtype=np.float32)
    v = layer.init(jax.random.key(0), x)
    run = jax.jit(layer.apply)
    wide = run(v, x)
    for r in (RECIPES[1], recipe.Float8CurrentScaling(use_power_2_scales=True)):
        with te.autocast(recipe=r):
            y = run(v, x)
            assert np.array_equal(y, layer.apply(v, x)) and not np.array_equal(y, wide)
            with te.autocast(enabled=False):
                assert np.array_equal(run(v, x), wide)
    assert np.array_equal(run(v, x), wide)
    assert run._cache_size() == 3  # and none is traced twice


def test_a_recipe_in_the_place_of_enabled_is_refused() -> None:
    with pytest.raises(TypeError, match=r"autocast: enabled must be True or False, got DelayedScaling\(.*; the recipe is a keyword"), te.autocast(RECIPES[0]):
        pass
    with pytest.raises(NotImplementedError, match="fp8_autocast takes enabled and fp8_recipe, not mesh_resource"), te.fp8_autocast(mesh_resource=1):
        pass


def test_dropout_follows_its_key(rng: np.random.Generator) -> None:
    layer = tf.TransformerLayer(16, 32, 2, layernorm_type="rmsnorm", enable_rotary_pos_emb=True, num_gqa_groups=1)
    x = rng.standard_normal((2, 8, 16), dtype=np.float32)
    v = layer.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, x)
    run = jax.jit(lambda k: layer.apply(v, x, rngs={"dropout": k}))
    a, b, c = (np.asarray(run(jax.random.key(k))) for k in (1, 1, 2))
    assert np.array_equal(a, b) and not np.array_equal(a, c)


X = jnp.ones((2, 4, 16))
BAD: list[tuple[Any, list[Any], str]] = [
    (tf.DenseGeneral(4.0), [X], "features must be an integer or a tuple of them, got 4.0"),
    (tf.DenseGeneral(0), [X], "features must be >= 1, got 0"),
    (tf.DenseGeneral(4, axis=5), [X], r"axis must be distinct dimensions of x \[2, 4, 16\], got 5"),
    (tf.DenseGeneral(4, axis=(-1, 2)), [X], r"axis must be distinct dimensions of x \[2, 4, 16\], got \(-1, 2\)"),
    (tf.DenseGeneral(4), [None], "DenseGeneral: x must be an array, got NoneType"),
    (tf.DenseGeneral(4), [jnp.ones(())], r"DenseGeneral: x must have 1 or more dimensions, got \[\]"),
    (tf.RMSNorm(), ["x"], "RMSNorm: x must be an array, got str"),
    (tf.LayerNormMLP(layernorm_type="batch"), [X], "layernorm_type must be 'layernorm' or 'rmsnorm', got 'batch'"),
    (tf.LayerNormMLP(8, activations=()), [X], r"activations must be \(name,\) or \(name, 'linear'\), got \(\)"),
    (tf.LayerNormMLP(8, activations="gelu"), [X], r"activations must be \(name,\) or \(name, 'linear'\), got 'gelu'"),
    (tf.LayerNormMLP(0), [X], "intermediate_dim must be >= 1, got 0"),
    (tf.DotProductAttention(8, 2, attn_mask_type="diagonal"), [jnp.ones((1, 4, 2, 8))] * 3, "attn_mask_type must be one of"),
    (tf.DotProductAttention(8, 2, window_size=3), [jnp.ones((1, 4, 2, 8))] * 3, r"window must be \(left, right\), got 3"),
    (tf.DotProductAttention(8, 2, num_gqa_groups=2), [jnp.ones((1, 4, 2, 8)), *[jnp.ones((1, 4, 1, 8))] * 2],
     r"key must end in \[heads, head_dim\] = \[2, 8\], got \[1, 4, 1, 8\]"),
    (tf.DotProductAttention(8, 2), [X] * 3, r"DotProductAttention: query must have 4 or more dimensions, got \[2, 4, 16\]"),
    (tf.MultiHeadAttention(8, 0), [X, X], "num_attention_heads must be >= 1, got 0"),
    (tf.MultiHeadAttention(8, 2, num_gqa_groups=0), [X, X], "num_gqa_groups must be >= 1, got 0"),
    (tf.TransformerLayer(16, 32, 2), [X[0]], r"TransformerLayer: inputs must have 3 or more dimensions, got \[4, 16\]"),
    (tf.TransformerLayer(16, 32, 2, layer_type="decoder"), [X], "or 'decoder' with `encoded`, got 'decoder' and no encoded"),
]


@pytest.mark.parametrize("module,inputs,message", BAD, ids=range(len(BAD)))
def test_refusals_name_the_rule(module: Any, inputs: list[Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        jax.eval_shape(lambda: module.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, *inputs))
