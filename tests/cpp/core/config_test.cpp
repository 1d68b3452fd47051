// SPDX-License-Identifier: Apache-2.0
// What needs a fresh environment is in tests/c/process.c.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/log.h"
#include "cpu/isa.h"
#include "core/platform.h"
#include "tensors.h"

namespace te {
namespace {

std::string get(const char *key) {
  char buf[256];
  size_t n = 0;
  const nvte_status s = nvte_config_get(key, buf, sizeof buf, &n);
  return s == NVTE_OK ? std::string(buf, n) : "status " + std::to_string(s);
}

TEST(Config, TableIsComplete) {
  std::set<std::string> keys, environments;
  for (size_t i = 0; i < nvte_config_count(); i++) {
    const nvte_config_entry *e = nvte_config_at(i);
    ASSERT_NE(e, nullptr);
    EXPECT_EQ(e->struct_size, sizeof *e);
    EXPECT_TRUE(keys.insert(e->key).second) << e->key;
    EXPECT_TRUE(environments.insert(e->environment).second) << e->environment;
    EXPECT_GT(strlen(e->help), 10u) << e->key;
    EXPECT_TRUE(*e->choices) << e->key;
    const bool ours = !strncmp(e->environment, "LIBTE_", 6);
    EXPECT_EQ(ours, std::string(e->key) != e->environment) << "upstream's variables keep their names: " << e->key;
    EXPECT_EQ(nvte_config_set(e->key, e->default_value), NVTE_OK) << e->key << ": the default must be a legal value";
    EXPECT_EQ(nvte_config_set(e->key, nullptr), NVTE_OK);
  }
  EXPECT_EQ(nvte_config_at(nvte_config_count()), nullptr);
  for (const char *key : {"num_threads", "cpu.isa", "log.level", "trace", "cache.dir", "backend.path", "NVTE_FUSED_ATTN",
                          "NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES", "NVTE_BACKWARD_OVERRIDE", "NVTE_USE_ATOMIC_AMAX"})
    EXPECT_TRUE(keys.count(key)) << key;
}

TEST(Config, SetGetAndReset) {
  EXPECT_EQ(nvte_config_set("cache.dir", "/tmp/somewhere"), NVTE_OK);
  EXPECT_EQ(get("cache.dir"), "/tmp/somewhere");
  char small[5] = "####";
  size_t n = 0;
  EXPECT_EQ(nvte_config_get("cache.dir", small, sizeof small, &n), NVTE_OK);
  EXPECT_STREQ(small, "/tmp");
  EXPECT_EQ(n, strlen("/tmp/somewhere"));
  EXPECT_EQ(nvte_config_get("cache.dir", nullptr, 0, &n), NVTE_OK);
  EXPECT_EQ(nvte_config_set("cache.dir", nullptr), NVTE_OK);
  EXPECT_EQ(get("cache.dir"), "");
}

TEST(Config, BadValuesNameKeyValueAndChoices) {
  EXPECT_EQ(nvte_config_set("log.level", "loud"), NVTE_ERR_CONFIG);
  EXPECT_STREQ(nvte_last_error(), "nvte_config_set: log.level takes trace|info|warning|error|off, got 'loud'");
  EXPECT_EQ(nvte_config_set("num_threads", "2x"), NVTE_ERR_CONFIG);
  EXPECT_EQ(nvte_config_set("num_threads", "-1"), NVTE_ERR_CONFIG);
  EXPECT_EQ(nvte_config_set("num_threads", "99999999999999999999"), NVTE_ERR_CONFIG);
  EXPECT_EQ(nvte_config_set("trace", "yes"), NVTE_ERR_CONFIG);
  EXPECT_EQ(nvte_config_set("trace", ""), NVTE_ERR_CONFIG);
  EXPECT_EQ(nvte_config_set("NVTE_BACKWARD_OVERRIDE", "high"), NVTE_ERR_CONFIG);
  EXPECT_EQ(get("log.level"), "warning");
  EXPECT_EQ(nvte_config_get("no.such", nullptr, 0, nullptr), NVTE_ERR_NOT_FOUND);
  EXPECT_NE(test::error().find("no configuration key 'no.such'; known: num_threads"), std::string::npos) << test::error();
  EXPECT_EQ(nvte_config_set(nullptr, "1"), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(nvte_config_get("trace", nullptr, 3, nullptr), NVTE_ERR_INVALID_ARGUMENT);
}

TEST(Config, IsaCanBeForcedDownButNotUp) {
  const int best = platform::best_level();
  for (int l = 0; l < 4; l++) {
    ASSERT_EQ(nvte_config_set("cpu.isa", cpu::level_name((cpu::Level)l)), NVTE_OK);
    nvte_status s = NVTE_OK;
    const cpu::Level got = cpu::level(&s);
    if (l <= best) {
      EXPECT_EQ(s, NVTE_OK);
      EXPECT_EQ(got, l);
    } else {
      EXPECT_EQ(s, NVTE_ERR_CONFIG);
      EXPECT_NE(test::error().find(cpu::level_name((cpu::Level)best)), std::string::npos) << test::error();
    }
  }
  ASSERT_EQ(nvte_config_set("cpu.isa", nullptr), NVTE_OK);
}

TEST(Log, SinkReceivesLevelAndTextAboveTheThreshold) {
  static std::vector<std::pair<int, std::string>> lines;
  lines.clear();
  int context = 0;
  nvte_log_set([](int32_t level, const char *m, void *c) { lines.push_back({level, m}); ++*(int *)c; }, &context);
  log(kLogInfo, "hidden");
  log(kLogWarning, "seen %d", 7);
  nvte_config_set("log.level", "info");
  log(kLogInfo, "now seen");
  nvte_config_set("log.level", "off");
  log(kLogError, "hidden too");
  nvte_config_set("log.level", nullptr);
  nvte_log_set(nullptr, nullptr);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], (std::pair<int, std::string>{2, "seen 7"}));
  EXPECT_EQ(lines[1], (std::pair<int, std::string>{1, "now seen"}));
  EXPECT_EQ(context, 2);
}

}  // namespace
}  // namespace te
