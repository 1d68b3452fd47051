# SPDX-License-Identifier: Apache-2.0
"""A linear layer's composites quantise small tensors in one launch on GPUs: codes, scales, amaxes and the bias gradient are the bits of the operators
called one by one, on both sides of the sizes at which the launches are chosen."""
from __future__ import annotations

import pytest
import torch
from libte_torch import functional as F
from libte_torch import ops

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() and ops.device_usable("cuda") else [])]
# [m, k] and [n, k]: odd ones, one tile and several, 65536 numbers and more
SHAPES = [(1, 16, 16), (5, 24, 7), (32, 256, 256), (48, 128, 130), (64, 256, 256), (65, 64, 256), (256, 256, 256), (257, 256, 256), (264, 272, 256)]
E4M3, E5M2, F32 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float32


class Codes:
    def __init__(self, m: int, k: int, dtype: torch.dtype, device: str, scale: float) -> None:
        self.rows, self.columns = (torch.zeros(s, dtype=dtype, device=device) for s in ((m, k), (k, m)))
        state = torch.zeros(4, 4, device=device)  # the GEMM's scales lie at multiples of 16 bytes
        self.inverse, self.column_inverse, self.scale, self.amax = (state[i, :1] for i in range(4))
        self.scale.fill_(scale)
        self.amax.fill_(0.25)

    def all(self) -> list[torch.Tensor]:
        return [self.rows.view(torch.uint8), self.columns.view(torch.uint8), self.inverse, self.column_inverse, self.scale, self.amax]

    def slots(self) -> tuple[torch.Tensor, ...]:
        return self.rows, self.columns, self.inverse, self.column_inverse, self.scale, self.amax


def by_parts(x: torch.Tensor, q: Codes, current: int, pow2: bool, dbias: torch.Tensor | None = None) -> None:
    if current:
        ops.compute_amax(x, None, q.amax, 0)
        ops.compute_scale(q.amax, q.scale, None, q.rows.dtype, 0.0, int(pow2))
    ops.quantize(x, q.rows, q.columns, q.inverse, q.column_inverse, q.scale, None if current else q.amax, None, dbias)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, F32, torch.float16])
@pytest.mark.parametrize("current, pow2", [(0, False), (1, False), (1, True)])
def test_composites_quantise_as_the_operators(device: str, dtype: torch.dtype, current: int, pow2: bool) -> None:
    flags = (F.CURRENT_SCALING if current else 0) | (F.POW2_SCALES if pow2 else 0)
    for m, n, k in SHAPES:
        torch.manual_seed(m * n + k)
        x, w, dy = (torch.randn(s, device=device).mul(3).to(dtype) for s in ((m, k), (n, k), (m, n)))
        x[0, 0] = float("nan")  # no amax
        got, want = ([Codes(m, k, E4M3, device, 32.0), Codes(n, k, E4M3, device, 64.0)] for _ in range(2))
        y = torch.empty(m, n, dtype=dtype, device=device)
        ops.linear_forward(x, w, None, *got[0].slots(), *got[1].slots(), y, flags)
        for t, q in zip((x, w), want):
            by_parts(t, q, current, pow2)
        g, h = (Codes(m, n, E5M2, device, 128.0) for _ in range(2))
        db, db2 = torch.empty(n, dtype=dtype, device=device), torch.empty(n, dtype=dtype, device=device)
        dx, dw = torch.empty(m, k, dtype=dtype, device=device), torch.empty(n, k, dtype=dtype, device=device)
        ops.linear_backward(dy, *got[0].slots()[:4], None, None, *got[1].slots()[:4], None, None, *g.slots(), dx, dw, db, flags)
        by_parts(dy, h, current, pow2, db2)
        for a, b in zip((*got, g), (*want, h)):
            for part, (s, t) in enumerate(zip(a.all(), b.all())):
                assert torch.equal(s, t), (device, m, n, k, part)
        assert torch.equal(db, db2), (device, m, n, k)


@pytest.mark.parametrize("device", DEVICES)
def test_current_scaling_keeps_what_nobody_asked_for(device: str) -> None:
    for m, n, k in ((32, 256, 256), (272, 272, 256)):
        x, w = torch.randn(m, k, device=device), torch.randn(n, k, device=device)
        results = []
        for given in (True, False):
            q = [Codes(m, k, E4M3, device, 1.0), Codes(n, k, E4M3, device, 1.0)]
            y = torch.empty(m, n, device=device)
            slots = [t for c in q for t in (c.slots() if given else (*c.slots()[:4], None, None))]
            ops.linear_forward(x, w, None, *slots, y, F.CURRENT_SCALING)
            results.append([y, *(t for c in q for t in c.all()[:4])])
        assert all(torch.equal(a, b) for a, b in zip(*results))
