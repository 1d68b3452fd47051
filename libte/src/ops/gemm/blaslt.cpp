// SPDX-License-Identifier: Apache-2.0
// nvte_gemm by the vendor's library, hipBLASLt or cuBLASLt. It computes D = alpha A B + beta C + bias in one launch where it has the types;
// every other epilogue runs behind an f32 product in workspace (gpu.hip's finish). Candidates that fail at launch are skipped with a logged
// reason; when none is left, or for operands that the library cannot address, the kernel of gpu.hip runs, logged too.
// FP8 operands must have k contiguous there: one without such an orientation is transposed into workspace, bytes that are few beside the product's
// operations.
// The library is column-major: it is given D^T = op(B)^T op(A)^T, so its A is our b.
#include "gpu/vendor/blaslt.h"

#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/log.h"
#include "libte/init.h"
#include "ops/gemm/gpu.h"
#include "ops/gemm/tuning.h"

namespace te {
namespace {
using namespace gpu::blaslt;

constexpr int kCandidates = 32;

bool given(const nvte_tensor *t) { return t && present(t->data) && numel(t->data) > 0; }
size_t round_up(size_t n) { return (n + 255) / 256 * 256; }

void say(int level, const char *format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  gpu::host().log(level, text);
}

int setting(const char *key) {
  char text[24] = "0";
  return gpu::host().config_get(key, text, sizeof text, nullptr) == NVTE_OK ? std::atoi(text) : 0;
}
const gemm::Tuning &tuning() {
  static const gemm::Tuning t = {setting("TE_HIPBLASLT_ALGO_SELECTION"), setting("TE_HIPBLASLT_TUNING_RUN_COUNT"), setting("TE_HIPBLASLT_TUNING_ALGO_COUNT")};
  return t;
}

int type_of(DType t) {
  switch (t) {
    case DType::f32: return kR32F;
    case DType::f16: return kR16F;
    case DType::bf16: return kR16BF;
    case DType::e4m3: return kE4M3;
    case DType::e5m2: return kE5M2;
    case DType::e4m3fnuz: return kE4M3Fnuz;
    default: return kE5M2Fnuz;
  }
}

struct Matrix {
  char *data;
  DType dtype;
  int64_t ld;
};
// A row-major matrix that the library can address: unit stride, rows that do not overlap.
bool addressable(const DLTensor &t, Matrix *m) {
  const RowIndex x = row_index(t);
  const int64_t n = rows(t), k = columns(t);
  if (!present(t) || !x.uniform || (n > 1 && x.stride < k)) return false;
  *m = {address_as<char>(t), dtype_of(t.dtype), n > 1 ? x.stride : k};
  return true;
}

struct Operand {
  Matrix m;
  bool k_unit;
  const float *scale;
  const DLTensor *turn;  // to be transposed into workspace, where m.data will be
  size_t turned_bytes() const { return turn ? round_up((size_t)(rows(*turn) * columns(*turn))) : 0; }
};
// The orientation to use: fp8 needs k contiguous. NULL, or why there is none.
const char *operand(const nvte_tensor &t, bool k_last, Operand *o) {
  const bool fp8 = is_fp8(dtype_of(t.data.dtype));
  const bool transposed = present(t.columnwise) && (!present(t.data) || (fp8 && !k_last));
  const DLTensor &d = transposed ? t.columnwise : t.data, &s = transposed && present(t.columnwise_scale_inv) ? t.columnwise_scale_inv : t.scale_inv;
  o->k_unit = k_last != transposed;
  o->scale = t.scaling == NVTE_SCALING_TENSOR && present(s) ? address_as<const float>(s) : nullptr;
  if (!addressable(d, &o->m)) return "an operand's rows have no stride that the library takes";
  if (!fp8 || o->k_unit) return nullptr;
  if (rows(d) % 16) return "an fp8 operand has no orientation whose k is contiguous, and k is no multiple of 16";
  o->turn = &d;
  o->k_unit = true;
  o->m.ld = rows(d);
  return nullptr;
}
nvte_status transpose(const nvte_exec &e, Operand *o, char *to) {
  if (!o->turn) return NVTE_OK;
  o->m.data = to;
  int64_t shape[2] = {columns(*o->turn), rows(*o->turn)};
  nvte_tensor x = {}, y = {};
  x.struct_size = y.struct_size = sizeof x;
  x.data = *o->turn;
  y.data = {to, o->turn->device, 2, o->turn->dtype, shape, nullptr, 0};
  nvte_transpose_args t = NVTE_TRANSPOSE_ARGS_INIT;
  t.x = &x;
  t.y = &y;
  nvte_exec plain = e;
  plain.implementation = nullptr;
  return gpu::host().call_op("transpose", &plain, &t);
}

struct Plan {
  int64_t m, n, k;
  Operand a, b;
  Matrix c, d;          // composed: the product in workspace
  const nvte_tensor *bias;
  bool composed;        // f32 product, then gpu.hip's finish
  const char *unfit;    // why the library cannot compute it at all
};
Plan plan_of(const nvte_gemm_args &g) {
  Plan p = {};
  const bool ta = g.flags & NVTE_GEMM_TRANS_A, tb = g.flags & NVTE_GEMM_TRANS_B;
  p.m = ta ? columns(g.a->data) : rows(g.a->data);
  p.k = ta ? rows(g.a->data) : columns(g.a->data);
  p.n = tb ? rows(g.b->data) : columns(g.b->data);
  if (p.m == 0 || p.n == 0 || p.k == 0) p.unfit = "a dimension is 0";
  if (!p.unfit) p.unfit = operand(*g.a, !ta, &p.a);
  if (!p.unfit) p.unfit = operand(*g.b, tb, &p.b);
  if (!p.unfit && p.m == 1 && p.n == 1) p.unfit = "one element";
  if (p.unfit) return p;
  const DType in = p.a.m.dtype, out = dtype_of(g.d->data.dtype);
  p.bias = given(g.bias) ? g.bias : nullptr;
  const bool plain = !is_fp8(out) && !present(g.d->columnwise) && !present(g.d->amax) && addressable(g.d->data, &p.d);
  const bool types = (in == out || out == DType::f32 || is_fp8(in)) && (!p.bias || dtype_of(p.bias->data.dtype) == out);
  p.composed = (g.flags & (NVTE_GEMM_GELU | NVTE_GEMM_DGELU)) || !plain || !types;
  p.c = p.d;
  if (!p.composed && g.beta != 0 && given(g.c)) p.composed = !addressable(g.c->data, &p.c) || p.c.dtype != out;
  if (!gpu::aligned(p.a.scale, kScaleAlignment) || !gpu::aligned(p.b.scale, kScaleAlignment)) p.composed = true;  // finish() reads them
  if (p.composed) p.c = p.d = {nullptr, DType::f32, p.n}, p.bias = nullptr;
  return p;
}

// Workspace that candidates may ask for; small products are not split.
size_t library_bytes(const Plan &p) { return (double)p.m * (double)p.n * (double)p.k < 0x1p26 ? size_t{1} << 20 : size_t{32} << 20; }

// ---- the library's objects for one problem ----

int alignment(const void *p) {
  int n = 256;
  while (reinterpret_cast<uintptr_t>(p) % (uintptr_t)n) n /= 2;
  return n;
}

class Product {
 public:
  Product(const Plan &p, bool fast) : f_(functions()) {
    const int compute_a = p.b.k_unit ? kOpT : kOpN, compute_b = p.a.k_unit ? kOpN : kOpT, epilogue = p.bias ? kEpilogueBias : kEpilogueDefault;
    make(f_.desc_create(&desc_, kCompute32F, kR32F));
    set(kTransA, compute_a);
    set(kTransB, compute_b);
    set(kEpilogue, epilogue);
    if (p.bias) set(kBiasType, type_of(dtype_of(p.bias->data.dtype)));
    if (is_fp8(p.a.m.dtype) && kFastAccumulate >= 0) set(kFastAccumulate, static_cast<int8_t>(fast));
    layout(0, p.b.m, p.b.k_unit ? p.k : p.n, p.b.k_unit ? p.n : p.k);
    layout(1, p.a.m, p.a.k_unit ? p.k : p.m, p.a.k_unit ? p.m : p.k);
    layout(2, p.c, p.n, p.m);
    layout(3, p.d, p.n, p.m);
    point(p);
  }
  // What differs between calls of one problem.
  void point(const Plan &p) {
    if (p.bias) set(kBiasPointer, static_cast<const void *>(address(p.bias->data)));
    if (is_fp8(p.a.m.dtype) && !p.composed) {
      if (p.b.scale) set(kScaleA, static_cast<const void *>(p.b.scale));
      if (p.a.scale) set(kScaleB, static_cast<const void *>(p.a.scale));
    }
  }
  ~Product() {
    for (void *l : layouts_)
      if (l) f_.layout_destroy(l);
    if (desc_) f_.desc_destroy(desc_);
  }
  Product(const Product &) = delete;
  Product &operator=(const Product &) = delete;
  bool ok() const { return ok_; }

  std::vector<Result> candidates(Handle handle, const Plan &p, const std::array<int, 4> &aligned) {
    std::vector<Result> all(kCandidates);
    int found = 0;
    void *preference = nullptr;
    if (f_.preference_create(&preference) != 0) return {};
    const uint64_t bytes = library_bytes(p);
    int status = f_.preference_set(preference, kMaxWorkspaceBytes, &bytes, sizeof bytes);
    for (int i = 0; i < 4 && kAlignmentA >= 0; i++) {
      const uint32_t n = (uint32_t)aligned[(size_t)i];
      status |= f_.preference_set(preference, kAlignmentA + i, &n, sizeof n);
    }
    if (status == 0) status = f_.heuristic(handle, desc_, layouts_[0], layouts_[1], layouts_[2], layouts_[3], preference, kCandidates, all.data(), &found);
    f_.preference_destroy(preference);
    all.resize(status == 0 && found > 0 ? (size_t)found : 0);
    return all;
  }
  int run(Handle handle, const Plan &p, float alpha, float beta, void *d, const void *c, const Result &r, void *workspace, hipStream_t stream) const {
    return f_.matmul(handle, desc_, &alpha, p.b.m.data, layouts_[0], p.a.m.data, layouts_[1], &beta, c, layouts_[2], d, layouts_[3], &r.algorithm,
                     workspace, library_bytes(p), stream);
  }

 private:
  template <class T> void set(int attribute, T value) { make(f_.desc_set(desc_, attribute, &value, sizeof value)); }
  void layout(int i, const Matrix &m, int64_t rows, int64_t columns) {
    if (ok_) make(f_.layout_create(&layouts_[i], type_of(m.dtype), (uint64_t)rows, (uint64_t)columns, m.ld));
  }
  void make(int status) { ok_ = ok_ && status == 0; }
  const Functions &f_;
  void *desc_ = nullptr, *layouts_[4] = {};
  bool ok_ = true;
};

// ---- what is remembered ----

struct Choice {
  std::unique_ptr<Product> call;
  std::vector<Result> candidates;
  int index = -2;  // -2: not decided yet, -1: none works
};
std::mutex g_mutex;
using gemm::Key;
std::map<std::pair<int, Key>, Choice> &choices() {  // by device
  static auto *all = new std::map<std::pair<int, Key>, Choice>;  // never destroyed: calls may come late
  return *all;
}
Handle handle_of(int device) {
  static auto *handles = new std::map<int, Handle>;
  auto at = handles->find(device);
  if (at != handles->end()) return at->second;
  Handle h = nullptr;
  if (functions().create(&h) != 0) h = nullptr;
  return (*handles)[device] = h;
}

// TE_HIPBLASLT_ALGO_LOAD and _SAVE; used under the lock.
class File {
 public:
  explicit File(Handle h) : library_(TE_GPU_NAME " " + std::to_string(functions().version(h))), save_(path("TE_HIPBLASLT_ALGO_SAVE")) {
    const std::string load = path("TE_HIPBLASLT_ALGO_LOAD");
    std::ifstream in(load);
    if (load.empty() || !in) return;
    if (const char *why = gemm::read_choices(in, library_, &known_)) say(kLogWarning, "gemm: TE_HIPBLASLT_ALGO_LOAD = %s is not used: %s", load.c_str(), why);
  }
  // The candidate chosen earlier, -1 where there is none.
  int find(const Key &k) const {
    const auto at = known_.find(k);
    return at == known_.end() ? -1 : at->second;
  }
  void add(const Key &k, int candidate) {
    if (save_.empty() || (find(k) == candidate && saved_)) return;
    known_[k] = candidate;
    saved_ = true;
    const std::string unfinished = save_ + "." + std::to_string(getpid());
    std::ofstream out(unfinished);
    gemm::write_choices(out, library_, known_);
    out.close();
    if (!out || std::rename(unfinished.c_str(), save_.c_str()) != 0) say(kLogWarning, "gemm: TE_HIPBLASLT_ALGO_SAVE = %s cannot be written", save_.c_str());
  }

 private:
  static std::string path(const char *key) {
    char text[4096] = "";
    return gpu::host().config_get(key, text, sizeof text, nullptr) == NVTE_OK ? gemm::file_name(text, getpid()) : "";
  }
  std::string library_, save_;
  gemm::Choices known_;
  bool saved_ = false;  // what was loaded is saved too, with the first choice
};
File &file(Handle h) {
  static auto *f = new File(h);
  return *f;
}

nvte_status run_own(const nvte_exec &e, const nvte_gemm_args &a, const char *why) {
  say(kLogInfo, "gemm: blaslt leaves this call to gpu: %s", why);
  return gemm::run_gpu(e, a);
}

// Parts of the workspace, in order: the library's, the f32 product or the tuning's D, finish()'s, transposed operands.
struct Space {
  size_t product, finish, turned;
  Space(const nvte_gemm_args &a, const Plan &p) : product(0), finish(round_up(gemm::finish_bytes(a))), turned(0) {
    if (p.unfit) return;
    if (p.composed || tuning().runs > 0) product = round_up((size_t)(p.m * p.d.ld * 4));
    turned = p.a.turned_bytes() + p.b.turned_bytes();
  }
  size_t bytes(const Plan &p) const { return (p.unfit ? 0 : library_bytes(p)) + product + finish + turned; }
};

}  // namespace

namespace gemm {

const char *refuse_blaslt(const nvte_exec *, const void *) { return functions().missing; }

nvte_status workspace_blaslt(const nvte_exec *, const void *args, size_t *bytes) {
  const auto &a = *static_cast<const nvte_gemm_args *>(args);
  const Plan p = plan_of(a);
  *bytes = Space(a, p).bytes(p);
  return NVTE_OK;
}

nvte_status run_blaslt(const nvte_exec *exec, const void *args) {
  const auto &a = *static_cast<const nvte_gemm_args *>(args);
  return gpu::guarded(exec, [&]() -> nvte_status {
    Plan p = plan_of(a);
    if (p.unfit) return run_own(*exec, a, p.unfit);
    const Space space(a, p);
    char *const library = static_cast<char *>(exec->workspace), *const product = library + library_bytes(p), *const rest = product + space.product;
    if (p.composed) p.d.data = p.c.data = product;
    nvte_status status = transpose(*exec, &p.a, rest + space.finish);
    if (status == NVTE_OK) status = transpose(*exec, &p.b, rest + space.finish + p.a.turned_bytes());
    if (status != NVTE_OK) return status;
    // f32 results get the most exact sums that there are; on Hopper those of FP8 operands still lose bits within a tensor-core instruction
    const bool fast = !(a.flags & NVTE_GEMM_SPLIT_ACCUMULATOR) && p.d.dtype != DType::f32;
    const float alpha = p.composed ? 1.f : a.alpha, beta = p.composed ? 0.f : a.beta;
    const void *c = beta != 0 ? p.c.data : p.d.data;
    if (beta == 0) p.c = p.d;
    const std::array<int, 4> aligned = {alignment(p.b.m.data), alignment(p.a.m.data), alignment(c), alignment(p.d.data)};
    const Key key = {p.m, p.n, p.k, p.a.m.ld, p.b.m.ld, p.c.ld, p.d.ld, (int64_t)p.a.m.dtype, (int64_t)p.b.m.dtype, (int64_t)p.d.dtype,
                     p.a.k_unit, p.b.k_unit, p.bias != nullptr, fast, p.a.scale != nullptr, p.b.scale != nullptr, p.composed,
                     aligned[0] | aligned[1] << 16, aligned[2] | aligned[3] << 16};
    const hipStream_t stream = gpu::stream_of(*exec);
    bool done = false;
    {
      std::lock_guard<std::mutex> lock(g_mutex);
      const Handle handle = handle_of(exec->device.device_id);
      if (!handle) return run_own(*exec, a, "the library made no handle");
      Choice &choice = choices()[{exec->device.device_id, key}];
      if (choice.call) choice.call->point(p);
      else choice.call = std::make_unique<Product>(p, fast);
      Product &call = *choice.call;
      if (!call.ok()) return run_own(*exec, a, "the library takes no such description");
      const auto attempt = [&](int i, void *d, float b) {
        const int status = call.run(handle, p, alpha, b, d, b != 0 ? c : d, choice.candidates[(size_t)i], library, stream);
        if (status != 0) say(kLogWarning, "gemm: candidate %d of %d failed with status %d and is skipped", i, (int)choice.candidates.size(), status);
        return status == 0;
      };
      if (choice.index == -2) {
        hipStreamCaptureStatus capture = hipStreamCaptureStatusNone;
        (void)hipStreamIsCapturing(stream, &capture);
        choice.candidates = call.candidates(handle, p, aligned);
        Tuning t = tuning();
        if (capture != hipStreamCaptureStatusNone) t.runs = 0;
        const int saved = file(handle).find(key);
        if (saved >= 0) t = {saved, 0, 1};
        const bool tuned = t.runs > 0;
        hipEvent_t from = nullptr, to = nullptr;
        if (tuned) (void)hipEventCreate(&from), (void)hipEventCreate(&to);
        // tuning runs into workspace, so that D, and C in its place, keep their numbers
        const int index = choose(
            (int)choice.candidates.size(), t, [&](int i) { return tuned ? attempt(i, product, 0.f) : attempt(i, p.d.data, beta); },
            [&](int i) {
              float ms = 0;
              (void)hipEventRecord(from, stream);
              for (int r = 0; r < t.runs; r++) (void)attempt(i, product, 0.f);
              (void)hipEventRecord(to, stream);
              (void)hipEventSynchronize(to);
              (void)hipEventElapsedTime(&ms, from, to);
              return (double)ms;
            });
        if (tuned) (void)hipEventDestroy(from), (void)hipEventDestroy(to);
        done = index >= 0 && !tuned;
        // a choice made under capture without the tuning that was asked for is for this call only
        choice.index = capture != hipStreamCaptureStatusNone && tuning().runs > 0 && saved < 0 && index >= 0 ? -2 : index;
        if (choice.index >= 0) file(handle).add(key, index);
        if (index < 0)
          say(kLogWarning, "gemm: no candidate of the library works for M = %lld, N = %lld, K = %lld", (long long)p.m, (long long)p.n, (long long)p.k);
      }
      if (!done && choice.index >= 0) done = attempt(choice.index, p.d.data, beta);
    }
    (void)hipGetLastError();
    if (!done) return run_own(*exec, a, "no candidate of the library works");
    if (p.composed) return finish(*exec, a, reinterpret_cast<const float *>(product), rest);
    return given(a.dbias) ? operand_sums(*exec, a, rest) : NVTE_OK;
  });
}

}  // namespace gemm
}  // namespace te
