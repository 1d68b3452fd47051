// SPDX-License-Identifier: Apache-2.0
// cuDNN, opened at first use. cudnn.cpp defines the few functions of its C API that the front end's headers call, each of which goes to the
// library that was opened; without a library they must not be called.
#pragma once

namespace te::gpu::cudnn {

struct Library {
  const char *missing;  // why the library cannot serve; NULL: it can
  const char *twins;    // where the process holds several copies, their names ("..., ..."), else NULL
};
// Opens the copy that the process has, else the system's. Once a process; says it in the log when there is more than one copy.
const Library &library();

}  // namespace te::gpu::cudnn
