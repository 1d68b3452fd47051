// SPDX-License-Identifier: Apache-2.0
// Which of a vendor library's candidates runs: pure logic, so that a test can stand in for the library.
#pragma once

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

}  // namespace te::gemm
