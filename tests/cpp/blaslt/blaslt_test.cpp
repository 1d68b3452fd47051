// SPDX-License-Identifier: Apache-2.0
// The GEMM through a vendor's library, against one that stands in for it on the host.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "libte/init.h"
#include "ops/gemm/gpu.h"

extern "C" int library_descriptions, library_failures;

namespace te {
namespace {
int g_own = 0, g_finished = 0;
std::string g_load, g_save;  // TE_HIPBLASLT_ALGO_*
}

// What blaslt.cpp needs of a plug-in.
namespace gpu {
const nvte_host &host() {
  static nvte_host h = [] {
    nvte_host t = {};
    t.config_get = [](const char *key, char *buf, size_t size, size_t *) -> nvte_status {
      snprintf(buf, size, "%s", strstr(key, "_ALGO_LOAD") ? g_load.c_str() : strstr(key, "_ALGO_SAVE") ? g_save.c_str() : strstr(key, "COUNT") && strstr(key, "ALGO") ? "16" : "0");
      return NVTE_OK;
    };
    t.log = [](int32_t, const char *text) { fprintf(stderr, "%s\n", text); };
    return t;
  }();
  return h;
}
DeviceScope::DeviceScope(const nvte_exec &) {}
DeviceScope::~DeviceScope() = default;
}  // namespace gpu
namespace gemm {
size_t finish_bytes(const nvte_gemm_args &) { return 0; }
nvte_status operand_sums(const nvte_exec &, const nvte_gemm_args &, void *) { return NVTE_OK; }
nvte_status run_gpu(const nvte_exec &, const nvte_gemm_args &) { return g_own++, NVTE_OK; }
nvte_status finish(const nvte_exec &, const nvte_gemm_args &a, const float *sums, void *) {
  g_finished++;
  const float s = *address_as<const float>(a.a->scale_inv) * *address_as<const float>(a.b->scale_inv);
  for (int64_t i = 0; i < numel(a.d->data); i++) address_as<float>(a.d->data)[i] = sums[i] * s + (a.bias ? address_as<const float>(a.bias->data)[i % columns(a.d->data)] : 0);
  return NVTE_OK;
}
}  // namespace gemm

namespace {

struct Matrix {
  int64_t shape[2];
  nvte_tensor t = {};
  Matrix(void *data, DLDataType type, int64_t m, int64_t n) : shape{m, n} {
    t.struct_size = sizeof t;
    t.data = {data, {kDLCUDA, 0}, 2, type, shape, nullptr, 0};
  }
};
constexpr DLDataType kFloat = {kDLFloat, 32, 1}, kCodes = {kDLFloat8_e4m3fn, 8, 1};
int64_t g_one[] = {1};

// D = A B^T sa sb + bias of small integers, [16, k] and [48, k]; scales lie `offset` floats past a multiple of 64 bytes.
void check(int64_t k, int offset, int seed) {
  constexpr int64_t m = 16, n = 48;
  // how they are aligned is part of the problem
  alignas(256) static signed char a[m * 32], b[n * 32];
  alignas(256) static float d[m * n], space[1 << 20];
  for (int64_t i = 0; i < m * k; i++) a[i] = (signed char)((i * 7 + seed) % 11 - 5);
  for (int64_t i = 0; i < n * k; i++) b[i] = (signed char)((i * 5 + seed) % 13 - 6);
  for (float &v : d) v = -1.f;
  alignas(64) float scales[32] = {};
  float *const sa = scales + offset, *const sb = scales + 16 + offset;
  *sa = 0.5f * (float)(seed + 1), *sb = 0.25f;
  std::vector<float> bias((size_t)n);
  for (size_t j = 0; j < bias.size(); j++) bias[j] = (float)((int)j + seed);
  Matrix ma(a, kCodes, m, k), mb(b, kCodes, n, k), md(d, kFloat, m, n), mbias(bias.data(), kFloat, n, 1);
  mbias.t.data.ndim = 1;
  ma.t.scaling = mb.t.scaling = NVTE_SCALING_TENSOR;
  ma.t.scale_inv = {sa, {kDLCUDA, 0}, 1, kFloat, g_one, nullptr, 0};
  mb.t.scale_inv = {sb, {kDLCUDA, 0}, 1, kFloat, g_one, nullptr, 0};
  nvte_gemm_args g = NVTE_GEMM_ARGS_INIT;
  g.a = &ma.t, g.b = &mb.t, g.d = &md.t, g.bias = &mbias.t, g.flags = NVTE_GEMM_TRANS_B;
  nvte_exec e = {};
  e.struct_size = sizeof e;
  e.device = {kDLCUDA, 0};
  size_t bytes = 0;
  ASSERT_EQ(gemm::workspace_blaslt(&e, &g, &bytes), NVTE_OK);
  ASSERT_LE(bytes, sizeof space);
  e.workspace = space, e.workspace_size = bytes;
  ASSERT_EQ(gemm::refuse_blaslt(&e, &g), nullptr);
  ASSERT_EQ(gemm::run_blaslt(&e, &g), NVTE_OK);
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      float s = 0;
      for (int64_t l = 0; l < k; l++) s += (float)a[i * k + l] * (float)b[j * k + l];
      ASSERT_EQ(d[i * n + j], s * *sa * *sb + bias[(size_t)j]) << i << ", " << j;
    }
}

// Each part is a process of its own, since the files are looked at once.
TEST(BlasltDeathTest, choices_are_saved_and_loaded) {
  const auto run = [](const std::string &load, const std::string &save) {
    g_load = load, g_save = save;
    check(16, 0, 0);
    std::exit(testing::Test::HasFailure());
  };
  const auto read = [](const std::string &path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  char folder[] = "/tmp/libte_blaslt_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string in = std::string(folder) + "/", saved = in + "saved", other = in + "other", again = in + "again", cut = in + "cut";
  EXPECT_EXIT(run("", saved), testing::ExitedWithCode(0), "");
  std::string text = read(saved);
  ASSERT_EQ(text.substr(0, text.find('\n')), "cuda 130000");
  ASSERT_EQ(text.substr(text.size() - 3), ",0\n");  // the first candidate
  text[text.size() - 2] = '1';                       // another one, which only a process that loads the file takes
  std::ofstream(other) << text;
  EXPECT_EXIT(run(other, again), testing::ExitedWithCode(0), "");
  EXPECT_EQ(read(again), text);
  std::ofstream(cut) << text.substr(0, text.size() - 3);
  EXPECT_EXIT(run(cut, saved), testing::ExitedWithCode(0), "cut is not used: a line is damaged");
  EXPECT_EXIT(run(in + "absent", ""), testing::ExitedWithCode(0), "");
  for (const std::string &file : {saved, other, again, cut}) remove(file.c_str());
  EXPECT_EQ(rmdir(folder), 0);
}

TEST(Blaslt, a_problem_is_described_once_and_each_call_has_its_own_pointers) {
  check(16, 0, 0);
  const int before = library_descriptions;
  for (int seed = 1; seed < 4; seed++) check(16, 4 * seed, seed);
  EXPECT_EQ(library_descriptions, before);
  EXPECT_EQ(g_own, 0);
  EXPECT_EQ(g_finished, 0);
}

TEST(Blaslt, scales_that_the_library_cannot_read_are_applied_behind_it) {
  const int failures = library_failures, finished = g_finished;
  for (int seed = 0; seed < 3; seed++) check(16, 1 + seed, seed);
  EXPECT_EQ(library_failures, failures);
  EXPECT_EQ(g_finished, finished + 3);
  EXPECT_EQ(g_own, 0);
}

TEST(Blaslt, a_candidate_that_fails_is_not_tried_again) {
  const int failures = library_failures;
  for (int seed = 0; seed < 3; seed++) check(32, 0, seed);
  EXPECT_EQ(library_failures, failures + 1);
  EXPECT_EQ(g_own, 0);
}

}  // namespace
}  // namespace te
