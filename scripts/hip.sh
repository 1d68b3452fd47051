#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build/hip/libte_hip.so and its test program build/hip/tests/cpp/libte_ops_hip by ROCm's clang, for HIP_ARCHS (gfx942,gfx950), in the system
# that scripts/rocm.sh makes (exit status 3 where it cannot).
#     scripts/hip.sh [target ...]
. "$(dirname "$0")/env.sh"
targets=("$@")
[ $# -gt 0 ] || targets=(te_hip libte_ops_hip)
root=${ROCM_ROOT:-/opt/rocm-chroot}
scripts/rocm.sh
# ---- the source tree, at /te in the root
mkdir -p "$root/te"
if ! [ "$(stat -c %d:%i "$root/te")" = "$(stat -c %d:%i "$ROOT")" ]; then
  ! mountpoint -q "$root/te" || umount "$root/te"
  mount --bind "$ROOT" "$root/te"
fi
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
dlpack=$root/opt/dlpack
mkdir -p "$dlpack/dlpack"
cp "$("$PY" -c "import importlib.util as u, os; print(os.path.dirname(u.find_spec('tvm_ffi').origin))")/include/dlpack/dlpack.h" "$dlpack/dlpack/"
target="--target=x86_64-linux-gnu --sysroot=/opt/base --gcc-install-dir=/opt/base/usr/lib/gcc/x86_64-linux-gnu/10"
chroot "$root" env CC=clang-22 CXX=clang++-22 cmake -S /te -B /te/build/hip -G Ninja -DCMAKE_BUILD_TYPE="${BUILD_TYPE:-Release}" \
  -DCMAKE_C_FLAGS="$target" -DCMAKE_CXX_FLAGS="$target" -DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld -DCMAKE_MODULE_LINKER_FLAGS=-fuse-ld=lld \
  -DCMAKE_SHARED_LINKER_FLAGS=-fuse-ld=lld -DLIBTE_HIP=ON -DLIBTE_CPU_BASE_ONLY=ON -DHIP_ARCHS="${HIP_ARCHS:-gfx942,gfx950}" \
  -DLIBTE_DLPACK_INCLUDE=/opt/dlpack -DLIBTE_GTEST_SOURCE=/usr/src/googletest/googletest >"$BUILD/hip.log" 2>&1 || { cat "$BUILD/hip.log"; exit 1; }
chroot "$root" cmake --build /te/build/hip -j "${JOBS:-$(nproc)}" --target "${targets[@]}"
