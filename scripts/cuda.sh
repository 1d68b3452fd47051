#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build/cuda/libte_cuda.so and its test program build/cuda/tests/cpp/libte_ops_cuda by nvcc. CUDA_ARCHS="80;90" picks other chips; needs no GPU.
#     scripts/cuda.sh [target ...]
. "$(dirname "$0")/env.sh"
targets=("$@")
[ $# -gt 0 ] || targets=(te_cuda libte_ops_cuda te_cudnn_tests)
command -v nvcc >/dev/null || die "nvcc is missing: install the CUDA toolkit (12.4 or newer) and put its bin folder on PATH"
tree=$BUILD/cuda
archs=${CUDA_ARCHS:-80;90}
archs=$(sed 's/[0-9]\+[a-z]*/&-real/g' <<<"$archs")
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_{C,CXX,CUDA}_COMPILER_LAUNCHER=ccache)
gtest=()
[ -z "${GTEST_SOURCE:-}" ] || gtest=(-DLIBTE_GTEST_SOURCE="$GTEST_SOURCE")
say "configuring $tree for $archs"
mkdir -p "$tree"
"$PY" scripts/wheel_headers.py cudnn "$tree/cudnn" ${WHEELS:+--wheels "$WHEELS"} >&2 || true
# shellcheck disable=SC2086
cmake -S . -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE="${BUILD_TYPE:-Release}" -DPython3_EXECUTABLE="$PY" -DLIBTE_CUDA=ON -DLIBTE_CPU_BASE_ONLY=ON \
  -DCMAKE_CUDA_ARCHITECTURES="$archs" "${gtest[@]}" "${launcher[@]}" ${CMAKE_ARGS:-} >"$tree.log" 2>&1 || { cat "$tree.log"; exit 1; }
cmake --build "$tree" -j "${JOBS:-$(nproc)}" --target "${targets[@]}"
