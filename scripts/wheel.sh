#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# dist/libte-<version>-py3-none-<platform>.whl with libte, libte_torch and libte_jax. Fails rather than leave libte_jax's handler out.
. "$(dirname "$0")/env.sh"
"$PY" scripts/wheel_headers.py xla "$BUILD/xla" ${WHEELS:+--wheels "$WHEELS"}
"$PY" -m pip --disable-pip-version-check wheel -q --no-deps --no-build-isolation --config-settings cmake.define.LIBTE_XLA_INCLUDE="$BUILD/xla/include" -w dist .
ls dist
