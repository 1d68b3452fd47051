// SPDX-License-Identifier: Apache-2.0
// What differs between host processors, in one place: the floating-point control word, the pause hint and the CPU levels.
#pragma once
#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace te::platform {

#if defined(__x86_64__)
// Round to nearest even, no flush-to-zero, no denormals-are-zero, all exceptions masked.
constexpr uint64_t kFixedFloat = 0x1f80;
static inline uint64_t float_control() { return _mm_getcsr(); }
static inline void set_float_control(uint64_t v) { _mm_setcsr((uint32_t)v); }
static inline void pause() { _mm_pause(); }
// 0 base, 1 avx2, 2 avx512, 3 avx512bf16: each needs all that CMakeLists.txt gives its compiler. The builtin asks the operating
// system for the register state as well (xgetbv).
static inline int best_level() {
#if defined(TE_CPU_BASE_ONLY)
  return 0;
#endif
  __builtin_cpu_init();
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
        __builtin_cpu_supports("bmi2")))
    return 0;
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd")))
    return 1;
  return __builtin_cpu_supports("avx512bf16") ? 3 : 2;
}
#elif defined(__aarch64__)
constexpr uint64_t kFixedFloat = 0;  // FPCR: round to nearest, FZ and FZ16 off
static inline uint64_t float_control() {
  uint64_t v;
  __asm__ __volatile__("mrs %0, fpcr" : "=r"(v));
  return v;
}
static inline void set_float_control(uint64_t v) { __asm__ __volatile__("msr fpcr, %0" ::"r"(v)); }
static inline void pause() { __asm__ __volatile__("yield"); }
static inline int best_level() { return 0; }
#else
#error "libte: this processor has no row in core/platform.h yet"
#endif

// Holds the fixed environment for a scope. Callers change theirs: XLA runs its handlers with FTZ and DAZ set.
class FixedFloat {
 public:
  FixedFloat() : saved_(float_control()) {
    if (saved_ != kFixedFloat) set_float_control(kFixedFloat);
  }
  ~FixedFloat() { set_float_control(saved_); }
  FixedFloat(const FixedFloat &) = delete;
  FixedFloat &operator=(const FixedFloat &) = delete;

 private:
  uint64_t saved_;
};

}  // namespace te::platform
