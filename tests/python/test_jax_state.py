# SPDX-License-Identifier: Apache-2.0
"""The state of delayed scaling under JAX's transformations: used several times, by a batch, by stacked layers, not at all; saved and loaded."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

te = pytest.importorskip("libte_jax", reason="libte_xla.so was not built (no XLA headers)", exc_type=ImportError)
jax = pytest.importorskip("jax")
import jax.numpy as jnp
from libte import recipe
from libte_jax import functional as F

RECIPE = recipe.DelayedScaling(amax_history_len=4)
META = F.Fp8Meta.new(F.Fp8.of(RECIPE))


def layer(x: Any, w: Any, meta: Any) -> Any:
    return F.linear(x, w, None, RECIPE, meta)


def same(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert np.array_equal(g, w)


@pytest.fixture
def xw(rng: np.random.Generator) -> Any:
    return tuple(jnp.asarray(rng.standard_normal(s, dtype=np.float32)) for s in ((6, 3, 16), (16, 16)))


def test_a_batch_shares_one_state(xw: Any) -> None:
    x, w = xw

    def whole(m: Any) -> Any:
        return (layer(x, w, m) ** 2).sum()

    def batched(m: Any) -> Any:
        return (jax.vmap(lambda x: layer(x, w, m))(x) ** 2).sum()

    def twice(m: Any) -> Any:
        return (jax.vmap(jax.vmap(lambda x: layer(x, w, m)))(x.reshape(2, 3, 3, 16)) ** 2).sum()

    want = jax.grad(whole)(META)
    for f in (batched, jax.jit(batched), twice):
        same(jax.grad(f)(META), want)


def test_each_entry_of_a_batch_may_have_its_state(xw: Any) -> None:
    x, w = xw
    metas = jax.tree.map(lambda a: jnp.stack([a] * 6), META)
    got = jax.grad(lambda m: jax.vmap(lambda x, m: layer(x, w, m))(x, m).sum())(metas)
    for i in range(6):
        same(jax.tree.map(lambda a: a[i], got), jax.grad(lambda m: layer(x[i], w, m).sum())(META))
    rolled = te.update_fp8_metas(got)
    same(jax.tree.map(lambda a: a[2], rolled), te.update_fp8_metas(jax.tree.map(lambda a: a[2], got)))


def test_layers_of_a_scan_have_stacked_states(xw: Any) -> None:
    x, w = xw
    ws, metas = jnp.stack([w, w / 2, w / 4]), jax.tree.map(lambda a: jnp.stack([a] * 3), META)

    def scanned(metas: Any) -> Any:
        return jax.lax.scan(jax.checkpoint(lambda x, t: (layer(x, *t), None)), x, (ws, metas))[0].sum()

    def unrolled(metas: Any) -> Any:
        y = x
        for i in range(3):
            y = layer(y, ws[i], jax.tree.map(lambda a: a[i], metas))
        return y.sum()

    got, want = (te.update_fp8_metas(jax.jit(jax.grad(f))(metas)) for f in (scanned, unrolled))
    same(got, want)
    assert got.scale.shape == (3, 3) and got.scale[1, 1] == np.float32(448) / np.abs(ws[1]).max()  # NumPy's division: XLA's is not exact on GPUs


def test_one_state_used_several_times(xw: Any) -> None:
    """JAX sums gradients of what is used twice: scales and history come out whole, and amaxes as a bound."""
    x, w = (jnp.round(4 * a) for a in xw)  # exact sums
    metas = META
    for _ in range(6):
        g = jax.grad(lambda m: (layer(x, w, m) + layer(2 * x, w, m)).sum())(metas)
        assert g.uses == 2
        metas = te.update_fp8_metas(g)
        largest = jnp.stack([2 * jnp.abs(x).max(), jnp.abs(w).max()])
        bound = np.asarray(jnp.stack([3 * jnp.abs(x).max(), 2 * jnp.abs(w).max()]))
        assert np.array_equal(metas.scale[:2], 448 / bound)
        assert (metas.scale[:2] <= 448 / largest).all() and metas.uses == 1


def test_what_the_loss_does_not_use_keeps_a_state(xw: Any) -> None:
    x, w = xw
    first = te.update_fp8_metas(jax.grad(lambda m: layer(x, w, m).sum())(META))
    seen = jax.grad(lambda m: jax.lax.cond(False, lambda: layer(x, w, m).sum(), lambda: 0.0))(first)
    same(te.update_fp8_metas(seen), META)
    same(te.update_fp8_metas({"m": seen}, {"m": first})["m"], first)
    assert np.isfinite(layer(x, w, te.update_fp8_metas(seen))).all()


def test_x64_keeps_the_state_in_f32(xw: Any, wide: Any) -> None:
    with wide:
        meta = F.Fp8Meta.new(F.Fp8.of(RECIPE))
        new = te.update_fp8_metas(jax.grad(lambda m: layer(*xw, m).sum())(meta))
    assert {str(a.dtype) for a in jax.tree.leaves((meta, new))} == {"float32"}


def test_it_says_what_it_is() -> None:
    assert repr(META).startswith("Fp8Meta(scale=Array([1., 1., 1.]")
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path({"m": META})]
    assert paths == ["['m'].scale", "['m'].amax_history", "['m'].uses"]


def test_it_is_saved_and_loaded(xw: Any) -> None:
    pytest.importorskip("flax")
    from flax import serialization

    tree = {"fp8_metas": {"kernel_meta": te.update_fp8_metas(jax.grad(lambda m: layer(*xw, m).sum())(META))}}
    assert te.flax.COLLECTION == "fp8_metas"
    same(pickle.loads(pickle.dumps(tree)), tree)
    same(serialization.from_bytes({"fp8_metas": {"kernel_meta": META}}, serialization.to_bytes(tree)), tree)


@pytest.mark.parametrize("meta,message", [
    ({"scale": 1}, "linear: meta must be an Fp8Meta, got dict"),
    (F.Fp8Meta(jnp.ones(2), META.amax_history, META.uses, META.fp8), r"linear: meta.scale must be f32 \[3\], got float32 \[2\]"),
    (F.Fp8Meta(META.scale, jnp.zeros((4, 2)), META.uses, META.fp8), r"linear: meta.amax_history must be f32 \[4, 3\], got float32 \[4, 2\]"),
    (F.Fp8Meta(META.scale.astype(jnp.bfloat16), META.amax_history, META.uses, META.fp8), r"linear: meta.scale must be f32 \[3\], got bfloat16"),
    (F.Fp8Meta.new(F.Fp8.of(recipe.DelayedScaling(amax_history_len=8, margin=1))),
     "made for one with margin=1, history=8, this one has margin=0, history=4")])
def test_a_wrong_state_is_refused(xw: Any, meta: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        layer(*xw, meta)


def test_a_state_without_a_recipe_is_refused(xw: Any) -> None:
    with pytest.raises(ValueError, match="linear: meta must be given for delayed scaling, and only then; fp8 is None"):
        F.linear(*xw, None, None, META)


def test_apply_without_the_collection_says_so() -> None:
    pytest.importorskip("flax")
    x = jnp.ones((2, 8))
    module = te.flax.DenseGeneral(4)
    v = module.init(jax.random.key(0), x)
    with te.autocast(recipe=RECIPE), pytest.raises(ValueError, match="keeps state in 'fp8_metas': init DenseGeneral inside te.autocast"):
        module.apply(v, x)
