// SPDX-License-Identifier: Apache-2.0
// What should come out of a problem, and the comparison of what did.
#pragma once
#include "harness/call.h"
#include "harness/op_test.h"

namespace te::test {

struct Expected {
  std::map<std::string, std::vector<double>> want;  // unscaled, by output
  std::map<std::string, double> naive_error;        // largest error of the naive evaluation, after rounding to the output's dtype
};
Expected expect(const OpTest &test, const Case &c, const Problem &p);

// Differences, in words; empty = equal within tolerance. `twin`: results of the same problem with scaled outputs replaced by plain
// f32 (see unscaled_twin), from which codes and amax must follow bit for bit.
std::vector<std::string> compare(const Problem &p, const Expected &e, const Result &got, const Result *twin);

// Another implementation against `cpu` on the same problem: exact outputs bit for bit, floats within the bounds of both, codes of
// inexact outputs at most one step apart (ties).
std::vector<std::string> compare_with_cpu(const Problem &p, const Expected &e, const Result &got, const Result &cpu);

// The problem with every inexact scaled output whose schema takes f32 turned into plain f32; false if there is none.
bool unscaled_twin(const Problem &p, Problem &twin);

// Bit equality of two results, for variants that must not matter.
std::vector<std::string> differences(const Result &a, const Result &b, const char *what, const std::string &ignore = "");

}  // namespace te::test
