# SPDX-License-Identifier: Apache-2.0
"""Every numeric tolerance of the Python tests (tools/lint.py allows none elsewhere); the twin of tests/cpp/harness/tolerance.h.

Floats: at most twice the largest error of a naive evaluation (the same formula in f32, one rounding to the output's dtype) against
double, plus one ulp of the output's dtype at the expected value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# Explicit mantissa bits and the smallest exponent of a normal number.
FORMATS = {"float64": (52, -1022), "float32": (23, -126), "float16": (10, -14), "bfloat16": (7, -126)}
# Directional finite differences of f32 operators: the step, and how far they may be off, relative to the size of the derivative.
DIFFERENCE_STEP = 2.0**-7
DIFFERENCE_RELATIVE = 2.0**-7
# Least signal-to-quantisation-noise ratio in dB on normally distributed numbers that fit the format.
LEAST_SQNR = {"e4m3": 29.0, "e4m3fnuz": 29.0, "e5m2": 23.0, "e5m2fnuz": 23.0}


def ulp(at: np.ndarray, dtype: Any) -> np.ndarray:
    """The spacing of a dtype's numbers at `at`."""
    mantissa, least = FORMATS[np.dtype(dtype).name]
    exponent = np.floor(np.log2(np.maximum(np.abs(np.asarray(at, np.float64)), 2.0**least)))
    return 2.0 ** (np.maximum(exponent, least) - mantissa)


def bound(want: np.ndarray, naive: np.ndarray, dtype: Any) -> np.ndarray:
    """The allowed absolute error of each element."""
    rounded = np.asarray(naive, np.float32).astype(dtype).astype(np.float64)
    error = np.abs(rounded - want)
    error = error[np.isfinite(error)]
    return 2 * (error.max() if error.size else 0.0) + ulp(np.where(np.isfinite(want), want, 0), dtype)


def assert_close(actual: np.ndarray, formula: Callable[..., Any], *inputs: np.ndarray) -> None:
    """`actual` against `formula` evaluated in double, allowed what the naive f32 evaluation needs. Inputs are widened exactly."""
    double = [a.astype(np.float64) if _is_float(a) else a for a in inputs]
    single = [a.astype(np.float32) if _is_float(a) else a for a in inputs]
    want = np.asarray(formula(*double), np.float64)
    naive = np.asarray(formula(*single))
    assert actual.shape == want.shape, f"shape {actual.shape}, want {want.shape}"
    got = actual.astype(np.float64)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0, np.abs(got - want) / bound(want, naive, actual.dtype))
    worst = np.unravel_index(np.argmax(np.where(np.isnan(off), np.inf, off)), off.shape) if off.size else None
    assert off.size == 0 or off[worst] <= 1, f"at {worst}: got {got[worst]}, want {want[worst]}, {off[worst]:.2f} times the bound"


def _is_float(a: np.ndarray) -> bool:
    return a.dtype.name in FORMATS


def sqnr(want: np.ndarray, got: np.ndarray) -> float:
    """Signal-to-quantisation-noise ratio in dB."""
    want, got = want.astype(np.float64), got.astype(np.float64)
    return float(10 * np.log10((want**2).sum() / ((want - got) ** 2).sum()))


# A whole module is a chain of roundings: the same factor over the naive chain, plus this many ulps of the largest expected value.
CHAIN_ULPS = 4
# Relative Frobenius distance that FP8 (E4M3 forward) may put between a module and its wide twin; one quantised product has about 0.04.
FP8_DISTANCE = 0.12
# X: what two FP8 runs that differ only in quantisation of a cached weight may differ by (bugs.md Q13).
FP8_MAX_DIFFERENCE = 0.07


def assert_like(actual: np.ndarray, want: np.ndarray, naive: np.ndarray, dtype: str, what: str = "", scale: float = 0.0) -> None:
    """`actual` (in `dtype`) against `want` (double), allowed twice what a naive chain in the same dtype is off, plus CHAIN_ULPS ulps at
    the largest expected value (or at `scale`, the size of what cancels in it)."""
    assert actual.shape == want.shape, f"{what}: shape {actual.shape}, want {want.shape}"
    if actual.size == 0:
        return
    mantissa, least = FORMATS[dtype]
    top = max(float(np.abs(want).max()), scale, 2.0**least)
    allowed = 2 * float(np.abs(naive.astype(np.float64) - want).max()) + CHAIN_ULPS * 2.0 ** (np.floor(np.log2(top)) - mantissa)
    off = float(np.abs(actual.astype(np.float64) - want).max())
    assert off <= allowed, f"{what}: off by {off:.3g}, allowed {allowed:.3g}"


def distance(got: np.ndarray, want: np.ndarray) -> float:
    """Relative Frobenius distance."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-300))
