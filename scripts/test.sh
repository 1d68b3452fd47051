#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The C and C++ tests by ctest, then the Python tests. PYTEST_ARGS is added to pytest's arguments.
. "$(dirname "$0")/env.sh"
scripts/build.sh all
ctest --test-dir "$BUILD" -j "$(nproc)" --output-on-failure --no-tests=error
# shellcheck disable=SC2086
"$PY" -m pytest ${PYTEST_ARGS:-}
