# SPDX-License-Identifier: Apache-2.0
"""libte for JAX: ``ops`` (every operator), ``functional`` (the differentiable ones), ``flax`` and ``nnx`` (modules), ``autocast``
and recipes."""
from __future__ import annotations

from typing import Any

from libte import recipe

from . import functional, ops
from .functional import update_fp8_metas
from .ops import Output, Quantized
from .quantization import autocast, fp8_autocast

__all__ = ["Output", "Quantized", "autocast", "flax", "fp8_autocast", "functional", "nnx", "ops", "recipe", "update_fp8_metas"]


def __getattr__(name: str) -> Any:
    if name in ("flax", "nnx"):  # only where it is used: flax is optional
        import importlib

        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'libte_jax' has no attribute {name!r}")
