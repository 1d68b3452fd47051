// SPDX-License-Identifier: Apache-2.0
// Implementations that are wrong in known ways (decisions.md 32). Each runs the real one and then damages what came out. A test that
// stays green under one of them proves nothing.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "harness/runner.h"

namespace te::test {

struct Saboteur {
  const char *name, *fault;
};
const std::vector<Saboteur> &saboteurs();

// Why the saboteur cannot show in this mode or on this operator's schema; nullptr = it must turn the test red.
const char *cannot_show(const Saboteur &s, const nvte_op &op, Mode mode);

// Registers every saboteur for every operator on the CPU. Throws on failure.
void register_saboteurs();
void remove_saboteurs();

// How often a saboteur found something to damage since the last reset.
int64_t damage_done();
void reset_damage();

}  // namespace te::test
