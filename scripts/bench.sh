#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures, then renders docs/benchmarks.md. BENCH_ARGS goes to bench/run.py.
. "$(dirname "$0")/env.sh"
# shellcheck disable=SC2086
"$PY" bench/run.py ${BENCH_ARGS:-}
"$PY" bench/render.py
