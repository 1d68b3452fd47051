#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ROCm's compiler and headers (hipcc, clang 22, the HIP runtime, hipRTC, hipBLASLt) in the folder ROCM_ROOT (/opt/rocm-chroot): a Debian system of
# its own, sid with ROCm 7 from experimental; in it, at /opt/base, an old C library to compile against. Compiles and links only: needs no AMD GPU.
# About two minutes and 2 GB the first time. Exit status 3 where it cannot be installed: no root, no debootstrap, no Debian mirror.
. "$(dirname "$0")/env.sh"
root=${ROCM_ROOT:-/opt/rocm-chroot}
cannot() { say "the ROCm toolchain cannot be installed: $*"; exit 3; }
needed=(usr/bin/clang++-22 usr/bin/llvm-objdump-22 usr/bin/ninja usr/bin/cmake usr/include/hip/hip_runtime.h usr/include/hipblaslt/hipblaslt.h
  usr/lib/x86_64-linux-gnu/libhiprtc.so.7 usr/src/googletest/googletest/src/gtest-all.cc)
complete() {
  local file
  for file in "${needed[@]}"; do [ -e "$root/$file" ] || return 1; done
}
complete && [ -f "$root/opt/base/.ready" ] && exit 0

# ---- what it takes
[ "$(id -u)" = 0 ] || cannot "this needs root"
[ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] || cannot "this is no Debian or Ubuntu system for x86-64"
mirror=$( { sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/*.sources; awk '/^deb /{print $(/\[/ ? 3 : 2)}' /etc/apt/sources.list /etc/apt/sources.list.d/*.list; } 2>/dev/null |
  grep '/debian/*$' | head -n1 || true)
[ -n "$mirror" ] || cannot "this machine's apt sources name no Debian mirror"
if ! command -v debootstrap >/dev/null; then
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap; } >/dev/null 2>&1 || cannot "debootstrap is missing, and apt-get does not bring it"
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
logged() { "$@" >>"$log" 2>&1 || { tail -n 15 "$log" >&2; die "$1 failed while the ROCm toolchain was being installed"; }; }

# ---- the system
if ! complete; then
  say "ROCm toolchain into $root"
  for mounted in "$root"/proc "$root"/te "$root"/src; do ! mountpoint -q "$mounted" || umount "$mounted"; done
  rm -rf --one-file-system "$root"
  logged debootstrap --variant=minbase sid "$root" "$mirror"
  printf 'deb %s %s main\n' "$mirror" sid "$mirror" experimental >"$root/etc/apt/sources.list"
  cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
  for file in /etc/apt/apt.conf.d/*prox*; do [ ! -f "$file" ] || cp "$file" "$root/etc/apt/apt.conf.d/"; done
  echo 'Acquire::Check-Date "false"; Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/90dates"
  # only ROCm's own packages come from experimental
  cat >"$root/etc/apt/preferences.d/rocm" <<'EOF'
Package: hipcc hipify-perl libamdhip64* libhiprtc* libhipblas* librocblas* librocm-smi64* librocprofiler* rocm-device-libs-* libamd-comgr* libhsa-runtime*
Pin: release a=experimental
Pin-Priority: 700
EOF
  # GEMM kernels for GPUs (gigabytes), manuals
  printf 'path-exclude=/usr/%s\n' 'lib/x86_64-linux-gnu/hipblaslt/library/*' 'lib/x86_64-linux-gnu/libdevice_*.a' 'share/doc/*' 'share/man/*' 'share/locale/*' \
    >"$root/etc/dpkg/dpkg.cfg.d/small"
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod +x "$root/usr/sbin/policy-rc.d"
  mount -t proc proc "$root/proc"
  logged chroot "$root" apt-get update -qq
  logged chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends hipcc libamdhip64-dev libhiprtc7 libhipblaslt-dev \
    libhipblas-common-dev cmake ninja-build python3 libgtest-dev
  logged chroot "$root" apt-get clean
  complete || die "the ROCm toolchain in $root lacks one of: ${needed[*]}"
fi
# ---- glibc 2.31 and its libstdc++, so that what is made runs on older systems than the compiler does
base=$root/opt/base
if ! [ -f "$base/.ready" ]; then
  say "old C library into $base"
  rm -rf "$base"
  logged debootstrap --variant=minbase --include=libc6-dev,libstdc++-10-dev bullseye "$base" "$mirror"
  # absolute links would leave it
  find "$base/lib64/" "$base/usr/lib/x86_64-linux-gnu" -maxdepth 1 -type l -lname '/*' | while read -r link; do
    ln -sfn "$(realpath --relative-to "$(dirname "$(realpath -s "$link")")" -m -s "$base$(readlink "$link")")" "$link"
  done
  touch "$base/.ready"
fi
