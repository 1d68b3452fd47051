// SPDX-License-Identifier: Apache-2.0
// Letting a call in: every struct is brought to the size this build knows. Shorter (older) callers are accepted and zero-extended,
// longer (newer) ones only where the tail is zero.
#pragma once
#include <memory>
#include <vector>

#include "core/op.h"

namespace te {

constexpr size_t kMaxArgs = 512;

class Admitted {
 public:
  // A NULL exec is the CPU with no workspace.
  nvte_status admit(const Op &op, const nvte_exec *exec, const void *args);
  nvte_status admit_exec(const nvte_exec *exec);
  const nvte_exec *exec() const { return &exec_; }
  void *args() { return args_; }
  // Copies tensors that were zero-extended back to their shorter owners (nvte_infer writes them).
  void write_back();

 private:
  nvte_status admit_tensor(const char *field, int entry, nvte_tensor **tensor);

  struct Short {
    nvte_tensor *owner;
    std::unique_ptr<nvte_tensor> full;
  };
  nvte_exec exec_;
  alignas(16) unsigned char args_[kMaxArgs];
  std::vector<Short> short_;
  std::vector<std::unique_ptr<nvte_tensor *[]>> lists_;
};

}  // namespace te
