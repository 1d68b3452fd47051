#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures once, builds what changed, and leaves libte, libte_torch and libte_jax importable from the checkout.
# `build.sh all` builds the C and C++ tests too.
. "$(dirname "$0")/env.sh"
type=${BUILD_TYPE:-Release}
want="$PY $type ${CMAKE_ARGS:-}"
if ! [ -f "$BUILD/CMakeCache.txt" ] || [ "$(cat "$BUILD/configured" 2>/dev/null)" != "$want" ]; then
  launcher=()
  command -v ccache >/dev/null && launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  # without them libte_jax is left out; asked for once a configuration
  "$PY" scripts/wheel_headers.py xla "$BUILD/xla" ${WHEELS:+--wheels "$WHEELS"} >&2 || true
  say "configuring build/"
  # shellcheck disable=SC2086
  cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE="$type" -DPython3_EXECUTABLE="$PY" -DLIBTE_PYTHON=ON -DLIBTE_PYTHON_INPLACE=ON \
    "${launcher[@]}" ${CMAKE_ARGS:-} >"$BUILD.log" 2>&1 || { cat "$BUILD.log"; rm -f "$BUILD.log"; exit 1; }
  rm -f "$BUILD.log"
  printf '%s' "$want" >"$BUILD/configured"
fi
target=${1:-te_python_inplace}
cmake --build "$BUILD" -j "$(nproc)" --target "$target"
"$PY" -c 'import libte; print(f"libte {libte.__version__}: {libte.library}")'
