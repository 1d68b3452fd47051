// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>

#include "harness/op_test.h"
#include "libte/init.h"

namespace te::test {
namespace {

int format_of(const Case &c) {
  const std::string f = c.s("format");
  return f == "sbhd" ? NVTE_FORMAT_SBHD : f == "bshd" ? NVTE_FORMAT_BSHD : f == "thd" ? NVTE_FORMAT_THD : f == "bhsd" ? NVTE_FORMAT_BHSD : (int)c.i("format");
}
int64_t channels(const Case &c) { return c.i("d") + (c.flag("even") ? c.i("d") % 2 : 0); }
Shape shape_of(const Case &c) {
  const int64_t s = c.i("s"), b = c.i("b", 1), h = c.i("h"), d = channels(c);
  switch (format_of(c)) {
    case NVTE_FORMAT_BSHD: return {b, s, h, d};
    case NVTE_FORMAT_THD: return {s, h, d};
    case NVTE_FORMAT_BHSD: return {b, h, s, d};
    default: return {s, b, h, d};
  }
}
std::vector<double> list(const Case &c, const char *key) {
  const Shape s = c.shape(key);
  return {s.begin(), s.end()};
}

// Everything but x and y. The angles: position * 10000^(-2j/d2) as models have them, or one for each channel.
void common(const Case &c, Problem &p) {
  const int64_t rows = c.i("P", 40), d2 = c.i("d2", channels(c)), m = d2 / 2;
  const bool inter = c.flag("inter");
  std::vector<double> angles((size_t)(rows * d2));
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < d2; i++) {
      const int64_t j = c.flag("own") || m == 0 ? i : inter ? i / 2 : i % m;
      angles[(size_t)(r * d2 + i)] = (double)r * std::pow(10000., -2. * (double)j / (double)d2) * c.f("big", 1);
    }
  const Shape table = c.flag("rank4") ? Shape{rows, 1, 1, d2} : Shape{rows, d2};
  p.in("freqs", table, DType::f32).set(angles);
  if (c.has("start")) p.in("start_positions", {(int64_t)c.shape("start").size()}, DType::i32).set(list(c, "start"));
  if (c.has("positions")) {
    const int64_t n = (int64_t)c.shape("positions").size();
    const Shape s = format_of(c) == NVTE_FORMAT_THD ? Shape{n} : Shape{c.i("b", 1), n / c.i("b", 1)};
    p.in("positions", s, c.dtype("position_dtype", DType::i64)).set(list(c, "positions"));
  }
  if (c.has("cu")) p.in("cu_seqlens", {(int64_t)c.shape("cu").size()}, DType::i32).set(list(c, "cu"));
  p.set("format", format_of(c));
  p.set("flags", inter ? NVTE_ROPE_INTERLEAVED : 0);
  p.set("cp_size", (double)c.i("cp", 1));
  p.set("cp_rank", (double)c.i("rank", 0));
  if (c.s("fill", "") == "special") p.no_gradient();
  if (c.has("bad")) p.must_fail(NVTE_ERR_INVALID_ARGUMENT, c.s("bad").c_str());
}

// Global index of local token t of a sequence of n local tokens: chunk `rank` of 2 size chunks, then chunk 2 size - 1 - rank.
int64_t dual_chunk(int64_t t, int64_t n, int64_t size, int64_t rank) {
  if (size == 1) return t;
  const int64_t chunk = n / 2;
  return t < chunk ? rank * chunk + t : (2 * size - 1 - rank) * chunk + (t - chunk);
}

// Calls f(offset of the row in x, position or -1) for every row of d channels.
template <class T, class F> void each_row(const Problem &p, const Values<T> &v, const char *x, F &&f) {
  const Shape &n = p.find(x)->shape;
  const int format = (int)p.scalar("format");
  const int64_t size = (int64_t)p.scalar("cp_size"), rank = (int64_t)p.scalar("cp_rank"), d = last(n);
  auto at = [&](const char *name, int64_t i) { return (int64_t)v[name][(size_t)i]; };
  for (int64_t row = 0; row < count(leading(n)); row++) {
    int64_t b = 0, s = 0, position = 0;
    if (format == NVTE_FORMAT_SBHD) b = row / n[2] % n[1], s = row / n[2] / n[1];
    if (format == NVTE_FORMAT_BSHD) s = row / n[2] % n[1], b = row / n[2] / n[1];
    if (format == NVTE_FORMAT_BHSD) s = row % n[2], b = row / n[2] / n[1];
    int64_t length = format == NVTE_FORMAT_SBHD ? n[0] : format == NVTE_FORMAT_BSHD ? n[1] : n[2], token = b * length + s;
    if (format == NVTE_FORMAT_THD) {
      token = row / n[1], b = -1;
      for (int64_t i = 0; i + 1 < p.find("cu_seqlens")->size(); i++)
        if (token >= at("cu_seqlens", i) / size && token < at("cu_seqlens", i + 1) / size) {
          b = i, s = token - at("cu_seqlens", i) / size;
          length = (at("cu_seqlens", i + 1) - at("cu_seqlens", i)) / size;
        }
    }
    if (b < 0) position = -1;
    else if (v.has("positions")) position = at("positions", token);
    else position = dual_chunk(s, length, size, rank) + (v.has("start_positions") ? at("start_positions", b) : 0);
    f(row * d, position);
  }
}

// The pair of channel i, and whether i is its second member.
struct Pair {
  int64_t other;
  bool second;
};
Pair pair_of(int64_t i, int64_t d2, bool inter) {
  if (inter) return {i ^ 1, i % 2 == 1};
  return i < d2 / 2 ? Pair{i + d2 / 2, false} : Pair{i - d2 / 2, true};
}

struct Forward {
  static constexpr const char *op = "rope_forward", *cases = "rope";
  static void build(const Case &c, Problem &p) {
    p.in("x", shape_of(c), c.dtype("dtype"));
    common(c, p);
    p.out("y", shape_of(c), c.dtype("dtype"));
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const std::vector<T> &x = v["x"], &f = v["freqs"];
    std::vector<T> &y = v.out("y");
    const int64_t d = last(p.find("x")->shape), d2 = last(p.find("freqs")->shape);
    const bool inter = p.scalar("flags") != 0;
    each_row(p, v, "x", [&](int64_t at, int64_t position) {
      for (int64_t i = 0; i < d && position >= 0; i++) {
        y[at + i] = x[at + i];
        if (i >= d2) continue;
        const Pair q = pair_of(i, d2, inter);
        const T angle = f[position * d2 + i], turned = q.second ? x[at + q.other] : -x[at + q.other];
        y[at + i] = x[at + i] * std::cos(angle) + turned * std::sin(angle);
      }
    });
  }
};
TE_TEST(Forward);

struct Backward {
  static constexpr const char *op = "rope_backward", *cases = "rope";
  static constexpr Gradient gradient = {"rope_forward", {{"x", "dx"}}, {{"y", "dy"}}};
  static void build(const Case &c, Problem &p) {
    p.in("dy", shape_of(c), c.dtype("dtype"));
    common(c, p);
    p.out("dx", shape_of(c), c.dtype("dtype"));
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const std::vector<T> &dy = v["dy"], &f = v["freqs"];
    std::vector<T> &dx = v.out("dx");
    const int64_t d = last(p.find("dy")->shape), d2 = last(p.find("freqs")->shape);
    const bool inter = p.scalar("flags") != 0;
    each_row(p, v, "dy", [&](int64_t at, int64_t position) {
      for (int64_t i = 0; i < d && position >= 0; i++) {
        dx[at + i] = dy[at + i];
        if (i >= d2) continue;
        const Pair q = pair_of(i, d2, inter);
        const T turned = std::sin(f[position * d2 + q.other]) * dy[at + q.other];
        dx[at + i] = dy[at + i] * std::cos(f[position * d2 + i]) + (q.second ? -turned : turned);
      }
    });
  }
};
TE_TEST(Backward);

// ---- what the cases cannot say ----

struct View {
  std::vector<int64_t> shape, strides;
  nvte_tensor t;
  View(void *data, DType type, Shape s, Shape st = {}) : shape(s), strides(st) {
    memset(&t, 0, sizeof t);
    t.struct_size = sizeof t;
    t.data.data = data;
    t.data.device = {kDLCPU, 0};
    t.data.dtype = dl(type);
    t.data.ndim = (int32_t)shape.size();
    t.data.shape = shape.data();
    t.data.strides = strides.empty() ? nullptr : strides.data();
  }
};
nvte_status rope(View &x, View &freqs, View &y, int format, uint32_t flags = 0) {
  nvte_rope_forward_args a = NVTE_ROPE_FORWARD_ARGS_INIT;
  a.x = &x.t, a.freqs = &freqs.t, a.y = &y.t, a.format = format, a.flags = flags;
  return nvte_rope_forward(nullptr, &a);
}

// R04: channels past d2 keep every bit, the payload of a NaN and the sign of a zero included.
TEST(Rope, R04_tail_keeps_its_bits) {
  for (uint32_t flags : {0u, NVTE_ROPE_INTERLEAVED}) {
    uint32_t x[2][8] = {}, y[2][8];
    const uint32_t odd[4] = {0x7fa12345u, 0xffc54321u, 0x80000000u, 0x00000001u};
    for (auto &row : x) memcpy(row + 4, odd, sizeof odd);
    float freqs[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
    View tx(x, DType::f32, {2, 1, 1, 8}), tf(freqs, DType::f32, {2, 4}), ty(y, DType::f32, {2, 1, 1, 8});
    ASSERT_EQ(rope(tx, tf, ty, NVTE_FORMAT_SBHD, flags), NVTE_OK) << nvte_last_error();
    for (auto &row : y) EXPECT_EQ(memcmp(row + 4, odd, sizeof odd), 0);
  }
}

// M11, O02: offsets beyond 2^31 elements, in address space that is never filled.
TEST(Rope, M11_offsets_have_64_bits) {
  const int64_t stride = ((int64_t)1 << 31) + 64;
  const size_t bytes = (size_t)(stride + 64) * 2;
  void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  uint16_t *x = (uint16_t *)memory;
  for (int i = 0; i < 8; i++) x[i] = 0x3f80, x[stride + i] = 0x4000;  // 1, 2
  uint16_t y[2][8];
  float freqs[2][8] = {};
  View tx(x, DType::bf16, {2, 1, 1, 8}, {stride, 8, 8, 1}), tf(freqs, DType::f32, {2, 8}), ty(y, DType::bf16, {2, 1, 1, 8});
  const nvte_status status = rope(tx, tf, ty, NVTE_FORMAT_SBHD);
  munmap(memory, bytes);
  ASSERT_EQ(status, NVTE_OK) << nvte_last_error();
  for (int i = 0; i < 8; i++) {
    EXPECT_EQ(y[0][i], 0x3f80);
    EXPECT_EQ(y[1][i], 0x4000);
  }
}

}  // namespace
}  // namespace te::test
