# SPDX-License-Identifier: Apache-2.0
"""Attention, B1 H16 S2048 D64, against torch's scaled_dot_product_attention and jax.nn.dot_product_attention."""
from __future__ import annotations

from typing import Any

import torch
from measure import Row, Sides
from te import bind

from .gemm import NAMES, close

B, H, S, D = 1, 16, 2048, 64
BHSD, CAUSAL = 3, 1
SCALE = D**-0.5


def tensors(dtype: torch.dtype, n: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(B, H, S, D).to(dtype) for _ in range(n)]


def forward(dtype: torch.dtype, causal: bool, must: float, aim: float, jax_must: float = 0) -> Row:
    def make(allocate: bool) -> Sides:
        q, k, v = tensors(dtype, 3)
        o, stats = torch.empty_like(q), torch.empty(B, H, S)
        scalars: dict[str, Any] = dict(scale=SCALE, format=BHSD, mask_kind=CAUSAL if causal else 0)
        ours = bind("attention_forward", q=q, k=k, v=v, o=o, stats=stats, **scalars)

        def ours_new() -> None:
            bind("attention_forward", q=q, k=k, v=v, o=torch.empty_like(q), stats=torch.empty(B, H, S), **scalars)()

        def rival() -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        def check() -> None:
            ours()
            close(o, rival(), 5)

        others = {"jax": with_jax(dtype, causal)} if jax_must and not allocate else {}
        return Sides(ours_new if allocate else ours, rival, others, check)

    kind = "causal" if causal else "full"
    flops = 4 * B * H * S * S * D / (2 if causal else 1)
    return Row(f"attention.forward.{NAMES[dtype]}.{kind}", f"attention forward {NAMES[dtype]}, {kind}", f"B{B} H{H} S{S} D{D}", "torch SDPA", make,
               {"rival": must, **({"jax": jax_must} if jax_must else {})}, {"rival": aim}, flops=flops,
               bytes=4 * B * H * S * D * torch.empty(0, dtype=dtype).element_size())


def with_jax(dtype: torch.dtype, causal: bool):  # type: ignore[no-untyped-def]
    import jax

    kind = {torch.float32: jax.numpy.float32, torch.bfloat16: jax.numpy.bfloat16, torch.float16: jax.numpy.float16}[dtype]
    q, k, v = (jax.random.normal(jax.random.key(i), (B, S, H, D), kind) for i in range(3))
    f = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=causal))
    return lambda: f(q, k, v).block_until_ready()


def both(dtype: torch.dtype, causal: bool, must: float, aim: float) -> Row:
    """Forward and backward together."""

    def make(allocate: bool) -> Sides:
        q, k, v, do = tensors(dtype, 4)
        scalars: dict[str, Any] = dict(scale=SCALE, format=BHSD, mask_kind=CAUSAL if causal else 0)
        kept = [torch.empty_like(q) for _ in range(4)] + [torch.empty(B, H, S)]

        def step(o: torch.Tensor, dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, stats: torch.Tensor):  # type: ignore[no-untyped-def]
            one = bind("attention_forward", q=q, k=k, v=v, o=o, stats=stats, **scalars)
            two = bind("attention_backward", d_o=do, q=q, k=k, v=v, o=o, stats=stats, dq=dq, dk=dk, dv=dv, **scalars)
            return lambda: (one(), two())

        ours = step(*kept)
        inputs = [t.clone().requires_grad_() for t in (q, k, v)]

        def rival() -> tuple[torch.Tensor, ...]:
            o = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal)
            return torch.autograd.grad(o, inputs, do)

        def check() -> None:
            ours()
            for mine, theirs in zip(kept[1:4], rival()):
                close(mine, theirs, 4)

        new = lambda: step(*(torch.empty_like(q) for _ in range(4)), torch.empty(B, H, S))()  # noqa: E731
        return Sides(new if allocate else ours, rival, check=check)

    kind = "causal" if causal else "full"
    return Row(f"attention.both.{NAMES[dtype]}.{kind}", f"attention forward + backward {NAMES[dtype]}, {kind}", f"B{B} H{H} S{S} D{D}", "torch SDPA, autograd", make,
               {"rival": must}, {"rival": aim}, flops=3.5 * 4 * B * H * S * S * D / (2 if causal else 1))


def rows() -> list[Row]:
    bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
    return [forward(bf16, True, 1.6, 2.2, jax_must=8), forward(bf16, False, 1.2, 1.6), forward(f32, True, 1.2, 1.6), forward(f32, False, 1.0, 1.1),
            both(bf16, True, 1.3, 1.8), both(f16, True, 7, 10)]
