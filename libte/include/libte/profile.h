/* SPDX-License-Identifier: Apache-2.0
 * Ranges on the time line of a profiler that listens to NVTX or roctx. */
#ifndef LIBTE_PROFILE_H
#define LIBTE_PROFILE_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens and closes a range of the calling thread; ranges nest. Operator calls make their own, "nvte_<op>". Nothing happens unless the key
 * NVTE_NVTX_ENABLED is 1; then the profiler's library is opened by the first range.
 * NVTE_ERR_INVALID_ARGUMENT  name is NULL
 * Since 0.1. */
NVTE_API nvte_status nvte_range_push(const char *name);
NVTE_API nvte_status nvte_range_pop(void);

#ifdef __cplusplus
}
#endif
#endif
