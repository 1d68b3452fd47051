// SPDX-License-Identifier: Apache-2.0
#include "harness/expect.h"

#include <cmath>
#include <cstdio>
#include <cstring>

#include "harness/tolerance.h"

namespace te::test {
namespace {

bool scaled_inexact(const Arg &a) { return a.is_scaled && !a.is_exact; }
DType compared_dtype(const Arg &a) { return scaled_inexact(a) ? DType::f32 : a.dtype; }

template <class... A> std::string format(const char *f, A... a) {
  char buf[512];
  snprintf(buf, sizeof buf, f, a...);
  return buf;
}

void naive_errors(const OpTest &test, const Problem &p, const Values<double> &exact, Expected &e) {
  Values<float> naive(p);
  test.reference_float(p, naive);
  for (const Arg &a : p.args) {
    if (a.role == Role::in) continue;
    double &worst = e.naive_error[a.key];
    const std::vector<double> &want = exact.out_.at(a.key);
    const std::vector<float> &got = naive.out_.at(a.key);
    for (size_t i = 0; i < want.size(); i++) {
      const DType t = compared_dtype(a);
      const double rounded = is_float(t) ? decode(t, encode(t, (double)got[i])) : (double)got[i];
      const double error = std::fabs(rounded - want[i]);
      if (std::isfinite(error) && error > worst) worst = error;
    }
  }
}

// Collects mismatches of one tensor; keeps the first and the worst.
struct Mismatches {
  std::string name;
  Shape shape;
  size_t n = 0;
  std::string first;
  void add(size_t i, double got, double want, double bound) {
    if (n++) return;
    Shape at(shape.size());
    size_t rest = i;
    for (size_t d = shape.size(); d-- > 0;) at[d] = (int64_t)(rest % (size_t)shape[d]), rest /= (size_t)shape[d];
    first = format("%s%s: got %.9g, want %.9g, may differ by %.3g", name.c_str(), text(at).c_str(), got, want, bound);
  }
  void report(std::vector<std::string> &out, size_t total) const {
    if (n) out.push_back(first + format(" (%zu of %zu elements differ)", n, total));
  }
};

bool same_value(double a, double b) { return a == b ? std::signbit(a) == std::signbit(b) : std::isnan(a) && std::isnan(b); }

void compare_floats(const Arg &a, DType t, const std::vector<uint8_t> &bytes, const std::vector<double> &want, double naive, std::vector<std::string> &out) {
  Mismatches m = {a.key, a.shape, 0, ""};
  const size_t size = bytes_of(t);
  for (size_t i = 0; i < want.size(); i++) {
    const double got = read_element(t, bytes.data() + i * size), w = want[i];
    const double rounded = decode(t, encode(t, w));
    if (std::isnan(w) || std::isnan(got)) {
      if (!(std::isnan(w) && std::isnan(got))) m.add(i, got, w, 0);
      continue;
    }
    const double bound = float_bound(naive, ulp(t, w));
    if (std::isinf(rounded)) {  // overflow, or just within the bound of it
      if (got != rounded && !(std::fabs(got - w) <= bound)) m.add(i, got, w, bound);
      continue;
    }
    if (!(std::fabs(got - w) <= bound)) m.add(i, got, w, bound);
  }
  m.report(out, want.size());
}

std::vector<uint8_t> part(const Result &r, const std::string &name) {
  const auto it = r.find(name);
  return it == r.end() ? std::vector<uint8_t>() : it->second;
}
float f32_of(const std::vector<uint8_t> &b) {
  float f = 0;
  if (b.size() == 4) memcpy(&f, b.data(), 4);
  return f;
}

void compare_sqnr(const Arg &a, const std::vector<double> &codes, const std::vector<double> &want, std::vector<std::string> &out) {
  double signal = 0, noise = 0, peak = 0, inv = (double)(1.0f / a.scale);
  for (size_t i = 0; i < want.size(); i++) {
    if (!std::isfinite(want[i])) return;
    const double d = codes[i] * inv - want[i];
    signal += want[i] * want[i], noise += d * d;
    peak = std::fmax(peak, std::fabs(want[i] * a.scale));
  }
  // only where the numbers fit: neither saturated nor mostly subnormal codes
  if ((int64_t)want.size() < kSqnrElements || peak > largest(a.dtype) || peak < largest(a.dtype) / 32 || noise == 0) return;
  const double rms = std::sqrt(signal / (double)want.size()) * a.scale;
  if (rms * 8 < peak) return;  // not normally distributed
  const double db = 10 * std::log10(signal / noise);
  if (db < least_sqnr(a.dtype)) out.push_back(format("%s: SQNR %.1f dB, least %.1f", a.key.c_str(), db, least_sqnr(a.dtype)));
}

void compare_scaled(const Arg &a, const std::vector<double> &want, double naive, const Result &got, const Result *twin, std::vector<std::string> &out) {
  const size_t n = want.size();
  // u: the f32 numbers that are quantised. Without a twin there is an interval only.
  std::vector<float> u(n);
  const bool have_twin = twin && twin->count(a.key);
  const bool known = a.is_exact || have_twin;
  if (a.is_exact) {
    for (size_t i = 0; i < n; i++) u[i] = (float)want[i];
  } else if (have_twin) {
    const std::vector<uint8_t> b = part(*twin, a.key);
    memcpy(u.data(), b.data(), n * 4);
    compare_floats(a, DType::f32, b, want, naive, out);
  }
  auto code_of = [&](double x) { return encode(a.dtype, (double)((float)x * a.scale)); };
  auto check = [&](const std::string &name, bool transposed) {
    const std::vector<uint8_t> b = part(got, name);
    Mismatches m = {name, transposed ? Shape{(int64_t)n} : a.shape, 0, ""};
    const size_t k = (size_t)last(a.shape), rows = k ? n / k : 0;
    std::vector<double> codes(n);
    for (size_t i = 0; i < n; i++) {
      const uint8_t code = b[transposed ? i % k * rows + i / k : i];
      codes[i] = decode(a.dtype, code);
      if (known) {
        const uint64_t w = code_of(u[i]);
        if (code != w) m.add(i, codes[i], decode(a.dtype, w), 0);
      } else {
        const double bound = float_bound(naive, ulp(DType::f32, want[i]));
        const double lo = decode(a.dtype, code_of(want[i] - bound)), hi = decode(a.dtype, code_of(want[i] + bound));
        if (!(codes[i] >= lo && codes[i] <= hi)) m.add(i, codes[i], want[i] * a.scale, bound * a.scale);
      }
    }
    m.report(out, n);
    compare_sqnr(a, codes, want, out);
  };
  if (a.has_data) check(a.key, false);
  if (a.has_columnwise) check(a.key + ".columnwise", true);
  for (const char *suffix : {".scale_inv", ".columnwise_scale_inv"}) {
    const auto it = got.find(a.key + suffix);
    if (it == got.end()) continue;
    const float w = 1.0f / a.scale, g = f32_of(it->second);
    if (memcmp(&w, &g, 4)) out.push_back(format("%s%s: got %.9g, want %.9g (1 / scale) bit for bit", a.key.c_str(), suffix, (double)g, (double)w));
  }
  if (a.has_amax) {
    float w = a.amax_accumulate ? a.amax_before : 0;
    double exact = w;
    for (size_t i = 0; i < n; i++) w = std::fmax(w, std::fabs(u[i])), exact = std::fmax(exact, std::fabs(want[i]));
    const float g = f32_of(part(got, a.key + ".amax"));
    const double bound = known ? 0 : float_bound(naive, ulp(DType::f32, exact));
    if (known ? g != w : !(std::fabs(g - exact) <= bound)) out.push_back(format("%s.amax: got %.9g, want %.9g", a.key.c_str(), (double)g, known ? (double)w : exact));
  }
}

}  // namespace

Expected expect(const OpTest &test, const Case &c, const Problem &p) {
  Expected e;
  Values<double> v(p);
  test.reference_double(p, v);
  e.want = v.out_;
  naive_errors(test, p, v, e);
  int64_t seen = 0;
  bool inexact = false;
  for (const Arg &a : p.args)
    if (a.role != Role::in) {  // expanded inputs can make all outputs equal (a product of equal rows): one evaluation
      seen += p.expand && a.size() ? 1 : a.size();
      inexact |= !a.is_exact && (is_float(a.dtype) || a.is_scaled);
    }
  const int64_t outputs = seen;
  for (int draw = 1; inexact && outputs && seen < kNaiveOutputs && draw < kNaiveDraws; draw++, seen += outputs) {
    Problem q(p.op, c, (uint64_t)draw, p.expand);
    test.build(c, q);
    Values<double> w(q);
    test.reference_double(q, w);
    naive_errors(test, q, w, e);
  }
  return e;
}

bool unscaled_twin(const Problem &p, Problem &twin) {
  bool any = false;
  for (Arg &a : twin.args) {
    if (a.role == Role::in || !scaled_inexact(a) || !strstr(field_of(p.op, a.field)->dtypes, "f32")) continue;
    any = true;
    a.dtype = DType::f32;
    a.is_scaled = a.has_amax = a.has_columnwise = a.amax_accumulate = false;
    a.has_data = true;
    a.scale = 1;
  }
  return any;
}

std::vector<std::string> compare(const Problem &p, const Expected &e, const Result &got, const Result *twin) {
  std::vector<std::string> out;
  for (const Arg &a : p.args) {
    if (a.role == Role::in || a.untouched) continue;
    if (!got.count(a.key) && !got.count(a.key + ".columnwise")) continue;  // left out of this call
    const std::vector<double> &want = e.want.at(a.key);
    const double naive = e.naive_error.at(a.key);
    if (a.is_scaled) {
      compare_scaled(a, want, naive, got, twin, out);
      continue;
    }
    const std::vector<uint8_t> bytes = part(got, a.key);
    if (is_float(a.dtype) && !a.is_exact) {
      compare_floats(a, a.dtype, bytes, want, naive, out);
    } else {
      Mismatches m = {a.key, a.shape, 0, ""};
      for (size_t i = 0; i < want.size(); i++) {
        const double g = read_element(a.dtype, bytes.data() + i * bytes_of(a.dtype));
        const double w = decode(a.dtype, encode(a.dtype, is_float(a.dtype) ? (double)(float)want[i] : want[i]));
        if (!same_value(g, w)) m.add(i, g, w, 0);
      }
      m.report(out, want.size());
    }
    if (a.has_amax) {  // of the stored values
      float w = a.amax_accumulate ? a.amax_before : 0;
      for (size_t i = 0; i < want.size(); i++) w = std::fmax(w, (float)std::fabs(read_element(a.dtype, bytes.data() + i * bytes_of(a.dtype))));
      const float g = f32_of(part(got, a.key + ".amax"));
      if (g != w) out.push_back(format("%s.amax: got %.9g, want %.9g, the largest stored magnitude", a.key.c_str(), (double)g, (double)w));
    }
  }
  return out;
}

std::vector<std::string> compare_with_cpu(const Problem &p, const Expected &e, const Result &got, const Result &cpu) {
  std::vector<std::string> out;
  for (const Arg &a : p.args) {
    if (a.role == Role::in || a.untouched) continue;
    for (const std::string &name : {a.key, a.key + ".columnwise"}) {
      const std::vector<uint8_t> g = part(got, name), c = part(cpu, name);
      if (g.empty() || c.empty()) continue;
      const size_t size = bytes_of(a.dtype), n = g.size() / size;
      Mismatches m = {name + " against cpu", Shape{(int64_t)n}, 0, ""};
      for (size_t i = 0; i < n; i++) {
        const double x = read_element(a.dtype, &g[i * size]), y = read_element(a.dtype, &c[i * size]);
        if (same_value(x, y)) continue;
        double bound = 0;
        if (a.is_scaled && !a.is_exact) bound = ulp(a.dtype, std::fmax(std::fabs(x), std::fabs(y)));
        else if (is_float(a.dtype) && !a.is_exact) bound = 2 * float_bound(e.naive_error.at(a.key), ulp(a.dtype, y));
        if (!(std::fabs(x - y) <= bound)) m.add(i, x, y, bound);
      }
      m.report(out, n);
    }
  }
  return out;
}

std::vector<std::string> differences(const Result &a, const Result &b, const char *what, const std::string &ignore) {
  std::vector<std::string> out;
  for (const auto &part : b) {
    if (!ignore.empty() && part.first.compare(0, ignore.size(), ignore) == 0) continue;
    const auto it = a.find(part.first);
    if (it == a.end()) continue;
    size_t n = 0, first = 0;
    for (size_t i = 0; i < part.second.size(); i++)
      if (part.second[i] != it->second[i] && !n++) first = i;
    if (n) out.push_back(format("%s: %s changes %zu bytes of the result, first byte %zu", part.first.c_str(), what, n, first));
  }
  return out;
}

}  // namespace te::test
