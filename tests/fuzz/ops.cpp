// SPDX-License-Identifier: Apache-2.0
// Operator arguments: structs built by reflection, then bent (shapes, strides, dtypes, missing tensors, sizes, scalars). The library
// may answer with any status but must not crash, hang, or write outside the memory it was given. Tensors live in one arena with guards;
// a tensor whose extent does not fit gets no data, and is then only asked about.
#include <cmath>
#include <cstdlib>
#include <deque>
#include <vector>

#include "arguments.h"
#include "libte/libte.h"

namespace te::fuzz {
namespace {

constexpr size_t kArena = 1 << 20, kGuard = 4096;
struct Arena {
  uint8_t *base = (uint8_t *)aligned_alloc(256, kArena + 2 * kGuard);
  Arena() {
    for (size_t i = 0; i < kArena + 2 * kGuard; i++) base[i] = (uint8_t)(i * 7);
    reset();
  }
  void reset() {
    memset(base, 0xc3, kGuard);
    memset(base + kGuard + kArena, 0xc3, kGuard);
  }
  bool whole() const {
    for (size_t i = 0; i < kGuard; i++)
      if (base[i] != 0xc3 || base[kGuard + kArena + i] != 0xc3) return false;
    return true;
  }
};

DLDataType some_dtype(Bytes &in) {
  static const DLDataType known[] = {{kDLFloat, 32, 1}, {kDLFloat, 16, 1}, {kDLBfloat, 16, 1}, {kDLFloat8_e4m3fn, 8, 1}, {kDLFloat8_e5m2, 8, 1},
                                     {kDLInt, 32, 1},   {kDLInt, 64, 1},   {kDLUInt, 8, 1},    {kDLBool, 8, 1},          {kDLFloat8_e4m3fnuz, 8, 1}};
  if (in.one_in(40)) return {in.byte(), in.byte(), in.take<uint16_t>()};
  return known[in.below(10)];
}
// The first dtype that the schema names, most of the time.
DLDataType fitting_dtype(Bytes &in, const nvte_field &f, DLDataType main) {
  if (in.one_in(8)) return some_dtype(in);
  const char *d = f.dtypes;
  if (strstr(d, ".dtype") || !strncmp(d, "any", 3)) return main;
  if (!strncmp(d, "i64", 3)) return {kDLInt, 64, 1};
  if (!strncmp(d, "i32", 3)) return {kDLInt, 32, 1};
  if (!strncmp(d, "u8", 2)) return {kDLUInt, 8, 1};
  if (!strncmp(d, "bool", 4)) return {kDLBool, 8, 1};
  if (!strncmp(d, "e4m3", 4)) return {kDLFloat8_e4m3fn, 8, 1};
  return {kDLFloat, 32, 1};
}

// Storage of everything a call points at.
struct Store {
  std::deque<nvte_tensor> tensors;
  std::deque<std::vector<int64_t>> shapes;
  std::deque<std::vector<nvte_tensor *>> lists;
};

// A small vocabulary of sizes per input, so that dimensions agree often enough to get past the checks.
struct Sizes {
  int64_t dims[4];
};

void part(Bytes &in, Store &store, Arena &arena, const Sizes &sizes, const nvte_field *f, DLDataType dtype, DLTensor &t) {
  int rank = f && f->dims[0] == '[' ? 1 : 0;
  for (const char *c = f ? f->dims : ""; *c; c++) rank += *c == ',';
  if (f && strstr(f->dims, "...")) rank = 1 + (int)in.below(4);
  if (in.one_in(12)) rank = (int)in.below(NVTE_MAX_DIMS + 1);
  store.shapes.emplace_back((size_t)NVTE_MAX_DIMS);  // nvte_infer may write that many
  std::vector<int64_t> &shape = store.shapes.back();
  for (int i = 0; i < rank; i++) shape[(size_t)i] = in.one_in(12) ? in.below(9) : sizes.dims[(rank - 1 - i) % 4];
  if (in.one_in(60) && rank) shape[in.below((uint32_t)rank)] = in.one_in(2) ? -1 : 1ll << (20 + in.below(43));
  t.device = {in.one_in(60) ? (DLDeviceType)in.below(16) : kDLCPU, 0};
  t.ndim = in.one_in(100) ? (int32_t)in.below(40) - 10 : rank;
  if (t.ndim > rank) t.ndim = rank;
  t.dtype = dtype;
  t.shape = shape.data();
  if (in.one_in(5)) {
    store.shapes.emplace_back((size_t)rank);
    std::vector<int64_t> &s = store.shapes.back();
    int64_t n = 1;
    for (size_t i = s.size(); i-- > 0;) {
      s[i] = in.one_in(8) ? (int64_t)in.below(40) - 2 : n;
      if (__builtin_mul_overflow(n, shape[i] > 0 ? shape[i] : 1, &n)) n = 1;
      n += in.one_in(4) ? in.below(4) : 0;
    }
    t.strides = s.data();
  }
  // extent in elements, in wide arithmetic
  __int128 extent = 1, compact = 1;
  for (int i = 0; i < t.ndim; i++) {
    const __int128 n = shape[(size_t)i];
    compact *= n > 0 ? n : 1;
    if (t.strides && n > 0) extent += (n - 1) * (t.strides[i] > 0 ? t.strides[i] : 0);
    if (compact > (__int128)1 << 60) compact = (__int128)1 << 60;
  }
  const __int128 bytes = (extent > compact ? extent : compact) * ((t.dtype.bits * t.dtype.lanes + 7) / 8);
  const size_t offset = (size_t)in.below(4000) * 8 * (in.one_in(4) ? 1 : 16);
  t.byte_offset = in.one_in(8) ? in.below(16) : 0;
  const bool fits = bytes + (__int128)t.byte_offset + (__int128)offset < (__int128)kArena;
  t.data = fits && !in.one_in(25) ? arena.base + kGuard + offset : nullptr;
}

nvte_tensor *tensor(Bytes &in, Store &store, Arena &arena, const Sizes &sizes, const nvte_field &f, DLDataType main) {
  store.tensors.emplace_back();
  nvte_tensor &t = store.tensors.back();
  t.struct_size = in.one_in(60) ? in.below(700) : sizeof t;
  const DLDataType dtype = fitting_dtype(in, f, main);
  part(in, store, arena, sizes, &f, dtype, t.data);
  const bool fp8 = dtype.bits == 8 && dtype.code >= kDLFloat8_e3m4;
  t.scaling = in.one_in(30) ? (int32_t)in.below(5) - 1 : fp8 ? NVTE_SCALING_TENSOR : NVTE_SCALING_NONE;
  static const nvte_field one = {"", 0, 0, 0, 0, 0, 0, "[1]", "f32", 0, ""};
  const DLDataType f32 = {kDLFloat, 32, 1};
  const Sizes ones = {{1, 1, 1, 1}};
  if (fp8 && !in.one_in(20)) part(in, store, arena, ones, &one, f32, t.scale_inv);
  if (fp8 && in.one_in(2)) part(in, store, arena, ones, &one, f32, t.scale);
  if (in.one_in(6)) part(in, store, arena, ones, &one, f32, t.amax);
  if (in.one_in(10)) part(in, store, arena, sizes, &f, dtype, t.columnwise);
  if (in.one_in(30)) t.flags = in.below(8);
  return &t;
}

}  // namespace

int run(const uint8_t *data, size_t size) {
  static Arena arena;
  Bytes in(data, size);
  while (!in.empty()) {
    const nvte_op &op = *nvte_op_at(in.below((uint32_t)nvte_op_count()));
    Store store;
    Sizes sizes;
    for (int64_t &d : sizes.dims) d = in.one_in(15) ? 0 : 1 + in.below(20);
    const DLDataType mains[] = {{kDLFloat, 32, 1}, {kDLFloat, 16, 1}, {kDLBfloat, 16, 1}};
    const DLDataType main = mains[in.below(3)];
    std::vector<uint8_t> args(op.args_size + 64, 0);
    size_t declared = op.args_size;
    if (in.one_in(50)) declared = in.below((uint32_t)op.args_size + 64);
    memcpy(args.data(), &declared, sizeof declared);
    for (size_t i = 0; i < op.n_fields; i++) {
      const nvte_field &f = op.fields[i];
      uint8_t *at = args.data() + f.offset;
      if (f.kind == NVTE_FIELD_TENSOR) {
        if (f.flags & NVTE_FIELD_OPTIONAL ? in.one_in(2) : in.one_in(80)) continue;
        nvte_tensor *t = tensor(in, store, arena, sizes, f, main);
        memcpy(at, &t, sizeof t);
      } else if (f.kind == NVTE_FIELD_TENSOR_LIST) {
        store.lists.emplace_back();
        for (int k = 0; k < 3; k++) store.lists.back().push_back(in.one_in(60) ? nullptr : tensor(in, store, arena, sizes, f, main));
        nvte_tensor *const *list = in.one_in(60) ? nullptr : store.lists.back().data();
        memcpy(at, &list, sizeof list);
      } else if (f.kind == NVTE_FIELD_F32) {
        const float odd[] = {0, -1, 1, NAN, INFINITY, 1e-38f, 0.5f, 3e38f};
        const float v = in.one_in(3) ? odd[in.below(8)] : (float)f.default_value;
        memcpy(at, &v, 4);
      } else if (f.kind == NVTE_FIELD_DTYPE) {
        const DLDataType t = some_dtype(in);
        memcpy(at, &t, sizeof t);
      } else if (f.kind == NVTE_FIELD_SIZE) {
        const size_t v = in.below(4);  // counts of lists of three
        memcpy(at, &v, f.size);
      } else {
        const int64_t odd[] = {0, 1, 2, -1, 3, INT32_MAX, INT32_MIN, 255};
        const int64_t v = in.one_in(4) ? odd[in.below(8)] : (int64_t)f.default_value;
        memcpy(at, &v, f.size);
      }
    }
    // list counts above three would point past the array: that is the caller's memory, not the library's to check
    nvte_exec exec = {};
    exec.struct_size = in.one_in(60) ? in.below(200) : sizeof exec;
    exec.device = {in.one_in(40) ? (DLDeviceType)in.below(16) : kDLCPU, (int32_t)in.below(2) * (int32_t)in.one_in(20)};
    exec.implementation = in.one_in(10) ? "cpu" : in.one_in(20) ? "nobody" : nullptr;
    exec.flags = in.one_in(20) ? in.below(4) : 0;
    exec.workspace = arena.base + kGuard;
    exec.workspace_size = in.one_in(8) ? in.below(4096) : kArena;
    const nvte_exec *e = in.one_in(20) ? nullptr : &exec;
    size_t bytes = 0;
    char text[256];
    (void)nvte_workspace(op.name, e, args.data(), &bytes);
    (void)nvte_explain(op.name, e, args.data(), text, sizeof text);
    const nvte_status status = op.run(in.one_in(200) ? nullptr : e, args.data());
    if (status < 0 || status == NVTE_ERR_INTERNAL) abort();  // never a fault of ours, whatever the input
    if (status != NVTE_OK && !*nvte_last_error()) abort();
    if (!arena.whole()) abort();
    const nvte_status inferred = nvte_infer(op.name, args.data());
    if (inferred < 0 || inferred == NVTE_ERR_INTERNAL) abort();
  }
  return 0;
}

}  // namespace te::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return te::fuzz::run(data, size); }
