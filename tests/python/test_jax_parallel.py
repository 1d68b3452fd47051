# SPDX-License-Identifier: Apache-2.0
"""shard_map on simulated devices, with checks of varying axes on: values, gradients of shared weights summed over shards, amaxes of all shards.
And meshes with explicit axes, whose shardings are part of types."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("libte_jax", reason="libte_xla.so was not built (no XLA headers)", exc_type=ImportError)
jax = pytest.importorskip("jax")

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import libte_jax as te
from libte_jax import functional as F
shard_map = getattr(jax, "shard_map", None)
if shard_map is None:
    from jax.experimental.shard_map import shard_map
mesh = Mesh(np.array(jax.devices()), ("d",))
assert mesh.size == 4
x = jnp.asarray(np.random.default_rng(0).integers(-3, 4, (8, 16)), jnp.float32)
w = jnp.asarray(np.random.default_rng(1).integers(-3, 4, (4, 16)), jnp.float32)
f = shard_map(lambda x, w: F.linear(x, w), mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))
y = jax.jit(f)(x, w)
assert np.array_equal(y, x @ w.T)  # integers: exact
dx, dw = jax.jit(jax.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1)))(x, w)
assert np.array_equal(dx, 2 * y @ w) and np.array_equal(dw, 2 * y.T @ x)
from libte import recipe
delayed = recipe.DelayedScaling(amax_history_len=4)
meta = F.Fp8Meta.new(F.Fp8.of(delayed))
def loss(layer):
    return lambda x, w, m: (layer(x, w, m) ** 2).sum()
layer = lambda x, w, m: F.linear(x, w, None, delayed, m)
want = jax.jit(jax.grad(loss(layer), (0, 1, 2)))(x, w, meta)
def agree(got, want):
    for a, b in zip(jax.tree.leaves(te.update_fp8_metas(got)), jax.tree.leaves(te.update_fp8_metas(want))):
        assert np.array_equal(a, b), (a, b)
specs = {"mesh": mesh, "in_specs": (P("d"), P(), P()), "out_specs": P("d")}
untold = {"check_vma" if hasattr(jax, "shard_map") else "check_rep": False}
for options in ({}, untold):
    agree(jax.jit(jax.grad(loss(shard_map(layer, **specs, **options)), (0, 1, 2)))(x, w, meta), want)
# gradients taken inside: the state comes out the same on all shards
inside = shard_map(lambda *a: jax.grad(loss(layer), 2)(*a), **{**specs, "out_specs": P()}, **untold)
agree(jax.jit(inside)(x, w, meta), want[2])
print("good")
"""


def test_shard_map(python: Any) -> None:
    out = python(SCRIPT, {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"})
    assert out.stdout.strip() == "good", out.stderr


PARTIAL = """
import re
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from libte import recipe
from libte_jax import functional as F
mesh = jax.make_mesh((4, 2), ("d", "t"), axis_types=(AxisType.Auto,) * 2)
rng = np.random.default_rng(0)
x, w = (rng.integers(-3, 4, s).astype(np.float32) for s in ((8, 16), (4, 16)))
w[3] *= 37  # amaxes of the parts differ
xs, ws = jax.device_put(x, NamedSharding(mesh, P("d"))), jax.device_put(w, NamedSharding(mesh, P("t")))
delayed = recipe.DelayedScaling(amax_history_len=4)
meta = F.Fp8Meta.new(F.Fp8.of(delayed))
layers = {"wide": lambda x, w, m: F.linear(x, w), "delayed": lambda x, w, m: F.linear(x, w, None, delayed, m)}
for name, layer in layers.items():
    for manual, specs, out in (("d", (P("d"), P(), P()), P("d")), ("t", (P(), P("t"), P()), P(None, "t"))):
        cut = jax.shard_map(layer, mesh=mesh, in_specs=specs, out_specs=out, axis_names={manual})
        grad = lambda f: jax.grad(lambda *a: (f(*a) ** 2).sum(), (0, 1, 2))
        assert np.array_equal(jax.jit(cut)(xs, ws, meta), layer(x, w, meta)), (name, manual)
        for a, b in zip(jax.tree.leaves(jax.jit(grad(cut))(xs, ws, meta)), jax.tree.leaves(jax.jit(grad(layer))(x, w, meta))):
            assert np.array_equal(a, b), (name, manual)
print("good")
"""


def test_shard_map_over_some_axes(python: Any) -> None:
    if not hasattr(jax, "shard_map"):
        pytest.skip("this jax has no axis_names")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    out = python(PARTIAL, {**flags, "JAX_USE_SHARDY_PARTITIONER": "true"})
    assert out.stdout.strip() == "good", out.stderr
    if hasattr(jax.config, "jax_use_shardy_partitioner"):  # without, XLA would end the process
        out = python(PARTIAL, {**flags, "JAX_USE_SHARDY_PARTITIONER": "false"})
        assert out.returncode == 1 and "or jax_use_shardy_partitioner True: got ['d'] without ['t']" in out.stderr, out.stderr


EXPLICIT = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, PartitionSpec as P
from libte_jax import functional as F
jax.set_mesh(jax.make_mesh((2, 2), ("d", "t"), axis_types=(AxisType.Explicit,) * 2))
rng = np.random.default_rng(0)
x, w = (rng.integers(-3, 4, s).astype(np.float32) for s in ((8, 16), (4, 16)))
xs, ws = jax.device_put(x, P("d")), jax.device_put(w, P("t"))
def loss(x, w):
    return (F.linear(x, w) ** 2).sum()
for run in (lambda f: f, jax.jit):
    y = run(F.linear)(xs, ws)
    assert np.array_equal(y, x @ w.T) and str(jax.typeof(y)) == "float32[8@d,4@t]", jax.typeof(y)
    dx, dw = run(jax.grad(loss, (0, 1)))(xs, ws)
    assert np.array_equal(dx, 2 * y @ w) and np.array_equal(dw, 2 * y.T @ x)
    assert (str(jax.typeof(dx)), str(jax.typeof(dw))) == ("float32[8@d,16]", "float32[4@t,16]")
assert "all-gather" not in jax.jit(F.linear).lower(xs, ws).compile().as_text()
print("good")
"""


def test_explicit_axes(python: Any) -> None:
    if not hasattr(jax.sharding, "reshard") or not hasattr(jax, "shard_map"):
        pytest.skip("this jax has no explicit axes")
    out = python(EXPLICIT, {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"})
    assert out.stdout.strip() == "good", out.stderr
