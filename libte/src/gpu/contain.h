// SPDX-License-Identifier: Apache-2.0
// For host code that may throw: another project's headers, containers.
#pragma once
#include <type_traits>

#include "core/status.h"

namespace te::gpu {

// body(context), with what it throws turned into a status. Defined in plugin.cpp, the only place of a plug-in that catches.
nvte_status contain(nvte_status (*body)(void *context), void *context) noexcept;

template <class F> nvte_status contained(F &&body) noexcept {
  using Body = std::remove_reference_t<F>;
  return contain([](void *p) -> nvte_status { return (*static_cast<Body *>(p))(); }, &body);
}

}  // namespace te::gpu
