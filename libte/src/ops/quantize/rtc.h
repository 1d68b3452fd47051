// SPDX-License-Identifier: Apache-2.0
// quantize's kernel as it is compiled at run time. TE_IN, TE_OUT: dtypes by number; TE_OUTPUTS: 1 = rows, 2 = columns, 3 = both; TE_WIDE: the
// tensors suit quantize_tile's Wide; TE_SUMS: column sums; TE_ACROSS, TE_DOWN: the block's threads; TE_BLOCKS: the second of the launch bounds.
#include "gpu/device/offsets.h"
#include "ops/quantize/kernel.h"

namespace te::device {
using Layout = Tiling<TE_ACROSS, TE_DOWN, 8>;
using In = Numbered<TE_IN>::type;
using Out = Numbered<TE_OUT>::type;

extern "C" __global__ void __launch_bounds__(Layout::kThreads, TE_BLOCKS) te_quantize(
    const In *__restrict__ x, Rows rows, Out *__restrict__ y, Out *__restrict__ yt, int64_t m, int64_t k, te::gpu::Quantised q, QuantizeSums to,
    const float *__restrict__ noop) {
  __shared__ __align__(16) unsigned char shared[kQuantizeBytes<Layout>];
  await_previous();
  let_next_begin();
  if (noop && *noop == 1.f) return;
  const float amax =
      quantize_tile<In, Out, Layout, TE_WIDE>(x, rows, TE_OUTPUTS & 1 ? y : nullptr, TE_OUTPUTS & 2 ? yt : nullptr, m, k, te::gpu::scale_of(q), TE_SUMS ? to : QuantizeSums{},
                                              (int64_t)blockIdx.y * Layout::kHeight, (int64_t)blockIdx.x * Layout::kWidth, shared);
  te::gpu::finish<Layout::kThreads>(q, amax, (int)(blockIdx.y * gridDim.x + blockIdx.x));
}
}  // namespace te::device
