// SPDX-License-Identifier: Apache-2.0
#include "gpu/vendor/blaslt.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include <type_traits>

namespace te::gpu::blaslt {
namespace {

int note_copy(dl_phdr_info *info, size_t, void *out) {
  if (info->dlpi_name && strstr(info->dlpi_name, kName)) *static_cast<const char **>(out) = info->dlpi_name;
  return 0;
}

Functions open() {
  static char text[512];
  Functions f = {};
  const char *loaded = nullptr;
  dl_iterate_phdr(note_copy, &loaded);
  void *library = loaded ? dlopen(loaded, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  for (const char *name : kLibraries)
    if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(text, sizeof text, "%s was not found: %s", kName, dlerror());
    f.missing = text;
    return f;
  }
  const auto find = [&](auto &to, const char *name) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(library, name));
    if (to || f.missing) return;
    snprintf(text, sizeof text, "%s has no %s", kName, name);
    f.missing = text;
  };
  find(f.create, TE_BLASLT("Create"));
  find(f.get_version, TE_BLASLT("GetVersion"));
  find(f.desc_create, TE_BLASLT("MatmulDescCreate"));
  find(f.desc_destroy, TE_BLASLT("MatmulDescDestroy"));
  find(f.desc_set, TE_BLASLT("MatmulDescSetAttribute"));
  find(f.layout_create, TE_BLASLT("MatrixLayoutCreate"));
  find(f.layout_destroy, TE_BLASLT("MatrixLayoutDestroy"));
  find(f.preference_create, TE_BLASLT("MatmulPreferenceCreate"));
  find(f.preference_destroy, TE_BLASLT("MatmulPreferenceDestroy"));
  find(f.preference_set, TE_BLASLT("MatmulPreferenceSetAttribute"));
  find(f.heuristic, TE_BLASLT("MatmulAlgoGetHeuristic"));
  find(f.matmul, TE_BLASLT("Matmul"));
  return f;
}

}  // namespace

const Functions &functions() {
  static const Functions f = open();
  return f;
}

}  // namespace te::gpu::blaslt
