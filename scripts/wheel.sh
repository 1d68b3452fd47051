#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# dist/libte-<version>-py3-none-<platform>.whl with libte, libte_torch and libte_jax.
. "$(dirname "$0")/env.sh"
"$PY" -m pip --disable-pip-version-check wheel -q --no-deps --no-build-isolation -w dist .
ls dist
