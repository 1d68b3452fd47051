// SPDX-License-Identifier: Apache-2.0
// Bytes as decisions: what libFuzzer mutates, or a seeded generator produces.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace te::fuzz {

class Bytes {
 public:
  Bytes(const uint8_t *data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ >= size_; }
  uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  template <class T> T take() {
    T v = {};
    for (size_t i = 0; i < sizeof v; i++) ((uint8_t *)&v)[i] = byte();
    return v;
  }
  uint32_t below(uint32_t n) { return n ? take<uint16_t>() % n : 0; }
  bool one_in(uint32_t n) { return below(n) == 0; }

 private:
  const uint8_t *data_;
  size_t size_, at_ = 0;
};

}  // namespace te::fuzz
