# SPDX-License-Identifier: Apache-2.0
"""te.DotProductAttention and te.MultiheadAttention."""
from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn

from .. import functional as F
from .. import ops
from ..rope import FORMATS, apply_rotary_pos_emb
from .base import Device, autocast_dtype, check_inert, default_device, refuse_unbuilt
from .layernorm_linear import LayerNormLinear
from .linear import Linear
from .norm import LayerNorm, RMSNorm

# attn_mask_type -> (nvte mask kind, uses lengths, uses the given boolean mask)
MASKS = {
    "no_mask": (0, False, False),
    "padding": (0, True, False),
    "causal": (1, False, False),
    "padding_causal": (1, True, False),
    "causal_bottom_right": (2, False, False),
    "padding_causal_bottom_right": (2, True, False),
    "arbitrary": (0, False, True),
}
_ALIASES = {"causal_padding": "padding_causal", "padding,causal": "padding_causal", "causal,padding": "padding_causal"}
SOFTMAX = {"vanilla": 0, "off-by-one": 1, "learnable": 2}
BIAS = {"no_bias": 0, "post_scale_bias": 0, "pre_scale_bias": 1, "alibi": 0}


class AttentionConfig(NamedTuple):
    """Constants of one call, in the order of nvte_attention_forward's scalars."""

    scale: float
    dropout: float
    format: int
    mask_kind: int
    bias_kind: int
    softmax_kind: int
    window_left: int
    window_right: int
    flags: int


def _last_unit(t: Tensor) -> Tensor:
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


@F.named("FusedAttnFunc")
class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Any, mask: Any, cu_q: Any, cu_kv: Any, cu_q_padded: Any, cu_kv_padded: Any,
                rng: Any, offset: Any, slopes: Any, config: AttentionConfig) -> Tensor:
        q, k, v = _last_unit(q), _last_unit(k), _last_unit(v)
        o = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype, device=q.device)
        if config.format == 2:
            shape: tuple[int, ...] = (q.shape[1], q.shape[0])
        elif config.format == 0:
            shape = (q.shape[1], q.shape[2], q.shape[0])
        elif config.format == 1:
            shape = (q.shape[0], q.shape[2], q.shape[1])
        else:
            shape = (q.shape[0], q.shape[1], q.shape[2])
        stats = torch.empty(shape, dtype=torch.float32, device=q.device)
        ops.attention_forward(q, k, v, o, stats, bias, mask, cu_q, cu_kv, cu_q_padded, cu_kv_padded, rng, offset, slopes, None, *config)
        ctx.save_for_backward(q, k, v, o, stats, bias, mask, cu_q, cu_kv, cu_q_padded, cu_kv_padded, rng, offset, slopes)
        ctx.config = config
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> Any:
        F.once("DotProductAttention")
        q, k, v, o, stats, bias, mask, cu_q, cu_kv, cu_q_padded, cu_kv_padded, rng, offset, slopes = ctx.saved_tensors
        need = ctx.needs_input_grad
        do = _last_unit(do)
        dq, dk, dv = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
        dbias = torch.empty(bias.shape, dtype=bias.dtype, device=q.device) if bias is not None and need[3] else None
        doffset = torch.empty(offset.shape, dtype=torch.float32, device=q.device) if offset is not None and need[10] else None
        ops.attention_backward(do, q, k, v, o, stats, dq, dk, dv, dbias, doffset, bias, mask, cu_q, cu_kv, cu_q_padded, cu_kv_padded, rng, offset,
                               slopes, *ctx.config)
        return dq, dk, dv, dbias, None, None, None, None, None, None, doffset, None, None


def seed_and_offset(device: torch.device) -> Tensor:
    """int64 [2] drawn from the device's generator by torch ops, so that capture and recomputation are right."""
    return torch.randint(0, 2**62, (2,), dtype=torch.int64, device=device) % (2**48)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        x = F.packed(x)
        y = torch.empty_like(x)
        mask = torch.empty((x.numel() + 7) // 8, dtype=torch.uint8, device=x.device)
        ops.dropout_forward(x, seed_and_offset(x.device), y, mask, p)
        ctx.save_for_backward(mask)
        ctx.p = p
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        F.once("dropout")
        dy = F.packed(dy)
        dx = torch.empty_like(dy)
        ops.dropout_backward(dy, ctx.saved_tensors[0], dx, ctx.p)
        return dx, None


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """x / (1 - p) where kept, else 0; the mask is saved as bits."""
    return _Dropout.apply(x, p) if training and p > 0.0 else x


def alibi_slopes_of(heads: int, device: torch.device) -> Tensor:
    """The usual geometric series 2^(-8 (h+1) / H); for H not a power of two, the next power's odd members fill up. f32 [h]."""
    n = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]
    slopes += [2.0 ** (-4.0 * (2 * i + 1) / n) for i in range(heads - n)]
    return torch.tensor(slopes, dtype=torch.float32, device=device)


def _lengths_from_mask(mask: Tensor) -> Tensor:
    """cu_seqlens int32 [b+1] of a padding mask [b, 1, 1, s] (True = padded; valid tokens come first)."""
    lengths = (~mask.reshape(mask.shape[0], -1)).sum(-1, dtype=torch.int32)
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0, dtype=torch.int32)])


class DotProductAttention(nn.Module):
    """softmax(Q K^T * scale + bias | mask) V, fused.

    query [s, b, h, d], [b, s, h, d] or [t, h, d] by qkv_format; key and value with num_gqa_groups heads; result [.., h * d_v].
    attn_mask_type: no_mask, padding, causal, padding_causal, causal_bottom_right, padding_causal_bottom_right, arbitrary.
    attention_mask: True = masked out (torch's scaled_dot_product_attention has the reverse); padding takes [b, 1, 1, s] (a pair for
    cross attention), arbitrary anything that broadcasts to [b, h, s_q, s_kv].
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: Union[int, tuple[int, int]],
        num_gqa_groups: Optional[int] = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: Optional[tuple[int, int]] = None,
        bottom_right_diagonal: Optional[bool] = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Optional[Callable[..., Any]] = None,
        tp_group: Any = None,
        layer_number: Optional[int] = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: Optional[list[int]] = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: Optional[float] = None,
        softmax_type: str = "vanilla",
        return_max_logit: Optional[bool] = False,
        name: Optional[str] = None,
        *,
        device: Device = None,
    ) -> None:
        super().__init__()
        check_groups(self, num_attention_heads, num_gqa_groups, tp_size)
        check_inert(self, dict(sequence_parallel=sequence_parallel, tp_size=tp_size, get_rng_state_tracker=get_rng_state_tracker, tp_group=tp_group))
        refuse_unbuilt(self, cp_group=(cp_group, None), return_max_logit=(return_max_logit, False, None), cp_stream=(cp_stream, None))
        self.num_attention_heads = num_attention_heads
        self.num_gqa_groups = num_gqa_groups or num_attention_heads
        self.head_dims = (kv_channels, kv_channels) if isinstance(kv_channels, int) else tuple(kv_channels)
        self.attention_dropout = attention_dropout
        self.qkv_format, self.attn_mask_type = qkv_format, _mask_type(attn_mask_type)
        self.window_size, self.bottom_right_diagonal = window_size, bottom_right_diagonal
        self.attention_type, self.layer_number = attention_type, layer_number
        self.softmax_scale = softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(self.head_dims[0])
        if softmax_type not in SOFTMAX:
            raise ValueError(f"DotProductAttention: softmax_type must be one of {sorted(SOFTMAX)}, got {softmax_type!r}")
        self.softmax_type = softmax_type
        self.softmax_offset = None
        if softmax_type == "learnable":
            self.softmax_offset = nn.Parameter(torch.zeros(num_attention_heads, dtype=torch.float32, device=default_device(device)))

    def forward(
        self,
        query_layer: Optional[Tensor] = None,
        key_layer: Optional[Tensor] = None,
        value_layer: Optional[Tensor] = None,
        attention_mask: Any = None,
        qkv_format: Optional[str] = None,
        cu_seqlens_q: Optional[Tensor] = None,
        cu_seqlens_kv: Optional[Tensor] = None,
        cu_seqlens_q_padded: Optional[Tensor] = None,
        cu_seqlens_kv_padded: Optional[Tensor] = None,
        max_seqlen_q: Optional[int] = None,
        max_seqlen_kv: Optional[int] = None,
        attn_mask_type: Optional[str] = None,
        window_size: Optional[tuple[int, int]] = None,
        bottom_right_diagonal: Optional[bool] = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Optional[Tensor] = None,
        alibi_slopes: Optional[Tensor] = None,
        fast_zero_fill: bool = True,
        inference_params: Any = None,
        pad_between_seqs: Optional[bool] = None,
        fp8_output: Optional[bool] = False,
        **unbuilt: Any,
    ) -> Tensor:
        refuse_unbuilt(self, inference_params=(inference_params, None), fp8_output=(fp8_output, False, None))
        for name, value in unbuilt.items():
            if name not in ("bf16_backward", "num_splits", "score_mod", "score_mod_bprop", "score_mod_tensors", "score_mod_bprop_tensors",
                            "qkv_layer", "kv_layer", "qkv_interleave_dim"):
                raise TypeError(f"DotProductAttention.forward() got an unexpected keyword argument {name!r}")
            refuse_unbuilt(self, **{name: (value, None, False, 1, -3)})
        q, k, v = query_layer, key_layer, value_layer
        if q is None or k is None or v is None:
            raise ValueError("DotProductAttention: query_layer, key_layer and value_layer must be given")
        dtype = autocast_dtype(q)
        if dtype is not None:
            q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        fmt = qkv_format or self.qkv_format
        if fmt not in FORMATS:
            raise ValueError(f"DotProductAttention: qkv_format must be one of {sorted(FORMATS)}, got {fmt!r}")
        kind = _mask_type(attn_mask_type) if attn_mask_type is not None else self.attn_mask_type
        mask_kind, uses_lengths, uses_mask = MASKS[kind]
        heads = q.shape[-2] if fmt != "bhsd" else q.shape[1]
        if heads != self.num_attention_heads:
            raise ValueError(f"DotProductAttention: query_layer must have {self.num_attention_heads} heads, got {heads}")
        window = window_size if window_size is not None else self.window_size
        left, right = window if window is not None else (-1, -1)
        bottom_right = bottom_right_diagonal if bottom_right_diagonal is not None else self.bottom_right_diagonal
        flags = 0
        if bottom_right and mask_kind == 1:
            mask_kind = 2
        elif bottom_right is False and mask_kind == 2:
            mask_kind = 1
        elif bottom_right:
            flags = 1  # windows of non-causal masks aligned at the end
        mask = None
        if uses_lengths and cu_seqlens_q is None:
            if attention_mask is None:
                raise ValueError(f"DotProductAttention: attn_mask_type={kind!r} needs attention_mask or cu_seqlens_q and cu_seqlens_kv")
            pair = attention_mask if isinstance(attention_mask, (tuple, list)) else (attention_mask, attention_mask)
            cu_seqlens_q, cu_seqlens_kv = _lengths_from_mask(pair[0]), _lengths_from_mask(pair[1])
        if uses_mask:
            if attention_mask is None:
                raise ValueError("DotProductAttention: attn_mask_type='arbitrary' needs attention_mask")
            mask = attention_mask if attention_mask.dtype in (torch.bool, torch.uint8) else attention_mask.to(torch.bool)
            while mask.dim() < 4:
                mask = mask.unsqueeze(0)
        if not uses_lengths and fmt != "thd":
            cu_seqlens_q = cu_seqlens_kv = None
        cu = [None if c is None else c.to(torch.int32) for c in (cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded)]
        if core_attention_bias_type not in BIAS:
            raise ValueError(f"DotProductAttention: core_attention_bias_type must be one of {sorted(BIAS)}, got {core_attention_bias_type!r}")
        bias = core_attention_bias if core_attention_bias_type in ("post_scale_bias", "pre_scale_bias") else None
        if core_attention_bias_type in ("post_scale_bias", "pre_scale_bias") and bias is None:
            raise ValueError(f"DotProductAttention: core_attention_bias_type={core_attention_bias_type!r} needs core_attention_bias")
        slopes = None
        if core_attention_bias_type == "alibi":
            slopes = alibi_slopes.float() if alibi_slopes is not None else alibi_slopes_of(heads, q.device)
        p = self.attention_dropout if self.training else 0.0
        config = AttentionConfig(self.softmax_scale, p, FORMATS[fmt], mask_kind, BIAS[core_attention_bias_type], SOFTMAX[self.softmax_type], left, right, flags)
        rng = seed_and_offset(q.device) if p > 0.0 else None
        arguments = (q, k, v, bias, mask, *cu, rng, self.softmax_offset, slopes, config)
        # the flash kernel keeps no S x S, so checkpoint_core_attention has nothing to save: it is accepted and changes nothing
        o = _Attention.apply(*arguments)
        if fmt == "bhsd":
            o = o.transpose(1, 2)
        return o.reshape(*o.shape[:-2], o.shape[-2] * o.shape[-1])

    def extra_repr(self) -> str:
        return f"heads={self.num_attention_heads}, gqa_groups={self.num_gqa_groups}, head_dims={self.head_dims}, mask={self.attn_mask_type}"


def _mask_type(name: str) -> str:
    name = _ALIASES.get(name, name)
    if name not in MASKS:
        raise ValueError(f"attn_mask_type: must be one of {sorted(MASKS)}, got {name!r}")
    return name


def check_groups(owner: Any, heads: int, groups: Optional[int], tp_size: int) -> None:
    """Heads must divide by groups, and both by the tensor-parallel size."""
    cls = type(owner).__name__
    groups = heads if groups is None else groups
    if groups < 1 or heads % groups:
        raise ValueError(f"{cls}: num_attention_heads = {heads} must be a multiple of num_gqa_groups = {groups}")
    if groups % tp_size:
        raise ValueError(f"{cls}: num_gqa_groups = {groups} must be a multiple of tp_size = {tp_size}")


def gqa_groups_per_partition(groups: int, tp_size: int) -> int:
    """Key/value heads of one tensor-parallel rank."""
    if groups % tp_size:
        raise ValueError(f"num_gqa_groups = {groups} must be a multiple of tp_size = {tp_size}")
    return groups // tp_size


class MultiheadAttention(nn.Module):
    """Attention with its projections: (norm +) QKV -> (q/k norm, RoPE) -> DotProductAttention -> projection.

    hidden_states [s, b, hidden] (qkv_format sbhd), [b, s, hidden] (bshd) or [t, hidden] (thd). attention_type cross takes keys and values
    from encoder_output. fuse_qkv_params keeps one qkv weight instead of query/key/value ones.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        kv_channels: Optional[int] = None,
        attention_dropout: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        init_method: Optional[Callable[[Tensor], Any]] = None,
        output_layer_init_method: Optional[Callable[[Tensor], Any]] = None,
        layer_number: Optional[int] = None,
        attn_mask_type: str = "causal",
        window_size: Optional[tuple[int, int]] = None,
        bottom_right_diagonal: Optional[bool] = None,
        tp_group: Any = None,
        tp_size: int = 1,
        num_gqa_groups: Optional[int] = None,
        fuse_wgrad_accumulation: bool = False,
        get_rng_state_tracker: Optional[Callable[..., Any]] = None,
        sequence_parallel: bool = False,
        params_dtype: Optional[torch.dtype] = None,
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        input_layernorm: bool = False,
        attention_type: str = "self",
        set_parallel_mode: bool = False,
        fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        rotary_pos_interleaved: bool = False,
        bias: bool = True,
        normalization: str = "LayerNorm",
        device: Device = None,
        qkv_format: str = "sbhd",
        name: Optional[str] = None,
        qk_norm_type: Optional[str] = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False,
        softmax_type: str = "vanilla",
        **unbuilt: Any,
    ) -> None:
        super().__init__()
        check_groups(self, num_attention_heads, num_gqa_groups, tp_size)
        check_inert(self, dict(
            tp_group=tp_group, tp_size=tp_size, get_rng_state_tracker=get_rng_state_tracker, sequence_parallel=sequence_parallel,
            set_parallel_mode=set_parallel_mode, name=name, **unbuilt,
        ))
        if attention_type not in ("self", "cross"):
            raise ValueError(f"MultiheadAttention: attention_type must be 'self' or 'cross', got {attention_type!r}")
        self.hidden_size, self.num_attention_heads = hidden_size, num_attention_heads
        self.num_gqa_groups = num_gqa_groups or num_attention_heads
        if kv_channels is None and hidden_size % num_attention_heads:
            raise ValueError(f"MultiheadAttention: hidden_size = {hidden_size} must be a multiple of num_attention_heads = {num_attention_heads}")
        self.head_dim = kv_channels or hidden_size // num_attention_heads
        self.attention_type, self.input_layernorm, self.qkv_format = attention_type, input_layernorm, qkv_format
        self.return_bias, self.return_layernorm_output = return_bias, return_layernorm_output
        self.rotary_pos_interleaved, self.fuse_qkv_params = rotary_pos_interleaved, fuse_qkv_params
        self.qkv_weight_interleaved = qkv_weight_interleaved and fuse_qkv_params
        q_width, kv_width = self.head_dim * num_attention_heads, self.head_dim * self.num_gqa_groups
        common = dict(
            bias=bias, init_method=init_method, params_dtype=params_dtype, device=device, fuse_wgrad_accumulation=fuse_wgrad_accumulation,
        )
        normed = dict(eps=layernorm_epsilon, normalization=normalization, zero_centered_gamma=zero_centered_gamma)
        if attention_type == "self":
            split = None if fuse_qkv_params else {"query_": q_width, "key_": kv_width, "value_": kv_width}
            width = q_width + 2 * kv_width
            if input_layernorm:
                self.layernorm_qkv = LayerNormLinear(
                    hidden_size, width, return_layernorm_output=return_layernorm_output, parameters_split=split, **normed, **common  # type: ignore[arg-type]
                )
            else:
                self.qkv = Linear(hidden_size, width, parameters_split=split, **common)  # type: ignore[arg-type]
        else:
            if input_layernorm:
                self.layernorm_query = LayerNormLinear(
                    hidden_size, q_width, return_layernorm_output=return_layernorm_output, parameters_split=("query_",), **normed, **common  # type: ignore[arg-type]
                )
            else:
                self.query_layer = Linear(hidden_size, q_width, **common)  # type: ignore[arg-type]
            split = None if fuse_qkv_params else {"key_": kv_width, "value_": kv_width}
            self.key_value = Linear(hidden_size, 2 * kv_width, parameters_split=split, **common)  # type: ignore[arg-type]
        self.q_norm = self.k_norm = None
        self.qk_norm_before_rope = qk_norm_before_rope
        if qk_norm_type is not None:
            kinds = {"RMSNorm": RMSNorm, "LayerNorm": LayerNorm}
            if qk_norm_type not in kinds:
                raise NotImplementedError(f"MultiheadAttention: qk_norm_type={qk_norm_type!r} is not built in libte yet ({sorted(kinds)} are)")
            self.q_norm = kinds[qk_norm_type](self.head_dim, eps=qk_norm_eps, params_dtype=params_dtype, device=device)
            self.k_norm = kinds[qk_norm_type](self.head_dim, eps=qk_norm_eps, params_dtype=params_dtype, device=device)
        self.core_attention = DotProductAttention(
            num_attention_heads, self.head_dim, num_gqa_groups, attention_dropout, qkv_format, attn_mask_type, window_size, bottom_right_diagonal,
            layer_number=layer_number, attention_type=attention_type, softmax_type=softmax_type, device=device,
        )
        self.proj = Linear(
            q_width, hidden_size, return_bias=return_bias, **{**common, "init_method": output_layer_init_method or init_method}  # type: ignore[arg-type]
        )

    def _split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The packed projection as q, k, v views [.., heads, d]. Interleaved: per group, its query heads, then key, then value."""
        g, d, per = self.num_gqa_groups, self.head_dim, self.num_attention_heads // self.num_gqa_groups
        lead = mixed.shape[:-1]
        if self.qkv_weight_interleaved:
            grouped = mixed.view(*lead, g, per + 2, d)
            q, k, v = grouped[..., :per, :], grouped[..., per, :], grouped[..., per + 1, :]
            return q.reshape(*lead, g * per, d), k, v
        q, k, v = torch.split(mixed, [g * per * d, g * d, g * d], dim=-1)
        return q.view(*lead, g * per, d), k.view(*lead, g, d), v.view(*lead, g, d)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        encoder_output: Optional[Tensor] = None,
        attn_mask_type: Optional[str] = None,
        window_size: Optional[tuple[int, int]] = None,
        bottom_right_diagonal: Optional[bool] = None,
        is_first_microbatch: Optional[bool] = None,
        checkpoint_core_attention: bool = False,
        inference_params: Any = None,
        rotary_pos_emb: Any = None,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Optional[Tensor] = None,
        alibi_slopes: Optional[Tensor] = None,
        cu_seqlens_q: Optional[Tensor] = None,
        cu_seqlens_kv: Optional[Tensor] = None,
        cu_seqlens_q_padded: Optional[Tensor] = None,
        cu_seqlens_kv_padded: Optional[Tensor] = None,
        max_seqlen_q: Optional[int] = None,
        max_seqlen_kv: Optional[int] = None,
        fast_zero_fill: bool = True,
        pad_between_seqs: Optional[bool] = None,
    ) -> Any:
        refuse_unbuilt(self, inference_params=(inference_params, None))
        normed = None
        if self.attention_type == "self":
            mixed = (self.layernorm_qkv if self.input_layernorm else self.qkv)(hidden_states, is_first_microbatch=is_first_microbatch)
            if self.input_layernorm and self.return_layernorm_output:
                mixed, normed = mixed
            q, k, v = self._split(mixed)
        else:
            if encoder_output is None:
                raise ValueError("MultiheadAttention: attention_type='cross' needs encoder_output")
            q = (self.layernorm_query if self.input_layernorm else self.query_layer)(hidden_states, is_first_microbatch=is_first_microbatch)
            if self.input_layernorm and self.return_layernorm_output:
                q, normed = q
            mixed = self.key_value(encoder_output, is_first_microbatch=is_first_microbatch)
            g, d = self.num_gqa_groups, self.head_dim
            q = q.view(*q.shape[:-1], self.num_attention_heads, d)
            if self.qkv_weight_interleaved:
                pairs = mixed.view(*mixed.shape[:-1], g, 2, d)
                k, v = pairs[..., 0, :], pairs[..., 1, :]
            else:
                k, v = (t.view(*t.shape[:-1], g, d) for t in torch.split(mixed, [g * d, g * d], dim=-1))
        if self.q_norm is not None and self.qk_norm_before_rope:
            q, k = self.q_norm(q), self.k_norm(k)  # type: ignore[misc]
        if rotary_pos_emb is not None:
            q_freqs, k_freqs = rotary_pos_emb if isinstance(rotary_pos_emb, tuple) else (rotary_pos_emb, rotary_pos_emb)
            rotate = dict(tensor_format=self.qkv_format, interleaved=self.rotary_pos_interleaved)
            q = apply_rotary_pos_emb(q, q_freqs, cu_seqlens=cu_seqlens_q if self.qkv_format == "thd" else None, **rotate)  # type: ignore[arg-type]
            k = apply_rotary_pos_emb(k, k_freqs, cu_seqlens=cu_seqlens_kv if self.qkv_format == "thd" else None, **rotate)  # type: ignore[arg-type]
        if self.q_norm is not None and not self.qk_norm_before_rope:
            q, k = self.q_norm(q), self.k_norm(k)  # type: ignore[misc]
        context = self.core_attention(
            q, k, v, attention_mask, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, cu_seqlens_q_padded=cu_seqlens_q_padded,
            cu_seqlens_kv_padded=cu_seqlens_kv_padded, max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_kv, attn_mask_type=attn_mask_type,
            window_size=window_size, bottom_right_diagonal=bottom_right_diagonal, core_attention_bias_type=core_attention_bias_type,
            core_attention_bias=core_attention_bias, alibi_slopes=alibi_slopes,
        )
        out = self.proj(context, is_first_microbatch=is_first_microbatch)
        result = out if isinstance(out, tuple) else (out,)
        if self.input_layernorm and self.return_layernorm_output:
            result += (normed,)
        return result if len(result) > 1 else result[0]
