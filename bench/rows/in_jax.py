# SPDX-License-Identifier: Apache-2.0
"""Both sides under jax.jit: libte's operators as FFI calls, and what jax itself compiles. XLA makes the outputs on both sides."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from measure import Row, Sides

from .gemm import close

M, K = 8192, 1024
B, H, S, D = 1, 16, 2048, 64


def against(ours: Callable[..., Any], theirs: Callable[..., Any], inputs: list[Any], bits: float) -> Sides:
    import jax
    import numpy as np

    one, two = jax.jit(ours), jax.jit(theirs)

    def check() -> None:
        a, b = (torch.from_numpy(np.asarray(f(*inputs), np.float32)) for f in (one, two))
        close(a, b, bits)

    return Sides(lambda: one(*inputs).block_until_ready(), lambda: two(*inputs).block_until_ready(), check=check)


def draw(*shapes: tuple[int, ...], dtype: str) -> list[Any]:
    import jax

    return [jax.random.normal(jax.random.key(i), s, jax.numpy.float32).astype(dtype) for i, s in enumerate(shapes)]


def call() -> Row:
    def make(allocate: bool) -> Sides:
        import jax.numpy as jnp
        from libte_jax import ops

        return against(lambda x: ops.activation_forward(x, activation="relu"), lambda x: jnp.maximum(x, 0), draw((8,), dtype="float32"), 20)  # type: ignore[attr-defined]

    return Row("call.jax", "jit of one FFI call, host cost", "8", "jit of jnp.maximum", make, must_more_us=1, passes=("preallocated",), threads=1, burst=0.03)


def layernorm(dtype: str, must: float) -> Row:
    def make(allocate: bool) -> Sides:
        import jax.numpy as jnp
        from libte_jax import functional

        def formula(x: Any, gamma: Any, beta: Any) -> Any:
            w = x.astype(jnp.float32)
            c = w - w.mean(-1, keepdims=True)
            return (c / jnp.sqrt((c * c).mean(-1, keepdims=True) + 1e-5) * gamma + beta).astype(x.dtype)

        return against(functional.layernorm, formula, draw((M, K), (K,), (K,), dtype=dtype), 6)

    return Row(f"jax.layernorm.{dtype}", f"layer_norm forward {dtype} under jit", f"{M}x{K}", "jnp formula", make, {"rival": must}, passes=("preallocated",),
               bytes=2 * M * K * (4 if dtype == "float32" else 2))


def gemm(dtype: str, n: int, must: float) -> Row:
    def make(allocate: bool) -> Sides:
        import jax.numpy as jnp
        from libte_jax import ops

        a, b = draw((n, n), (n, n), dtype=dtype)
        if dtype.startswith("float8"):
            one = jnp.ones(1)

            def ours(a: Any, b: Any) -> Any:
                return ops.gemm(ops.Quantized(a, scale_inv=one), ops.Quantized(b, scale_inv=one), d="bf16", flags="trans_b")  # type: ignore[attr-defined]
        else:
            def ours(a: Any, b: Any) -> Any:
                return ops.gemm(a, b, flags="trans_b")  # type: ignore[attr-defined]

        wide = "bfloat16" if dtype.startswith("float8") else dtype
        return against(ours, lambda a, b: jnp.einsum("mk,nk->mn", a, b, preferred_element_type=wide), [a, b], 6)

    return Row(f"jax.gemm.{dtype}.{n}", f"GEMM NT {dtype} under jit", f"{n}x{n}x{n}", "jnp.einsum", make, {"rival": must}, passes=("preallocated",), flops=2 * n**3)


def attention(dtype: str, backward: bool, must: float) -> Row:
    def make(allocate: bool) -> Sides:
        import jax
        from libte_jax import functional

        def ours(q: Any, k: Any, v: Any) -> Any:
            return functional.attention(q, k, v, mask_kind="causal")

        def theirs(q: Any, k: Any, v: Any) -> Any:
            return jax.nn.dot_product_attention(q, k, v, is_causal=True)

        def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
            return jax.grad(lambda *a: f(*a).astype("float32").sum())

        inputs = draw(*[(B, S, H, D)] * 3, dtype=dtype)
        return against(gradient(ours), gradient(theirs), inputs, 3) if backward else against(ours, theirs, inputs, 5)

    kind = "forward + backward" if backward else "forward"
    return Row(f"jax.attention.{'both' if backward else 'forward'}.{dtype}", f"attention {kind} {dtype}, causal, under jit", f"B{B} H{H} S{S} D{D}",
               "jax.nn.dot_product_attention", make, {"rival": must}, passes=("preallocated",), flops=(3.5 if backward else 1) * 2 * B * H * S * S * D)


def rows() -> list[Row]:
    return [call(), layernorm("float32", 1.0), layernorm("bfloat16", 1.4), gemm("float32", 1024, 0.9), gemm("bfloat16", 1024, 0.85),
            gemm("float8_e4m3fn", 1024, 2.0), attention("float32", False, 4), attention("bfloat16", False, 8), attention("bfloat16", True, 4)]
