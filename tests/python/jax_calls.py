# SPDX-License-Identifier: Apache-2.0
"""One call of every operator by slots, for tests that go through all of them in JAX."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from libte.schema import CONSTANTS
from libte_jax.ops import _BACK

M, K, N = 130, 520, 48  # large enough for two threads
Call = tuple[dict[str, np.ndarray], dict[str, Any], dict[str, Any]]  # inputs by slot, asked slots with dtypes, scalars


def calls(dtype: str) -> dict[str, Call]:
    """One call of every operator; `dtype` of its wide tensors."""
    rng = np.random.default_rng(11)

    def draw(*shape: int, as_: str = dtype) -> np.ndarray:
        x = rng.standard_normal(shape).astype(np.float32)
        x.reshape(-1)[::7] *= np.float32(2.0**-130)  # subnormal in f32 and bf16
        return x.astype(_BACK[as_])

    def codes(*shape: int, fmt: str = "float8_e4m3fn") -> np.ndarray:
        return (rng.standard_normal(shape) * 0.02).astype(getattr(ml_dtypes, fmt))  # many are subnormal

    def positive(*shape: int) -> np.ndarray:
        return rng.uniform(0.5, 2, shape).astype(np.float32)

    x, dy, gamma, w, b = draw(M, K), draw(M, K), draw(K), draw(N, K), draw(N)
    one, two = np.full(1, 2.5, np.float32), np.array([3, 9])
    q, k, v = draw(2, 40, 4, 16), draw(2, 33, 2, 16), draw(2, 33, 2, 16)
    o, stats = draw(2, 40, 4, 16), positive(2, 4, 40) * 4
    logits, target, lse = draw(M, K), rng.integers(0, K, M), positive(M) * 8
    target[5] = -100
    freqs = rng.uniform(0, 6, (40, 8)).astype(np.float32)
    fp8 = {"x_quantized": "e4m3", "x_quantized_scale_inv": None, "x_quantized_amax": None, "weight_quantized": "e4m3",
           "weight_quantized_scale_inv": None, "weight_quantized_amax": None, "y": dtype}
    scales = {"x_quantized_scale": one, "weight_quantized_scale": one}
    mask = rng.integers(0, 256, -(-M * K // 8)).astype(np.uint8)
    bits = rng.integers(0, 2, (1, 1, 40, 33)).astype(bool)
    return {
        "rmsnorm_forward": ({"x": x, "gamma": gamma, "residual": dy}, {"y": None, "residual_out": None, "rstd": None}, {}),
        "rmsnorm_backward": ({"dy": dy, "x": x, "gamma": gamma, "rstd": positive(M), "add": dy}, {"dx": None, "dgamma": dtype}, {"flags": 1}),
        "layernorm_forward": ({"x": x, "gamma": gamma, "beta": dy[0]}, {"y": "e4m3", "y_scale_inv": None, "y_amax": None, "mu": None, "rstd": None}, {}),
        "layernorm_backward": ({"dy": dy, "x": x, "gamma": gamma, "mu": positive(M), "rstd": positive(M)},
                               {"dx": None, "dgamma": "f32", "dbeta": dtype}, {}),
        "activation_forward": ({"x": x}, {"y": None}, {"activation": CONSTANTS["NVTE_ACTIVATION_GELU"]}),
        "activation_backward": ({"dy": dy, "x": x}, {"dx": None, "dbias": "f32"}, {"activation": CONSTANTS["NVTE_ACTIVATION_SILU"]}),
        "gated_activation_forward": ({"x": x}, {"y": None}, {}),
        "gated_activation_backward": ({"dy": draw(M, K // 2), "x": x}, {"dx": None}, {"activation": CONSTANTS["NVTE_ACTIVATION_GELU_ERF"]}),
        "softmax_forward": ({"x": draw(2, 4, 40, 33), "mask": bits}, {"y": None}, {"scale": 0.7}),
        "softmax_backward": ({"dy": draw(4, 40, 33), "y": draw(4, 40, 33)}, {"dx": None}, {"scale": 0.7}),
        "rope_forward": ({"x": q, "freqs": freqs}, {"y": None}, {"format": 1}),
        "rope_backward": ({"dy": q, "freqs": freqs}, {"dx": None}, {"format": 1, "flags": 1}),
        "dropout_forward": ({"x": x, "rng_state": two}, {"y": None, "mask": None}, {"p": 0.3}),
        "dropout_backward": ({"dy": dy, "mask": mask}, {"dx": None}, {"p": 0.3}),
        "cross_entropy_forward": ({"logits": logits, "target": target}, {"loss": None, "lse": None}, {"reduction": 0, "label_smoothing": 0.1}),
        "cross_entropy_backward": ({"logits": logits, "target": target, "lse": lse, "dloss": np.ones(1, np.float32)}, {"dlogits": None}, {}),
        "attention_forward": ({"q": q, "k": k, "v": v, "rng_state": two, "mask": bits}, {"o": None, "stats": None},
                              {"scale": 0.25, "dropout": 0.1, "mask_kind": 1}),
        "attention_backward": ({"d_o": o, "q": q, "k": k, "v": v, "o": o, "stats": stats}, {"dq": None, "dk": None, "dv": None}, {"scale": 0.25}),
        "gemm": ({"a": x, "b": w, "bias": b}, {"d": dtype, "aux": dtype}, {"flags": 2 | 4}),
        "linear_forward": ({"x": x, "weight": w, "bias": b, **scales}, fp8, {}),
        "linear_backward": ({"dy": draw(M, N), "x": codes(M, K), "x_scale_inv": one, "weight": codes(N, K), "weight_scale_inv": one,
                             "dy_quantized_scale": one},
                            {"dy_quantized": "e5m2", "dy_quantized_scale_inv": None, "dy_quantized_amax": None, "dx": dtype, "dweight": dtype,
                             "dbias": dtype}, {}),
        "norm_linear_forward": ({"x": x, "gamma": gamma, "weight": w, **scales}, fp8 | {"rstd": None}, {"norm": 1}),
        "quantize": ({"x": x, "y_scale": one}, {"y": "e5m2", "y_columnwise": "e5m2", "y_scale_inv": None, "y_columnwise_scale_inv": None,
                                                "y_amax": None, "dbias": "f32"}, {}),
        "dequantize": ({"x": codes(M, K), "x_scale_inv": one}, {"y": dtype}, {}),
        "compute_amax": ({"x": x}, {"amax": None}, {}),
        "compute_scale": ({"amax": positive(9)}, {"scale": None, "scale_inv": None}, {"dtype": "e4m3"}),
        "amax_and_scale_update": ({"history": positive(4, 3), "scale": positive(3)}, {"new_history": None, "new_scale": None}, {"dtype": "e5m2"}),
        "transpose": ({"x": x}, {"y": None}, {}),
    }
