// SPDX-License-Identifier: Apache-2.0
// The CPU's threads and scratch memory. Nothing here is inline, so per-ISA kernels may include it.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace te::cpu {

// Calls body(context, i) for every i in [0, chunks), on the pool and the calling thread, and returns when all are done. Chunks
// must be a function of the shape only (never of the thread count), so results do not depend on it. Chunks are handed out one
// by one. The work runs in the caller when chunks == 1, when called from a worker, or when `cost` (rough bytes or operations
// touched in total) is small. Workers run with the door's floating-point environment. An exception or a failed allocation in a
// worker makes this return false (the caller returns fail(...)); bodies built per ISA do not throw.
bool parallel(int64_t chunks, int64_t cost, void (*body)(void *context, int64_t chunk), void *context);

// Threads that parallel() may use now (LIBTE_NUM_THREADS, then OMP_NUM_THREADS, affinity, cgroup; set_threads wins).
int threads();
void set_threads(int n);

// Scratch memory of the calling thread: `slot` 0..7 are independent buffers, each grows and is reused, 64-byte aligned, contents
// undefined. Valid until the next call with that slot on this thread; nullptr when memory is out.
void *scratch(int slot, size_t bytes);

}  // namespace te::cpu
