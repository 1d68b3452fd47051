# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding."""
from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor, nn

from . import functional as F
from . import ops
from .modules.base import default_device

FORMATS = {"sbhd": 0, "bshd": 1, "thd": 2, "bhsd": 3}


class RotaryPositionEmbedding(nn.Module):
    """Angles f32 [max_seq_len, 1, 1, dim * rotary_percent]: position / rotary_base^(2j/d), each frequency twice (halves, or pairs when
    interleaved)."""

    def __init__(
        self,
        dim: int,
        rotary_percent: float = 1.0,
        seq_len_interpolation_factor: Optional[int] = None,
        pretrained_max_position_embeddings: Optional[int] = None,
        rotary_base: float = 10000.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        self.dim = int(dim * rotary_percent) if rotary_percent < 1.0 else dim
        if self.dim % 2:
            raise ValueError(f"RotaryPositionEmbedding: dim * rotary_percent must be even, got {self.dim}")
        self.interleaved = interleaved
        self.seq_len_interpolation_factor = seq_len_interpolation_factor
        self.pretrained_max_position_embeddings = pretrained_max_position_embeddings
        inverse = 1.0 / rotary_base ** (torch.arange(0, self.dim, 2, dtype=torch.float32, device=default_device(None)) / self.dim)
        self.register_buffer("inv_freq", inverse, persistent=False)

    def forward(self, max_seq_len: int, offset: int = 0) -> Tensor:
        with torch.autocast(self.inv_freq.device.type, enabled=False):
            position = torch.arange(max_seq_len, device=self.inv_freq.device, dtype=torch.float32) + offset
            factor, pretrained = self.seq_len_interpolation_factor, self.pretrained_max_position_embeddings
            if pretrained is not None and factor is not None:
                # fixed interpolation within pretrained * factor, stretched just enough beyond
                if max_seq_len > pretrained * factor:
                    position = position * (pretrained / max_seq_len)
                else:
                    position = position / factor
            freqs = torch.outer(position, self.inv_freq.float())
            emb = freqs.repeat_interleave(2, dim=-1) if self.interleaved else torch.cat((freqs, freqs), dim=-1)
            return emb.reshape(max_seq_len, 1, 1, self.dim)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, freqs: Tensor, start: Any, positions: Any, cu_seqlens: Any, fmt: int, flags: int, cp_size: int, cp_rank: int) -> Tensor:
        y = torch.empty(t.shape, dtype=t.dtype, device=t.device)
        ops.rope_forward(t, freqs, start, positions, cu_seqlens, y, fmt, flags, cp_size, cp_rank)
        ctx.save_for_backward(freqs, start, positions, cu_seqlens)
        ctx.constants = (fmt, flags, cp_size, cp_rank)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        F.once("apply_rotary_pos_emb")
        freqs, start, positions, cu_seqlens = ctx.saved_tensors
        dx = torch.empty(dy.shape, dtype=dy.dtype, device=dy.device)
        ops.rope_backward(dy, freqs, start, positions, cu_seqlens, dx, *ctx.constants)
        return (dx, *(None,) * 8)


def apply_rotary_pos_emb(
    t: Tensor,
    freqs: Tensor,
    tensor_format: str = "sbhd",
    start_positions: Union[Tensor, None] = None,
    interleaved: bool = False,
    fused: bool = True,
    cu_seqlens: Union[Tensor, None] = None,
    cp_size: int = 1,
    cp_rank: int = 0,
    *,
    positions: Optional[Tensor] = None,
) -> Tensor:
    """Rotates t ([s,b,h,d], [b,s,h,d] or [t,h,d] by tensor_format) by freqs [s,1,1,d2] (f32 angles); channels past d2 pass through.

    start_positions [b] is added to positions; positions ([b, s] or [t]) replaces them. There is one (fused) path: `fused` is taken for
    compatibility.
    """
    if tensor_format not in FORMATS:
        raise ValueError(f"apply_rotary_pos_emb: tensor_format must be one of {sorted(FORMATS)}, got {tensor_format!r}")
    table = freqs.detach().reshape(freqs.shape[0], -1)
    table = table if table.dtype == torch.float32 else table.float()
    start = None if start_positions is None else start_positions.to(torch.int32)
    cu = None if cu_seqlens is None else cu_seqlens.to(torch.int32)
    return _Rope.apply(t, table.contiguous(), start, positions, cu, FORMATS[tensor_format], int(interleaved), cp_size, cp_rank)


def apply_fused_qkv_rotary_pos_emb(
    qkv: Tensor, q_freqs: Tensor, k_freqs: Tensor, qkv_split_arg_list: list[int], tensor_format: str = "sbhd",
    start_positions: Union[Tensor, None] = None, interleaved: bool = False, cu_seqlens: Union[Tensor, None] = None, cp_size: int = 1, cp_rank: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Splits qkv's last dimension into q, k, v (per head group) and rotates q and k through strided views, without a copy first."""
    q, k, v = torch.split(qkv, qkv_split_arg_list, dim=-1)
    d = qkv_split_arg_list[2]

    def heads(x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-2], -1, d)

    rotate = dict(tensor_format=tensor_format, start_positions=start_positions, interleaved=interleaved, cu_seqlens=cu_seqlens, cp_size=cp_size, cp_rank=cp_rank)
    return (apply_rotary_pos_emb(heads(q), q_freqs, **rotate), apply_rotary_pos_emb(heads(k), k_freqs, **rotate), heads(v))  # type: ignore[arg-type]
