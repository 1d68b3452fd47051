#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The NVIDIA build, looked at without an NVIDIA GPU: builds it, then opens the plug-in here. Exit status 3: there is no nvcc to be had.
. "$(dirname "$0")/../env.sh"
scripts/cuda.sh
"$PY" -m pytest -q tests/python/test_libte_plugins.py -k cuda
# the test program starts with no driver and says what is missing
set +e
answer=$("$BUILD/cuda/tests/cpp/libte_ops_cuda" --op=compute_scale 2>&1)
[[ $answer == *"CUDA driver version is insufficient"* || $answer == *"no CUDA-capable device"* || -e /dev/nvidiactl ]] || die "libte_ops_cuda should name the missing driver, says: $answer"
