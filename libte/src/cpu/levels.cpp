// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "core/config.h"
#include "core/platform.h"
#include "cpu/isa.h"

namespace te::cpu {
namespace {
const char *const kNames[] = {"base", "avx2", "avx512", "avx512bf16"};
// generation of the configuration << 8 | level; 0 = not asked yet (generations start at 1)
std::atomic<uint64_t> cache{0};
}  // namespace

const char *level_name(Level l) { return kNames[l]; }

Level level(nvte_status *status) {
  *status = NVTE_OK;
  const uint64_t generation = config::generation(), seen = cache.load(std::memory_order_relaxed);
  if (seen >> 8 == generation) return (Level)(seen & 0xff);
  static const int best = platform::best_level();
  int64_t choice = 0;  // 0 = auto, then the levels in order
  if ((*status = config::number(config::kCpuIsa, &choice)) != NVTE_OK) return kBase;
  const int chosen = choice == 0 ? best : (int)choice - 1;
  if (chosen > best) {
    *status = fail(NVTE_ERR_CONFIG, "cpu.isa (LIBTE_CPU_ISA) is %s but this machine goes up to %s", kNames[chosen], kNames[best]);
    return kBase;
  }
  cache.store(generation << 8 | (uint64_t)chosen, std::memory_order_relaxed);
  return (Level)chosen;
}

}  // namespace te::cpu
