# SPDX-License-Identifier: Apache-2.0
"""libte for JAX: ``ops`` (every operator), ``functional`` (the differentiable ones)."""
from __future__ import annotations

from libte import recipe

from . import functional, ops
from .functional import update_fp8_metas
from .ops import Output, Quantized

__all__ = ["Output", "Quantized", "functional", "ops", "recipe", "update_fp8_metas"]
