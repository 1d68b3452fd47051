// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN's fused graphs (NVIDIA), asked before `gpu`: f16 and bf16. A graph is described through cuDNN's front end, planned once for each
// distinct problem and kept, also the reason if cuDNN takes none like it; a call then hands the plan its pointers. What cuDNN has not, or defines
// otherwise (dropout's random numbers, ALiBi's slopes, boolean masks), is refused.
#include "gpu/vendor/cudnn.h"

#include <cudnn_frontend.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <type_traits>
#include <vector>

#include "gpu/contain.h"
#include "ops/attention/cudnn.h"
#include "ops/attention/problem.h"

namespace te {
namespace {
namespace fe = cudnn_frontend;

constexpr size_t kKept = 512;  // plans

bool allowed(const char *key, const char *value) {
  char text[24] = "";
  return gpu::host().config_get(key, text, sizeof text, nullptr) != NVTE_OK || std::strcmp(text, value) != 0;
}

// ---- what a plan depends on: numbers only, compared as bytes ----

enum Id : int64_t { kQ = 1, kK, kV, kO, kStats, kBias, kLenQ, kLenK, kSink, kDO, kDQ, kDK, kDV, kDBias, kDSink, kAtQ, kAtK, kAtV, kAtO, kAtDO, kAtDQ, kAtDK, kAtDV, kAtStats, kIds };

struct Place {
  int64_t b, h, s;  // strides in elements; channels have stride 1
};
struct Shape {
  int64_t device, backward, dtype, b, h_q, h_kv, s_q, s_kv, d, d_v, scale, left, right, bottom_right, lengths, thd, sink, stats, deterministic, has_bias, has_dbias, copies_keys, copies_queries;
  Place q, k, v, o, d_o, dq, dk, dv;
  int64_t bias[4], bias_strides[4];
  bool operator==(const Shape &other) const { return !std::memcmp(this, &other, sizeof *this); }
};
static_assert(sizeof(Shape) % sizeof(int64_t) == 0 && std::has_unique_object_representations_v<Shape>, "no padding bytes");
struct Hash {
  size_t operator()(const Shape &s) const {
    std::array<uint64_t, sizeof(Shape) / sizeof(uint64_t)> words;
    std::memcpy(words.data(), &s, sizeof s);
    uint64_t h = 14695981039346656037u;
    for (const uint64_t w : words) h = (h ^ w) * 1099511628211u;
    return (size_t)(h ^ h >> 32);
  }
};

// ---- which calls are taken, by our own rules ----

bool fits(const View &v, const Problem &p, int64_t s, int64_t h, Place *out) {
  const auto good = [](int64_t stride, int64_t size) { return size <= 1 || (stride % 8 == 0 && stride > 0); };
  if ((uintptr_t)v.base % 16 || v.d != 1 || !good(v.s, s) || !good(v.h, h) || (!p.thd && !good(v.b, p.b))) return false;
  // the stride of a dimension of 1 says nothing
  const int64_t token = s > 1 ? v.s : h * (h > 1 ? v.h : 8), head = h > 1 ? v.h : token;
  *out = {!p.thd && p.b > 1 ? v.b : s * token, head, token};
  return true;
}

// The call in numbers, or why cuDNN is not asked. F: forward's or backward's args.
template <class Args> const char *shape_of(const nvte_exec &e, const Args &a, Shape *out) {
  constexpr bool kBackward = std::is_same_v<Args, nvte_attention_backward_args>;
  if constexpr (!kBackward)
    if (given(a.page_table)) return "page_table: paged key/value caches are not built";
  const Problem p = problem_of(a);
  if (p.q.dtype == DType::f32) return "q is f32: cuDNN's attention takes f16 and bf16";
  if (p.dropout > 0) return "dropout: cuDNN's random numbers are not those that libte defines";
  if (p.mask.base) return "mask: cuDNN's attention has no boolean mask";
  if (p.slopes) return "alibi_slopes: cuDNN's attention has fixed slopes";
  if (!(p.scale > 0)) return "scale is not above 0";
  if (!p.b || !p.h_q || !p.s_q || !p.s_kv) return "the problem is empty";
  if (p.d % 8 || p.d_v % 8) return "head dimensions are no multiples of 8";
  if (p.d > 256 || p.d_v > 256) return "a head dimension is above 256";
  const bool lengths = p.cu_q || p.cu_k;
  const bool aligned_end = p.mask_kind == NVTE_MASK_CAUSAL_BOTTOM_RIGHT || p.bottom_right_window, window = p.window_left >= 0 || p.window_right >= 0;
  Shape s = {};
  s.device = e.device.device_id;
  s.backward = kBackward;
  s.dtype = (int64_t)p.q.dtype;
  s.b = p.b, s.h_q = p.h_q, s.h_kv = p.h_kv, s.s_q = p.s_q, s.s_kv = p.s_kv, s.d = p.d, s.d_v = p.d_v;
  std::memcpy(&s.scale, &p.scale, sizeof p.scale);
  s.left = p.window_left >= p.s_q + p.s_kv ? -1 : p.window_left;
  s.right = p.mask_kind != NVTE_MASK_NONE ? 0 : p.window_right >= p.s_q + p.s_kv ? -1 : p.window_right;
  s.lengths = lengths;
  s.thd = p.thd;
  s.bottom_right = aligned_end && (s.left >= 0 || s.right >= 0) && (lengths || p.s_q != p.s_kv);
  if (p.mask_kind == NVTE_MASK_CAUSAL && p.bottom_right_window && window && s.bottom_right) return "causality and window are aligned at different ends";
  if (!lengths && (s.bottom_right || s.left >= 0) && p.s_q > p.s_kv) return "a window or causality aligned at the end, with more queries than keys";
  const int64_t shift = s.bottom_right ? p.s_kv - p.s_q : 0;
  if (!lengths && ((s.right >= 0 && p.s_q + shift + s.right < p.s_kv) || (s.left >= 0 && shift > s.left)))
    return "there are keys that no query keeps, and cuDNN multiplies what they hold, NaN too, by 0";
  s.sink = p.softmax_kind;
  if (s.bottom_right && p.bias.base) return "bias with causality aligned at the end";
  if (p.bias.base) {
    if (lengths) return "bias with lengths";
    if (p.bias_kind == NVTE_BIAS_PRE_SCALE) return "bias_kind is NVTE_BIAS_PRE_SCALE";
    if (p.bias.dtype != p.q.dtype) return "bias is of another dtype than q";
    const DLTensor &t = a.bias->data;
    if (t.shape[2] != p.s_q) return "bias is broadcast over queries";
    if ((uintptr_t)p.bias.base % 16 || p.bias.d != 1) return "bias is not aligned to 16 bytes, or its keys are not contiguous";
    s.has_bias = 1;
    int64_t stride = p.s_kv;
    for (int i = 3; i >= 0; i--) {
      s.bias[i] = t.shape[i];
      s.bias_strides[i] = i == 3 ? 1 : t.shape[i] > 1 ? stride_of(t, i) : stride;
      if (i < 3) stride = s.bias_strides[i] * t.shape[i];
      if (i < 3 && s.bias_strides[i] % 8) return "a stride of bias is no multiple of 8";
    }
  }
  const char *const kLayout = "a tensor is not aligned to 16 bytes, its channels are not contiguous, or a stride is 0 or no multiple of 8";
  const Axes x = axes_of(a.format);
  const auto place = [&](const nvte_tensor *t, bool keys, Place *to) { return fits(view_of(t, x), p, keys ? p.s_kv : p.s_q, keys ? p.h_kv : p.h_q, to); };
  if (!place(a.q, false, &s.q) || !place(a.k, true, &s.k) || !place(a.v, true, &s.v)) return kLayout;
  // see Lengths: ragged sequences are cut where they end, so only keys within one that no query keeps matter
  const bool same_lengths = p.cu_q == p.cu_k, all_kept = same_lengths || (s.left < 0 && (s.right < 0 || s.bottom_right));
  s.copies_keys = lengths && !(p.thd && all_kept);
  s.copies_queries = lengths && kBackward && !p.thd;
  const auto packed = [](int64_t tokens, int64_t h, int64_t d) { return Place{tokens * h * d, d, h * d}; };
  if (s.copies_keys) s.k = packed(s.s_kv, s.h_kv, s.d), s.v = packed(s.s_kv, s.h_kv, s.d_v);
  if (s.copies_queries) s.q = packed(s.s_q, s.h_q, s.d);
  if (dtype_of(a.o->data.dtype) != p.q.dtype) return "o is of another dtype than q";
  if (!place(a.o, false, &s.o)) return kLayout;
  if constexpr (kBackward) {
    for (const nvte_tensor *t : {a.d_o, static_cast<const nvte_tensor *>(a.dq), static_cast<const nvte_tensor *>(a.dk), static_cast<const nvte_tensor *>(a.dv)})
      if (dtype_of(t->data.dtype) != p.q.dtype) return "a gradient is of another dtype than q";
    if (!place(a.d_o, false, &s.d_o) || !place(a.dq, false, &s.dq) || !place(a.dk, true, &s.dk) || !place(a.dv, true, &s.dv)) return kLayout;
    if (s.copies_queries) s.d_o = packed(s.s_q, s.h_q, s.d_v);
    s.stats = 1;
    s.has_dbias = given(a.dbias);
    if (s.has_dbias && dtype_of(a.dbias->data.dtype) != p.q.dtype) return "dbias is of another dtype than q";
    if (given(a.dsoftmax_offset)) s.sink |= 4;
    static const bool may_vary = allowed("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0");
    s.deterministic = !may_vary || (e.flags & NVTE_EXEC_DETERMINISTIC);
  } else {
    s.stats = given(a.stats);
  }
  *out = s;
  return nullptr;
}

// ---- plans ----

// Lets other threads' captures, and this one's, live through calls that a capture forbids (the library allocates and loads modules).
class Relaxed {
 public:
  Relaxed() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~Relaxed() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  Relaxed(const Relaxed &) = delete;
  Relaxed &operator=(const Relaxed &) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// A handle serves one call at a time: as many are made as calls ever overlapped on a device.
class Handle {
 public:
  explicit Handle(int device) : device_(device) {
    {
      std::lock_guard<std::mutex> lock(mutex());
      auto &idle = idle_of(device);
      if (!idle.empty()) {
        handle_ = idle.back();
        idle.pop_back();
        return;
      }
    }
    Relaxed relaxed;
    status_ = cudnnCreate(&handle_);
  }
  ~Handle() {
    if (status_ != CUDNN_STATUS_SUCCESS) return;
    std::lock_guard<std::mutex> lock(mutex());
    idle_of(device_).push_back(handle_);
  }
  Handle(const Handle &) = delete;
  Handle &operator=(const Handle &) = delete;
  cudnnStatus_t status() const { return status_; }
  cudnnHandle_t get() const { return handle_; }

 private:
  static std::mutex &mutex() {
    static std::mutex m;
    return m;
  }
  static std::vector<cudnnHandle_t> &idle_of(int device) {
    static auto *all = new std::map<int, std::vector<cudnnHandle_t>>;  // never destroyed: calls may come late
    return (*all)[device];
  }
  int device_;
  cudnnHandle_t handle_ = nullptr;
  cudnnStatus_t status_ = CUDNN_STATUS_SUCCESS;
};

using Pointers = std::array<void *, kIds>;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

class Graph : public fe::graph::Graph {
 public:
  // Empty: planned.
  std::string plan(cudnnHandle_t handle, const Shape &s) {
    describe(s);
    fe::error_t e = build(handle, {fe::HeurMode_t::A});
    if (e.is_bad()) return e.get_message();
    int64_t bytes = 0, offset = 0;
    fe::error_t status = get_workspace_size(bytes);
    std::unordered_map<int64_t, std::tuple<int64_t, int64_t, std::vector<float>>> inside;
    if (status.is_good()) status = collect_pass_by_value_tensors_subtree(values_);
    if (status.is_good()) status = collect_tensors_in_workspace_subtree(inside, offset);
    if (status.is_bad()) return status.get_message();
    bytes_ = (size_t)bytes;
    own_bytes_ = get_fe_workspace_size_subtree();
    for (const int64_t uid : variant_pack_uids) {
      uids_.push_back(uid);
      const auto value = values_.find(uid);
      const auto at = inside.find(uid);
      if (value != values_.end()) slots_.push_back({std::visit([](auto &v) { return static_cast<void *>(&v); }, value->second), -1});
      else if (at != inside.end() && std::get<0>(at->second) == 2) slots_.push_back({nullptr, std::get<1>(at->second)});
      else if (uid < kIds) slots_.push_back({nullptr, -1});
      else return "the front end's graph has a tensor that libte does not know";
    }
    return "";
  }
  size_t bytes() const { return bytes_; }
  std::string execute(cudnnHandle_t handle, const Pointers &pointers, void *workspace) const {
    std::vector<void *> data(uids_.size());
    for (size_t i = 0; i < data.size(); i++)
      data[i] = slots_[i].value ? slots_[i].value : slots_[i].offset >= 0 ? static_cast<char *>(workspace) + slots_[i].offset : pointers[(size_t)uids_[i]];
    fe::error_t e =
        fe::detail::execute(handle, plans.execution_plans[(size_t)plans.candidate].get(), data, uids_, static_cast<char *>(workspace) + own_bytes_);
    return e.is_bad() ? e.get_message() : "";
  }

 private:
  struct Slot {
    void *value;     // of a scalar
    int64_t offset;  // in the workspace, -1: a tensor of the call
  };

  Tensor add(int64_t uid, std::vector<int64_t> dim, std::vector<int64_t> stride, fe::DataType_t type) {
    return tensor(fe::graph::Tensor_attributes().set_uid(uid).set_dim(dim).set_stride(stride).set_data_type(type));
  }
  void describe(const Shape &s) {
    const auto type = (DType)s.dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
    set_io_data_type(type).set_intermediate_data_type(fe::DataType_t::FLOAT).set_compute_data_type(fe::DataType_t::FLOAT);
    const auto ragged = [&](Id uid) { return s.thd ? add(uid, {s.b + 1, 1, 1, 1}, {1, 1, 1, 1}, fe::DataType_t::INT64) : nullptr; };
    const auto shape = [&](bool keys, int64_t d) { return std::vector<int64_t>{s.b, keys ? s.h_kv : s.h_q, keys ? s.s_kv : s.s_q, d}; };
    const auto strides = [](const Place &p) { return std::vector<int64_t>{p.b, p.h, p.s, 1}; };
    const auto input = [&](Id uid, bool keys, int64_t d, const Place &p, Id at) {
      Tensor t = add(uid, shape(keys, d), strides(p), type);
      if (Tensor r = ragged(at)) t->set_ragged_offset(r);
      return t;
    };
    const auto output = [&](const Tensor &t, Id uid, bool keys, int64_t d, const Place &p, Id at) {
      t->set_output(true).set_uid(uid).set_dim(shape(keys, d)).set_stride(strides(p)).set_data_type(type);
      if (Tensor r = ragged(at)) t->set_ragged_offset(r);
    };
    // THD: [h, t]; backward has a copy [t, h], since the front end sizes a buffer beside it by the stride of a token
    const std::vector<int64_t> stats_shape = {s.b, s.h_q, s.s_q, 1};
    const std::vector<int64_t> stats_strides = s.thd && s.backward ? std::vector<int64_t>{s.h_q * s.s_q, 1, s.h_q, 1}
                                                                   : std::vector<int64_t>{s.h_q * s.s_q, s.s_q, 1, 1};
    float scale;
    std::memcpy(&scale, &s.scale, sizeof scale);
    const Tensor q = input(kQ, false, s.d, s.q, kAtQ), k = input(kK, true, s.d, s.k, kAtK), v = input(kV, true, s.d_v, s.v, kAtV);
    const auto common = [&](auto &options) {
      options.set_name("attention").set_attn_scale(scale);
      if (s.bottom_right) options.set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT);
      if (s.right >= 0) options.set_diagonal_band_right_bound((int)s.right);
      if (s.left >= 0) options.set_diagonal_band_left_bound((int)s.left + 1);
      if (s.has_bias)
        options.set_bias(add(kBias, {s.bias, s.bias + 4}, {s.bias_strides, s.bias_strides + 4}, type));
      if (s.lengths) {
        options.set_padding_mask(true);
        options.set_seq_len_q(add(kLenQ, {s.b, 1, 1, 1}, {1, 1, 1, 1}, fe::DataType_t::INT32));
        options.set_seq_len_kv(add(kLenK, {s.b, 1, 1, 1}, {1, 1, 1, 1}, fe::DataType_t::INT32));
      }
      if (s.sink & 3) options.set_sink_token(add(kSink, {1, s.h_q, 1, 1}, {s.h_q, 1, 1, 1}, fe::DataType_t::FLOAT));
    };
    if (!s.backward) {
      fe::graph::SDPA_attributes options;
      common(options);
      options.set_generate_stats(s.stats != 0);
      auto [o, stats] = sdpa(q, k, v, options);
      output(o, kO, false, s.d_v, s.o, kAtO);
      if (!s.stats) return;
      stats->set_output(true).set_uid(kStats).set_dim(stats_shape).set_stride(stats_strides).set_data_type(fe::DataType_t::FLOAT);
      if (Tensor r = ragged(kAtStats)) stats->set_ragged_offset(r);
      return;
    }
    const Tensor o = input(kO, false, s.d_v, s.o, kAtO), d_o = input(kDO, false, s.d_v, s.d_o, kAtDO);
    const Tensor stats = add(kStats, stats_shape, stats_strides, fe::DataType_t::FLOAT);
    if (Tensor r = ragged(kAtStats)) stats->set_ragged_offset(r);
    fe::graph::SDPA_backward_attributes options;
    common(options);
    options.set_deterministic_algorithm(s.deterministic != 0);
    if (s.thd) options.set_max_total_seq_len_q(s.s_q).set_max_total_seq_len_kv(s.s_kv);
    if (s.has_dbias) {
      std::vector<int64_t> packed = {s.bias[1] * s.bias[2] * s.bias[3], s.bias[2] * s.bias[3], s.bias[3], 1};
      options.set_dbias(add(kDBias, {s.bias, s.bias + 4}, packed, type));
    }
    if (s.sink & 4) options.set_dsink_token(add(kDSink, {1, s.h_q, 1, 1}, {s.h_q, 1, 1, 1}, fe::DataType_t::FLOAT));
    auto [dq, dk, dv] = sdpa_backward(q, k, v, o, d_o, stats, options);
    output(dq, kDQ, false, s.d, s.dq, kAtDQ);
    output(dk, kDK, true, s.d, s.dk, kAtDK);
    output(dv, kDV, true, s.d_v, s.dv, kAtDV);
  }

  std::unordered_map<int64_t, fe::graph::Tensor_attributes::pass_by_values_t> values_;
  std::vector<int64_t> uids_;
  std::vector<Slot> slots_;
  size_t bytes_ = 0;
  int64_t own_bytes_ = 0;
};

struct Plan {
  std::mutex mutex;  // planning, and the host's part of a call
  bool tried = false;
  std::unique_ptr<Graph> graph;
  std::string reason;     // no graph
  std::atomic<bool> captured{false};  // a graph of the caller's may run it again at any time
  uint64_t used = 0;
};

nvte_status build(const nvte_exec &e, const Shape &s, Plan *plan) {
  gpu::DeviceScope scope(e);
  if (scope.status() != NVTE_OK) return scope.status();
  Relaxed relaxed;
  Handle handle((int)s.device);
  if (handle.status() != CUDNN_STATUS_SUCCESS) {
    const char *twins = gpu::cudnn::library().twins;
    plan->reason = std::string("cudnnCreate: ") + cudnnGetErrorString(handle.status()) + (twins ? std::string("; copies in the process: ") + twins : "");
    return NVTE_OK;
  }
  auto graph = std::make_unique<Graph>();
  const std::string message = graph->plan(handle.get(), s);
  if (message.empty()) plan->graph = std::move(graph);
  else plan->reason = "cuDNN takes no such graph: " + message;
  (void)cudaGetLastError();
  return NVTE_OK;
}

std::shared_ptr<Plan> plan_of(const Shape &s) {
  static std::mutex mutex;
  static auto *kept = new std::unordered_map<Shape, std::shared_ptr<Plan>, Hash>;  // never destroyed: calls may come late
  static uint64_t now = 0;
  std::lock_guard<std::mutex> lock(mutex);
  auto at = kept->find(s);
  if (at == kept->end()) {
    if (kept->size() >= kKept) {
      auto oldest = kept->end();
      for (auto i = kept->begin(); i != kept->end(); ++i)
        if (!i->second->captured && i->second.use_count() == 1 && (oldest == kept->end() || i->second->used < oldest->second->used)) oldest = i;
      if (oldest != kept->end()) kept->erase(oldest);
    }
    at = kept->emplace(s, std::make_shared<Plan>()).first;
  }
  at->second->used = ++now;
  return at->second;
}

// The call's plan, planned if it must be; NULL: `text` says why not.
template <class Args> std::shared_ptr<Plan> find(const nvte_exec &e, const Args &a, Shape *shape, char *text, size_t size) {
  static const bool fused = allowed("NVTE_FUSED_ATTN", "0");
  const char *reason = fused ? gpu::cudnn::library().missing : "NVTE_FUSED_ATTN is 0";
  if (!reason) reason = shape_of(e, a, shape);
  if (reason) {
    snprintf(text, size, "%s", reason);
    return nullptr;
  }
  std::shared_ptr<Plan> plan = plan_of(*shape);
  std::lock_guard<std::mutex> lock(plan->mutex);
  if (!plan->tried && build(e, *shape, plan.get()) != NVTE_OK) {
    snprintf(text, size, "the device cannot be used");
    return nullptr;
  }
  // want of memory may pass; what cuDNN has not stays away
  plan->tried = plan->graph || (plan->reason.find("ALLOC_FAILED") == std::string::npos && plan->reason.find("cudnnCreate") == std::string::npos);
  if (plan->graph) return plan;
  snprintf(text, size, "%s", plan->reason.c_str());
  return nullptr;
}

template <class Args> const char *refuse(const nvte_exec *e, const void *args) {
  static thread_local char text[1024];
  bool found = false;
  const nvte_status status = gpu::contained([&]() -> nvte_status {
    Shape shape;
    found = find(*e, *static_cast<const Args *>(args), &shape, text, sizeof text) != nullptr;
    return NVTE_OK;
  });
  return found ? nullptr : status == NVTE_OK ? text : "planning failed; nvte_last_error says why";
}

// ---- workspace: the plan's, lengths in cuDNN's form, stats without -inf, an offset of 0 for every head ----

size_t round_up(size_t n) { return (n + 255) / 256 * 256; }

struct Space {
  static constexpr size_t kOffsets = 9;
  size_t plan, ints = 0, offsets = 0, k = 0, v = 0, q = 0, d_o = 0, stats = 0, sink = 0;
  Space(const Shape &s, const Plan &p) : plan(round_up(p.graph->bytes())) {
    const int64_t entries = s.thd ? 1 : s.b;
    const auto bytes = [](int64_t n, size_t each) { return round_up((size_t)n * each); };
    if (s.lengths) ints = bytes(s.b, sizeof(int32_t));
    if (s.thd) offsets = bytes(s.b + 1, sizeof(int64_t));
    if (s.copies_keys) k = bytes(entries * s.k.b, 2), v = bytes(entries * s.v.b, 2);
    if (s.copies_queries) q = bytes(entries * s.q.b, 2), d_o = bytes(entries * s.d_o.b, 2);
    if (s.lengths && s.backward) stats = bytes(entries * s.h_q * s.s_q, sizeof(float));
    if ((s.sink & 3) == NVTE_SOFTMAX_OFF_BY_ONE) sink = bytes(s.h_q, sizeof(float));
  }
  size_t bytes() const { return plan + 2 * ints + kOffsets * offsets + k + v + q + d_o + stats + sink; }
};

template <class Args> nvte_status workspace(const nvte_exec *e, const void *args, size_t *bytes) {
  return gpu::contained([&]() -> nvte_status {
    Shape shape;
    char text[1024];
    const auto plan = find(*e, *static_cast<const Args *>(args), &shape, text, sizeof text);
    if (!plan) return fail(NVTE_ERR_UNSUPPORTED, "cudnn: %s", text);
    *bytes = Space(shape, *plan).bytes();
    return NVTE_OK;
  });
}

template <class Args> nvte_status run(const nvte_exec *e, const void *args) {
  const Args &a = *static_cast<const Args *>(args);
  gpu::DeviceScope scope(*e);
  if (scope.status() != NVTE_OK) return scope.status();
  return gpu::contained([&]() -> nvte_status {
    constexpr bool kBackward = std::is_same_v<Args, nvte_attention_backward_args>;
    Shape s;
    char text[1024];
    const auto plan = find(*e, a, &s, text, sizeof text);
    if (!plan) return fail(NVTE_ERR_UNSUPPORTED, "cudnn: %s", text);
    const hipStream_t stream = gpu::stream_of(*e);
    Pointers to = {};
    const auto put = [&](Id id, const nvte_tensor *t) {
      if (given(t)) to[id] = address_as<void>(t->data);
    };
    put(kQ, a.q), put(kK, a.k), put(kV, a.v), put(kO, a.o), put(kStats, a.stats), put(kBias, a.bias), put(kSink, a.softmax_offset);
    if constexpr (kBackward) put(kDO, a.d_o), put(kDQ, a.dq), put(kDK, a.dk), put(kDV, a.dv), put(kDBias, a.dbias), put(kDSink, a.dsoftmax_offset);
    const Space space(s, *plan);
    char *next = static_cast<char *>(e->workspace) + space.plan;
    const auto take = [&](Id id, size_t bytes) {
      to[id] = next;
      next += bytes;
      return to[id];
    };
    if (s.lengths) {
      attention::Lengths l = {};
      l.len_q = static_cast<int32_t *>(take(kLenQ, space.ints));
      l.len_k = static_cast<int32_t *>(take(kLenK, space.ints));
      if (s.thd) {
        int64_t **const parts[] = {&l.at_q, &l.at_k, &l.at_v, &l.at_o, &l.at_do, &l.at_dq, &l.at_dk, &l.at_dv, &l.at_stats};
        const Id ids[] = {kAtQ, kAtK, kAtV, kAtO, kAtDO, kAtDQ, kAtDK, kAtDV, kAtStats};
        static_assert(sizeof ids / sizeof *ids == Space::kOffsets);
        for (size_t i = 0; i < Space::kOffsets; i++) *parts[i] = static_cast<int64_t *>(take(ids[i], space.offsets));
      }
      if (space.k) l.k = take(kK, space.k), l.v = take(kV, space.v);
      if (space.q) l.q = take(kQ, space.q), l.d_o = take(kDO, space.d_o);
      if (kBackward) l.stats = static_cast<float *>(take(kStats, space.stats));
      attention::before_cudnn(a, l, stream);
    }
    if (space.sink) (void)cudaMemsetAsync(take(kSink, space.sink), 0, space.sink, stream);
    std::string message;
    {
      std::lock_guard<std::mutex> lock(plan->mutex);
      Handle handle(e->device.device_id);
      if (handle.status() != CUDNN_STATUS_SUCCESS) return fail(NVTE_ERR_DEVICE, "cudnn: cudnnCreate: %s", cudnnGetErrorString(handle.status()));
      if (const cudnnStatus_t status = cudnnSetStream(handle.get(), stream)) return fail(NVTE_ERR_DEVICE, "cudnn: cudnnSetStream: %s", cudnnGetErrorString(status));
      hipStreamCaptureStatus capture = hipStreamCaptureStatusNone;
      (void)hipStreamIsCapturing(stream, &capture);
      if (capture != hipStreamCaptureStatusNone) plan->captured = true;
      message = plan->graph->execute(handle.get(), to, e->workspace);
    }
    if (!message.empty()) return fail(NVTE_ERR_DEVICE, "cudnn: %s", message.c_str());
    if (s.lengths) attention::after_cudnn(a, stream);
    return gpu::launched("attention");
  });
}

template <class Args> constexpr nvte_implementation implementation(const char *op) {
  return {sizeof(nvte_implementation), op, "cudnn", 10, 0, refuse<Args>, workspace<Args>, run<Args>};
}
const nvte_implementation table[] = {implementation<nvte_attention_forward_args>("attention_forward"),
                                     implementation<nvte_attention_backward_args>("attention_backward")};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(attention_cudnn) = {table, 2};
}
}  // namespace te
