/* SPDX-License-Identifier: Apache-2.0
 * A CPU plug-in whose implementations do nothing, so that what is left of a call is the host's part. */
#include "libte/backend.h"

enum { kMost = 128 };
static nvte_implementation implementations[kMost];
static nvte_backend backend;

static nvte_status run(const nvte_exec *exec, const void *args) {
  (void)exec;
  (void)args;
  return NVTE_OK;
}

NVTE_API const nvte_backend *nvte_backend_entry(const nvte_host *host);
NVTE_API const nvte_backend *nvte_backend_entry(const nvte_host *host) {
  const size_t n = nvte_op_count();
  if (n > kMost) {
    host->set_error(NVTE_ERR_INTERNAL, "nothing.c: raise kMost");
    return NULL;
  }
  for (size_t i = 0; i < n; i++) {
    nvte_implementation *p = &implementations[i];
    p->struct_size = sizeof *p;
    p->op = nvte_op_at(i)->name;
    p->name = "nothing";
    p->priority = 1000;
    p->run = run;
  }
  backend.struct_size = sizeof backend;
  backend.abi_version = host->abi_version;
  backend.device_type = kDLCPU;
  backend.name = "nothing";
  backend.implementations = implementations;
  backend.n_implementations = n;
  return &backend;
}
