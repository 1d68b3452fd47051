#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The base level on another processor: cross-compiles libte.so and the operator tests for aarch64 and runs the smoke tests by emulation.
#     scripts/test/aarch64.sh [libte_ops arguments]      COMPILE_ONLY=1 stops after the build
. "$(dirname "$0")/../env.sh"
need=()
command -v aarch64-linux-gnu-g++ >/dev/null || need+=(g++-aarch64-linux-gnu)
command -v qemu-aarch64-static >/dev/null || need+=(qemu-user-static)
[ -d /usr/src/googletest ] || need+=(googletest)
if [ ${#need[@]} -gt 0 ]; then
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "aarch64.sh: missing: apt-get install ${need[*]}" >&2; exit 1; }
  apt-get install -y -q "${need[@]}"
fi
tree="${TREE:-$BUILD}-aarch64"
gtest="$tree/gtest"
mkdir -p "$gtest"
if ! [ -f "$gtest/libgtest.a" ]; then
  aarch64-linux-gnu-g++ -std=c++17 -O1 -I/usr/src/googletest/googletest -I/usr/src/googletest/googletest/include \
    -c /usr/src/googletest/googletest/src/gtest-all.cc -o "$gtest/gtest-all.o"
  aarch64-linux-gnu-g++ -std=c++17 -O1 -I/usr/src/googletest/googletest/include -c /usr/src/googletest/googletest/src/gtest_main.cc -o "$gtest/gtest_main.o"
  aarch64-linux-gnu-ar rcs "$gtest/libgtest.a" "$gtest/gtest-all.o"
  aarch64-linux-gnu-ar rcs "$gtest/libgtest_main.a" "$gtest/gtest_main.o"
fi
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
# shellcheck disable=SC2086
cmake -S . -B "$tree" -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_CXX_FLAGS=-Wno-psabi -DPython3_EXECUTABLE="$PY" -DGTEST_LIBRARY="$gtest/libgtest.a" \
  -DGTEST_MAIN_LIBRARY="$gtest/libgtest_main.a" -DGTEST_INCLUDE_DIR=/usr/src/googletest/googletest/include \
  -DCMAKE_DISABLE_FIND_PACKAGE_GTest_CONFIG=ON "${launcher[@]}" ${CMAKE_ARGS:-} >/dev/null
cmake --build "$tree" -j "${JOBS:-$(nproc)}" --target te libte_ops
[ -n "${COMPILE_ONLY:-}" ] || qemu-aarch64-static -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$tree" "$tree/tests/cpp/libte_ops" --max-elements=3000 --gtest_filter=-Codec.* "$@"
