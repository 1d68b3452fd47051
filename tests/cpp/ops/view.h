// SPDX-License-Identifier: Apache-2.0
// A descriptor over memory that the test owns, for plain tests beside the harness.
#pragma once
#include <cstring>
#include <deque>
#include <vector>

#include "harness/codec.h"
#include "libte/init.h"
#include "libte/libte.h"

namespace te::test {

struct View {
  nvte_tensor t;

  View() { memset(&t, 0, sizeof t), t.struct_size = sizeof t; }
  View(void *data, DType type, const Shape &shape) : View() { t.data = part(data, type, shape); }
  View(const View &) = delete;

  DLTensor part(void *data, DType type, const Shape &shape) {
    shapes_.emplace_back(shape.begin(), shape.end());
    return DLTensor{data, {kDLCPU, 0}, (int32_t)shape.size(), dl(type), shapes_.back().data(), nullptr, 0};
  }
  View &scaled(float *scale, float *scale_inv) {
    t.scaling = NVTE_SCALING_TENSOR;
    if (scale) t.scale = part(scale, DType::f32, {1});
    if (scale_inv) t.scale_inv = part(scale_inv, DType::f32, {1});
    return *this;
  }
  View &amax(float *p) {
    t.amax = part(p, DType::f32, {1});
    return *this;
  }
  View &columnwise(void *data, DType type, const Shape &physical, float *scale_inv) {
    t.columnwise = part(data, type, physical);
    if (scale_inv) t.columnwise_scale_inv = part(scale_inv, DType::f32, {1});
    return *this;
  }
  operator nvte_tensor *() { return &t; }

 private:
  std::deque<std::vector<int64_t>> shapes_;
};

// Bytes of n numbers in a format, each rounded.
inline std::vector<uint8_t> stored(DType type, const std::vector<double> &v) {
  std::vector<uint8_t> bytes(v.size() * bytes_of(type));
  for (size_t i = 0; i < v.size(); i++) write_element(type, bytes.data() + i * bytes_of(type), v[i]);
  return bytes;
}

}  // namespace te::test
