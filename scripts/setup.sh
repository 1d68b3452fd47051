#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings a machine with python3, g++ and make to where `make build` works: system packages, then .venv. Quick when done already.
. "$(dirname "$0")/env.sh"

# ---- what the machine must have
host_python=${PYTHON:-python3}
missing=()
command -v "$host_python" >/dev/null || missing+=("python3 (3.10 or newer)")
command -v g++ >/dev/null || missing+=("g++ (with C++17)")
command -v make >/dev/null || missing+=("make")
[ ${#missing[@]} = 0 ] || die "please install: $(printf '%s; ' "${missing[@]}")"
"$host_python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || die "$host_python is $("$host_python" --version); 3.10 or newer is needed"

# ---- what apt-get can bring
packages=()
[ -n "${PYTHON:-}" ] || "$host_python" -c 'import venv, ensurepip' 2>/dev/null || packages+=(python3-venv)
[ -e /usr/include/gtest/gtest.h ] || [ -e /usr/local/include/gtest/gtest.h ] || [ -d /usr/src/googletest ] || packages+=(libgtest-dev)
if [ ${#packages[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ -z "${WHEELS:-}" ]; then
    say "apt-get install ${packages[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
  elif [[ " ${packages[*]} " == *" python3-venv "* ]]; then
    die "missing: ${packages[*]} (on Debian or Ubuntu: apt-get install ${packages[*]})"
  else
    say "note: GoogleTest is missing, so the C++ tests are not built (on Debian or Ubuntu: apt-get install ${packages[*]})"
  fi
fi

# ---- Python packages
if [ -n "${PYTHON:-}" ]; then
  "$PY" scripts/offline.py --target "$SITE" ${WHEELS:+--wheels "$WHEELS"} -r scripts/requirements.txt
  exit 0
fi
stamp=$ROOT/.venv/libte.stamp
want=$("$host_python" --version; sha256sum scripts/requirements.txt scripts/requirements-frameworks.txt scripts/setup.sh; echo "torch ${TORCH_VERSION:-}")
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && exit 0
if ! [ -x .venv/bin/python ]; then
  say "making .venv"
  "$host_python" -m venv .venv
fi
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
# Release 2.13.0 is what is tested; a CPU build of it is taken where pip's own configuration offers one.
constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
if [ -n "${TORCH_VERSION:-}" ]; then
  echo "torch==$TORCH_VERSION" >"$constraints"
else
  echo 'torch==2.13.0; python_version < "3.14"' >"$constraints"
fi
say "installing Python packages into .venv (a few minutes the first time)"
pip install -q -r scripts/requirements.txt
if ! .venv/bin/python scripts/has_torch.py; then
  if ! pip install -q -c "$constraints" "torch==${TORCH_VERSION:-2.13.0}+cpu" 2>/dev/null; then
    say "WARNING: pip finds no CPU build of torch ${TORCH_VERSION:-2.13.0}, so its default build is installed: on Linux x86-64 that is a CUDA"
    say "WARNING: build of several GB. To avoid that, point pip (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL) at CPU wheels and run make again."
    pip install -q -c "$constraints" "torch>=2.11,<2.15"
  fi
fi
pip install -q -c "$constraints" -r scripts/requirements-frameworks.txt
# The checkout's packages, importable from .venv without installing: an edit is seen at once.
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' "$ROOT/bindings/python" "$ROOT/bindings/torch" "$ROOT/bindings/jax" >"$site/libte_checkout.pth"
printf '%s\n' "$want" >"$stamp"
