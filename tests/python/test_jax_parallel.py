# SPDX-License-Identifier: Apache-2.0
"""shard_map on simulated devices, with checks of varying axes on: values, and gradients of shared weights summed over shards."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("libte_jax", reason="libte_xla.so was not built (no XLA headers)", exc_type=ImportError)

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
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
print("good")
"""


def test_shard_map(python: Any) -> None:
    out = python(SCRIPT, {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"})
    assert out.stdout.strip() == "good", out.stderr
