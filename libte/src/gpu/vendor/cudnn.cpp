// SPDX-License-Identifier: Apache-2.0
#include "gpu/vendor/cudnn.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "gpu/plugin.h"

namespace te::gpu::cudnn {
namespace {

constexpr size_t kOldest = 91002;  // 9.10.2: windows without causality, short sequences, every length

// Every function that the front end calls.
#define TE_CUDNN_FUNCTIONS(each)                                                                                                           \
  each(cudnnCreate) each(cudnnDestroy) each(cudnnSetStream) each(cudnnGetStream) each(cudnnGetVersion) each(cudnnGetErrorString)          \
  each(cudnnGetLastErrorString) each(cudnnBackendCreateDescriptor) each(cudnnBackendDestroyDescriptor) each(cudnnBackendSetAttribute)     \
  each(cudnnBackendGetAttribute) each(cudnnBackendFinalize) each(cudnnBackendExecute)
#define TE_MEMBER(name) decltype(&::name) name;
struct Functions {
  TE_CUDNN_FUNCTIONS(TE_MEMBER)
};
Functions g_functions;
char g_missing[1024], g_twins[1024];

struct Copies {
  int n = 0;
  char first[512] = "";
};
int note_copy(dl_phdr_info *info, size_t, void *out) {
  auto *copies = static_cast<Copies *>(out);
  if (!info->dlpi_name || !strstr(info->dlpi_name, "libcudnn.so")) return 0;
  const size_t at = strlen(g_twins);
  snprintf(g_twins + at, sizeof g_twins - at, "%s%s", copies->n ? ", " : "", info->dlpi_name);
  if (!copies->n++) snprintf(copies->first, sizeof copies->first, "%s", info->dlpi_name);
  return 0;
}

Library open() {
  Library l = {};
  Copies copies;
  dl_iterate_phdr(note_copy, &copies);
  void *library = copies.n ? dlopen(copies.first, RTLD_NOW | RTLD_NOLOAD) : dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  if (copies.n > 1) {
    l.twins = g_twins;
    char text[1200];
    snprintf(text, sizeof text, "cudnn: the process holds %d copies, whose parts may be mixed up: %s; the first is used", copies.n, g_twins);
    host().log(kLogWarning, text);
  }
  if (!library) {
    snprintf(g_missing, sizeof g_missing, "cuDNN was not found: %s", dlerror());
    l.missing = g_missing;
    return l;
  }
#define TE_FIND(name)                                                                              \
  g_functions.name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name));                  \
  if (!g_functions.name && !l.missing) {                                                           \
    snprintf(g_missing, sizeof g_missing, "libcudnn.so.9 has no " #name);                         \
    l.missing = g_missing;                                                                         \
  }
  TE_CUDNN_FUNCTIONS(TE_FIND)
  const size_t version = l.missing ? 0 : g_functions.cudnnGetVersion(), major = version / 10000;
  if (!l.missing && (version < kOldest || major != CUDNN_MAJOR)) {
    snprintf(g_missing, sizeof g_missing, "libcudnn's version must be %d.x from %zu on, is %zu", CUDNN_MAJOR, kOldest, version);
    l.missing = g_missing;
  }
  return l;
}

}  // namespace

const Library &library() {
  static const Library l = open();
  return l;
}

}  // namespace te::gpu::cudnn

using te::gpu::cudnn::g_functions;

extern "C" {
size_t cudnnGetVersion() { return g_functions.cudnnGetVersion(); }
const char *cudnnGetErrorString(cudnnStatus_t s) { return g_functions.cudnnGetErrorString(s); }
void cudnnGetLastErrorString(char *message, size_t n) { g_functions.cudnnGetLastErrorString(message, n); }
cudnnStatus_t cudnnCreate(cudnnHandle_t *h) { return g_functions.cudnnCreate(h); }
cudnnStatus_t cudnnDestroy(cudnnHandle_t h) { return g_functions.cudnnDestroy(h); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t s) { return g_functions.cudnnSetStream(h, s); }
cudnnStatus_t cudnnGetStream(cudnnHandle_t h, cudaStream_t *s) { return g_functions.cudnnGetStream(h, s); }
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t t, cudnnBackendDescriptor_t *d) {
  return g_functions.cudnnBackendCreateDescriptor(t, d);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) { return g_functions.cudnnBackendDestroyDescriptor(d); }
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
                                       const void *values) {
  return g_functions.cudnnBackendSetAttribute(d, name, type, n, values);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t asked, int64_t *n, void *values) {
  return g_functions.cudnnBackendGetAttribute(d, name, type, asked, n, values);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) { return g_functions.cudnnBackendFinalize(d); }
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  return g_functions.cudnnBackendExecute(h, plan, pack);
}
}
