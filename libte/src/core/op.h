// SPDX-License-Identifier: Apache-2.0
// What an operator is to the library: the generated schema plus the row that src/ops/<op>/op.cpp defines.
#pragma once
#include "core/status.h"
#include "libte/backend.h"
#include "libte/info.h"

namespace te {

// Defined once an operator in its op.cpp, by TE_OP(name) = {...}. A missing folder is a link error in the generated table.
struct OpRow {
  // Rules that the header's schema cannot say. args has passed the schema check. NULL = none.
  nvte_status (*validate)(const nvte_exec *exec, const void *args);
  // Fills shapes and dtypes of outputs whose dims are [...] in the schema; runs after the generated inference. NULL = none.
  nvte_status (*infer)(void *args);
  // Built-in implementations (the CPU's, composites), any order.
  const nvte_implementation *implementations;
  size_t n_implementations;
};
#define TE_OP(name)                 \
  extern const ::te::OpRow op_##name; \
  const ::te::OpRow op_##name

// One entry of the generated table (build/gen/op_table.cpp), in header order.
struct Op {
  nvte_op info;
  const OpRow *row;
  // Generated from the header comment: presence, dtypes, dims, layout, scalar ranges, device. Both are full-size copies.
  nvte_status (*check)(const nvte_exec *exec, const void *args);
  // Generated: fills outputs from inputs (nvte_infer).
  nvte_status (*infer)(void *args);
  // Generated: bit j of entry i where the header says that field i may alias field j. NULL = none.
  const uint64_t *aliases;
};
extern const Op kOps[];
extern const size_t kOpCount;

// Finds an operator; nullptr if there is none.
const Op *find_op(const char *name);

// Calls another operator through the table, as a composite does: same checks, same choice.
nvte_status call_op(const char *name, const nvte_exec *exec, const void *args);

}  // namespace te
