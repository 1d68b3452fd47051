// SPDX-License-Identifier: Apache-2.0
// Runs one case of one operator with one implementation forced by name, in one of four modes.
#pragma once
#include <fnmatch.h>

#include <map>

#include "harness/op_test.h"
#include "harness/device.h"

namespace te::test {

enum class Mode {
  test,    // values, layouts, guards, threads, floating-point environment, aliases, optional outputs
  grad,    // backward operators against finite differences of forward's double reference
  perf,    // median time; the timed result is checked too
  support  // who takes the case and who refuses it with what reason; forced calls must fail with that very reason
};
const char *name(Mode m);

struct Options {
  Mode mode = Mode::test;
  Group group = Group::smoke;
  std::string op, implementation, cases, device = "cpu", directory;
  uint64_t seed = 1;
  double perf_seconds = 0.02;  // a case
  int64_t max_elements = 0;    // larger cases are skipped (emulators); 0 = none
};

struct Outcome {
  bool executed = false;
  std::string refusal;      // the reason, where the implementation refused
  int layouts_refused = 0;  // layouts that the schema excludes and the door refused
  int checks = 0;           // calls made
  std::string note;         // perf: time and rates
  std::vector<std::string> failures;
};
// Never throws. `implementation` must be a name known for the device.
Outcome run_case(const OpTest &test, const Case &c, const std::string &implementation, const Options &o);

std::vector<std::string> implementations(const std::string &op, const Device &d);

// Words that reproduce one case.
std::string replay(const OpTest &test, const Case &c, const std::string &implementation, const Options &o);

// Lines of a text table in the cases directory ("refusals.txt"), none where there is no such file: words, '#' starts a comment.
struct TableRow {
  std::string op, implementation, name, reason;
  bool used = false;
  bool matches(const std::string &o, const std::string &i, const std::string &n) const {
    const auto fits = [](const std::string &pattern, const std::string &x) { return fnmatch(pattern.c_str(), x.c_str(), 0) == 0; };
    return fits(op, o) && fits(implementation, i) && fits(name, n);
  }
};
std::vector<TableRow> read_table(const std::string &directory, const std::string &name);

}  // namespace te::test
