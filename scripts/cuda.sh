#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build/cuda/libte_cuda.so and its test program build/cuda/tests/cpp/libte_ops_cuda by nvcc. CUDA_ARCHS="80;90" picks other chips; needs no GPU.
# Where there is no nvcc, NVIDIA's wheels are installed into build/nvcc; exit status 3 where pip does not find them.
#     scripts/cuda.sh [target ...]
. "$(dirname "$0")/env.sh"
targets=("$@")
[ $# -gt 0 ] || targets=(te_cuda libte_ops_cuda te_cudnn_tests)
tree=$BUILD/cuda
if ! command -v nvcc >/dev/null; then
  kit=$BUILD/nvcc/nvidia/cu13
  if ! [ -e "$kit/lib64" ]; then
    say "nvcc of NVIDIA's wheels into $BUILD/nvcc"
    rm -rf "$BUILD/nvcc"
    "$PY" -m pip --disable-pip-version-check install -q --no-deps --target "$BUILD/nvcc" nvidia-cuda-{nvcc,runtime,cccl,crt}'==13.0.*' 'nvidia-nvvm==13.0.*' >&2 || {
      say "nvcc is missing, and pip does not find its wheels: install the CUDA toolkit (12.4 or newer) and put its bin folder on PATH"
      exit 3
    }
    ln -s lib "$kit/lib64" # where its nvcc looks
  fi
  PATH=$kit/bin:$PATH
fi
archs=${CUDA_ARCHS:-80;90}
archs=$(sed 's/\b90\b/90a/g; s/[0-9]\+[a-z]*/&-real/g' <<<"$archs") # Hopper's matrix instructions are in 90a alone
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
