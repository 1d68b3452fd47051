// SPDX-License-Identifier: Apache-2.0
// The vendor's runtime under one spelling, HIP's. hip.h and cuda.h are the complete list of what GPU code uses of it.
#pragma once
#if defined(__HIPCC__) || defined(__HIP_PLATFORM_AMD__)
#include "gpu/vendor/hip.h"
#else
#include "gpu/vendor/cuda.h"
#endif
