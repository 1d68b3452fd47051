// SPDX-License-Identifier: Apache-2.0
// Memory that a call writes lies apart from all else, or exactly on what it may replace: shares_memory against a set of bytes, and
// the calls that broke before the rule stood, each refused before a byte is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "../core/tensors.h"
#include "core/overlap.h"
#include "core/text.h"
#include "libte/init.h"

namespace te::test {
namespace {

// A view of `memory` at an element offset.
struct Slice {
  std::vector<int64_t> shape, strides;
  nvte_tensor t = {};
  Slice(float *memory, int64_t at, std::vector<int64_t> s, std::vector<int64_t> st = {}) : shape(std::move(s)), strides(std::move(st)) {
    t.struct_size = sizeof t;
    t.data = Owned::part(kF32, shape, memory + at);
    if (!strides.empty()) t.data.strides = strides.data();
  }
  Slice(const Slice &) = delete;
  operator nvte_tensor *() { return &t; }
};

std::set<int64_t> bytes_of(const DLTensor &t) {
  std::set<int64_t> all;
  const int64_t size = t.dtype.bits / 8;
  std::vector<int64_t> index((size_t)t.ndim, 0);
  for (bool more = true; more;) {
    int64_t at = (int64_t)(intptr_t)t.data;
    for (int i = 0; i < t.ndim; i++) at += index[(size_t)i] * t.strides[i] * size;
    for (int64_t b = 0; b < size; b++) all.insert(at + b);
    more = false;
    for (int i = t.ndim - 1; i >= 0 && !more; i--) more = ++index[(size_t)i] < t.shape[i] || (index[(size_t)i] = 0);
  }
  return all;
}

std::string describe(const DLTensor &t) {
  TextOf<256> s;
  s.add("; %s at %p, shape ", dtype_name(t.dtype), t.data).shape(t).add(", strides ").shape(t.strides, t.ndim);
  return s.c_str();
}

TEST(Overlap, agrees_with_a_set_of_bytes) {
  std::mt19937 random(1);
  const auto below = [&](int64_t n) { return (int64_t)(random() % (unsigned)n); };
  const DLDataType dtypes[] = {kU8, kBF16, kF32};
  int shared = 0, apart = 0;
  for (int round = 0; round < 6000; round++) {
    DLTensor t[2];
    std::vector<int64_t> shape[2], strides[2];
    // Half of the pairs are slices of one buffer, as packed tensors are: the same strides, other extents.
    const bool alike = round % 2;
    const int rank = (int)below(4);
    for (int k = 0; k < 2; k++) {
      const int ndim = alike ? rank : (int)below(4);
      int64_t step = 1;
      for (int i = 0; i < ndim; i++) {
        shape[k].insert(shape[k].begin(), 1 + below(4));
        if (alike && k) step = strides[0][strides[0].size() - 1 - (size_t)i];
        else step = i == 0 && below(2) ? 1 : step * (1 + below(4)) + below(2);
        strides[k].insert(strides[k].begin(), step);
        if (!alike || !k) step *= shape[k][0];
      }
      if (!alike && ndim && below(8) == 0) strides[k][0] = below(3);  // a broadcast or overlapping input
      t[k] = Owned::part(alike && k ? t[0].dtype : dtypes[below(3)], shape[k], (void *)(intptr_t)(4096 + 4 * below(40)));
      t[k].strides = strides[k].data();
    }
    const std::set<int64_t> x = bytes_of(t[0]), y = bytes_of(t[1]);
    const bool want = std::any_of(x.begin(), x.end(), [&](int64_t b) { return y.count(b); });
    (want ? shared : apart)++;
    const bool got = shares_memory(t[0], t[1]);
    EXPECT_EQ(got, shares_memory(t[1], t[0]));
    // A tensor with a dimension that steps by less than the later ones span may be taken for the run that it covers.
    const auto tangled = [](const DLTensor &d) {
      int64_t span = 1;
      for (int i = d.ndim - 1; i >= 0; span += (d.shape[i] - 1) * d.strides[i], i--)
        if (d.shape[i] > 1 && d.strides[i] < span) return true;
      return false;
    };
    if (tangled(t[0]) || tangled(t[1])) ASSERT_GE(got, want) << "round " << round << describe(t[0]) << describe(t[1]);
    else ASSERT_EQ(got, want) << "round " << round << describe(t[0]) << describe(t[1]);
  }
  EXPECT_GT(shared, 500);
  EXPECT_GT(apart, 500);
}

void refused(nvte_status status, const std::string &text, const std::vector<float> &memory) {
  EXPECT_EQ(status, NVTE_ERR_INVALID_ARGUMENT) << text;
  EXPECT_NE(error().find(text), std::string::npos) << error();
  for (float v : memory) ASSERT_EQ(v, 1);
}

TEST(Overlap, shifted_output_is_refused) {
  std::vector<float> memory(64, 1);
  Slice x(memory.data(), 0, {4, 8}), y(memory.data(), 8, {4, 8}), rstd(memory.data(), 20, {4});
  nvte_rmsnorm_forward_args n = NVTE_RMSNORM_FORWARD_ARGS_INIT;
  n.x = x, n.y = y;
  refused(nvte_rmsnorm_forward(nullptr, &n), "y must not share memory with x unless they are element for element the same", memory);
  Slice apart(memory.data(), 32, {4, 8}), inside(memory.data(), 40, {4});
  n.y = apart, n.rstd = inside;
  refused(nvte_rmsnorm_forward(nullptr, &n), "y must not share memory with rstd", memory);
  n.rstd = rstd;
  refused(nvte_rmsnorm_forward(nullptr, &n), "rstd must not share memory with x", memory);
  nvte_activation_forward_args a = NVTE_ACTIVATION_FORWARD_ARGS_INIT;
  a.x = x, a.y = y;
  refused(nvte_activation_forward(nullptr, &a), "y must not share memory with x", memory);
}

TEST(Overlap, parts_of_one_tensor) {
  std::vector<float> memory(64, 1);
  Slice x(memory.data(), 0, {4, 8}), y(memory.data(), 32, {4, 8}), one(memory.data(), 40, {1});
  y.t.amax = one.t.data;
  nvte_quantize_args q = NVTE_QUANTIZE_ARGS_INIT;
  q.x = x, q.y = y;
  refused(nvte_quantize(nullptr, &q), "y must not share memory with y.amax", memory);
  y.t.amax = {};
  // Both orientations of one tensor may share their scale_inv.
  std::vector<int64_t> columns{8, 4};
  std::vector<unsigned char> codes(64);
  y.t.data = Owned::part(kE4M3, y.shape, codes.data());
  y.t.columnwise = Owned::part(kE4M3, columns, codes.data() + 32);
  y.t.scaling = NVTE_SCALING_TENSOR;
  y.t.scale_inv = y.t.columnwise_scale_inv = one.t.data;
  EXPECT_EQ(nvte_quantize(nullptr, &q), NVTE_OK) << error();
}

TEST(Overlap, packed_slices_and_documented_aliases_are_taken) {
  std::vector<float> memory(2 * 4 * 24, 1), y(2 * 4 * 24, 1);
  const std::vector<int64_t> shape{2, 4, 2, 4}, strides{4 * 24, 24, 4, 1};  // [s, b, 3, h, d], h = 2, d = 4
  Slice q(memory.data(), 0, shape, strides), k(memory.data(), 8, shape, strides), v(memory.data(), 16, shape, strides);
  Slice o(y.data(), 0, shape), dq(y.data(), 0, shape, strides), dk(y.data(), 8, shape, strides), dv(y.data(), 16, shape, strides);
  EXPECT_FALSE(shares_memory(dq.t.data, dk.t.data) || shares_memory(dk.t.data, dv.t.data));
  nvte_attention_forward_args f = NVTE_ATTENTION_FORWARD_ARGS_INIT;
  f.q = q, f.k = k, f.v = v, f.o = o;
  EXPECT_EQ(nvte_attention_forward(nullptr, &f), NVTE_OK) << error();
  nvte_activation_forward_args a = NVTE_ACTIVATION_FORWARD_ARGS_INIT;
  Slice x(memory.data(), 0, {2, 4, 24});
  a.x = a.y = x;
  EXPECT_EQ(nvte_activation_forward(nullptr, &a), NVTE_OK) << error();
  EXPECT_NE(memory[0], 1);
}

}  // namespace
}  // namespace te::test
