// SPDX-License-Identifier: Apache-2.0
// The doors: everything that crosses the C ABI with an operator in it, and the functions around it.
#include "api/door.h"

#include <stdio.h>
#include <string.h>

#include "api/check.h"
#include "core/config.h"
#include "core/log.h"
#include "core/platform.h"
#include "core/ranges.h"
#include "core/text.h"
#include "dispatch/dispatch.h"
#include "dispatch/host.h"
#include "dispatch/registry.h"
#include "libte/profile.h"

namespace te {
namespace {

struct Call {
  const Op *op;
  Admitted admitted;
  nvte_status open(const char *name, const nvte_exec *exec, const void *args) {
    if (!name) return fail(NVTE_ERR_INVALID_ARGUMENT, "op is NULL");
    if (!(op = find_op(name))) return fail(NVTE_ERR_NOT_FOUND, "no operator '%s'", name);
    if (const nvte_status s = config::ready()) return s;
    return admitted.admit(*op, exec, args);
  }
};

}  // namespace

bool call_guarded(void (*f)(void *), void *context) {
  try {
    f(context);
    return true;
  } catch (...) {
    return false;
  }
}

nvte_status door(size_t index, const nvte_exec *exec, const void *args) {
  const Op &op = kOps[index];
  const auto body = [&]() -> nvte_status {
    if (const nvte_status s = config::ready()) return s;
    const ranges::OfCall range(op.info.name);
    Admitted call;
    if (const nvte_status s = call.admit(op, exec, args)) return s;
    Choice choice;
    platform::FixedFloat fixed;
    const nvte_status s = dispatch(op, call.exec(), call.args(), &choice);
    if (config::tracing()) trace(op, call.exec(), call.args(), choice, s, false);
    return s;
  };
  const nvte_status status = caught(body);
  if (status != NVTE_OK) {
    char function[96];
    snprintf(function, sizeof function, "nvte_%s", op.info.name);
    prefix_error(function);
  }
  return status;
}

namespace {

nvte_status host_set_error(nvte_status status, const char *message) { return fail(status, "%s", message ? message : ""); }
nvte_status host_config_get(const char *key, char *buf, size_t size, size_t *length) {
  return guard("config_get", [&] { return config::get(key, buf, size, length); });
}
void host_log(int32_t level, const char *message) {
  if (message) log_text(level, message);
}
nvte_status host_call_op(const char *name, const nvte_exec *exec, const void *args) {
  return guard(name ? name : "call_op", [&]() -> nvte_status {
    Call call;
    if (const nvte_status s = call.open(name, exec, args)) return s;
    const ranges::OfCall range(call.op->info.name);
    Choice choice;
    const nvte_status status = dispatch(*call.op, call.admitted.exec(), call.admitted.args(), &choice);
    if (config::tracing()) trace(*call.op, call.admitted.exec(), call.admitted.args(), choice, status, true);
    return status;
  });
}

}  // namespace

const nvte_host *host() {
  static const nvte_host h = {sizeof(nvte_host), NVTE_ABI_VERSION, nvte_version(), host_set_error, host_config_get, host_log, host_call_op,
                              nvte_workspace};
  return &h;
}

}  // namespace te

using te::fail;
using te::guard;

extern "C" {

// ---- base.h ----

NVTE_API nvte_status nvte_config_get(const char *key, char *buf, size_t size, size_t *length) {
  return guard("nvte_config_get", [&] { return te::config::get(key, buf, size, length); });
}
NVTE_API nvte_status nvte_config_set(const char *key, const char *value) {
  return guard("nvte_config_set", [&] { return te::config::set(key, value); });
}
NVTE_API size_t nvte_config_count(void) { return te::config::count(); }
NVTE_API const nvte_config_entry *nvte_config_at(size_t i) {
  const nvte_config_entry *e = nullptr;
  (void)guard("nvte_config_at", [&]() -> nvte_status { return e = te::config::entry(i), NVTE_OK; });
  return e;
}
NVTE_API nvte_status nvte_range_push(const char *name) {
  return guard("nvte_range_push", [&]() -> nvte_status {
    if (!name) return fail(NVTE_ERR_INVALID_ARGUMENT, "name is NULL");
    if (const nvte_status s = te::config::ready()) return s;
    if (te::ranges::enabled.load(std::memory_order_relaxed)) te::ranges::push(name);
    return NVTE_OK;
  });
}
NVTE_API nvte_status nvte_range_pop(void) {
  return guard("nvte_range_pop", [&]() -> nvte_status {
    if (te::ranges::enabled.load(std::memory_order_relaxed)) te::ranges::pop();
    return NVTE_OK;
  });
}
NVTE_API nvte_status nvte_log_set(nvte_log_fn sink, void *context) {
  return guard("nvte_log_set", [&]() -> nvte_status { return te::set_log_sink(sink, context), NVTE_OK; });
}

// ---- info.h ----

NVTE_API size_t nvte_op_count(void) { return te::kOpCount; }
NVTE_API const nvte_op *nvte_op_at(size_t i) { return i < te::kOpCount ? &te::kOps[i].info : nullptr; }
NVTE_API const nvte_op *nvte_op_find(const char *name) {
  const te::Op *op = te::find_op(name);
  return op ? &op->info : nullptr;
}

NVTE_API nvte_status nvte_op_implementations(const char *name, int32_t device_type, const char **names, size_t *count) {
  return guard("nvte_op_implementations", [&]() -> nvte_status {
    if (!count) return fail(NVTE_ERR_INVALID_ARGUMENT, "count is NULL");
    if (*count && !names) return fail(NVTE_ERR_INVALID_ARGUMENT, "names is NULL but count is %zu", *count);
    const te::Op *op = te::find_op(name);
    if (!op) return fail(NVTE_ERR_NOT_FOUND, "no operator '%s'", name ? name : "(NULL)");
    if (const nvte_status s = te::open_device(device_type)) return s;
    size_t n = 0;
    for (const te::Entry &e : te::registry().by_op[(size_t)(op - te::kOps)]) {
      if (e.device_type != device_type) continue;
      if (n < *count) names[n] = e.implementation.name;
      n++;
    }
    *count = n;
    return NVTE_OK;
  });
}

NVTE_API nvte_status nvte_infer(const char *name, const void *args) {
  return guard("nvte_infer", [&]() -> nvte_status {
    te::Call call;
    if (const nvte_status s = call.open(name, nullptr, args)) return s;
    const te::Op &op = *call.op;
    auto *a = static_cast<unsigned char *>(call.admitted.args());
    if (const nvte_status s = op.infer(a)) return te::prefix_error(name), s;
    if (op.row->infer)
      if (const nvte_status s = op.row->infer(a)) return te::prefix_error(name), s;
    for (size_t i = 0; i < op.info.n_fields; i++) {
      const nvte_field &f = op.info.fields[i];
      void *p;
      memcpy(&p, a + f.offset, sizeof p);
      nvte_status s = NVTE_OK;
      if (f.kind == NVTE_FIELD_TENSOR) s = te::finish_infer(f, static_cast<nvte_tensor *>(p));
      size_t n = 0;
      if (f.kind == NVTE_FIELD_TENSOR_LIST) memcpy(&n, a + f.count, sizeof n);
      for (size_t k = 0; p && k < n && s == NVTE_OK; k++) s = te::finish_infer(f, static_cast<nvte_tensor *const *>(p)[k]);
      if (s != NVTE_OK) return te::prefix_error(name), s;
    }
    call.admitted.write_back();
    return NVTE_OK;
  });
}

NVTE_API nvte_status nvte_workspace(const char *name, const nvte_exec *exec, const void *args, size_t *bytes) {
  return guard("nvte_workspace", [&]() -> nvte_status {
    if (!bytes) return fail(NVTE_ERR_INVALID_ARGUMENT, "bytes is NULL");
    te::Call call;
    if (const nvte_status s = call.open(name, exec, args)) return s;
    const nvte_exec *e = call.admitted.exec();
    te::Choice choice;
    nvte_status s = te::check(*call.op, e, call.admitted.args());
    if (s == NVTE_OK) s = te::choose(*call.op, e, call.admitted.args(), &choice);
    if (s == NVTE_OK) s = te::workspace_bytes(choice, e, call.admitted.args(), bytes);
    if (s != NVTE_OK) te::prefix_error(name);
    return s;
  });
}

NVTE_API nvte_status nvte_explain(const char *name, const nvte_exec *exec, const void *args, char *buf, size_t size) {
  return guard("nvte_explain", [&]() -> nvte_status {
    if (!buf && size) return fail(NVTE_ERR_INVALID_ARGUMENT, "buf is NULL but size is %zu", size);
    te::Call call;
    if (const nvte_status s = call.open(name, exec, args)) return s;
    const nvte_exec *e = call.admitted.exec();
    te::Choice choice;
    nvte_status s = te::check(*call.op, e, call.admitted.args());
    if (s == NVTE_OK) s = te::choose(*call.op, e, call.admitted.args(), &choice);
    if (s != NVTE_OK && s != NVTE_ERR_UNSUPPORTED) return te::prefix_error(name), s;
    te::Text out(buf, size);
    out.add("%s on %s:%d: ", name, te::device_name(e->device.device_type), (int)e->device.device_id);
    if (choice.implementation) out.add("runs %s", choice.implementation->name);
    else out.add("unsupported");
    if (choice.refusals.length()) out.add("; refused: %s", choice.refusals.c_str());
    else if (s != NVTE_OK) out.add("; %s", te::last_error());
    return NVTE_OK;
  });
}

// ---- backend.h ----

NVTE_API nvte_status nvte_backend_load(const char *path) {
  return guard("nvte_backend_load", [&] { return te::backend_load(path); });
}
NVTE_API nvte_status nvte_backend_register(const nvte_backend *backend) {
  return guard("nvte_backend_register", [&] { return te::backend_register(backend); });
}
NVTE_API nvte_status nvte_backend_remove(const char *name) {
  return guard("nvte_backend_remove", [&] { return te::backend_remove(name); });
}
NVTE_API nvte_status nvte_device_count(int32_t device_type, int32_t *count) {
  return guard("nvte_device_count", [&] { return te::device_count(device_type, count); });
}

}  // extern "C"
