#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# installed.sh BUILD SOURCE WORK CMAKE CC: installs into WORK/prefix, moves it, and builds use_installed.c against it in two ways.
set -eu
build=$1 source=$2 work=$3 cmake=$4 cc=$5
rm -rf "$work" && mkdir -p "$work/user"
"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/prefix"  # nothing may hold the old path
cp "$source/tests/c/use_installed.c" "$work/user/"
cp "$source/tests/c/consumer.cmake" "$work/user/CMakeLists.txt"
"$cmake" -S "$work/user" -B "$work/user/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_C_COMPILER="$cc" >"$work/configure.log"
"$cmake" --build "$work/user/build"
"$work/user/build/consumer"
pc=$(find "$work/prefix" -name libte.pc)
if command -v pkg-config >/dev/null; then
  flags=$(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --cflags --libs libte)
else  # no pkg-config here: expand the variables of the file
  dir=$(dirname "$pc")
  flags=$(sed -n "s|\${pcfiledir}|$dir|; s|^Libs: ||p; s|^Cflags: ||p" "$pc" |
    sed "s|\${libdir}|$dir/..|; s|\${includedir}|$(dirname "$(find "$work/prefix" -type d -name libte -path '*include*')")|" | tr '\n' ' ')
fi
# shellcheck disable=SC2086
"$cc" -std=c11 -Wall -Wextra -Werror -pedantic-errors "$work/user/use_installed.c" -o "$work/consumer2" $flags -lm
LD_LIBRARY_PATH=$(dirname "$(find "$work/prefix" -name libte.so)") "$work/consumer2"
