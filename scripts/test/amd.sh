#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The AMD build, looked at without an AMD GPU: builds it, checks every kernel of every code object (amd.py), those compiled at run time too, then opens
# the plug-in here. Exit status 3: the toolchain cannot be installed.
. "$(dirname "$0")/../env.sh"
scripts/hip.sh
root=${ROCM_ROOT:-/opt/rocm-chroot}
chroot "$root" python3 /te/scripts/test/rtc.py --chips "${HIP_ARCHS:-gfx942,gfx950}" --out /te/build/hip/rtc
for file in build/hip/libte_hip.so build/hip/tests/cpp/libte_ops_hip; do
  chroot "$root" sh -c "python3 /te/scripts/test/amd.py --archs ${HIP_ARCHS:-gfx942,gfx950} /te/$file /te/build/hip/rtc/*.co"
done
"$PY" -m pytest -q tests/python/test_libte_plugins.py -k hip
# the test program starts with no HIP runtime and says what is missing
set +e
answer=$(build/hip/tests/cpp/libte_ops_hip --op=compute_scale 2>&1)
[[ $answer == *"HIP runtime was not found"* || -e /dev/kfd ]] || die "libte_ops_hip should name the missing runtime, says: $answer"
