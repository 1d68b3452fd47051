/* SPDX-License-Identifier: Apache-2.0
 * A plug-in in plain C that brings one more CPU implementation of an operator: dropout_backward for f32 with p == 0, which is a
 * copy. Variants for tests: another ABI version, an entry that refuses, no entry at all. */
#include <string.h>

#include "libte/backend.h"
#include "libte/dropout.h"

#ifndef DEMO_ABI_VERSION
#define DEMO_ABI_VERSION NVTE_ABI_VERSION
#endif
#ifndef DEMO_SULKY
#define DEMO_SULKY 0
#endif

static const nvte_host *the_host;

static int64_t count(const DLTensor *t) {
  int64_t n = 1;
  for (int i = 0; i < t->ndim; i++) n *= t->shape[i];
  return n;
}

static const char *refuse(const nvte_exec *exec, const void *args) {
  const nvte_dropout_backward_args *a = (const nvte_dropout_backward_args *)args;
  (void)exec;
  if (a->dy->data.dtype.bits != 32) return "only f32 is copied here";
  return a->p == 0.0f ? NULL : "p must be 0 here";
}

static nvte_status run(const nvte_exec *exec, const void *args) {
  const nvte_dropout_backward_args *a = (const nvte_dropout_backward_args *)args;
  const DLTensor *dy = &a->dy->data, *dx = &a->dx->data;
  (void)exec;
  if (count(dy) == 13) return the_host->set_error(NVTE_ERR_DEVICE, "thirteen is too many");
  memmove((char *)dx->data + dx->byte_offset, (const char *)dy->data + dy->byte_offset, (size_t)count(dy) * 4);
  the_host->log(1, "demo ran");
  return NVTE_OK;
}

static const nvte_implementation implementations[] = {
    {sizeof(nvte_implementation), "dropout_backward", "demo", 10, 0, refuse, NULL, run},
    {sizeof(nvte_implementation), "operator_of_a_later_version", "demo", 10, 0, NULL, NULL, run},
};

static const nvte_backend backend = {sizeof(nvte_backend), DEMO_ABI_VERSION, kDLCPU, "demo", implementations, 2, NULL, NULL};

#if defined(DEMO_NO_ENTRY)
#define ENTRY some_other_symbol
#else
#define ENTRY nvte_backend_entry
#endif
NVTE_API const nvte_backend *ENTRY(const nvte_host *host);
NVTE_API const nvte_backend *ENTRY(const nvte_host *host) {
  the_host = host;
  if (DEMO_SULKY) {
    host->set_error(NVTE_ERR_DEVICE, "not today");
    return NULL;
  }
  return &backend;
}
