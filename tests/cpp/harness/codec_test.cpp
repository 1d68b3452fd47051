// SPDX-License-Identifier: Apache-2.0
// The test codecs against the formats' definitions, then the product's codecs (through nvte_quantize and nvte_dequantize) against
// them: every 16-bit pattern, every fp8 code, and f32 round every rounding boundary.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "harness/case.h"
#include "libte/libte.h"

namespace te::test {
namespace {

const DType kFp8[] = {DType::e4m3, DType::e5m2, DType::e4m3fnuz, DType::e5m2fnuz};
const DType kWide[] = {DType::f32, DType::f16, DType::bf16};

struct View {  // a flat tensor over a vector
  View(DType t, std::vector<uint8_t> &bytes, int64_t n) : shape{n} {
    tensor.struct_size = sizeof tensor;
    tensor.data = {bytes.data(), {kDLCPU, 0}, 1, dl(t), shape, nullptr, 0};
    if (is_fp8(t)) {
      tensor.scaling = NVTE_SCALING_TENSOR;
      tensor.scale_inv = {&scale_inv, {kDLCPU, 0}, 1, dl(DType::f32), one, nullptr, 0};
    }
  }
  nvte_tensor tensor = {};
  int64_t shape[1], one[1] = {1};
  float scale_inv = 1;
};

// Casts n elements of `in` from one dtype to another through the public functions.
std::vector<uint8_t> cast(DType from, DType to, std::vector<uint8_t> in) {
  const int64_t n = (int64_t)(in.size() / bytes_of(from));
  std::vector<uint8_t> out((size_t)n * bytes_of(to), 0xa5);
  View x(from, in, n), y(to, out, n);
  if (is_fp8(from)) {
    nvte_dequantize_args a = {sizeof a, &x.tensor, &y.tensor};
    EXPECT_EQ(nvte_dequantize(nullptr, &a), NVTE_OK) << nvte_last_error();
  } else {
    nvte_quantize_args a = {sizeof a, &x.tensor, &y.tensor, nullptr, nullptr};
    EXPECT_EQ(nvte_quantize(nullptr, &a), NVTE_OK) << nvte_last_error();
  }
  return out;
}

void check(DType from, DType to, const std::vector<uint8_t> &in) {
  const std::vector<uint8_t> out = cast(from, to, in);
  int wrong = 0;
  for (size_t i = 0; i < in.size() / bytes_of(from) && wrong < 5; i++) {
    const double x = read_element(from, in.data() + i * bytes_of(from));
    uint64_t got = 0;
    memcpy(&got, out.data() + i * bytes_of(to), bytes_of(to));
    const uint64_t want = encode(to, x);
    const bool both_nan = !is_fp8(to) && std::isnan(x) && std::isnan(decode(to, got));
    if (got != want && !both_nan) wrong++, ADD_FAILURE() << name(from) << " " << x << " to " << name(to) << ": got " << got << ", want " << want;
  }
}

std::vector<uint8_t> all_codes(DType t) {
  const size_t size = bytes_of(t), n = (size_t)1 << (8 * size);
  std::vector<uint8_t> v(n * size);
  for (size_t i = 0; i < n; i++) memcpy(v.data() + i * size, &i, size);
  return v;
}

TEST(Codec, KnownValues) {
  EXPECT_EQ(decode(DType::e4m3, 0x7e), 448);
  EXPECT_EQ(decode(DType::e4m3, 0x01), 0x1p-9);
  EXPECT_TRUE(std::isnan(decode(DType::e4m3, 0x7f)));
  EXPECT_EQ(decode(DType::e5m2, 0x7b), 57344);
  EXPECT_TRUE(std::isinf(decode(DType::e5m2, 0x7c)));
  EXPECT_EQ(decode(DType::e4m3fnuz, 0x7f), 240);
  EXPECT_TRUE(std::isnan(decode(DType::e4m3fnuz, 0x80)));  // Q19
  EXPECT_EQ(decode(DType::e4m3fnuz, 0x38) * 2, decode(DType::e4m3, 0x38));
  EXPECT_EQ(decode(DType::e5m2fnuz, 0x7f), 57344);
  EXPECT_EQ(decode(DType::f16, 0x7bff), 65504);
  EXPECT_EQ(decode(DType::bf16, 0x3f80), 1);
  EXPECT_EQ(encode(DType::e4m3, 464), 0x7eu);  // Q11: saturates
  EXPECT_EQ(encode(DType::e5m2, -INFINITY), 0xfbu);
  EXPECT_EQ(encode(DType::f16, 65520), 0x7c00u);
  EXPECT_EQ(encode(DType::f16, 65519.99), 0x7bffu);
  EXPECT_EQ(encode(DType::e4m3fnuz, -0.0), 0u);
  EXPECT_EQ(ulp(DType::f32, 1), 0x1p-23);
  EXPECT_EQ(ulp(DType::bf16, 3), 0x1p-6);
  EXPECT_EQ(ulp(DType::f16, 0), 0x1p-24);
}

TEST(Codec, RoundTripAndTies) {
  for (DType t : {DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::e4m3fnuz, DType::e5m2fnuz}) {
    const uint64_t half = 1ull << (8 * bytes_of(t) - 1);
    for (uint64_t c = 0; c < half; c++) {
      const double v = decode(t, c), w = c + 1 < half ? decode(t, c + 1) : NAN;
      if (std::isnan(v) || std::isinf(v)) continue;
      ASSERT_EQ(encode(t, v), c) << name(t);
      if (v != 0) { ASSERT_EQ(encode(t, -v), c | half) << name(t); }
      if (std::isnan(w) || std::isinf(w)) continue;
      ASSERT_GT(w, v) << name(t);
      const double tie = v + (w - v) / 2;
      ASSERT_EQ(encode(t, tie), c + (c & 1)) << name(t) << " tie above code " << c;
      ASSERT_EQ(encode(t, std::nextafter(tie, 0)), c) << name(t);
      ASSERT_EQ(encode(t, std::nextafter(tie, INFINITY)), c + 1) << name(t);
    }
  }
}

TEST(Codec, ProductDecodesEveryFp8Code) {
  if (!nvte_op_find("dequantize")) GTEST_SKIP() << "left out of this build";
  for (DType from : kFp8)
    for (DType to : kWide) check(from, to, all_codes(from));
}

TEST(Codec, ProductEncodesEvery16BitPattern) {
  if (!nvte_op_find("quantize")) GTEST_SKIP() << "left out of this build";
  for (DType from : {DType::f16, DType::bf16})
    for (DType to : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::e4m3fnuz, DType::e5m2fnuz}) check(from, to, all_codes(from));
}

TEST(Codec, ProductEncodesF32AroundEveryBoundary) {
  if (!nvte_op_find("quantize")) GTEST_SKIP() << "left out of this build";
  for (DType to : {DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::e4m3fnuz, DType::e5m2fnuz}) {
    std::vector<uint32_t> x;
    auto around = [&](double v) {
      const float f = (float)v;
      uint32_t u;
      memcpy(&u, &f, 4);
      for (int d = -2; d <= 2; d++)
        for (uint32_t sign : {0u, 0x80000000u}) x.push_back((u + (uint32_t)d) ^ sign);
    };
    const uint64_t half = 1ull << (8 * bytes_of(to) - 1), step = bytes_of(to) == 1 ? 1 : 7;
    for (uint64_t c = 0; c + 1 < half; c += step) {
      const double v = decode(to, c), w = decode(to, c + 1);
      if (std::isfinite(v)) around(v);
      if (std::isfinite(v) && std::isfinite(w)) around((v + w) / 2);
    }
    around(largest(to) * (1 + 0x1p-12)), around(INFINITY), around(NAN);
    for (int e = -149; e < 128; e++) around(std::ldexp(1.0, e));
    for (uint64_t i = 0; i < 200000; i++) x.push_back((uint32_t)mix(7, i));
    std::vector<uint8_t> bytes(x.size() * 4);
    memcpy(bytes.data(), x.data(), bytes.size());
    check(DType::f32, to, bytes);
  }
}

}  // namespace
}  // namespace te::test
