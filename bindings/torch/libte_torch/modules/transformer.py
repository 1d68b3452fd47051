# SPDX-License-Identifier: Apache-2.0
"""te.TransformerLayer."""
from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor, nn

from .attention import MultiheadAttention, dropout
from .base import Device, autocast_dtype, check_inert, refuse_unbuilt
from .layernorm_mlp import LayerNormMLP
from .norm import LayerNorm, RMSNorm


class TransformerLayer(nn.Module):
    """Self-attention (and cross-attention in a decoder), then an MLP, with residuals.

    hidden_states [s, b, hidden], [b, s, hidden] or [t, hidden] by attn_input_format. layer_type encoder (self-attention only) or decoder
    (plus cross-attention to encoder_output). Pre-norm by default; apply_residual_connection_post_layernorm takes the residual after the
    norm; output_layernorm moves the norm behind (post-norm); parallel_attention_mlp adds both branches to one residual.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        num_attention_heads: int,
        num_gqa_groups: Optional[int] = None,
        layernorm_epsilon: float = 1e-5,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        init_method: Optional[Callable[[Tensor], Any]] = None,
        output_layer_init_method: Optional[Callable[[Tensor], Any]] = None,
        layer_number: Optional[int] = None,
        kv_channels: Optional[int] = None,
        self_attn_mask_type: str = "causal",
        window_size: Optional[tuple[int, int]] = None,
        bottom_right_diagonal: Optional[bool] = None,
        enc_dec_attn_mask_type: str = "no_mask",
        enc_dec_bottom_right_diagonal: Optional[bool] = None,
        enc_dec_window_size: Optional[tuple[int, int]] = None,
        tp_group: Any = None,
        tp_size: int = 1,
        params_dtype: Optional[torch.dtype] = None,
        get_rng_state_tracker: Optional[Callable[..., Any]] = None,
        fuse_wgrad_accumulation: bool = False,
        seq_length: Optional[int] = None,
        micro_batch_size: Optional[int] = None,
        sequence_parallel: bool = False,
        apply_residual_connection_post_layernorm: bool = False,
        output_layernorm: bool = False,
        parallel_attention_mlp: bool = False,
        layer_type: str = "encoder",
        drop_path_rate: float = 0.0,
        set_parallel_mode: bool = False,
        fuse_qkv_params: bool = False,
        rotary_pos_interleaved: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        bias: bool = True,
        activation: str = "gelu",
        activation_params: Optional[dict[str, float]] = None,
        normalization: str = "LayerNorm",
        device: Device = None,
        attn_input_format: str = "sbhd",
        name: Optional[str] = None,
        qk_norm_type: Optional[str] = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False,
        softmax_type: str = "vanilla",
        **unbuilt: Any,
    ) -> None:
        super().__init__()
        check_inert(self, dict(
            tp_group=tp_group, tp_size=tp_size, get_rng_state_tracker=get_rng_state_tracker, sequence_parallel=sequence_parallel,
            set_parallel_mode=set_parallel_mode, name=name, **unbuilt,
        ))
        if layer_type not in ("encoder", "decoder"):
            raise ValueError(f"TransformerLayer: layer_type must be 'encoder' or 'decoder', got {layer_type!r}")
        if parallel_attention_mlp and (layer_type == "decoder" or apply_residual_connection_post_layernorm or output_layernorm):
            raise ValueError("TransformerLayer: parallel_attention_mlp goes with a pre-norm encoder only")
        if not 0.0 <= drop_path_rate < 1.0:
            raise ValueError(f"TransformerLayer: drop_path_rate must be in [0, 1), got {drop_path_rate}")
        self.layer_type, self.hidden_dropout, self.drop_path_rate = layer_type, hidden_dropout, drop_path_rate
        self.self_attn_mask_type, self.enc_dec_attn_mask_type = self_attn_mask_type, enc_dec_attn_mask_type
        self.window_size, self.enc_dec_window_size = window_size, enc_dec_window_size
        self.bottom_right_diagonal, self.enc_dec_bottom_right_diagonal = bottom_right_diagonal, enc_dec_bottom_right_diagonal
        self.apply_residual_connection_post_layernorm = apply_residual_connection_post_layernorm
        self.output_layernorm, self.parallel_attention_mlp = output_layernorm, parallel_attention_mlp
        self.attn_input_format = attn_input_format
        shared = dict(
            init_method=init_method, output_layer_init_method=output_layer_init_method, params_dtype=params_dtype, device=device, bias=bias,
            fuse_wgrad_accumulation=fuse_wgrad_accumulation, normalization=normalization, zero_centered_gamma=zero_centered_gamma,
        )
        attention = dict(
            kv_channels=kv_channels, attention_dropout=attention_dropout, layernorm_epsilon=layernorm_epsilon, layer_number=layer_number,
            num_gqa_groups=num_gqa_groups, return_layernorm_output=apply_residual_connection_post_layernorm, fuse_qkv_params=fuse_qkv_params,
            qkv_weight_interleaved=qkv_weight_interleaved, rotary_pos_interleaved=rotary_pos_interleaved, qkv_format=attn_input_format,
            qk_norm_type=qk_norm_type, qk_norm_eps=qk_norm_eps, qk_norm_before_rope=qk_norm_before_rope, softmax_type=softmax_type, **shared,
        )
        self.self_attention = MultiheadAttention(
            hidden_size, num_attention_heads, input_layernorm=not output_layernorm, attn_mask_type=self_attn_mask_type, window_size=window_size,
            bottom_right_diagonal=bottom_right_diagonal, **attention,  # type: ignore[arg-type]
        )
        if layer_type == "decoder":
            self.inter_attention = MultiheadAttention(
                hidden_size, num_attention_heads, input_layernorm=True, attention_type="cross", attn_mask_type=enc_dec_attn_mask_type,
                window_size=enc_dec_window_size, bottom_right_diagonal=enc_dec_bottom_right_diagonal, **attention,  # type: ignore[arg-type]
            )
        self.layernorm_mlp = LayerNormMLP(
            hidden_size, ffn_hidden_size, eps=layernorm_epsilon, activation=activation, activation_params=activation_params,
            return_layernorm_output=apply_residual_connection_post_layernorm, **shared,  # type: ignore[arg-type]
        )
        if output_layernorm:
            kind = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}[normalization]
            self.layernorm = kind(hidden_size, eps=layernorm_epsilon, params_dtype=params_dtype, zero_centered_gamma=zero_centered_gamma, device=device)

    def _add(self, branch: Tensor, residual: Tensor) -> Tensor:
        branch = dropout(branch, self.hidden_dropout, self.training)
        if self.drop_path_rate > 0.0 and self.training:
            # one decision a sequence: the batch dimension is 1 in sbhd, 0 otherwise
            keep = 1.0 - self.drop_path_rate
            shape = [1] * branch.dim()
            axis = 1 if self.attn_input_format == "sbhd" else 0
            shape[axis] = branch.shape[axis]
            branch = branch * (torch.rand(shape, device=branch.device) < keep).to(branch.dtype) / keep
        return residual + branch

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Optional[Tensor] = None,
        self_attn_mask_type: Optional[str] = None,
        window_size: Optional[tuple[int, int]] = None,
        bottom_right_diagonal: Optional[bool] = None,
        encoder_output: Optional[Tensor] = None,
        enc_dec_attn_mask: Any = None,
        enc_dec_attn_mask_type: Optional[str] = None,
        enc_dec_window_size: Optional[tuple[int, int]] = None,
        enc_dec_bottom_right_diagonal: Optional[bool] = None,
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
    ) -> Tensor:
        refuse_unbuilt(self, inference_params=(inference_params, None))
        dtype = autocast_dtype(hidden_states)
        if dtype is not None:
            hidden_states = hidden_states.to(dtype)

        def part(result: Any) -> tuple[Tensor, Optional[Tensor]]:
            return result if isinstance(result, tuple) else (result, None)

        attended, normed = part(self.self_attention(
            hidden_states, attention_mask, attn_mask_type=self_attn_mask_type or self.self_attn_mask_type,
            window_size=window_size if window_size is not None else self.window_size,
            bottom_right_diagonal=bottom_right_diagonal if bottom_right_diagonal is not None else self.bottom_right_diagonal,
            is_first_microbatch=is_first_microbatch, rotary_pos_emb=rotary_pos_emb, core_attention_bias_type=core_attention_bias_type,
            core_attention_bias=core_attention_bias, alibi_slopes=alibi_slopes, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv,
            cu_seqlens_q_padded=cu_seqlens_q_padded, cu_seqlens_kv_padded=cu_seqlens_kv_padded, max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_kv,
        ))
        if self.parallel_attention_mlp:
            mlp, _ = part(self.layernorm_mlp(hidden_states, is_first_microbatch=is_first_microbatch))
            return self._add(attended + mlp, hidden_states)
        x = self._add(attended, normed if normed is not None else hidden_states)
        if self.layer_type == "decoder":
            crossed, normed = part(self.inter_attention(
                x, enc_dec_attn_mask, encoder_output=encoder_output, attn_mask_type=enc_dec_attn_mask_type or self.enc_dec_attn_mask_type,
                window_size=enc_dec_window_size if enc_dec_window_size is not None else self.enc_dec_window_size,
                bottom_right_diagonal=enc_dec_bottom_right_diagonal if enc_dec_bottom_right_diagonal is not None else self.enc_dec_bottom_right_diagonal,
                is_first_microbatch=is_first_microbatch,
            ))
            x = self._add(crossed, normed if normed is not None else x)
        mlp, normed = part(self.layernorm_mlp(x, is_first_microbatch=is_first_microbatch))
        x = self._add(mlp, normed if normed is not None else x)
        return self.layernorm(x) if self.output_layernorm else x
