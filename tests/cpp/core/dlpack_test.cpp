// SPDX-License-Identifier: Apache-2.0
// bugs.md section D as far as C reaches.
#include <gtest/gtest.h>

#include "core/tensor.h"
#include "tensors.h"

namespace te::test {
namespace {

struct Managed {
  std::vector<int64_t> shape, strides;
  float data[64] = {};
  DLManagedTensorVersioned m = {};
  int deleted = 0;
  Managed(std::vector<int64_t> s, std::vector<int64_t> st = {}, DLDataType dtype = kF32) : shape(std::move(s)), strides(std::move(st)) {
    m.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    m.manager_ctx = this;
    m.deleter = [](DLManagedTensorVersioned *x) { ++static_cast<Managed *>(x->manager_ctx)->deleted; };
    m.dl_tensor = Owned::part(dtype, shape, data);
    if (!strides.empty()) m.dl_tensor.strides = strides.data();
  }
};

nvte_tensor fresh() {
  nvte_tensor t = {};
  t.struct_size = sizeof t;
  t.scaling = 17;  // to see that nothing, or everything, is written
  return t;
}

TEST(DLPack, ImportKeepsEverything) {
  Managed m({4, 3}, {1, 4});
  m.m.dl_tensor.byte_offset = 8;
  nvte_tensor t = fresh();
  ASSERT_EQ(nvte_tensor_from_dlpack_versioned(&m.m, &t), NVTE_OK) << error();
  EXPECT_EQ(t.data.data, (void *)m.data);
  EXPECT_EQ(t.data.byte_offset, 8u);
  EXPECT_EQ(t.data.strides[1], 4);
  EXPECT_EQ(t.scaling, NVTE_SCALING_NONE);
  EXPECT_EQ(t.flags, 0u);
  EXPECT_EQ(t.amax.data, nullptr);
  EXPECT_EQ(m.deleted, 0);
}

TEST(DLPack, D03_StridesNullNegativeZero) {
  nvte_tensor t = fresh();
  Managed null({4, 3}), negative({4}, {-1}), zero({4}, {0});
  EXPECT_EQ(nvte_tensor_from_dlpack_versioned(&null.m, &t), NVTE_OK);
  EXPECT_TRUE(is_contiguous(t.data));
  t = fresh();
  EXPECT_EQ(nvte_tensor_from_dlpack_versioned(&negative.m, &t), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(error(), "nvte_tensor_from_dlpack_versioned: strides[0] must be >= 0, got -1");
  EXPECT_EQ(t.scaling, 17) << "nothing is written";
  EXPECT_EQ(nvte_tensor_from_dlpack_versioned(&zero.m, &t), NVTE_OK);
}

TEST(DLPack, D02_StridesOfSizeOneDimensionsMeanNothing) {
  nvte_tensor t = fresh();
  Managed a({1, 5}, {77, 1}), b({1, 1}, {5, 3});
  EXPECT_EQ(nvte_tensor_from_dlpack_versioned(&a.m, &t), NVTE_OK);
  EXPECT_TRUE(is_contiguous(t.data));
  EXPECT_EQ(nvte_tensor_from_dlpack_versioned(&b.m, &t), NVTE_OK);
  EXPECT_TRUE(is_contiguous(t.data));
}

TEST(DLPack, D04_EmptyTensorsMayHaveNoMemory) {
  nvte_tensor t = fresh();
  Managed empty({0, 3}), full({2, 3});
  empty.m.dl_tensor.data = full.m.dl_tensor.data = nullptr;
  EXPECT_EQ(nvte_tensor_from_dlpack_versioned(&empty.m, &t), NVTE_OK);
  EXPECT_EQ(nvte_tensor_from_dlpack_versioned(&full.m, &t), NVTE_ERR_INVALID_ARGUMENT);
}

TEST(DLPack, D05_AnUnconsumedImportCallsTheDeleterOnce) {
  Managed m({2});
  nvte_dlpack_release_versioned(&m.m);
  EXPECT_EQ(m.deleted, 1);
  m.m.deleter = nullptr;
  nvte_dlpack_release_versioned(&m.m);
  nvte_dlpack_release_versioned(nullptr);
  nvte_dlpack_release(nullptr);
  EXPECT_EQ(m.deleted, 1);
}

TEST(DLPack, D06_AForeignMajorVersionIsRefusedUnread) {
  Managed m({2});
  m.m.version.major = 99;
  m.m.dl_tensor.shape = reinterpret_cast<int64_t *>(8);  // reading it would crash
  m.m.dl_tensor.strides = reinterpret_cast<int64_t *>(8);
  nvte_tensor t = fresh();
  EXPECT_EQ(nvte_tensor_from_dlpack_versioned(&m.m, &t), NVTE_ERR_VERSION);
  EXPECT_EQ(error(), "nvte_tensor_from_dlpack_versioned: the tensor is DLPack 99.3, this build speaks major version 1");
  EXPECT_EQ(t.scaling, 17);
  nvte_dlpack_release_versioned(&m.m);
  EXPECT_EQ(m.deleted, 1);
}

TEST(DLPack, D07_ReadOnlyIsKept) {
  Managed m({2});
  m.m.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  nvte_tensor t = fresh();
  ASSERT_EQ(nvte_tensor_from_dlpack_versioned(&m.m, &t), NVTE_OK);
  EXPECT_EQ(t.flags, NVTE_TENSOR_READ_ONLY);
}

TEST(DLPack, RanksAndTypesAreChecked) {
  nvte_tensor t = fresh();
  Managed nine(std::vector<int64_t>(9, 1)), lanes({2}, {}, {kDLFloat, 32, 2}), fp4({2}, {}, {kDLFloat4_e2m1fn, 4, 1}), minus({-2}),
      huge({(int64_t)1 << 40, (int64_t)1 << 40});
  for (Managed *m : {&nine, &lanes, &fp4, &minus, &huge}) EXPECT_EQ(nvte_tensor_from_dlpack_versioned(&m->m, &t), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(nvte_tensor_from_dlpack_versioned(nullptr, &t), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(nvte_tensor_from_dlpack_versioned(&nine.m, nullptr), NVTE_ERR_INVALID_ARGUMENT);
  t.struct_size = 3;
  Managed good({2});
  EXPECT_EQ(nvte_tensor_from_dlpack_versioned(&good.m, &t), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_NE(error().find("struct_size"), std::string::npos);
  Managed fp8({2}, {}, kE4M3);
  t = fresh();
  EXPECT_EQ(nvte_tensor_from_dlpack_versioned(&fp8.m, &t), NVTE_OK);
}

TEST(DLPack, ExportCopiesShapeWritesStridesAndReleasesOnce) {
  Owned x(kF32, {2, 3, 4});
  int released = 0;
  const auto release = [](void *c) { ++*static_cast<int *>(c); };
  DLManagedTensorVersioned *v = nullptr;
  ASSERT_EQ(nvte_tensor_to_dlpack_versioned(&x.t.data, DLPACK_FLAG_BITMASK_READ_ONLY, release, &released, &v), NVTE_OK) << error();
  EXPECT_EQ(v->version.major, (uint32_t)DLPACK_MAJOR_VERSION);
  EXPECT_EQ(v->flags, (uint64_t)DLPACK_FLAG_BITMASK_READ_ONLY);
  EXPECT_NE(v->dl_tensor.shape, x.t.data.shape);
  EXPECT_EQ(std::vector<int64_t>(v->dl_tensor.strides, v->dl_tensor.strides + 3), (std::vector<int64_t>{12, 4, 1}));
  nvte_tensor back = fresh();
  EXPECT_EQ(nvte_tensor_from_dlpack_versioned(v, &back), NVTE_OK);
  EXPECT_EQ(back.data.data, x.t.data.data);
  v->deleter(v);
  EXPECT_EQ(released, 1);

  DLManagedTensor *m = nullptr;
  ASSERT_EQ(nvte_tensor_to_dlpack(&x.t.data, nullptr, nullptr, &m), NVTE_OK);
  EXPECT_EQ(nvte_tensor_from_dlpack(m, &back), NVTE_OK);
  nvte_dlpack_release(m);
}

TEST(DLPack, D01_Fp8NeedsTheVersionedForm) {
  Owned x(kE4M3, {4});
  DLManagedTensor *m = nullptr;
  EXPECT_EQ(nvte_tensor_to_dlpack(&x.t.data, nullptr, nullptr, &m), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(error(), "nvte_tensor_to_dlpack: e4m3 needs a versioned DLPack tensor");
  DLManagedTensorVersioned *v = nullptr;
  EXPECT_EQ(nvte_tensor_to_dlpack_versioned(&x.t.data, 1u << 9, nullptr, nullptr, &v), NVTE_ERR_INVALID_ARGUMENT);
  ASSERT_EQ(nvte_tensor_to_dlpack_versioned(&x.t.data, 0, nullptr, nullptr, &v), NVTE_OK);
  nvte_dlpack_release_versioned(v);
}

}  // namespace
}  // namespace te::test
