// SPDX-License-Identifier: Apache-2.0
// AMD: the names are HIP's own. TE_RTC: run-time compilation has the device built-ins only.
#pragma once
#define TE_VENDOR_HIP 1
#if !defined(TE_RTC)
#include <hip/hip_runtime.h>
#endif
#define TE_GPU_NAME "hip"
#define TE_GPU_DEVICE_TYPE kDLROCM
