# SPDX-License-Identifier: Apache-2.0
"""libte_jax.nnx: the same numbers as libte_jax.flax from the same parameters, FP8 state in variables, dropout, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

te = pytest.importorskip("libte_jax", reason="libte_xla.so was not built (no XLA headers)", exc_type=ImportError)
jax = pytest.importorskip("jax")
pytest.importorskip("flax")
import jax.numpy as jnp
from flax import nnx
from libte import recipe
from libte_jax import flax as tf
from libte_jax import nnx as tn
from tolerance import FP8_DISTANCE, distance

H = 16
# (name, width, fields, shapes of the inputs)
MODULES: list[tuple[str, Any, dict[str, Any], list[tuple[int, ...]]]] = [
    ("LayerNorm", H, {}, [(2, 5, H)]),
    ("RMSNorm", H, {"zero_centered_gamma": True}, [(2, 5, H)]),
    ("DenseGeneral", (4, H), {"features": (3, 2), "axis": (-2, -1), "use_bias": True}, [(2, 4, H)]),
    ("LayerNormDenseGeneral", H, {"features": 8, "layernorm_type": "rmsnorm", "return_layernorm_output": True}, [(2, 5, H)]),
    ("LayerNormMLP", H, {"intermediate_dim": 24, "activations": ("silu", "linear"), "use_bias": True}, [(2, 5, H)]),
    ("DotProductAttention", None, {"head_dim": 8, "num_attention_heads": 2}, [(2, 5, 2, 8)] * 3),
    ("MultiHeadAttention", H, {"head_dim": 8, "num_attention_heads": 2, "num_gqa_groups": 1, "enable_rotary_pos_emb": True}, [(2, 5, H)]),
    ("TransformerLayer", H, {"hidden_size": H, "mlp_hidden_size": 24, "num_attention_heads": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0,
                             "intermediate_dropout": 0.0, "use_bias": True}, [(2, 5, H)]),
    ("TransformerLayer", H, {"hidden_size": H, "mlp_hidden_size": 24, "num_attention_heads": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0,
                             "intermediate_dropout": 0.0, "layer_type": "decoder"}, [(2, 5, H), (2, 7, H)]),
]


def as_dict(module: Any) -> Any:
    """Parameters as linen names them."""
    def bare(t: Any) -> Any:
        return {k: bare(v) for k, v in t.items()} if hasattr(t, "items") else tn._read(t)

    return bare(nnx.state(module, nnx.Param))


@pytest.mark.parametrize("name,width,fields,shapes", MODULES, ids=[f"{m[0]}-{len(m[3])}" for m in MODULES])
def test_numbers_are_those_of_linen(rng: np.random.Generator, name: str, width: Any, fields: dict[str, Any], shapes: Any) -> None:
    ours, linen = getattr(tn, name)(width, rngs=nnx.Rngs(0), **fields), getattr(tf, name)(**fields)
    xs = [jnp.asarray(rng.standard_normal(s, dtype=np.float32)) for s in shapes]
    xs = xs * 2 if name == "MultiHeadAttention" else xs

    def loss(ys: Any) -> Any:
        return sum((y * y).sum() for y in jax.tree.leaves(ys))

    params = as_dict(ours)
    want, dwant = jax.value_and_grad(lambda p: loss(linen.apply({"params": p}, *xs)))(params)
    got, dgot = nnx.value_and_grad(lambda m: loss(m(*xs)))(ours)
    assert got == want and jax.tree.structure(params) == jax.tree.structure(linen.init(jax.random.key(0), *xs).get("params", {}))
    for a, b in zip(jax.tree.leaves(dgot), jax.tree.leaves(dwant)):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("r", [recipe.DelayedScaling(amax_history_len=4), recipe.Float8CurrentScaling()], ids=["delayed", "current"])
def test_trains_in_fp8(rng: np.random.Generator, r: Any) -> None:
    x, target = (jnp.asarray(rng.standard_normal((2, 8, H), dtype=np.float32)) for _ in range(2))
    with te.autocast(recipe=r):
        layer = tn.LayerNormMLP(H, 32, rngs=nnx.Rngs(0))
        assert bool(jax.tree.leaves(nnx.state(layer, tn.Fp8Metas))) == isinstance(r, recipe.DelayedScaling)

        @nnx.jit
        def step(layer: Any) -> Any:
            loss, g = nnx.value_and_grad(lambda m: ((m(x)[0] - target) ** 2).mean(), argnums=nnx.DiffState(0, (nnx.Param, tn.Fp8Metas)))(layer)
            params, metas = nnx.split_state(g, nnx.Param, tn.Fp8Metas) if hasattr(nnx, "split_state") else g.split(nnx.Param, tn.Fp8Metas)
            old = nnx.state(layer, nnx.Param)
            nnx.update(layer, jax.tree.map(lambda p, d: p - 0.1 * d, old, params))
            nnx.update(layer, te.update_fp8_metas(metas))
            return loss

        losses = [float(step(layer)) for _ in range(6)]
        y = layer(x)[0]
    wide = layer(x)[0]
    assert losses == sorted(losses, reverse=True)
    assert not np.array_equal(y, wide) and distance(np.asarray(y), np.asarray(wide)) < FP8_DISTANCE
    for meta in jax.tree.leaves(nnx.state(layer, tn.Fp8Metas), is_leaf=lambda m: hasattr(m, "rolled")):
        assert (np.asarray(tn._read(meta).scale if hasattr(meta, "type") else meta.scale) != 1).all()


def test_dropout_follows_its_stream(rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.standard_normal((2, 8, H), dtype=np.float32))
    a, b, c = (tn.TransformerLayer(H, hidden_size=H, num_attention_heads=2, mlp_hidden_size=32, rngs=nnx.Rngs(0, dropout=k)) for k in (1, 1, 2))
    first = a(x)
    assert np.array_equal(first, b(x)) and not np.array_equal(first, c(x)) and not np.array_equal(first, a(x))
    assert np.array_equal(a(x, deterministic=True), c(x, deterministic=True))


def test_refusals_name_the_rule() -> None:
    layer = tn.DenseGeneral(H, 8, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"DenseGeneral: made for inputs that give kernel \[16, 8\], but this one gives \[4, 8\]"):
        layer(jnp.ones((2, 4)))
    with pytest.raises(ValueError, match="make the module inside te.autocast too"), te.autocast(recipe=recipe.DelayedScaling()):
        layer(jnp.ones((2, H)))
    attention = tn.MultiHeadAttention(H, 8, 2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="has no query"):
        attention(jnp.ones((1, 4, H)), jnp.zeros((1, 4, H)))
    with pytest.raises(ValueError, match="layernorm_type must be"):
        tn.LayerNormMLP(H, layernorm_type="batch", rngs=nnx.Rngs(0))
    with te.autocast(recipe=recipe.DelayedScaling(amax_history_len=4)):
        layer = tn.DenseGeneral(H, 8, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="made for one with history=4, this one has history=8"), te.autocast(recipe=recipe.DelayedScaling(amax_history_len=8)):
        layer(jnp.ones((2, H)))


@pytest.mark.parametrize("call,message", [
    (lambda: tn.DenseGeneral(H, 8, rngs=0), "DenseGeneral: rngs must be an nnx.Rngs, got int"),
    (lambda: tn.DenseGeneral(features=8, rngs=nnx.Rngs(0)), "in_features must be an integer or a tuple of them, got None"),
    (lambda: tn.RMSNorm((4, 4), rngs=nnx.Rngs(0)), r"RMSNorm: in_features must be an integer, got \(4, 4\)"),
    (lambda: tn.DenseGeneral(H, 8, features=8, rngs=nnx.Rngs(0)), "DenseGeneral: unexpected or repeated argument 'features'"),
    (lambda: tn.DenseGeneral(H, 8, cross_attention=True, rngs=nnx.Rngs(0)), "DenseGeneral: unexpected or repeated argument 'cross_attention'")])
def test_a_module_is_not_made_of_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()
