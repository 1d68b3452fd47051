// SPDX-License-Identifier: Apache-2.0
// Number formats in plain double arithmetic, written from the formats' definitions and independently of libte/src/cpu, so that the
// product's codecs can be checked against them. Slow and obvious on purpose.
#pragma once
#include <string>
#include <vector>

#include "core/tensor.h"

namespace te::test {

using Shape = std::vector<int64_t>;

DLDataType dl(DType t);
const char *name(DType t);
DType parse_dtype(const std::string &text);  // throws std::runtime_error
inline size_t bytes_of(DType t) { return dl(t).bits / 8; }

// The value of a code (the low bytes_of(t) bytes of `bits`). i64 beyond 2^53 is rounded.
double decode(DType t, uint64_t bits);
// Round to nearest, ties to even. fp8: beyond the maximum, infinity included, becomes +-maximum; NaN is 0x7f with x's sign (FNUZ:
// 0x80). f16 and bf16 overflow to infinity. Integers: truncation of an exactly represented value.
uint64_t encode(DType t, double x);
// Distance from |x| to the next larger number of the format (the subnormal step near 0); 0 for integers.
double ulp(DType t, double x);
double largest(DType t);

double read_element(DType t, const void *p);
void write_element(DType t, void *p, double x);

inline int64_t count(const Shape &s) {
  int64_t n = 1;
  for (int64_t d : s) n *= d;
  return n;
}
inline int64_t last(const Shape &s) { return s.empty() ? 1 : s.back(); }
inline Shape leading(const Shape &s) { return s.empty() ? Shape{} : Shape(s.begin(), s.end() - 1); }
std::string text(const Shape &s);

}  // namespace te::test
