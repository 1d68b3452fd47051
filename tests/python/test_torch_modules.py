# SPDX-License-Identifier: Apache-2.0
"""Every torch module against a plain-torch twin: outputs and gradients, options, layouts, modes."""

from __future__ import annotations

import pytest
import torch
import twins
from twins import act, attention, causal, compare, norm

import libte_torch as te

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def randomise(module: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for n, p in module.named_parameters():
            p.normal_(0, 0.3 if p.dim() > 1 else 0.5)
            if n.endswith("layer_norm_weight") or (n == "weight" and p.dim() == 1):
                p.add_(1)
    return module


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 24), (2, 3, 24), (24,), (0, 24), (1, 24)])
def test_linear(dtype: torch.dtype, bias: bool, shape: tuple[int, ...]) -> None:
    """G09 too: an empty batch gives zero weight gradients and an empty input gradient."""
    m = randomise(te.Linear(24, 17, bias=bias, params_dtype=dtype))
    compare(m, lambda p, x: x @ p["weight"].T + (p["bias"] if bias else 0), torch.randn(shape), dtype=dtype)


def test_linear_options() -> None:
    m = te.Linear(8, 6, parameters_split=("query", "key"), return_bias=True)
    assert [n for n, _ in m.named_parameters()] == ["query_weight", "query_bias", "key_weight", "key_bias"]
    y, b = m(torch.randn(3, 8))
    assert y.shape == (3, 6) and b.shape == (6,)
    m = te.Linear(8, 6, parameters_split={"a_": 2, "b_": 4}, bias=False)
    assert m.a_weight.shape == (2, 8) and m.b_weight.shape == (4, 8)
    with pytest.raises(ValueError, match="add up to out_features = 6"):
        te.Linear(8, 6, parameters_split={"a_": 2, "b_": 3})
    with pytest.raises(ValueError, match=r"inp must be \[\*, 8\], got \[3, 7\]"):
        m(torch.randn(3, 7))


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("hidden", [1, 7, 64, 769])
def test_norm(kind: str, dtype: torch.dtype, zero: bool, hidden: int) -> None:
    """N01 (zero-centred gamma in backward) and N05 (odd hidden sizes)."""
    m = randomise(getattr(te, kind)(hidden, params_dtype=dtype, zero_centered_gamma=zero, eps=1e-3))
    compare(m, lambda p, x: norm(x, kind, p["weight"], p.get("bias"), 1e-3, zero), torch.randn(2, 5, hidden) * 2 + 1, dtype=dtype)


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_norm_shapes(kind: str) -> None:
    """N02: several normalised dimensions, no parameters."""
    m = randomise(getattr(te, kind)((3, 4)))
    compare(m, lambda p, x: norm(x.flatten(-2), kind, p["weight"].flatten(), p["bias"].flatten() if "bias" in p else None, 1e-5).view(x.shape), torch.randn(2, 3, 4))
    bare = getattr(te, kind)(8, elementwise_affine=False)
    assert not list(bare.parameters())
    compare(bare, lambda p, x: norm(x, kind, torch.ones(8, dtype=x.dtype), None, 1e-5), torch.randn(5, 8))


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("returned", [False, True])
def test_layernorm_linear(kind: str, dtype: torch.dtype, returned: bool) -> None:
    m = randomise(te.LayerNormLinear(32, 20, normalization=kind, params_dtype=dtype, return_layernorm_output=returned))

    def twin(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        n = norm(x, kind, p["layer_norm_weight"], p.get("layer_norm_bias"), 1e-5)
        y = n @ p["weight"].T + p["bias"]
        return torch.cat([y, n], -1) if returned else y

    if returned:
        inner = m.forward
        m.forward = lambda x: torch.cat(inner(x), -1)  # type: ignore[method-assign]
        m.__deepcopy__ = lambda memo: m  # type: ignore[attr-defined]
        x = torch.randn(3, 4, 32).to(dtype).requires_grad_()
        got, want = m(x), twin(dict(m.named_parameters()), x)
        got.sum().backward()
        g, x.grad = x.grad, None
        want.sum().backward()
        assert got.shape == want.shape and torch.isfinite(g).all()  # type: ignore[union-attr]
        assert twins.tolerance.distance(twins.numpy(g), twins.numpy(x.grad)) < twins.tolerance.FP8_DISTANCE  # type: ignore[arg-type]
    else:
        compare(m, twin, torch.randn(3, 4, 32), dtype=dtype)


@pytest.mark.parametrize("name", ["gelu", "gelu_erf", "qgelu", "relu", "srelu", "silu", "sigmoid", "glu", "geglu", "qgeglu", "reglu", "sreglu", "swiglu"])
@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_layernorm_mlp(name: str, kind: str) -> None:
    m = randomise(te.LayerNormMLP(24, 32, activation=name, normalization=kind))

    def twin(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        n = norm(x, kind, p["layer_norm_weight"], p.get("layer_norm_bias"), 1e-5)
        return act(name, n @ p["fc1_weight"].T + p["fc1_bias"]) @ p["fc2_weight"].T + p["fc2_bias"]

    compare(m, twin, torch.randn(2, 5, 24))


def test_clamped_swiglu() -> None:
    """V02: limit 7, alpha 1.702, the gate clamped above only, the linear part on both sides and + 1."""
    from libte_torch import functional as F

    gate, linear = torch.meshgrid(torch.tensor([-9.0, 0.0, 9.0]), torch.tensor([-9.0, 0.0, 9.0]), indexing="ij")
    x = torch.stack([gate.flatten(), linear.flatten()], -1).requires_grad_()
    y = F.Activation.apply(x, F.ActivationConfig("clamped_swiglu"))
    g, b = gate.double().flatten().clamp(max=7), linear.double().flatten().clamp(-7, 7) + 1
    want = g * torch.sigmoid(1.702 * g) * b
    twins.tolerance.assert_like(twins.numpy(y.flatten()), want.cpu().numpy(), want.float().cpu().numpy(), "float32")
    y.sum().backward()
    assert (x.grad[gate.flatten() > 7, 0] == 0).all() and (x.grad[linear.flatten().abs() > 7, 1] == 0).all()  # type: ignore[index]


def masks(kind: str, s: int, lengths: list[int], window: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(masked [b, 1, s, s], padding mask [b, 1, 1, s])."""
    q, k = torch.arange(s)[:, None], torch.arange(s)[None, :]
    n = torch.tensor(lengths)[:, None, None]
    out = torch.zeros(len(lengths), s, s, dtype=torch.bool)
    padding = None
    if "padding" in kind:
        out |= (k >= n) | (q >= n)
        padding = (torch.arange(s) >= torch.tensor(lengths)[:, None])[:, None, None]
    if "causal" in kind:
        out |= (k > q)[None]
    left, right = window
    if left >= 0:
        out |= (k < q - left)[None]
    if right >= 0:
        out |= (k > q + right)[None]
    return out[:, None], padding


@pytest.mark.parametrize("kind", ["no_mask", "causal", "padding", "padding_causal", "causal_bottom_right", "padding_causal_bottom_right"])
@pytest.mark.parametrize("fmt", ["bshd", "sbhd"])
@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("window", [(-1, -1), (2, 0), (1, 3)])
def test_dot_product_attention(kind: str, fmt: str, groups: int, window: tuple[int, int]) -> None:
    """A06, A07, A09, A11: windows, groups and real lengths."""
    b, s, h, d, dv = 2, 9, 4, 16, 24
    masked, padding = masks(kind, s, [5, 9], window)
    m = te.DotProductAttention(h, (d, dv), groups, qkv_format=fmt, attn_mask_type=kind, window_size=window)

    def own(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if fmt == "sbhd":
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        o = m(q, k, v, attention_mask=padding)
        return o.transpose(0, 1) if fmt == "sbhd" else o

    class Wrapped(torch.nn.Module):
        def forward(self, *qkv: torch.Tensor) -> torch.Tensor:
            return own(*qkv)

    compare(Wrapped(), lambda p, q, k, v: attention(q, k, v, masked).flatten(2), torch.randn(b, s, h, d), torch.randn(b, s, groups, d), torch.randn(b, s, groups, dv))


def test_window_of_one_key_and_unbounded_windows() -> None:
    """A06: (0, 0) keeps the query's own key; A07: (-1, 0) is causal; A08: (-1, -1) restricts nothing."""
    q, k, v = (torch.randn(1, 6, 2, 8) for _ in range(3))

    def run(kind: str, window: tuple[int, int] | None) -> torch.Tensor:
        return te.DotProductAttention(2, 8, qkv_format="bshd", attn_mask_type=kind, window_size=window)(q, k, v)

    twins.tolerance.assert_like(*map(twins.numpy, (run("no_mask", (0, 0)), v.flatten(2), v.flatten(2))), "float32")
    assert torch.equal(run("no_mask", (-1, 0)), run("causal", None))
    assert torch.equal(run("no_mask", (-1, -1)), run("no_mask", None))


def test_attention_arbitrary_mask_bias_and_sink() -> None:
    b, s, h, d = 2, 6, 2, 8
    mask = torch.rand(b, 1, s, s) < 0.4
    mask[0, 0, 3] = True  # a row with nothing kept gives 0
    bias = torch.randn(1, h, s, s)

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = te.DotProductAttention(h, d, qkv_format="bshd", attn_mask_type="arbitrary", softmax_type="learnable")

        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return self.core(q, k, v, attention_mask=mask, core_attention_bias_type="post_scale_bias", core_attention_bias=bias)

    def twin(p: dict[str, torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        sink = p["core.softmax_offset"].view(1, h, 1, 1).expand(b, h, s, 1).to(q.dtype)
        scores = (torch.einsum("bqhd,bkhd->bhqk", q, k) * d**-0.5 + bias).masked_fill(mask, -torch.inf)
        weights = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
        return torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)

    compare(Wrapped(), twin, *(torch.randn(b, s, h, d) for _ in range(3)), bias)
    assert (te.DotProductAttention(2, 8, softmax_type="learnable").softmax_offset == 0).all()  # A14


def test_attention_thd_matches_single_sequences() -> None:
    """A23 too: packed documents do not see one another."""
    h, d, lengths = 2, 8, [3, 1, 5]
    cu = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
    q, k, v = (torch.randn(9, h, d) for _ in range(3))
    m = te.DotProductAttention(h, d, qkv_format="thd", attn_mask_type="padding_causal")
    got = m(q, k, v, cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=5, max_seqlen_kv=5)
    one = te.DotProductAttention(h, d, qkv_format="bshd", attn_mask_type="causal")
    at = 0
    for n in lengths:
        piece = one(q[None, at : at + n], k[None, at : at + n], v[None, at : at + n])[0]
        assert torch.equal(got[at : at + n], piece)
        at += n


def test_attention_dropout_is_seeded() -> None:
    """A24: forward and backward use one mask; the same seed gives the same one."""
    s, d = 16, 16
    q, k = torch.randn(2, s, 2, d), torch.randn(2, s, 2, d)
    v = torch.eye(s)[None, :, None].expand(2, s, 2, s).contiguous().requires_grad_()
    m = te.DotProductAttention(2, (d, s), qkv_format="bshd", attn_mask_type="no_mask", attention_dropout=0.5)
    torch.manual_seed(3)
    o = m(q, k, v).view(2, s, 2, s)
    torch.manual_seed(3)
    assert torch.equal(o, m(q, k, v).view(2, s, 2, s))
    assert not torch.equal(o, m(q, k, v).view(2, s, 2, s))
    kept = o != 0
    assert 0.3 < kept.float().mean() < 0.7
    (dv,) = torch.autograd.grad(o.sum(), v)
    assert torch.equal(dv.sum(-1) == 0, (kept.float().sum(1) == 0).permute(0, 2, 1).expand_as(dv.sum(-1)) & (dv.sum(-1) == 0))
    m.eval()
    assert (m(q, k, v) > 0).all()


def test_gqa_partitions() -> None:
    """A10."""
    from libte_torch.modules.attention import gqa_groups_per_partition

    assert [gqa_groups_per_partition(4, t) for t in (1, 2, 4)] == [4, 2, 1]
    with pytest.raises(ValueError, match="num_gqa_groups = 4 must be a multiple of tp_size = 8"):
        te.DotProductAttention(16, 8, 4, tp_size=8)
    with pytest.raises(ValueError, match="num_attention_heads = 6 must be a multiple of num_gqa_groups = 4"):
        te.MultiheadAttention(48, 6, num_gqa_groups=4)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("fmt", ["sbhd", "bshd"])
def test_rope(interleaved: bool, fmt: str) -> None:
    """R01 (start positions with interleaving) and R04 (the tail passes through)."""
    s, b, h, d, d2 = 4, 2, 3, 8, 6
    freqs = te.RotaryPositionEmbedding(d2, interleaved=interleaved)(8)
    start = torch.tensor([0, 3])

    class Wrapped(torch.nn.Module):
        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return te.apply_rotary_pos_emb(t, freqs, fmt, start_positions=start, interleaved=interleaved)

    def twin(p: dict[str, torch.Tensor], t: torch.Tensor) -> torch.Tensor:
        x = t if fmt == "bshd" else t.transpose(0, 1)
        f = freqs.view(8, d2).to(torch.float64)[torch.arange(s)[None] + start[:, None]][:, :, None]
        cos, sin = torch.cos(f).to(x.dtype), torch.sin(f).to(x.dtype)
        r, tail = x[..., :d2], x[..., d2:]
        if interleaved:
            turned = torch.stack([-r[..., 1::2], r[..., ::2]], -1).flatten(-2)
        else:
            turned = torch.cat([-r[..., d2 // 2 :], r[..., : d2 // 2]], -1)
        y = torch.cat([r * cos + turned * sin, tail], -1)
        return y if fmt == "bshd" else y.transpose(0, 1)

    t = torch.randn(s, b, h, d) if fmt == "sbhd" else torch.randn(b, s, h, d)
    compare(Wrapped(), twin, t)
    assert torch.equal(Wrapped()(t)[..., d2:], t[..., d2:])


def test_rope_positions() -> None:
    """R03: positions are gathered, not assumed."""
    freqs = te.RotaryPositionEmbedding(8)(16)
    t = torch.randn(1, 5, 2, 8)
    positions = torch.tensor([[5, 6, 7, 0, 1]])
    got = te.apply_rotary_pos_emb(t, freqs, "bshd", positions=positions)
    for i, p in enumerate([5, 6, 7, 0, 1]):
        assert torch.equal(got[:, i : i + 1], te.apply_rotary_pos_emb(t[:, i : i + 1], freqs, "bshd", start_positions=torch.tensor([p])))


def layer_twin(m: te.TransformerLayer, kind: str, activation: str, groups: int, post_ln: bool, output_ln: bool, parallel: bool):  # type: ignore[no-untyped-def]
    """[b, s, hidden] causal self-attention layer."""
    heads, d = m.self_attention.num_attention_heads, m.self_attention.head_dim

    def run(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        a = "self_attention."
        pre = a + ("layernorm_qkv." if not output_ln else "qkv.")
        n = x if output_ln else norm(x, kind, p[pre + "layer_norm_weight"], p.get(pre + "layer_norm_bias"), 1e-5)
        q, k, v = (n @ p[pre + w + "_weight"].T + p[pre + w + "_bias"] for w in ("query", "key", "value"))
        o = attention(q.unflatten(-1, (heads, d)), k.unflatten(-1, (groups, d)), v.unflatten(-1, (groups, d)), causal(x.shape[1], x.shape[1])).flatten(2)
        o = o @ p[a + "proj.weight"].T + p[a + "proj.bias"]

        def mlp(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            n = norm(x, kind, p["layernorm_mlp.layer_norm_weight"], p.get("layernorm_mlp.layer_norm_bias"), 1e-5)
            hidden = act(activation, n @ p["layernorm_mlp.fc1_weight"].T + p["layernorm_mlp.fc1_bias"])
            return hidden @ p["layernorm_mlp.fc2_weight"].T + p["layernorm_mlp.fc2_bias"], n

        if parallel:
            return x + (o + mlp(x)[0])
        x = (n if post_ln else x) + o
        out, n2 = mlp(x)
        x = (n2 if post_ln else x) + out
        return norm(x, kind, p["layernorm.weight"], p.get("layernorm.bias"), 1e-5) if output_ln else x

    return run


@pytest.mark.parametrize(
    "kind, activation, groups, post_ln, output_ln, parallel",
    [("LayerNorm", "gelu", 4, False, False, False), ("RMSNorm", "swiglu", 2, False, False, False), ("LayerNorm", "geglu", 1, True, False, False),
     ("LayerNorm", "relu", 4, False, True, False), ("RMSNorm", "silu", 4, False, False, True)],
)
def test_transformer_layer(kind: str, activation: str, groups: int, post_ln: bool, output_ln: bool, parallel: bool) -> None:
    m = randomise(te.TransformerLayer(
        32, 48, 4, num_gqa_groups=groups, hidden_dropout=0, attention_dropout=0, normalization=kind, activation=activation, attn_input_format="bshd",
        apply_residual_connection_post_layernorm=post_ln, output_layernorm=output_ln, parallel_attention_mlp=parallel,
    ))
    compare(m, layer_twin(m, kind, activation, groups, post_ln, output_ln, parallel), torch.randn(2, 7, 32))  # type: ignore[arg-type]


def test_decoder_layer() -> None:
    m = te.TransformerLayer(32, 48, 4, layer_type="decoder", hidden_dropout=0, attention_dropout=0, attn_input_format="bshd")
    x, memory = torch.randn(2, 5, 32, requires_grad=True), torch.randn(2, 9, 32, requires_grad=True)
    y = m(x, encoder_output=memory)
    y.sum().backward()
    assert y.shape == x.shape and memory.grad.abs().sum() > 0  # type: ignore[union-attr]
    early = m(x[:, :3], encoder_output=memory)
    assert torch.allclose(early, y[:, :3])  # causal


def test_fused_qkv_parameters_match_split_ones() -> None:
    split = te.MultiheadAttention(32, 4, num_gqa_groups=2, attention_dropout=0, qkv_format="bshd")
    fused = te.MultiheadAttention(32, 4, num_gqa_groups=2, attention_dropout=0, qkv_format="bshd", fuse_qkv_params=True, qkv_weight_interleaved=False)
    with torch.no_grad():
        fused.qkv.weight.copy_(torch.cat([split.qkv.query_weight, split.qkv.key_weight, split.qkv.value_weight]))
        fused.proj.weight.copy_(split.proj.weight)
    x = torch.randn(2, 5, 32)
    assert torch.equal(split(x), fused(x))


def test_cross_entropy() -> None:
    """L01, L02, L03."""
    logits = torch.zeros(2, 2, 3, dtype=torch.bfloat16, requires_grad=True)
    target = torch.tensor([[0, 1], [2, -100]])
    loss = te.cross_entropy(logits, target, reduction="none")
    loss.backward(torch.tensor([[0.01, 0.03], [0.1, 0.7]]))
    assert logits.grad[0, 0].tolist() == [-0.00665283203125, 0.003326416015625, 0.003326416015625]  # type: ignore[index]
    assert (logits.grad[1, 1] == 0).all() and (logits == 0).all()  # type: ignore[index]
    x = torch.randn(6, 11, requires_grad=True)
    y = torch.randint(0, 11, (6,))
    for reduction in ("mean", "sum"):
        for smoothing in (0.0, 0.1):
            got = te.cross_entropy(x, y, reduction, smoothing)
            want = torch.nn.functional.cross_entropy(x.double(), y, reduction=reduction, label_smoothing=smoothing)
            twins.tolerance.assert_like(twins.numpy(got), twins.numpy(want), twins.numpy(want.float()), "float32")
    if x.device.type == "cpu":  # what lies in device memory is not looked at
        with pytest.raises(ValueError, match="target"):
            te.cross_entropy(x, torch.full((6,), 11))


def test_layouts_and_modes() -> None:
    """N03, A05, X09: views and expanded gradients give what contiguous ones give."""
    m = randomise(te.LayerNormLinear(16, 8))
    x = torch.randn(5, 3, 16)
    y = m(x.transpose(0, 1))
    assert torch.equal(y, m(x.transpose(0, 1).contiguous()))
    assert torch.equal(m(x.repeat_interleave(2, -1)[..., ::2]), m(x))
    leaf = x.clone().requires_grad_()
    (a,) = torch.autograd.grad(m(leaf).sum(), leaf)  # stride-0 gradient
    (b,) = torch.autograd.grad(m(leaf), leaf, torch.ones(5, 3, 8))
    assert torch.equal(a, b)
    with torch.no_grad():
        assert not m(x).requires_grad
    twice = m(leaf) + m(leaf * 2)  # used twice before backward
    (c,) = torch.autograd.grad(twice.sum(), leaf)
    (d,) = torch.autograd.grad(m(leaf * 2).sum(), leaf)
    twins.tolerance.assert_like(twins.numpy(c), twins.numpy(a + d), twins.numpy(a + d), "float32")


def test_torch_autocast() -> None:
    m = te.TransformerLayer(32, 64, 4, hidden_dropout=0, attention_dropout=0)
    x = torch.randn(4, 2, 32, requires_grad=True)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        y = m(x)
        with te.autocast():
            z = m(x)
    assert y.dtype is torch.bfloat16 and z.dtype is torch.bfloat16
    z.float().sum().backward()
    assert x.grad.dtype is torch.float32 and all(p.grad.dtype is torch.float32 for p in m.parameters())  # type: ignore[union-attr]


def test_once_differentiable() -> None:
    """X08."""
    for m in (te.Linear(8, 8), te.LayerNorm(8), te.LayerNormMLP(8, 8)):
        x = torch.randn(2, 8, requires_grad=True)
        with pytest.raises(RuntimeError, match="once differentiable"):
            torch.autograd.grad(m(x).sum(), x, create_graph=True)


def test_unbuilt_is_named() -> None:
    with pytest.raises(NotImplementedError, match="tp_size=2"):
        te.Linear(8, 8, tp_size=2)
    with pytest.raises(NotImplementedError, match="sequence_parallel=True"):
        te.LayerNormMLP(8, 8, sequence_parallel=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        te.Linear(8, 8, nonsense=1)
    with pytest.raises(NotImplementedError, match="libte_torch.GroupedLinear"):
        te.GroupedLinear  # noqa: B018
    with pytest.raises(NotImplementedError, match="fp8_output=True"):
        te.Linear(8, 8)(torch.randn(2, 8), fp8_output=True)
    with pytest.raises(AttributeError):
        te.nothing_of_that_name  # noqa: B018
    with pytest.raises(ValueError, match="attn_mask_type"):
        te.DotProductAttention(2, 8, attn_mask_type="diagonal")
    with pytest.raises(ValueError, match="activation: must be one of"):
        te.LayerNormMLP(8, 8, activation="nope")
