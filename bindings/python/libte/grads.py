# SPDX-License-Identifier: Apache-2.0
"""The gradient table: which operator differentiates which, and where each of its arguments comes from.

An adapter runs the forward operator, keeps what the rules of its row read, and in backward fills the other operator's fields:

    "x"         the value of forward's input field x
    "y"         the value that forward wrote to its output field y (an optional output that a row reads is asked for)
    "grad:y"    the incoming gradient of output y
    "grad:dx"   a gradient that this very backward has made (rows with several steps)
    None        absent

Scalars of the same name are passed on. `results` says which backward output is the gradient of which forward input.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["GRADIENTS", "NOT_DIFFERENTIABLE", "Gradient", "Step", "saved"]


@dataclass(frozen=True)
class Step:
    """One backward operator: its tensor fields from the sources above, its gradients by forward input."""

    op: str
    inputs: dict[str, str]
    results: dict[str, str]  # backward output field -> forward input field (or "grad:..." for the next step)
    scalars: dict[str, str | int] = field(default_factory=dict)  # that are not passed on by name: a number, or a forward scalar
    when: dict[str, int] = field(default_factory=dict)  # only if these forward scalars have these values


@dataclass(frozen=True)
class Gradient:
    forward: str
    differentiable: tuple[str, ...]  # forward inputs that get a gradient
    outputs: tuple[str, ...]  # forward outputs whose gradient may come in
    steps: tuple[Step, ...]


def _one(forward: str, backward: str, inputs: dict[str, str], results: dict[str, str], output: str = "y") -> Gradient:
    return Gradient(forward, tuple(results.values()), (output,), (Step(backward, inputs, results),))


_ATTENTION = ("q", "k", "v", "bias", "mask", "cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded", "rng_state",
              "softmax_offset", "alibi_slopes")
# x and residual enter as a sum, so both get dx; the gradient that reached the sum by another way (residual_out) is `add`.
_NORM_RESULTS = {"dx": "x", "dgamma": "gamma"}
_LINEAR_RESULTS = {"dx": "x", "dweight": "weight", "dbias": "bias"}

_ROWS = (
    Gradient("rmsnorm_forward", ("x", "gamma", "residual"), ("y", "residual_out"), (
        Step("rmsnorm_backward", {"dy": "grad:y", "x": "residual_out|x", "gamma": "gamma", "rstd": "rstd", "add": "grad:residual_out"},
             _NORM_RESULTS | {"dx": "x,residual"}),)),
    Gradient("layernorm_forward", ("x", "gamma", "beta", "residual"), ("y", "residual_out"), (
        Step("layernorm_backward", {"dy": "grad:y", "x": "residual_out|x", "gamma": "gamma", "mu": "mu", "rstd": "rstd",
                                    "add": "grad:residual_out"}, _NORM_RESULTS | {"dx": "x,residual", "dbeta": "beta"}),)),
    _one("activation_forward", "activation_backward", {"dy": "grad:y", "x": "x"}, {"dx": "x"}),
    _one("gated_activation_forward", "gated_activation_backward", {"dy": "grad:y", "x": "x"}, {"dx": "x"}),
    _one("softmax_forward", "softmax_backward", {"dy": "grad:y", "y": "y"}, {"dx": "x"}),
    _one("rope_forward", "rope_backward", {"dy": "grad:y", "freqs": "freqs", "start_positions": "start_positions", "positions": "positions",
                                           "cu_seqlens": "cu_seqlens"}, {"dx": "x"}),
    _one("dropout_forward", "dropout_backward", {"dy": "grad:y", "mask": "mask"}, {"dx": "x"}),
    _one("cross_entropy_forward", "cross_entropy_backward", {"logits": "logits", "target": "target", "lse": "lse", "dloss": "grad:loss"},
         {"dlogits": "logits"}, "loss"),
    _one("attention_forward", "attention_backward", {"d_o": "grad:o", "o": "o", "stats": "stats"} | {f: f for f in _ATTENTION},
         {"dq": "q", "dk": "k", "dv": "v", "dbias": "bias", "dsoftmax_offset": "softmax_offset"}, "o"),
    _one("linear_forward", "linear_backward", {"dy": "grad:y", "x": "x_quantized|x", "weight": "weight_quantized|weight"}, _LINEAR_RESULTS),
    # The norm runs on the gradient that linear_backward makes of its output.
    Gradient("norm_linear_forward", ("x", "gamma", "beta", "weight", "bias"), ("y",), (
        Step("linear_backward", {"dy": "grad:y", "x": "x_quantized|normalized", "weight": "weight_quantized|weight"},
             {"dx": "grad:normalized", "dweight": "weight", "dbias": "bias"}),
        Step("layernorm_backward", {"dy": "grad:normalized", "x": "x", "gamma": "gamma", "mu": "mu", "rstd": "rstd"},
             {"dx": "x", "dgamma": "gamma", "dbeta": "beta"}, {"flags": "norm_flags"}, {"norm": 0}),
        Step("rmsnorm_backward", {"dy": "grad:normalized", "x": "x", "gamma": "gamma", "rstd": "rstd"}, {"dx": "x", "dgamma": "gamma"},
             {"flags": "norm_flags"}, {"norm": 1}))),
    # D = A B, plain operands: dA = dD B^T, dB = A^T dD. Flags: 1 = TRANS_A, 2 = TRANS_B.
    Gradient("gemm", ("a", "b"), ("d",), (
        Step("gemm", {"a": "grad:d", "b": "b"}, {"d": "a"}, {"flags": 2}, {"flags": 0}),
        Step("gemm", {"a": "a", "b": "grad:d"}, {"d": "b"}, {"flags": 1}, {"flags": 0}),
        Step("gemm", {"a": "grad:d", "b": "b"}, {"d": "a"}, {"flags": 0}, {"flags": 2}),
        Step("gemm", {"a": "grad:d", "b": "a"}, {"d": "b"}, {"flags": 1}, {"flags": 2}))),
    _one("transpose", "transpose", {"x": "grad:y"}, {"y": "x"}),
)
GRADIENTS: dict[str, Gradient] = {g.forward: g for g in _ROWS}

# Operators without a gradient of their own, and why.
NOT_DIFFERENTIABLE: dict[str, str] = {
    "quantize": "rounding; modules pass gradients straight through",
    "dequantize": "its input is codes; modules pass gradients straight through",
    "compute_amax": "feeds scales, which are constants of a step",
    "compute_scale": "feeds scales, which are constants of a step",
    "amax_and_scale_update": "state of delayed scaling, outside of the graph",
}


def saved(g: Gradient) -> tuple[str, ...]:
    """Forward fields that backward reads, in order; "a|b" means a if it was written, else b."""
    out: dict[str, None] = {}
    for s in g.steps:
        for source in s.inputs.values():
            if not source.startswith("grad:"):
                out[source] = None
    return tuple(out)
