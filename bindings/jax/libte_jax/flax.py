# SPDX-License-Identifier: Apache-2.0
"""Flax (linen) modules. Kernels are stored [in..., out...] as flax does. Inside `te.autocast` a module keeps the state of delayed scaling in the
collection "fp8_metas"; take its gradient with that of the parameters and pass it to `te.update_fp8_metas`."""
from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax import serialization
from jax import Array

from . import _modules as shared
from . import functional as F
from ._modules import COLLECTION, NAMES

__all__ = list(NAMES)

# flax's msgpack keeps the numbers of a state; what recipe they are of is in the target that they are read into.
serialization.register_serialization_state(
    F.Fp8Meta, lambda m: {n: serialization.to_state_dict(getattr(m, n)) for n in m.FIELDS},
    lambda m, d: F.Fp8Meta(*(serialization.from_state_dict(getattr(m, n), d[n], n) for n in m.FIELDS), m.fp8))


class _Linen(nn.Module):
    """Parameters are made at the first call, parts by their names in it."""

    def _values(self, width: Any) -> dict[str, Array]:
        return {n: self.param(n, init, shape, jnp.float32) for n, (init, shape) in self._params(width).items()}

    def _part(self, name: str, width: Any) -> nn.Module:
        kind, _, fields = self._parts(width)[name]
        return globals()[kind](**fields, name=name)

    def _meta(self, fp8: F.Fp8) -> F.Fp8Meta:
        if not (self.has_variable(COLLECTION, "kernel_meta") or self.is_mutable_collection(COLLECTION)):
            raise ValueError(f"delayed scaling keeps state in {COLLECTION!r}: init {self.name or type(self).__name__} inside te.autocast and give "
                             f"apply that collection too")
        return self.variable(COLLECTION, "kernel_meta", F.Fp8Meta.new, fp8).value

    def _key(self) -> Array:
        return self.make_rng("dropout")

    @nn.compact
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)


class LayerNorm(_Linen, shared.Norm):
    """LayerNorm over the last dimension: (x [*, H]) -> [*, H]."""


class RMSNorm(_Linen, shared.Norm):
    """RMSNorm over the last dimension: (x [*, H]) -> [*, H]."""

    kind = "rmsnorm"


class DenseGeneral(_Linen, shared.Dense):
    """A linear layer that contracts `axis` of its input to `features`."""


class LayerNormDenseGeneral(_Linen, shared.NormDense):
    """A norm of the last dimension, then DenseGeneral. Returns (y, norm(x) or None)."""


class LayerNormMLP(_Linen, shared.NormMLP):
    """norm, linear to intermediate_dim, activation, linear back: (x, deterministic=False). Two activations, one "linear": gated. Returns
    (y, norm(x) or None)."""


class DotProductAttention(_Linen, shared.Attention):
    """Attention: (query, key, value [b, s, h, d], or [s, b, h, d] with transpose_batch_sequence, mask=None, bias=None, *, deterministic=False).
    mask: True = masked out."""


class MultiHeadAttention(_Linen, shared.MultiHead):
    """Attention with projections: (inputs_q, inputs_kv, mask=None, bias=None, *, deterministic=False), self-attention where both are the same
    object (under jit too: give it one argument, and use it twice), else cross-attention with parameters of its own; input_layernorm
    normalises the queries' input first. Returns (y, norm(x) or None)."""


class TransformerLayer(_Linen, shared.Layer):
    """Attention and MLP, each with a norm before and a residual around: (inputs, encoded=None, attention_mask=None,
    encoder_decoder_mask=None, deterministic=False); layer_type "decoder" with `encoded` adds cross-attention."""
