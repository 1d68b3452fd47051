#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The JAX tests on the oldest supported JAX, in an environment of its own, on the library that `make build` left. Torch is not in it, so what
# compares with torch skips itself here.
. "$(dirname "$0")/../env.sh"
old=$ROOT/.venv-jax-oldest
want="jax==0.5.3 jaxlib==0.5.3 flax==0.10.6 cffi>=1.15,<3 ml_dtypes>=0.5,<1 pytest>=7 scikit-learn tqdm"
if [ "$(cat "$old/libte.stamp" 2>/dev/null)" != "$want" ]; then
  say "making .venv-jax-oldest"
  "$PY" -m venv --clear "$old"
  # shellcheck disable=SC2086
  "$old/bin/python" -m pip --disable-pip-version-check install -q $want
  printf '%s' "$want" >"$old/libte.stamp"
fi
export PYTHONPATH=$ROOT/bindings/python:$ROOT/bindings/jax
"$old/bin/python" -c 'import jax; assert jax.__version__ == "0.5.3", jax.__version__'
exec "$old/bin/python" -m pytest -q -p no:cacheprovider tests/python/test_jax_*.py
