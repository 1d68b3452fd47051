# SPDX-License-Identifier: Apache-2.0
"""FP8 casts, 8192x4096."""
from __future__ import annotations

import torch
from measure import Row, Sides
from te import bind

from .gemm import NAMES

M, K = 8192, 4096
E4M3 = torch.float8_e4m3fn


def same(ours: torch.Tensor, rival: torch.Tensor) -> None:
    if not torch.equal(ours.view(torch.uint8), rival.view(torch.uint8)):
        raise AssertionError("the codes differ")


def cast(dtype: torch.dtype, must: float, aim: float) -> Row:
    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        x = torch.randn(M, K).to(dtype)
        scale, inv, amax = torch.tensor([1.0]), torch.empty(1), torch.empty(1)
        y, out = torch.empty(M, K, dtype=E4M3), torch.empty(M, K, dtype=E4M3)
        ours = bind("quantize", x=x, y=y, y_scale_inv=inv, y_scale=scale, y_amax=amax)

        def check() -> None:
            ours()
            same(y, x.clamp(-448, 448).to(E4M3))

        if allocate:
            new = lambda: bind("quantize", x=x, y=torch.empty(M, K, dtype=E4M3), y_scale_inv=inv, y_scale=scale, y_amax=amax)()  # noqa: E731
            return Sides(new, lambda: x.to(E4M3), check=check)
        return Sides(ours, lambda: out.copy_(x), check=check)

    return Row(f"cast.{NAMES[dtype]}", f"cast {NAMES[dtype]} -> e4m3 with scale + amax", f"{M}x{K}", "torch bare copy_ (no scale, no amax, no saturation)", make,
               {"rival": must}, {"rival": aim}, bytes=M * K * (x_bytes(dtype) + 1))


def x_bytes(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype).element_size()


def cast_transpose(dtype: torch.dtype) -> Row:
    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        x = torch.randn(M, K).to(dtype)
        scale, inv, amax = torch.tensor([16.0]), torch.empty(1), torch.empty(1)

        def call(y: torch.Tensor, t: torch.Tensor):  # type: ignore[no-untyped-def]
            return bind("quantize", x=x, y=y, y_columnwise=t, y_scale_inv=inv, y_columnwise_scale_inv=inv, y_scale=scale, y_amax=amax)

        y, t = torch.empty(M, K, dtype=E4M3), torch.empty(K, M, dtype=E4M3)
        ours = call(y, t)

        def rival() -> tuple[torch.Tensor, ...]:
            codes = (x.float() * scale).clamp(-448, 448).to(E4M3)
            return codes, codes.t().contiguous(), x.abs().max()

        def check() -> None:
            ours()
            same(y, rival()[0])
            same(t, rival()[1])

        if allocate:
            return Sides(lambda: call(torch.empty(M, K, dtype=E4M3), torch.empty(K, M, dtype=E4M3))(), rival, check=check)
        return Sides(ours, rival, {"compiled": torch.compile(rival)}, check)

    return Row(f"cast_transpose.{NAMES[dtype]}", f"cast {NAMES[dtype]} -> e4m3 + amax + transpose", f"{M}x{K}", "torch scale, clamp, cast, transpose, amax", make,
               {"rival": 6, "compiled": 3}, {"rival": 8, "compiled": 4}, {"rival": 20}, must_roof=0.35, bytes=M * K * (x_bytes(dtype) + 2))


def dequantize(dtype: torch.dtype, must: float, aim: float) -> Row:
    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        x, inv = torch.randn(M, K).to(E4M3), torch.tensor([1.0])
        y, out = torch.empty(M, K, dtype=dtype), torch.empty(M, K, dtype=dtype)
        ours = bind("dequantize", x=x, x_scale_inv=inv, y=y)

        def check() -> None:
            ours()
            if not torch.equal(y, x.to(dtype)):
                raise AssertionError("the numbers differ")

        if allocate:
            return Sides(lambda: bind("dequantize", x=x, x_scale_inv=inv, y=torch.empty(M, K, dtype=dtype))(), lambda: x.to(dtype), check=check)
        return Sides(ours, lambda: out.copy_(x), {"compiled": torch.compile(lambda: x.to(dtype))}, check)

    return Row(f"dequantize.{NAMES[dtype]}", f"e4m3 -> {NAMES[dtype]}", f"{M}x{K}", "torch copy_", make, {"rival": must}, {"rival": aim},
               bytes=M * K * (x_bytes(dtype) + 1))


def rows() -> list[Row]:
    f32, bf16 = torch.float32, torch.bfloat16
    return [cast(f32, 2.2, 3), cast(bf16, 2.2, 4), cast_transpose(f32), cast_transpose(bf16), dequantize(f32, 9, 11), dequantize(bf16, 18, 25)]
