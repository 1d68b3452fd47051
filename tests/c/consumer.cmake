# SPDX-License-Identifier: Apache-2.0
# A user's CMakeLists.txt, copied by installed.sh.
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C)
find_package(libte 0.1 REQUIRED CONFIG)
add_executable(consumer use_installed.c)
target_compile_options(consumer PRIVATE -std=c11 -Wall -Wextra -Werror -pedantic-errors)
target_link_libraries(consumer PRIVATE libte::te m)
