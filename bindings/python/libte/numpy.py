# SPDX-License-Identifier: Apache-2.0
"""Every operator on arrays: ``libte.numpy.rmsnorm_forward(x, gamma)``.

Inputs are numpy arrays (ml_dtypes for bf16 and FP8), `Quantized`, or any CPU object with ``__dlpack__``. An input whose layout the
operator does not take is copied to contiguous memory first; an output never is. Outputs are made unless given: pass an array to
write into it, ``True`` for an optional one, or a dtype or `Quantized` to choose its type. Constants may be given by name:
``activation_forward(x, activation="silu")``, ``gemm(a, b, flags="trans_b")``.
"""

from __future__ import annotations

from typing import Any

from ._arrays import NUMPY as DTYPES
from ._arrays import Array, DTypeLike, Output, Quantized, asarray, call, dtype_name, from_dlpack
from ._generated import ops
from ._generated.ops import *  # noqa: F403

__all__ = ["DTYPES", "Array", "DTypeLike", "Output", "Quantized", "asarray", "from_dlpack", "ops", "quantize", *ops.__all__]


def quantize(x: Array, fmt: DTypeLike = "e4m3", scale: Any = None, *, columnwise: bool = False, epsilon: float = 0.0,
             power_2_scale: bool = False) -> Quantized:
    """FP8 codes of x: ``data = saturate(x * scale)``, ``scale_inv = 1 / scale``, ``amax = max |x|``.

    fmt is e4m3, e5m2, e4m3fnuz or e5m2fnuz. Without `scale`, current scaling: the largest magnitude maps to the format's maximum.
    """
    fmt = dtype_name(fmt)
    x = asarray(x)
    if scale is None:
        amax = call("compute_amax", (x, None), (None,), (0,), None)
        scale = call("compute_scale", (amax,), (None, None), (fmt, epsilon, int(power_2_scale)), None)
    q = Quantized(fmt, scale=scale, columnwise=columnwise)
    call("quantize", (x, None), (q, None), (), None)
    return q
