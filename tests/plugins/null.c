/* SPDX-License-Identifier: Apache-2.0
 * The null device: takes every operator and runs nothing, so that checks, inference and dispatch of any device can be tested with
 * no hardware. It is a kDLExtDev device. */
#include "libte/backend.h"

/* bench/host.py builds it for the CPU, in front of its own implementations: what is left of a call is the host's part. */
#ifndef NULL_DEVICE
#define NULL_DEVICE kDLExtDev
#define NULL_NAME "null"
#define NULL_PRIORITY 0
#endif

enum { kMost = 128 };
static nvte_implementation implementations[kMost];
static nvte_backend backend;

static nvte_status run(const nvte_exec *exec, const void *args) {
  (void)exec;
  (void)args;
  return NVTE_OK;
}

static nvte_status device_count(int32_t *n) {
  *n = 2;
  return NVTE_OK;
}

NVTE_API const nvte_backend *nvte_backend_entry(const nvte_host *host);
NVTE_API const nvte_backend *nvte_backend_entry(const nvte_host *host) {
  const size_t n = nvte_op_count();
  if (n > kMost) {
    host->set_error(NVTE_ERR_INTERNAL, "null.c: raise kMost");
    return NULL;
  }
  for (size_t i = 0; i < n; i++) {
    nvte_implementation *p = &implementations[i];
    p->struct_size = sizeof *p;
    p->op = nvte_op_at(i)->name;
    p->name = NULL_NAME;
    p->priority = NULL_PRIORITY;
    p->run = run;
  }
  backend.struct_size = sizeof backend;
  backend.abi_version = host->abi_version;
  backend.device_type = NULL_DEVICE;
  backend.name = NULL_NAME;
  backend.implementations = implementations;
  backend.n_implementations = n;
  backend.device_count = device_count;
  return &backend;
}
