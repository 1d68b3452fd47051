# SPDX-License-Identifier: Apache-2.0
"""te.LayerNormMLP."""
from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from .. import functional as F
from ..tensor import dequantized
from .base import Device, TransformerEngineBaseModule, check_inert, tensor_of
from .linear import _main_grad
from .norm import make_norm_parameters, reset_norm_parameters


class LayerNormMLP(TransformerEngineBaseModule):
    """fc2(activation(fc1(norm(x)))).

    x [*, hidden_size] -> the same shape. Gated activations (swiglu, geglu, ...) make fc1 twice as wide: rows [:ffn] of fc1_weight are the
    gate, rows [ffn:] the linear part. activation_params: limit, alpha, glu_linear_offset of clamped_swiglu. checkpoint=True recomputes
    everything in backward.
    """

    fp8_counts = (4, 2)

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        return_bias: bool = False,
        get_rng_state_tracker: Optional[Callable[..., Any]] = None,
        tp_group: Any = None,
        tp_size: int = 1,
        init_method: Optional[Callable[[Tensor], Any]] = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        activation_params: Optional[dict[str, float]] = None,
        output_layer_init_method: Optional[Callable[[Tensor], Any]] = None,
        fuse_wgrad_accumulation: bool = False,
        params_dtype: Optional[torch.dtype] = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        seq_length: Optional[int] = None,
        micro_batch_size: Optional[int] = None,
        set_parallel_mode: bool = False,
        zero_centered_gamma: bool = False,
        device: Device = None,
        checkpoint: bool = False,
        **unbuilt: Any,
    ) -> None:
        super().__init__(device, params_dtype)
        check_inert(self, dict(
            sequence_parallel=sequence_parallel, get_rng_state_tracker=get_rng_state_tracker, tp_group=tp_group, tp_size=tp_size,
            return_layernorm_output_gathered=return_layernorm_output_gathered, set_parallel_mode=set_parallel_mode, **unbuilt,
        ))
        self.hidden_size, self.ffn_hidden_size, self.eps = hidden_size, ffn_hidden_size, eps
        self.normalization, self.zero_centered_gamma, self.activation = normalization, zero_centered_gamma, activation
        self.fuse_wgrad_accumulation, self.checkpoint = fuse_wgrad_accumulation, checkpoint
        self.return_bias, self.use_bias, self.return_layernorm_output = return_bias, bias, return_layernorm_output
        params = dict(activation_params or {})
        self.activation_config = F.ActivationConfig(
            activation, params.pop("limit", 7.0), params.pop("alpha", 1.702), params.pop("glu_linear_offset", 1.0)
        )
        if params:
            raise ValueError(f"LayerNormMLP: activation_params takes limit, alpha and glu_linear_offset, got {sorted(params)}")
        width = ffn_hidden_size * (2 if F.is_gated(activation) else 1)
        self.init_method = self.init_or_default(init_method)
        self.output_init = self.init_or_default(output_layer_init_method)
        make_norm_parameters(self, hidden_size, normalization, zero_centered_gamma)
        self.make_weight("fc1_weight", (width, hidden_size), self.init_method)
        self.make_vector("fc1_bias", width if bias else None)
        self.make_weight("fc2_weight", (hidden_size, ffn_hidden_size), self.output_init)
        self.make_vector("fc2_bias", hidden_size if bias else None)

    def reset_layer_norm_parameters(self) -> None:
        reset_norm_parameters(self)

    def reset_parameters(self, defer_init: bool = False) -> None:
        with torch.no_grad():
            self.init_method(self.fc1_weight)
            self.output_init(self.fc2_weight)
            for b in (self.fc1_bias, self.fc2_bias):
                if b is not None:
                    b.zero_()
        reset_norm_parameters(self)

    def forward(self, inp: Tensor, is_first_microbatch: Optional[bool] = None) -> Any:
        if inp.shape[-1:] != (self.hidden_size,):
            raise ValueError(f"LayerNormMLP: inp must be [*, {self.hidden_size}], got {list(inp.shape)}")
        if self.checkpoint and torch.is_grad_enabled():
            from ..checkpoint import checkpoint

            return checkpoint(self._forward, inp, is_first_microbatch)
        return self._forward(inp, is_first_microbatch)

    def _forward(self, inp: Tensor, is_first_microbatch: Optional[bool] = None) -> Any:
        w1, w2, b1, b2 = (tensor_of(self, name) for name in ("fc1_weight", "fc2_weight", "fc1_bias", "fc2_bias"))
        gamma, beta = tensor_of(self, "layer_norm_weight"), tensor_of(self, "layer_norm_bias")
        x, dtype = self.cast_input(inp, w1)  # type: ignore[arg-type]
        fp8, forward, gradients = self.quantisation(x.device)
        main1, main2 = _main_grad(self, w1), _main_grad(self, w2)  # type: ignore[arg-type]
        used_b2 = None if self.return_bias else b2
        ready1 = ready2 = False
        w1q = w1qt = w1_inv = w2q = w2qt = w2_inv = None
        s: tuple[Any, ...] = (None,) * 14
        weight_dtype = w1.dtype  # type: ignore[union-attr]
        if fp8 is None:
            self.calibrate_mlp(x)
            w1, w2 = (dequantized(w).to(dtype) for w in (w1, w2))  # type: ignore[arg-type]
            b1, used_b2 = (b if b is None else b.to(dtype) for b in (b1, used_b2))
            weight_dtype = dtype
        else:
            w1q, w1qt, w1_inv, ready1 = self.weight_codes("1", w1, fp8, is_first_microbatch)  # type: ignore[arg-type]
            w2q, w2qt, w2_inv, ready2 = self.weight_codes("2", w2, fp8, is_first_microbatch)  # type: ignore[arg-type]
            if forward is not None:
                sc, am = forward
                g1, g2 = gradients
                s = (sc[0], am[0], sc[1], am[1], sc[2], am[2], sc[3], am[3], *g1, *g2)
        fc1 = F.LinearConfig(
            w1.shape[0], fp8, ready1, dtype, weight_dtype, self.fuse_wgrad_accumulation, self.normalization, self.eps,  # type: ignore[union-attr]
            self.zero_centered_gamma, self.return_layernorm_output,
        )
        fc2 = F.LinearConfig(self.hidden_size, fp8, ready2, dtype, weight_dtype, self.fuse_wgrad_accumulation)
        y, normed = F.apply(
            F.NormMlp,
            x, gamma, beta, w1, b1, w2, used_b2, *s, w1q, w1qt, w1_inv, w2q, w2qt, w2_inv, main1, main2,
            F.MlpConfig(fc1, fc2, self.activation_config),
        )
        out = (y,)
        if self.return_bias:
            out += (b2 if b2 is None or b2.dtype is dtype else b2.to(dtype),)
        if self.return_layernorm_output:
            out += (normed,)
        return out if len(out) > 1 else y

    def calibrate_mlp(self, x: Tensor) -> None:
        from ..quantization import current

        if not current().calibrating:
            return
        with torch.no_grad():
            w1, w2 = dequantized(self.fc1_weight).to(x.dtype), dequantized(self.fc2_weight).to(x.dtype)
            normed, _, _ = F.norm_forward(
                self.normalization, F.packed(x), self.layer_norm_weight, self.layer_norm_bias, self.eps, self.zero_centered_gamma
            )
            b1 = None if self.fc1_bias is None else self.fc1_bias.to(x.dtype)
            h, _, _ = F.linear_forward(normed, w1, b1, w1.shape[0], None, *(None,) * 7, False, x.dtype)  # type: ignore[arg-type]
            a, _, _ = F.activation_forward(h, self.activation_config, x.dtype)
            self.calibrate(0, normed, w1)
            self.calibrate(2, a, w2)

    def extra_repr(self) -> str:
        return f"hidden_size={self.hidden_size}, ffn_hidden_size={self.ffn_hidden_size}, activation={self.activation}, bias={self.use_bias}"
