#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything a machine with an NVIDIA GPU can show, without network, in one command of a few minutes, and one summary at its end:
#     scripts/test/gpu.sh [build] [ops] [grad] [perf] [sanitize] [python] [bench]     all but python and bench where none is named
# GoogleTest's source is taken from GTEST_SOURCE, .gtest (carried along) or /usr/src/googletest/googletest; Python packages that PYTHON lacks
# from the wheels in .whl, XLA's headers for libte_jax from .xla (build/xla of a machine that fetched them). CUDA_ARCHS defaults to the GPU's own. LOGS (default build/gpu) keeps every log. JOBS, SECONDS_EACH limit.
cd "$(dirname "$0")/../.."
export PYTHON=${PYTHON:-$(command -v python3)}
[ ! -d .whl ] || export WHEELS=${WHEELS:-$PWD/.whl}
. scripts/env.sh
set +e
steps=("$@")
[ $# -gt 0 ] || steps=(build ops grad perf sanitize)
logs=${LOGS:-$BUILD/gpu}
each=${SECONDS_EACH:-90}
jobs=${JOBS:-16}
mkdir -p "$logs"
failed=()
started=$SECONDS
run() {  # name, seconds, command...: quiet; a line in the summary
  local name=$1 limit=$2 begin=$SECONDS
  shift 2
  timeout "$limit" "$@" >"$logs/$name.log" 2>&1
  local rc=$?
  printf '%s %s %s\n' "$name" "$rc" "$((SECONDS - begin))" >>"$logs/summary"
}
export -f run
export logs
: >"$logs/summary"

has() { [[ " ${steps[*]} " == *" $1 "* ]]; }
tests=$BUILD/cuda/tests/cpp/libte_ops_cuda
# libraries that Python packages bring, for the test program: cuDNN
packages=$("$PY" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cudnn/lib
[ ! -d "$packages" ] || export LD_LIBRARY_PATH=$packages${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

if has build; then
  for gtest in "${GTEST_SOURCE:-}" "$PWD/.gtest" /usr/src/googletest/googletest; do
    [ -f "$gtest/src/gtest-all.cc" ] && break
  done
  [ -f "$gtest/src/gtest-all.cc" ] || die "GoogleTest's source is missing (.gtest/src/gtest-all.cc): copy /usr/src/googletest/googletest there"
  export GTEST_SOURCE=$gtest
  archs=${CUDA_ARCHS:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n1 | tr -d .)}
  export CUDA_ARCHS=$archs
  if ! command -v cmake ninja >/dev/null || ! "$PY" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("tvm_ffi") is None)'; then
    "$PY" scripts/offline.py --target "$SITE" ${WHEELS:+--wheels "$WHEELS"} -r scripts/requirements.txt >"$logs/packages.log" 2>&1 ||
      { tail -n 3 "$logs/packages.log"; die "Python packages are missing: carry their wheels in .whl"; }
  fi
  JOBS=$jobs scripts/cuda.sh >"$logs/build.log" 2>&1 || { grep -E -A4 'error|FAILED' "$logs/build.log" | head -n 60; die "the build failed, $logs/build.log has it all"; }
  echo "build: $((SECONDS - started)) s"
fi
[ -x "$tests" ] || die "$tests is missing: run the step build"
mapfile -t ops < <("$tests" --list-ops)
[ ${#ops[@]} -gt 0 ] || die "$tests lists no operators"

# NAME JOBS LIMIT COMMAND...: the command for every operator on stdin, side by side; attention's many cases are split.
side_by_side() {
  local name=$1 at_once=$2 limit=$3
  shift 3
  while read -r op; do
    case $op in attention*) printf "$op %s/4\n" 0 1 2 3 ;; *) echo "$op 0/1" ;; esac
  done | xargs -P "$at_once" -L1 bash -c 'name=$1 limit=$2 op=${*: -2:1} shard=${*: -1}; shift 2
    run "$name.$op.${shard%/*}" "$limit" "${@:1:$#-2}" --op="$op" --shard="$shard" --gtest_filter=-Codec.*' _ "$name" "$limit" "$@"
}
# ---- every operator in each mode
for mode in test grad perf; do
  step=$mode
  [ "$mode" != test ] || step=ops
  has "$step" || continue
  chosen=("${ops[@]}")
  [ "$mode" != grad ] || mapfile -t chosen < <(printf '%s\n' "${ops[@]}" | grep _backward)
  printf '%s\n' "${chosen[@]}" | side_by_side "$mode" "$jobs" "$each" "$tests" --mode="$mode" --perf-seconds=0.002
done
! has ops || run cudnn 60 ctest --test-dir "$BUILD/cuda" -R '^cudnn\.' --output-on-failure --no-tests=error
# ---- small cases under compute-sanitizer
if has sanitize; then
  command -v compute-sanitizer >/dev/null || die "compute-sanitizer is missing"
  for tool in memcheck racecheck; do
    check=(compute-sanitizer --tool "$tool" --error-exitcode 99 "$tests")
    printf '%s\n' "${ops[@]}" | side_by_side "$tool" "$((jobs / 2 + 1))" "$((each * 2))" "${check[@]}" --max-elements=600
    # cases that fill tiles of attention's own kernels, a few of each kind
    for case in strips_w.64.40.0.1 strips_s.1.1 strips_t.64.1 strips_p1.64 strips_p1.128 strips_al.64.90 strips_b1.64.0,1,1 strips_m1.64 strips_mx.64.0.1; do
      printf '%s\n' "forward $case" "backward $case"
    done | xargs -P "$jobs" -L1 bash -c 'limit=$1 tool=$2 op=${*: -2:1} case=${*: -1}; shift 2
      run "$tool.tiles.$op.$case" "$limit" "${@:1:$#-2}" --op="attention_$op" --case="$case" --impl=gpu' _ "$((each * 2))" "$tool" "${check[@]}"
  done
fi
if has python || has bench; then
  [ ! -d .xla ] || { mkdir -p "$BUILD/xla" && cp -r .xla/. "$BUILD/xla"; }
  scripts/build.sh >"$logs/python-build.log" 2>&1 || { tail -n 20 "$logs/python-build.log"; die "the Python packages' build failed"; }
  export LIBTE_BACKEND_PATH=$BUILD/cuda
fi
if has python; then  # both frameworks' suites with every tensor on the GPU, a process a file; the quickstart and the JAX encoder as they are
  export XLA_PYTHON_CLIENT_PREALLOCATE=false # several processes share the card
  for file in tests/python/test_torch_*.py tests/python/test_jax_*.py; do
    LIBTE_TEST_DEVICE=cuda run "python.$(basename "$file" .py)" 300 "$PY" -m pytest -q "$file" &
  done
  run encoder 300 "$PY" examples/jax_encoder.py --use-fp8 &
  run quickstart 300 "$PY" examples/quickstart.py --out "$logs/quickstart" &
  wait
fi
if has bench; then
  "$PY" bench/gpu.py --out "$logs/bench.json" 2>&1 | tee "$logs/bench.log"
fi

# ---- the summary: counts of what ran, then the first complaint of each failure
cat "$logs"/test.*.log 2>/dev/null | awk '/^operator/ {h = 1; next} h && NF == 9 {k = $1 " " $2; for (i = 3; i <= 9; i++) n[k, i] += $i; all[k]; h = 0}
  END {for (k in all) {split(k, w, " "); printf "  %-28s %-8s", w[1], w[2]; for (i = 3; i <= 9; i++) printf " %8d", n[k, i]; print ""}}' | sort
total=0
while read -r name rc seconds; do
  total=$((total + 1))
  [ "$rc" = 0 ] && continue
  failed+=("$name")
  echo "FAILED $name (exit $rc, $seconds s)"
  grep -m3 -A3 -E 'Failure|ERROR SUMMARY: [1-9]|========= (Invalid|Race|Error)|error|rror:' "$logs/$name.log" | grep -v -E '^(--|Failed$)' | cut -c1-220 | head -n 8
  grep -m1 '^replay' "$logs/$name.log"
done <"$logs/summary"
[ ! -f "$logs/perf.quantize.log" ] || { echo "perf (smoke sizes):"; cat "$logs"/perf.*.log | grep -E 'GB/s' | sort -t/ -k2 | awk '$5 + 0 > 50' | head -n 20; }
echo "$((total - ${#failed[@]})) of $total runs passed in $((SECONDS - started)) s"
[ ${#failed[@]} -eq 0 ] && [ "$total" -gt 0 ]
