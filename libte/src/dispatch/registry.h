// SPDX-License-Identifier: Apache-2.0
// Implementations by (operator, device type). Readers take an immutable snapshot without a lock; a change publishes a new one and
// keeps the old (changes are few: a plug-in opened or removed).
#pragma once
#include <string>
#include <vector>

#include "core/op.h"

namespace te {

struct Entry {
  nvte_implementation implementation;  // full-size; its names are interned and live as long as the process
  int32_t device_type;
};

struct Registry {
  std::vector<std::vector<Entry>> by_op;     // as kOps; best first: priority, then name
  std::vector<const nvte_backend *> backends;  // plug-ins and registered tables
};

const Registry &registry();

// Opens the plug-in of a device type on its first use. NVTE_ERR_UNSUPPORTED says where it was looked for.
nvte_status open_device(int32_t device_type);

}  // namespace te
