// SPDX-License-Identifier: Apache-2.0
// A small thread pool. The caller takes part; chunks are handed out one by one, so a descheduled worker holds up nobody; workers
// spin some 20 us for the next job, then sleep; several callers may have jobs at once and workers go where work is left.
#include "cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <string>

#include "core/config.h"
#include "core/platform.h"
#include "core/status.h"

namespace te::cpu {
namespace {

constexpr int64_t kSerialCost = 32 * 1024;  // below this sharing costs more than it brings
// Waking a sleeper takes some 50 us, about what one thread needs for this cost; below it only workers that still spin are asked.
constexpr int64_t kWakeCost = 4 * 1024 * 1024;
constexpr int64_t kSpinNanoseconds = 20 * 1000;
constexpr int kMaxThreads = 1024;

int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// Spins until `done()` or the time is up; the clock is read now and then only.
template <class F> bool spin(F done) {
  const int64_t end = now() + kSpinNanoseconds;
  do {
    for (int i = 0; i < 32; i++) {
      if (done()) return true;
      platform::pause();
    }
  } while (now() < end);
  return done();
}

struct Job {
  void (*body)(void *, int64_t);
  void *context;
  int64_t chunks;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::atomic<int> helpers{0};  // workers inside; changes under the pool's mutex
  int seats = 0;                // workers that may still join; under the mutex
  Job *following = nullptr;     // list of jobs with seats; under the mutex
  std::condition_variable left;

  bool exhausted() const { return next.load(std::memory_order_relaxed) >= chunks; }
  static void work(void *job) {
    Job &j = *static_cast<Job *>(job);
    for (int64_t i; (i = j.next.fetch_add(1, std::memory_order_relaxed)) < j.chunks;) j.body(j.context, i);
  }
  void take_part() {
    if (call_guarded(&Job::work, this)) return;
    failed.store(true, std::memory_order_relaxed);
    next.store(chunks, std::memory_order_relaxed);  // nobody starts another chunk
  }
};

thread_local bool inside = false;  // this thread is running a chunk: nested calls are serial

class Pool {
 public:
  bool run(Job &job, int wanted, bool wake) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (wake) grow(wanted);
      job.seats = workers_ < wanted ? workers_ : wanted;
      if (job.seats > 0) {
        job.following = jobs_;
        jobs_ = &job;
        epoch_.fetch_add(1, std::memory_order_release);
        for (int i = 0; wake && i < job.seats && i < sleepers_; i++) wake_.notify_one();
      }
    }
    inside = true;
    job.take_part();
    inside = false;
    // Nobody may join any more; then wait for those inside.
    if (!leave_list(job)) {
      if (!spin([&] { return job.helpers.load(std::memory_order_acquire) == 0; })) {
        std::unique_lock<std::mutex> lock(mutex_);
        job.left.wait(lock, [&] { return job.helpers.load(std::memory_order_acquire) == 0; });
      }
      // The last worker lowers `helpers` under the mutex and may still be about to notify: `job` must outlive that.
      std::lock_guard<std::mutex> lock(mutex_);
    }
    return !job.failed.load(std::memory_order_relaxed);
  }

  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }

 private:
  // Takes the job off the list; true if no worker is inside.
  bool leave_list(Job &job) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Job **j = &jobs_; *j; j = &(*j)->following)
      if (*j == &job) {
        *j = job.following;
        break;
      }
    return job.helpers.load(std::memory_order_relaxed) == 0;
  }

  void grow(int wanted) {
    while (workers_ < wanted) {
      pthread_attr_t attr;
      pthread_t thread;
      pthread_attr_init(&attr);
      pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
      const int rc = pthread_create(&thread, &attr, &Pool::worker, this);
      pthread_attr_destroy(&attr);
      if (rc) return;  // fewer threads will do
      workers_++;
    }
  }

  static void *worker(void *pool) {
    platform::set_float_control(platform::kFixedFloat);
    inside = true;
    static_cast<Pool *>(pool)->serve();
    return nullptr;
  }

  [[noreturn]] void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      if (Job *job = take_seat()) {
        lock.unlock();
        job->take_part();
        lock.lock();
        if (job->helpers.fetch_sub(1, std::memory_order_release) == 1) job->left.notify_one();
        continue;
      }
      const unsigned seen = epoch_.load(std::memory_order_relaxed);
      lock.unlock();
      const bool news = spin([&] { return epoch_.load(std::memory_order_acquire) != seen; });
      lock.lock();
      if (news) continue;
      sleepers_++;
      while (epoch_.load(std::memory_order_relaxed) == seen) wake_.wait(lock);
      sleepers_--;
    }
  }

  Job *take_seat() {
    for (Job **j = &jobs_; *j; j = &(*j)->following) {
      Job *job = *j;
      if (job->exhausted()) continue;
      if (--job->seats == 0) *j = job->following;
      job->helpers.fetch_add(1, std::memory_order_relaxed);
      return job;
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<unsigned> epoch_{0};  // grows with every job
  Job *jobs_ = nullptr;
  int workers_ = 0, sleepers_ = 0;
};

// In static storage and never destroyed: workers sleep in it until the process ends. After fork the child has no workers and the
// condition variable counts sleepers that do not exist, so the child starts from a fresh object in the same place.
alignas(Pool) unsigned char storage[sizeof(Pool)];
Pool *pool() { return std::launder(reinterpret_cast<Pool *>(storage)); }

void start() {
  new (storage) Pool;
  pthread_atfork([] { pool()->before_fork(); }, [] { pool()->after_fork_in_parent(); }, [] { new (storage) Pool; });
}
pthread_once_t once = PTHREAD_ONCE_INIT;

// ---- how many ----

int64_t read_number(const char *path, int64_t *second) {
  FILE *f = fopen(path, "re");
  if (!f) return -1;
  long long a = -1, b = -1;
  const int n = fscanf(f, "%lld %lld", &a, &b);
  fclose(f);
  if (second && n > 1) *second = b;
  return n > 0 ? a : -1;
}

// CPUs that the cgroup's quota pays for, rounded up; 0 = no limit. Both hierarchies as a container sees them (its own root), and
// the process's own group under version 2.
int quota() {
  int64_t period = -1, q = read_number("/sys/fs/cgroup/cpu.max", &period);
  if (q <= 0 || period <= 0) {
    char line[512];
    if (FILE *f = fopen("/proc/self/cgroup", "re")) {
      while (fgets(line, sizeof line, f))
        if (!strncmp(line, "0::", 3)) {
          line[strcspn(line, "\n")] = 0;
          q = read_number((std::string("/sys/fs/cgroup") + (line + 3) + "/cpu.max").c_str(), &period);
        }
      fclose(f);
    }
  }
  if (q <= 0 || period <= 0) {
    q = read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", nullptr);
    period = read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us", nullptr);
  }
  return q > 0 && period > 0 ? (int)((q + period - 1) / period) : 0;
}

int allowed() {
  cpu_set_t set;
  int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  if (const int q = quota(); q && q < n) n = q;
  return n < 1 ? 1 : n;
}

int configured() {
  int64_t n = 0;
  if (config::number(config::kNumThreads, &n) == NVTE_OK && n > 0) return (int)n;
  std::string omp;
  if (config::text(config::kOmpNumThreads, &omp) == NVTE_OK) {
    char *end;
    const long v = strtol(omp.c_str(), &end, 10);
    if (end != omp.c_str() && (*end == 0 || *end == ',') && v > 0) return v < kMaxThreads ? (int)v : kMaxThreads;
  }
  static const int machine = allowed();
  return machine;
}

std::atomic<int> chosen{0};             // by set_threads
std::atomic<uint64_t> configured_cache{0};  // generation of the configuration << 32 | threads

}  // namespace

int threads() {
  if (const int n = chosen.load(std::memory_order_relaxed)) return n;
  const uint64_t generation = config::generation(), seen = configured_cache.load(std::memory_order_relaxed);
  if (seen >> 32 == generation) return (int)(seen & 0xffffffff);
  const int n = configured();
  configured_cache.store(generation << 32 | (uint64_t)n, std::memory_order_relaxed);
  return n;
}

void set_threads(int n) { chosen.store(n < 0 ? 0 : n < kMaxThreads ? n : kMaxThreads, std::memory_order_relaxed); }

bool parallel(int64_t chunks, int64_t cost, void (*body)(void *context, int64_t chunk), void *context) {
  if (chunks <= 0) return true;
  Job job;
  job.body = body;
  job.context = context;
  job.chunks = chunks;
  int wanted = 1;
  if (chunks > 1 && cost >= kSerialCost && !inside) {
    wanted = threads();
    if (wanted > chunks) wanted = (int)chunks;
  }
  if (wanted == 1) {
    job.take_part();
    return !job.failed.load(std::memory_order_relaxed);
  }
  pthread_once(&once, start);
  return pool()->run(job, wanted - 1, cost >= kWakeCost);
}

namespace {
struct Scratch {
  struct Slot {
    void *memory = nullptr;
    size_t size = 0;
  } slots[8];
  ~Scratch() {
    for (Slot &s : slots) free(s.memory);
  }
};
thread_local Scratch scratches;
}  // namespace

void *scratch(int slot, size_t bytes) {
  Scratch::Slot &s = scratches.slots[slot];
  if (s.size < bytes || !s.memory) {
    const size_t size = ((bytes + bytes / 4 + 4096) + 4095) & ~(size_t)4095;  // room to grow into
    if (size < bytes) return nullptr;
    free(s.memory);
    s.memory = aligned_alloc(64, size);
    s.size = s.memory ? size : 0;
  }
  return s.memory;
}

}  // namespace te::cpu

extern "C" {

NVTE_API nvte_status nvte_set_num_threads(int32_t n) {
  if (n < 0 || n > te::cpu::kMaxThreads)
    return te::fail(NVTE_ERR_INVALID_ARGUMENT, "nvte_set_num_threads: n must be 0..%d, got %d", te::cpu::kMaxThreads, (int)n);
  te::cpu::set_threads(n);
  return NVTE_OK;
}

NVTE_API int32_t nvte_get_num_threads(void) { return te::cpu::threads(); }

}  // extern "C"
