// SPDX-License-Identifier: Apache-2.0
// Ranges for profilers (NVTX, roctx) while NVTE_NVTX_ENABLED is 1. Off, a range is one load and one branch.
#pragma once
#include <atomic>

namespace te::ranges {

extern std::atomic<bool> enabled;  // config::ready() keeps it

// Through the profiler's library, opened at the first range; where there is none, that is logged once.
void push(const char *name);
void pop();

// "nvte_<op>" for a scope.
class OfCall {
 public:
  explicit OfCall(const char *op) : on_(enabled.load(std::memory_order_relaxed)) {
    if (on_) begin(op);
  }
  ~OfCall() {
    if (on_) pop();
  }
  OfCall(const OfCall &) = delete;
  OfCall &operator=(const OfCall &) = delete;

 private:
  static void begin(const char *op);
  bool on_;
};

}  // namespace te::ranges
