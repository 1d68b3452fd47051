/* SPDX-License-Identifier: Apache-2.0
 * The plug-in table: how implementations of operators reach libte. */
#ifndef LIBTE_BACKEND_H
#define LIBTE_BACKEND_H

#include "info.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One implementation of one operator. exec and args are admitted (full size), validated copies. Nothing may be thrown. */
typedef struct nvte_implementation {
  size_t struct_size;
  const char *op;   /* "rmsnorm_forward" */
  const char *name; /* "cpu", "gpu", "blaslt", ... */
  int32_t priority; /* larger is asked first */
  uint32_t flags;   /* 0 */
  /* NULL = takes it; else the reason why not (static, or valid until the next call on the thread). May be NULL: takes all. */
  const char *(*refuse)(const nvte_exec *exec, const void *args);
  /* Bytes of workspace. May be NULL: none. */
  nvte_status (*workspace)(const nvte_exec *exec, const void *args, size_t *bytes);
  nvte_status (*run)(const nvte_exec *exec, const void *args);
} nvte_implementation;

/* What a plug-in exports. */
typedef struct nvte_backend {
  size_t struct_size;
  uint32_t abi_version; /* NVTE_ABI_VERSION it was built with */
  int32_t device_type;  /* DLPack: kDLCPU, kDLCUDA, kDLROCM, kDLExtDev, ... */
  const char *name;     /* "cuda", "hip", "null" */
  const nvte_implementation *implementations;
  size_t n_implementations;
  /* Number of usable devices; NULL = not asked. */
  nvte_status (*device_count)(int32_t *count);
  void (*unload)(void);
} nvte_backend;

/* What libte lends a plug-in. */
typedef struct nvte_host {
  size_t struct_size;
  uint32_t abi_version;
  uint32_t library_version;
  nvte_status (*set_error)(nvte_status status, const char *message); /* returns status */
  nvte_status (*config_get)(const char *key, char *buf, size_t size, size_t *length);
  void (*log)(int32_t level, const char *message);
  nvte_status (*call_op)(const char *op, const nvte_exec *exec, const void *args);
  /* nvte_workspace: what call_op would need. */
  nvte_status (*workspace)(const char *op, const nvte_exec *exec, const void *args, size_t *bytes);
} nvte_host;

/* The one symbol of a plug-in. Returns NULL after host->set_error when it cannot serve. */
typedef const nvte_backend *(*nvte_backend_entry_fn)(const nvte_host *host);
#define NVTE_BACKEND_ENTRY "nvte_backend_entry"

/* Opens a plug-in and adds its implementations. Loading the same file twice is one load.
 * NVTE_ERR_NOT_FOUND  no such file or no entry symbol; NVTE_ERR_VERSION  other ABI version, both numbers named. Since 0.1. */
NVTE_API nvte_status nvte_backend_load(const char *path);

/* Registers a table that lives in the caller's program (tests, static builds). It must stay valid. Since 0.1. */
NVTE_API nvte_status nvte_backend_register(const nvte_backend *backend);

/* Removes the implementations of a back end by name; calls unload. No call may be running on it. NVTE_ERR_NOT_FOUND. Since 0.1. */
NVTE_API nvte_status nvte_backend_remove(const char *name);

/* Writes how many usable devices of a DLPack device type there are; opens the type's plug-in on first use. CPU: 1.
 * NVTE_ERR_UNSUPPORTED  no back end for the type, the message says where its plug-in was looked for. Since 0.1. */
NVTE_API nvte_status nvte_device_count(int32_t device_type, int32_t *count);

#ifdef __cplusplus
}
#endif
#endif
