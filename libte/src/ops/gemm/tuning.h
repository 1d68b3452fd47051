// SPDX-License-Identifier: Apache-2.0
// Which of a vendor library's candidates runs: pure logic, so that a test can stand in for the library.
#pragma once
#include <array>
#include <cstdint>
#include <istream>
#include <map>
#include <ostream>
#include <sstream>
#include <string>

namespace te::gemm {

struct Tuning {
  int selection;  // index of the first candidate (TE_HIPBLASLT_ALGO_SELECTION)
  int runs;       // timed loops a candidate, 0 = take the first that works (TE_HIPBLASLT_TUNING_RUN_COUNT)
  int count;      // candidates timed at most, from `selection` on (TE_HIPBLASLT_TUNING_ALGO_COUNT)
};

// The index of the candidate to take, -1 if none works. works(i): runs candidate i once and says whether it did; seconds(i): its time for
// `runs` loops. A selection past the end means the last one. Without tuning, candidates after the selected one are tried in order until
// one works; the call has been made then.
template <class Works, class Seconds> int choose(int candidates, const Tuning &t, Works &&works, Seconds &&seconds) {
  const int first = t.selection < candidates ? t.selection : candidates - 1;
  if (candidates < 1) return -1;
  if (t.runs < 1) {
    for (int i = first; i < candidates; i++)
      if (works(i)) return i;
    return -1;
  }
  int best = -1;
  double shortest = 0;
  for (int i = first, left = t.count > 1 ? t.count : 1; i < candidates && left > 0; i++) {
    if (!works(i)) continue;
    left--;
    const double s = seconds(i);
    if (best >= 0 && !(s < shortest)) continue;
    best = i;
    shortest = s;
  }
  return best;
}

// What tells one problem from another, and the candidates chosen, by their place in the library's list.
using Key = std::array<int64_t, 19>;
using Choices = std::map<Key, int>;

// A file of choices is CSV: a line that names the library and its version, then a line a problem, the key's numbers and the candidate.
// NULL, or why none of it is used.
inline const char *read_choices(std::istream &in, const std::string &library, Choices *out) {
  std::string line;
  if (!std::getline(in, line)) return "it is empty";
  if (line != library) return "it is of another library or version";
  Choices read;
  while (std::getline(in, line)) {
    std::istringstream row(line);
    Key key;
    int64_t candidate = -1;
    char comma = ',';
    for (int64_t &k : key)
      if (!(row >> k >> comma) || comma != ',') return "a line is damaged";
    if (!(row >> candidate) || candidate < 0 || candidate > 1000 || !(row >> std::ws).eof()) return "a line is damaged";
    read[key] = (int)candidate;
  }
  out->insert(read.begin(), read.end());
  return nullptr;
}
inline void write_choices(std::ostream &out, const std::string &library, const Choices &choices) {
  out << library << '\n';
  for (const auto &[key, candidate] : choices) {
    for (int64_t k : key) out << k << ',';
    out << candidate << '\n';
  }
}
// "%i" in a file's name is the process id.
inline std::string file_name(std::string name, long process) {
  const size_t at = name.find("%i");
  return at == std::string::npos ? name : name.replace(at, 2, std::to_string(process));
}

}  // namespace te::gemm
