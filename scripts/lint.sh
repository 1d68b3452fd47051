#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/env.sh"
"$PY" tools/lint.py --build "$BUILD"
