// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/platform.h"
#include "cpu/pool.h"
#include "tensors.h"

// The sanitizers' allocators end the process where malloc would say no; the scratch test wants the answer.
#if defined(__SANITIZE_ADDRESS__)
extern "C" const char *__asan_default_options() { return "allocator_may_return_null=1"; }
#elif defined(__SANITIZE_THREAD__)
extern "C" const char *__tsan_default_options() { return "allocator_may_return_null=1:die_after_fork=0"; }
#endif

namespace te::cpu {
namespace {

constexpr int64_t kLarge = 1 << 24;  // a cost that is worth waking threads

struct Threads {  // for a scope
  explicit Threads(int n) { set_threads(n); }
  ~Threads() { set_threads(0); }
};

template <class F> bool each(int64_t chunks, int64_t cost, F f) {
  return parallel(chunks, cost, [](void *c, int64_t i) { (*static_cast<F *>(c))(i); }, &f);
}

TEST(Pool, EveryChunkOnce) {
  for (int threads : {1, 2, 3, 8}) {
    Threads t(threads);
    for (int64_t n : {0, 1, 2, 7, 64, 1000}) {
      std::vector<std::atomic<int>> seen((size_t)n);
      EXPECT_TRUE(each(n, kLarge, [&](int64_t i) { seen[(size_t)i]++; }));
      for (auto &s : seen) EXPECT_EQ(s, 1);
    }
  }
}

TEST(Pool, UsesThreadsOnlyWhenItPays) {
  Threads t(4);
  std::mutex m;
  std::set<std::thread::id> ids;
  const auto body = [&](int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::lock_guard<std::mutex> lock(m);
    ids.insert(std::this_thread::get_id());
  };
  each(16, 100, body);
  EXPECT_EQ(ids.size(), 1u);
  EXPECT_TRUE(ids.count(std::this_thread::get_id()));
  ids.clear();
  each(64, kLarge, body);
  EXPECT_GT(ids.size(), 1u);
  EXPECT_LE(ids.size(), 4u);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the workers sleep by now, and 1e5 is not worth waking them
  ids.clear();
  each(16, 100 * 1000, body);
  EXPECT_EQ(ids.size(), 1u);
}

TEST(Pool, NestedCallsAreSerialAndRight) {
  Threads t(4);
  std::atomic<int64_t> sum{0}, foreign{0};
  EXPECT_TRUE(each(32, kLarge, [&](int64_t i) {
    const auto me = std::this_thread::get_id();
    each(10, kLarge, [&](int64_t k) {
      sum += i * 10 + k;
      foreign += std::this_thread::get_id() != me;
    });
  }));
  EXPECT_EQ(sum, 320 * 319 / 2);
  EXPECT_EQ(foreign, 0);
}

TEST(Pool, ManyCallersAtOnce) {
  Threads t(4);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int c = 0; c < 8; c++)
    callers.emplace_back([&, c] {
      for (int round = 0; round < 200; round++) {
        std::atomic<int64_t> sum{0};
        const int64_t n = 3 + (c * 7 + round) % 40;
        if (!each(n, kLarge, [&](int64_t i) { sum += i; }) || sum != n * (n - 1) / 2) wrong++;
      }
    });
  for (auto &c : callers) c.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Pool, AnExceptionMakesItFalseAndThePoolLivesOn) {
  Threads t(4);
  for (int64_t where : {0, 1, 63}) {
    EXPECT_FALSE(each(64, kLarge, [&](int64_t i) {
      if (i == where) throw std::runtime_error("chunk");
    }));
    EXPECT_FALSE(each(64, 1, [&](int64_t i) {
      if (i == where) throw std::bad_alloc();
    }));
  }
  std::atomic<int> n{0};
  EXPECT_TRUE(each(64, kLarge, [&](int64_t) { n++; }));
  EXPECT_EQ(n, 64);
}

TEST(Pool, WorkersRunWithTheFixedFloatingPointEnvironment) {
  Threads t(4);
  std::atomic<int> wrong{0};
  platform::FixedFloat fixed;  // as a door does on the calling thread
  const auto mode = [](uint64_t v) { return v & ~(uint64_t)0x3f; };  // without the sticky exception flags
  each(64, kLarge, [&](int64_t) {
    wrong += mode(platform::float_control()) != mode(platform::kFixedFloat);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Pool, ThreadCountFollowsItsSources) {
  EXPECT_EQ(nvte_set_num_threads(3), NVTE_OK);
  EXPECT_EQ(nvte_get_num_threads(), 3);
  EXPECT_EQ(nvte_set_num_threads(-1), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_STREQ(nvte_last_error(), "nvte_set_num_threads: n must be 0..1024, got -1");
  EXPECT_EQ(nvte_get_num_threads(), 3);
  EXPECT_EQ(nvte_set_num_threads(0), NVTE_OK);
  EXPECT_EQ(nvte_config_set("num_threads", "5"), NVTE_OK);
  EXPECT_EQ(nvte_get_num_threads(), 5);
  EXPECT_EQ(nvte_config_set("num_threads", "0"), NVTE_OK);
  EXPECT_EQ(nvte_config_set("OMP_NUM_THREADS", "6,2"), NVTE_OK);
  EXPECT_EQ(nvte_get_num_threads(), 6);
  EXPECT_EQ(nvte_config_set("OMP_NUM_THREADS", "many"), NVTE_OK);
  EXPECT_GE(nvte_get_num_threads(), 1);
  EXPECT_LE(nvte_get_num_threads(), (int)std::thread::hardware_concurrency());
  EXPECT_EQ(nvte_config_set("OMP_NUM_THREADS", nullptr), NVTE_OK);
  EXPECT_EQ(nvte_config_set("num_threads", nullptr), NVTE_OK);
}

// bugs.md I06: a child of a process whose pool has run gets a pool of its own; so does the grandchild.
TEST(Pool, I06_WorksAfterFork) {
  Threads t(4);
  const auto work = [] {
    std::atomic<int64_t> sum{0};
    return each(100, kLarge, [&](int64_t i) { sum += i; }) && sum == 4950;
  };
  ASSERT_TRUE(work());
  for (int round = 0; round < 5; round++) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      alarm(120);  // a deadlock must end
      bool good = work();
      const pid_t grandchild = fork();
      if (grandchild == 0) _exit(work() ? 0 : 1);
      int status = 1;
      waitpid(grandchild, &status, 0);
      good = good && work() && WIFEXITED(status) && WEXITSTATUS(status) == 0;
      _exit(good ? 0 : 1);
    }
    EXPECT_TRUE(work());
    int status = 1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

// Forking while another thread keeps the pool busy.
TEST(Pool, I06_ForkWhileBusy) {
  Threads t(3);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) each(50, kLarge, [](int64_t) {});
  });
  for (int round = 0; round < 10; round++) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      alarm(120);
      std::atomic<int> n{0};
      _exit(each(50, kLarge, [&](int64_t) { n++; }) && n == 50 ? 0 : 1);
    }
    int status = 1;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  stop = true;
  busy.join();
}

TEST(Scratch, SlotsAreIndependentAlignedAndPerThread) {
  auto *a = static_cast<char *>(scratch(0, 1000)), *b = static_cast<char *>(scratch(1, 1000));
  ASSERT_TRUE(a && b);
  EXPECT_EQ((uintptr_t)a % 64, 0u);
  EXPECT_TRUE(a + 1000 <= b || b + 1000 <= a);
  memset(a, 1, 1000);
  memset(b, 2, 1000);
  EXPECT_EQ(a[999], 1);
  EXPECT_EQ(scratch(0, 10), a) << "reused";
  void *other = nullptr;
  std::thread([&] { other = scratch(0, 1000); EXPECT_NE(other, a); }).join();
  EXPECT_NE(scratch(0, 10 << 20), nullptr);
  EXPECT_EQ(scratch(2, SIZE_MAX - 100), nullptr);
  EXPECT_EQ(scratch(3, (size_t)1 << 60), nullptr) << "out of memory is reported, not thrown";
  EXPECT_NE(scratch(3, 64), nullptr);
}

}  // namespace
}  // namespace te::cpu
