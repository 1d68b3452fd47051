# SPDX-License-Identifier: Apache-2.0
"""The modules of libte_jax.flax and libte_jax.nnx: their fields, parameters, parts and mathematics, once for both.

A flavour adds how things are kept: `_values(width)` the parameters of `_params(width)` by name, `_part(name, width)` the module that
`_parts(width)` declares, `_meta(fp8)` the state of delayed scaling, `_key()` a key for dropout. `width`: the input's last dimension (of
DenseGeneral: the contracted ones).
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Optional, Union

import jax
import jax.numpy as jnp
from jax import Array

from . import functional as F
from .quantization import current_recipe

COLLECTION = "fp8_metas"
NAMES = ["DenseGeneral", "DotProductAttention", "LayerNorm", "LayerNormDenseGeneral", "LayerNormMLP", "MultiHeadAttention", "RMSNorm",
         "TransformerLayer"]
Initializer = Callable[..., Array]
Params = dict[str, tuple[Initializer, tuple[int, ...]]]
Parts = dict[str, tuple[str, Any, dict[str, Any]]]  # name -> (module, its width, its fields)
_kernel_init = jax.nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
_zeros, _ones = jax.nn.initializers.zeros, jax.nn.initializers.ones


def _tuple(name: str, x: Union[int, Sequence[int]]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(i) for i in (x if isinstance(x, (tuple, list)) else (x,)))
    except TypeError:
        raise TypeError(f"{name} must be an integer or a tuple of them, got {x!r}") from None


def sizes(name: str, x: Union[int, Sequence[int]]) -> tuple[int, ...]:
    out = _tuple(name, x)
    if min(out, default=1) < 1:
        raise ValueError(f"{name} must be >= 1, got {x!r}")
    return out


def array(module: Any, argument: str, x: Any, dtype: Any, least: int = 1) -> Array:
    """An input as the module takes it."""
    out = F.array(type(module).__name__, argument, x)
    if out.ndim < least:
        raise ValueError(f"{type(module).__name__}: {argument} must have {least} or more dimensions, got {list(out.shape)}")
    return out if dtype is None else out.astype(dtype)


def delayed() -> Optional[F.Fp8]:
    """The current recipe as constants if it keeps state, else None."""
    recipe = current_recipe()
    fp8 = None if recipe is None else F.Fp8.of(recipe)
    return fp8 if fp8 and not fp8.current else None


class Flavour:
    """What a flavour adds."""

    _values: Callable[..., dict[str, Array]]
    _part: Callable[..., Any]
    _meta: Callable[..., F.Fp8Meta]
    _key: Callable[[], Array]

    def _params(self, width: Any) -> Params:
        return {}

    def _parts(self, width: Any) -> Parts:
        return {}

    def _dropped(self, x: Array, rate: float, deterministic: bool) -> Array:
        return x if deterministic or not rate else F.dropout(x, self._key(), rate)


@dataclass
class Norm(Flavour):
    epsilon: float = 1e-6
    zero_centered_gamma: bool = False
    scale_init: Optional[Initializer] = None
    bias_init: Initializer = _zeros
    dtype: Any = None
    kind = "layernorm"

    def _params(self, width: int) -> Params:
        scale = self.scale_init or (_zeros if self.zero_centered_gamma else _ones)
        return {"scale": (scale, (width,))} | ({"ln_bias": (self.bias_init, (width,))} if self.kind == "layernorm" else {})

    def _forward(self, x: Array) -> Array:
        x = array(self, "x", x, self.dtype)
        p = {n: v.astype(x.dtype) for n, v in self._values(x.shape[-1]).items()}
        if self.kind == "rmsnorm":
            return F.rmsnorm(x, p["scale"], epsilon=self.epsilon, zero_centered=self.zero_centered_gamma)
        return F.layernorm(x, p["scale"], p["ln_bias"], epsilon=self.epsilon, zero_centered=self.zero_centered_gamma)


def norm_kind(kind: str) -> str:
    if kind not in ("layernorm", "rmsnorm"):
        raise ValueError(f"layernorm_type must be 'layernorm' or 'rmsnorm', got {kind!r}")
    return "LayerNorm" if kind == "layernorm" else "RMSNorm"


@dataclass
class Dense(Flavour):
    features: Union[int, Sequence[int]]
    axis: Union[int, Sequence[int]] = -1
    use_bias: bool = False
    kernel_init: Initializer = _kernel_init
    bias_init: Initializer = _zeros
    dtype: Any = None
    pairs: bool = False  # of features (2, n) n is what devices may cut, not 2

    def _params(self, width: Any) -> Params:
        features = sizes("features", self.features)
        k, n = prod(width), prod(features)

        def init(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:  # fan-in of the matrix, not of the tensor
            return self.kernel_init(key, (k, n), dtype).reshape(shape)

        return {"kernel": (init, (*width, *features))} | ({"bias": (self.bias_init, features)} if self.use_bias else {})

    def _forward(self, x: Array) -> Array:
        x = array(self, "x", x, self.dtype)
        features, given = sizes("features", self.features), _tuple("axis", self.axis)
        axes = tuple(sorted({a % x.ndim for a in given if -x.ndim <= a < x.ndim}))
        if len(axes) != len(given):
            raise ValueError(f"axis must be distinct dimensions of x {list(x.shape)}, got {self.axis!r}")
        rest = tuple(i for i in range(x.ndim) if i not in axes)
        contracted = tuple(x.shape[a] for a in axes)
        k, n = prod(contracted), prod(features)
        p = {name: v.astype(x.dtype) for name, v in self._values(contracted).items()}
        matrix = (2, n // 2) if self.pairs else (n,)
        bias = p["bias"].reshape(matrix) if self.use_bias else None
        weight = jnp.moveaxis(p["kernel"].reshape(k, *matrix), 0, -1)
        lead = tuple(x.shape[i] for i in rest)
        fp8 = delayed()
        meta = None if fp8 is None else self._meta(fp8)
        y = F.linear(x.transpose(*rest, *axes).reshape(*lead, k), weight, bias, current_recipe(), meta)
        return y.reshape(*lead, *features)


@dataclass
class NormDense(Flavour):
    features: Union[int, Sequence[int]]
    layernorm_type: str = "layernorm"
    epsilon: float = 1e-6
    zero_centered_gamma: bool = False
    use_bias: bool = False
    return_layernorm_output: bool = False
    kernel_init: Initializer = _kernel_init
    bias_init: Initializer = _zeros
    dtype: Any = None

    def _parts(self, width: int) -> Parts:
        norm = {"epsilon": self.epsilon, "zero_centered_gamma": self.zero_centered_gamma, "dtype": self.dtype}
        dense = {"features": self.features, "use_bias": self.use_bias, "kernel_init": self.kernel_init, "bias_init": self.bias_init,
                 "dtype": self.dtype}
        return {"norm": (norm_kind(self.layernorm_type), width, norm), "dense": ("DenseGeneral", (width,), dense)}

    def _forward(self, x: Array) -> tuple[Array, Optional[Array]]:
        x = array(self, "x", x, None)
        h = self._part("norm", x.shape[-1])(x)
        return self._part("dense", x.shape[-1])(h), h if self.return_layernorm_output else None


@dataclass
class NormMLP(Flavour):
    intermediate_dim: int = 2048
    activations: Sequence[str] = ("gelu",)
    layernorm_type: str = "layernorm"
    epsilon: float = 1e-6
    zero_centered_gamma: bool = False
    use_bias: bool = False
    intermediate_dropout_rate: float = 0.0
    return_layernorm_output: bool = False
    kernel_init: Initializer = _kernel_init
    bias_init: Initializer = _zeros
    dtype: Any = None

    def _gated(self) -> bool:
        names = self.activations if isinstance(self.activations, str) else tuple(self.activations)
        if isinstance(names, str) or len(names) not in (1, 2) or names[1:] not in ((), ("linear",)):
            raise ValueError(f"activations must be (name,) or (name, 'linear'), got {names!r}")
        return len(names) == 2

    def _parts(self, width: int) -> Parts:
        sizes("intermediate_dim", self.intermediate_dim)
        dense = {"use_bias": self.use_bias, "kernel_init": self.kernel_init, "bias_init": self.bias_init, "dtype": self.dtype}
        norm = {"epsilon": self.epsilon, "zero_centered_gamma": self.zero_centered_gamma, "dtype": self.dtype}
        return {"norm": (norm_kind(self.layernorm_type), width, norm),
                "wi": ("DenseGeneral", (width,), {"features": (2, self.intermediate_dim) if self._gated() else self.intermediate_dim,
                                                     "pairs": self._gated(), **dense}),
                "wo": ("DenseGeneral", (self.intermediate_dim,), {"features": width, **dense})}

    def _forward(self, x: Array, deterministic: bool = False) -> tuple[Array, Optional[Array]]:
        x = array(self, "x", x, None)
        gated, name, width = self._gated(), self.activations[0], x.shape[-1]
        h = self._part("norm", width)(x)
        a = self._part("wi", width)(h)
        a = F.gated_activation(a, name, pairs=True) if gated else a if name == "linear" else F.activation(a, name)
        y = self._part("wo", width)(self._dropped(a, self.intermediate_dropout_rate, deterministic))
        return y, h if self.return_layernorm_output else None


_MASKS = {"no_mask": "none", "padding": "none", "causal": "causal", "padding_causal": "causal", "causal_bottom_right": "causal_bottom_right"}


@dataclass
class Attention(Flavour):
    head_dim: int
    num_attention_heads: int
    num_gqa_groups: Optional[int] = None
    attention_dropout: float = 0.0
    attn_mask_type: str = "causal"
    scale_factor: Optional[float] = None
    transpose_batch_sequence: bool = False
    window_size: Optional[tuple[int, int]] = None
    dtype: Any = None

    def _forward(self, query: Array, key: Array, value: Array, mask: Optional[Array] = None, bias: Optional[Array] = None, *,
                 deterministic: bool = False) -> Array:
        if self.attn_mask_type not in _MASKS:
            raise ValueError(f"attn_mask_type must be one of {', '.join(_MASKS)}, got {self.attn_mask_type!r}")
        q, k, v = (array(self, n, t, self.dtype, 4) for n, t in (("query", query), ("key", key), ("value", value)))
        for n, t, heads in (("query", q, self.num_attention_heads), ("key", k, self.num_gqa_groups), ("value", v, self.num_gqa_groups)):
            if t.shape[-2:] != (t.shape[-2] if heads is None else heads, self.head_dim):
                raise ValueError(f"{n} must end in [heads, head_dim] = [{'*' if heads is None else heads}, {self.head_dim}], got {list(t.shape)}")
        drop = self.attention_dropout and not deterministic
        return F.attention(q, k, v, bias=bias, mask=mask, key=self._key() if drop else None,
                           dropout=self.attention_dropout if drop else 0.0, scale=self.scale_factor,
                           format="sbhd" if self.transpose_batch_sequence else "bshd", mask_kind=_MASKS[self.attn_mask_type],
                           window=(-1, -1) if self.window_size is None else self.window_size)


@dataclass
class MultiHead(Flavour):
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
    bias_init: Initializer = _zeros
    dtype: Any = None

    def _parts(self, width: int) -> Parts:
        (h,), (d,) = sizes("num_attention_heads", self.num_attention_heads), sizes("head_dim", self.head_dim)
        (groups,) = sizes("num_gqa_groups", h if self.num_gqa_groups is None else self.num_gqa_groups)
        if h % groups:
            raise ValueError(f"num_attention_heads must be a multiple of num_gqa_groups, got {h} and {groups}")
        dense = {"use_bias": self.use_bias, "kernel_init": self.kernel_init, "bias_init": self.bias_init, "dtype": self.dtype}
        norm = {"epsilon": self.layernorm_epsilon, "zero_centered_gamma": self.zero_centered_gamma, "dtype": self.dtype}
        attention = {"head_dim": d, "num_attention_heads": h, "num_gqa_groups": groups, "attention_dropout": self.attention_dropout,
                     "attn_mask_type": self.attn_mask_type, "dtype": self.dtype}
        return ({"norm": (norm_kind(self.layernorm_type), width, norm)} if self.input_layernorm else {}) | {
            "qkv": ("DenseGeneral", (width,), {"features": (groups, h // groups + 2, d), **dense}),
            "query": ("DenseGeneral", (width,), {"features": (h, d), **dense}),
            "kv": ("DenseGeneral", (width,), {"features": (groups, 2, d), **dense}),
            "attention": ("DotProductAttention", None, attention),
            "out": ("DenseGeneral", (h, d), {"features": width, "axis": (-2, -1), **dense})}

    def _forward(self, inputs_q: Array, inputs_kv: Array, mask: Optional[Array] = None, bias: Optional[Array] = None, *,
                 deterministic: bool = False) -> tuple[Array, Optional[Array]]:
        same = inputs_q is inputs_kv
        x = array(self, "inputs_q", inputs_q, None, 3)
        inputs_kv = x if same else array(self, "inputs_kv", inputs_kv, None, 3)
        h, d, width = self.num_attention_heads, self.head_dim, x.shape[-1]
        if self.input_layernorm:
            x = self._part("norm", width)(x)
        if same:
            kv = self._part("qkv", width)(x)  # [b, s, groups, the group's queries, then its key and value, d]
            q = kv[..., :-2, :].reshape(*x.shape[:-1], h, d)
        else:
            q, kv = self._part("query", width)(x), self._part("kv", width)(inputs_kv)
        k, v = kv[..., -2, :], kv[..., -1, :]
        if self.enable_rotary_pos_emb:
            angles = jnp.outer(jnp.arange(max(q.shape[1], k.shape[1])), self.rotary_base ** -(jnp.arange(0, d, 2) / d))
            freqs = jnp.concatenate([angles, angles], -1).astype(jnp.float32)
            q, k = F.rope(q, freqs, format="bshd"), F.rope(k, freqs, format="bshd")
        y = self._part("out", width)(self._part("attention", width)(q, k, v, mask, bias, deterministic=deterministic))
        return y, x if self.input_layernorm and self.return_layernorm_output else None


@dataclass
class Layer(Flavour):
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

    def _parts(self, width: int) -> Parts:
        sizes("num_attention_heads", self.num_attention_heads)
        if self.hidden_size % self.num_attention_heads or width != self.hidden_size:
            raise ValueError(f"hidden_size must be the inputs' last dimension and a multiple of num_attention_heads; got {self.hidden_size}, "
                             f"inputs [..., {width}], {self.num_attention_heads} heads")
        if self.layer_type not in ("encoder", "decoder"):
            raise ValueError(f"layer_type must be 'encoder', or 'decoder' with `encoded`, got {self.layer_type!r}")
        common = {"layernorm_type": self.layernorm_type, "zero_centered_gamma": self.zero_centered_gamma, "use_bias": self.use_bias, "dtype": self.dtype}
        attention = {"head_dim": width // self.num_attention_heads, "num_attention_heads": self.num_attention_heads,
                     "num_gqa_groups": self.num_gqa_groups, "attention_dropout": self.attention_dropout,
                     "layernorm_epsilon": self.layernorm_epsilon, **common}
        mlp = {"intermediate_dim": self.mlp_hidden_size, "activations": self.mlp_activations, "epsilon": self.layernorm_epsilon,
               "intermediate_dropout_rate": self.intermediate_dropout, **common}
        cross = {"encoder_decoder_attention": ("MultiHeadAttention", width, {"attn_mask_type": "padding", **attention})}
        own = {"attn_mask_type": self.self_attn_mask_type, "enable_rotary_pos_emb": self.enable_rotary_pos_emb, **attention}
        return {"attention": ("MultiHeadAttention", width, own), **(cross if self.layer_type == "decoder" else {}), "mlp": ("LayerNormMLP", width, mlp)}

    def _forward(self, inputs: Array, encoded: Optional[Array] = None, attention_mask: Optional[Array] = None,
                 encoder_decoder_mask: Optional[Array] = None, deterministic: bool = False) -> Array:
        if (self.layer_type == "decoder") != (encoded is not None):
            raise ValueError(f"layer_type must be 'encoder', or 'decoder' with `encoded`, got {self.layer_type!r} and "
                             f"{'no encoded' if encoded is None else 'encoded'}")
        x = array(self, "inputs", inputs, None, 3)
        encoded = None if encoded is None else array(self, "encoded", encoded, None, 3)
        width = x.shape[-1]

        def attend(name: str, x: Array, source: Array, mask: Optional[Array]) -> Array:
            y = self._part(name, width)(x, source, mask, deterministic=deterministic)[0]
            return x + self._dropped(y, self.hidden_dropout, deterministic)

        x = attend("attention", x, x, attention_mask)
        if encoded is not None:
            x = attend("encoder_decoder_attention", x, encoded, encoder_decoder_mask)
        return x + self._dropped(self._part("mlp", width)(x, deterministic)[0], self.hidden_dropout, deterministic)
