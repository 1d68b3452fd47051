// SPDX-License-Identifier: Apache-2.0
// nvte_transpose on GPUs.
#include "gpu/rtc/rtc.h"
#include "gpu/rtc/tiles.h"
#include "gpu/transpose.h"

namespace te {
namespace {
nvte_status run(const nvte_exec *e, const void *p) {
  const auto &a = *static_cast<const nvte_transpose_args *>(p);
  return gpu::guarded(e, [&]() -> nvte_status {
    const DLTensor &x = a.x->data;
    const int64_t m = rows(x), k = columns(x);
    if (m == 0 || k == 0) return NVTE_OK;
    return gpu::transpose(*e, (int)element_bytes(x), address_as<const char>(x), device::rows_of(x), address_as<char>(a.y->data), m, k,
                          a.noop ? address_as<const float>(a.noop->data) : nullptr);
  });
}
// ---- compiled at run time ----

const gpu::rtc::Program kProgram = {"ops/transpose/rtc.h", "te_transpose", {"TE_BYTES", "TE_WIDE", "TE_ACROSS", "TE_DOWN"}};

struct RtcCall {
  int bytes, side;
  int64_t m, k;
  device::Rows lines;
  gpu::WideRows rows;
  bool pieces;  // wide on both sides, rows of one stride
  gpu::rtc::Tile tile;
  RtcCall(const nvte_exec *e, const nvte_transpose_args &a)
      : bytes((int)element_bytes(a.x->data)), side(bytes == 1 ? 8 : 16 / bytes), m(te::rows(a.x->data)), k(columns(a.x->data)), lines(device::rows_of(a.x->data)),
        rows(bytes, address(a.x->data), lines, address(a.y->data), m, k), pieces(rows.x && rows.y && lines.n == 0),
        tile(pieces ? gpu::rtc::choose_tile(m, k, side, gpu::multiprocessors(e->device.device_id)) : gpu::rtc::Tile{16, 16}) {
    if (!pieces) side = (bytes == 8 ? 32 : 64) / 16;
  }
  const char *kernel(const nvte_exec *e, void **out) const { return gpu::rtc::find(*e, kProgram, {bytes, pieces, tile.across, tile.down}, out); }
};
const char *refuse_rtc(const nvte_exec *e, const void *p) {
  const RtcCall c(e, *static_cast<const nvte_transpose_args *>(p));
  if (c.tile.high(c.m, c.side) > 65535) return "x has too many rows";
  void *kernel;
  return c.kernel(e, &kernel);
}
nvte_status run_rtc(const nvte_exec *e, const void *p) {
  const auto &a = *static_cast<const nvte_transpose_args *>(p);
  return gpu::guarded(e, [&]() -> nvte_status {
    const RtcCall c(e, a);
    void *kernel;
    if (const char *why = c.kernel(e, &kernel)) return fail(NVTE_ERR_UNSUPPORTED, "rtc: %s", why);
    if (c.m == 0 || c.k == 0) return NVTE_OK;
    const dim3 grid((unsigned)c.tile.wide(c.k, c.side), (unsigned)c.tile.high(c.m, c.side));
    return gpu::rtc::launch(*e, kernel, grid, c.tile.across * c.tile.down, "transpose", (const void *)address(a.x->data), c.lines, address(a.y->data), c.m, c.k,
                            c.rows.x, c.rows.y, a.noop ? address_as<const float>(a.noop->data) : nullptr);
  });
}

const nvte_implementation table[] = {{sizeof(nvte_implementation), "transpose", "gpu", 0, 0, nullptr, nullptr, run},
                                     {sizeof(nvte_implementation), "transpose", "rtc", 10, 0, refuse_rtc, nullptr, run_rtc}};
}  // namespace
namespace gpu {
TE_GPU_IMPLEMENTATIONS(transpose) = {table, 2};
}
}  // namespace te
