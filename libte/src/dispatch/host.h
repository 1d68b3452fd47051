// SPDX-License-Identifier: Apache-2.0
// The public side of the registry, as src/api wraps it, and what libte lends plug-ins.
#pragma once
#include "libte/backend.h"

namespace te {

const nvte_host *host();  // defined in src/api: its functions are doors

nvte_status backend_load(const char *path);
nvte_status backend_register(const nvte_backend *backend);
nvte_status backend_remove(const char *name);
nvte_status device_count(int32_t device_type, int32_t *count);

}  // namespace te
