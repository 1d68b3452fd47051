// SPDX-License-Identifier: Apache-2.0
// Two ceilings of the machine, timed inside every benchmark loop: multiply-adds on registers, and a copy with non-temporal stores.
// Built by measure.py with -O3 -march=native.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include <thread>
#include <vector>

#if defined(__AVX512F__)
typedef __m512 V;
static const int kLanes = 16;
static inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
static inline V fill(float x) { return _mm512_set1_ps(x); }
static inline void stream(float *d, const float *s) { _mm512_stream_ps(d, _mm512_loadu_ps(s)); }
static inline float first(V a) { return _mm512_cvtss_f32(a); }
#else
typedef __m256 V;
static const int kLanes = 8;
static inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
static inline V fill(float x) { return _mm256_set1_ps(x); }
static inline void stream(float *d, const float *s) { _mm256_stream_ps(d, _mm256_loadu_ps(s)); }
static inline float first(V a) { return _mm256_cvtss_f32(a); }
#endif

template <class F> static void on_threads(int threads, F &&f) {
  std::vector<std::thread> others;
  for (int t = 1; t < threads; t++) others.emplace_back([&f, t] { f(t); });
  f(0);
  for (std::thread &t : others) t.join();
}

static volatile float sink;

// Returns the floating-point operations done: 12 independent chains hide the latency.
extern "C" double roof_fma(int threads, int64_t rounds) {
  on_threads(threads, [=](int) {
    const V a = fill(0.999999f), b = fill(1e-7f);
    V x[12];
    for (int i = 0; i < 12; i++) x[i] = fill((float)i);
    for (int64_t r = 0; r < rounds; r++)
      for (int i = 0; i < 12; i++) x[i] = fma(x[i], a, b);
    float s = 0;
    for (int i = 0; i < 12; i++) s += first(x[i]);
    sink = s;
  });
  return 2.0 * 12 * kLanes * (double)rounds * threads;
}

// Copies n bytes (a multiple of 4096, both 64-byte aligned).
extern "C" void roof_copy(int threads, char *to, const char *from, size_t n) {
  const size_t pages = n / 4096;
  on_threads(threads, [=](int t) {
    const size_t begin = pages * t / threads * 4096, end = pages * (t + 1) / threads * 4096;
    for (size_t i = begin; i < end; i += kLanes * 4) stream((float *)(to + i), (const float *)(from + i));
    _mm_sfence();
  });
}
