// SPDX-License-Identifier: Apache-2.0
#include "harness/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace te::test {
namespace {
class Cpu : public Device {
 public:
  std::string name() const override { return "cpu"; }
  DLDevice dl() const override { return {kDLCPU, 0}; }
  void *alloc(size_t bytes) override {
    void *p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!p) throw std::bad_alloc();
    return p;
  }
  void free(void *p, size_t) override { std::free(p); }
  void to_device(void *dst, const void *src, size_t n) override { memcpy(dst, src, n); }
  void to_host(void *dst, const void *src, size_t n) override { memcpy(dst, src, n); }
#if defined(__SANITIZE_ADDRESS__)
  void forbid(const void *p, size_t n) override { ASAN_POISON_MEMORY_REGION(p, n); }
  void allow(const void *p, size_t n) override { ASAN_UNPOISON_MEMORY_REGION(p, n); }
#endif
};
}  // namespace

static std::vector<Device *> &devices() {
  static Cpu cpu;
  static std::vector<Device *> all = {&cpu};
  return all;
}
void add_device(Device &d) { devices().push_back(&d); }
std::string default_device() { return devices().back()->name(); }
Device &device(const std::string &name) {
  for (Device *d : devices())
    if (d->name() == name) {
      d->open();
      return *d;
    }
  throw std::runtime_error("no test device '" + name + "' in this program (the GPUs' are built by make cuda and make hip)");
}

Buffer::Buffer(Device &d, size_t bytes, uint8_t poison) : device_(d), bytes_(bytes), base_((char *)d.alloc(bytes + 2 * kGuard)), host_(bytes + 2 * kGuard, poison) {}
Buffer::~Buffer() {
  device_.allow(base_, bytes_ + 2 * kGuard);
  device_.free(base_, bytes_ + 2 * kGuard);
}

std::vector<std::pair<size_t, size_t>> Buffer::outside() const {
  std::vector<std::pair<size_t, size_t>> sorted = owned_, gaps;
  std::sort(sorted.begin(), sorted.end());
  size_t at = 0;
  for (const auto &o : sorted) {
    const size_t start = kGuard + o.first;
    if (start > at) gaps.push_back({at, start - at});
    at = std::max(at, start + o.second);
  }
  if (at < host_.size()) gaps.push_back({at, host_.size() - at});
  return gaps;
}
void Buffer::upload() {
  before_ = host_;
  device_.to_device(base_, host_.data(), host_.size());
  for (const auto &g : outside()) device_.forbid(base_ + g.first, g.second);
}
void Buffer::download() {
  device_.allow(base_, host_.size());
  device_.to_host(host_.data(), base_, host_.size());
}
std::string Buffer::damage() const {
  if (host_ == before_) return "";
  auto first = [&](size_t from, size_t n) -> std::string {
    for (size_t i = from; i < from + n; i++)
      if (host_[i] != before_[i]) return "byte " + std::to_string((int64_t)i - (int64_t)kGuard) + " of " + std::to_string(bytes_) + " was changed";
    return "";
  };
  if (sealed_) return first(0, host_.size());
  for (const auto &g : outside()) {
    const std::string d = first(g.first, g.second);
    if (!d.empty()) return d + ", which is outside the tensor";
  }
  return "";
}

}  // namespace te::test
