// SPDX-License-Identifier: Apache-2.0
#include "harness/runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>

#include "harness/expect.h"
#include "harness/tolerance.h"

namespace te::test {
namespace {

// One case being worked on.
struct Work {
  const OpTest &test;
  const Case &c;
  const Options &options;
  std::string implementation;
  Device &dev;
  Outcome &out;
  const nvte_op *op;

  CallOptions forced() const {
    CallOptions o;
    o.implementation = implementation;
    return o;
  }
  void fail(const std::string &where, const std::string &what) { out.failures.push_back(where + ": " + what); }
  void fail(const std::string &where, const std::vector<std::string> &what) {
    for (const std::string &w : what) fail(where, w);
  }
  Problem build(uint64_t draw = 0, bool expand = false) const {
    Problem p(op, c, draw, expand);
    test.build(c, p);
    return p;
  }
  // Runs a variant that must succeed; false (and a failure) otherwise.
  bool run(const Problem &p, const CallOptions &o, const std::string &where, Result &r) {
    Call call(p, dev, o);
    out.checks++;
    const nvte_status status = call.run();
    if (status != NVTE_OK) {
      fail(where, std::string("failed with ") + nvte_status_name(status) + ": " + call.message());
      return false;
    }
    const std::string damage = call.check_untouched(false);
    if (!damage.empty()) fail(where, damage);
    r = call.result();
    return damage.empty();
  }
  // Runs a variant that must fail with `status` and a message holding `word`, writing nothing.
  void must_fail(const Problem &p, const CallOptions &o, const std::string &where, nvte_status status, const std::string &word) {
    Call call(p, dev, o);
    out.checks++;
    const nvte_status got = call.run();
    if (got != status) fail(where, std::string("want ") + nvte_status_name(status) + ", got " + nvte_status_name(got) + (got ? ": " + call.message() : ""));
    else if (call.message().find(word) == std::string::npos) fail(where, "the message should name '" + word + "': " + call.message());
    const std::string damage = call.check_untouched(true);
    if (!damage.empty()) fail(where, damage);
  }
};

bool has_output(const Problem &p) {
  for (const Arg &a : p.args)
    if (a.role != Role::in) return true;
  return false;
}

// Calls whose sums a vendor's library makes: on GPUs composites come to it too, through gemm. It picks a kernel by alignment and leading
// dimension, so another layout may be summed in another order: numbers within the tolerance then, the same bits otherwise.
bool by_vendor(const Work &w) {
  static const std::set<std::string> libraries = {"blaslt", "cudnn"}, composites = {"linear_forward", "linear_backward", "norm_linear_forward"};
  return libraries.count(w.implementation) || (w.dev.name() != "cpu" && composites.count(w.test.op));
}
Expected expected(const Work &w, const Problem &p) {
  Expected e = expect(w.test, w.c, p);
  bool fp8 = false;
  for (const Arg &a : p.args) fp8 |= is_fp8(a.dtype);
  for (auto &[key, error] : e.naive_error) {
    double top = 0;
    for (double x : e.want.at(key))
      if (std::isfinite(x)) top = std::fmax(top, std::fabs(x));
    if (fp8 && by_vendor(w) && w.dev.name() == "cuda") error += kFp8SumError * top;
    if (w.implementation == "cudnn") error += cudnn_rounding(p.find(key.c_str())->dtype) * top;
  }
  return e;
}
void same_numbers(Work &w, const Problem &p, const Result &base, const Result &r, const std::string &where, const char *what, const std::string &ignore = "") {
  std::vector<std::string> d = differences(base, r, what, ignore);
  if (!d.empty() && by_vendor(w)) d = compare(p, expected(w, p), r, nullptr);
  w.fail(where, d);
}

// The call as the tests' reference sees it, compared with everything known about it. False: stop here.
bool check_values(Work &w, const Problem &p, const CallOptions &o, const std::string &where, Result &r) {
  if (!w.run(p, o, where, r)) return false;
  const Expected e = expected(w, p);
  Result plain;
  Problem twin = p;
  bool have_twin = unscaled_twin(p, twin);
  if (have_twin) {
    CallOptions contiguous = o;
    contiguous.poison = 0xff;
    have_twin = w.run(twin, contiguous, where + ", unscaled twin", plain);
  }
  const size_t before = w.out.failures.size();
  w.fail(where, compare(p, e, r, have_twin ? &plain : nullptr));
  if (w.implementation != "cpu") {  // decisions.md 32: `cpu` is what the others are held against
    Device &host = device("cpu");
    const std::vector<std::string> known = implementations(w.test.op, host);
    CallOptions with_cpu = o;
    with_cpu.implementation = "cpu";
    Call call(p, host, with_cpu);
    if (std::count(known.begin(), known.end(), "cpu") && call.run() == NVTE_OK) w.fail(where, compare_with_cpu(p, e, r, call.result()));
  }
  return w.out.failures.size() == before;
}

// The text after the last implementation name: "nvte_gemm: cpu: reason" and explain's "cpu refuses: reason" share it.
bool same_reason(const std::string &message, const std::string &explanation, const std::string &implementation, std::string &reason) {
  const size_t at = message.rfind(implementation + ": ");
  reason = at == std::string::npos ? message : message.substr(at + implementation.size() + 2);
  while (!reason.empty() && (reason.back() == '\n' || reason.back() == ' ')) reason.pop_back();
  return !reason.empty() && explanation.find(reason) != std::string::npos;
}

// True when the implementation takes the call. A refusal must be the same in explain and in the forced call.
bool takes(Work &w, const Problem &p) {
  Call call(p, w.dev, w.forced());
  std::string explanation;
  const nvte_status explained = call.explain(explanation);
  w.out.checks++;
  const nvte_status status = call.run();
  if (p.error != NVTE_OK) return true;
  if (explained != NVTE_OK) {
    w.fail("explain", std::string(nvte_status_name(explained)) + ": " + explanation);
    return status == NVTE_OK;
  }
  if (status != NVTE_ERR_UNSUPPORTED) return true;
  if (!same_reason(call.message(), explanation, w.implementation, w.out.refusal))
    w.fail("forced call", "fails with '" + call.message() + "', which explain does not print: " + explanation);
  const std::string damage = call.check_untouched(true);
  if (!damage.empty()) w.fail("refused call", damage);
  return false;
}

// A vendor's library may refuse a layout, with the reason that explain prints; the call itself then goes to another implementation.
void leave_to_others(Work &w, const Problem &p, CallOptions &o, const std::string &where) {
  if (!by_vendor(w)) return;
  Call call(p, w.dev, o);
  w.out.checks++;
  if (call.run() != NVTE_ERR_UNSUPPORTED) return;
  const std::string damage = call.check_untouched(true);
  if (!damage.empty()) w.fail(where + ", refused", damage);
  std::string explanation, reason;
  if (call.explain(explanation) == NVTE_OK && !same_reason(call.message(), explanation, w.implementation, reason))
    w.fail(where, "fails with '" + call.message() + "', which explain does not print: " + explanation);
  w.out.layouts_refused++;
  o.implementation.clear();
}

void check_layouts(Work &w, const Problem &p, const Result &base) {
  for (Layout l : kLayouts) {
    if (l == Layout::contiguous) continue;
    CallOptions o = w.forced();
    o.layout = l;
    const std::string where = std::string("layout ") + name(l);
    if (l == Layout::expand) {
      const Problem q = w.build(0, true);
      bool any = false;
      for (const Arg &a : q.args) any |= a.broadcast;
      Result r;
      if (any) leave_to_others(w, q, o, where);
      if (any) check_values(w, q, o, where, r);
      continue;
    }
    if (!Call(p, w.dev, o).differs()) continue;
    leave_to_others(w, p, o, where);
    Result r;
    if (w.run(p, o, where, r)) same_numbers(w, p, base, r, where, "the layout");
  }
  // layouts that the schema excludes
  for (const Arg &a : p.args) {
    const uint32_t flags = field_of(p.op, a.field)->flags;
    if (flags & NVTE_FIELD_STRIDED || !a.has_data || a.key != a.field) continue;
    const bool wide = a.shape.size() >= 2 && count(leading(a.shape)) > 1 && last(a.shape) > 0;
    const bool flat = a.shape.size() == 1 && a.shape[0] > 1;
    if (!(wide && !(flags & NVTE_FIELD_ROWS)) && !flat) continue;
    CallOptions o = w.forced();
    o.bad_layout = a.field;
    w.must_fail(p, o, "strided " + a.field, NVTE_ERR_INVALID_ARGUMENT, a.field);
    w.out.layouts_refused++;
  }
}

void check_variants(Work &w, const Problem &p, const Result &base) {
  auto same = [&](const CallOptions &o, const std::string &what, const std::string &ignore = "") {
    Result r;
    if (w.run(p, o, what, r)) same_numbers(w, p, base, r, what, what.c_str(), ignore);
  };
  CallOptions o = w.forced();
  o.poison = 0x7f;
  same(o, "other poison");
  nvte_set_num_threads(2);
  same(w.forced(), "two threads");
  nvte_set_num_threads(1);
  o = w.forced();
  o.flush = true;
  same(o, "FTZ and DAZ");
  for (const auto &a : p.aliases) {
    const Arg *out = p.find(a.first), *in = p.find(a.second);
    if (!out || !in || out->dtype != in->dtype || out->shape != in->shape || !out->has_data || out->is_scaled) continue;
    o = w.forced();
    o.alias_out = a.first, o.alias_in = a.second;
    same(o, a.first + " in place of " + a.second);
  }
  for (const Arg &a : p.args) {
    const uint32_t flags = field_of(p.op, a.field)->flags;
    if (a.role == Role::in || a.key != a.field) continue;
    o = w.forced();
    o.read_only = a.field;
    if (a.has_data && !a.untouched) w.must_fail(p, o, "read-only " + a.field, NVTE_ERR_INVALID_ARGUMENT, a.field);
    if (a.role == Role::out && flags & NVTE_FIELD_OPTIONAL && !a.keep_absent) {
      o = w.forced();
      o.drop = a.field;
      same(o, "without " + a.field, a.field);
    }
  }
  o = w.forced();
  o.short_workspace = true;
  Call probe(p, w.dev, w.forced());
  if (probe.run() == NVTE_OK && probe.workspace_bytes()) {
    const std::string size = std::to_string(probe.workspace_bytes());
    w.must_fail(p, o, "short workspace", NVTE_ERR_WORKSPACE, size);
  }
}

void run_test(Work &w) {
  const Problem p = w.build();
  if (!has_output(p)) return w.fail("build", "no output");
  nvte_set_num_threads(1);
  if (!takes(w, p)) return;
  w.out.executed = true;
  if (p.error != NVTE_OK) return w.must_fail(p, w.forced(), "bad call", p.error, p.error_word);
  Result base;
  if (!check_values(w, p, w.forced(), "values", base)) return;
  if (w.options.mode == Mode::support) return;
  check_layouts(w, p, base);
  check_variants(w, p, base);
}

// d(sum of cotangent * forward output)/d(input element), by central differences of the double reference.
void run_grad(Work &w) {
  if (!w.test.gradient) return;
  const Gradient &g = *w.test.gradient;
  const OpTest *forward = find_test(g.forward);
  if (!forward) return w.fail("grad", std::string("no test of ") + g.forward);
  const Problem p = w.build();
  if (p.error != NVTE_OK || !p.differentiable) return;
  for (const Arg &a : p.args)
    if (a.role != Role::in && a.untouched) return;
  Problem f(nvte_op_find(g.forward), w.c);
  forward->build(w.c, f);
  if (f.error != NVTE_OK || !f.differentiable) return;
  int64_t inputs = 0;
  for (const FieldPair &pair : g.wrt)
    if (pair.first && f.has(pair.first) && p.has(pair.second)) inputs += f.find(pair.first)->size();
  if (!inputs || inputs > kDifferenceElements) return;
  nvte_set_num_threads(1);
  if (!takes(w, p)) return;
  // amax and codes are quantities of rounding: what is differentiated is the plain tensor
  Problem plain = p;
  unscaled_twin(p, plain);
  Result got;
  if (!w.run(plain, w.forced(), "grad", got)) return;
  w.out.executed = true;
  const Expected e = expect(w.test, w.c, plain);

  Values<double> at(f);
  // What forward saved (y, rstd, lse) is rounded in what backward is given. The formula is held against differences with the exact
  // numbers in their place, and the operator against the formula on the numbers it was given.
  Values<double> exact(plain);
  {
    Values<double> saved = at;
    forward->reference_double(f, saved);
    for (auto &value : exact.in_) {
      const Arg *out = f.find(value.first), *in = plain.find(value.first);
      if (out && out->role == Role::out && in->role == Role::in && !in->is_scaled && out->size() == in->size()) value.second = saved.out_.at(value.first);
    }
    w.test.reference_double(plain, exact);
  }
  auto loss = [&] {
    Values<double> v = at;
    forward->reference_double(f, v);
    double sum = 0;
    for (const FieldPair &pair : g.cotangents) {
      if (!pair.first || !p.has(pair.second) || !v.out_.count(pair.first)) continue;
      const std::vector<double> &y = v.out_[pair.first], &dy = p.find(pair.second)->values;
      for (size_t i = 0; i < y.size(); i++) sum += y[i] * dy[dy.size() == 1 ? 0 : i];
    }
    return sum;
  };
  for (const FieldPair &pair : g.wrt) {
    if (!pair.first || !f.has(pair.first) || !p.has(pair.second)) continue;
    const Arg &out = *plain.find(pair.second);
    if (out.size() != f.find(pair.first)->size()) {
      w.fail("grad", std::string(pair.second) + " and " + pair.first + " have different sizes");
      continue;
    }
    std::vector<double> &x = at.in_[pair.first];
    std::vector<double> slope(x.size());
    double peak = 0;
    for (size_t i = 0; i < x.size(); i++) {
      const double keep = x[i], h = kDifferenceStep * std::fmax(1, std::fabs(keep));
      x[i] = keep + h;
      const double up = loss();
      x[i] = keep - h;
      slope[i] = (up - loss()) / (2 * h);
      x[i] = keep;
      peak = std::fmax(peak, std::fabs(slope[i]));
    }
    const std::vector<uint8_t> &bytes = got[out.key];
    const std::vector<double> &formula = exact.out_.at(out.key), &given = e.want.at(out.key);
    for (size_t i = 0; i < slope.size(); i++) {
      const double noise = kDifferenceNoise * std::fmax(peak, 1), value = read_element(out.dtype, bytes.data() + i * bytes_of(out.dtype));
      const double bound = float_bound(e.naive_error.at(out.key), ulp(out.dtype, given[i]));
      char buf[256];
      if (!(std::fabs(formula[i] - slope[i]) <= noise)) {
        snprintf(buf, sizeof buf, "%s[%zu]: the backward formula gives %.9g, finite differences %.9g", out.key.c_str(), i, formula[i], slope[i]);
        return w.fail("grad", buf);
      }
      if (!(std::fabs(value - given[i]) <= bound)) {
        snprintf(buf, sizeof buf, "%s[%zu]: got %.9g, the formula on what it was given is %.9g, may differ by %.3g", out.key.c_str(), i, value, given[i], bound);
        return w.fail("grad", buf);
      }
    }
  }
}

void run_perf(Work &w) {
  const Problem p = w.build();
  if (p.error != NVTE_OK) return;
  nvte_set_num_threads(0);
  if (!takes(w, p)) return;
  Result base;
  if (!check_values(w, p, w.forced(), "perf", base)) return;
  w.out.executed = true;
  bool repeatable = true;
  for (const Arg &a : p.args) repeatable &= a.role != Role::inout;
  using clock = std::chrono::steady_clock;
  Call call(p, w.dev, w.forced());
  call.run();
  std::vector<double> times;
  const auto start = clock::now();
  do {
    const auto t = clock::now();
    if (call.run_again() != NVTE_OK) return w.fail("perf", call.message());
    times.push_back(std::chrono::duration<double>(clock::now() - t).count());
  } while (std::chrono::duration<double>(clock::now() - start).count() < w.options.perf_seconds && times.size() < 100000);
  std::nth_element(times.begin(), times.begin() + (ptrdiff_t)times.size() / 2, times.end());
  const double median = times[times.size() / 2];
  Result last;
  if (repeatable && w.run(p, w.forced(), "perf", last)) same_numbers(w, p, base, last, "perf", "repeating the call");
  char buf[160];
  int n = snprintf(buf, sizeof buf, "%10.2f us %8.2f GB/s", median * 1e6, call.bytes_moved() / median * 1e-9);
  if (w.test.flops) snprintf(buf + n, sizeof buf - (size_t)n, " %8.2f GF/s", w.test.flops(p) / median * 1e-9);
  w.out.note = buf;
}

}  // namespace

const char *name(Mode m) {
  switch (m) {
    case Mode::test: return "test";
    case Mode::grad: return "grad";
    case Mode::perf: return "perf";
    case Mode::support: return "support";
  }
  return "?";
}

std::vector<OpTest> &op_tests() {
  static std::vector<OpTest> tests;
  return tests;
}
const OpTest *find_test(const std::string &op) {
  for (const OpTest &t : op_tests())
    if (op == t.op) return &t;
  return nullptr;
}

Outcome run_case(const OpTest &test, const Case &c, const std::string &implementation, const Options &o) {
  Outcome out;
  const nvte_op *op = nvte_op_find(test.op);
  if (!op) {
    out.failures.push_back(std::string("libte has no operator ") + test.op);
    return out;
  }
  try {
    Work w = {test, c, o, implementation, device(o.device), out, op};
    switch (o.mode) {
      case Mode::test: case Mode::support: run_test(w); break;
      case Mode::grad: run_grad(w); break;
      case Mode::perf: run_perf(w); break;
    }
  } catch (const std::exception &e) {
    out.failures.push_back(std::string("exception: ") + e.what());
  }
  nvte_set_num_threads(0);
  return out;
}

std::vector<std::string> implementations(const std::string &op, const Device &d) {
  const char *names[64];
  size_t n = 64;
  std::vector<std::string> r;
  if (nvte_op_implementations(op.c_str(), d.dl().device_type, names, &n) != NVTE_OK) return r;
  for (size_t i = 0; i < n && i < 64; i++)
    if (strncmp(names[i], "sab_", 4)) r.push_back(names[i]);
  return r;
}

std::string replay(const OpTest &test, const Case &c, const std::string &implementation, const Options &o) {
  char isa[64] = "auto";
  nvte_config_get("cpu.isa", isa, sizeof isa, nullptr);
  std::string group = c.group == Group::smoke ? "smoke" : c.group == Group::ci ? "ci" : "all";
  return std::string("LIBTE_CPU_ISA=") + isa + " libte_ops --mode=" + name(o.mode) + " --group=" + group + " --op=" + test.op + (o.device == default_device() && o.device == "cpu" ? "" : " --device=" + o.device) + " --impl=" + implementation + " --case=" + c.id +
         " --seed=" + std::to_string(c.seed);
}

std::vector<TableRow> read_table(const std::string &directory, const std::string &name) {
  std::vector<TableRow> rows;
  std::string text;
  read_file(directory, name, text);
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    std::stringstream words(line.substr(0, line.find('#')));
    TableRow r;
    if (!(words >> r.op >> r.implementation >> r.name)) continue;
    std::getline(words >> std::ws, r.reason);
    rows.push_back(r);
  }
  return rows;
}

}  // namespace te::test
