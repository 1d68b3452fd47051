#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The wheel beside a plain jax in a new environment: nothing is compiled, no compiler is to be found, and libte_jax computes, differentiates and
# trains. Builds the wheel first.
. "$(dirname "$0")/../env.sh"
rm -rf dist
scripts/wheel.sh
wheels=(dist/*.whl)
[ ${#wheels[@]} = 1 ] || die "one wheel wanted, got ${wheels[*]}"
[[ ${wheels[0]} == *-py3-none-* ]] || die "${wheels[0]} is tied to a Python version"
new=$BUILD/wheel-venv
"$PY" -m venv --clear "$new"
say "installing ${wheels[0]} and jax"
"$new/bin/python" -m pip --disable-pip-version-check install -q --only-binary=:all: "${wheels[0]}" 'jax>=0.5.3,<0.12' 'flax>=0.10,<0.13'
cd "$new"
env -i PATH="$new/bin" HOME="$new" JAX_PLATFORMS=cpu "$new/bin/python" -I - <<'PYTHON'
import shutil
import sys

import jax
import jax.numpy as jnp
import libte_jax as te
import numpy as np

assert not any(shutil.which(c) for c in ("cc", "gcc", "g++", "clang", "cmake", "ninja"))
assert te.__file__.startswith(sys.prefix), te.__file__
x, g = jnp.arange(12.0).reshape(3, 4), jnp.ones(4)
y = te.functional.rmsnorm(x, g)
assert np.allclose(y, x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5))
layer = te.flax.LayerNormMLP(32)
with te.autocast(recipe=te.recipe.DelayedScaling(amax_history_len=4)):
    variables = dict(layer.init(jax.random.key(0), jnp.ones((8, 16))))
    params = variables.pop("params")
    grads, others = jax.grad(lambda p, v: (layer.apply({"params": p, **v}, jnp.ones((8, 16)))[0] ** 2).sum(), (0, 1))(params, variables)
    te.update_fp8_metas(others)
assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
print(f"wheel: libte_jax on jax {jax.__version__}, Python {sys.version.split()[0]}: good")
PYTHON
