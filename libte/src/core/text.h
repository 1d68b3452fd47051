// SPDX-License-Identifier: Apache-2.0
// Text for messages: a bounded buffer, and the names of dtypes, devices and shapes.
#pragma once
#include "core/status.h"
#include "core/tensor.h"

namespace te {

// Appends printf-style into a fixed array; what does not fit is cut.
class Text {
 public:
  Text(char *buf, size_t room) : buf_(buf), room_(room) {
    if (room_) buf_[0] = 0;
  }
  [[gnu::format(printf, 2, 3)]] Text &add(const char *format, ...);
  Text &shape(const int64_t *shape, int n);  // [2, 16]
  Text &shape(const DLTensor &t) { return shape(t.shape, t.ndim); }
  const char *c_str() const { return room_ ? buf_ : ""; }
  size_t length() const { return length_; }

 private:
  char *buf_;
  size_t room_, length_ = 0;
};

template <size_t N> class TextOf : public Text {
 public:
  TextOf() : Text(room, N) {}

 private:
  char room[N];
};

// "bf16"; types libte has no word for are spelled by code, bits and lanes in a buffer of the thread.
const char *dtype_name(DLDataType t);
// "cpu", "cuda", "rocm", ... "device type 99".
const char *device_name(int32_t device_type);

}  // namespace te
