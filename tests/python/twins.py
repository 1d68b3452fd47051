# SPDX-License-Identifier: Apache-2.0
"""Plain-torch twins of libte's modules, and the comparison of a module with its twin: outputs and every gradient."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import tolerance
import torch
from torch import Tensor, nn

NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def numpy(t: Tensor) -> Any:
    return t.detach().double().cpu().numpy()


def seeded(seed: int) -> torch.Generator:
    """A generator of the tests' device."""
    return torch.Generator(torch.get_default_device()).manual_seed(seed)


def act(name: str, x: Tensor) -> Tensor:
    """Activations by their formulas."""
    gated = {"glu": "sigmoid", "geglu": "gelu", "qgeglu": "qgelu", "reglu": "relu", "sreglu": "srelu", "swiglu": "silu"}
    if name in gated:
        a, b = x.chunk(2, -1)
        return act(gated[name], a) * b
    if name == "gelu":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if name == "gelu_erf":
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    if name == "qgelu":
        return x * torch.sigmoid(1.702 * x)
    if name == "relu":
        return x.clamp(min=0)
    if name == "srelu":
        return x.clamp(min=0) ** 2
    if name == "silu":
        return x * torch.sigmoid(x)
    if name == "sigmoid":
        return torch.sigmoid(x)
    raise AssertionError(name)


def norm(x: Tensor, kind: str, weight: Tensor, bias: Tensor | None, eps: float, zero_centered: bool = False) -> Tensor:
    g = weight + 1 if zero_centered else weight
    if kind == "RMSNorm":
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * g
    c = x - x.mean(-1, keepdim=True)
    y = c * torch.rsqrt((c * c).mean(-1, keepdim=True) + eps) * g
    return y if bias is None else y + bias


def attention(q: Tensor, k: Tensor, v: Tensor, masked: Tensor | None = None, scale: float | None = None, bias: Tensor | None = None) -> Tensor:
    """q [b, s, h, d], k and v [b, s, g, d]; masked [.., s_q, s_kv] True = out; rows with nothing kept give 0."""
    r = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(r, 2), v.repeat_interleave(r, 2)
    p = torch.einsum("bqhd,bkhd->bhqk", q, k) * (scale if scale is not None else q.shape[-1] ** -0.5)
    if bias is not None:
        p = p + bias
    if masked is not None:
        p = p.masked_fill(masked, -math.inf)
    s = torch.softmax(p, -1)
    s = torch.where(torch.isnan(s), torch.zeros_like(s), s)
    return torch.einsum("bhqk,bkhd->bqhd", s, v)


def causal(q: int, k: int, offset: int = 0) -> Tensor:
    return torch.arange(k)[None, :] > torch.arange(q)[:, None] + offset


def compare(module: nn.Module, twin: Callable[..., Tensor], *inputs: Tensor, dtype: torch.dtype = torch.float32, seed: int = 5) -> None:
    """Runs module and twin(parameters, *inputs) in double and in `dtype`; output and all gradients must agree within the tolerance rule."""
    generator = seeded(seed)

    def run(kind: torch.dtype, call: Callable[..., Tensor], p: dict[str, Tensor]) -> list[Tensor]:
        xs = [x.detach().to(kind).requires_grad_() if x.is_floating_point() else x for x in inputs]
        y = call(p, *xs)
        dy = torch.randn(y.shape, generator=generator.manual_seed(seed), dtype=torch.float64).to(kind)
        leaves = [x for x in xs if x.requires_grad] + [t for t in p.values() if t.requires_grad]
        return [y, *torch.autograd.grad(y, leaves, dy, allow_unused=True)]

    def leaves_of(kind: torch.dtype) -> dict[str, Tensor]:
        return {n: t.detach().to(kind).requires_grad_() for n, t in module.named_parameters()}

    own = copy.deepcopy(module)
    actual = run(dtype, lambda p, *xs: own(*xs), dict(own.named_parameters()))
    want = run(torch.float64, twin, leaves_of(torch.float64))
    naive = run(dtype, twin, leaves_of(dtype))
    labels = ["output", *(f"gradient of input {i}" for i, x in enumerate(inputs) if x.is_floating_point()), *(n for n, _ in own.named_parameters())]
    # a gradient may vanish by cancellation (a key's bias does): its rounding is that of the gradients it is made of
    scale = max((float(w.abs().max()) for w in want[1:] if w is not None and w.numel()), default=0.0)
    for label, a, w, n in zip(labels, actual, want, naive):
        assert (a is None) == (w is None), label
        if a is not None and w is not None:
            tolerance.assert_like(numpy(a), numpy(w), numpy(n), NAMES[dtype], label, 0.0 if label == "output" else scale)
