// SPDX-License-Identifier: Apache-2.0
// Cases: shapes and attributes as text, read by the tests and by the benchmarks. See tests/cases/README.md for the format.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness/codec.h"

namespace te::test {

enum class Group { smoke = 0, ci = 1, all = 2 };
Group parse_group(const std::string &text);

class Case {
 public:
  std::string id;  // unique in its file: the line's name and the values of its alternatives, "rows.bf16.1"
  Group group = Group::smoke;
  uint64_t seed = 1;

  bool has(const std::string &key) const;
  // Values by key; without a fallback a missing key is an error.
  std::string s(const std::string &key) const;
  std::string s(const std::string &key, const std::string &fallback) const;
  int64_t i(const std::string &key) const;
  int64_t i(const std::string &key, int64_t fallback) const;
  double f(const std::string &key) const;
  double f(const std::string &key, double fallback) const;
  bool flag(const std::string &key) const { return i(key, 0) != 0; }
  Shape shape(const std::string &key) const;
  DType dtype(const std::string &key) const;
  DType dtype(const std::string &key, DType fallback) const;
  // True when the line has no `op` key or names this operator: "rmsnorm_backward" or "backward".
  bool applies_to(const std::string &op) const;

  std::map<std::string, std::string> values;
  static std::map<std::string, std::set<std::string>> &keys_read();  // file -> keys that some test asked for
  std::string file;
};

// The cases of a folder up to `group`, `|` alternatives multiplied out and a..b ranges drawn from the seed.
std::vector<Case> read_cases(const std::string &directory, const std::string &folder, Group group, uint64_t seed);

// A file of a case folder; "embedded" is the folder that a GPU test program carries inside. False: there is none.
bool read_file(const std::string &directory, const std::string &name, std::string &text);
struct Embedded {
  const char *name, *text;
};

// Numbers that depend on nothing but their arguments.
uint64_t mix(uint64_t seed, uint64_t index);
uint64_t hash(const std::string &text);

}  // namespace te::test
