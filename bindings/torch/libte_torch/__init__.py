# SPDX-License-Identifier: Apache-2.0
"""libte for torch: ``import libte_torch as te``.

Modules and functions keep Transformer Engine's names. Importing touches no device. What upstream has here and libte does not have
yet raises NotImplementedError that names it.
"""
from __future__ import annotations

from typing import Any

from libte import __version__
from libte import recipe
from libte.recipe import DelayedScaling, Float8CurrentScaling, Format, Recipe

from . import functional, ops
from .checkpoint import checkpoint
from .cross_entropy import cross_entropy, parallel_cross_entropy
from .modules import (
    DotProductAttention,
    LayerNorm,
    LayerNormLinear,
    LayerNormMLP,
    Linear,
    MultiheadAttention,
    RMSNorm,
    TransformerEngineBaseModule,
    TransformerLayer,
)
from .quantization import FP8GlobalStateManager, autocast, fp8_autocast, fp8_model_init, get_default_recipe, quantized_model_init
from .rope import RotaryPositionEmbedding, apply_fused_qkv_rotary_pos_emb, apply_rotary_pos_emb
from .support import (
    is_bf16_available,
    is_fp8_available,
    is_fp8_block_scaling_available,
    is_mxfp8_available,
    is_nvfp4_available,
)
from .tensor import QuantizedTensor, quantize

__all__ = [
    "DelayedScaling", "DotProductAttention", "FP8GlobalStateManager", "Float8CurrentScaling", "Format", "LayerNorm", "LayerNormLinear",
    "LayerNormMLP", "Linear", "MultiheadAttention", "QuantizedTensor", "RMSNorm", "Recipe", "RotaryPositionEmbedding",
    "TransformerEngineBaseModule", "TransformerLayer", "apply_fused_qkv_rotary_pos_emb", "apply_rotary_pos_emb", "autocast", "checkpoint",
    "cross_entropy", "fp8_autocast", "fp8_model_init", "functional", "get_default_recipe", "is_bf16_available", "is_fp8_available",
    "is_fp8_block_scaling_available", "is_mxfp8_available", "is_nvfp4_available", "ops", "parallel_cross_entropy", "quantize",
    "quantized_model_init", "recipe",
]

_UNBUILT = frozenset(
    """DType GroupedLinear Fp8Padding Fp8Unpadding initialize_ub destroy_ub UserBufferQuantizationMode FusedMLAQUpProjRopeQuant InferenceParams
    moe_permute moe_permute_with_probs moe_permute_and_pad_with_probs moe_unpermute moe_sort_chunks_by_index
    moe_sort_chunks_by_index_with_probs QuantizerRole QuantizerRequest DelayedScalingRequest get_cudnn_version
    get_device_compute_capability deinterleave_glu_tensor interleave_glu_tensor make_graphed_callables CudaRNGStatesTracker
    get_cpu_offload_context mark_not_offload ManualOffloadSynchronizer onnx_export CusolverMpCtx newton_schulz QuantizedTensorStorage
    Quantizer prepare_for_saving restore_from_saved restore_from_func_ctx Float8Quantizer Float8CurrentScalingQuantizer MXFP8Quantizer
    Float8BlockQuantizer NVFP4Quantizer Float8TensorStorage MXFP8TensorStorage Float8BlockwiseQTensorStorage NVFP4TensorStorage Float8Tensor
    MXFP8Tensor Float8BlockwiseQTensor NVFP4Tensor HybridQuantizer HybridQuantizedTensorStorage IdentityQuantizer IdentityTensorStorage
    HybridQuantizedTensor IdentityTensor optimizers""".split()
)


def __getattr__(name: str) -> Any:
    if name in _UNBUILT:
        raise NotImplementedError(f"libte_torch.{name} is not built in libte yet")
    raise AttributeError(f"module 'libte_torch' has no attribute {name!r}")
