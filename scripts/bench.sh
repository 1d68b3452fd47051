#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures libte against its rivals and prints the table: `make bench`, or scripts/bench.sh --rows 'gemm|rope' --rounds 5.
. "$(dirname "$0")/env.sh"
exec "$PY" bench/run.py "$@"
