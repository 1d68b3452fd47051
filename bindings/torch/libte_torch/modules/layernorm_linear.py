# SPDX-License-Identifier: Apache-2.0
"""te.LayerNormLinear."""
from __future__ import annotations

from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor

from .. import functional as F
from ..tensor import dequantized
from .base import Device, TransformerEngineBaseModule, check_inert, refuse_unbuilt, tensor_of
from .linear import Linear, _main_grad, make_linear_parameters
from .norm import make_norm_parameters, reset_norm_parameters


class LayerNormLinear(TransformerEngineBaseModule):
    """linear(norm(x)) with the normalised rows quantised as they are made.

    x [*, in_features] -> [*, out_features]; with return_layernorm_output the tuple (y, norm(x)), with return_bias the bias comes
    before it: (y, bias[, norm(x)]).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Optional[Callable[..., Any]] = None,
        init_method: Optional[Callable[[Tensor], Any]] = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        return_bias: bool = False,
        params_dtype: Optional[torch.dtype] = None,
        parallel_mode: Optional[str] = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        parameters_split: Optional[Union[tuple[str, ...], dict[str, int]]] = None,
        zero_centered_gamma: bool = False,
        device: Device = None,
        **unbuilt: Any,
    ) -> None:
        super().__init__(device, params_dtype)
        check_inert(self, dict(
            sequence_parallel=sequence_parallel, tp_group=tp_group, tp_size=tp_size, get_rng_state_tracker=get_rng_state_tracker,
            parallel_mode=parallel_mode, return_layernorm_output_gathered=return_layernorm_output_gathered, **unbuilt,
        ))
        self.in_features, self.out_features, self.eps = in_features, out_features, eps
        self.normalization, self.zero_centered_gamma = normalization, zero_centered_gamma
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.return_bias, self.use_bias, self.return_layernorm_output = return_bias, bias, return_layernorm_output
        self.init_method = self.init_or_default(init_method)
        make_norm_parameters(self, in_features, normalization, zero_centered_gamma)
        self.splits = make_linear_parameters(self, parameters_split, out_features, in_features, bias)

    whole = Linear.whole

    def reset_layer_norm_parameters(self) -> None:
        reset_norm_parameters(self)

    def reset_parameters(self, defer_init: bool = False) -> None:
        Linear.reset_parameters(self)  # type: ignore[arg-type]
        reset_norm_parameters(self)

    def forward(
        self, inp: Tensor, is_first_microbatch: Optional[bool] = None, fp8_output: Optional[bool] = False, fp8_grad: Optional[bool] = False
    ) -> Any:
        if fp8_output or fp8_grad:
            refuse_unbuilt(self, fp8_output=(fp8_output, False, None), fp8_grad=(fp8_grad, False, None))
        if inp.shape[-1:] != (self.in_features,):
            raise ValueError(f"LayerNormLinear: inp must be [*, {self.in_features}], got {list(inp.shape)}")
        weight, bias = self.whole()  # type: ignore[misc]
        used_bias = None if self.return_bias else bias
        x, dtype = self.cast_input(inp, weight)
        fp8, forward, gradients = self.quantisation(x.device)
        gamma, beta = tensor_of(self, "layer_norm_weight"), tensor_of(self, "layer_norm_bias")
        main_grad = _main_grad(self, weight)
        ready, wq, wqt, wq_inv, s = False, None, None, None, (None,) * 7
        weight_dtype = weight.dtype
        if fp8 is None:
            weight = dequantized(weight)
            weight = weight if weight.dtype is dtype else weight.to(dtype)
            used_bias = used_bias if used_bias is None or used_bias.dtype is dtype else used_bias.to(dtype)
            weight_dtype = dtype
            self.calibrate_norm(x, weight)
        else:
            wq, wqt, wq_inv, ready = self.weight_codes("0", weight, fp8, is_first_microbatch)
            if forward is not None:
                scales, amaxes = forward
                s = (scales[0], amaxes[0], scales[1], amaxes[1], *gradients[0])  # type: ignore[assignment]
        config = F.LinearConfig(
            self.out_features, fp8, ready, dtype, weight_dtype, self.fuse_wgrad_accumulation, self.normalization, self.eps,
            self.zero_centered_gamma, self.return_layernorm_output,
        )
        y, normed = F.apply(F.NormLinear, x, gamma, beta, weight, used_bias, *s, wq, wqt, wq_inv, main_grad, config)
        out = (y,)
        if self.return_bias:
            out += (bias if bias is None or bias.dtype is dtype else bias.to(dtype),)
        if self.return_layernorm_output:
            out += (normed,)
        return out if len(out) > 1 else y

    def calibrate_norm(self, x: Tensor, weight: Tensor) -> None:
        from ..quantization import current

        if current().calibrating:
            with torch.no_grad():
                normed, _, _ = F.norm_forward(
                    self.normalization, F.packed(x), self.layer_norm_weight, self.layer_norm_bias, self.eps, self.zero_centered_gamma
                )
            self.calibrate(0, normed, weight)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.use_bias}, normalization={self.normalization}"
