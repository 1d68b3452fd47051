#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build/hip/libte_hip.so and its test program build/hip/tests/cpp/libte_ops_hip by ROCm's clang, for HIP_ARCHS (gfx942,gfx950). The compiler
# runs in the root ROCM_ROOT (/opt/rocm-chroot, made by ROCM_SETUP: a script that takes the root as its argument, and --mount ROOT SRC); the
# C library it compiles against is an old one, so that what it makes runs on older systems than the compiler does.
#     scripts/hip.sh [target ...]
. "$(dirname "$0")/env.sh"
targets=("$@")
[ $# -gt 0 ] || targets=(te_hip libte_ops_hip)
root=${ROCM_ROOT:-/opt/rocm-chroot}
setup=${ROCM_SETUP:-$ROOT/../shared/rocm/setup.sh}
[ -f "$setup" ] || die "the ROCm toolchain's setup script is missing at $setup; ROCM_SETUP names it"
bash "$setup" "$root" >&2
# ---- the sysroot: glibc 2.31 and its libstdc++, packages of an old release
base=$root/opt/base
if ! [ -f "$base/.ready" ]; then
  say "old C library into $base"
  mirror=$( { sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/*.sources 2>/dev/null; awk '/^deb /{print $2}' /etc/apt/sources.list 2>/dev/null; } | grep '/debian/*$' | head -n1 || true)
  [ -n "$mirror" ] || die "no package mirror found in this machine's apt sources"
  rm -rf "$base"
  debootstrap --variant=minbase --include=libc6-dev,libstdc++-10-dev bullseye "$base" "$mirror" >"$root/tmp/base.log" 2>&1 || { tail -5 "$root/tmp/base.log" >&2; die "no old C library"; }
  # absolute links would leave the sysroot
  find "$base/lib64/" "$base/usr/lib/x86_64-linux-gnu" -maxdepth 1 -type l -lname '/*' | while read -r link; do
    ln -sfn "$(realpath --relative-to "$(dirname "$(realpath -s "$link")")" -m -s "$base$(readlink "$link")")" "$link"
  done
  touch "$base/.ready"
fi
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
