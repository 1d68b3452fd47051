# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: sets ROOT, PY (the interpreter), BUILD and what the tools find through the environment.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
BUILD=${BUILD:-$ROOT/build}
if [ -n "${PYTHON:-}" ]; then # this interpreter as it is; what it lacks comes from WHEELS into build/site
  PY=$PYTHON
  SITE=$BUILD/site
  PATH=$SITE/bin:$(dirname "$(command -v "$PY")"):$PATH
  PYTHONPATH=$ROOT/bindings/python:$ROOT/bindings/torch:$ROOT/bindings/jax:$SITE${PYTHONPATH:+:$PYTHONPATH}
  export PYTHONPATH
else
  PY=$ROOT/.venv/bin/python
  PATH=$ROOT/.venv/bin:$PATH
fi
export PATH
say() { printf '== %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }
