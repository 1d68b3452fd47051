// SPDX-License-Identifier: Apache-2.0
// One line a call: tensors, the implementation chosen, refusals. Calls that a composite makes are indented.
#include <string.h>

#include "core/log.h"
#include "dispatch/dispatch.h"

namespace te {
namespace {

// "x bf16[4, 16], y e4m3[4, 16]": the tensors of a call, for the trace.
void describe(const Op &op, const unsigned char *args, Text *out) {
  for (size_t i = 0; i < op.info.n_fields; i++) {
    const nvte_field &f = op.info.fields[i];
    const void *p;
    memcpy(&p, args + f.offset, sizeof p);
    if (f.kind == NVTE_FIELD_TENSOR && p) {
      const auto &t = *static_cast<const nvte_tensor *>(p);
      if (!present(t.data) && !present(t.columnwise)) continue;
      out->add(" %s=%s", f.name, dtype_name(t.data.dtype)).shape(t.data);
    } else if (f.kind == NVTE_FIELD_TENSOR_LIST && p) {
      size_t n;
      memcpy(&n, args + f.count, sizeof n);
      out->add(" %s=list(%zu)", f.name, n);
    }
  }
}

}  // namespace

void trace(const Op &op, const nvte_exec *exec, const void *args, const Choice &choice, nvte_status status, bool nested) {
  TextOf<3072> line;
  line.add("%snvte_%s on %s:%d", nested ? "  " : "", op.info.name, device_name(exec->device.device_type), (int)exec->device.device_id);
  // Shapes were checked if an implementation was asked.
  if (choice.implementation || choice.refusals.length()) describe(op, static_cast<const unsigned char *>(args), &line);
  if (choice.implementation) line.add(" -> %s", choice.implementation->name);
  if (choice.refusals.length()) line.add(" (refused: %s)", choice.refusals.c_str());
  if (status != NVTE_OK) line.add(": %s: %s", nvte_status_name(status), last_error());
  log_text(kLogTrace, line.c_str());
}

}  // namespace te
