# SPDX-License-Identifier: Apache-2.0
"""The modules, one file each."""
from .attention import DotProductAttention, MultiheadAttention
from .base import TransformerEngineBaseModule
from .layernorm_linear import LayerNormLinear
from .layernorm_mlp import LayerNormMLP
from .linear import Linear
from .norm import LayerNorm, RMSNorm
from .transformer import TransformerLayer

__all__ = [
    "DotProductAttention", "LayerNorm", "LayerNormLinear", "LayerNormMLP", "Linear", "MultiheadAttention", "RMSNorm",
    "TransformerEngineBaseModule", "TransformerLayer",
]
