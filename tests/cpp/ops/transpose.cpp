// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "harness/op_test.h"
#include "ops/view.h"

namespace te::test {
namespace {

struct Transpose {
  static constexpr const char *op = "transpose", *cases = "transpose";
  static void build(const Case &c, Problem &p) {
    Shape s = c.shape("m");
    const int64_t m = count(s), k = c.i("k");
    s.push_back(k);
    p.in("x", s, c.dtype("dtype"));
    if (c.has("noop")) p.in("noop", {1}, DType::f32, c.flag("noop") ? Fill::one : Fill::zero);
    Arg &y = p.out("y", {k, m}, c.dtype("dtype")).exact();
    if (c.flag("noop")) y.not_written();
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const int64_t k = last(p.find("x")->shape), m = count(leading(p.find("x")->shape));
    std::vector<T> &y = v.out("y");
    for (int64_t i = 0; i < m; i++)
      for (int64_t j = 0; j < k; j++) y[(size_t)(j * m + i)] = v["x"][(size_t)(i * k + j)];
  }
};
TE_TEST(Transpose);

// Bytes are moved, not numbers: every bit pattern survives, in sizes round every tile edge.
TEST(Transpose, keeps_every_bit) {
  for (int64_t m : {1, 15, 16, 17, 64, 65, 130})
    for (int64_t k : {1, 15, 31, 32, 33, 64, 65, 100}) {
      for (DType type : {DType::u8, DType::i16, DType::i32, DType::i64}) {
        const size_t size = bytes_of(type);
        std::vector<uint8_t> x((size_t)(m * k) * size), y(x.size());
        for (size_t i = 0; i < x.size(); i++) x[i] = (uint8_t)mix(3, i);
        View a(x.data(), type, {m, k}), b(y.data(), type, {k, m});
        nvte_transpose_args args = NVTE_TRANSPOSE_ARGS_INIT;
        args.x = a, args.y = b;
        ASSERT_EQ(nvte_transpose(nullptr, &args), NVTE_OK) << nvte_last_error();
        size_t wrong = 0;
        for (int64_t i = 0; i < m; i++)
          for (int64_t j = 0; j < k; j++) wrong += memcmp(&x[(size_t)(i * k + j) * size], &y[(size_t)(j * m + i) * size], size) != 0;
        EXPECT_EQ(wrong, 0u) << m << " x " << k << " of " << size << " bytes";
      }
    }
}

TEST(Transpose, refuses_other_sizes) {
  uint8_t x[64] = {}, y[64] = {};
  View a(x, DType::u8, {2, 2}), b(y, DType::u8, {2, 2});
  a.t.data.dtype.lanes = b.t.data.dtype.lanes = 3;
  nvte_transpose_args args = NVTE_TRANSPOSE_ARGS_INIT;
  args.x = a, args.y = b;
  EXPECT_EQ(nvte_transpose(nullptr, &args), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_NE(strstr(nvte_last_error(), "x must have elements of 1, 2, 4 or 8 bytes"), nullptr) << nvte_last_error();
}

}  // namespace
}  // namespace te::test
