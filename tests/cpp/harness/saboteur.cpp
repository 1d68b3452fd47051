// SPDX-License-Identifier: Apache-2.0
#include "harness/saboteur.h"

#include <atomic>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <utility>

#include "core/tensor.h"
#include "harness/codec.h"
#include "libte/libte.h"

namespace te::test {
namespace {

enum Kind { kLastRow, kStrides, kPastEnd, k4Ulp, kNoAmax, kUnwritten, kInput, kScaleInv, kColumnwise, kThreads, kLiar };
const std::vector<Saboteur> kSaboteurs = {{"sab_last_row", "leaves the last row of every output as it was"},
                                          {"sab_strides", "reads strided inputs as if they were contiguous"},
                                          {"sab_past_end", "writes one byte past the end of an output"},
                                          {"sab_4ulp", "is 4 ulp (fp8: one code) off everywhere"},
                                          {"sab_no_amax", "forgets amax"},
                                          {"sab_unwritten", "leaves one element of every output unwritten"},
                                          {"sab_input", "changes a bit of an input"},
                                          {"sab_scale_inv", "writes scale_inv one ulp off"},
                                          {"sab_columnwise", "forgets the column-wise copy"},
                                          {"sab_threads", "gives another last bit when there is more than one thread"},
                                          {"sab_liar", "refuses with a reason that explain does not know"}};
std::atomic<int64_t> damage{0};

struct OutputPart {
  DLTensor t;
  const char *role;  // "data", "columnwise", "scale_inv", "amax"
  std::string field;
  std::vector<uint8_t> before;  // dense, row-major
};

template <class F> void each_element(const DLTensor &t, F &&f) {
  const int64_t n = numel(t), size = element_bytes(t);
  for (int64_t i = 0; i < n; i++) {
    int64_t off = 0, rest = i;
    for (int d = t.ndim - 1; d >= 0; d--) off += rest % t.shape[d] * stride_of(t, d), rest /= t.shape[d];
    f(i, (uint8_t *)address(t) + off * size);
  }
}
void snapshot(OutputPart &p) {
  const size_t size = (size_t)element_bytes(p.t);
  p.before.resize((size_t)numel(p.t) * size);
  each_element(p.t, [&](int64_t i, uint8_t *e) { memcpy(p.before.data() + (size_t)i * size, e, size); });
}
// Puts elements [from, to) back as they were before the call.
void restore(const OutputPart &p, int64_t from, int64_t to) {
  const size_t size = (size_t)element_bytes(p.t);
  each_element(p.t, [&](int64_t i, uint8_t *e) {
    if (i < from || i >= to || !memcmp(e, p.before.data() + (size_t)i * size, size)) return;
    memcpy(e, p.before.data() + (size_t)i * size, size);
    damage++;
  });
}

// The output parts of an args struct, by reflection.
void collect(std::vector<OutputPart> &parts, const nvte_field &f, const nvte_tensor *t) {
  if (!t) return;
  const std::pair<const DLTensor *, const char *> all[] = {{&t->data, "data"}, {&t->columnwise, "columnwise"}, {&t->scale_inv, "scale_inv"},
                                                           {&t->columnwise_scale_inv, "scale_inv"}, {&t->amax, "amax"}};
  for (auto &one : all)
    if (present(*one.first)) parts.push_back({*one.first, one.second, f.name, {}});
}
template <class F> void each_tensor(const nvte_op &op, const void *args, F &&f) {
  for (size_t i = 0; i < op.n_fields; i++) {
    const nvte_field &field = op.fields[i];
    const char *at = (const char *)args + field.offset;
    if (field.kind == NVTE_FIELD_TENSOR) {
      f(field, *(nvte_tensor *const *)at);
    } else if (field.kind == NVTE_FIELD_TENSOR_LIST) {
      size_t n = 0;
      memcpy(&n, (const char *)args + field.count, sizeof n);
      for (size_t k = 0; k < n; k++) f(field, (*(nvte_tensor *const *const *)at)[k]);
    }
  }
}

void off_by_ulps(const DLTensor &t) {
  const DType type = dtype_of(t.dtype);
  if (!is_float(type) && !is_fp8(type)) return;
  const size_t size = bytes_of(type);
  each_element(t, [&](int64_t, uint8_t *e) {
    uint64_t u = 0;
    memcpy(&u, e, size);
    const double v = decode(type, u);
    const uint64_t w = u + (is_fp8(type) ? 1 : 4);
    if (v - v != 0 || decode(type, w) - decode(type, w) != 0) return;  // not finite
    memcpy(e, &w, size);
    damage++;
  });
}

std::string base_implementation(const char *op) {
  const char *names[64];
  size_t n = 64;
  if (nvte_op_implementations(op, kDLCPU, names, &n) == NVTE_OK)
    for (size_t i = 0; i < n && i < 64; i++)
      if (strncmp(names[i], "sab_", 4)) return names[i];
  return "cpu";
}

int kind_of(const nvte_exec *exec) {
  for (size_t k = 0; exec && exec->implementation && k < kSaboteurs.size(); k++)
    if (!strcmp(exec->implementation, kSaboteurs[k].name)) return (int)k;
  return -1;
}
const char *refuse(const nvte_exec *exec, const void *) { return kind_of(exec) < 0 ? "a saboteur runs only when it is named" : nullptr; }

nvte_status sabotage(const nvte_op &op, const nvte_exec *exec, const void *args) {
  const int kind = kind_of(exec);
  const std::string base = base_implementation(op.name);
  nvte_exec e = *exec;
  e.implementation = base.c_str();
  if (kind == kLiar) {
    damage++;
    return NVTE_ERR_UNSUPPORTED;
  }
  std::vector<OutputPart> outputs;
  std::vector<DLTensor> inputs;
  each_tensor(op, args, [&](const nvte_field &f, nvte_tensor *t) {
    if (f.flags & NVTE_FIELD_OUT) collect(outputs, f, t);
    else if (t && present(t->data)) inputs.push_back(t->data);
  });
  for (OutputPart &p : outputs) snapshot(p);

  std::vector<uint8_t> copy((const uint8_t *)args, (const uint8_t *)args + op.args_size);
  std::deque<nvte_tensor> tensors;
  if (kind == kStrides) {
    for (size_t i = 0; i < op.n_fields; i++) {
      const nvte_field &f = op.fields[i];
      if (f.kind != NVTE_FIELD_TENSOR || f.flags & NVTE_FIELD_OUT) continue;
      const nvte_tensor *t = *(nvte_tensor *const *)(copy.data() + f.offset);
      if (!t || !present(t->data) || is_contiguous(t->data)) continue;
      tensors.push_back(*t);
      tensors.back().data.strides = nullptr;
      nvte_tensor *changed = &tensors.back();
      memcpy(copy.data() + f.offset, &changed, sizeof changed);
      damage++;
    }
  }
  const nvte_status status = op.run(&e, copy.data());
  if (status != NVTE_OK) return status;

  for (const OutputPart &p : outputs) {
    const int64_t n = numel(p.t);
    const bool data = !strcmp(p.role, "data"), amax = !strcmp(p.role, "amax") || (data && p.field == "amax");
    switch (kind) {
      case kLastRow: if (data && n && p.t.ndim) restore(p, n - n / p.t.shape[0], n); break;
      case kUnwritten: if (n) restore(p, n / 2, n / 2 + 1); break;
      case kNoAmax: if (amax) restore(p, 0, n); break;
      case kColumnwise: if (!strcmp(p.role, "columnwise")) restore(p, 0, n); break;
      case k4Ulp: if (data || !strcmp(p.role, "columnwise")) off_by_ulps(p.t); break;
      case kPastEnd:
        if (data && n) {
          uint8_t *end = nullptr;
          each_element(p.t, [&](int64_t, uint8_t *at) { end = at > end ? at : end; });
          end[element_bytes(p.t)] ^= 0x5a;
          damage++;
        }
        break;
      case kScaleInv:
        if (!strcmp(p.role, "scale_inv") || (data && p.field == "scale_inv")) each_element(p.t, [&](int64_t, uint8_t *at) { *at ^= 1, damage++; });
        break;
      case kThreads:
        if (data && n && nvte_get_num_threads() > 1) *(uint8_t *)address(p.t) ^= 1, damage++;
        break;
    }
  }
  if (kind == kInput && !inputs.empty() && numel(inputs[0])) *(uint8_t *)address(inputs[0]) ^= 1, damage++;
  return NVTE_OK;
}

// The plug-in table has no user pointer, so there is one function an operator.
template <size_t I> nvte_status run(const nvte_exec *exec, const void *args) { return sabotage(*nvte_op_at(I), exec, args); }
template <size_t I> nvte_status workspace(const nvte_exec *exec, const void *args, size_t *bytes) {
  const std::string base = base_implementation(nvte_op_at(I)->name);
  nvte_exec e = *exec;
  e.implementation = base.c_str();
  return nvte_workspace(nvte_op_at(I)->name, &e, args, bytes);
}
constexpr size_t kMaxOps = 96;
struct Entry {
  nvte_status (*run)(const nvte_exec *, const void *);
  nvte_status (*workspace)(const nvte_exec *, const void *, size_t *);
};
template <size_t... I> const Entry *entries(std::index_sequence<I...>) {
  static const Entry e[] = {{run<I>, workspace<I>}...};
  return e;
}

}  // namespace

const std::vector<Saboteur> &saboteurs() { return kSaboteurs; }
const char *cannot_show(const Saboteur &s, const nvte_op &op, Mode mode) {
  const std::string n = s.name;
  bool quantised = false, amax = false, scale_inv = false, strided = false;
  for (size_t i = 0; i < op.n_fields; i++) {
    const nvte_field &f = op.fields[i];
    if (f.flags & NVTE_FIELD_OUT) {
      quantised |= (f.flags & NVTE_FIELD_QUANTIZED) != 0;
      amax |= !strcmp(f.name, "amax");
      scale_inv |= !strcmp(f.name, "scale_inv");
    } else {
      strided |= (f.flags & (NVTE_FIELD_ROWS | NVTE_FIELD_STRIDED)) != 0;
    }
  }
  if (n == "sab_threads" && mode != Mode::test) return "only mode test compares thread counts";
  if (n == "sab_strides" && mode != Mode::test) return "only mode test sweeps layouts";
  if (n == "sab_strides" && !strided) return "no input may be strided";
  const bool part = n == "sab_no_amax" || n == "sab_scale_inv" || n == "sab_columnwise";
  if (part && mode == Mode::grad) return "finite differences are taken of plain tensors";
  if (n == "sab_no_amax" && !quantised && !amax) return "no output has an amax";
  if (n == "sab_scale_inv" && !quantised && !scale_inv) return "no output has a scale";
  if (n == "sab_columnwise" && !quantised) return "no output has a column-wise copy";
  return nullptr;
}
int64_t damage_done() { return damage; }
void reset_damage() { damage = 0; }

void register_saboteurs() {
  static std::vector<nvte_implementation> table;
  static nvte_backend backend;
  const Entry *e = entries(std::make_index_sequence<kMaxOps>());
  if (nvte_op_count() > kMaxOps) throw std::runtime_error("raise kMaxOps");
  table.clear();
  for (size_t i = 0; i < nvte_op_count(); i++)
    for (const Saboteur &s : kSaboteurs)
      table.push_back({sizeof(nvte_implementation), nvte_op_at(i)->name, s.name, -1000, 0, refuse, e[i].workspace, e[i].run});
  backend = {sizeof(nvte_backend), NVTE_ABI_VERSION, kDLCPU, "saboteur", table.data(), table.size(), nullptr, nullptr};
  if (nvte_backend_register(&backend) != NVTE_OK) throw std::runtime_error(nvte_last_error());
}
void remove_saboteurs() { nvte_backend_remove("saboteur"); }

}  // namespace te::test
