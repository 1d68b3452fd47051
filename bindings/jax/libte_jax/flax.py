# SPDX-License-Identifier: Apache-2.0
"""Flax (linen) modules. Kernels are stored [in..., out...] as flax does. Inside `te.autocast` a module keeps the state of delayed scaling in the
collection "fp8_metas"; take its gradient with that of the parameters and pass it to `te.update_fp8_metas`."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Optional, Union

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from . import functional as F
from .quantization import current_recipe

__all__ = ["DenseGeneral", "DotProductAttention", "LayerNorm", "LayerNormDenseGeneral", "LayerNormMLP", "MultiHeadAttention", "RMSNorm",
           "TransformerLayer"]

COLLECTION = "fp8_metas"
Initializer = Callable[..., Array]
_kernel_init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")


def _tuple(x: Union[int, Sequence[int]]) -> tuple[int, ...]:
    return (x,) if isinstance(x, int) else tuple(x)


def _linear(module: nn.Module, x: Array, kernel: Array, bias: Optional[Array], name: str) -> Array:
    """x [*, K] times kernel [K, N], by the current recipe."""
    recipe = current_recipe()
    meta = None
    if recipe is not None:
        fp8 = F.Fp8.of(recipe)
        if not fp8.current:
            meta = module.variable(COLLECTION, name, F.Fp8Meta.new, fp8).value
            if meta.fp8 != fp8:
                raise ValueError(f"{COLLECTION}: the state was made for {meta.fp8}, but the recipe is {fp8}")
    return F.linear(x, kernel.T, bias, recipe, meta)


def _norm(kind: str, x: Array, gamma: Optional[Array], beta: Optional[Array], epsilon: float, zero_centered: bool) -> Array:
    if kind == "rmsnorm":
        return F.rmsnorm(x, gamma, epsilon=epsilon, zero_centered=zero_centered)
    return F.layernorm(x, gamma, beta, epsilon=epsilon, zero_centered=zero_centered)


class _Norm(nn.Module):
    epsilon: float = 1e-6
    zero_centered_gamma: bool = False
    scale_init: Optional[Initializer] = None
    bias_init: Initializer = nn.initializers.zeros
    dtype: Any = None
    kind = "layernorm"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = jnp.asarray(x, self.dtype)
        init = self.scale_init or (nn.initializers.zeros if self.zero_centered_gamma else nn.initializers.ones)
        gamma = self.param("scale", init, (x.shape[-1],), jnp.float32).astype(x.dtype)
        beta = None
        if self.kind == "layernorm":
            beta = self.param("ln_bias", self.bias_init, (x.shape[-1],), jnp.float32).astype(x.dtype)
        return _norm(self.kind, x, gamma, beta, self.epsilon, self.zero_centered_gamma)


class LayerNorm(_Norm):
    """LayerNorm over the last dimension."""


class RMSNorm(_Norm):
    """RMSNorm over the last dimension."""

    kind = "rmsnorm"


class DenseGeneral(nn.Module):
    """A linear layer that contracts `axis` of its input to `features`."""

    features: Union[int, Sequence[int]]
    axis: Union[int, Sequence[int]] = -1
    use_bias: bool = False
    kernel_init: Initializer = _kernel_init
    bias_init: Initializer = nn.initializers.zeros
    dtype: Any = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = jnp.asarray(x, self.dtype)
        features = _tuple(self.features)
        axes = tuple(sorted(a % x.ndim for a in _tuple(self.axis)))
        rest = tuple(i for i in range(x.ndim) if i not in axes)
        contracted = tuple(x.shape[a] for a in axes)
        k, n = prod(contracted), prod(features)

        def init(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:  # fan-in of the matrix, not of the tensor
            return self.kernel_init(key, (k, n), dtype).reshape(shape)

        kernel = self.param("kernel", init, (*contracted, *features), jnp.float32).astype(x.dtype).reshape(k, n)
        bias = self.param("bias", self.bias_init, features, jnp.float32).astype(x.dtype).reshape(n) if self.use_bias else None
        lead = tuple(x.shape[i] for i in rest)
        y = _linear(self, x.transpose(*rest, *axes).reshape(*lead, k), kernel, bias, "kernel_meta")
        return y.reshape(*lead, *features)


class LayerNormDenseGeneral(nn.Module):
    """A norm of the last dimension, then DenseGeneral. Returns (y, norm(x) or None)."""

    features: Union[int, Sequence[int]]
    layernorm_type: str = "layernorm"
    epsilon: float = 1e-6
    zero_centered_gamma: bool = False
    use_bias: bool = False
    return_layernorm_output: bool = False
    kernel_init: Initializer = _kernel_init
    bias_init: Initializer = nn.initializers.zeros
    dtype: Any = None

    @nn.compact
    def __call__(self, x: Array) -> tuple[Array, Optional[Array]]:
        h = _make_norm(self.layernorm_type)(self.epsilon, self.zero_centered_gamma, dtype=self.dtype, name="norm")(x)
        y = DenseGeneral(self.features, -1, self.use_bias, self.kernel_init, self.bias_init, self.dtype, name="dense")(h)
        return y, h if self.return_layernorm_output else None


def _make_norm(kind: str) -> Any:
    if kind not in ("layernorm", "rmsnorm"):
        raise ValueError(f"layernorm_type must be 'layernorm' or 'rmsnorm', got {kind!r}")
    return LayerNorm if kind == "layernorm" else RMSNorm


class LayerNormMLP(nn.Module):
    """norm, linear to intermediate_dim, activation, linear back. Two activations, one "linear": gated. Returns (y, norm(x) or None)."""

    intermediate_dim: int = 2048
    activations: Sequence[str] = ("gelu",)
    layernorm_type: str = "layernorm"
    epsilon: float = 1e-6
    zero_centered_gamma: bool = False
    use_bias: bool = False
    intermediate_dropout_rate: float = 0.0
    return_layernorm_output: bool = False
    kernel_init: Initializer = _kernel_init
    bias_init: Initializer = nn.initializers.zeros
    dtype: Any = None

    @nn.compact
    def __call__(self, x: Array, deterministic: bool = False) -> tuple[Array, Optional[Array]]:
        names = tuple(self.activations)
        gated = len(names) == 2 and names[1] == "linear"
        if not gated and len(names) != 1:
            raise ValueError(f"activations must be (name,) or (name, 'linear'), got {names}")
        h = _make_norm(self.layernorm_type)(self.epsilon, self.zero_centered_gamma, dtype=self.dtype, name="norm")(x)
        wide = self.intermediate_dim * (2 if gated else 1)
        a = DenseGeneral(wide, -1, self.use_bias, self.kernel_init, self.bias_init, self.dtype, name="wi")(h)
        a = F.gated_activation(a, names[0]) if gated else a if names[0] == "linear" else F.activation(a, names[0])
        if self.intermediate_dropout_rate and not deterministic:
            a = F.dropout(a, self.make_rng("dropout"), self.intermediate_dropout_rate)
        y = DenseGeneral(x.shape[-1], -1, self.use_bias, self.kernel_init, self.bias_init, self.dtype, name="wo")(a)
        return y, h if self.return_layernorm_output else None


_MASKS = {"no_mask": "none", "padding": "none", "causal": "causal", "padding_causal": "causal", "causal_bottom_right": "causal_bottom_right"}


class DotProductAttention(nn.Module):
    """Attention over q, k, v [b, s, h, d] (or [s, b, h, d] with transpose_batch_sequence). mask: True = masked out."""

    head_dim: int
    num_attention_heads: int
    num_gqa_groups: Optional[int] = None
    attention_dropout: float = 0.0
    attn_mask_type: str = "causal"
    scale_factor: Optional[float] = None
    transpose_batch_sequence: bool = False
    window_size: Optional[tuple[int, int]] = None
    dtype: Any = None

    @nn.compact
    def __call__(self, query: Array, key: Array, value: Array, mask: Optional[Array] = None, bias: Optional[Array] = None, *,
                 deterministic: bool = False) -> Array:
        if self.attn_mask_type not in _MASKS:
            raise ValueError(f"attn_mask_type must be one of {', '.join(_MASKS)}, got {self.attn_mask_type!r}")
        want = (self.num_attention_heads, self.head_dim)
        if tuple(query.shape[-2:]) != want:
            raise ValueError(f"query must end in [heads, head_dim] = {list(want)}, got {list(query.shape)}")
        q, k, v = (jnp.asarray(t, self.dtype) for t in (query, key, value))
        drop = self.attention_dropout and not deterministic
        return F.attention(q, k, v, bias=bias, mask=mask, key=self.make_rng("dropout") if drop else None,
                           dropout=self.attention_dropout if drop else 0.0, scale=self.scale_factor,
                           format="sbhd" if self.transpose_batch_sequence else "bshd", mask_kind=_MASKS[self.attn_mask_type],
                           window=self.window_size or (-1, -1))


class MultiHeadAttention(nn.Module):
    """Self- or cross-attention with projections; input_layernorm normalises the queries' input first. Returns (y, norm(x) or None)."""

    head_dim: int
    num_attention_heads: int
    num_gqa_groups: Optional[int] = None
    attention_dropout: float = 0.0
    input_layernorm: bool = True
    layernorm_type: str = "layernorm"
    layernorm_epsilon: float = 1e-6
    zero_centered_gamma: bool = False
    attn_mask_type: str = "causal"
    use_bias: bool = False
    enable_rotary_pos_emb: bool = False
    rotary_base: float = 10000.0
    return_layernorm_output: bool = False
    kernel_init: Initializer = _kernel_init
    bias_init: Initializer = nn.initializers.zeros
    dtype: Any = None

    @nn.compact
    def __call__(self, inputs_q: Array, inputs_kv: Array, mask: Optional[Array] = None, bias: Optional[Array] = None, *,
                 deterministic: bool = False) -> tuple[Array, Optional[Array]]:
        h, d = self.num_attention_heads, self.head_dim
        groups = self.num_gqa_groups or h

        def dense(features: Any, name: str, axis: Any = -1) -> DenseGeneral:
            return DenseGeneral(features, axis, self.use_bias, self.kernel_init, self.bias_init, self.dtype, name=name)

        x, same = inputs_q, inputs_q is inputs_kv
        if self.input_layernorm:
            x = _make_norm(self.layernorm_type)(self.layernorm_epsilon, self.zero_centered_gamma, dtype=self.dtype, name="norm")(x)
        source = x if same else inputs_kv
        if same:
            qkv = dense((h + 2 * groups, d), "qkv")(x)
            q, k, v = qkv[..., :h, :], qkv[..., h:h + groups, :], qkv[..., h + groups:, :]
        else:
            q, kv = dense((h, d), "query")(x), dense((2 * groups, d), "kv")(source)
            k, v = kv[..., :groups, :], kv[..., groups:, :]
        if self.enable_rotary_pos_emb:
            angles = jnp.outer(jnp.arange(max(q.shape[1], k.shape[1])), self.rotary_base ** -(jnp.arange(0, d, 2) / d))
            freqs = jnp.concatenate([angles, angles], -1).astype(jnp.float32)
            q, k = F.rope(q, freqs, format="bshd"), F.rope(k, freqs, format="bshd")
        y = DotProductAttention(d, h, groups, self.attention_dropout, self.attn_mask_type, dtype=self.dtype, name="attention")(
            q, k, v, mask, bias, deterministic=deterministic)
        y = dense(inputs_q.shape[-1], "out", (-2, -1))(y)
        return y, x if self.input_layernorm and self.return_layernorm_output else None


class TransformerLayer(nn.Module):
    """Attention and MLP, each with a norm before and a residual around; layer_type "decoder" with `encoded` adds cross-attention."""

    hidden_size: int = 512
    mlp_hidden_size: int = 2048
    num_attention_heads: int = 8
    num_gqa_groups: Optional[int] = None
    layernorm_type: str = "layernorm"
    layernorm_epsilon: float = 1e-6
    zero_centered_gamma: bool = False
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    intermediate_dropout: float = 0.1
    mlp_activations: Sequence[str] = ("gelu",)
    use_bias: bool = False
    layer_type: str = "encoder"
    self_attn_mask_type: str = "causal"
    enable_rotary_pos_emb: bool = False
    dtype: Any = None

    @nn.compact
    def __call__(self, inputs: Array, encoded: Optional[Array] = None, attention_mask: Optional[Array] = None,
                 encoder_decoder_mask: Optional[Array] = None, deterministic: bool = False) -> Array:
        if self.hidden_size % self.num_attention_heads or inputs.shape[-1] != self.hidden_size:
            raise ValueError(f"hidden_size must be the inputs' last dimension and a multiple of num_attention_heads; got {self.hidden_size}, "
                             f"inputs {list(inputs.shape)}, {self.num_attention_heads} heads")
        if self.layer_type not in ("encoder", "decoder") or (self.layer_type == "decoder") != (encoded is not None):
            raise ValueError(f"layer_type must be 'encoder', or 'decoder' with `encoded`, got {self.layer_type!r}")

        def attend(name: str, mask_type: str, x: Array, source: Array, mask: Optional[Array]) -> Array:
            layer = MultiHeadAttention(self.hidden_size // self.num_attention_heads, self.num_attention_heads, self.num_gqa_groups,
                                       self.attention_dropout, True, self.layernorm_type, self.layernorm_epsilon, self.zero_centered_gamma,
                                       mask_type, self.use_bias, self.enable_rotary_pos_emb and source is x, dtype=self.dtype, name=name)
            return x + self._drop(layer(x, source, mask, deterministic=deterministic)[0], deterministic)

        x = attend("attention", self.self_attn_mask_type, inputs, inputs, attention_mask)
        if encoded is not None:
            x = attend("encoder_decoder_attention", "padding", x, encoded, encoder_decoder_mask)
        mlp = LayerNormMLP(self.mlp_hidden_size, self.mlp_activations, self.layernorm_type, self.layernorm_epsilon, self.zero_centered_gamma,
                           self.use_bias, self.intermediate_dropout, dtype=self.dtype, name="mlp")
        return x + self._drop(mlp(x, deterministic)[0], deterministic)

    def _drop(self, x: Array, deterministic: bool) -> Array:
        if deterministic or not self.hidden_dropout:
            return x
        return F.dropout(x, self.make_rng("dropout"), self.hidden_dropout)
