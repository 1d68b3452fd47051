// SPDX-License-Identifier: Apache-2.0
// What libte uses of hipBLASLt and of cuBLASLt, which mirror each other, under hipBLASLt's spelling. The functions are found at run time, so the
// types are ours: opaque handles, the few numbers, and two structs of the size that the libraries write.
#pragma once
#include "gpu/vendor/gpu.h"

#include <stddef.h>
#include <stdint.h>

namespace te::gpu::blaslt {

#if defined(TE_VENDOR_HIP)
#define TE_BLASLT(name) "hipblasLt" name
constexpr const char *kLibraries[] = {"libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"};
constexpr const char *kName = "libhipblaslt.so";
constexpr int kOpN = 111, kOpT = 112, kCompute32F = 2;
constexpr size_t kScaleAlignment = 4;
constexpr int kTransA = 0, kTransB = 1, kEpilogue = 2, kBiasPointer = 3, kBiasType = 4, kScaleA = 5, kScaleB = 6, kFastAccumulate = -1, kAlignmentA = -1;
struct Algorithm {
  uint8_t data[16];
  size_t workspace;
};
#else
#define TE_BLASLT(name) "cublasLt" name
constexpr const char *kLibraries[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
constexpr const char *kName = "libcublasLt.so";
constexpr int kOpN = 0, kOpT = 1, kCompute32F = 68;
constexpr size_t kScaleAlignment = 16;  // of the addresses of FP8 operands' scales
constexpr int kTransA = 3, kTransB = 4, kEpilogue = 7, kBiasPointer = 8, kScaleA = 17, kScaleB = 18, kFastAccumulate = 25, kBiasType = 26, kAlignmentA = 5;
struct Algorithm {
  uint64_t data[8];
};
#endif
constexpr int kR32F = 0, kR16F = 2, kR16BF = 14, kE4M3 = 28, kE5M2 = 29, kE4M3Fnuz = 1000, kE5M2Fnuz = 1001;
constexpr int kEpilogueDefault = 1, kEpilogueBias = 4, kMaxWorkspaceBytes = 1;

struct Result {
  Algorithm algorithm;
  size_t workspace;
  int state;  // 0: the other fields count
  float waves;
  int reserved[4];
};
using Handle = void *;

struct Functions {
#if defined(TE_VENDOR_HIP)
  int (*get_version)(Handle, int *);
  int64_t version(Handle h) const {
    int v = 0;
    return get_version(h, &v) == 0 ? v : -1;
  }
#else
  size_t (*get_version)();
  int64_t version(Handle) const { return static_cast<int64_t>(get_version()); }
#endif
  int (*create)(Handle *);
  int (*desc_create)(void **desc, int compute, int scale);
  int (*desc_destroy)(void *);
  int (*desc_set)(void *desc, int attribute, const void *value, size_t size);
  int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t columns, int64_t ld);
  int (*layout_destroy)(void *);
  int (*preference_create)(void **);
  int (*preference_destroy)(void *);
  int (*preference_set)(void *preference, int attribute, const void *value, size_t size);
  int (*heuristic)(Handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int asked, Result *results, int *found);
  int (*matmul)(Handle, void *desc, const void *alpha, const void *a, void *la, const void *b, void *lb, const void *beta, const void *c, void *lc,
                void *d, void *ld, const Algorithm *algorithm, void *workspace, size_t bytes, hipStream_t stream);
  const char *missing;  // why the library cannot serve; NULL: it can
};
// Opens the copy that the process has, else the system's. Once a process.
const Functions &functions();

}  // namespace te::gpu::blaslt
