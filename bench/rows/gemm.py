# SPDX-License-Identifier: Apache-2.0
"""Matrix products. D[m, n] = A[m, k] B, B stored [n, k] (NT, as torch's linear) or [k, n] (NN)."""
from __future__ import annotations

import torch
from measure import Row, Sides
from te import bind

TRANS_B, GELU = 2, 4
NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
SIZES = [(512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 1024)]


def close(a: torch.Tensor, b: torch.Tensor, bits: float) -> None:
    a, b = a.float(), b.float()
    error = (a - b).abs().max() / b.abs().max().clamp(min=1e-6)
    if not error < 2.0**-bits:
        raise AssertionError(f"the sides differ by {error:.2e} of the largest value")


def plain(dtype: torch.dtype, m: int, n: int, k: int, layout: str, must: float, aim: float) -> Row:
    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        a = torch.randn(m, k).to(dtype)
        b = torch.randn(n, k).to(dtype) if layout == "nt" else torch.randn(k, n).to(dtype)
        right = b.t() if layout == "nt" else b
        flags = TRANS_B if layout == "nt" else 0
        d, other = torch.empty(m, n, dtype=dtype), torch.empty(m, n, dtype=dtype)
        ours = bind("gemm", a=a, b=b, d=d, flags=flags)

        def ours_new() -> torch.Tensor:
            out = torch.empty(m, n, dtype=dtype)
            bind("gemm", a=a, b=b, d=out, flags=flags)()
            return out

        def check() -> None:
            ours()
            close(d, torch.mm(a, right), 6)

        if allocate:
            return Sides(ours_new, lambda: torch.mm(a, right), check=check)
        return Sides(ours, lambda: torch.mm(a, right, out=other), check=check)

    name = NAMES[dtype]
    return Row(f"gemm.{name}.{layout}.{m}x{n}x{k}", f"GEMM {name} {layout.upper()}", f"{m}x{n}x{k}", "torch.mm", make,
               {"rival": must}, {"rival": aim}, bytes=(m * k + k * n + m * n) * torch.empty(0, dtype=dtype).element_size(), flops=2 * m * n * k)


def fp8(left: torch.dtype, m: int, n: int, k: int) -> Row:
    right = torch.float8_e4m3fn

    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        a, b = torch.randn(m, k).to(left), torch.randn(n, k).to(right)
        sa, sb = torch.tensor([0.5]), torch.tensor([2.0])
        d = torch.empty(m, n, dtype=torch.bfloat16)
        ours = bind("gemm", a=a, a_scale_inv=sa, b=b, b_scale_inv=sb, d=d, flags=TRANS_B)

        def ours_new() -> torch.Tensor:
            out = torch.empty(m, n, dtype=torch.bfloat16)
            bind("gemm", a=a, a_scale_inv=sa, b=b, b_scale_inv=sb, d=out, flags=TRANS_B)()
            return out

        def rival() -> torch.Tensor:
            return torch._scaled_mm(a, b.t(), sa, sb, out_dtype=torch.bfloat16)

        def check() -> None:
            ours()
            close(d, rival(), 6)

        others = {} if left != right else {"bf16 mm": lambda: a.to(torch.bfloat16) @ b.to(torch.bfloat16).t()}
        return Sides(ours_new if allocate else ours, rival, {} if allocate else others, check)

    return Row(f"gemm.{NAMES[left]}_e4m3.nt.{m}x{n}x{k}", f"GEMM {NAMES[left]} x e4m3 -> bf16", f"{m}x{n}x{k}", "torch._scaled_mm, tensorwise", make,
               {"rival": 2.4, "bf16 mm": 1.4} if left == right and m <= 1024 else {"rival": 2.4}, {"rival": 3.0}, bytes=m * k + k * n + 2 * m * n, flops=2 * m * n * k)


def epilogue(m: int, n: int, k: int) -> Row:
    """bias, GELU, FP8 output and its amax inside the product, against the chain of torch ops that gives the same."""
    e4m3 = torch.float8_e4m3fn

    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        a, b, bias = torch.randn(m, k).to(e4m3), (16 * torch.randn(n, k) / k**0.5).to(e4m3), torch.randn(n).bfloat16()
        sa, sb, scale, inv, amax = torch.tensor([1.0]), torch.tensor([1 / 16]), torch.tensor([16.0]), torch.empty(1), torch.empty(1)

        def call(d: torch.Tensor, aux: torch.Tensor):  # type: ignore[no-untyped-def]
            return bind("gemm", a=a, a_scale_inv=sa, b=b, b_scale_inv=sb, d=d, d_scale_inv=inv, d_scale=scale, d_amax=amax, bias=bias, aux=aux, flags=TRANS_B | GELU)

        d, aux = torch.empty(m, n, dtype=e4m3), torch.empty(m, n, dtype=torch.bfloat16)
        ours = call(d, aux)

        def rival() -> torch.Tensor:
            h = torch._scaled_mm(a, b.t(), sa, sb, bias=bias, out_dtype=torch.bfloat16)
            g = torch.nn.functional.gelu(h, approximate="tanh")
            g.abs().max()
            return (g.float() * scale).clamp(-448, 448).to(e4m3)

        def check() -> None:
            ours()
            close(d, rival(), 3)

        if allocate:
            return Sides(lambda: call(torch.empty(m, n, dtype=e4m3), torch.empty(m, n, dtype=torch.bfloat16))(), rival, check=check)
        return Sides(ours, rival, check=check)

    return Row(f"gemm.epilogue.{m}x{n}x{k}", "GEMM e4m3 + bias + GELU -> e4m3 + amax", f"{m}x{n}x{k}", "torch _scaled_mm, gelu, amax, scale, clamp, cast", make,
               {"rival": 2.5}, {"rival": 3.5}, bytes=m * k + k * n + 3 * m * n, flops=2 * m * n * k)


def rows() -> list[Row]:
    found = [plain(torch.float32, *s, "nt", 0.90, 1.05) for s in SIZES] + [plain(torch.float32, 1024, 1024, 1024, "nn", 0.90, 1.05)]
    found += [plain(torch.bfloat16, *s, "nt", 0.85, 1.0) for s in SIZES]
    found += [plain(torch.float16, *s, "nt", 3.5, 4.5) for s in SIZES[:2]] + [plain(torch.float16, 512, 512, 512, "nn", 50, 150)]
    found += [fp8(torch.float8_e4m3fn, *s) for s in SIZES] + [fp8(torch.float8_e5m2, *SIZES[1])]
    return found + [epilogue(2048, 1024, 1024)]
