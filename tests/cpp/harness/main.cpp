// SPDX-License-Identifier: Apache-2.0
// libte_ops [--mode=test|grad|perf|support|saboteur] [--group=smoke|ci|all] [--op=NAME] [--impl=NAME] [--case=ID] [--seed=N]
//           [--device=cpu|cuda|hip] [--list-ops] [--cases=DIR] [--perf-seconds=S] [--max-elements=N] [--require-isa=LEVEL] [gtest flags]
// Every case is a GoogleTest test "<op>.<implementation>/<case>"; after them come the counts.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#ifndef TE_ALLOW_MISSING
#define TE_ALLOW_MISSING 0
#endif
#include "harness/runner.h"
#include "harness/saboteur.h"

#ifndef TE_CASES_DIR
#define TE_CASES_DIR "tests/cases"
#endif

namespace te::test {
namespace {

struct Count {
  int executed = 0, refused = 0, allowed = 0, skipped = 0, not_applicable = 0, failed = 0, layouts_refused = 0, calls = 0;
};
Options options;
bool filtered = false;
int shard = 0, shards = 1;  // GoogleTest's own sharding would split off the counts, too
std::set<std::string> absent;  // operators without an implementation on this GPU
std::map<std::pair<std::string, std::string>, Count> counts;
std::vector<TableRow> refusals, skips, tolerated;

class Function : public testing::Test {
 public:
  explicit Function(std::function<void()> f) : f_(std::move(f)) {}
  void TestBody() override { f_(); }

 private:
  std::function<void()> f_;
};
void add(const std::string &suite, const std::string &name, std::function<void()> f) {
  testing::RegisterTest(suite.c_str(), name.c_str(), nullptr, nullptr, __FILE__, __LINE__, [f] { return new Function(f); });
}

// A refusal is right when the committed table has it, and a row of the table must be a refusal; a row for the case "?" allows its reason in any case,
// where it comes from the machine (a compiler that is not installed) or from many cases alike.
bool check_refusal(const OpTest &t, const Case &c, const std::string &impl, const Outcome &out) {
  TableRow *row = nullptr;
  for (TableRow &r : refusals)
    if (r.name == "?" && r.op == t.op && r.implementation == impl && !out.refusal.empty() && out.refusal.find(r.reason) != std::string::npos) return r.used = true;
  for (TableRow &r : refusals)
    if (r.matches(t.op, impl, c.id)) row = &r;
  if (row) row->used = true;
  if (!out.refusal.empty() && !row) ADD_FAILURE() << t.op << " " << impl << " " << c.id << " is refused, which refusals.txt does not expect: " << out.refusal;
  if (row && out.refusal.empty() && out.executed) ADD_FAILURE() << "refusals.txt expects " << impl << " to refuse " << c.id << ": " << row->reason;
  if (row && !out.refusal.empty() && out.refusal.find(row->reason) == std::string::npos)
    ADD_FAILURE() << impl << " refuses " << c.id << " with '" << out.refusal << "', refusals.txt says '" << row->reason << "'";
  return false;
}

int64_t elements(const OpTest &t, const Case &c) {
  Problem p(nvte_op_find(t.op), c);
  t.build(c, p);
  int64_t n = 0;
  for (const Arg &a : p.args) n += a.size();
  return n;
}

void one_case(const OpTest &t, const Case &c, const std::string &impl) {
  Count &n = counts[{t.op, impl}];
  for (TableRow &r : skips)
    if (r.matches(t.op, impl, c.id)) {
      r.used = true;
      n.skipped++;
      GTEST_SKIP() << r.reason;
    }
  if (options.max_elements && elements(t, c) > options.max_elements) {
    n.skipped++;
    GTEST_SKIP() << "larger than --max-elements";
  }
  const Outcome out = run_case(t, c, impl, options);
  n.executed += out.executed;
  n.refused += !out.refusal.empty();
  n.not_applicable += !out.executed && out.refusal.empty() && out.failures.empty();
  n.failed += !out.failures.empty();
  n.layouts_refused += out.layouts_refused;
  n.calls += out.checks;
  if (!out.note.empty()) printf("  %-28s %-8s %-40s %s\n", t.op, impl.c_str(), c.id.c_str(), out.note.c_str());
  if (options.mode == Mode::support) printf("  %-28s %-8s %-40s %s\n", t.op, impl.c_str(), c.id.c_str(), out.refusal.empty() ? "takes it" : ("refuses: " + out.refusal).c_str());
  for (const std::string &f : out.failures) ADD_FAILURE() << f;
  if (!out.failures.empty()) printf("replay: %s\n", replay(t, c, impl, options).c_str());
  n.allowed += check_refusal(t, c, impl, out);
}

void check_counts() {
  printf("%-28s %-10s %8s %8s %8s %8s %8s %10s %8s\n", "operator", "impl", "executed", "refused", "skipped", "n/a", "failed", "layouts-no", "calls");
  for (const auto &[key, n] : counts) {
    printf("%-28s %-10s %8d %8d %8d %8d %8d %10d %8d\n", key.first.c_str(), key.second.c_str(), n.executed, n.refused, n.skipped, n.not_applicable, n.failed,
           n.layouts_refused, n.calls);
    if (!filtered && !n.executed && !n.allowed) ADD_FAILURE() << key.first << " " << key.second << ": nothing was executed in mode " << name(options.mode);
  }
  if (counts.empty()) ADD_FAILURE() << "no test ran";
  for (const TableRow &r : refusals)
    if (r.implementation == "-" && !absent.count(r.op) && !filtered) ADD_FAILURE() << "refusals." << options.device << ".txt says that " << r.op << " has no implementation, but it has";
  for (const std::string &op : absent) {
    bool known = false;
    for (TableRow &r : refusals)
      if (r.op == op && r.implementation == "-") known = r.used = true;
    if (!known) ADD_FAILURE() << op << " has no implementation on " << options.device << ", which refusals." << options.device << ".txt does not say (op - - reason)";
  }
  if (filtered || options.mode == Mode::grad) return;
  for (const TableRow &r : refusals)
    if (!r.used && r.name != "?" && options.group == Group::all) ADD_FAILURE() << "refusals.txt has a row of no case: " << r.op << " " << r.implementation << " " << r.name;
}

void check_keys() {
  std::set<std::string> files, unread;
  for (const OpTest &t : op_tests())
    if (nvte_op_find(t.op)) files.insert(t.cases);
  for (const std::string &file : files)
    for (const Case &c : read_cases(options.directory, file, options.group, options.seed))
      for (const auto &kv : c.values)
        if (kv.first != "op" && !Case::keys_read()[file].count(kv.first) && unread.insert(file + kv.first).second)
          ADD_FAILURE() << file << ".txt: no test reads the key '" << kv.first << "' (first in case " << c.id << ")";
}

// The test of an operator must turn red under a saboteur, unless saboteurs.txt says why it cannot.
void sabotaged(const OpTest &t, const Saboteur &s, Mode mode, const std::vector<Case> &cases) {
  Options o = options;
  o.mode = mode;
  o.perf_seconds = 0.0002;
  TableRow *row = nullptr;
  for (TableRow &r : tolerated)
    if (r.matches(t.op, s.name, name(mode))) row = &r;
  reset_damage();
  int red = 0, runs = 0;
  std::string first;
  for (const Case &c : cases) {
    const Outcome out = run_case(t, c, s.name, o);
    runs++;
    if (out.failures.empty()) continue;
    const std::vector<std::string> real = implementations(t.op, device(o.device));
    const Outcome sane = run_case(t, c, real.empty() ? "cpu" : real[0], o);
    if (!sane.failures.empty()) continue;  // red without the saboteur: says nothing
    red++, first = c.id + ": " + out.failures[0];
    break;
  }
  if (row) row->used = true;
  printf("  %-28s %-15s %-8s %s\n", t.op, s.name, name(mode), red ? ("red: " + first).c_str() : damage_done() ? "GREEN though damaged" : "nothing to damage");
  if (red && row && row->op != "*") ADD_FAILURE() << "saboteurs.txt excuses " << t.op << " " << s.name << " " << name(mode) << ", which turns red: remove the row";
  if (!red && !row) ADD_FAILURE() << t.op << " stays green under " << s.name << " (" << s.fault << ") in mode " << name(mode) << ", " << runs << " cases, damaged " << damage_done() << " times";
}

void register_tests(bool saboteur_mode) {
  Device &dev = device(options.device);
  const std::string dir = options.directory;
  // one table of refusals a device: refusals.txt (the CPU), refusals.cuda.txt, refusals.hip.txt
  refusals = read_table(dir, options.device == "cpu" ? "refusals.txt" : "refusals." + options.device + ".txt");
  skips = read_table(dir, options.device == "cpu" ? "skips.txt" : "skips.gpu.txt");
  tolerated = read_table(dir, "saboteurs.txt");
  if (saboteur_mode) register_saboteurs();
  for (const OpTest &t : op_tests()) {
    if (!options.op.empty() && options.op != t.op) continue;
    if (TE_ALLOW_MISSING && !nvte_op_find(t.op)) {
      printf("left out of this build: %s\n", t.op);
      continue;
    }
    std::vector<Case> cases;
    int seen = 0;
    for (Case &c : read_cases(dir, t.cases, options.group, options.seed))
      if (c.applies_to(t.op) && (options.cases.empty() || options.cases == c.id) && seen++ % shards == shard) cases.push_back(c);
    if (saboteur_mode) {
      for (const Saboteur &s : saboteurs())
        for (Mode m : {Mode::test, Mode::grad, Mode::perf, Mode::support}) {
          const nvte_op *op = nvte_op_find(t.op);
          if (!op || cannot_show(s, *op, m) || (m == Mode::grad && !t.gradient) || (!options.implementation.empty() && options.implementation != s.name)) continue;
          add(t.op, std::string(s.name) + "/" + name(m), [&t, &s, m, cases] { sabotaged(t, s, m, cases); });
        }
      continue;
    }
    if (options.mode == Mode::grad && !t.gradient) continue;
    std::vector<std::string> impls = implementations(t.op, dev);
    if (!options.implementation.empty()) impls = {options.implementation};
    if (impls.empty() && options.device != "cpu") {
      absent.insert(t.op);
      continue;
    }
    if (impls.empty()) add(t.op, "no_implementation", [&t] { ADD_FAILURE() << t.op << ": no implementation on this device"; });
    for (const std::string &impl : impls) {
      if (!filtered) counts[{t.op, impl}];
      for (const Case &c : cases) add(t.op, impl + "/" + c.id, [&t, c, impl] { one_case(t, c, impl); });
    }
  }
  if (saboteur_mode) return;
  add("Counts", "executed_and_refused", check_counts);
  if (!filtered && options.mode == Mode::test) {
    add("Counts", "every_key_is_read", check_keys);
    if (!TE_ALLOW_MISSING) add("Counts", "every_operator_is_tested", [] {
      for (size_t i = 0; i < nvte_op_count(); i++)
        if (!find_test(nvte_op_at(i)->name)) ADD_FAILURE() << "no test of " << nvte_op_at(i)->name;
    });
  }
}

bool value_of(const char *arg, const char *key, std::string &value) {
  const size_t n = strlen(key);
  if (strncmp(arg, key, n) || arg[n] != '=') return false;
  value = arg + n + 1;
  return true;
}

// The level in use must be the one named; a machine without it says so on the first call.
bool level_works(const std::string &level) {
  char now[64] = "";
  if (nvte_config_get("cpu.isa", now, sizeof now, nullptr) != NVTE_OK || level != now) {
    fprintf(stderr, "LIBTE_CPU_ISA should be %s, is %s\n", level.c_str(), now);
    std::exit(2);
  }
  const OpTest *t = nullptr;
  for (const OpTest &one : op_tests())
    if (nvte_op_find(one.op)) t = &one;
  if (!t) return true;
  const Outcome out = run_case(*t, read_cases(options.directory, t->cases, Group::smoke, 1).at(0), "cpu", Options{});
  for (const std::string &f : out.failures)
    if (f.find("NVTE_ERR_CONFIG") != std::string::npos) {
      printf("skipped: %s\n", f.c_str());
      return false;
    }
  return true;
}

int run_main(int argc, char **argv) {
  testing::GTEST_FLAG(brief) = true;  // a case per line would drown the counts; --gtest_brief=0 brings them back
  testing::InitGoogleTest(&argc, argv);
  options.directory = TE_CASES_DIR;
  options.device = default_device();
  bool saboteur_mode = false;
  std::string required;
  for (int i = 1; i < argc; i++) {
    std::string v;
    if (!strcmp(argv[i], "--list-ops")) {  // those that have an implementation on the device
      for (const OpTest &t : op_tests())
        if (!implementations(t.op, device(options.device)).empty()) printf("%s\n", t.op);
      return 0;
    }
    if (value_of(argv[i], "--mode", v)) {
      if (v == "saboteur") saboteur_mode = true;
      else if (v == "test") options.mode = Mode::test;
      else if (v == "grad") options.mode = Mode::grad;
      else if (v == "perf") options.mode = Mode::perf;
      else if (v == "support") options.mode = Mode::support;
      else return fprintf(stderr, "--mode must be test, grad, perf, support or saboteur, got %s\n", v.c_str()), 2;
    } else if (value_of(argv[i], "--group", v)) options.group = parse_group(v);
    else if (value_of(argv[i], "--op", v)) options.op = v, filtered = true;
    else if (value_of(argv[i], "--impl", v)) options.implementation = v, filtered = true;
    else if (value_of(argv[i], "--case", v)) options.cases = v, filtered = true;
    else if (value_of(argv[i], "--shard", v)) {
      if (sscanf(v.c_str(), "%d/%d", &shard, &shards) != 2 || shard < 0 || shard >= shards) return fprintf(stderr, "--shard must be I/N with 0 <= I < N, got %s\n", v.c_str()), 2;
      filtered = true;
    } else if (value_of(argv[i], "--seed", v)) options.seed = std::strtoull(v.c_str(), nullptr, 0);
    else if (value_of(argv[i], "--device", v)) options.device = v;
    else if (value_of(argv[i], "--cases", v)) options.directory = v;
    else if (value_of(argv[i], "--max-elements", v)) options.max_elements = std::atoll(v.c_str());
    else if (value_of(argv[i], "--require-isa", v)) required = v;
    else if (value_of(argv[i], "--perf-seconds", v)) options.perf_seconds = std::atof(v.c_str());
    else return fprintf(stderr, "unknown argument %s (see tests/cpp/harness/README.md)\n", argv[i]), 2;
  }
  if (!required.empty() && !level_works(required)) return 77;  // ctest's skip code
  if (options.implementation.compare(0, 4, "sab_") == 0 && !saboteur_mode) register_saboteurs();
  register_tests(saboteur_mode);
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace te::test

int main(int argc, char **argv) {
  try {
    return te::test::run_main(argc, argv);
  } catch (const std::exception &e) {
    fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
