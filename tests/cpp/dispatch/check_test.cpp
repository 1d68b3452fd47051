// SPDX-License-Identifier: Apache-2.0
// What the generated checks and inference say, and what admission lets in. Operators are called by name, on a registered device that
// takes everything and counts, so that nothing depends on kernels.
#include <gtest/gtest.h>

#include <cmath>

#include "../core/tensors.h"
#include "core/op.h"
#include "libte/init.h"

namespace te::test {
namespace {

int runs = 0;

// A device of type kDLExtDev whose implementations only count.
class Check : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    static std::vector<nvte_implementation> rows;
    static nvte_backend backend;
    for (size_t i = 0; i < nvte_op_count(); i++)
      rows.push_back({sizeof(nvte_implementation), nvte_op_at(i)->name, "count", 0, 0, nullptr, nullptr,
                      [](const nvte_exec *, const void *) -> nvte_status { return ++runs, NVTE_OK; }});
    backend = {sizeof backend, NVTE_ABI_VERSION, kDLExtDev, "count", rows.data(), rows.size(), nullptr, nullptr};
    ASSERT_EQ(nvte_backend_register(&backend), NVTE_OK);
  }
  static void TearDownTestSuite() { EXPECT_EQ(nvte_backend_remove("count"), NVTE_OK); }
  void SetUp() override { runs = 0; }

  template <class... T> static void move(T &...tensors) {
    for (nvte_tensor *t : {&tensors.t...})
      for (DLTensor *p : {&t->data, &t->columnwise, &t->scale_inv, &t->columnwise_scale_inv, &t->scale, &t->amax})
        p->device = {kDLExtDev, 0};
  }
  nvte_status call(const char *op, const void *args) {
    const nvte_op *o = nvte_op_find(op);
    EXPECT_NE(o, nullptr) << op;
    return o ? o->run(&exec, args) : NVTE_ERR_INTERNAL;
  }
  // A refused call runs nothing.
  void refused(const char *op, const void *args, const std::string &message) {
    const int before = runs;
    EXPECT_EQ(call(op, args), NVTE_ERR_INVALID_ARGUMENT) << message;
    EXPECT_EQ(error(), message);
    EXPECT_EQ(runs, before);
  }
  void taken(const char *op, const void *args) {
    const int before = runs;
    EXPECT_EQ(call(op, args), NVTE_OK) << error();
    EXPECT_EQ(runs, before + 1);
  }
  nvte_exec exec = {sizeof(nvte_exec), {kDLExtDev, 0}, nullptr, nullptr, 0, nullptr, 0, 0};
};

struct Norm {
  Owned x{kBF16, {3, 16}}, gamma{kBF16, {16}}, y{kBF16, {3, 16}}, rstd{kF32, {3}};
  nvte_rmsnorm_forward_args a = NVTE_RMSNORM_FORWARD_ARGS_INIT;
  Norm() {
    a.x = x;
    a.gamma = gamma;
    a.y = y;
    a.rstd = rstd;
    for (Owned *t : {&x, &gamma, &y, &rstd}) t->t.data.device = {kDLExtDev, 0};
  }
};

TEST_F(Check, ShapesNameTheRuleTheSourceAndTheValue) {
  Norm n;
  taken("rmsnorm_forward", &n.a);
  n.gamma.shape[0] = 8;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: gamma must be [H], H = x.shape[-1] = 16, got [8]");
  n.gamma.shape[0] = 16;
  n.rstd.shape[0] = 4;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: rstd must be [*], * = x.shape[:-1] = [3], got [4]");
  n.rstd.shape[0] = 3;
  n.y.t.data.ndim = 1;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: y must be [*, H], H = x.shape[-1] = 16, * = x.shape[:-1] = [3], got [3]");
}

TEST_F(Check, PresenceAndScalars) {
  Norm n;
  n.a.x = nullptr;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: x is missing (NULL)");
  n.a.x = n.x;
  n.x.t.data.data = nullptr;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: x.data is missing (NULL)");
  n.x.t.data.data = n.x.memory.data();
  n.a.gamma = nullptr;
  taken("rmsnorm_forward", &n.a);
  n.a.gamma = n.gamma;
  n.gamma.t.data.data = nullptr;  // absent the other way, whatever else it says
  n.gamma.shape[0] = 99;
  taken("rmsnorm_forward", &n.a);
  n.a.epsilon = -1;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: epsilon must be >= 0, got -1");
  n.a.epsilon = NAN;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: epsilon must be >= 0, got nan");
}

TEST_F(Check, DTypes) {
  Norm n;
  n.rstd.t.data.dtype = kBF16;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: rstd must be f32, got bf16");
  n.rstd.t.data.dtype = kF32;
  Owned residual(kF16, {3, 16});
  move(residual);
  n.a.residual = residual;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: residual must be x.dtype (= bf16), got f16");
  residual.t.data.dtype = kBF16;
  taken("rmsnorm_forward", &n.a);
}

TEST_F(Check, D03_LayoutsAndStrides) {
  Norm n;
  n.x.strides = {32, 1};  // rows may be apart
  n.x.t.data.strides = n.x.strides.data();
  taken("rmsnorm_forward", &n.a);
  n.x.strides = {0, 1};  // a stride of 0 may be read
  taken("rmsnorm_forward", &n.a);
  n.x.strides = {1, 3};
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: x must have stride 1 in its last dimension, got 3");
  n.x.strides = {-16, 1};
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: x.strides[0] must be >= 0, got -16");
  n.x.strides = {16, 1};
  n.y.strides = {32, 1};
  n.y.t.data.strides = n.y.strides.data();
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: y must be contiguous, got shape [3, 16], strides [32, 1]");
  n.y.strides = {0, 1};
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: y is written but strides[0] is 0 (3 elements in one place)");
}

TEST_F(Check, D02_StridesOfSizeOneDimensionsMeanNothing) {
  Norm n;
  n.x.shape = n.y.shape = {1, 16};
  n.rstd.shape = {1};
  n.x.strides = {77, 1};
  n.y.strides = {0, 1};
  n.x.t.data.strides = n.x.strides.data();
  n.y.t.data.strides = n.y.strides.data();
  taken("rmsnorm_forward", &n.a);
}

TEST_F(Check, OverlappingOutputsAreRefused) {
  Owned a(kF32, {4, 8}), b(kF32, {8, 8}), d(kF32, {4, 8}, {7, 1});
  move(a, b, d);
  nvte_gemm_args g = NVTE_GEMM_ARGS_INIT;
  g.a = a;
  g.b = b;
  g.d = d;
  refused("gemm", &g, "nvte_gemm: d is written but its elements overlap: shape [4, 8], strides [7, 1]");
  d.strides[0] = 8;
  taken("gemm", &g);
  d.strides[0] = 1000;
  taken("gemm", &g);
}

TEST_F(Check, D04_EmptyTensorsNeedNoMemoryAndAlignmentIsTheElements) {
  Norm n;
  n.x.shape[0] = n.y.shape[0] = n.rstd.shape[0] = 0;
  n.x.t.data.data = n.y.t.data.data = n.rstd.t.data.data = nullptr;
  taken("rmsnorm_forward", &n.a);
  Norm m;
  m.x.t.data.byte_offset = 4;  // not 64
  taken("rmsnorm_forward", &m.a);
  m.x.t.data.byte_offset = 3;
  EXPECT_EQ(call("rmsnorm_forward", &m.a), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_NE(error().find("x must be aligned to its element size of 2 bytes"), std::string::npos) << error();
}

TEST_F(Check, D07_ReadOnlyOutputsAndUnknownFlags) {
  Norm n;
  n.x.t.flags = NVTE_TENSOR_READ_ONLY;
  taken("rmsnorm_forward", &n.a);
  n.y.t.flags = NVTE_TENSOR_READ_ONLY;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: y is written but flagged NVTE_TENSOR_READ_ONLY");
  n.y.t.flags = 0x100;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: y.flags has bits that this version does not know: 0x100");
}

TEST_F(Check, RanksExtentsAndOverflow) {
  Norm n;
  n.x.t.data.ndim = 9;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: x: ndim must be 0..8, got 9");
  n.x.t.data.ndim = -1;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: x: ndim must be 0..8, got -1");
  n.x.t.data.ndim = 2;
  n.x.shape[0] = -3;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: x.shape[0] must be >= 0, got -3");
  n.x.shape[0] = (int64_t)1 << 60;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: x: the number of bytes overflows 64 bits");
  n.x.t.data.shape = nullptr;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: x: shape is NULL but ndim is 2");
}

TEST_F(Check, Devices) {
  Norm n;
  n.gamma.t.data.device = {kDLCPU, 0};
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: gamma must be on the device of exec (ext_dev:0), is on cpu:0");
  n.gamma.t.data.device = {kDLExtDev, 1};
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: gamma must be on the device of exec (ext_dev:0), is on ext_dev:1");
}

struct Quantize {
  Owned x{kBF16, {2, 3, 8}}, y{kE4M3, {2, 3, 8}}, scale_inv{kF32, {1}}, scale{kF32, {}}, amax{kF32, {1}}, column{kE4M3, {8, 6}};
  nvte_quantize_args a = NVTE_QUANTIZE_ARGS_INIT;
  Quantize() {
    y.t.scaling = NVTE_SCALING_TENSOR;
    y.t.scale_inv = scale_inv.t.data;
    a.x = x;
    a.y = y;
    for (Owned *t : {&x, &y, &scale_inv, &scale, &amax, &column}) t->t.data.device = {kDLExtDev, 0};
    y.t.scale_inv.device = {kDLExtDev, 0};
  }
};

TEST_F(Check, QuantizedOutputs) {
  Quantize q;
  taken("quantize", &q.a);
  q.y.t.scale = q.scale.t.data;  // rank 0 counts as [1]
  q.y.t.amax = q.amax.t.data;
  q.y.t.columnwise = q.column.t.data;
  taken("quantize", &q.a);
  q.y.t.data.data = nullptr;  // column-wise only
  taken("quantize", &q.a);
  q.y.t.scale_inv.data = nullptr;
  refused("quantize", &q.a, "nvte_quantize: y.scale_inv is missing (f32 [1]): scaling is NVTE_SCALING_TENSOR");
  q.y.t.columnwise_scale_inv = q.scale_inv.t.data;
  taken("quantize", &q.a);
  q.y.t.columnwise.data = nullptr;
  refused("quantize", &q.a, "nvte_quantize: y.data is missing (NULL)");
}

TEST_F(Check, QuantizedParts) {
  Quantize q;
  q.y.t.scaling = NVTE_SCALING_NONE;
  refused("quantize", &q.a, "nvte_quantize: y is e4m3, its scaling must be NVTE_SCALING_TENSOR");
  q.y.t.scaling = 5;
  refused("quantize", &q.a, "nvte_quantize: y.scaling must be NVTE_SCALING_NONE (0) or NVTE_SCALING_TENSOR (1), got 5");
  q.y.t.scaling = NVTE_SCALING_TENSOR;
  q.y.t.data.dtype = kBF16;
  refused("quantize", &q.a, "nvte_quantize: y is bf16, its scaling must be NVTE_SCALING_NONE");
  q.y.t.scaling = NVTE_SCALING_NONE;
  refused("quantize", &q.a, "nvte_quantize: y.scale_inv must be absent: scaling is NVTE_SCALING_NONE");
  Quantize r;
  r.y.t.scale_inv.dtype = kBF16;
  refused("quantize", &r.a, "nvte_quantize: y.scale_inv must be f32, got bf16");
  r.y.t.scale_inv.dtype = kF32;
  r.scale_inv.shape[0] = 2;
  refused("quantize", &r.a, "nvte_quantize: y.scale_inv must be [1], got [2]");
  r.scale_inv.shape[0] = 1;
  r.y.t.scale_inv.device = {kDLCPU, 0};
  refused("quantize", &r.a, "nvte_quantize: y.scale_inv must be on the device of exec (ext_dev:0), is on cpu:0");
  Quantize s;
  s.y.t.columnwise = s.column.t.data;
  s.column.shape = {6, 8};
  refused("quantize", &s.a, "nvte_quantize: y.columnwise must be [K, M] = [8, 6], got [6, 8]");
  s.column.shape = {8, 6};
  s.y.t.columnwise.dtype = {kDLFloat8_e5m2, 8, 1};
  refused("quantize", &s.a, "nvte_quantize: y.columnwise must have the dtype of data, e4m3, got e5m2");
}

TEST_F(Check, PlainOutputsTakeNoScalingParts) {
  Norm n;
  Owned amax(kF32, {1});
  move(amax);
  n.rstd.t.amax = amax.t.data;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: rstd.amax must be absent: this operator does not write it");
  n.rstd.t.amax.data = nullptr;
  n.x.t.scaling = NVTE_SCALING_TENSOR;
  refused("rmsnorm_forward", &n.a, "nvte_rmsnorm_forward: x takes plain numbers, its scaling must be NVTE_SCALING_NONE");
}

TEST_F(Check, ExpressionsInDims) {
  Owned x(kF32, {5, 8}), y(kF32, {5, 4});
  move(x, y);
  nvte_gated_activation_forward_args a = NVTE_GATED_ACTIVATION_FORWARD_ARGS_INIT;
  a.x = x;
  a.y = y;
  taken("gated_activation_forward", &a);
  y.shape[1] = 3;
  refused("gated_activation_forward", &a, "nvte_gated_activation_forward: x must be [*, 2*H], H = y.shape[-1] = 3, * = x.shape[:-1] = [5], got [5, 8]");
  Owned mask(kU8, {5}), dy(kF32, {3, 11}), dx(kF32, {3, 11});
  move(mask, dy, dx);
  nvte_dropout_backward_args d = NVTE_DROPOUT_BACKWARD_ARGS_INIT;
  d.dy = dy;
  d.mask = mask;
  d.dx = dx;
  taken("dropout_backward", &d);  // ceil(33 / 8)
  mask.shape[0] = 4;
  refused("dropout_backward", &d, "nvte_dropout_backward: mask must be [ceil(prod(*)/8)], got [4]");
}

struct Lists {
  Owned h0{kF32, {4, 3}}, h1{kF32, {4, 1}}, s0{kF32, {3}}, s1{kF32, {1}};
  const nvte_tensor *history[2] = {h0, h1}, *scale[2] = {s0, s1};
  nvte_tensor *new_history[2] = {h0, h1}, *new_scale[2] = {s0, s1};
  nvte_amax_and_scale_update_args a = NVTE_AMAX_AND_SCALE_UPDATE_ARGS_INIT;
  Lists() {
    a.history = history;
    a.scale = scale;
    a.new_history = new_history;
    a.new_scale = new_scale;
    a.n = 2;
    a.dtype = kE4M3;
    for (Owned *t : {&h0, &h1, &s0, &s1}) t->t.data.device = {kDLExtDev, 0};
  }
};

TEST_F(Check, ListsBindTheirNamesPerEntry) {
  Lists l;
  taken("amax_and_scale_update", &l.a);
  l.s1.shape[0] = 2;
  refused("amax_and_scale_update", &l.a, "nvte_amax_and_scale_update: scale[1] must be [k], k = history[1].shape[1] = 1, got [2]");
  l.s1.shape[0] = 1;
  l.new_scale[0] = nullptr;
  refused("amax_and_scale_update", &l.a, "nvte_amax_and_scale_update: new_scale[0] is missing (NULL)");
  l.new_scale[0] = l.s0;
  l.a.scale = nullptr;
  refused("amax_and_scale_update", &l.a, "nvte_amax_and_scale_update: scale is missing (NULL), 2 entries are counted");
  l.a.n = 0;
  taken("amax_and_scale_update", &l.a);
}

// ---- admission ----

TEST_F(Check, NullArgsAndBadExec) {
  refused("quantize", nullptr, "nvte_quantize: args is NULL");
  Quantize q;
  exec.flags = 8;
  refused("quantize", &q.a, "nvte_quantize: exec.flags has bits that this version does not know: 0x8");
  exec.flags = 0;
  exec.device.device_type = (DLDeviceType)0;
  refused("quantize", &q.a, "nvte_quantize: exec.device.device_type must be a DLPack device type, got 0");
  exec.device.device_type = kDLExtDev;
  exec.workspace_size = 4;
  refused("quantize", &q.a, "nvte_quantize: exec.workspace is NULL but workspace_size is 4");
}

TEST_F(Check, I02_OlderCallersAreZeroExtended) {
  Quantize q;
  q.a.struct_size = offsetof(nvte_quantize_args, noop);  // a version that ended after y
  q.a.noop = reinterpret_cast<const nvte_tensor *>(16);  // whatever lies behind is not read
  q.a.dbias = reinterpret_cast<nvte_tensor *>(16);
  taken("quantize", &q.a);
  q.a.struct_size = offsetof(nvte_quantize_args, y);
  refused("quantize", &q.a, "nvte_quantize: y is missing (NULL)");
}

TEST_F(Check, I02_NewerCallersNeedAZeroTail) {
  struct Newer {
    nvte_quantize_args a;
    uint64_t more[2];
  } n = {};
  Quantize q;
  n.a = q.a;
  n.a.struct_size = sizeof n;
  taken("quantize", &n);
  n.more[1] = 1;
  EXPECT_EQ(call("quantize", &n), NVTE_ERR_VERSION);
  EXPECT_EQ(error(), "nvte_quantize: args is of a newer version (struct_size 56, this build knows 40) and byte 48 is not zero");
}

TEST_F(Check, I02_ForeignSizesAreRefused) {
  Quantize q;
  for (size_t size : {(size_t)0, (size_t)7, (size_t)8, (size_t)35, (size_t)100000, ~(size_t)0}) {
    q.a.struct_size = size;
    EXPECT_EQ(call("quantize", &q.a), NVTE_ERR_VERSION) << size;
    EXPECT_EQ(error(), "nvte_quantize: args.struct_size is " + std::to_string(size) + ", expected sizeof = 40");
  }
  q.a.struct_size = sizeof q.a;
  q.x.t.struct_size = 0;
  EXPECT_EQ(call("quantize", &q.a), NVTE_ERR_VERSION);
  EXPECT_EQ(error(), "nvte_quantize: x.struct_size is 0, expected sizeof = " + std::to_string(sizeof(nvte_tensor)));
}

TEST_F(Check, I02_OlderTensorsAndLists) {
  Norm n;
  for (Owned *t : {&n.x, &n.y}) {  // a version with data only
    t->t.struct_size = offsetof(nvte_tensor, columnwise);
    t->t.scaling = 77;
    t->t.flags = ~0u;
    t->t.amax.data = t;
  }
  taken("rmsnorm_forward", &n.a);
  Lists l;
  l.h1.t.struct_size = offsetof(nvte_tensor, columnwise);
  l.h1.t.flags = ~0u;
  taken("amax_and_scale_update", &l.a);
  l.s1.shape[0] = 2;
  refused("amax_and_scale_update", &l.a, "nvte_amax_and_scale_update: scale[1] must be [k], k = history[1].shape[1] = 1, got [2]");
}

// ---- inference ----

struct Slot {  // an output with room for a shape
  int64_t shape[NVTE_MAX_DIMS], more[5][NVTE_MAX_DIMS];
  nvte_tensor t = NVTE_TENSOR_INIT;
  Slot() { t.data.shape = shape; }
  std::vector<int64_t> got() const { return {t.data.shape, t.data.shape + t.data.ndim}; }
};
bool same(DLDataType a, DLDataType b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

TEST_F(Check, InferFillsShapesAndTypes) {
  Norm n;
  Slot y, rstd;
  n.x.t.data.data = nullptr;  // no data is needed
  n.a.y = &y.t;
  n.a.rstd = &rstd.t;
  ASSERT_EQ(nvte_infer("rmsnorm_forward", &n.a), NVTE_OK) << error();
  EXPECT_EQ(y.got(), (std::vector<int64_t>{3, 16}));
  EXPECT_TRUE(same(y.t.data.dtype, kBF16));
  EXPECT_EQ(rstd.got(), (std::vector<int64_t>{3}));
  EXPECT_TRUE(same(rstd.t.data.dtype, kF32));
  Slot f;
  f.t.data.dtype = kF16;  // kept
  n.a.y = &f.t;
  n.a.rstd = nullptr;
  ASSERT_EQ(nvte_infer("rmsnorm_forward", &n.a), NVTE_OK) << error();
  EXPECT_TRUE(same(f.t.data.dtype, kF16));
  f.t.data.dtype = kI64;
  EXPECT_EQ(nvte_infer("rmsnorm_forward", &n.a), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_NE(error().find("nvte_infer: rmsnorm_forward: y must be x.dtype|"), std::string::npos) << error();
  n.a.y = nullptr;
  EXPECT_EQ(nvte_infer("rmsnorm_forward", &n.a), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(error(), "nvte_infer: rmsnorm_forward: y is missing");
}

TEST_F(Check, InferFillsTheOtherParts) {
  Quantize q;
  Slot y;
  y.t.columnwise.shape = y.more[0];
  y.t.scale_inv.shape = y.more[1];
  y.t.amax.shape = y.more[2];
  q.a.y = &y.t;
  ASSERT_EQ(nvte_infer("quantize", &q.a), NVTE_OK) << error();
  EXPECT_EQ(y.got(), (std::vector<int64_t>{2, 3, 8}));
  EXPECT_TRUE(same(y.t.data.dtype, kE4M3));
  ASSERT_EQ(y.t.columnwise.ndim, 2);
  EXPECT_EQ(y.more[0][0], 8);
  EXPECT_EQ(y.more[0][1], 6);
  EXPECT_TRUE(same(y.t.columnwise.dtype, kE4M3));
  EXPECT_EQ(y.t.scale_inv.ndim, 1);
  EXPECT_EQ(y.more[1][0], 1);
  EXPECT_TRUE(same(y.t.amax.dtype, kF32));
  EXPECT_EQ(y.t.scale.ndim, 0);
}

TEST_F(Check, InferSolvesAndComputes) {
  Owned x(kF16, {2, 5, 6});
  Slot y;
  nvte_gated_activation_forward_args a = NVTE_GATED_ACTIVATION_FORWARD_ARGS_INIT;
  a.x = x;
  a.y = &y.t;
  ASSERT_EQ(nvte_infer("gated_activation_forward", &a), NVTE_OK) << error();
  EXPECT_EQ(y.got(), (std::vector<int64_t>{2, 5, 3}));
  EXPECT_TRUE(same(y.t.data.dtype, kF16));
  x.shape[2] = 7;
  EXPECT_EQ(nvte_infer("gated_activation_forward", &a), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(error(), "nvte_infer: gated_activation_forward: x must be [*, 2*H], but shape[-1] = 7 is no multiple of 2");

  Slot t;
  nvte_transpose_args tr = NVTE_TRANSPOSE_ARGS_INIT;
  tr.x = x;
  tr.y = &t.t;
  ASSERT_EQ(nvte_infer("transpose", &tr), NVTE_OK) << error();
  EXPECT_EQ(t.got(), (std::vector<int64_t>{7, 10}));

  Owned rng(kI64, {2});
  Slot d, mask;
  nvte_dropout_forward_args dr = NVTE_DROPOUT_FORWARD_ARGS_INIT;
  dr.x = x;
  dr.rng_state = rng;
  dr.y = &d.t;
  dr.mask = &mask.t;
  ASSERT_EQ(nvte_infer("dropout_forward", &dr), NVTE_OK) << error();
  EXPECT_EQ(mask.got(), (std::vector<int64_t>{9}));  // ceil(70 / 8)
}

TEST_F(Check, InferWritesThroughShorterTensors) {
  Norm n;
  Slot y;
  y.t.struct_size = offsetof(nvte_tensor, columnwise);
  n.a.y = &y.t;
  ASSERT_EQ(nvte_infer("rmsnorm_forward", &n.a), NVTE_OK) << error();
  EXPECT_EQ(y.got(), (std::vector<int64_t>{3, 16}));
  EXPECT_EQ(y.t.struct_size, offsetof(nvte_tensor, columnwise));
}

TEST_F(Check, InferOfEveryOperatorSurvivesEmptyArgs) {  // no crash on zeroed args
  for (size_t i = 0; i < nvte_op_count(); i++) {
    const nvte_op *op = nvte_op_at(i);
    std::vector<uint64_t> args(op->args_size / 8 + 1);
    args[0] = op->args_size;
    const nvte_status s = nvte_infer(op->name, args.data());
    bool required = false;  // an operator may have none: lists of no entries, or every tensor optional
    for (size_t k = 0; k < op->n_fields; k++)
      required |= op->fields[k].kind == NVTE_FIELD_TENSOR && !(op->fields[k].flags & NVTE_FIELD_OPTIONAL);
    EXPECT_EQ(s, required ? NVTE_ERR_INVALID_ARGUMENT : NVTE_OK) << op->name;
    EXPECT_NE(nvte_infer(op->name, nullptr), NVTE_OK);
    EXPECT_NE(op->run(nullptr, nullptr), NVTE_OK);
  }
  EXPECT_EQ(nvte_infer("no_such", nullptr), NVTE_ERR_NOT_FOUND);
  EXPECT_EQ(nvte_infer(nullptr, nullptr), NVTE_ERR_INVALID_ARGUMENT);
}

TEST_F(Check, ReflectionDescribesTheStructs) {
  const nvte_op *op = nvte_op_find("rmsnorm_forward");
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(op->args_size, sizeof(nvte_rmsnorm_forward_args));
  EXPECT_NE(std::string(op->help).find("Root-mean-square"), std::string::npos);
  ASSERT_EQ(op->n_fields, 8u);
  const nvte_field &y = op->fields[3], &eps = op->fields[6];
  EXPECT_STREQ(y.name, "y");
  EXPECT_EQ(y.flags, NVTE_FIELD_OUT | NVTE_FIELD_QUANTIZED);
  EXPECT_STREQ(y.dims, "[*, H]");
  EXPECT_EQ(y.offset, offsetof(nvte_rmsnorm_forward_args, y));
  EXPECT_STREQ(eps.name, "epsilon");
  EXPECT_EQ(eps.kind, NVTE_FIELD_F32);
  EXPECT_EQ((float)eps.default_value, 1e-5f);
  const nvte_op *list = nvte_op_find("amax_and_scale_update");
  ASSERT_NE(list, nullptr);
  EXPECT_EQ(list->fields[0].count, offsetof(nvte_amax_and_scale_update_args, n));
  EXPECT_EQ(nvte_op_at(nvte_op_count()), nullptr);
  EXPECT_EQ(nvte_op_find("nothing"), nullptr);
  EXPECT_EQ(nvte_op_find(nullptr), nullptr);
}

}  // namespace
}  // namespace te::test
