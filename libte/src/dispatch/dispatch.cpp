// SPDX-License-Identifier: Apache-2.0
#include "dispatch/dispatch.h"

#include <string.h>

#include "core/config.h"
#include "core/overlap.h"
#include "core/ranges.h"
#include "dispatch/registry.h"

namespace te {
namespace {

const char *ask(const nvte_implementation &i, const nvte_exec *exec, const void *args) { return i.refuse ? i.refuse(exec, args) : nullptr; }

bool serves(const std::vector<Entry> &entries, int32_t device_type) {
  for (const Entry &e : entries)
    if (e.device_type == device_type) return true;
  return false;
}

}  // namespace

const Op *find_op(const char *name) {
  for (size_t i = 0; name && i < kOpCount; i++)
    if (!strcmp(kOps[i].info.name, name)) return &kOps[i];
  return nullptr;
}

nvte_status choose(const Op &op, const nvte_exec *exec, const void *args, Choice *choice) {
  const size_t index = (size_t)(&op - kOps);
  const int32_t device = exec->device.device_type;
  const std::vector<Entry> *entries = &registry().by_op[index];
  if (!serves(*entries, device)) {
    if (const nvte_status s = open_device(device)) return s;
    entries = &registry().by_op[index];
  }
  if (const char *forced = exec->implementation) {
    TextOf<512> known;
    for (const Entry &e : *entries) {
      if (e.device_type != device) continue;
      if (strcmp(e.implementation.name, forced)) {
        known.add("%s%s", known.length() ? ", " : "", e.implementation.name);
        continue;
      }
      if (const char *reason = ask(e.implementation, exec, args)) {
        choice->refusals.add("%s: %s", forced, reason);
        return fail(NVTE_ERR_UNSUPPORTED, "%s: %s", forced, reason);
      }
      choice->implementation = &e.implementation;
      return NVTE_OK;
    }
    return fail(NVTE_ERR_NOT_FOUND, "no implementation '%s' of %s on %s; known: %s", forced, op.info.name, device_name(device),
                known.length() ? known.c_str() : "none");
  }
  for (const Entry &e : *entries) {
    if (e.device_type != device) continue;
    const char *reason = ask(e.implementation, exec, args);
    if (!reason) {
      choice->implementation = &e.implementation;
      return NVTE_OK;
    }
    choice->refusals.add("%s%s: %s", choice->refusals.length() ? "; " : "", e.implementation.name, reason);
  }
  if (!choice->refusals.length()) return fail(NVTE_ERR_UNSUPPORTED, "%s has no implementation on %s", op.info.name, device_name(device));
  return fail(NVTE_ERR_UNSUPPORTED, "no implementation on %s takes this call: %s", device_name(device), choice->refusals.c_str());
}

nvte_status workspace_bytes(const Choice &choice, const nvte_exec *exec, const void *args, size_t *bytes) {
  *bytes = 0;
  const nvte_implementation &i = *choice.implementation;
  return i.workspace ? i.workspace(exec, args, bytes) : NVTE_OK;
}

nvte_status check(const Op &op, const nvte_exec *exec, const void *args) {
  if (const nvte_status s = op.check(exec, args)) return s;
  return op.row->validate ? op.row->validate(exec, args) : NVTE_OK;
}

nvte_status dispatch(const Op &op, const nvte_exec *exec, const void *args, Choice *choice) {
  if (const nvte_status s = check(op, exec, args)) return s;
  if (const nvte_status s = choose(op, exec, args, choice)) return s;
  size_t bytes;
  if (const nvte_status s = workspace_bytes(*choice, exec, args, &bytes)) return s;
  if (bytes > exec->workspace_size)
    return fail(NVTE_ERR_WORKSPACE, "%s needs %zu bytes of workspace, got %zu", choice->implementation->name, bytes, exec->workspace_size);
  const uintptr_t alignment = exec->device.device_type == kDLCPU ? 64 : 256;
  if (bytes && (uintptr_t)exec->workspace % alignment)
    return fail(NVTE_ERR_INVALID_ARGUMENT, "exec.workspace must be aligned to %d bytes, got %p", (int)alignment, exec->workspace);
  if (const nvte_status s = check_overlap(op, exec, args, bytes)) return s;
  await_error();
  const nvte_status s = choice->implementation->run(exec, args);
  return s == NVTE_OK || error_came() ? s : fail(s, "implementation %s failed with status %d and no message", choice->implementation->name, (int)s);
}

nvte_status call_op(const char *name, const nvte_exec *exec, const void *args) {
  const Op *op = find_op(name);
  if (!op) return fail(NVTE_ERR_NOT_FOUND, "no operator '%s'", name ? name : "(NULL)");
  const ranges::OfCall range(op->info.name);
  Choice choice;
  const nvte_status s = dispatch(*op, exec, args, &choice);
  if (config::tracing()) trace(*op, exec, args, choice, s, true);
  if (s != NVTE_OK) prefix_error(name);
  return s;
}

}  // namespace te
