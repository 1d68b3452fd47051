// SPDX-License-Identifier: Apache-2.0
// CPU levels. src/ops/<op>/cpu.cpp is compiled once a level with TE_CPU_ISA = base | avx2 | avx512 (| avx512bf16 for the files
// listed in CMakeLists.txt) and defines, for each operator of the folder,
//     namespace te::cpu::TE_CPU_ISA { nvte_status <op>(const nvte_exec &exec, const nvte_<op>_args &args) { ... } }
// Everything else in such a file has internal linkage (anonymous namespace): no inline or template symbol may be shared between
// levels, or the linker could give an old chip the AVX-512 copy. tools/lint.py asks nm for zero weak symbols.
#pragma once
#include "core/op.h"

namespace te::cpu {

enum Level : int { kBase = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };

// The best level this CPU has, or the one LIBTE_CPU_ISA names. *status is NVTE_ERR_CONFIG (message set) when that one is
// unknown or missing here.
Level level(nvte_status *status);
const char *level_name(Level l);

template <class Args> using Kernel = nvte_status (*)(const nvte_exec &, const Args &);

// Used by op.cpp only: the function of the current level, or an error.
template <class Args> nvte_status run_level(const Kernel<Args> (&table)[4], const nvte_exec *exec, const void *args) {
  nvte_status status = NVTE_OK;
  const Level l = level(&status);
  if (status != NVTE_OK) return status;
  return table[l](*exec, *static_cast<const Args *>(args));
}

}  // namespace te::cpu

// In op.cpp, at namespace te scope: declares the kernels of an operator and defines run_cpu_<op>. TE_CPU_BASE_ONLY (LIBTE_CPU_BASE_ONLY: the
// GPU test programs, which need `cpu` as a yardstick only) leaves the other levels out.
#define TE_CPU_DECLARE(level, op) \
  namespace cpu::level { nvte_status op(const nvte_exec &, const nvte_##op##_args &); }
#define TE_CPU_TABLE(op, l1, l2, l3)                                                                         \
  static nvte_status run_cpu_##op(const nvte_exec *e, const void *a) {                                       \
    static constexpr cpu::Kernel<nvte_##op##_args> t[4] = {cpu::base::op, cpu::l1::op, cpu::l2::op, cpu::l3::op}; \
    return cpu::run_level(t, e, a);                                                                          \
  }
#if defined(TE_CPU_BASE_ONLY)
#define TE_CPU_KERNELS_3(op) TE_CPU_DECLARE(base, op) TE_CPU_TABLE(op, base, base, base)
#define TE_CPU_KERNELS_4(op) TE_CPU_KERNELS_3(op)
#else
#define TE_CPU_KERNELS_3(op) TE_CPU_DECLARE(base, op) TE_CPU_DECLARE(avx2, op) TE_CPU_DECLARE(avx512, op) TE_CPU_TABLE(op, avx2, avx512, avx512)
#define TE_CPU_KERNELS_4(op)                                                                                              \
  TE_CPU_DECLARE(base, op) TE_CPU_DECLARE(avx2, op) TE_CPU_DECLARE(avx512, op) TE_CPU_DECLARE(avx512bf16, op)             \
  TE_CPU_TABLE(op, avx2, avx512, avx512bf16)
#endif
// The usual implementation row: {TE_CPU_IMPLEMENTATION(rmsnorm_forward)}.
#define TE_CPU_IMPLEMENTATION(op) \
  { sizeof(nvte_implementation), #op, "cpu", 0, 0, nullptr, nullptr, run_cpu_##op }
