#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The C and C++ tests by ctest, the Python tests, then the operator tests on a GPU where there is one. PYTEST_ARGS is added to pytest's arguments.
. "$(dirname "$0")/env.sh"
scripts/build.sh all
ctest --test-dir "$BUILD" -j "$(nproc)" --output-on-failure --no-tests=error
# shellcheck disable=SC2086
"$PY" -m pytest ${PYTEST_ARGS:-}
if command -v nvcc >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
  scripts/test/gpu.sh build ops grad
fi
if [ -e /dev/kfd ] && [ -x build/hip/tests/cpp/libte_ops_hip ]; then
  build/hip/tests/cpp/libte_ops_hip
fi
