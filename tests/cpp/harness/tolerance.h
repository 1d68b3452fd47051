// SPDX-License-Identifier: Apache-2.0
// Every numeric tolerance of the C++ tests (tools/lint.py allows none elsewhere).
#pragma once
#include "core/tensor.h"

namespace te::test {

// Floats: at most twice the largest error of a naive evaluation (the same formula in f32, one rounding to the output's dtype)
// against double, plus one ulp of the output's dtype at the expected value.
inline double float_bound(double naive_max_error, double ulp) { return 2 * naive_max_error + ulp; }

// Tensor cores of compute capability 8.9 and 9.0 add the products of FP8 operands in fixed point, 13 bits below the largest of them, split
// accumulation or not (it splits sums over instructions). What a vendor library makes of FP8 operands may be off by this much of the largest
// result, beside the naive error: products may be larger than their sum.
constexpr double kFp8SumError = 0x1p-12;

// cuDNN's attention rounds probabilities, their gradients and, with grouped heads, each head's dK and dV to 16 bits before it sums them, and sums
// softmax_offset's gradient in f32 in no fixed order. Beside the naive error, as a share of the largest result.
inline double cudnn_rounding(DType t) { return t == DType::bf16 ? 0x1p-9 : t == DType::f16 ? 0x1p-12 : 0x1p-22; }

// A tensor of few elements says little about the naive evaluation's largest error: the same case is drawn with further seeds until
// this many outputs were seen, at most kNaiveDraws times.
constexpr int64_t kNaiveOutputs = 1024;
constexpr int kNaiveDraws = 16;

// Quantised outputs, beside bit equality: least signal-to-quantisation-noise ratio in dB on normally distributed numbers that fit
// the format. A format of m mantissa bits has relative steps of 2^-m, uniform error, about 31 (m = 3) and 25 (m = 2) dB.
inline double least_sqnr(DType t) {
  switch (t) {
    case DType::e4m3: case DType::e4m3fnuz: return 29;
    case DType::e5m2: case DType::e5m2fnuz: return 23;
    default: return 0;
  }
}
constexpr int64_t kSqnrElements = 256;  // fewer say nothing

// Finite differences of the double formula: central, step times max(1, |x|). Truncation and cancellation are far under kNoise of the
// largest gradient; what is left is f32 rounding of constants that the tests compute ahead.
constexpr double kDifferenceStep = 1e-5;
constexpr double kDifferenceNoise = 1e-6;
// More inputs than this are not differentiated one by one.
constexpr int64_t kDifferenceElements = 700;

}  // namespace te::test
