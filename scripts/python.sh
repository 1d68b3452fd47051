#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the project's interpreter, with the project's packages importable.
. "$(dirname "$0")/env.sh"
exec "$PY" "$@"
