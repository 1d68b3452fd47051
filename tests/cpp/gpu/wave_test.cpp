// SPDX-License-Identifier: Apache-2.0
// The cross-lane words as an AMD chip sees them, waves of 64: a thread of this process is a lane, and the instructions behind the words are
// modelled here (CDNA 3 instruction set, chapter on DPP).
#include <gtest/gtest.h>
#include <pthread.h>

#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int kLanes = 64;
struct Barrier {
  pthread_barrier_t b;
  explicit Barrier(unsigned n) { pthread_barrier_init(&b, nullptr, n); }
  ~Barrier() { pthread_barrier_destroy(&b); }
  void wait() { pthread_barrier_wait(&b); }
};
struct Wave {
  Barrier barrier{kLanes};
  int slots[kLanes] = {};
};
struct Index {
  unsigned x;
};
thread_local Index threadIdx;
thread_local Wave *this_wave;
Barrier *this_block;

int exchange(int value, int from) {  // every lane of the wave comes here together
  this_wave->slots[threadIdx.x % kLanes] = value;
  this_wave->barrier.wait();
  const int got = this_wave->slots[from];
  this_wave->barrier.wait();
  return got;
}
int dpp_source(int control) {
  const int lane = (int)threadIdx.x % kLanes;
  if (control < 0x100) return (lane & ~3) | (control >> 2 * (lane & 3) & 3);  // quad_perm
  if (control == 0x140) return lane ^ 15;                                     // row_mirror
  if (control == 0x141) return lane ^ 7;                                      // row_half_mirror
  ADD_FAILURE() << "DPP control " << control << " is not modelled";
  return lane;
}

}  // namespace

#define TE_RTC 1
#define __HIP_PLATFORM_AMD__ 1
#define __AMDGCN__ 1
#define __GFX9__ 1
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __builtin_amdgcn_mov_dpp(value, control, rows, banks, bound) exchange(value, dpp_source(control))
#define __builtin_amdgcn_readlane(value, lane) exchange(value, lane)
#define __builtin_amdgcn_kernarg_segment_ptr() nullptr
#define __builtin_amdgcn_sbfe(word, at, bits) ((int)((unsigned)(word) << (32 - (at) - (bits))) >> (32 - (bits)))
#define __syncthreads() this_block->wait()
#define address_space(n)
template <class T> static T __shfl_xor(T v, int mask, int) { return exchange(v, (int)threadIdx.x % kLanes ^ mask); }
template <class T> static T __shfl(T v, int lane, int width) { return exchange(v, lane % width); }
static int __float_as_uint(float f) {
  int i;
  memcpy(&i, &f, 4);
  return i;
}
[[maybe_unused]] static void atomicMax(int *p, int v) { *p = *p < v ? v : *p; }
#include "gpu/device/reduce.h"

namespace te::test {
namespace {

// f(lane's number) of `threads` lanes, run together.
template <class F> auto run(int threads, F &&f) {
  std::vector<Wave> waves((size_t)threads / kLanes);
  Barrier block((unsigned)threads);
  this_block = &block;
  std::vector<decltype(f(0))> results((size_t)threads);
  std::vector<std::thread> lanes;
  for (int t = 0; t < threads; t++)
    lanes.emplace_back([&, t] {
      threadIdx.x = (unsigned)t;
      this_wave = &waves[(size_t)t / kLanes];
      results[(size_t)t] = f(t);
    });
  for (std::thread &t : lanes) t.join();
  return results;
}
// No two subsets of a wave have the same sum, in any order of additions.
float number(int lane) { return std::ldexp(1.f, lane % 23) + (float)(lane / 23); }
float sum(int first, int count) {
  float s = 0;
  for (int i = first; i < first + count; i++) s += number(i);
  return s;
}

template <int Width> void combines() {
  const std::vector<float> got = run(kLanes, [](int t) { return device::combine_lanes<Width>(number(t), device::Add{}); });
  for (int t = 0; t < kLanes; t++) EXPECT_EQ(got[(size_t)t], sum(t / Width * Width, Width)) << "width " << Width << ", lane " << t;
}
TEST(Wave64, combine_lanes_sums_each_group_in_every_lane) { combines<1>(), combines<2>(), combines<4>(), combines<8>(), combines<16>(), combines<32>(), combines<64>(); }

TEST(Wave64, the_order_is_the_same_in_every_lane) {
  const auto value = [](int t) { return std::sin((float)t) * std::ldexp(1.f, t % 17); };  // sums depend on the order
  const std::vector<float> got = run(kLanes, [&](int t) { return device::wave_reduce(value(t), device::Add{}); });
  for (float g : got) EXPECT_EQ(g, got[0]);
}
TEST(Wave64, maxima_ignore_nan) {
  const std::vector<float> got = run(kLanes, [](int t) { return device::wave_reduce(t == 63 ? 7.f : t % 2 ? NAN : (float)-t, device::Max{}); });
  for (float g : got) EXPECT_EQ(g, 7.f);
}
TEST(Wave64, shuffles_reach_all_64_lanes) {
  for (int mask = 1; mask < kLanes; mask *= 2) {
    const std::vector<int> got = run(kLanes, [&](int t) { return device::shfl_xor(100 + t, mask); });
    for (int t = 0; t < kLanes; t++) EXPECT_EQ(got[(size_t)t], 100 + (t ^ mask));
  }
  for (int from : {0, 31, 32, 63}) {
    const std::vector<int> got = run(kLanes, [&](int t) { return device::shfl(100 + t, from); });
    for (int g : got) EXPECT_EQ(g, 100 + from);
  }
}
TEST(Wave64, lanes_and_waves) {
  const std::vector<int> got = run(256, [](int) { return device::wave() * 1000 + device::lane(); });
  for (int t = 0; t < 256; t++) EXPECT_EQ(got[(size_t)t], t / 64 * 1000 + t % 64);
}
template <int Threads> void reduces() {
  const auto value = [](int t) { return (float)(t * 37 % 1009); };
  float want = 0, largest = 0;
  for (int t = 0; t < Threads; t++) want += value(t), largest = std::fmax(largest, value(t));
  struct Both {
    float sum, max;
  };
  // twice in a row: the second call reuses the first one's shared memory
  const std::vector<Both> got = run(Threads, [&](int t) {
    const float s = device::block_reduce<Threads>(value(t), device::Add{}, 0.f);
    return Both{s, device::block_reduce<Threads>(value(t), device::Max{}, 0.f)};
  });
  for (const Both &g : got) {
    EXPECT_EQ(g.sum, want);
    EXPECT_EQ(g.max, largest);
  }
}
TEST(Wave64, numbers_where_a_bit_is_set) {
  for (int i = 0; i < 32; i++)
    for (const float x : {1.5f, -0.f, -3e38f}) {
      EXPECT_EQ(__float_as_uint(device::where_bit(1u << i, i, x)), __float_as_uint(x)) << i;
      EXPECT_EQ(__float_as_uint(device::where_bit(~(1u << i), i, x)), 0) << i;
    }
}
TEST(Wave64, block_reduce) { reduces<64>(), reduces<128>(), reduces<256>(), reduces<1024>(); }

}  // namespace
}  // namespace te::test
