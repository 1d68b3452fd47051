#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Old processors by emulation: the smoke tests of every operator on a CPU model without AVX (qemu64: level base) and one with AVX2
# but no AVX-512 (Haswell: level avx2). An instruction of a higher level anywhere in the process would end it with SIGILL. Each model
# must also say that it is the best it has, so a build that always picks base cannot pass.
#     scripts/test/qemu.sh [libte_ops arguments, such as --op=gemm]
. "$(dirname "$0")/../env.sh"
emulator=qemu-x86_64-static
if ! command -v "$emulator" >/dev/null; then
  # 3: cannot be had here, which is not the library's fault
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "qemu.sh: $emulator is missing: apt-get install qemu-user-static" >&2; exit 3; }
  { apt-get update -q && apt-get install -y -q qemu-user-static; } >/dev/null 2>&1 || { echo "qemu.sh: apt-get cannot install qemu-user-static" >&2; exit 3; }
fi
tests="${TREE:-$BUILD}/tests/cpp/libte_ops"
[ -x "$tests" ] || { echo "qemu.sh: build first ($tests)" >&2; exit 1; }

model() {  # CPU model, level it must pick
  say "qemu $1: level $2"
  # The best level shows when a higher one is asked for; 77 is "this machine lacks it".
  local answer
  answer=$(LIBTE_CPU_ISA=avx512bf16 "$emulator" -cpu "$1" "$tests" --require-isa=avx512bf16) && { echo "qemu.sh: $1 claims avx512bf16" >&2; exit 1; }
  [[ $answer == *"goes up to $2"* ]] || { echo "qemu.sh: $1 should go up to $2, says: $answer" >&2; exit 1; }
  # the picked level, unforced; large cases are slow under emulation
  LIBTE_CPU_ISA=auto "$emulator" -cpu "$1" "$tests" --max-elements=3000 --gtest_filter=-Codec.* "${@:3}"
}
model qemu64 base "$@"
model Haswell avx2 "$@"
