// SPDX-License-Identifier: Apache-2.0
// The registry of operator tests. A test is a struct with static members:
//     static constexpr const char *op = "rmsnorm_forward", *cases = "rmsnorm";   // operator; tests/cases/rmsnorm.txt
//     static void build(const Case &c, Problem &p);                              // tensors and scalars of one call
//     template <class T> static void reference(const Problem &p, Values<T> &v);  // the formula, for T = double and float
// optionally
//     static double flops(const Problem &p);                                     // perf: GF/s beside GB/s
// and for a backward operator, so that mode grad can differentiate the forward test's double reference:
//     static constexpr Gradient gradient = {"rmsnorm_forward", {{"x", "dx"}, {"gamma", "dgamma"}}, {{"y", "dy"}}};
// TE_TEST(RmsnormForward); registers it.
#pragma once
#include "harness/problem.h"

namespace te::test {

struct FieldPair {
  const char *first, *second;
};
struct Gradient {
  const char *forward;        // operator whose reference is differentiated
  FieldPair wrt[6];           // forward input, backward output
  FieldPair cotangents[3];    // forward output, backward input
};

struct OpTest {
  const char *op, *cases;
  void (*build)(const Case &, Problem &);
  void (*reference_double)(const Problem &, Values<double> &);
  void (*reference_float)(const Problem &, Values<float> &);
  double (*flops)(const Problem &);
  const Gradient *gradient;
};

std::vector<OpTest> &op_tests();
const OpTest *find_test(const std::string &op);

template <class T, class = void> struct GradientOf { static constexpr const Gradient *value = nullptr; };
template <class T> struct GradientOf<T, std::void_t<decltype(T::gradient)>> { static constexpr const Gradient *value = &T::gradient; };
template <class T, class = void> struct FlopsOf { static constexpr double (*value)(const Problem &) = nullptr; };
template <class T> struct FlopsOf<T, std::void_t<decltype(&T::flops)>> { static constexpr double (*value)(const Problem &) = &T::flops; };

template <class T> int register_test() {
  op_tests().push_back({T::op, T::cases, &T::build, &T::template reference<double>, &T::template reference<float>, FlopsOf<T>::value, GradientOf<T>::value});
  return 0;
}
#define TE_TEST(type) static const int registered_##type = ::te::test::register_test<type>()

}  // namespace te::test
