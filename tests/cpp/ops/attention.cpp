// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "harness/op_test.h"
#include "ops/view.h"

namespace te::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

// ---- the definition, from the header ----

// Philox 4x32-10, one word at a time.
uint32_t philox_word(uint64_t seed, uint32_t (&c)[4], int word) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int i = 0; i < 10; i++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
    const uint32_t n[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
    for (int j = 0; j < 4; j++) c[j] = n[j];
  }
  return c[word];
}

// A call's numbers, with the position of every element; whatever inner loops need is looked up once.
template <class T> struct Model {
  const Problem &p;
  const Values<T> &v;
  int format;
  bool thd;
  int64_t b, s_q, s_kv, h_q, h_kv, d, d_v;  // s of THD: tokens
  int mask_kind;
  bool bottom_right, pre_scale;
  int64_t left, right;
  T scale;
  float rate;
  uint64_t seed = 0, offset = 0;
  std::vector<int64_t> len_q_, len_k_, start_q_, start_k_;
  const T *q, *k, *value, *bias, *mask, *slopes;
  Shape bias_shape, mask_shape;

  Model(const Problem &p, const Values<T> &v) : p(p), v(v), format((int)p.scalar("format")), thd(format == NVTE_FORMAT_THD) {
    const Shape &qs = p.find("q")->shape, &ks = p.find("k")->shape;
    b = thd ? p.find("cu_seqlens_q")->size() - 1 : qs[format == NVTE_FORMAT_SBHD];
    s_q = qs[axis_s()], s_kv = ks[axis_s()], h_q = qs[axis_h()], h_kv = ks[axis_h()];
    d = last(qs), d_v = last(p.find("v")->shape);
    mask_kind = (int)p.scalar("mask_kind");
    bottom_right = mask_kind == NVTE_MASK_CAUSAL_BOTTOM_RIGHT || (int)p.scalar("flags") & NVTE_ATTENTION_WINDOW_BOTTOM_RIGHT;
    pre_scale = p.scalar("bias_kind") == NVTE_BIAS_PRE_SCALE;
    left = (int64_t)p.scalar("window_left"), right = (int64_t)p.scalar("window_right");
    scale = (T)(float)p.scalar("scale");
    rate = (float)p.scalar("dropout");
    if (v.has("rng_state")) seed = (uint64_t)p.find("rng_state")->values[0], offset = (uint64_t)p.find("rng_state")->values[1];
    auto numbers = [&](const char *name) { return v.has(name) ? v[name].data() : nullptr; };
    q = numbers("q"), k = numbers("k"), value = numbers("v"), bias = numbers("bias"), mask = numbers("mask"), slopes = numbers("alibi_slopes");
    if (bias) bias_shape = p.find("bias")->shape;
    if (mask) mask_shape = p.find("mask")->shape;
    for (int64_t i = 0; i < b; i++) {
      len_q_.push_back(length("cu_seqlens_q", i, s_q));
      len_k_.push_back(length("cu_seqlens_kv", i, s_kv));
      start_q_.push_back(first("cu_seqlens_q", i));
      start_k_.push_back(first("cu_seqlens_kv", i));
    }
  }
  int axis_s() const { return format == NVTE_FORMAT_BSHD ? 1 : format == NVTE_FORMAT_BHSD ? 2 : 0; }
  int axis_h() const { return thd || format == NVTE_FORMAT_BHSD ? 1 : 2; }
  int64_t entry(const char *cu, int64_t i) const { return (int64_t)v[cu][(size_t)i]; }
  int64_t length(const char *cu, int64_t ib, int64_t all) const { return v.has(cu) ? entry(cu, ib + 1) - entry(cu, ib) : all; }
  int64_t first(const std::string &cu, int64_t ib) const {
    return !thd ? 0 : entry(v.has(cu + "_padded") ? (cu + "_padded").c_str() : cu.c_str(), ib);
  }
  int64_t len_q(int64_t ib) const { return len_q_[(size_t)ib]; }
  int64_t len_k(int64_t ib) const { return len_k_[(size_t)ib]; }
  int64_t start(bool keys, int64_t ib) const { return (keys ? start_k_ : start_q_)[(size_t)ib]; }
  // Offset of the channels of (batch, position in its sequence, head).
  int64_t at(bool keys, int64_t ib, int64_t is, int64_t ih, int64_t width) const {
    const int64_t s = keys ? s_kv : s_q, h = keys ? h_kv : h_q, pos = start(keys, ib) + is;
    const int64_t row = thd || format == NVTE_FORMAT_SBHD ? (thd ? pos : pos * b + ib) * h + ih : format == NVTE_FORMAT_BSHD ? (ib * s + pos) * h + ih : (ib * h + ih) * s + pos;
    return row * width;
  }
  int64_t stat(int64_t ib, int64_t is, int64_t ih) const { return (thd ? ih : ib * h_q + ih) * s_q + start(false, ib) + is; }
  static int64_t grid(const Shape &s, int64_t ib, int64_t ih, int64_t iq, int64_t ik) {
    return (((s[0] == 1 ? 0 : ib) * s[1] + (s[1] == 1 ? 0 : ih)) * s[2] + (s[2] == 1 ? 0 : iq)) * s[3] + ik;
  }
  int64_t aligned(int64_t ib, int64_t iq) const { return iq + (bottom_right ? len_k(ib) - len_q(ib) : 0); }
  bool kept(int64_t ib, int64_t ih, int64_t iq, int64_t ik) const {
    if (iq >= len_q(ib) || ik >= len_k(ib)) return false;
    const int64_t here = aligned(ib, iq);
    if (mask_kind == NVTE_MASK_CAUSAL && ik > iq) return false;
    if (mask_kind == NVTE_MASK_CAUSAL_BOTTOM_RIGHT && ik > iq + len_k(ib) - len_q(ib)) return false;
    if ((left >= 0 && ik < here - left) || (right >= 0 && ik > here + right)) return false;
    return !mask || mask[grid(mask_shape, ib, ih, iq, ik)] == 0;
  }
  bool dropped(int64_t ib, int64_t ih, int64_t iq, int64_t ik) const {
    if (rate == 0) return false;
    uint32_t c[4] = {(uint32_t)(offset + (uint64_t)(ib * h_q + ih)), (uint32_t)iq, (uint32_t)(ik / 4), (uint32_t)(offset >> 32)};
    return philox_word(seed, c, (int)(ik % 4)) < (uint64_t)((double)rate * 4294967296.0);
  }
  T logit(int64_t ib, int64_t ih, int64_t iq, int64_t ik) const {
    const T *x = q + at(false, ib, iq, ih, d), *y = k + at(true, ib, ik, ih / (h_q / h_kv), d);
    T s = 0;
    for (int64_t i = 0; i < d; i++) s += x[i] * y[i];
    const T add = bias ? bias[grid(bias_shape, ib, ih, iq, ik)] : (T)0;
    s = pre_scale ? (s + add) * scale : s * scale + add;
    if (slopes) s += slopes[ih] * (T)(ik - aligned(ib, iq));
    return s;
  }
  // f(batch, head, query) for the queries of every sequence.
  template <class F> void each_row(F &&f) const {
    for (int64_t ib = 0; ib < b; ib++)
      for (int64_t ih = 0; ih < h_q; ih++)
        for (int64_t iq = 0; iq < len_q(ib); iq++) f(ib, ih, iq);
  }
};

template <class T> void forward(const Problem &p, const Values<T> &v, std::vector<T> &o, std::vector<T> &stats) {
  const Model<T> m(p, v);
  std::fill(stats.begin(), stats.end(), (T)-kInf);
  const int kind = (int)p.scalar("softmax_kind");
  const T keep_scale = 1 / (1 - (T)(float)p.scalar("dropout"));
  m.each_row([&](int64_t ib, int64_t ih, int64_t iq) {
    std::vector<std::pair<int64_t, T>> row;
    T top = kind == NVTE_SOFTMAX_OFF_BY_ONE ? 0 : kind == NVTE_SOFTMAX_LEARNABLE ? v["softmax_offset"][ih] : (T)-kInf;
    const T extra = top;
    for (int64_t ik = 0; ik < m.len_k(ib); ik++)
      if (m.kept(ib, ih, iq, ik)) {
        row.push_back({ik, m.logit(ib, ih, iq, ik)});
        if (!(row.back().second <= top)) top = row.back().second;
      }
    if (row.empty()) return;
    T sum = extra == (T)-kInf ? 0 : std::exp(extra - top);
    for (auto &[ik, x] : row) sum += std::exp(x - top);
    stats[m.stat(ib, iq, ih)] = top + std::log(sum);
    for (auto &[ik, x] : row) {
      if (m.dropped(ib, ih, iq, ik)) continue;
      const T s = std::exp(x - top) / sum * keep_scale;
      const int64_t to = m.at(false, ib, iq, ih, m.d_v), from = m.at(true, ib, ik, ih / (m.h_q / m.h_kv), m.d_v);
      for (int64_t i = 0; i < m.d_v; i++) o[to + i] += s * m.value[from + i];
    }
  });
}

// ---- problems ----

int format_of(const Case &c) {
  const std::string f = c.s("format", "bshd");
  return f == "sbhd" ? NVTE_FORMAT_SBHD : f == "bshd" ? NVTE_FORMAT_BSHD : f == "thd" ? NVTE_FORMAT_THD : f == "bhsd" ? NVTE_FORMAT_BHSD : (int)c.i("format");
}
Shape shape_of(int format, int64_t b, int64_t s, int64_t h, int64_t d) {
  switch (format) {
    case NVTE_FORMAT_SBHD: return {s, b, h, d};
    case NVTE_FORMAT_THD: return {s, h, d};
    case NVTE_FORMAT_BHSD: return {b, h, s, d};
    default: return {b, s, h, d};
  }
}
std::vector<double> list(const Case &c, const char *key) {
  const Shape s = c.shape(key);
  return {s.begin(), s.end()};
}
// bias=1,0,1 or mask=...: which of b, h, s_q are broadcast (0) or full (1).
Shape grid_shape(const Case &c, const char *key, int64_t b, int64_t h, int64_t s_q, int64_t s_kv) {
  const Shape full = c.shape(key);
  return {full.at(0) ? b : 1, full.at(1) ? h : 1, full.at(2) ? s_q : 1, s_kv};
}

// poisonq=1: rows of q and d_o past a sequence's length, or of none, are NaN.
void poison_rows(const Case &c, Problem &p, Arg &a) {
  if (!c.flag("poisonq") || p.expand) return;
  Values<double> all(p);
  const Model<double> m(p, all);
  const int64_t width = last(a.shape);
  std::vector<double> poisoned(a.values.size(), kNaN);
  m.each_row([&](int64_t ib, int64_t ih, int64_t iq) {
    const int64_t at = m.at(false, ib, iq, ih, width);
    for (int64_t i = at; i < at + width; i++) poisoned[(size_t)i] = a.values[(size_t)i];
  });
  a.set(poisoned);
}

// Equal values (the expand layout), or one key a query (exact=1), make dO V - r cancel entirely: integers keep both exact, so that 0
// is the answer in any order of sums.
Fill values_fill(const Case &c, const Problem &p) { return p.expand || c.flag("exact") ? Fill::integers : Fill::normal; }

struct Sizes { int64_t b, s, s_kv, h, h_kv, d, d_v; };

Sizes common(const Case &c, Problem &p) {
  const DType dtype = c.dtype("dtype");
  const int format = format_of(c);
  const int64_t b = c.i("b", 1), s = c.i("s"), s_kv = c.i("skv", s), h_kv = c.i("hkv", c.i("h", 1)), h = c.has("g") ? h_kv * c.i("g") : c.i("h", 1);
  const int64_t d = c.i("d"), d_v = c.i("dv", d), sequences = format == NVTE_FORMAT_THD ? (int64_t)c.shape("cuq").size() - 1 : b;
  // grids of THD cover the longest sequences: give them all tokens
  Arg &q = p.in("q", shape_of(format, b, s, h, d), dtype);
  Arg &k = p.in("k", shape_of(format, b, s_kv, h_kv, d), dtype), &v = p.in("v", shape_of(format, b, s_kv, h_kv, d_v), dtype, values_fill(c, p));
  const char *lengths[4][2] = {{"cuq", "cu_seqlens_q"}, {"cuk", "cu_seqlens_kv"}, {"padq", "cu_seqlens_q_padded"}, {"padk", "cu_seqlens_kv_padded"}};
  for (auto &l : lengths)
    if (c.has(l[0])) p.in(l[1], {(int64_t)c.shape(l[0]).size()}, DType::i32).set(list(c, l[0]));
  if (c.has("bias")) p.in("bias", grid_shape(c, "bias", sequences, h, s, s_kv), c.dtype("bias_dtype", dtype));
  if (c.has("mask")) {
    Arg &m = p.in("mask", grid_shape(c, "mask", sequences, h, s, s_kv), c.dtype("mask_dtype", DType::boolean), Fill::zero);
    std::vector<double> bits(m.values.size());
    for (size_t i = 0; i < bits.size(); i++) bits[i] = mix(p.expand ? 7 : p.seed, p.expand ? i % (size_t)(m.shape[1] * m.shape[2] * m.shape[3]) : i) % 100 < (uint64_t)c.i("masked", 40);
    m.set(bits);
  }
  if (c.has("softmax")) p.set("softmax_kind", (double)c.i("softmax"));
  if (c.i("softmax", 0) == NVTE_SOFTMAX_LEARNABLE && !c.flag("no_sink")) p.in("softmax_offset", {h + c.i("sink_extra", 0)}, DType::f32, Fill::normal);
  if (c.flag("slopes")) p.in("alibi_slopes", {h}, DType::f32, Fill::uniform);
  if (c.flag("dropout") || c.has("p")) {
    if (!c.flag("no_rng")) p.in("rng_state", {2}, DType::i64).set({(double)c.i("seed", 123456789012345), (double)c.i("offset", 17)});
    p.set("dropout", (double)(float)c.f("p", 0.25));
  }
  p.set("format", format);
  p.set("scale", (double)(float)c.f("scale", 1 / std::sqrt((double)d)));
  p.set("mask_kind", (double)c.i("causal", 0));
  p.set("bias_kind", c.flag("pre") ? NVTE_BIAS_PRE_SCALE : NVTE_BIAS_POST_SCALE);
  p.set("window_left", (double)c.i("left", -1));
  p.set("window_right", (double)c.i("right", -1));
  p.set("flags", (double)c.i("flags", 0));
  if (c.has("bad")) p.must_fail(NVTE_ERR_INVALID_ARGUMENT, c.s("bad").c_str());
  else if (c.flag("poison") && !p.expand) {  // keys that no query keeps: NaN and infinity must not get out
    Values<double> all(p);
    const Model<double> m(p, all);
    std::vector<double> kp = k.values, vp = v.values;
    for (int64_t i = 0; i < m.s_kv * m.h_kv * (m.thd ? 1 : m.b); i++) {
      for (int64_t j = 0; j < d; j++) kp[(size_t)(i * d + j)] = kInf;
      for (int64_t j = 0; j < d_v; j++) vp[(size_t)(i * d_v + j)] = kNaN;
    }
    m.each_row([&](int64_t ib, int64_t ih, int64_t iq) {
      for (int64_t ik = 0; ik < m.len_k(ib); ik++)
        if (m.kept(ib, ih, iq, ik)) {
          const int64_t x = m.at(true, ib, ik, ih / (h / h_kv), d), y = m.at(true, ib, ik, ih / (h / h_kv), d_v);
          for (int64_t j = 0; j < d; j++) kp[(size_t)(x + j)] = k.values[(size_t)(x + j)];
          for (int64_t j = 0; j < d_v; j++) vp[(size_t)(y + j)] = v.values[(size_t)(y + j)];
        }
    });
    k.set(kp);
    v.set(vp);
  }
  if (!c.has("bad")) poison_rows(c, p, q);
  return {sequences, s, s_kv, h, h_kv, d, d_v};
}
Shape stats_shape(int format, const Sizes &n) { return format == NVTE_FORMAT_THD ? Shape{n.h, n.s} : Shape{n.b, n.h, n.s}; }

struct Forward {
  static constexpr const char *op = "attention_forward", *cases = "attention";
  static void build(const Case &c, Problem &p) {
    const Sizes n = common(c, p);
    p.out("o", shape_of(format_of(c), n.b, n.s, n.h, n.d_v), c.dtype("odtype", c.dtype("dtype")));
    if (!c.flag("no_stats")) p.out("stats", stats_shape(format_of(c), n), DType::f32);
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const Model<T> m(p, v);
    forward(p, v, v.out("o"), v.out("stats", (m.thd ? 1 : m.b) * m.h_q * m.s_q));
  }
  static double flops(const Problem &p) {
    Values<double> v(p);
    const Model<double> m(p, v);
    double keys = 0;
    for (int64_t b = 0; b < m.b; b++)
      for (int64_t q = 0; q < m.len_q(b); q++)
        for (int64_t k = 0; k < m.len_k(b); k++) keys += m.kept(b, 0, q, k);
    return 2 * keys * (double)(m.h_q * (m.d + m.d_v));
  }
};
TE_TEST(Forward);

struct Backward {
  static constexpr const char *op = "attention_backward", *cases = "attention";
  static constexpr Gradient gradient = {"attention_forward",
                                        {{"q", "dq"}, {"k", "dk"}, {"v", "dv"}, {"bias", "dbias"}, {"softmax_offset", "dsoftmax_offset"}},
                                        {{"o", "d_o"}}};
  static void build(const Case &c, Problem &p) {
    const Sizes n = common(c, p);
    const int format = format_of(c);
    const DType dtype = c.dtype("dtype"), result = c.dtype("odtype", dtype);
    const Shape o = shape_of(format, n.b, n.s, n.h, n.d_v);
    Arg &d_o = p.in("d_o", o, c.dtype("dodtype", dtype), values_fill(c, p));
    if (!c.has("bad")) poison_rows(c, p, d_o);
    std::vector<double> saved((size_t)count(o)), stats((size_t)count(stats_shape(format, n)));
    if (!c.has("bad")) {
      Values<double> v(p);
      forward(p, v, saved, stats);
    }
    p.in("o", o, result).set(saved);
    p.in("stats", stats_shape(format, n), DType::f32).set(stats);
    p.out("dq", p.find("q")->shape, result);
    p.out("dk", p.find("k")->shape, result);
    p.out("dv", p.find("v")->shape, result);
    if (p.has("bias")) p.out("dbias", p.find("bias")->shape, c.dtype("dbias_dtype", p.find("bias")->dtype));
    if (p.has("softmax_offset")) p.out("dsoftmax_offset", p.find("softmax_offset")->shape, DType::f32);
  }
  template <class T> static void reference(const Problem &p, Values<T> &v) {
    const Model<T> m(p, v);
    const T keep_scale = 1 / (1 - (T)m.rate);
    std::vector<T> &dq = v.out("dq"), &dk = v.out("dk"), &dv = v.out("dv"), none;
    const bool biased = m.bias, learnable = p.has("softmax_offset");
    std::vector<T> &dbias = biased ? v.out("dbias", p.find("bias")->size()) : none;
    std::vector<T> &dsink = learnable ? v.out("dsoftmax_offset", m.h_q) : none;
    const std::vector<T> &stats = v["stats"], &d_o = v["d_o"], &o = v["o"], &sink = learnable ? v["softmax_offset"] : none;
    m.each_row([&](int64_t ib, int64_t ih, int64_t iq) {
      const T lse = stats[m.stat(ib, iq, ih)];
      if (lse == (T)-kInf) return;
      const int64_t x = m.at(false, ib, iq, ih, m.d), y = m.at(false, ib, iq, ih, m.d_v), kv = ih / (m.h_q / m.h_kv);
      T r = 0;
      for (int64_t i = 0; i < m.d_v; i++) r += d_o[y + i] * o[y + i];
      if (learnable) dsink[ih] -= std::exp(sink[ih] - lse) * r;
      for (int64_t ik = 0; ik < m.len_k(ib); ik++) {
        if (!m.kept(ib, ih, iq, ik)) continue;
        const T s = std::exp(m.logit(ib, ih, iq, ik) - lse);
        const bool dropped = m.dropped(ib, ih, iq, ik);
        const int64_t key = m.at(true, ib, ik, kv, m.d), value = m.at(true, ib, ik, kv, m.d_v);
        T dd = 0;
        for (int64_t i = 0; i < m.d_v; i++) {
          dd += d_o[y + i] * m.value[value + i];
          if (!dropped) dv[value + i] += s * keep_scale * d_o[y + i];
        }
        const T ds = s * ((dropped ? 0 : dd * keep_scale) - r);
        for (int64_t i = 0; i < m.d; i++) {
          dq[x + i] += m.scale * ds * m.k[key + i];
          dk[key + i] += m.scale * ds * m.q[x + i];
        }
        if (biased) dbias[m.grid(m.bias_shape, ib, ih, iq, ik)] += (m.pre_scale ? m.scale : 1) * ds;
      }
    });
  }
  static double flops(const Problem &p) { return 2.5 * Forward::flops(p); }
};
TE_TEST(Backward);

// ---- what the cases cannot say ----

// A call in f32 on [b, s, h, d] with every query 0, so that a row is the plain mean of the values that it keeps.
struct Mean {
  nvte_attention_forward_args a = NVTE_ATTENTION_FORWARD_ARGS_INIT;
  std::vector<float> q, k, v, o, stats;
  View tq, tk, tv, to, ts;
  Mean(int64_t b, int64_t s_q, int64_t s_kv, int64_t h, int64_t h_kv, int64_t d)
      : q((size_t)(b * s_q * h * d)), k((size_t)(b * s_kv * h_kv * d), 1), v((size_t)(b * s_kv * h_kv * d)), o(q.size(), -7), stats((size_t)(b * h * s_q), -7),
        tq(q.data(), DType::f32, {b, s_q, h, d}), tk(k.data(), DType::f32, {b, s_kv, h_kv, d}), tv(v.data(), DType::f32, {b, s_kv, h_kv, d}),
        to(o.data(), DType::f32, {b, s_q, h, d}), ts(stats.data(), DType::f32, {b, h, s_q}) {
    a.q = tq, a.k = tk, a.v = tv, a.o = to, a.stats = ts;
  }
  void run() { ASSERT_EQ(nvte_attention_forward(nullptr, &a), NVTE_OK) << nvte_last_error(); }
};

// V = identity: row i of the result shows which keys query i kept.
std::string kept_keys(int64_t n, int64_t left, int64_t right, int mask_kind = NVTE_MASK_NONE) {
  Mean m(1, n, n, 1, 1, n);
  for (int64_t i = 0; i < n; i++) m.v[(size_t)(i * n + i)] = 1;
  m.a.window_left = left, m.a.window_right = right, m.a.mask_kind = mask_kind;
  m.run();
  std::string text;
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < n; j++)
      if (m.o[(size_t)(i * n + j)] > 0) text += (char)('0' + j);
    text += ' ';
  }
  return text;
}
TEST(Attention, A06_window_table) {
  EXPECT_EQ(kept_keys(6, 2, 0), "0 01 012 123 234 345 ");
  EXPECT_EQ(kept_keys(6, 0, 0), "0 1 2 3 4 5 ");
  EXPECT_EQ(kept_keys(6, 2, 2), "012 0123 01234 12345 2345 345 ");
  EXPECT_EQ(kept_keys(6, -1, 0), "0 01 012 0123 01234 012345 ");
  EXPECT_EQ(kept_keys(6, -1, -1), "012345 012345 012345 012345 012345 012345 ");
}
TEST(Attention, A07_window_minus_one_is_unlimited) { EXPECT_EQ(kept_keys(6, -1, 0), kept_keys(6, -1, -1, NVTE_MASK_CAUSAL)); }
TEST(Attention, Windows_do_not_overflow) { EXPECT_EQ(kept_keys(6, INT64_MAX, INT64_MAX), kept_keys(6, -1, -1)); }

TEST(Attention, A11_groups_repeat_not_tile) {
  Mean m(1, 3, 5, 4, 2, 8);
  for (size_t i = 0; i < m.v.size(); i++) m.v[i] = i / 8 % 2 ? 2.f : 1.f;
  m.run();
  for (size_t i = 0; i < m.o.size(); i++) EXPECT_FLOAT_EQ(m.o[i], i / 8 % 4 < 2 ? 1.f : 2.f);
}
TEST(Attention, A16_no_keys) {
  Mean m(1, 1, 0, 2, 1, 8);
  float one = 0;
  m.tk.t.data.data = m.tv.t.data.data = &one;
  m.run();
  for (float x : m.o) EXPECT_EQ(x, 0);
  for (float x : m.stats) EXPECT_EQ(x, -kInf);
}
TEST(Attention, A22_bias_before_and_after_scale) {
  for (int kind : {NVTE_BIAS_POST_SCALE, NVTE_BIAS_PRE_SCALE}) {
    Mean m(1, 2, 2, 1, 1, 2);
    m.v = {1, 0, 0, 1};
    float bias[4] = {4, 0, 0, 4};
    View tb(bias, DType::f32, {1, 1, 2, 2});
    m.a.bias = tb, m.a.scale = 0.5f, m.a.bias_kind = kind;
    m.run();
    const float weight = (float)(1 / (1 + std::exp(kind == NVTE_BIAS_PRE_SCALE ? -2. : -4.)));
    EXPECT_FLOAT_EQ(m.o[0], weight);
    EXPECT_FLOAT_EQ(m.o[3], weight);
  }
}
TEST(Attention, A23_documents_do_not_mix) {
  Mean m(1, 4, 4, 1, 1, 8);
  for (size_t i = 16; i < 32; i++) m.v[i] = 1;
  int32_t cu[3] = {0, 2, 4};
  View tc(cu, DType::i32, {3}), q(m.q.data(), DType::f32, {4, 1, 8}), k(m.k.data(), DType::f32, {4, 1, 8}), v(m.v.data(), DType::f32, {4, 1, 8}),
      o(m.o.data(), DType::f32, {4, 1, 8});
  m.a.q = q, m.a.k = k, m.a.v = v, m.a.o = o, m.a.stats = nullptr;
  m.a.format = NVTE_FORMAT_THD, m.a.cu_seqlens_q = tc, m.a.cu_seqlens_kv = tc;
  m.run();
  for (size_t i = 0; i < 32; i++) EXPECT_EQ(m.o[i], i < 16 ? 0 : 1);
}
// A value that is not finite reaches the queries that keep its key and no other, in every tile of a block.
TEST(Attention, A15_not_finite_values_stay_with_their_key) {
  const int64_t n = 150, at = 70;
  Mean m(1, n, n, 1, 1, 8);
  for (size_t i = 0; i < m.v.size(); i++) m.v[i] = (int64_t)i / 8 == at ? (float)kNaN : 1.f;
  m.a.mask_kind = NVTE_MASK_CAUSAL;
  m.run();
  for (int64_t i = 0; i < n; i++) EXPECT_EQ(std::isnan(m.o[(size_t)i * 8]), i >= at) << i;
}
TEST(Attention, Paged_caches_are_refused_by_name) {
  Mean m(1, 2, 2, 1, 1, 8);
  int32_t pages[2] = {0, 1};
  View t(pages, DType::i32, {1, 2});
  m.a.page_table = t;
  EXPECT_EQ(nvte_attention_forward(nullptr, &m.a), NVTE_ERR_UNSUPPORTED);
  EXPECT_NE(std::string(nvte_last_error()).find("page_table"), std::string::npos) << nvte_last_error();
  for (float x : m.o) EXPECT_EQ(x, -7);
}

}  // namespace
}  // namespace te::test
