// SPDX-License-Identifier: Apache-2.0
// What is kept of run-time compilation, against a stand-in for the compiler; and the choice of tiles.
#include "gpu/rtc/cache.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gpu/rtc/tiles.h"

namespace te::test {
namespace {
using namespace gpu::rtc;
namespace fs = std::filesystem;

class RtcCache : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/libte_rtc_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }
  // What a call gets; compiles counts.
  std::string get(const Cache &cache, const std::string &key) {
    std::string code;
    error = obtain(cache, key, [&](std::string *out) { return compiles++, *out = "code of " + key, failure; }, &code, &unkept);
    return code;
  }
  static std::string read(const std::string &path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  static void write(const std::string &path, const std::string &text) { std::ofstream(path, std::ios::binary) << text; }
  size_t files() const { return (size_t)std::distance(fs::directory_iterator(folder), fs::directory_iterator()); }
  std::string folder, error, unkept, failure;
  int compiles = 0;
};

TEST_F(RtcCache, compiles_once_a_key) {
  const Cache cache(folder + "/made/on demand");
  EXPECT_EQ(get(cache, "a"), "code of a");
  EXPECT_EQ(get(cache, "a"), "code of a");
  EXPECT_EQ(compiles, 1);
  EXPECT_EQ(unkept, "");
  EXPECT_EQ(get(Cache(folder + "/made/on demand"), "a"), "code of a");  // as another process finds it
  EXPECT_EQ(compiles, 1);
  EXPECT_EQ(get(cache, "b"), "code of b");
  EXPECT_EQ(compiles, 2);
}
TEST_F(RtcCache, code_and_key_may_hold_any_byte) {
  const Cache cache(folder);
  const std::string key("k\n\0 1 2", 8), code("\n\0\xff libte code 1 0 0\n", 22);
  EXPECT_EQ(cache.add(key, code), "");
  std::string back;
  ASSERT_TRUE(cache.find(key, &back));
  EXPECT_EQ(back, code);
}
TEST_F(RtcCache, any_damage_is_a_miss_and_is_mended) {
  const Cache cache(folder);
  get(cache, "key");
  const std::string path = cache.path("key"), whole = read(path);
  for (size_t i = 0; i < whole.size(); i++) {
    std::string bad = whole, code;
    bad[i] ^= 1;
    write(path, bad);
    EXPECT_FALSE(cache.find("key", &code)) << "byte " << i;
    write(path, whole.substr(0, i));
    EXPECT_FALSE(cache.find("key", &code)) << "cut to " << i;
  }
  write(path, whole + "x");
  EXPECT_EQ(get(cache, "key"), "code of key");
  EXPECT_EQ(compiles, 2);
  EXPECT_EQ(read(path), whole);
}
TEST_F(RtcCache, a_file_of_another_key_is_a_miss) {
  const Cache cache(folder);
  get(cache, "one");
  write(cache.path("two"), read(cache.path("one")));
  std::string code;
  EXPECT_FALSE(cache.find("two", &code));
}
TEST_F(RtcCache, a_failed_compile_keeps_nothing) {
  failure = "line 3: no";
  get(Cache(folder), "key");
  EXPECT_EQ(error, "line 3: no");
  EXPECT_EQ(files(), 0u);
}
TEST_F(RtcCache, an_unusable_folder_only_costs_the_next_compile) {
  write(folder + "/file", "");
  for (const std::string &bad : {folder + "/file/below", std::string()}) {
    compiles = 0;
    const Cache cache(bad);
    EXPECT_EQ(get(cache, "key"), "code of key");
    EXPECT_EQ(error, "");
    EXPECT_NE(unkept, "") << bad;
    EXPECT_EQ(get(cache, "key"), "code of key");
    EXPECT_EQ(compiles, 2);
  }
}
TEST_F(RtcCache, folders) {
  EXPECT_EQ(cache_folder("/set", "/xdg", "/home/me"), "/set");
  EXPECT_EQ(cache_folder("", "/xdg", "/home/me"), "/xdg/libte");
  EXPECT_EQ(cache_folder("", "", "/home/me"), "/home/me/.cache/libte");
  EXPECT_EQ(cache_folder("", "", ""), "");
}
// bugs.md I10: eight processes start together, one is killed midway.
TEST_F(RtcCache, I10_processes_that_start_together) {
  const std::string key = "key", big(1 << 18, 'x');
  std::vector<pid_t> children;
  for (int i = 0; i < 8; i++) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      bool ok = true;
      for (int turn = 0; turn < (i == 0 ? 1000000 : 20); turn++) {
        const Cache cache(folder);
        std::string code;
        if (turn % 3 == 0) ok = ok && cache.add(key, big).empty();
        if (cache.find(key, &code)) ok = ok && code == big;
      }
      _exit(ok ? 0 : 1);
    }
    children.push_back(child);
  }
  usleep(20000);
  kill(children[0], SIGKILL);
  for (size_t i = 0; i < children.size(); i++) {
    int status = 0;
    ASSERT_EQ(waitpid(children[i], &status, 0), children[i]);
    EXPECT_EQ(i == 0 ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0, true) << "process " << i;
  }
  std::string code;
  ASSERT_TRUE(Cache(folder).find(key, &code));
  EXPECT_EQ(code, big);
  EXPECT_LE(files(), 2u);  // the whole one, and what the killed process left
}

TEST(RtcTiles, as_large_as_leaves_every_multiprocessor_work) {
  const auto threads = [](int64_t m, int64_t k, int sms) { const Tile t = choose_tile(m, k, 8, sms); return t.across * t.down; };
  EXPECT_EQ(threads(8192, 8192, 132), 256);
  EXPECT_EQ(threads(64, 64, 132), 64);
  EXPECT_EQ(threads(64, 64, 1), 64);
  for (int64_t m : {8, 1000, 4096, 65536})
    for (int64_t k : {16, 1024, 16384}) {
      const Tile t = choose_tile(m, k, 8, 132);
      EXPECT_GE(t.high(m, 8) * t.down * 8, m);
      EXPECT_LT((t.high(m, 8) - 1) * t.down * 8, m);
      EXPECT_GE(t.wide(k, 8) * t.across * 8, k);
      EXPECT_EQ(t.blocks(m, k, 8), t.wide(k, 8) * t.high(m, 8));
    }
}

}  // namespace
}  // namespace te::test
