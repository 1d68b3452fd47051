// SPDX-License-Identifier: Apache-2.0
// Linear layers made of other operators: which calls, in which order. A back end lends two functions, so the core (op.cpp) and a plug-in
// run the same steps. Sub-operators run one after another and share the workspace that is left.
#pragma once
#include "core/status.h"
#include "core/tensor.h"
#include "core/text.h"
#include "libte/linear.h"
#include "libte/init.h"

namespace te::linear {

// Codes of x into q; dbias: absent, or column sums of x.
struct Quantization {
  const nvte_tensor *x;
  nvte_tensor *q;
  nvte_tensor *dbias;
};

struct Back {
  nvte_status (*call)(const char *op, const nvte_exec *exec, const void *args);
  // NULL: the operators need none (the CPU's), so a query costs nothing.
  nvte_status (*workspace)(const char *op, const nvte_exec *exec, const void *args, size_t *bytes);
  // FP8 products want k contiguous: of codes that are asked for column-wise only, which backward needs, the rows are made too, in workspace.
  bool wants_rows;
  // The whole of up to two quantisations of few numbers at once, with the bits of the operators' calls. false: not these, nothing was done.
  // NULL: none.
  bool (*together)(const nvte_exec *exec, const Quantization *of, int n, uint32_t flags, nvte_status *status);
};

// A GPU plug-in's `together`, for tensors so small that a launch costs more than its kernel (ops/quantize/gpu.hip).
bool quantize_together(const nvte_exec *exec, const Quantization *of, int n, uint32_t flags, nvte_status *status);

inline bool given(const nvte_tensor *t) { return t && (present(t->data) || present(t->columnwise)); }

// The steps of one composite: run() calls an operator, or, when `query` is set, only asks what workspace it would take.
class Steps {
 public:
  // A forced implementation is the composite's own: its parts are chosen freely.
  Steps(const Back &back, const nvte_exec &exec, bool query) : back_(back), exec_(exec), query_(query) { exec_.implementation = nullptr; }

  template <class Args> void run(const char *op, const Args &args) {
    if (status_ != NVTE_OK) return;
    if (!query_) {
      status_ = back_.call(op, &exec_, &args);
      return;
    }
    size_t bytes = 0;
    if (back_.workspace) status_ = back_.workspace(op, &exec_, &args, &bytes);
    if (bytes > shared_) shared_ = bytes;
  }
  // Memory for an intermediate; stays until the end. In a query the address only says "there".
  void *take(size_t bytes) {
    bytes = (bytes + 255) / 256 * 256;
    taken_ += bytes;
    if (query_) return reinterpret_cast<void *>(uintptr_t{256} + taken_ - bytes);  // apart from the others
    void *p = exec_.workspace;
    exec_.workspace = static_cast<char *>(exec_.workspace) + bytes;
    exec_.workspace_size -= bytes;
    return p;
  }
  // Codes to be written, with rows in workspace where they are wanted and the caller has no use for them.
  nvte_tensor with_rows(const nvte_tensor *q) {
    nvte_tensor t = *q;
    if (!back_.wants_rows || present(t.data)) return t;
    t.data.dtype = t.columnwise.dtype;
    t.data.device = t.columnwise.device;
    t.data.strides = nullptr;
    t.data.byte_offset = 0;
    t.data.data = take(static_cast<size_t>(numel(t.data)));
    if (!present(t.scale_inv)) t.scale_inv = t.columnwise_scale_inv;
    return t;
  }
  nvte_status status() const { return status_; }
  size_t bytes() const { return taken_ + shared_; }

  // Current scaling computes amax and scale first; then amax has been delivered and is not asked for again. Those that the caller has no use for
  // are kept here.
  void quantize(Quantization one, uint32_t flags) { quantize(&one, 1, flags); }
  void quantize(const Quantization *of, int n, uint32_t flags) {
    if (flags & NVTE_LINEAR_CURRENT_SCALING)
      for (int i = 0; i < n; i++)
        if (!present(of[i].q->amax)) keep(of[i].q);
    if (n && !query_ && status_ == NVTE_OK && back_.together && back_.together(&exec_, of, n, flags, &status_)) return;
    for (int i = 0; i < n; i++) by_parts(of[i], flags);
  }
  void gemm(const nvte_tensor *a, const nvte_tensor *b, nvte_tensor *d, const nvte_tensor *bias, nvte_tensor *dbias, float beta, uint32_t flags) {
    nvte_gemm_args g = NVTE_GEMM_ARGS_INIT;
    g.a = a;
    g.b = b;
    g.d = d;
    g.bias = bias;
    g.dbias = dbias;
    g.beta = beta;
    g.flags = flags;
    run("gemm", g);
  }

 private:
  void keep(nvte_tensor *q) {
    static int64_t one[1] = {1};
    // a back end without workspace reads and writes the host's memory
    float *const at = back_.workspace ? static_cast<float *>(take(2 * sizeof(float))) : own_ + 2 * kept_++;
    const DLDevice device = present(q->data) ? q->data.device : q->columnwise.device;
    q->amax = DLTensor{at, device, 1, DLDataType{kDLFloat, 32, 1}, one, nullptr, 0};
    q->scale = DLTensor{at + 1, device, 1, DLDataType{kDLFloat, 32, 1}, one, nullptr, 0};
  }
  void by_parts(const Quantization &of, uint32_t flags) {
    nvte_quantize_args a = NVTE_QUANTIZE_ARGS_INIT;
    nvte_tensor y = *of.q;
    if (flags & NVTE_LINEAR_CURRENT_SCALING) {
      nvte_tensor amax{}, scale{};
      amax.struct_size = scale.struct_size = sizeof(nvte_tensor);
      amax.data = of.q->amax;
      scale.data = of.q->scale;
      nvte_compute_amax_args m = NVTE_COMPUTE_AMAX_ARGS_INIT;
      m.x = of.x;
      m.amax = &amax;
      run("compute_amax", m);
      nvte_compute_scale_args s = NVTE_COMPUTE_SCALE_ARGS_INIT;
      s.amax = &amax;
      s.scale = &scale;
      s.dtype = present(y.data) ? y.data.dtype : y.columnwise.dtype;
      s.flags = flags & NVTE_LINEAR_POW2_SCALES ? NVTE_COMPUTE_SCALE_POW2 : 0;
      run("compute_scale", s);
      y.amax = DLTensor{};
    }
    a.x = of.x;
    a.y = &y;
    a.dbias = of.dbias;
    run("quantize", a);
  }

  Back back_;
  nvte_exec exec_;
  bool query_;
  nvte_status status_ = NVTE_OK;
  size_t taken_ = 0, shared_ = 0;
  float own_[4];  // amax and scale of two tensors
  int kept_ = 0;
};

inline uint32_t gemm_flags(uint32_t flags) { return flags & NVTE_LINEAR_SPLIT_ACCUMULATOR ? NVTE_GEMM_SPLIT_ACCUMULATOR : 0u; }

inline void forward(Steps &s, const nvte_linear_forward_args &a) {
  const nvte_tensor *x = a.x, *w = a.weight;
  nvte_tensor xq, wq;
  if (given(a.x_quantized)) {
    x = a.x_quantized;
    w = a.weight_quantized;
    Quantization of[2];
    int n = 0;
    if (!(a.flags & NVTE_LINEAR_INPUT_READY)) x = &(xq = s.with_rows(x)), of[n++] = {a.x, &xq, nullptr};
    if (!(a.flags & NVTE_LINEAR_WEIGHT_READY)) w = &(wq = s.with_rows(w)), of[n++] = {a.weight, &wq, nullptr};
    s.quantize(of, n, a.flags);
  }
  s.gemm(x, w, a.y, a.bias, nullptr, 0.f, NVTE_GEMM_TRANS_B | gemm_flags(a.flags));
}

inline void backward(Steps &s, const nvte_linear_backward_args &a) {
  const nvte_tensor *dy = a.dy;
  nvte_tensor *dbias = given(a.dbias) ? a.dbias : nullptr;
  nvte_tensor dyq;
  if (given(a.dy_quantized)) {
    dy = a.dy_quantized;
    if (!(a.flags & NVTE_LINEAR_INPUT_READY)) {
      dyq = given(a.dx) ? s.with_rows(dy) : *dy;
      dy = &dyq;
      // the bias gradient is of dy before quantisation: column sums of the same pass
      s.quantize({a.dy, &dyq, dbias}, a.flags);
    }
    dbias = nullptr;
  }
  const uint32_t flags = gemm_flags(a.flags);
  if (given(a.dx)) s.gemm(dy, a.weight, a.dx, nullptr, nullptr, 0.f, flags);
  if (given(a.dweight)) {
    s.gemm(dy, a.x, a.dweight, nullptr, dbias, a.flags & NVTE_LINEAR_ACCUMULATE ? 1.f : 0.f, NVTE_GEMM_TRANS_A | flags);
  } else if (dbias) {  // a product with no columns: only the sums of op(A) are left
    static char nothing[64];
    const int64_t tokens = rows(dy->data), n = columns(dy->data);
    int64_t b_shape[2] = {tokens, 0}, d_shape[2] = {n, 0};
    nvte_tensor b{}, d{};
    b.struct_size = d.struct_size = sizeof(nvte_tensor);
    b.data = DLTensor{nothing, dy->data.device, 2, dy->data.dtype, b_shape, nullptr, 0};
    d.data = DLTensor{nothing, dy->data.device, 2, dy->data.dtype, d_shape, nullptr, 0};
    s.gemm(dy, &b, &d, nullptr, dbias, 0.f, NVTE_GEMM_TRANS_A | flags);
  }
}

inline void norm(Steps &s, const nvte_norm_linear_forward_args &a, nvte_tensor *y, bool statistics) {
  if (a.norm == NVTE_NORM_RMS) {
    nvte_rmsnorm_forward_args n = NVTE_RMSNORM_FORWARD_ARGS_INIT;
    n.x = a.x;
    n.gamma = a.gamma;
    n.y = y;
    n.rstd = statistics ? a.rstd : nullptr;
    n.epsilon = a.epsilon;
    n.flags = a.norm_flags;
    s.run("rmsnorm_forward", n);
  } else {
    nvte_layernorm_forward_args n = NVTE_LAYERNORM_FORWARD_ARGS_INIT;
    n.x = a.x;
    n.gamma = a.gamma;
    n.beta = a.beta;
    n.y = y;
    n.mu = statistics ? a.mu : nullptr;
    n.rstd = statistics ? a.rstd : nullptr;
    n.epsilon = a.epsilon;
    n.flags = a.norm_flags;
    s.run("layernorm_forward", n);
  }
}

inline void norm_forward(Steps &s, const nvte_norm_linear_forward_args &a) {
  const uint32_t flags = NVTE_GEMM_TRANS_B | gemm_flags(a.flags);
  if (!given(a.x_quantized)) {
    norm(s, a, a.normalized, true);
    s.gemm(a.normalized, a.weight, a.y, a.bias, nullptr, 0.f, flags);
    return;
  }
  const bool keep = given(a.normalized), ready = (a.flags & NVTE_LINEAR_WEIGHT_READY) != 0;
  nvte_tensor xq = s.with_rows(a.x_quantized), wq;
  const nvte_tensor *w = ready ? a.weight_quantized : &(wq = s.with_rows(a.weight_quantized));
  if (a.flags & NVTE_LINEAR_CURRENT_SCALING) {  // the scale comes from the rows themselves, so they have to exist first
    nvte_tensor wide{};
    if (keep) {
      wide = *a.normalized;
    } else {
      wide.struct_size = sizeof(nvte_tensor);
      wide.data = a.x->data;
      wide.data.strides = nullptr;
      wide.data.byte_offset = 0;
      wide.data.data = s.take(static_cast<size_t>(numel(a.x->data) * element_bytes(a.x->data)));
    }
    norm(s, a, &wide, true);
    s.quantize({&wide, &xq, nullptr}, a.flags);
  } else {
    norm(s, a, &xq, true);
    if (keep) norm(s, a, a.normalized, false);
  }
  if (!ready) s.quantize({a.weight, &wq, nullptr}, a.flags);
  s.gemm(&xq, w, a.y, a.bias, nullptr, 0.f, flags);
}

// run() and workspace() of an implementation, for a back end's `back`.
template <class Args, void (*Body)(Steps &, const Args &)> nvte_status run_steps(const Back &back, const nvte_exec *exec, const void *p) {
  Steps s(back, *exec, false);
  Body(s, *static_cast<const Args *>(p));
  return s.status();
}
template <class Args, void (*Body)(Steps &, const Args &)> nvte_status query_steps(const Back &back, const nvte_exec *exec, const void *p, size_t *bytes) {
  Steps s(back, *exec, true);
  Body(s, *static_cast<const Args *>(p));
  *bytes = s.bytes();
  return s.status();
}

// ---- rules ----

inline nvte_status needs_scale(const char *name, const nvte_tensor *q, uint32_t flags, bool ready) {
  if (ready || !(flags & NVTE_LINEAR_CURRENT_SCALING)) return NVTE_OK;
  if (present(q->scale) != present(q->amax))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must have scale and amax with NVTE_LINEAR_CURRENT_SCALING, or neither: both are computed here", name);
  return NVTE_OK;
}
inline nvte_status known_flags(uint32_t flags) {
  if (flags & ~0x3fu) return fail(NVTE_ERR_INVALID_ARGUMENT, "flags must be NVTE_LINEAR_*, got 0x%x", flags);
  return NVTE_OK;
}

// The GEMM's own rule, before anything runs.
inline nvte_status agree(const char *name, const nvte_tensor *t, const char *other, const nvte_tensor *u) {
  const DLTensor &a = present(t->data) ? t->data : t->columnwise, &b = present(u->data) ? u->data : u->columnwise;
  const DType x = dtype_of(a.dtype), y = dtype_of(b.dtype);
  if (is_fp8(x) ? is_fp8(y) : x == y) return NVTE_OK;
  return fail(NVTE_ERR_INVALID_ARGUMENT, "%s must have %s's dtype %s, or both must be fp8, got %s", name, other, dtype_name(b.dtype), dtype_name(a.dtype));
}

// What forward and norm_linear share: the weight's side, and both or none quantised.
template <class Args> nvte_status validate_weight(const Args &a) {
  if (const nvte_status s = known_flags(a.flags)) return s;
  const bool quantised = given(a.x_quantized), ready = (a.flags & NVTE_LINEAR_WEIGHT_READY) != 0;
  if (quantised != given(a.weight_quantized))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "%s is missing: x_quantized and weight_quantized go together", quantised ? "weight_quantized" : "x_quantized");
  if (!given(a.weight) && !(quantised && ready))
    return fail(NVTE_ERR_INVALID_ARGUMENT, "weight is missing: only NVTE_LINEAR_WEIGHT_READY with weight_quantized does without it");
  return quantised ? needs_scale("weight_quantized", a.weight_quantized, a.flags, ready) : NVTE_OK;
}

}  // namespace te::linear
