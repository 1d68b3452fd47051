// SPDX-License-Identifier: Apache-2.0
// Where test buffers live: the CPU, and in a GPU test program (gpu.cpp) its GPU.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "libte/libte.h"

namespace te::test {

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  virtual DLDevice dl() const = 0;
  virtual void open() {}  // before its first use; throws where there is none
  virtual void *stream() const { return nullptr; }
  virtual void *alloc(size_t bytes) = 0;  // 256-byte aligned; throws
  virtual void free(void *p, size_t bytes) = 0;
  virtual void to_device(void *dst, const void *src, size_t bytes) = 0;
  virtual void to_host(void *dst, const void *src, size_t bytes) = 0;
  virtual void synchronize() {}
  // Called round a call with the ranges of `p` that nobody may touch; only the CPU under AddressSanitizer can use it.
  virtual void forbid(const void *, size_t) {}
  virtual void allow(const void *, size_t) {}
};
Device &device(const std::string &name);  // "cpu", or one that was added; throws for others
void add_device(Device &d);               // the default of libte_ops is the one added last
std::string default_device();

// Device memory with a host copy, surrounded by guard words.
class Buffer {
 public:
  static constexpr size_t kGuard = 256;
  // Everything, guards included, is filled with `poison`.
  Buffer(Device &d, size_t bytes, uint8_t poison);
  ~Buffer();
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;

  void *data() const { return base_ + kGuard; }              // device address
  uint8_t *host() { return host_.data() + kGuard; }          // what goes up, then what came back
  size_t size() const { return bytes_; }
  void mark(size_t offset, size_t bytes) { owned_.push_back({offset, bytes}); }  // bytes that the call may read or write
  void seal() { sealed_ = true; }                                                // nothing may be written at all
  void upload();
  void download();
  std::string damage() const;  // "" when nothing outside the marked bytes (sealed: nothing at all) changed
  bool changed() const { return host_ != before_; }

 private:
  std::vector<std::pair<size_t, size_t>> outside() const;  // sorted ranges of the allocation that are not marked
  Device &device_;
  size_t bytes_;
  char *base_;
  std::vector<uint8_t> host_, before_;
  std::vector<std::pair<size_t, size_t>> owned_;
  bool sealed_ = false;
};

}  // namespace te::test
