// SPDX-License-Identifier: Apache-2.0
#include "core/config.h"
#include "core/ranges.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <mutex>
#include <vector>

namespace te::config {
namespace {

struct Row {
  const char *key, *environment, *type, *default_value, *choices, *help;
  int64_t lowest, highest;  // of an int
};

// An upstream variable's key is its own name.
#define TE_UPSTREAM(name) #name, #name
const Row kRows[] = {
    {"num_threads", "LIBTE_NUM_THREADS", "int", "0", "0..1024", "Threads of the CPU back end; 0 = OMP_NUM_THREADS, else what affinity and cgroup allow.", 0, 1024},
    {"cpu.isa", "LIBTE_CPU_ISA", "choice", "auto", "auto|base|avx2|avx512|avx512bf16", "Instruction set of the CPU back end; auto = the best this machine has.", 0, 0},
    {"log.level", "LIBTE_LOG_LEVEL", "choice", "warning", "trace|info|warning|error|off", "The lowest level that is logged.", 0, 0},
    {"trace", "LIBTE_TRACE", "bool", "0", "0|1", "1 = log one line an operator call: shapes, the implementation chosen, refusals.", 0, 1},
    {"cache.dir", "LIBTE_CACHE_DIR", "string", "", "a directory", "Where run-time compiled code is kept; empty = libte in the user's cache directory.", 0, 0},
    {"backend.path", "LIBTE_BACKEND_PATH", "string", "", "directories separated by ':'", "Searched for plug-ins (libte_cuda.so, libte_hip.so) before libte's own directory.", 0, 0},
    {"ranges.library", "LIBTE_RANGES_LIBRARY", "string", "", "a file", "The profiler's library that NVTE_NVTX_ENABLED calls; empty = NVTX's or roctx's.", 0, 0},
    {TE_UPSTREAM(OMP_NUM_THREADS), "string", "", "a number, or a list whose first entry counts", "Threads where num_threads is 0.", 0, 0},
    {TE_UPSTREAM(NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES), "bool", "0", "0|1", "Float8CurrentScaling rounds scales to powers of two by default.", 0, 1},
    {TE_UPSTREAM(NVTE_BACKWARD_OVERRIDE), "choice", "", "|high_precision|dequantized", "Default of every recipe's backward_override.", 0, 0},
    {TE_UPSTREAM(NVTE_FUSED_ATTN), "bool", "1", "0|1", "Allow the fused attention back end.", 0, 1},
    {TE_UPSTREAM(NVTE_FLASH_ATTN), "bool", "1", "0|1", "Allow the flash attention back end.", 0, 1},
    {TE_UPSTREAM(NVTE_UNFUSED_ATTN), "bool", "1", "0|1", "Allow the unfused attention back end.", 0, 1},
    {TE_UPSTREAM(NVTE_ALLOW_NONDETERMINISTIC_ALGO), "bool", "1", "0|1", "0 = only implementations whose result does not depend on timing.", 0, 1},
    {TE_UPSTREAM(NVTE_USE_ATOMIC_AMAX), "bool", "0", "0|1", "Use the one-stage atomic amax where a device has both.", 0, 1},
    {TE_UPSTREAM(TE_HIPBLASLT_ALGO_SELECTION), "int", "0", "0..1000", "First candidate of the GEMM library's list (hipBLASLt and cuBLASLt).", 0, 1000},
    {TE_UPSTREAM(TE_HIPBLASLT_TUNING_RUN_COUNT), "int", "0", "0..1000000", "Timed loops a candidate at a GEMM's first call; 0 = no tuning.", 0, 1000000},
    {TE_UPSTREAM(TE_HIPBLASLT_TUNING_ALGO_COUNT), "int", "16", "1..1000", "Candidates timed at most.", 1, 1000},
    {TE_UPSTREAM(TE_HIPBLASLT_ALGO_LOAD), "string", "", "a file; %i = the process id", "GEMM candidates that a process saved; a missing file is none.", 0, 0},
    {TE_UPSTREAM(TE_HIPBLASLT_ALGO_SAVE), "string", "", "a file; %i = the process id", "Rewritten with every choice made or loaded.", 0, 0},
    {TE_UPSTREAM(NVTE_NVTX_ENABLED), "bool", "0", "0|1", "1 = ranges for profilers round operator calls and, if set before import, modules.", 0, 1},
    {TE_UPSTREAM(NVTE_DISABLE_NVRTC), "bool", "0", "0|1", "1 = no kernel is compiled at run time, on AMD neither.", 0, 1},
    {TE_UPSTREAM(XDG_CACHE_HOME), "string", "", "a directory", "The user's cache directory where cache.dir is empty; empty = HOME/.cache.", 0, 0},
    {TE_UPSTREAM(HOME), "string", "", "a directory", "The user's home, for the default of XDG_CACHE_HOME.", 0, 0},
    {TE_UPSTREAM(NVTE_DEBUG), "bool", "0", "0|1", "Log which attention back end is taken.", 0, 1},
    {TE_UPSTREAM(NVTE_DEBUG_LEVEL), "int", "0", "0..2", "How much NVTE_DEBUG logs.", 0, 2},
    {TE_UPSTREAM(NVTE_FRAMEWORK), "string", "", "a list of pytorch, jax, all, none", "Which bindings the upstream-named package loads.", 0, 0},
    {TE_UPSTREAM(NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE), "bool", "0", "0|1", "Load pickled FP8 extra state from a checkpoint.", 0, 1},
};
constexpr size_t kCount = sizeof kRows / sizeof kRows[0];
const char *const kOperational[] = {"num_threads", "cpu.isa", "log.level", "trace", "NVTE_NVTX_ENABLED"};

int choice_index(const char *choices, const std::string &value) {
  int i = 0;
  for (const char *p = choices;; i++) {
    const char *end = strchrnul(p, '|');
    if (value.size() == (size_t)(end - p) && !memcmp(value.data(), p, value.size())) return i;
    if (!*end) return -1;
    p = end + 1;
  }
}

bool parse(const Row &row, const std::string &value, int64_t *number) {
  if (!strcmp(row.type, "string")) return true;
  if (!strcmp(row.type, "choice")) return (*number = choice_index(row.choices, value)) >= 0;
  char *end = nullptr;
  errno = 0;
  const long long n = strtoll(value.c_str(), &end, 10);
  if (value.empty() || *end || errno || n < row.lowest || n > row.highest) return false;
  *number = n;
  return true;
}

struct Value {
  std::string text;
  int64_t number = 0;
  const char *origin = nullptr;  // nullptr: fine; else the variable that holds a bad value
};

class Table {
 public:
  static Table &get() {
    static Table &t = *new Table;  // never destroyed: used by threads at exit
    return t;
  }

  nvte_status read(size_t i, Value *out) {
    std::lock_guard<std::mutex> lock(mutex_);
    *out = values_[i];
    const Row &row = kRows[i];
    if (out->origin)
      return fail(NVTE_ERR_CONFIG, "%s takes %s, got '%s'", out->origin, row.choices, out->text.c_str());
    return NVTE_OK;
  }

  nvte_status set(size_t i, const char *text) {
    const Row &row = kRows[i];
    Value v;
    if (text) {
      v.text = text;
      if (!parse(row, v.text, &v.number)) return fail(NVTE_ERR_CONFIG, "%s takes %s, got '%s'", row.key, row.choices, text);
    } else {
      v = from_environment(row, environment_[i]);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    values_[i] = v;
    generation.fetch_add(1, std::memory_order_release);
    return NVTE_OK;
  }

  std::atomic<unsigned> generation{1};

 private:
  // The environment is read once, all of it, so that no later setenv of another thread races with it.
  Table() : values_(kCount), environment_(kCount) {
    for (size_t i = 0; i < kCount; i++) {
      const char *e = getenv(kRows[i].environment);
      environment_[i] = e ? e : "";
      values_[i] = from_environment(kRows[i], environment_[i]);
    }
  }

  // Unset and empty are the default, as upstream has it.
  static Value from_environment(const Row &row, const std::string &environment) {
    Value v;
    v.text = environment.empty() ? row.default_value : environment;
    if (!parse(row, v.text, &v.number)) v.origin = row.environment;
    return v;
  }

  std::mutex mutex_;
  std::vector<Value> values_;
  std::vector<std::string> environment_;
};

int find(const char *key) {
  for (size_t i = 0; i < kCount; i++)
    if (!strcmp(kRows[i].key, key)) return (int)i;
  return -1;
}

nvte_status not_found(const char *key) {
  std::string known;
  for (const Row &row : kRows) known += (known.empty() ? "" : ", ") + std::string(row.key);
  return fail(NVTE_ERR_NOT_FOUND, "no configuration key '%s'; known: %s", key, known.c_str());
}

std::atomic<unsigned> ready_generation{0};
std::atomic<bool> trace_flag{false};
std::atomic<int> threshold{2};

}  // namespace

nvte_status number(Key key, int64_t *value) {
  Value v;
  const nvte_status s = Table::get().read((size_t)key, &v);
  *value = v.number;
  return s;
}

nvte_status text(Key key, std::string *value) {
  Value v;
  const nvte_status s = Table::get().read((size_t)key, &v);
  *value = v.text;
  return s;
}

unsigned generation() { return Table::get().generation.load(std::memory_order_acquire); }

nvte_status ready() {
  const unsigned now = generation();
  if (ready_generation.load(std::memory_order_acquire) == now) return NVTE_OK;
  constexpr size_t n = sizeof kOperational / sizeof kOperational[0];
  int64_t value[n] = {};
  for (size_t i = 0; i < n; i++)
    if (const nvte_status s = number((Key)find(kOperational[i]), &value[i])) return s;
  threshold.store((int)value[2], std::memory_order_relaxed);
  ranges::enabled.store(value[4] != 0, std::memory_order_relaxed);
  trace_flag.store(value[3] != 0 || value[2] == 0, std::memory_order_relaxed);
  ready_generation.store(now, std::memory_order_release);
  return NVTE_OK;
}

bool tracing() { return trace_flag.load(std::memory_order_relaxed); }
int log_threshold() {
  if (ready_generation.load(std::memory_order_acquire) != generation()) {
    int64_t level;
    // a bad value must not silence warnings
    return number(kLogLevel, &level) == NVTE_OK ? (int)level : 2;
  }
  return threshold.load(std::memory_order_relaxed);
}

nvte_status get(const char *key, char *buf, size_t size, size_t *length) {
  if (!key) return fail(NVTE_ERR_INVALID_ARGUMENT, "key is NULL");
  if (!buf && size) return fail(NVTE_ERR_INVALID_ARGUMENT, "buf is NULL but size is %zu", size);
  const int i = find(key);
  if (i < 0) return not_found(key);
  Value v;
  if (const nvte_status s = Table::get().read((size_t)i, &v)) return s;
  if (length) *length = v.text.size();
  if (size) {
    const size_t n = v.text.size() < size ? v.text.size() : size - 1;
    memcpy(buf, v.text.data(), n);
    buf[n] = 0;
  }
  return NVTE_OK;
}

nvte_status set(const char *key, const char *value) {
  if (!key) return fail(NVTE_ERR_INVALID_ARGUMENT, "key is NULL");
  const int i = find(key);
  return i < 0 ? not_found(key) : Table::get().set((size_t)i, value);
}

const nvte_config_entry *entry(size_t i) {
  static const std::vector<nvte_config_entry> &entries = *[] {
    auto *v = new std::vector<nvte_config_entry>;
    for (const Row &r : kRows)
      v->push_back({sizeof(nvte_config_entry), r.key, r.environment, r.type, r.default_value, r.choices, r.help});
    return v;
  }();
  return i < kCount ? &entries[i] : nullptr;
}

size_t count() { return kCount; }

}  // namespace te::config
