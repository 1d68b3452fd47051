# SPDX-License-Identifier: Apache-2.0
"""Flax NNX modules: those of libte_jax.flax, with the width of the input first and `rngs` last, as nnx has it:

    layer = nnx.TransformerLayer(512, hidden_size=512, rngs=nnx.Rngs(0))

Made inside `te.autocast` with delayed scaling, each linear also holds an `Fp8Metas` variable. Take its gradient with that of the parameters,
`nnx.grad(loss, argnums=nnx.DiffState(0, (nnx.Param, Fp8Metas)))`, and write `te.update_fp8_metas(gradients.filter(Fp8Metas))` back."""
from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from . import _modules as shared
from . import functional as F
from ._modules import NAMES

__all__ = [*NAMES, "Fp8Metas"]


class Fp8Metas(nnx.Variable):
    """State of delayed scaling of one linear, an `Fp8Meta`."""


def _read(v: Any) -> Any:
    return v.get_value() if hasattr(v, "get_value") else v.value


class _Nnx(nnx.Module):
    """Parameters and parts are made at once. `in_features`: the input's last dimension (DenseGeneral: the contracted ones)."""

    def __init__(self, in_features: Any = None, *args: Any, rngs: nnx.Rngs, **fields: Any) -> None:
        declared = next(c for c in type(self).__mro__ if c.__module__ == shared.__name__)
        values = {f.name: f for f in dataclasses.fields(declared)}  # type: ignore[arg-type]
        if len(args) > len(values):
            raise TypeError(f"{type(self).__name__} takes in_features, then {', '.join(values)}")
        if not isinstance(rngs, nnx.Rngs):
            raise TypeError(f"{type(self).__name__}: rngs must be an nnx.Rngs, got {type(rngs).__name__}")
        first = dict(zip(values, args))
        cross = fields.pop("cross_attention", None) if isinstance(self, shared.MultiHead) else None
        for n in fields:
            if n in first or n not in values:
                raise TypeError(f"{type(self).__name__}: unexpected or repeated argument {n!r}; it takes in_features, {', '.join(values)}, rngs")
        declared.__init__(self, **first, **fields)
        width: Any = None
        if not isinstance(self, shared.Attention):
            width = shared.sizes("in_features", in_features)
            if not isinstance(self, shared.Dense):
                if len(width) != 1:
                    raise TypeError(f"{type(self).__name__}: in_features must be an integer, got {in_features!r}")
                (width,) = width
        self.rngs = rngs
        for n, (init, shape) in self._params(width).items():
            setattr(self, n, nnx.Param(init(rngs.params(), shape, jnp.float32)))
        skip = () if not isinstance(self, shared.MultiHead) else ("qkv",) if cross else ("query", "kv")
        for n, (kind, of, given) in self._parts(width).items():
            if n not in skip:
                more = {"cross_attention": True} if n == "encoder_decoder_attention" else {}
                setattr(self, n, globals()[kind](of, rngs=rngs, **given, **more))
        fp8 = shared.delayed()
        if isinstance(self, shared.Dense) and fp8 is not None:
            self.kernel_meta = Fp8Metas(F.Fp8Meta.new(fp8))

    def _values(self, width: Any) -> dict[str, Array]:
        out = {}
        for n, (_, shape) in self._params(width).items():
            out[n] = _read(getattr(self, n))
            if out[n].shape != shape:
                raise ValueError(f"{type(self).__name__}: made for inputs that give {n} {list(out[n].shape)}, but this one gives {list(shape)}")
        return out

    def _part(self, name: str, width: Any) -> Any:
        if not hasattr(self, name):
            raise ValueError(f"{type(self).__name__} has no {name}: self- or cross-attention (cross_attention) is decided when it is made")
        return getattr(self, name)

    def _meta(self, fp8: F.Fp8) -> F.Fp8Meta:
        if not hasattr(self, "kernel_meta"):
            raise ValueError("delayed scaling keeps state: make the module inside te.autocast too")
        return _read(self.kernel_meta)

    def _key(self) -> Array:
        return self.rngs.dropout()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)


class LayerNorm(_Nnx, shared.Norm):
    """LayerNorm over the last dimension: (x [*, H]) -> [*, H]."""


class RMSNorm(_Nnx, shared.Norm):
    """RMSNorm over the last dimension: (x [*, H]) -> [*, H]."""

    kind = "rmsnorm"


class DenseGeneral(_Nnx, shared.Dense):
    """A linear layer that contracts `axis` of its input to `features`; in_features: the contracted dimensions."""


class LayerNormDenseGeneral(_Nnx, shared.NormDense):
    """A norm of the last dimension, then DenseGeneral. Returns (y, norm(x) or None)."""


class LayerNormMLP(_Nnx, shared.NormMLP):
    """norm, linear to intermediate_dim, activation, linear back: (x, deterministic=False). Returns (y, norm(x) or None)."""


class DotProductAttention(_Nnx, shared.Attention):
    """Attention: (query, key, value [b, s, h, d], mask=None, bias=None, *, deterministic=False); in_features is not used: give None."""


class MultiHeadAttention(_Nnx, shared.MultiHead):
    """Self-attention (or, made with cross_attention=True, cross-attention) with projections: (inputs_q, inputs_kv, mask=None, bias=None, *,
    deterministic=False). Returns (y, norm(x) or None)."""


class TransformerLayer(_Nnx, shared.Layer):
    """Attention and MLP, each with a norm before and a residual around: (inputs, encoded=None, attention_mask=None,
    encoder_decoder_mask=None, deterministic=False)."""
