// SPDX-License-Identifier: Apache-2.0
// The GPU of a GPU test program: buffers by hipMalloc, a stream of its own, and the plug-in's table registered from the same program.
#include "gpu/vendor/gpu.h"

#include <stdexcept>

#include "dispatch/host.h"
#include "harness/device.h"

extern "C" const nvte_backend *nvte_backend_entry(const nvte_host *host);

namespace te::test {
namespace {

void must(hipError_t e, const char *what) {
  if (e != hipSuccess) throw std::runtime_error(std::string(what) + ": " + hipGetErrorString(e));
}

class Gpu : public Device {
 public:
  std::string name() const override { return TE_GPU_NAME; }
  DLDevice dl() const override { return {TE_GPU_DEVICE_TYPE, 0}; }
  void open() override {
    if (stream_) return;
    const nvte_backend *table = nvte_backend_entry(te::host());
    if (!table || nvte_backend_register(table) != NVTE_OK) throw std::runtime_error(nvte_last_error());
    int32_t n = 0;
    if (nvte_device_count(TE_GPU_DEVICE_TYPE, &n) != NVTE_OK) throw std::runtime_error(nvte_last_error());
    if (n < 1) throw std::runtime_error("no " TE_GPU_NAME " device");
    must(hipStreamCreate(&stream_), "hipStreamCreate");
  }
  void *stream() const override { return stream_; }
  void *alloc(size_t bytes) override {
    void *p = nullptr;
    must(hipMalloc(&p, bytes), "hipMalloc");
    return p;
  }
  void free(void *p, size_t) override { (void)hipFree(p); }
  void to_device(void *dst, const void *src, size_t n) override { must(hipMemcpy(dst, src, n, hipMemcpyHostToDevice), "copy to the device"); }
  void to_host(void *dst, const void *src, size_t n) override { must(hipMemcpy(dst, src, n, hipMemcpyDeviceToHost), "copy to the host"); }
  void synchronize() override { must(hipStreamSynchronize(stream_), "the call's stream"); }

 private:
  hipStream_t stream_ = nullptr;
};

const bool added = [] {
  static Gpu gpu;
  add_device(gpu);
  return true;
}();

}  // namespace
}  // namespace te::test
