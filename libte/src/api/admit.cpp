// SPDX-License-Identifier: Apache-2.0
#include "api/admit.h"

#include <stdio.h>
#include <string.h>

namespace te {
namespace {

// A struct_size beyond this is garbage, not a newer caller.
constexpr size_t kLargest = 4096;

// Copies a caller's struct of its own size to `to` of ours.
nvte_status admit_struct(const char *what, const void *from, void *to, size_t ours) {
  size_t theirs;
  memcpy(&theirs, from, sizeof theirs);
  if (theirs < 2 * sizeof(size_t) || theirs % sizeof(size_t) || theirs > kLargest)
    return fail(NVTE_ERR_VERSION, "%s.struct_size is %zu, expected sizeof = %zu", what, theirs, ours);
  for (size_t i = ours; i < theirs; i++)
    if (static_cast<const unsigned char *>(from)[i])
      return fail(NVTE_ERR_VERSION, "%s is of a newer version (struct_size %zu, this build knows %zu) and byte %zu is not zero", what,
                  theirs, ours, i);
  const size_t common = theirs < ours ? theirs : ours;
  memcpy(to, from, common);
  memset(static_cast<unsigned char *>(to) + common, 0, ours - common);
  memcpy(to, &ours, sizeof ours);
  return NVTE_OK;
}

}  // namespace

nvte_status Admitted::admit_exec(const nvte_exec *exec) {
  if (!exec) {
    exec_ = nvte_exec{sizeof(nvte_exec), {kDLCPU, 0}, nullptr, nullptr, 0, nullptr, 0, 0};
    return NVTE_OK;
  }
  if (const nvte_status s = admit_struct("exec", exec, &exec_, sizeof exec_)) return s;
  if (exec_.device.device_type < kDLCPU)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "exec.device.device_type must be a DLPack device type, got %d", (int)exec_.device.device_type);
  if (exec_.flags & ~NVTE_EXEC_DETERMINISTIC)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "exec.flags has bits that this version does not know: %#x", (unsigned)exec_.flags);
  if (exec_.reserved) return fail(NVTE_ERR_INVALID_ARGUMENT, "exec.reserved must be 0, got %u", (unsigned)exec_.reserved);
  if (!exec_.workspace && exec_.workspace_size)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "exec.workspace is NULL but workspace_size is %zu", exec_.workspace_size);
  return NVTE_OK;
}

nvte_status Admitted::admit_tensor(const char *field, int entry, nvte_tensor **tensor) {
  nvte_tensor *t = *tensor;
  if (!t || t->struct_size == sizeof(nvte_tensor)) return NVTE_OK;
  char what[96];
  if (entry < 0) snprintf(what, sizeof what, "%s", field);
  else snprintf(what, sizeof what, "%s[%d]", field, entry);
  auto full = std::make_unique<nvte_tensor>();
  if (const nvte_status s = admit_struct(what, t, full.get(), sizeof(nvte_tensor))) return s;
  *tensor = full.get();
  short_.push_back({t, std::move(full)});
  return NVTE_OK;
}

nvte_status Admitted::admit(const Op &op, const nvte_exec *exec, const void *args) {
  if (const nvte_status s = admit_exec(exec)) return s;
  if (!args) return fail(NVTE_ERR_INVALID_ARGUMENT, "args is NULL");
  if (const nvte_status s = admit_struct("args", args, args_, op.info.args_size)) return s;
  for (size_t i = 0; i < op.info.n_fields; i++) {
    const nvte_field &f = op.info.fields[i];
    if (f.kind == NVTE_FIELD_TENSOR) {
      if (const nvte_status s = admit_tensor(f.name, -1, reinterpret_cast<nvte_tensor **>(args_ + f.offset))) return s;
    } else if (f.kind == NVTE_FIELD_TENSOR_LIST) {
      auto &entries = *reinterpret_cast<nvte_tensor *const **>(args_ + f.offset);
      size_t n;
      memcpy(&n, args_ + f.count, sizeof n);
      if (!entries || !n) continue;
      if (n > 1u << 20) return fail(NVTE_ERR_INVALID_ARGUMENT, "%s: %zu entries are counted, at most 2^20 are taken", f.name, n);
      std::unique_ptr<nvte_tensor *[]> copy;
      for (size_t k = 0; k < n; k++) {
        nvte_tensor *t = entries[k];
        if (!t || t->struct_size == sizeof(nvte_tensor)) continue;
        if (!copy) {
          copy.reset(new nvte_tensor *[n]);
          memcpy(copy.get(), entries, n * sizeof(nvte_tensor *));
        }
        if (const nvte_status s = admit_tensor(f.name, (int)k, &copy[k])) return s;
      }
      if (copy) {
        entries = copy.get();
        lists_.push_back(std::move(copy));
      }
    }
  }
  return NVTE_OK;
}

void Admitted::write_back() {
  for (const Short &s : short_) {
    const size_t size = s.owner->struct_size;
    memcpy(s.owner, s.full.get(), size < sizeof(nvte_tensor) ? size : sizeof(nvte_tensor));
    s.owner->struct_size = size;
  }
}

}  // namespace te
