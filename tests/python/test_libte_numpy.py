# SPDX-License-Identifier: Apache-2.0
"""libte.numpy against plain numpy formulas: every operator, its outputs, layouts and FP8 forms."""

from __future__ import annotations

import math
import threading

import libte
import libte.numpy as tn
import ml_dtypes
import numpy as np
import pytest
import tolerance
from libte.numpy import DTYPES, Quantized
from tolerance import assert_close

FP8 = {"e4m3": 448.0, "e5m2": 57344.0, "e4m3fnuz": 240.0, "e5m2fnuz": 57344.0}
FLOATS = ["f32", "f16", "bf16"]


def draw(rng: np.random.Generator, *shape: int, dtype: str = "f32", scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(DTYPES[dtype])


def codes(x: np.ndarray, fmt: str, scale: float = 1.0) -> np.ndarray:
    """saturate(x * scale) as codes: infinity saturates, NaN stays."""
    v = x.astype(np.float32) * np.float32(scale)
    return np.clip(v, -FP8[fmt], FP8[fmt]).astype(DTYPES[fmt])


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint8 if x.itemsize == 1 else np.uint16 if x.itemsize == 2 else np.uint32)


# ---- quantise
@pytest.mark.parametrize("fmt", FP8)
@pytest.mark.parametrize("dtype", FLOATS)
def test_quantize_codes_are_exact(rng, fmt, dtype):
    x = draw(rng, 5, 7, 33, dtype=dtype, scale=30)
    q = tn.quantize(x, fmt, scale=1.5)
    assert q.data.dtype == DTYPES[fmt] and q.data.shape == x.shape
    assert np.array_equal(bits(q.data), bits(codes(x, fmt, 1.5)))
    assert q.scale_inv == np.float32(1) / np.float32(1.5) and q.amax == np.abs(x.astype(np.float32)).max()
    assert np.array_equal(q.dequantize(), q.data.astype(np.float32) * q.scale_inv)


def test_q11_saturation_and_nan():
    x = np.array([[448, 449, 464, 465, 1e4, np.inf, -np.inf, np.nan]], np.float32)
    for fmt, top in FP8.items():
        got = tn.quantize(x, fmt, scale=1.0).data.astype(np.float32)[0]
        want = np.clip(x[0], -top, top).astype(DTYPES[fmt]).astype(np.float32)
        assert np.array_equal(got[:7], want[:7]) and np.isnan(got[7])


def test_q19_fnuz_and_ocp_bytes_differ():
    b = np.array([[0x80, 0x7F, 0x78, 0x38]], np.uint8)
    for fmt in FP8:
        got = tn.dequantize(Quantized.of(b.view(DTYPES[fmt]), 1.0))
        assert np.array_equal(got, b.view(DTYPES[fmt]).astype(np.float32), equal_nan=True)
    assert np.isnan(tn.dequantize(Quantized.of(b.view(DTYPES["e4m3fnuz"]), 1.0))[0, 0])
    assert tn.dequantize(Quantized.of(b.view(DTYPES["e4m3"]), 1.0))[0, 0] == 0


@pytest.mark.parametrize("fmt", FP8)
def test_current_scaling(rng, fmt):
    x = draw(rng, 16, 40, scale=0.01)
    q = tn.quantize(x, fmt)
    amax = np.abs(x).max()
    assert q.scale == np.float32(FP8[fmt]) / amax and q.scale_inv == np.float32(1) / q.scale and q.amax == amax
    assert tolerance.sqnr(x, q.dequantize()) > tolerance.LEAST_SQNR[fmt]


def test_q01_q02_tiny_and_odd_amax():
    big = np.finfo(np.float32).max
    for amax in (1e-45, np.uint32(0x03E00000).view(np.float32), 1e-30):
        scale = tn.compute_scale(np.array([amax], np.float32), dtype="e4m3", scale_inv=True)
        assert np.isfinite(scale.scale).all() and scale.scale <= big and np.isfinite(scale.scale_inv).all() and scale.scale_inv > 0
    odd = tn.compute_scale(np.array([0, np.inf, np.nan], np.float32), dtype="e5m2")
    assert (odd == 1).all()
    q = tn.quantize(np.zeros((3, 5), np.float32))
    assert (bits(q.data) == 0).all() and q.scale == 1 and q.scale_inv == 1
    assert tn.compute_amax(np.array([[-5.0, np.nan, -1.0]], np.float32)) == 5  # Q07


def test_scale_options():
    amax = np.array([3.0, 1e-3, 700.0], np.float32)
    plain = tn.compute_scale(amax, dtype="e4m3")
    pow2 = tn.compute_scale(amax, dtype="e4m3", flags="pow2")
    assert np.array_equal(pow2, np.exp2(np.floor(np.log2(plain))))
    assert np.array_equal(tn.compute_scale(amax, dtype="e4m3", epsilon=1.0), np.float32(448) / np.maximum(amax, 1))


@pytest.mark.parametrize("rowwise", [True, False])
def test_both_orientations(rng, rowwise):
    x = draw(rng, 9, 20)
    q = Quantized("e5m2", scale=4.0, rowwise=rowwise, columnwise=True)
    tn.ops.quantize(x, y=q)
    want = codes(x, "e5m2", 4.0)
    assert q.shape == (9, 20) and np.array_equal(bits(q.columnwise), bits(want.T.copy()))
    assert (q.data is not None) == rowwise
    assert np.array_equal(q.dequantize(), want.astype(np.float32) * q.scale_inv)


def test_quantize_dbias_noop_and_accumulate(rng):
    x = draw(rng, 50, 8)
    q = Quantized("e4m3", scale=2.0)
    out = tn.ops.quantize(x, y=q, dbias="f32")
    assert_close(out.dbias, lambda x: x.sum(0), x)
    untouched = Quantized("e4m3", scale=2.0, amax=np.full(1, 9, np.float32))
    untouched.data, untouched.scale_inv = np.full((50, 8), 3, DTYPES["e4m3"]), np.full(1, 5, np.float32)
    tn.ops.quantize(x, noop=np.ones(1, np.float32), y=untouched)
    assert (untouched.data.astype(np.float32) == 3).all() and untouched.scale_inv == 5 and untouched.amax == 9
    running = Quantized("e4m3", scale=2.0, amax=np.full(1, 100, np.float32), accumulate=True)
    tn.ops.quantize(x, y=running)
    assert running.amax == 100
    running.accumulate = False
    tn.ops.quantize(x, y=running)
    assert running.amax == np.abs(x).max()
    half = tn.ops.quantize(x, y="bf16")
    assert np.array_equal(bits(half), bits(x.astype(ml_dtypes.bfloat16)))


def test_delayed_scaling_update():
    history = [np.array([[4, 0], [1, 2], [3, 8]], np.float32), np.array([[0.5]], np.float32)]
    scale = [np.array([7, 9], np.float32), np.array([1], np.float32)]
    out = tn.amax_and_scale_update(history, scale, dtype="e4m3")
    assert np.array_equal(out.new_history[0], [[0, 0], [3, 2], [4, 8]]) and np.array_equal(out.new_scale[0], np.float32([448 / 4, 9]))
    # Q06: one step of history
    assert np.array_equal(out.new_history[1], [[0]]) and out.new_scale[1] == 896
    tn.amax_and_scale_update(history, scale, dtype="e4m3", new_history=history, new_scale=scale, algorithm="most_recent", margin=1)
    assert np.array_equal(history[0], [[0, 0], [3, 2], [4, 8]]) and scale[0][0] == 448 / 4 / 2


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8", "i64", "e4m3"])
def test_transpose(rng, dtype):
    x = rng.integers(0, 100, (3, 5, 17)).astype(DTYPES[dtype])
    assert np.array_equal(tn.transpose(x), x.reshape(15, 17).T)


# ---- norms
def rms(x, gamma=None, eps=1e-5, one=0.0):
    rstd = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(eps))
    return x * rstd * (1 if gamma is None else gamma + x.dtype.type(one))


def layer(x, gamma=None, beta=None, eps=1e-5):
    c = x - x.mean(-1, keepdims=True)
    y = c / np.sqrt((c * c).mean(-1, keepdims=True) + x.dtype.type(eps))
    return (y if gamma is None else y * gamma) + (0 if beta is None else beta)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [1, 7, 64, 769])
def test_norms(rng, dtype, width):
    x, g, b = draw(rng, 2, 9, width, dtype=dtype), draw(rng, width, dtype=dtype), draw(rng, width, dtype=dtype)
    assert_close(tn.rmsnorm_forward(x, g), rms, x, g)
    assert_close(tn.rmsnorm_forward(x), rms, x)
    assert_close(tn.rmsnorm_forward(x, g, flags="zero_centered"), lambda x, g: rms(x, g, one=1), x, g)
    out = tn.layernorm_forward(x, g, b, mu=True, rstd=True)
    assert out.mu.shape == out.rstd.shape == (2, 9) and out.mu.dtype == np.float32
    assert_close(out.y, layer, x, g, b)
    assert_close(out.mu, lambda x: x.mean(-1), x)


def test_norm_residual_and_output_types(rng):
    x, r, g = draw(rng, 6, 40, dtype="bf16"), draw(rng, 6, 40, dtype="bf16"), draw(rng, 40)
    out = tn.rmsnorm_forward(x, g, r, y="f32", residual_out=True)
    s = (x.astype(np.float32) + r.astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert np.array_equal(bits(out.residual_out), bits(s)) and out.y.dtype == np.float32
    assert_close(out.y, rms, s, g)
    plain = tn.rmsnorm_forward(s, g, y="f32")
    assert np.array_equal(plain, out.y)
    q = tn.rmsnorm_forward(s, g, y=Quantized("e4m3", scale=16.0))
    assert np.array_equal(bits(q.data), bits(codes(plain, "e4m3", 16.0))) and q.amax == np.abs(plain).max()


# ---- activations
ERF = np.vectorize(math.erf, otypes=[np.float64])
ACTIVATIONS = {
    "gelu": lambda x: x * (0.5 + 0.5 * np.tanh(x * (0.79788456 + 0.03567741 * x * x))),
    "gelu_erf": lambda x: x * (0.5 + 0.5 * ERF(x / math.sqrt(2))).astype(x.dtype),
    "qgelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "srelu": lambda x: np.maximum(x, 0) ** 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_activations(rng, name, dtype):
    f = ACTIVATIONS[name]
    x = draw(rng, 4, 65, dtype=dtype, scale=3)
    assert_close(tn.activation_forward(x, activation=name), f, x)
    h = draw(rng, 4, 2 * 33, dtype=dtype)
    assert_close(tn.gated_activation_forward(h, activation=name), lambda h: f(h[:, :33]) * h[:, 33:], h)


def test_v03_gate_comes_first():
    silu = 1 / (1 + math.exp(-1))
    assert_close(tn.gated_activation_forward(np.array([[1, 2]], np.float32)), lambda x: x[:, :1] * silu * x[:, 1:], np.array([[1, 2]], np.float32))


def test_v02_clamped_swiglu():
    values = [-9.0, 0.0, 9.0]
    h = np.array([[g, u] for g in values for u in values], np.float32)

    def formula(h):
        a, b = np.minimum(h[:, :1], 7), np.clip(h[:, 1:], -7, 7) + 1
        return a / (1 + np.exp(-1.702 * a)) * b

    assert_close(tn.gated_activation_forward(h, flags="clamped"), formula, h)
    dh = tn.gated_activation_backward(np.ones((9, 1), np.float32), h, flags="clamped")
    assert (dh[h[:, 0] == 9, 0] == 0).all() and (dh[np.abs(h[:, 1]) == 9, 1] == 0).all()


# ---- softmax
def soft(x, scale=1.0, keep=None):
    x = x * x.dtype.type(scale)
    x = x if keep is None else np.where(keep, x, -np.inf)
    top = np.max(x, -1, keepdims=True)
    e = np.exp(x - np.where(np.isfinite(top), top, 0))
    return e / np.maximum(e.sum(-1, keepdims=True), np.finfo(x.dtype).tiny)


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax(rng, dtype):
    x = draw(rng, 2, 3, 5, 9, dtype=dtype, scale=2)
    assert_close(tn.softmax_forward(x, scale=0.5), lambda x: soft(x, 0.5), x)
    causal = np.arange(9) <= np.arange(5)[:, None]
    assert_close(tn.softmax_forward(x, mask_kind="causal"), lambda x: soft(x, 1, causal), x)
    bottom = np.arange(9) <= np.arange(5)[:, None] + 4
    assert_close(tn.softmax_forward(x, mask_kind="causal_bottom_right"), lambda x: soft(x, 1, bottom), x)
    mask = rng.random((2, 1, 5, 9)) < 0.5
    mask[0, 0, 2] = True
    y = tn.softmax_forward(x, mask)
    assert_close(y, lambda x: soft(x, 1, ~mask), x)
    assert (y[0, :, 2] == 0).all()


# ---- GEMM
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("flags", [(), ("trans_a",), ("trans_b",), ("trans_a", "trans_b")])
def test_gemm(rng, dtype, flags):
    a, b = draw(rng, 13, 21, dtype=dtype), draw(rng, 21, 17, dtype=dtype)
    pa, pb = (a.T.copy() if "trans_a" in flags else a), (b.T.copy() if "trans_b" in flags else b)
    assert_close(tn.gemm(pa, pb, flags=flags), lambda a, b: a @ b, a, b)
    bias, c = draw(rng, 17, dtype=dtype), draw(rng, 13, 17, dtype=dtype)
    assert_close(tn.gemm(pa, pb, c, bias, alpha=0.5, beta=2.0, flags=flags), lambda a, b, c, d: a @ b / 2 + 2 * c + d, a, b, c, bias)


def test_gemm_of_integers_is_exact(rng):
    a, b = rng.integers(-8, 8, (33, 65)).astype(np.float32), rng.integers(-8, 8, (65, 40)).astype(np.float32)
    assert np.array_equal(tn.gemm(a, b), a @ b)
    qa, qb = tn.quantize(a, "e4m3", 1.0), tn.quantize(b, "e5m2", 1.0)
    assert np.array_equal(tn.gemm(qa, qb, d="f32"), qa.dequantize() @ qb.dequantize())


def test_gemm_epilogues(rng):
    a, b = draw(rng, 12, 16), draw(rng, 16, 10)
    out = tn.gemm(a, b, aux=True, flags="gelu")
    assert_close(out.aux, lambda a, b: a @ b, a, b)
    assert_close(out.d, lambda a, b: ACTIVATIONS["gelu"](a @ b), a, b)
    q = tn.gemm(a, b, d=Quantized("e4m3", scale=8.0))
    plain = tn.gemm(a, b, d="f32")
    assert np.array_equal(bits(q.data), bits(codes(plain, "e4m3", 8.0))) and q.amax == np.abs(plain).max()


def test_g03_c_is_not_read_when_beta_is_zero(rng):
    a, b = draw(rng, 4, 5), draw(rng, 5, 6)
    nan = np.full((4, 6), np.nan, np.float32)
    assert np.array_equal(tn.gemm(a, b, nan, beta=0.0), tn.gemm(a, b))
    assert (tn.gemm(np.zeros((4, 0), np.float32), np.zeros((0, 6), np.float32)) == 0).all()


# ---- composites
def test_linear(rng):
    x, w, b = draw(rng, 3, 5, 32), draw(rng, 24, 32), draw(rng, 24)
    assert_close(tn.linear_forward(x, w, b), lambda x, w, b: x @ w.T + b, x, w, b)
    xq, wq = Quantized("e4m3", scale=16.0), Quantized("e4m3", scale=32.0)
    out = tn.linear_forward(x, w, b, x_quantized=xq, weight_quantized=wq)
    assert np.array_equal(bits(out.x_quantized.data), bits(codes(x, "e4m3", 16.0)))
    assert np.array_equal(bits(out.weight_quantized.data), bits(codes(w, "e4m3", 32.0)))
    assert_close(out.y, lambda x, w, b: x @ w.T + b, xq.dequantize(), wq.dequantize(), b)


def test_norm_linear(rng):
    x, g, w = draw(rng, 6, 32), draw(rng, 32), draw(rng, 24, 32)
    out = tn.norm_linear_forward(x, g, weight=w, normalized=True, rstd=True, norm="rms")
    assert np.array_equal(out.normalized, tn.rmsnorm_forward(x, g)) and np.array_equal(out.y, tn.linear_forward(out.normalized, w))


# ---- RoPE
def rotate(x, angles, interleaved):
    d = angles.shape[-1]
    head, tail = x[..., :d], x[..., d:]
    if interleaved:
        rot = np.stack([-head[..., 1::2], head[..., ::2]], -1).reshape(head.shape)
    else:
        rot = np.concatenate([-head[..., d // 2:], head[..., :d // 2]], -1)
    return np.concatenate([head * np.cos(angles) + rot * np.sin(angles), tail], -1)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(rng, interleaved):
    x = draw(rng, 2, 5, 3, 8)
    half = rng.random((8, 2)).astype(np.float32) * 6
    freqs = np.repeat(half, 2, 1) if interleaved else np.concatenate([half, half], 1)
    flags = "interleaved" if interleaved else 0
    assert_close(tn.rope_forward(x, freqs, format="bshd", flags=flags), lambda x: rotate(x, freqs[:5, None].astype(x.dtype), interleaved), x)
    start = np.array([0, 3], np.int32)  # R01
    positions = start[:, None] + np.arange(5)
    y = tn.rope_forward(x, freqs, start, format="bshd", flags=flags)
    assert_close(y, lambda x: rotate(x, freqs[positions][:, :, None].astype(x.dtype), interleaved), x)
    assert np.array_equal(y[..., 4:], x[..., 4:])  # R04
    listed = tn.rope_forward(x, freqs, positions=positions.astype(np.int64), format="bshd", flags=flags)  # R03
    assert np.array_equal(listed, y)


# ---- attention
def attend(q, k, v, scale, keep=None, bias=None):
    groups = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, groups, 2), np.repeat(v, groups, 2)
    p = np.einsum("bqhd,bkhd->bhqk", q, k) * q.dtype.type(scale)
    p = p if bias is None else p + bias
    return np.einsum("bhqk,bkhd->bqhd", soft(p, 1, keep), v)


@pytest.mark.parametrize("dtype", FLOATS)
def test_attention(rng, dtype):
    q, k, v = draw(rng, 2, 7, 4, 16, dtype=dtype), draw(rng, 2, 11, 2, 16, dtype=dtype), draw(rng, 2, 11, 2, 16, dtype=dtype)
    scale = 0.25
    out = tn.attention_forward(q, k, v, scale=scale, stats=True)
    assert out.o.shape == q.shape and out.stats.shape == (2, 4, 7)
    assert_close(out.o, lambda q, k, v: attend(q, k, v, scale), q, k, v)
    keep = np.arange(11) <= np.arange(7)[:, None]
    assert_close(tn.attention_forward(q, k, v, scale=scale, mask_kind="causal"), lambda q, k, v: attend(q, k, v, scale, keep), q, k, v)
    window = keep & (np.arange(11) >= np.arange(7)[:, None] - 2)  # A06
    assert_close(tn.attention_forward(q, k, v, scale=scale, mask_kind="causal", window_left=2),
                 lambda q, k, v: attend(q, k, v, scale, window), q, k, v)
    bias = draw(rng, 1, 4, 7, 11)
    assert_close(tn.attention_forward(q, k, v, bias=bias, scale=scale), lambda q, k, v, b: attend(q, k, v, scale, bias=b), q, k, v, bias)


def test_a11_a15_heads_and_masked_values():
    q, k = np.ones((1, 1, 4, 8), np.float32), np.ones((1, 3, 2, 8), np.float32)
    v = np.broadcast_to(np.array([1, 2], np.float32)[:, None], (1, 3, 2, 8)).copy()
    assert np.array_equal(tn.attention_forward(q, k, v)[0, 0, :, 0], [1, 1, 2, 2])
    mask = np.zeros((1, 1, 1, 3), bool)
    mask[..., 2] = True
    k[0, 2], v[0, 2] = np.inf, np.nan
    assert np.array_equal(tn.attention_forward(q, k, v, mask=mask)[0, 0, :, 0], [1, 1, 2, 2])


def test_a16_no_keys():
    out = tn.attention_forward(np.ones((1, 1, 2, 8), np.float32), np.ones((1, 0, 2, 8), np.float32), np.ones((1, 0, 2, 8), np.float32), stats=True)
    assert (out.o == 0).all() and (out.stats == -np.inf).all()


# ---- dropout
def test_dropout(rng):
    x = draw(rng, 40, 50)
    state = np.array([7, 3], np.int64)
    out = tn.dropout_forward(x, state, p=0.25, mask=True)
    keep = np.unpackbits(out.mask, bitorder="little")[:x.size].reshape(x.shape).astype(bool)
    assert np.array_equal(out.y != 0, keep & (x != 0)) and 0.6 < keep.mean() < 0.9
    assert_close(out.y, lambda x: np.where(keep, x / (1 - x.dtype.type(0.25)), 0), x)
    assert np.array_equal(tn.dropout_forward(x, state, p=0.25), out.y)
    assert not np.array_equal(tn.dropout_forward(x, state + 1, p=0.25), out.y)
    assert np.array_equal(tn.dropout_backward(x, out.mask, p=0.25), out.y)
    assert np.array_equal(tn.dropout_forward(x, state), x) and (tn.dropout_forward(x, state, p=1.0) == 0).all()


# ---- loss
def entropy(logits, target, smoothing=0.0, ignore=-100):
    top = logits.max(-1, keepdims=True)
    lse = (np.log(np.exp(logits - top).sum(-1, keepdims=True)) + top)[:, 0]
    t = np.where(target == ignore, 0, target)
    loss = lse - (1 - smoothing) * np.take_along_axis(logits, t[:, None], 1)[:, 0] - smoothing * logits.mean(-1)
    return np.where(target == ignore, 0, loss)


def test_cross_entropy(rng):
    logits, target = draw(rng, 6, 11), np.array([0, 10, -100, 3, 4, 5])
    assert_close(tn.cross_entropy_forward(logits, target, reduction="none"), lambda x: entropy(x, target), logits)
    assert_close(tn.cross_entropy_forward(logits, target, label_smoothing=0.1, reduction="none"), lambda x: entropy(x, target, 0.1), logits)
    assert_close(tn.cross_entropy_forward(logits, target), lambda x: entropy(x, target).sum(keepdims=True) / 5, logits)
    assert_close(tn.cross_entropy_forward(logits, target, reduction="sum"), lambda x: entropy(x, target).sum(keepdims=True), logits)
    assert tn.cross_entropy_forward(logits, np.full(6, -100)) == 0
    with pytest.raises(ValueError, match="target"):
        tn.cross_entropy_forward(logits, np.array([0, 1, 2, 3, 4, 11]))


def test_l02_bf16_gradient_is_rounded_once():
    logits = np.zeros((4, 3), ml_dtypes.bfloat16)
    target = np.array([0, 1, 2, -100])
    dloss = np.array([0.01, 0.03, 0.1, 0.7], np.float32)
    out = tn.cross_entropy_forward(logits, target, reduction="none", loss=True, lse=True)
    grad = tn.cross_entropy_backward(logits, target, out.lse, dloss, reduction="none").astype(np.float64)
    assert grad[0, 0] == -0.00665283203125 and grad[0, 1] == 0.003326416015625 and (grad[3] == 0).all() and (logits == 0).all()


# ---- shared behaviour
@pytest.mark.parametrize("layout", ["transposed", "slice", "reversed", "stride 0", "read-only"])
def test_input_layouts_do_not_change_values(rng, layout):
    base = draw(rng, 12, 16)
    x = {"transposed": base.T, "slice": base[2:9, 3:11], "reversed": base[::-1, ::-1], "stride 0": np.broadcast_to(base[0], (5, 16)),
         "read-only": base}[layout]
    if layout == "read-only":
        x.flags.writeable = False
    packed = x.copy()
    assert np.array_equal(tn.rmsnorm_forward(x), tn.rmsnorm_forward(packed))
    assert np.array_equal(bits(tn.quantize(x, "e4m3", 2.0).data), bits(tn.quantize(packed, "e4m3", 2.0).data))
    assert np.array_equal(tn.transpose(x), packed.T)
    assert np.array_equal(x, packed)


def test_outputs_given_are_written_and_may_alias(rng):
    x = draw(rng, 6, 8)
    want = tn.rmsnorm_forward(x)
    y = np.full((6, 8), np.nan, np.float32)
    assert tn.rmsnorm_forward(x, y=y) is y and np.array_equal(y, want)
    wide = np.zeros((6, 20), np.float32)
    tn.gemm(x, np.eye(8, dtype=np.float32), d=wide[:, 4:12])
    assert np.array_equal(wide[:, 4:12], x) and (wide[:, :4] == 0).all() and (wide[:, 12:] == 0).all()
    tn.rmsnorm_forward(x, y=x)
    assert np.array_equal(x, want)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (2, 0, 4)])
def test_empty_problems(shape):
    x = np.zeros(shape, np.float32)
    assert tn.rmsnorm_forward(x).shape == shape and tn.activation_forward(x).shape == shape
    assert tn.quantize(x).data.shape == shape and tn.compute_amax(x) == 0
    dgamma = tn.rmsnorm_backward(x, x, np.zeros(shape[:-1], np.float32), np.ones(shape[-1], np.float32), dgamma=True).dgamma
    assert (dgamma == 0).all() and dgamma.shape == shape[-1:]


def test_bits_do_not_depend_on_threads(python):
    script = """
import hashlib, numpy as np, libte.numpy as tn
r = np.random.default_rng(0); x = r.standard_normal((700, 512)).astype(np.float32); g = r.standard_normal(512).astype(np.float32)
o = tn.layernorm_forward(x, g, mu=True, rstd=True)
b = tn.layernorm_backward(x, o.y, o.mu, o.rstd, g, dgamma=True, dbeta=True)
h = hashlib.sha256()
for a in (o.y, b.dx, b.dgamma, b.dbeta, tn.gemm(x, x, flags="trans_b"), tn.quantize(x).data): h.update(a.tobytes())
print(h.hexdigest())
"""
    runs = {python(script, {"LIBTE_NUM_THREADS": n}).stdout for n in ("1", "2", "5")}
    assert len(runs) == 1 and len(runs.pop()) == 65


def test_i08_many_threads_mixed_shapes(rng):
    shapes = [(3, 5), (17, 64), (1, 1), (40, 33)]
    inputs = [draw(rng, *s) for s in shapes]
    want = [(tn.rmsnorm_forward(x), tn.activation_forward(x, activation="silu")) for x in inputs]
    wrong = []

    def work(seed):
        for i in range(100):
            k = (seed + i) % len(inputs)
            if not (np.array_equal(tn.rmsnorm_forward(inputs[k]), want[k][0]) and
                    np.array_equal(tn.activation_forward(inputs[k], activation="silu"), want[k][1])):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_every_operator_has_a_function_and_a_docstring():
    for name in libte.operators():
        f = getattr(tn.ops, name)
        assert f.__doc__ and len(f.__doc__) > 100
        assert "implementation" in f.__annotations__


@pytest.mark.parametrize("histories, scales", [(1, 2), (2, 1)])
def test_lists_of_one_count_are_equally_long(histories: int, scales: int) -> None:
    """C knows one count: the shorter list would be read past its end."""
    h, s = [np.zeros((4, 2), np.float32)] * histories, [np.ones(2, np.float32)] * scales
    with pytest.raises(libte.Error, match=f"scale must be as long as history, {histories}, got {scales}"):
        tn.amax_and_scale_update(h, s, dtype="e4m3")
    tn.amax_and_scale_update([h[0]], [s[0]], dtype="e4m3")  # the pooled frame has forgotten the counts
    with pytest.raises(libte.Error, match="dtype must be one of f32.*, got 'zz'"):
        tn.compute_scale(np.ones(1, np.float32), dtype="zz")
