# SPDX-License-Identifier: Apache-2.0
"""GELU, SwiGLU, softmax, 8192x1024; RoPE, S2048 B2 H16 D64; dropout and cross-entropy (no goal set, shown beside)."""
from __future__ import annotations

import torch
from measure import Row, Sides
from te import bind

from .gemm import NAMES, close

M, K = 8192, 1024
F = torch.nn.functional
aten = torch.ops.aten


def size_of(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype).element_size()


def gelu(dtype: torch.dtype, must: float, aim: float) -> Row:
    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        x = torch.randn(M, K).to(dtype)
        y, out = torch.empty_like(x), torch.empty_like(x)
        ours = bind("activation_forward", x=x, y=y, activation=0)

        def check() -> None:
            ours()
            close(y, F.gelu(x, approximate="tanh"), 6)

        if allocate:
            return Sides(lambda: bind("activation_forward", x=x, y=torch.empty_like(x), activation=0)(), lambda: F.gelu(x, approximate="tanh"), check=check)
        compiled = torch.compile(lambda: F.gelu(x, approximate="tanh"))
        return Sides(ours, lambda: aten.gelu.out(x, approximate="tanh", out=out), {"compiled": compiled}, check)

    return Row(f"gelu.forward.{NAMES[dtype]}", f"GELU (tanh) forward {NAMES[dtype]}", f"{M}x{K}", "torch gelu", make, {"rival": must}, {"rival": aim},
               bytes=2 * M * K * size_of(dtype))


def swiglu(dtype: torch.dtype, must: float, aim: float) -> Row:
    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        x = torch.randn(M, 2 * K).to(dtype)
        a, b = x[:, :K], x[:, K:]
        y, gate, out = torch.empty(M, K, dtype=dtype), torch.empty(M, K, dtype=dtype), torch.empty(M, K, dtype=dtype)
        ours = bind("gated_activation_forward", x=x, y=y, activation=5)

        def rival_out() -> None:
            aten.silu.out(a, out=gate)
            torch.mul(gate, b, out=out)

        def check() -> None:
            ours()
            close(y, F.silu(a) * b, 6)

        if allocate:
            new = lambda: bind("gated_activation_forward", x=x, y=torch.empty(M, K, dtype=dtype), activation=5)()  # noqa: E731
            return Sides(new, lambda: F.silu(a) * b, check=check)
        return Sides(ours, rival_out, {"compiled": torch.compile(lambda: F.silu(a) * b)}, check)

    return Row(f"swiglu.forward.{NAMES[dtype]}", f"SwiGLU forward {NAMES[dtype]}", f"{M}x{2 * K} -> {M}x{K}", "torch silu(a) * b", make, {"rival": must},
               {"rival": aim}, bytes=3 * M * K * size_of(dtype))


def softmax(dtype: torch.dtype, must: float, aim: float) -> Row:
    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        x = torch.randn(M, K).to(dtype)
        y, out = torch.empty_like(x), torch.empty_like(x)
        ours = bind("softmax_forward", x=x, y=y)

        def check() -> None:
            ours()
            close(y, torch.softmax(x, -1), 5)

        if allocate:
            return Sides(lambda: bind("softmax_forward", x=x, y=torch.empty_like(x))(), lambda: torch.softmax(x, -1), check=check)
        return Sides(ours, lambda: torch.softmax(x, -1, out=out), {"compiled": torch.compile(lambda: torch.softmax(x, -1))}, check)

    return Row(f"softmax.forward.{NAMES[dtype]}", f"softmax forward {NAMES[dtype]}", f"{M}x{K}", "torch softmax", make, {"rival": must}, {"rival": aim},
               bytes=2 * M * K * size_of(dtype))


def rope(dtype: torch.dtype, must: float, aim: float) -> Row:
    s, b, h, d = 2048, 2, 16, 64

    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        x = torch.randn(s, b, h, d).to(dtype)
        freqs = torch.outer(torch.arange(s).float(), 10000.0 ** (-torch.arange(0, d, 2).float() / d))
        freqs = torch.cat((freqs, freqs), -1)
        y = torch.empty_like(x)
        ours = bind("rope_forward", x=x, freqs=freqs, y=y)
        cos, sin = (f(freqs).to(dtype).view(s, 1, 1, d) for f in (torch.cos, torch.sin))  # the rival has its tables ready

        def rival() -> torch.Tensor:
            a, c = x.chunk(2, -1)
            return x * cos + torch.cat((-c, a), -1) * sin

        def check() -> None:
            ours()
            close(y, rival(), 5)

        if allocate:
            return Sides(lambda: bind("rope_forward", x=x, freqs=freqs, y=torch.empty_like(x))(), rival, check=check)
        return Sides(ours, rival, {"compiled": torch.compile(rival)}, check)

    return Row(f"rope.forward.{NAMES[dtype]}", f"RoPE forward {NAMES[dtype]}", f"S{s} B{b} H{h} D{d}", "torch x * cos + rotate_half(x) * sin, cos and sin ready", make,
               {"rival": must}, {"rival": aim}, bytes=2 * s * b * h * d * size_of(dtype))


def dropout(dtype: torch.dtype) -> Row:
    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        x, rng = torch.randn(M, K).to(dtype), torch.tensor([7, 0])
        y, mask = torch.empty_like(x), torch.empty(M * K // 8, dtype=torch.uint8)
        ours = bind("dropout_forward", x=x, rng_state=rng, y=y, mask=mask, p=0.1)

        def check() -> None:
            ours()
            kept = (y != 0).float().mean()
            if not abs(kept - 0.9) < 0.01:
                raise AssertionError(f"kept {kept:.3f}")

        new = lambda: bind("dropout_forward", x=x, rng_state=rng, y=torch.empty_like(x), mask=torch.empty_like(mask), p=0.1)()  # noqa: E731
        return Sides(new if allocate else ours, lambda: aten.native_dropout(x, 0.1, True), check=check)

    return Row(f"dropout.forward.{NAMES[dtype]}", f"dropout forward {NAMES[dtype]}", f"{M}x{K}", "torch native_dropout", make, bytes=(2 * size_of(dtype) + 1 / 8) * M * K)


def cross_entropy(dtype: torch.dtype) -> Row:
    t, v = 512, 32000

    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        x, target = torch.randn(t, v).to(dtype), torch.randint(v, (t,))
        kept = torch.empty(1), torch.empty(t), torch.empty_like(x)
        one = torch.ones(1)

        def step(loss: torch.Tensor, lse: torch.Tensor, dx: torch.Tensor):  # type: ignore[no-untyped-def]
            first = bind("cross_entropy_forward", logits=x, target=target, loss=loss, lse=lse)
            second = bind("cross_entropy_backward", logits=x, target=target, lse=lse, dloss=one, dlogits=dx)
            return lambda: (first(), second())

        ours, leaf = step(*kept), x.clone().requires_grad_()

        def rival() -> tuple[torch.Tensor, ...]:
            return torch.autograd.grad(F.cross_entropy(leaf, target), leaf)

        def check() -> None:
            ours()
            close(kept[2], rival()[0], 5)

        new = lambda: step(torch.empty(1), torch.empty(t), torch.empty_like(x))()  # noqa: E731
        return Sides(new if allocate else ours, rival, check=check)

    return Row(f"cross_entropy.both.{NAMES[dtype]}", f"cross-entropy forward + backward {NAMES[dtype]}", f"{t}x{v}", "torch cross_entropy, autograd", make,
               bytes=3 * t * v * size_of(dtype))


def rows() -> list[Row]:
    f32, bf16 = torch.float32, torch.bfloat16
    return [gelu(f32, 3, 4), gelu(bf16, 4, 7), swiglu(f32, 1.4, 1.8), swiglu(bf16, 3, 4), softmax(f32, 1.1, 1.3), softmax(bf16, 2, 2.5), rope(f32, 3, 4),
            rope(bf16, 3, 5), dropout(f32), dropout(bf16), cross_entropy(f32), cross_entropy(bf16)]
