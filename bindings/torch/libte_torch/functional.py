# SPDX-License-Identifier: Apache-2.0
"""The autograd functions that modules are made of. Each is a short pattern over libte's fused operators.

Tensors are arguments (never attributes of an object), so that torch.compile can trace a Function; what is constant for a module
comes as one tuple. An FP8 operand is (codes, scale_inv); `scale` and `amax` of delayed scaling are views of the module's state.
Where Fp8.turned holds, what is kept for backward are column-wise codes, [K, *] of [*, K]; rows live in libte's workspace.
"""
from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from libte.ranges import ranged
from torch import Tensor

from . import ops

# nvte_linear flags
CURRENT_SCALING, POW2_SCALES, WEIGHT_READY, INPUT_READY, ACCUMULATE, SPLIT_ACCUMULATOR = 1, 2, 4, 8, 16, 32

_empty = torch.empty
_f32 = torch.float32


class Fp8(NamedTuple):
    """How a module quantises: storage types, and nvte_linear flags of each direction."""

    forward: torch.dtype
    backward: torch.dtype
    forward_flags: int
    backward_flags: int
    current: bool
    turned: bool = False  # the device's products need k contiguous in backward too, and backward will run


def named(name: str) -> Any:
    """Decorates an autograd function for `apply`: its two halves are ranges for profilers, under upstream's names."""

    def decorate(cls: Any) -> Any:
        for half in ("forward", "backward"):
            setattr(cls, half, staticmethod(ranged(f"transformer_engine.{name}.{half}", getattr(cls, half), torch.compiler.is_compiling)))
        cls.direct = super(torch.autograd.Function, cls).apply
        if hasattr(cls, "_backward_cls"):  # torch's looks there each time for a subclass's own backward or vjp
            cls._backward_cls.apply = cls.backward
        return cls

    return decorate


def apply(function: Any, *args: Any) -> Any:
    """function.apply(*args); eagerly without torch's Python around it, which only functorch's wrappers need."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*args)
    return function.direct(*args)


def once(name: str) -> None:
    """Backward is not itself differentiable; say so instead of giving wrong second derivatives."""
    if torch.is_grad_enabled():
        raise RuntimeError(f"{name}: backward is once differentiable (create_graph=True is not supported)")


def _unwanted(y: Tensor) -> Optional[Tensor]:
    """In the place of an output: Dynamo takes no None."""
    return y.new_empty(0) if torch.compiler.is_compiling() else None


def packed(t: Tensor) -> Tensor:
    return t if t.is_contiguous() else t.contiguous()


def turned(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for the column-wise codes [K, *] of a tensor [*, K]."""
    *lead, k = like.shape
    return like.new_empty(k, *lead, dtype=dtype)  # sizes one by one: torch parses a tuple of them for longer than it allocates


def linear_forward(
    x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], out_features: int, fp8: Optional[Fp8],
    x_scale: Optional[Tensor], x_amax: Optional[Tensor], w_scale: Optional[Tensor], w_amax: Optional[Tensor],
    wq: Optional[Tensor], wqt: Optional[Tensor], wq_scale_inv: Optional[Tensor], weight_ready: bool, out_dtype: torch.dtype,
) -> tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    """One composite call; returns (y, codes of x for backward, their scale_inv)."""
    y = x.new_empty(*x.shape[:-1], out_features, dtype=out_dtype)
    if fp8 is None:
        ops.linear_forward(x, weight, bias, None, None, None, None, None, None, None, None, None, None, None, None, y, 0)
        return y, None, None
    xq, xqt = (None, turned(x, fp8.forward)) if fp8.turned else (torch.empty_like(x, dtype=fp8.forward), None)
    xq_scale_inv = _empty(1, dtype=_f32, device=x.device) if x_scale is None else x_scale.new_empty(1)
    flags = fp8.forward_flags
    if weight_ready:
        flags, weight, w_scale, w_amax, wqt = flags | WEIGHT_READY, None, None, None, None
    ops.linear_forward(
        x, weight, bias, xq, xqt, xq_scale_inv, None, x_scale, x_amax, wq, wqt, wq_scale_inv, None, w_scale, w_amax, y, flags
    )
    return y, xq if xqt is None else xqt, xq_scale_inv


def linear_backward(
    dy: Optional[Tensor], x: Tensor, x_scale_inv: Optional[Tensor], weight: Tensor, w_scale_inv: Optional[Tensor], w_turned: bool, fp8: Optional[Fp8],
    g_scale: Optional[Tensor], g_amax: Optional[Tensor], g_inverse: Optional[Tensor], dx: Optional[Tensor], dw: Optional[Tensor],
    db: Optional[Tensor], accumulate: bool,
    dyq: Optional[Tensor] = None, dyqt: Optional[Tensor] = None, dyq_scale_inv: Optional[Tensor] = None,
) -> None:
    """One composite call on codes as forward kept them (`w_turned`: the weight's are column-wise); dyq given means that the gradient's codes
    are ready. g_inverse: memory for their scale_inv, which nothing reads after this call."""
    flags = ACCUMULATE if accumulate else 0
    if fp8 is None:
        ops.linear_backward(
            dy, x, None, None, None, None, None, weight, None, None, None, None, None, None, None, None, None, None, None, dx, dw, db, flags
        )
        return
    flags |= fp8.backward_flags
    if dyq is not None:
        flags |= INPUT_READY
    else:
        assert dy is not None
        if fp8.turned and dw is not None:
            dyqt = turned(dy, fp8.backward)
        else:
            dyq = torch.empty_like(dy, dtype=fp8.backward)
        dyq_scale_inv = _empty(1, dtype=_f32, device=dy.device) if g_inverse is None else g_inverse
    xt, wt = None, None
    if fp8.turned:
        x, xt = None, x  # type: ignore[assignment]
    if w_turned:
        weight, wt = None, weight  # type: ignore[assignment]
    ops.linear_backward(
        dy, x, xt, x_scale_inv, None, None, None, weight, wt, w_scale_inv, None, None, None,
        dyq, dyqt, dyq_scale_inv, None, g_scale, g_amax, dx, dw, db, flags,
    )


class LinearConfig(NamedTuple):
    """Constants of one call of a linear-like module."""

    out_features: int
    fp8: Optional[Fp8]
    weight_ready: bool
    out_dtype: torch.dtype
    weight_dtype: torch.dtype
    fuse_wgrad: bool = False
    # norm in front (None, "LayerNorm" or "RMSNorm")
    norm: Optional[str] = None
    eps: float = 1e-5
    zero_centered: bool = False
    return_norm: bool = False


def _wgrad(needed: bool, shape: Any, config: LinearConfig, like: Tensor, main_grad: Optional[Tensor]) -> tuple[Optional[Tensor], Optional[Tensor], bool]:
    """(buffer to write, what autograd gets, accumulate)."""
    if not needed:
        return None, None, False
    if config.fuse_wgrad and main_grad is not None:
        return main_grad, None, True
    dw = like.new_empty(*shape, dtype=config.weight_dtype)
    return dw, dw, False


@named("_Linear")
class Linear(torch.autograd.Function):
    """y = x W^T + b; in FP8 both operands are quantised in the same call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor], x_scale: Any, x_amax: Any, w_scale: Any, w_amax: Any,
                g_scale: Any, g_amax: Any, g_inverse: Any, wq: Any, wqt: Any, wq_scale_inv: Any, main_grad: Any, config: LinearConfig) -> Tensor:
        x = packed(x)
        fp8 = config.fp8
        y, xq, xq_scale_inv = linear_forward(
            x, weight, bias, config.out_features, fp8, x_scale, x_amax, w_scale, w_amax, wq, wqt, wq_scale_inv, config.weight_ready, config.out_dtype
        )
        if fp8 is None:
            ctx.save_for_backward(x, None, weight, None, g_scale, g_amax, g_inverse, main_grad)
        else:
            ctx.save_for_backward(xq, xq_scale_inv, wq if wqt is None else wqt, wq_scale_inv, g_scale, g_amax, g_inverse, main_grad)
        ctx.config = config
        ctx.w_turned = wqt is not None
        ctx.x_shape, ctx.x_dtype = x.shape, x.dtype
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        once("Linear")
        x, x_scale_inv, w, w_scale_inv, g_scale, g_amax, g_inverse, main_grad = ctx.saved_tensors
        config: LinearConfig = ctx.config
        need = ctx.needs_input_grad
        dy = packed(dy)
        dx = dy.new_empty(*ctx.x_shape, dtype=ctx.x_dtype) if need[0] else None
        dw, dw_out, accumulate = _wgrad(need[1], (config.out_features, ctx.x_shape[-1]), config, dy, main_grad)
        db = dy.new_empty(config.out_features, dtype=config.weight_dtype) if need[2] else None
        linear_backward(dy, x, x_scale_inv, w, w_scale_inv, ctx.w_turned, config.fp8, g_scale, g_amax, g_inverse, dx, dw, db, accumulate)
        return dx, dw_out, db, *(None,) * 12


@named("_Linear")
class Fp8Linear(torch.autograd.Function):
    """Linear in FP8 for the usual call, which nothing traces: the weight is quantised here, y has x's dtype, no gradient is accumulated. The host's
    time is what counts in a small layer, so this is one function a direction, and what is constant for the module comes as two tuples:
    forward (dtype of codes, column-wise or not, flags, scales and amaxes of x and weight), backward (dtype, flags, scale, amax, memory for scale_inv)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor], forward: tuple[Any, ...], backward: tuple[Any, ...]) -> Tensor:
        dtype, turned, flags, x_scale, x_amax, w_scale, w_amax = forward
        if not x.is_contiguous():
            x = x.contiguous()
        *lead, k = x.shape
        n = weight.shape[0]
        y = x.new_empty(*lead, n)
        x_inv, w_inv = (_empty(1, dtype=_f32, device=x.device), _empty(1, dtype=_f32, device=x.device)) if x_scale is None else (x_scale.new_empty(1), x_scale.new_empty(1))
        if turned:
            xt, wt = x.new_empty(k, *lead, dtype=dtype), x.new_empty(k, n, dtype=dtype)
            ops.linear_forward_of((x, weight, bias, None, xt, x_inv, None, x_scale, x_amax, None, wt, w_inv, None, w_scale, w_amax, y, flags))
            ctx.save_for_backward(xt, x_inv, wt, w_inv)
        else:
            xq, wq = x.new_empty(*lead, k, dtype=dtype), x.new_empty(n, k, dtype=dtype)
            ops.linear_forward_of((x, weight, bias, xq, None, x_inv, None, x_scale, x_amax, wq, None, w_inv, None, w_scale, w_amax, y, flags))
            ctx.save_for_backward(xq, x_inv, wq, w_inv)
        ctx.call = backward, turned, weight.dtype, lead, k, n
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        if torch.is_grad_enabled():
            once("Linear")
        x, x_inv, w, w_inv = ctx.saved_tensors
        (dtype, flags, scale, amax, inverse), turned, weight_dtype, lead, k, n = ctx.call
        need_x, need_w, need_b = ctx.needs_input_grad[:3]
        if not dy.is_contiguous():
            dy = dy.contiguous()
        dx = dy.new_empty(*lead, k) if need_x else None
        dw = dy.new_empty(n, k, dtype=weight_dtype) if need_w else None
        db = dy.new_empty(n, dtype=weight_dtype) if need_b else None
        if inverse is None:
            inverse = _empty(1, dtype=_f32, device=dy.device)
        dyq = dyt = xt = wt = None
        if turned:
            x, xt, w, wt = None, x, None, w
        if turned and need_w:
            dyt = dy.new_empty(n, *lead, dtype=dtype)
        else:
            dyq = dy.new_empty(*lead, n, dtype=dtype)
        ops.linear_backward_of((dy, x, xt, x_inv, None, None, None, w, wt, w_inv, None, None, None, dyq, dyt, inverse, None, scale, amax, dx, dw, db, flags))
        return dx, dw, db, None, None


def norm_backward(
    kind: str, dy: Tensor, x: Tensor, gamma: Optional[Tensor], mu: Optional[Tensor], rstd: Tensor, zero_centered: bool,
    need_gamma: bool, need_beta: bool, add: Optional[Tensor] = None,
) -> tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    dx = torch.empty_like(x)
    dgamma = torch.empty_like(gamma) if need_gamma else None  # type: ignore[arg-type]
    if kind == "RMSNorm":
        ops.rmsnorm_backward(dy, x, gamma, rstd, add, dx, dgamma, int(zero_centered))
        return dx, dgamma, None
    dbeta = torch.empty_like(gamma) if need_beta else None  # type: ignore[arg-type]
    ops.layernorm_backward(dy, x, gamma, mu, rstd, add, dx, dgamma, dbeta, int(zero_centered))
    return dx, dgamma, dbeta


def norm_forward(
    kind: str, x: Tensor, gamma: Optional[Tensor], beta: Optional[Tensor], eps: float, zero_centered: bool
) -> tuple[Tensor, Optional[Tensor], Tensor]:
    y = torch.empty_like(x)
    rstd = _empty(x.shape[:-1], dtype=_f32, device=x.device)
    if kind == "RMSNorm":
        ops.rmsnorm_forward(x, gamma, None, y, None, None, None, None, None, None, rstd, eps, int(zero_centered))
        return y, None, rstd
    mu = torch.empty_like(rstd)
    ops.layernorm_forward(x, gamma, beta, None, y, None, None, None, None, None, None, mu, rstd, eps, int(zero_centered))
    return y, mu, rstd


@named("_Norm")
class Norm(torch.autograd.Function):
    """LayerNorm or RMSNorm over the last dimension."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Optional[Tensor], beta: Optional[Tensor], kind: str, eps: float, zero_centered: bool) -> Tensor:
        x = packed(x)
        y, mu, rstd = norm_forward(kind, x, gamma, beta, eps, zero_centered)
        ctx.save_for_backward(x, gamma, mu, rstd)
        ctx.kind, ctx.zero_centered = kind, zero_centered
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        once(ctx.kind)
        x, gamma, mu, rstd = ctx.saved_tensors
        need = ctx.needs_input_grad
        dx, dgamma, dbeta = norm_backward(
            ctx.kind, packed(dy), x, gamma, mu, rstd, ctx.zero_centered, need[1] and gamma is not None, need[2] and gamma is not None
        )
        return dx, dgamma, dbeta, None, None, None


@named("_LayerNormLinear")
class NormLinear(torch.autograd.Function):
    """linear(norm(x)); the normalised rows go straight to codes. Returns (y, norm(x) where it is wanted)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Optional[Tensor], beta: Optional[Tensor], weight: Tensor, bias: Optional[Tensor], x_scale: Any,
                x_amax: Any, w_scale: Any, w_amax: Any, g_scale: Any, g_amax: Any, g_inverse: Any, wq: Any, wqt: Any, wq_scale_inv: Any, main_grad: Any,
                config: LinearConfig) -> tuple[Tensor, Optional[Tensor]]:
        x = packed(x)
        y, normed, mu, rstd, xq, xq_scale_inv = norm_linear_forward(
            x, gamma, beta, weight, bias, x_scale, x_amax, w_scale, w_amax, wq, wqt, wq_scale_inv, config
        )
        if config.fp8 is None:
            ctx.save_for_backward(x, gamma, mu, rstd, normed, None, weight, None, g_scale, g_amax, g_inverse, main_grad)
        else:
            ctx.save_for_backward(x, gamma, mu, rstd, xq, xq_scale_inv, wq if wqt is None else wqt, wq_scale_inv, g_scale, g_amax, g_inverse, main_grad)
        ctx.config = config
        ctx.w_turned = wqt is not None
        return y, normed if config.return_norm else _unwanted(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dnorm_extra: Optional[Tensor]) -> Any:
        once("LayerNormLinear")
        x, gamma, mu, rstd, xs, x_scale_inv, w, w_scale_inv, g_scale, g_amax, g_inverse, main_grad = ctx.saved_tensors
        config: LinearConfig = ctx.config
        need = ctx.needs_input_grad
        dy = packed(dy)
        dnorm = torch.empty_like(x) if any(need[:3]) else None
        dw, dw_out, accumulate = _wgrad(need[3], (config.out_features, x.shape[-1]), config, x, main_grad)
        db = dy.new_empty(config.out_features, dtype=config.weight_dtype) if need[4] else None
        linear_backward(dy, xs, x_scale_inv, w, w_scale_inv, ctx.w_turned, config.fp8, g_scale, g_amax, g_inverse, dnorm, dw, db, accumulate)
        dx = dgamma = dbeta = None
        if dnorm is not None:
            if config.return_norm:
                dnorm = dnorm + dnorm_extra
            dx, dgamma, dbeta = norm_backward(config.norm, dnorm, x, gamma, mu, rstd, config.zero_centered, need[1], need[2])  # type: ignore[arg-type]
        return dx, dgamma, dbeta, dw_out, db, *(None,) * 12


def norm_linear_forward(
    x: Tensor, gamma: Optional[Tensor], beta: Optional[Tensor], weight: Optional[Tensor], bias: Optional[Tensor], x_scale: Any, x_amax: Any,
    w_scale: Any, w_amax: Any, wq: Any, wqt: Any, wq_scale_inv: Any, config: LinearConfig,
) -> tuple[Tensor, Optional[Tensor], Optional[Tensor], Tensor, Optional[Tensor], Optional[Tensor]]:
    """(y, normalised rows where they were kept, mu, rstd, codes for backward, their scale_inv)."""
    fp8 = config.fp8
    device = x.device
    y = x.new_empty(*x.shape[:-1], config.out_features, dtype=config.out_dtype)
    rstd = _empty(x.shape[:-1], dtype=_f32, device=x.device)
    rms = config.norm == "RMSNorm"
    mu = None if rms else torch.empty_like(rstd)
    normed = torch.empty_like(x) if fp8 is None or config.return_norm else None
    xq = xqt = xq_scale_inv = None
    flags = 0
    if fp8 is not None:
        xq, xqt = (None, turned(x, fp8.forward)) if fp8.turned else (torch.empty_like(x, dtype=fp8.forward), None)
        xq_scale_inv = _empty(1, dtype=_f32, device=device)
        flags = fp8.forward_flags
        if config.weight_ready:
            flags, weight, w_scale, w_amax, wqt = flags | WEIGHT_READY, None, None, None, None
    else:
        x_scale = x_amax = w_scale = w_amax = wq = wqt = wq_scale_inv = None
    ops.norm_linear_forward(
        x, gamma, beta, weight, bias, normed, mu, rstd, xq, xqt, xq_scale_inv, None, x_scale, x_amax,
        wq, wqt, wq_scale_inv, None, w_scale, w_amax, y, config.eps, int(rms), int(config.zero_centered), flags,
    )
    return y, normed, mu, rstd, xq if xqt is None else xqt, xq_scale_inv


ACTIVATIONS = {"gelu": 0, "gelu_erf": 1, "qgelu": 2, "relu": 3, "srelu": 4, "silu": 5, "sigmoid": 6}
# name -> (activation, clamped)
GATED = {"glu": (6, False), "geglu": (0, False), "geglu_erf": (1, False), "qgeglu": (2, False), "reglu": (3, False), "sreglu": (4, False),
         "swiglu": (5, False), "clamped_swiglu": (5, True)}


def is_gated(name: str) -> bool:
    """Whether the activation halves its input; an unknown name is an error that lists the known ones."""
    if name in GATED:
        return True
    if name in ACTIVATIONS:
        return False
    raise ValueError(f"activation: must be one of {sorted([*ACTIVATIONS, *GATED])}, got {name!r}")


class ActivationConfig(NamedTuple):
    name: str
    limit: float = 7.0
    alpha: float = 1.702
    offset: float = 1.0


def activation_forward(
    x: Tensor, config: ActivationConfig, dtype: torch.dtype, scale: Optional[Tensor] = None, amax: Optional[Tensor] = None, both: bool = False
) -> tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    """(f(x) in `dtype`, with `both` its column-wise codes, scale_inv of an fp8 dtype)."""
    gated = config.name in GATED
    width = x.shape[-1] // 2 if gated else x.shape[-1]
    y = x.new_empty(*x.shape[:-1], width, dtype=dtype)
    yt = turned(y, dtype) if both else None
    scale_inv = _empty(1, dtype=_f32, device=x.device) if dtype.itemsize == 1 else None
    if gated:
        kind, clamped = GATED[config.name]
        ops.gated_activation_forward(x, y, yt, scale_inv, None, scale, amax, kind, int(clamped), config.limit, config.alpha, config.offset)
    else:
        ops.activation_forward(x, y, yt, scale_inv, None, scale, amax, ACTIVATIONS[config.name], 0)
    return y, yt, scale_inv


def activation_backward(
    dy: Tensor, x: Tensor, config: ActivationConfig, dtype: torch.dtype, scale: Optional[Tensor] = None, amax: Optional[Tensor] = None,
    dbias: Optional[Tensor] = None, both: bool = False,
) -> tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    dx = x.new_empty(*x.shape, dtype=dtype)
    dxt = turned(dx, dtype) if both else None
    scale_inv = _empty(1, dtype=_f32, device=x.device) if dtype.itemsize == 1 else None
    if config.name in GATED:
        kind, clamped = GATED[config.name]
        ops.gated_activation_backward(
            dy, x, dx, dxt, scale_inv, None, scale, amax, dbias, kind, int(clamped), config.limit, config.alpha, config.offset
        )
    else:
        ops.activation_backward(dy, x, dx, dxt, scale_inv, None, scale, amax, dbias, ACTIVATIONS[config.name], 0)
    return dx, dxt, scale_inv


@named("_Activation")
class Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, config: ActivationConfig) -> Tensor:
        x = packed(x)
        ctx.save_for_backward(x)
        ctx.config = config
        return activation_forward(x, config, x.dtype)[0]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        once("activation")
        (x,) = ctx.saved_tensors
        return activation_backward(packed(dy), x, ctx.config, x.dtype)[0], None


class MlpConfig(NamedTuple):
    fc1: LinearConfig
    fc2: LinearConfig
    activation: ActivationConfig


@named("_LayerNormMLP")
class NormMlp(torch.autograd.Function):
    """fc2(act(fc1(norm(x)))). In FP8 with delayed scaling the activation writes codes, and its backward writes the codes of fc1's
    gradient, so neither is stored wide. Returns (y, norm(x) where it is wanted).

    state: scales and amaxes in the order x, w1, h, w2 (forward) and g1, g2 (backward, with memory for scale_inv)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Any, beta: Any, w1: Tensor, b1: Any, w2: Tensor, b2: Any,
                x_scale: Any, x_amax: Any, w1_scale: Any, w1_amax: Any, h_scale: Any, h_amax: Any, w2_scale: Any, w2_amax: Any,
                g1_scale: Any, g1_amax: Any, g1_inverse: Any, g2_scale: Any, g2_amax: Any, g2_inverse: Any,
                w1q: Any, w1qt: Any, w1q_scale_inv: Any, w2q: Any, w2qt: Any, w2q_scale_inv: Any, main_grad1: Any, main_grad2: Any,
                config: MlpConfig) -> tuple[Tensor, Optional[Tensor]]:
        x = packed(x)
        c1, c2 = config.fc1, config.fc2
        fp8 = c1.fp8
        h, normed, mu, rstd, xq, xq_scale_inv = norm_linear_forward(
            x, gamma, beta, w1, b1, x_scale, x_amax, w1_scale, w1_amax, w1q, w1qt, w1q_scale_inv, c1
        )
        if fp8 is None:
            a, _, a_scale_inv = activation_forward(h, config.activation, c2.out_dtype)
            y, _, _ = linear_forward(a, w2, b2, c2.out_features, None, *(None,) * 7, False, c2.out_dtype)
            saved = (normed, None, w1, None, a, None, w2, None)
        else:
            if fp8.current:
                wide, _, _ = activation_forward(h, config.activation, c2.out_dtype)
                y, a, a_scale_inv = linear_forward(
                    wide, w2, b2, c2.out_features, fp8, None, None, None, None, w2q, w2qt, w2q_scale_inv, c2.weight_ready, c2.out_dtype
                )
            else:
                a, at, a_scale_inv = activation_forward(h, config.activation, fp8.forward, h_scale, h_amax, fp8.turned)
                y = x.new_empty(*x.shape[:-1], c2.out_features, dtype=c2.out_dtype)
                flags = fp8.forward_flags | INPUT_READY | (WEIGHT_READY if c2.weight_ready else 0)
                wide_w2, s2, m2, wt = (None, None, None, None) if c2.weight_ready else (w2, w2_scale, w2_amax, w2qt)
                ops.linear_forward(None, wide_w2, b2, a, None, a_scale_inv, None, None, None, w2q, wt, w2q_scale_inv, None, s2, m2, y, flags)
                a = a if at is None else at
            saved = (xq, xq_scale_inv, w1q if w1qt is None else w1qt, w1q_scale_inv, a, a_scale_inv, w2q if w2qt is None else w2qt, w2q_scale_inv)
        ctx.save_for_backward(x, gamma, mu, rstd, h, *saved, g1_scale, g1_amax, g1_inverse, g2_scale, g2_amax, g2_inverse, main_grad1, main_grad2)
        ctx.config = config
        ctx.turned = w1qt is not None, w2qt is not None
        return y, normed if c1.return_norm else _unwanted(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dnorm_extra: Optional[Tensor]) -> Any:
        once("LayerNormMLP")
        (x, gamma, mu, rstd, h, xs, xs_inv, w1, w1_inv, a, a_inv, w2, w2_inv, g1_scale, g1_amax, g1_inverse, g2_scale, g2_amax, g2_inverse,
         mg1, mg2) = ctx.saved_tensors
        config: MlpConfig = ctx.config
        c1, c2 = config.fc1, config.fc2
        fp8 = c1.fp8
        need = ctx.needs_input_grad
        device = x.device
        dy = packed(dy)
        inner = h.shape[-1] // 2 if config.activation.name in GATED else h.shape[-1]
        t1, t2 = ctx.turned
        da = h.new_empty(*h.shape[:-1], inner)
        dw2, dw2_out, accumulate2 = _wgrad(need[5], (c2.out_features, inner), c2, x, mg2)
        db2 = dy.new_empty(c2.out_features, dtype=c2.weight_dtype) if need[6] else None
        linear_backward(dy, a, a_inv, w2, w2_inv, t2, fp8, g2_scale, g2_amax, g2_inverse, da, dw2, db2, accumulate2)
        db1 = dy.new_empty(c1.out_features, dtype=c1.weight_dtype) if need[4] else None
        dnorm = torch.empty_like(x) if any(need[:3]) else None
        dw1, dw1_out, accumulate1 = _wgrad(need[3], (c1.out_features, x.shape[-1]), c1, x, mg1)
        if fp8 is not None and not fp8.current:
            dhq, dhqt, dhq_inv = activation_backward(da, h, config.activation, fp8.backward, g1_scale, g1_amax, db1, fp8.turned and dw1 is not None)
            linear_backward(None, xs, xs_inv, w1, w1_inv, t1, fp8, None, None, None, dnorm, dw1, None, accumulate1, dhq, dhqt, dhq_inv)
        else:
            dh, _, _ = activation_backward(da, h, config.activation, h.dtype)
            linear_backward(dh, xs, xs_inv, w1, w1_inv, t1, fp8, g1_scale, g1_amax, g1_inverse, dnorm, dw1, db1, accumulate1)
        dx = dgamma = dbeta = None
        if dnorm is not None:
            if c1.return_norm:
                dnorm = dnorm + dnorm_extra
            dx, dgamma, dbeta = norm_backward(c1.norm, dnorm, x, gamma, mu, rstd, c1.zero_centered, need[1], need[2])  # type: ignore[arg-type]
        return (dx, dgamma, dbeta, dw1_out, db1, dw2_out, db2, *(None,) * 23)
