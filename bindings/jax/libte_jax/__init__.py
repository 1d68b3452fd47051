# SPDX-License-Identifier: Apache-2.0
"""libte for JAX: ``ops`` holds every operator."""
from __future__ import annotations

from libte import recipe

from . import ops
from .ops import Output, Quantized

__all__ = ["Output", "Quantized", "ops", "recipe"]
