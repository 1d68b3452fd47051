// SPDX-License-Identifier: Apache-2.0
// The choice of a GEMM library's candidate, against a stand-in for the library.
#include "ops/gemm/tuning.h"

#include <gtest/gtest.h>

#include <vector>

namespace te::test {
namespace {

// Candidate i works where works[i], and takes times[i].
struct Library {
  std::vector<bool> works;
  std::vector<double> times;
  std::vector<int> tried, timed;
  int choose(const gemm::Tuning &t) {
    return gemm::choose((int)works.size(), t, [&](int i) { return tried.push_back(i), (bool)works[(size_t)i]; },
                        [&](int i) { return timed.push_back(i), times[(size_t)i]; });
  }
};

TEST(Tuning, G05_failing_candidates_are_skipped) {
  Library l{{false, false, true, true}, {}, {}, {}};
  EXPECT_EQ(l.choose({0, 0, 16}), 2);
  EXPECT_EQ(l.tried, (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(l.timed.empty());
}
TEST(Tuning, choices_are_saved_and_loaded) {
  gemm::Choices some, back;
  for (int i = 0; i < 3; i++) {
    gemm::Key k{};
    k[0] = i, k[18] = -i;
    some[k] = 10 * i;
  }
  std::stringstream text;
  gemm::write_choices(text, "cuda 130000", some);
  std::istringstream good(text.str()), other(text.str()), cut(text.str().substr(0, text.str().size() - 4)), empty("");
  EXPECT_STREQ(gemm::read_choices(other, "cuda 120000", &back), "it is of another library or version");
  EXPECT_STREQ(gemm::read_choices(cut, "cuda 130000", &back), "a line is damaged");
  EXPECT_STREQ(gemm::read_choices(empty, "cuda 130000", &back), "it is empty");
  EXPECT_TRUE(back.empty());
  EXPECT_EQ(gemm::read_choices(good, "cuda 130000", &back), nullptr);
  EXPECT_EQ(back, some);
  EXPECT_EQ(gemm::file_name("/tmp/algo.%i.csv", 42), "/tmp/algo.42.csv");
}
TEST(Tuning, none_works) {
  Library l{{false, false}, {1, 1}, {}, {}}, empty;
  EXPECT_EQ(l.choose({0, 0, 16}), -1);
  EXPECT_EQ(l.choose({0, 3, 16}), -1);
  EXPECT_EQ(empty.choose({0, 3, 16}), -1);
  EXPECT_TRUE(l.timed.empty());
}
TEST(Tuning, selection_is_the_first_one) {
  Library l{{true, true, true, true}, {}, {}, {}};
  EXPECT_EQ(l.choose({2, 0, 16}), 2);
  EXPECT_EQ(l.choose({9, 0, 16}), 3);  // past the end: the last
}
TEST(Tuning, fastest_of_those_that_work) {
  Library l{{true, false, true, true, true}, {5, 0, 3, 4, 1}, {}, {}};
  EXPECT_EQ(l.choose({0, 10, 3}), 2);  // 0, 2 and 3 are timed
  EXPECT_EQ(l.timed, (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(l.choose({3, 10, 16}), 4);
}

}  // namespace
}  // namespace te::test
