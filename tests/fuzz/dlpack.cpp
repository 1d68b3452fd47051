// SPDX-License-Identifier: Apache-2.0
// DLPack import: whatever a stranger's struct holds, the answer is a status, the struct is untouched, and an accepted view says what
// the struct says (ranks, sizes and strides in range). D03, D06, D07.
#include <cstdlib>

#include "arguments.h"
#include "libte/libte.h"

namespace {
void must(bool ok) {
  if (!ok) abort();
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  te::fuzz::Bytes in(data, size);
  while (!in.empty()) {
    static char memory[64];
    int64_t shape[NVTE_MAX_DIMS + 4], strides[NVTE_MAX_DIMS + 4];
    const int64_t odd[] = {0, 1, 3, -1, INT64_MAX, INT64_MIN, 1ll << 40, 7};
    for (int64_t &v : shape) v = in.one_in(4) ? odd[in.below(8)] : in.below(6);
    for (int64_t &v : strides) v = in.one_in(4) ? odd[in.below(8)] : in.below(6);
    DLTensor t = {};
    t.data = in.one_in(5) ? nullptr : memory;
    t.device = {(DLDeviceType)in.below(20), (int32_t)in.below(3)};
    t.ndim = in.one_in(8) ? (int32_t)in.take<int32_t>() : (int32_t)in.below(NVTE_MAX_DIMS + 2);
    if (t.ndim > NVTE_MAX_DIMS + 4 && !in.one_in(3)) t.ndim = 2;
    t.dtype = {(uint8_t)in.below(20), (uint8_t)(in.one_in(3) ? in.byte() : 8u << in.below(4)), (uint16_t)(in.one_in(6) ? in.take<uint16_t>() : 1)};
    t.shape = in.one_in(10) ? nullptr : shape;
    t.strides = in.one_in(3) ? nullptr : strides;
    t.byte_offset = in.one_in(3) ? in.take<uint64_t>() : in.below(32);

    nvte_tensor out = {};
    out.struct_size = in.one_in(6) ? in.below(600) : sizeof out;
    const nvte_tensor before = out;
    nvte_status status;
    DLTensor seen;
    uint64_t flags = 0;
    if (in.one_in(2)) {
      DLManagedTensorVersioned m = {};
      m.version = {in.one_in(4) ? in.below(100) : DLPACK_MAJOR_VERSION, in.below(9)};
      m.flags = flags = in.below(8);
      m.dl_tensor = t;
      status = nvte_tensor_from_dlpack_versioned(in.one_in(30) ? nullptr : &m, &out);
      seen = m.dl_tensor;
      if (m.version.major != DLPACK_MAJOR_VERSION) must(status != NVTE_OK);
    } else {
      DLManagedTensor m = {};
      m.dl_tensor = t;
      status = nvte_tensor_from_dlpack(in.one_in(30) ? nullptr : &m, &out);
      seen = m.dl_tensor;
    }
    must(!memcmp(&seen, &t, sizeof t));
    if (status != NVTE_OK) {
      must(status > 0 && *nvte_last_error() && !memcmp(&out, &before, sizeof out));
      continue;
    }
    must(t.ndim >= 0 && t.ndim <= NVTE_MAX_DIMS && out.data.ndim == t.ndim);
    for (int i = 0; i < t.ndim; i++) must(t.shape && t.shape[i] >= 0 && (!t.strides || t.strides[i] >= 0));
    if (flags & DLPACK_FLAG_BITMASK_READ_ONLY) must((out.flags & NVTE_TENSOR_READ_ONLY) != 0);
  }
  return 0;
}
