// SPDX-License-Identifier: Apache-2.0
// The registry and the plug-in loader.
#include "dispatch/registry.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "core/config.h"
#include "core/log.h"
#include "core/text.h"
#include "dispatch/dispatch.h"
#include "dispatch/host.h"

namespace te {
namespace {

// Everything here lives as long as the process (see registry.h); `lock` serialises changes. Recursive: a plug-in's entry may call
// back into libte.
struct State {
  std::recursive_mutex lock;
  std::atomic<const Registry *> current{nullptr};
  std::vector<const Registry *> past;
  std::set<std::string> names;
  std::vector<const nvte_backend *> backends;
  std::map<void *, const nvte_backend *> plug_ins;  // by dlopen handle: the same file is the same handle
  struct Failure {
    unsigned generation = 0;  // of the configuration: a new backend.path is another try
    nvte_status status = NVTE_OK;
    std::string message;
  };
  std::map<int32_t, Failure> failures;
};
State &state() {
  static State &s = *new State;
  return s;
}
using Lock = std::lock_guard<std::recursive_mutex>;

const char *intern(State &s, const char *name) { return s.names.insert(name).first->c_str(); }

// Adds a table of implementations; its rows may be of an older, shorter size.
void add(State &s, Registry *r, const nvte_implementation *rows, size_t n, int32_t device_type) {
  const char *at = reinterpret_cast<const char *>(rows);
  for (size_t i = 0; i < n; i++) {
    size_t size;
    memcpy(&size, at, sizeof size);
    nvte_implementation row = {};
    memcpy(&row, at, std::min(size, sizeof row));
    row.struct_size = sizeof row;
    at += size;
    const Op *op = find_op(row.op);
    if (!op) continue;  // a plug-in newer than this library may know more operators
    row.op = op->info.name;
    row.name = intern(s, row.name);
    r->by_op[(size_t)(op - kOps)].push_back({row, device_type});
  }
}

void publish(State &s) {
  auto *r = new Registry;
  r->by_op.resize(kOpCount);
  for (size_t i = 0; i < kOpCount; i++) add(s, r, kOps[i].row->implementations, kOps[i].row->n_implementations, kDLCPU);
  for (const nvte_backend *b : s.backends) add(s, r, b->implementations, b->n_implementations, b->device_type);
  r->backends = s.backends;
  for (auto &entries : r->by_op)
    std::stable_sort(entries.begin(), entries.end(), [](const Entry &a, const Entry &b) {
      if (a.implementation.priority != b.implementation.priority) return a.implementation.priority > b.implementation.priority;
      return strcmp(a.implementation.name, b.implementation.name) < 0;
    });
  s.past.push_back(r);
  s.current.store(r, std::memory_order_release);
}

nvte_status examine(const char *what, const nvte_backend *b) {
  if (!b) return fail(NVTE_ERR_INVALID_ARGUMENT, "backend is NULL");
  if (b->struct_size < offsetof(nvte_backend, n_implementations) + sizeof b->n_implementations)
    return fail(NVTE_ERR_VERSION, "%s: backend.struct_size is %zu, expected %zu", what, b->struct_size, sizeof(nvte_backend));
  if (b->abi_version != NVTE_ABI_VERSION)
    return fail(NVTE_ERR_VERSION, "%s was built for ABI version %u, this libte speaks version %u", what, b->abi_version, (unsigned)NVTE_ABI_VERSION);
  if (!b->name || !*b->name) return fail(NVTE_ERR_INVALID_ARGUMENT, "%s: backend.name is missing", what);
  if (b->n_implementations && !b->implementations) return fail(NVTE_ERR_INVALID_ARGUMENT, "%s: backend.implementations is NULL", what);
  const char *at = reinterpret_cast<const char *>(b->implementations);
  for (size_t i = 0; i < b->n_implementations; i++) {
    size_t size;
    memcpy(&size, at, sizeof size);
    const auto *row = reinterpret_cast<const nvte_implementation *>(at);
    if (size < offsetof(nvte_implementation, run) + sizeof row->run || size % sizeof(void *) || size > 4096)
      return fail(NVTE_ERR_VERSION, "%s: implementations[%zu].struct_size is %zu, expected %zu", what, i, size, sizeof(nvte_implementation));
    if (!row->op || !row->name || !row->run) return fail(NVTE_ERR_INVALID_ARGUMENT, "%s: implementations[%zu] lacks op, name or run", what, i);
    at += size;
  }
  return NVTE_OK;
}

nvte_status add_backend(State &s, const char *what, const nvte_backend *b) {
  if (const nvte_status status = examine(what, b)) return status;
  for (const nvte_backend *other : s.backends) {
    if (other == b) return NVTE_OK;
    if (!strcmp(other->name, b->name)) return fail(NVTE_ERR_INVALID_ARGUMENT, "a back end named '%s' is registered already", b->name);
  }
  s.backends.push_back(b);
  publish(s);
  return NVTE_OK;
}

nvte_status load(const char *path) {
  State &s = state();
  Lock lock(s.lock);
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char *why = dlerror();
    return fail(NVTE_ERR_NOT_FOUND, "cannot open '%s': %s", path, why ? why : "unknown reason");
  }
  // Never closed: names, code and threads of a plug-in may be in use anywhere.
  if (const auto known = s.plug_ins.find(handle); known != s.plug_ins.end()) {
    dlclose(handle);  // the count only
    return add_backend(s, path, known->second);
  }
  const auto entry = reinterpret_cast<nvte_backend_entry_fn>(dlsym(handle, NVTE_BACKEND_ENTRY));
  if (!entry) {
    dlclose(handle);
    return fail(NVTE_ERR_NOT_FOUND, "'%s' has no symbol " NVTE_BACKEND_ENTRY ": it is no plug-in of libte", path);
  }
  (void)fail(NVTE_OK, "no reason given");
  const nvte_backend *b = entry(host());
  if (!b) return fail(NVTE_ERR_UNSUPPORTED, "plug-in '%s' cannot serve: %s", path, last_error());
  if (const nvte_status status = add_backend(s, path, b)) return status;
  s.plug_ins[handle] = b;
  log(kLogInfo, "opened plug-in '%s' (%s, device %s, %zu implementations)", path, b->name, device_name(b->device_type), b->n_implementations);
  return NVTE_OK;
}

// The folder of libte.so itself.
std::string own_folder() {
  Dl_info info;
  char real[PATH_MAX];
  if (!dladdr(reinterpret_cast<void *>(&own_folder), &info) || !info.dli_fname || !realpath(info.dli_fname, real)) return ".";
  std::string path = real;
  return path.substr(0, path.rfind('/'));
}

const char *plug_in_name(int32_t device_type) {
  switch (device_type) {
    case kDLCUDA: return "libte_cuda.so";
    case kDLROCM: return "libte_hip.so";
    default: return nullptr;
  }
}

nvte_status search(int32_t device_type) {
  const char *name = plug_in_name(device_type);
  if (!name) return fail(NVTE_ERR_UNSUPPORTED, "no back end for %s is registered", device_name(device_type));
  std::string folders;
  if (const nvte_status s = config::text(config::kBackendPath, &folders)) return s;
  std::string tried;
  folders += (folders.empty() ? "" : ":") + own_folder();
  for (size_t at = 0; at <= folders.size();) {
    const size_t end = std::min(folders.find(':', at), folders.size());
    if (end > at) {
      const std::string path = folders.substr(at, end - at) + "/" + name;
      char real[PATH_MAX];
      if (realpath(path.c_str(), real)) return load(real);
      tried += (tried.empty() ? "" : ", ") + path;
    }
    at = end + 1;
  }
  return fail(NVTE_ERR_UNSUPPORTED, "no back end for %s: plug-in not found, tried %s (key backend.path adds folders)", device_name(device_type), tried.c_str());
}

}  // namespace

const Registry &registry() {
  State &s = state();
  if (const Registry *r = s.current.load(std::memory_order_acquire)) return *r;
  Lock lock(s.lock);
  if (!s.current.load(std::memory_order_relaxed)) publish(s);
  return *s.current.load(std::memory_order_relaxed);
}

nvte_status open_device(int32_t device_type) {
  for (const nvte_backend *b : registry().backends)
    if (b->device_type == device_type) return NVTE_OK;
  if (device_type == kDLCPU) return NVTE_OK;
  State &s = state();
  Lock lock(s.lock);
  for (const nvte_backend *b : s.backends)
    if (b->device_type == device_type) return NVTE_OK;
  State::Failure &f = s.failures[device_type];
  const unsigned now = config::generation();
  if (f.generation == now) return fail(f.status, "%s", f.message.c_str());
  const nvte_status status = search(device_type);
  if (status != NVTE_OK) f = {now, status, last_error()};
  return status;
}

// ---- the public functions; wrapped by src/api ----

nvte_status backend_load(const char *path) {
  if (!path || !*path) return fail(NVTE_ERR_INVALID_ARGUMENT, "path is missing");
  char real[PATH_MAX];
  if (!realpath(path, real)) return fail(NVTE_ERR_NOT_FOUND, "no file '%s': %s", path, strerror(errno));
  return load(real);
}

nvte_status backend_register(const nvte_backend *backend) {
  State &s = state();
  Lock lock(s.lock);
  return add_backend(s, "backend", backend);
}

nvte_status backend_remove(const char *name) {
  if (!name) return fail(NVTE_ERR_INVALID_ARGUMENT, "name is NULL");
  State &s = state();
  Lock lock(s.lock);
  const auto at = std::find_if(s.backends.begin(), s.backends.end(), [&](const nvte_backend *b) { return !strcmp(b->name, name); });
  if (at == s.backends.end()) return fail(NVTE_ERR_NOT_FOUND, "no back end named '%s' is registered", name);
  const nvte_backend *b = *at;
  s.backends.erase(at);
  publish(s);
  if (b->struct_size >= sizeof(nvte_backend) && b->unload) b->unload();
  return NVTE_OK;
}

nvte_status device_count(int32_t device_type, int32_t *count) {
  if (!count) return fail(NVTE_ERR_INVALID_ARGUMENT, "count is NULL");
  *count = 0;
  if (device_type == kDLCPU) {
    *count = 1;
    return NVTE_OK;
  }
  if (const nvte_status s = open_device(device_type)) return s;
  for (const nvte_backend *b : registry().backends) {
    if (b->device_type != device_type) continue;
    if (b->struct_size >= offsetof(nvte_backend, device_count) + sizeof b->device_count && b->device_count) return b->device_count(count);
    *count = 1;
  }
  return NVTE_OK;
}

}  // namespace te
