#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every benchmark of bench/, one after the other.
. "$(dirname "$0")/env.sh"
shopt -s nullglob
files=(bench/bench_*.py)
[ ${#files[@]} -gt 0 ] || die "bench/ has no bench_*.py"
for f in "${files[@]}"; do
  say "$f"
  "$PY" "$f"
done
