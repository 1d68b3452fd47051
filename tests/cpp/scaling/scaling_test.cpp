// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "scaling/scaling.h"

namespace te {
namespace {

TEST(Scaling, RowsSayWhatAModeTakes) {
  const Scaling *none = find_scaling(NVTE_SCALING_NONE), *tensor = find_scaling(NVTE_SCALING_TENSOR);
  ASSERT_TRUE(none && tensor);
  EXPECT_FALSE(none->scaled());
  EXPECT_TRUE(tensor->scaled());
  EXPECT_EQ(tensor->scale, DType::f32);
  for (DType d : {DType::f32, DType::f16, DType::bf16, DType::i64, DType::boolean, DType::other}) {
    EXPECT_TRUE(none->takes(d));
    EXPECT_FALSE(tensor->takes(d));
  }
  for (DType d : {DType::e4m3, DType::e5m2, DType::e4m3fnuz, DType::e5m2fnuz}) {
    EXPECT_FALSE(none->takes(d));
    EXPECT_TRUE(tensor->takes(d));
  }
  int64_t shape[2];
  tensor->columnwise(6, 8, shape);
  EXPECT_EQ(shape[0], 8);
  EXPECT_EQ(shape[1], 6);
  EXPECT_EQ(find_scaling(-1), nullptr);
  EXPECT_EQ(find_scaling(2), nullptr) << "a new mode: add its row's expectations here";
  EXPECT_STREQ(tensor->name, "NVTE_SCALING_TENSOR");
}

}  // namespace
}  // namespace te
