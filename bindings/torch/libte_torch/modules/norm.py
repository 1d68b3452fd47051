# SPDX-License-Identifier: Apache-2.0
"""te.LayerNorm and te.RMSNorm."""
from __future__ import annotations

from typing import Any, Iterable, Optional, Union

import torch
from torch import Tensor, nn

from .. import functional as F
from .base import Device, autocast_dtype, check_inert, default_device, tensor_of


class _Norm(nn.Module):
    kind = ""

    def __init__(
        self,
        normalized_shape: Union[Iterable[int], int, None] = None,
        eps: float = 1e-5,
        sequence_parallel: Optional[bool] = None,
        params_dtype: Optional[torch.dtype] = None,
        zero_centered_gamma: bool = False,
        hidden_size: Optional[int] = None,
        *,
        device: Device = None,
        dtype: Optional[torch.dtype] = None,
        elementwise_affine: bool = True,
        **unbuilt: Any,
    ) -> None:
        super().__init__()
        check_inert(self, dict(sequence_parallel=sequence_parallel, **unbuilt))
        shape = normalized_shape if normalized_shape is not None else hidden_size
        if shape is None:
            raise ValueError(f"{self.kind}: normalized_shape must be given")
        self.normalized_shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps, self.zero_centered_gamma, self.elementwise_affine = eps, zero_centered_gamma, elementwise_affine
        if eps < 0:
            raise ValueError(f"{self.kind}: eps must be >= 0, got {eps}")
        make = dict(device=default_device(device), dtype=params_dtype or dtype or torch.get_default_dtype())
        for name, there in (("weight", elementwise_affine), ("bias", elementwise_affine and self.kind == "LayerNorm")):
            self.register_parameter(name, nn.Parameter(torch.empty(self.normalized_shape, **make)) if there else None)  # type: ignore[arg-type]
        self.reset_parameters()

    def reset_parameters(self, defer_init: bool = False) -> None:
        if self.weight is not None and self.weight.device.type != "meta":
            nn.init.constant_(self.weight, 0.0 if self.zero_centered_gamma else 1.0)
        if self.bias is not None and self.bias.device.type != "meta":
            nn.init.zeros_(self.bias)

    def forward(self, inp: Tensor) -> Tensor:
        n = len(self.normalized_shape)
        if tuple(inp.shape[-n:]) != self.normalized_shape:
            raise ValueError(f"{self.kind}: inp must end in {list(self.normalized_shape)}, got {list(inp.shape)}")
        weight, bias = tensor_of(self, "weight"), tensor_of(self, "bias")
        dtype = autocast_dtype(inp)
        if dtype is not None:
            inp = inp.to(dtype)
        x = inp
        if n > 1:
            x = inp.reshape(*inp.shape[:-n], -1)
            weight = weight.view(-1) if weight is not None else None  # type: ignore[assignment]
            bias = bias.view(-1) if bias is not None else None  # type: ignore[assignment]
        y = F.Norm.apply(x, weight, bias, self.kind, self.eps, self.zero_centered_gamma)
        return y.view(inp.shape) if n > 1 else y

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, zero_centered_gamma={self.zero_centered_gamma}"


class LayerNorm(_Norm):
    """y = (x - mean) / sqrt(var + eps) * weight + bias over the trailing dimensions `normalized_shape`; with zero_centered_gamma the
    weight is stored minus 1. elementwise_affine=False: no parameters."""

    kind = "LayerNorm"

    def reset_layer_norm_parameters(self) -> None:
        self.reset_parameters()


class RMSNorm(_Norm):
    """y = x / sqrt(mean(x^2) + eps) * weight over the trailing dimensions `normalized_shape`."""

    kind = "RMSNorm"

    def reset_rms_norm_parameters(self) -> None:
        self.reset_parameters()


def make_norm_parameters(owner: Any, n: int, normalization: str, zero_centered_gamma: bool, bias: bool = True) -> None:
    """layer_norm_weight and layer_norm_bias of a fused module."""
    if normalization not in ("LayerNorm", "RMSNorm"):
        raise ValueError(f"{type(owner).__name__}: normalization must be 'LayerNorm' or 'RMSNorm', got {normalization!r}")
    owner.make_vector("layer_norm_weight", n, 0.0 if zero_centered_gamma else 1.0)
    owner.make_vector("layer_norm_bias", n if normalization == "LayerNorm" else None)


def reset_norm_parameters(owner: Any) -> None:
    with torch.no_grad():
        owner.layer_norm_weight.fill_(0.0 if owner.zero_centered_gamma else 1.0)
        if owner.layer_norm_bias is not None:
            owner.layer_norm_bias.zero_()
