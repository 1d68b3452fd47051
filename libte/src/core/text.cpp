// SPDX-License-Identifier: Apache-2.0
#include "core/text.h"

#include <stdarg.h>
#include <stdio.h>

namespace te {

Text &Text::add(const char *format, ...) {
  if (length_ + 1 >= room_) return *this;
  va_list list;
  va_start(list, format);
  const int n = vsnprintf(buf_ + length_, room_ - length_, format, list);
  va_end(list);
  if (n > 0) length_ += (size_t)n < room_ - length_ ? (size_t)n : room_ - length_ - 1;
  return *this;
}

Text &Text::shape(const int64_t *shape, int n) {
  add("[");
  for (int i = 0; i < n; i++) add(i ? ", %lld" : "%lld", (long long)shape[i]);
  return add("]");
}

const char *dtype_name(DLDataType t) {
  static const char *const names[] = {"f32", "f16", "bf16", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0",
                                      "u8",  "i8",  "i16",  "i32",  "i64",  "bool",     "f64"};
  const DType d = dtype_of(t);
  if (d != DType::other) return names[(int)d];
  static thread_local char other[64];
  snprintf(other, sizeof other, "dtype{code %d, bits %d, lanes %d}", t.code, t.bits, t.lanes);
  return other;
}

const char *device_name(int32_t device_type) {
  switch (device_type) {
    case kDLCPU: return "cpu";
    case kDLCUDA: return "cuda";
    case kDLCUDAHost: return "cuda_host";
    case kDLROCM: return "rocm";
    case kDLROCMHost: return "rocm_host";
    case kDLExtDev: return "ext_dev";
    case kDLCUDAManaged: return "cuda_managed";
    case kDLOneAPI: return "one_api";
    default: break;
  }
  static thread_local char other[32];
  snprintf(other, sizeof other, "device type %d", (int)device_type);
  return other;
}

}  // namespace te
