#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The C++ tests under AddressSanitizer + UndefinedBehaviorSanitizer, then under ThreadSanitizer, in build trees of their own.
#     scripts/test/sanitize.sh [address|thread|all] [ctest arguments]
# The saboteurs damage memory on purpose and are left out.
. "$(dirname "$0")/../env.sh"
what=${1:-all}
shift || true
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)

run() {  # name, sanitizers
  local tree="${TREE:-$BUILD}-$1"
  say "sanitizer build $1"
  # shellcheck disable=SC2086
  cmake -S . -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPython3_EXECUTABLE="$PY" -DLIBTE_SANITIZE="$2" "${launcher[@]}" ${CMAKE_ARGS:-} >/dev/null
  cmake --build "$tree" -j "${JOBS:-$(nproc)}"
  shift 2
  ctest --test-dir "$tree" --output-on-failure --no-tests=error -E 'saboteur|perf' "$@"
}

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}
[ "$what" = thread ] || run address address,undefined "$@"
[ "$what" = address ] || run thread thread "$@"
