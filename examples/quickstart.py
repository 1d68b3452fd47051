# SPDX-License-Identifier: Apache-2.0
"""The way from torch modules to an FP8 Transformer, step by step, then a small one trained in FP8 and in BF16.

    python examples/quickstart.py [--device cpu] [--steps 160] [--text FILE] [--out build/quickstart]

Each of the five steps runs one decoder layer on real text with the same weights, compares its output with plain torch, and times
forward + backward. Runs on the GPU when libte's plug-in for it opens, else on the CPU.
"""
from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Callable

import torch
import torch.nn.functional as tF
from torch import Tensor, nn
from tqdm import tqdm

import libte
import libte_torch as te
import shared
import text

HIDDEN, FFN, HEADS, SEQUENCE, BATCH = 256, 1024, 8, 128, 4
DTYPE = torch.bfloat16


# ---- the five steps: one decoder layer, [s, b, h] ----
class Attention(nn.Module):
    """Plain torch causal attention of packed projections [s, b, h, 3d]."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
        o = tF.scaled_dot_product_attention(q, k, v, is_causal=True)
        return o.permute(2, 0, 1, 3).flatten(2)


class Layer(nn.Module):
    """norm -> qkv -> attention -> projection, norm -> fc1 -> gelu -> fc2, residuals round both; the parts are given."""

    def __init__(self, norm: Callable[[], nn.Module], linear: Callable[[int, int], nn.Module], attention: nn.Module) -> None:
        super().__init__()
        self.ln1, self.ln2 = norm(), norm()
        self.qkv, self.proj = linear(HIDDEN, 3 * HIDDEN), linear(HIDDEN, HIDDEN)
        self.fc1, self.fc2 = linear(HIDDEN, FFN), linear(FFN, HIDDEN)
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.ln1(x)).unflatten(-1, (HEADS, 3 * HIDDEN // HEADS)).chunk(3, dim=-1)
        x = x + self.proj(self.attention(q, k, v))
        return x + self.fc2(tF.gelu(self.fc1(self.ln2(x)), approximate="tanh"))


class FusedLayer(nn.Module):
    """The same with te.LayerNormLinear and te.LayerNormMLP."""

    def __init__(self, **kw: Any) -> None:
        super().__init__()
        self.ln_qkv = te.LayerNormLinear(HIDDEN, 3 * HIDDEN, **kw)
        self.attention = te.DotProductAttention(HEADS, HIDDEN // HEADS)
        self.proj = te.Linear(HIDDEN, HIDDEN, **kw)
        self.mlp = te.LayerNormMLP(HIDDEN, FFN, activation="gelu", **kw)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.ln_qkv(x).unflatten(-1, (HEADS, 3 * HIDDEN // HEADS)).chunk(3, dim=-1)
        x = x + self.proj(self.attention(q, k, v))
        return x + self.mlp(x)


def copy_parameters(source: Layer, target: nn.Module) -> None:
    """The baseline's weights under the names each kind of layer has."""
    p = dict(source.named_parameters())
    if isinstance(target, Layer):
        names = {n: n for n in p}
    elif isinstance(target, FusedLayer):
        names = {
            "ln_qkv.layer_norm_weight": "ln1.weight", "ln_qkv.layer_norm_bias": "ln1.bias", "ln_qkv.weight": "qkv.weight", "ln_qkv.bias": "qkv.bias",
            "proj.weight": "proj.weight", "proj.bias": "proj.bias", "mlp.layer_norm_weight": "ln2.weight", "mlp.layer_norm_bias": "ln2.bias",
            "mlp.fc1_weight": "fc1.weight", "mlp.fc1_bias": "fc1.bias", "mlp.fc2_weight": "fc2.weight", "mlp.fc2_bias": "fc2.bias",
        }
    else:
        a, m = "self_attention.", "layernorm_mlp."
        names = {
            a + "layernorm_qkv.layer_norm_weight": "ln1.weight", a + "layernorm_qkv.layer_norm_bias": "ln1.bias",
            a + "layernorm_qkv.weight": "qkv.weight", a + "layernorm_qkv.bias": "qkv.bias", a + "proj.weight": "proj.weight",
            a + "proj.bias": "proj.bias", m + "layer_norm_weight": "ln2.weight", m + "layer_norm_bias": "ln2.bias",
            m + "fc1_weight": "fc1.weight", m + "fc1_bias": "fc1.bias", m + "fc2_weight": "fc2.weight", m + "fc2_bias": "fc2.bias",
        }
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            parameter.copy_(p[names[name]])


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def time_layer(layer: nn.Module, x: Tensor, recipe: Any, repeats: int = 7) -> tuple[Tensor, float]:
    """(output, median milliseconds of forward + backward)."""
    times = []
    y = x
    for _ in range(repeats + 2):
        inp = x.detach().requires_grad_()
        synchronise(x.device)
        start = time.perf_counter()
        with te.autocast(enabled=True, recipe=recipe) if recipe is not None else nullcontext():
            y = layer(inp)
        y.backward(torch.ones_like(y))
        synchronise(x.device)
        times.append(time.perf_counter() - start)
        for p in layer.parameters():
            p.grad = None
    return y.detach(), statistics.median(times[2:]) * 1e3


def five_steps(device: torch.device, data: Tensor) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    kw: dict[str, Any] = dict(params_dtype=DTYPE, device=device)
    embedding = torch.randn(256, HIDDEN, device=device)
    x = embedding[data[: SEQUENCE * BATCH].long().to(device)].view(BATCH, SEQUENCE, HIDDEN).transpose(0, 1).contiguous().to(DTYPE)

    def torch_linear(i: int, o: int) -> nn.Module:
        return nn.Linear(i, o, dtype=DTYPE, device=device)

    def te_linear(i: int, o: int) -> nn.Module:
        return te.Linear(i, o, **kw)

    baseline = Layer(lambda: nn.LayerNorm(HIDDEN, dtype=DTYPE, device=device), torch_linear, Attention())
    with torch.no_grad():
        for m in (baseline.qkv, baseline.proj, baseline.fc1, baseline.fc2):
            m.weight.normal_(0, 0.04)  # type: ignore[union-attr, operator]

    def te_norm() -> nn.Module:
        return te.LayerNorm(HIDDEN, **kw)

    delayed = te.recipe.DelayedScaling(fp8_format=te.recipe.Format.HYBRID, amax_history_len=16, amax_compute_algo="max")
    current = te.recipe.Float8CurrentScaling()
    core = te.DotProductAttention(HEADS, HIDDEN // HEADS)
    fused = FusedLayer(**kw)
    whole = te.TransformerLayer(
        HIDDEN, FFN, HEADS, hidden_dropout=0.0, attention_dropout=0.0, fuse_qkv_params=True, self_attn_mask_type="causal", **kw
    )
    plan = [
        ("1 torch modules", "BF16", baseline, None),
        ("2 te.Linear, te.LayerNorm", "BF16", Layer(te_norm, te_linear, Attention()), None),
        ("3 te.DotProductAttention", "BF16", Layer(te_norm, te_linear, core), None),
        ("4 te.autocast", "FP8 delayed", Layer(te_norm, te_linear, core), delayed),
        ("  ", "FP8 current", Layer(te_norm, te_linear, core), current),
        ("5 LayerNormLinear, LayerNormMLP", "FP8 delayed", fused, delayed),
        ("  te.TransformerLayer", "FP8 delayed", whole, delayed),
        ("  ", "BF16", whole, None),
    ]
    rows, reference, base_ms = [], x, 0.0
    for name, precision, layer, recipe in plan:
        copy_parameters(baseline, layer)
        y, ms = time_layer(layer, x, recipe)
        if not rows:
            reference, base_ms = y.double(), ms
        error = ((y.double() - reference).norm() / reference.norm()).item()
        limit = 0.01 if precision == "BF16" else 0.08
        if not error <= limit:
            raise SystemExit(f"quickstart: {name}: output differs from torch by {error:.4f}, more than {limit}")
        rows.append({"step": name, "precision": precision, "error": error, "ms": ms, "speedup": base_ms / ms})
        print(f"  {name:34s} {precision:12s} relative difference {error:.4f}   forward+backward {ms:8.2f} ms   {base_ms / ms:5.2f}x torch")
    return rows


# ---- training ----
class Model(nn.Module):
    """Byte-level decoder: RoPE, grouped-query attention, RMSNorm, SwiGLU."""

    def __init__(self, device: torch.device, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        kw: dict[str, Any] = dict(device=device)  # f32 parameters; activations are BF16 under torch.autocast
        self.embedding = nn.Embedding(256, width, device=device)
        self.layers = nn.ModuleList(
            te.TransformerLayer(
                width, 3 * width, 4, num_gqa_groups=2, hidden_dropout=0.0, attention_dropout=0.0, normalization="RMSNorm", activation="swiglu",
                bias=False, fuse_qkv_params=True, self_attn_mask_type="causal", attn_input_format="bshd", layer_number=i + 1, **kw,
            )
            for i in range(layers)
        )
        self.norm = te.RMSNorm(width, **kw)
        self.head = te.Linear(width, 256, bias=False, **kw)
        self.rope = te.RotaryPositionEmbedding(width // 4).to(device)
        nn.init.normal_(self.embedding.weight, 0, 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        freqs = self.rope(tokens.shape[1])
        for layer in self.layers:
            x = layer(x, rotary_pos_emb=freqs)
        return self.head(self.norm(x))


def train(device: torch.device, data: Tensor, recipe: Any, steps: int, label: str) -> dict[str, Any]:
    """Trains from seed 1; returns the loss curve, held-out loss and what ran in one step."""
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    training, held_out = text.split(data)
    model = Model(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 20) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * i / steps))))
    losses: list[float] = []
    calls: dict[str, int] = {}
    start = time.perf_counter()

    def precision() -> Any:
        return te.autocast(enabled=True, recipe=recipe) if recipe is not None else nullcontext()

    bar = tqdm(range(steps), desc=f"training, {label:4s}", ncols=100, mininterval=1.0)
    for step in bar:
        tokens, target = (t.to(device) for t in text.batch(training, 16, 128, generator))
        with libte.trace() if step == steps - 1 else nullcontext() as trace:
            with precision(), torch.autocast(device.type, dtype=DTYPE):
                loss = te.cross_entropy(model(tokens), target)
            loss.backward()
        if trace is not None:
            calls = trace.counts()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        bar.set_postfix(loss=f"{losses[-1]:.3f}")
    seconds = time.perf_counter() - start
    generator.manual_seed(3)
    with torch.no_grad(), precision(), torch.autocast(device.type, dtype=DTYPE):
        held = statistics.mean(
            te.cross_entropy(model(tokens.to(device)), target.to(device)).item()
            for tokens, target in (text.batch(held_out, 16, 128, generator) for _ in range(8))
        )
    return {"losses": losses, "held_out": held, "seconds": seconds, "calls": calls}


def plot(runs: dict[str, dict[str, Any]], entropy: float, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for label, run in runs.items():
        axes.plot(run["losses"], label=f"{label}, held-out {run['held_out']:.3f}")
    axes.axhline(entropy, color="grey", linestyle=":", label=f"byte frequencies {entropy:.3f}")
    axes.set(xlabel="step", ylabel="loss, nats a byte", title="Byte-level Transformer, FP8 and BF16 from one seed")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default=None, help="cpu, cuda; default: the GPU where libte's plug-in for it opens, else the CPU")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--text", default=None, help="a text file to train on; default: Python's own language reference")
    parser.add_argument("--out", type=Path, default=Path("build/quickstart"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    device, name = shared.torch_device(args.device)
    data = text.load_bytes(args.text)
    entropy = text.unigram_entropy(*text.split(data))
    print(f"text: {len(data):,} bytes; byte frequencies alone give {entropy:.3f} nats a byte on the held-out tenth\n")

    print(f"One decoder layer, hidden {HIDDEN}, ffn {FFN}, {HEADS} heads, sequence {SEQUENCE}, batch {BATCH}:")
    rows = five_steps(device, data)

    print("\nTraining a byte-level Transformer (2 layers, width 128, RoPE, GQA, RMSNorm, SwiGLU):")
    runs = {
        "FP8": train(device, data, te.recipe.DelayedScaling(amax_history_len=16), args.steps, "FP8"),
        "BF16": train(device, data, None, args.steps, "BF16"),
    }
    print(f"\n  {'':6s}{'first loss':>12s}{'last loss':>12s}{'held-out':>12s}{'seconds':>10s}   in the last step")
    for label, run in runs.items():
        gemms, fp8 = shared.gemms(run["calls"])
        print(f"  {label:6s}{run['losses'][0]:12.4f}{run['losses'][-1]:12.4f}{run['held_out']:12.4f}{run['seconds']:10.1f}   {gemms} GEMMs, {fp8} of them on FP8 codes")
        run["fp8_gemms"] = fp8
    print(f"  implementations that ran: {shared.implementations(*(run['calls'] for run in runs.values()))}")
    fp8, bf16 = runs["FP8"], runs["BF16"]
    margin = entropy - max(fp8["held_out"], bf16["held_out"])
    gap = fp8["held_out"] / bf16["held_out"] - 1
    print(f"  held out: both beat the byte frequencies by {margin:.3f} nats or more; FP8 is {100 * gap:+.2f}% from BF16")
    plot(runs, entropy, args.out / "loss.png")
    table = {"device": str(device), "name": name, "steps": rows, "training": runs, "unigram_entropy": entropy}
    (args.out / "quickstart.json").write_text(json.dumps(table, indent=1))
    print(f"  wrote {args.out / 'loss.png'} and {args.out / 'quickstart.json'}")
    checks = {
        "no FP8 GEMM ran in the FP8 run": fp8["fp8_gemms"] > 0,
        "an FP8 GEMM ran in the BF16 run": bf16["fp8_gemms"] == 0,
        "the two curves are the same": fp8["losses"] != bf16["losses"],
        "held-out loss does not beat the byte frequencies by 0.3 nats": args.steps < 100 or margin > 0.3,
        "FP8 is more than 2% worse than BF16 on held-out text": args.steps < 100 or gap < 0.02,
    }
    failed = [what for what, ok in checks.items() if not ok]
    if failed:
        raise SystemExit("quickstart failed: " + "; ".join(failed))


if __name__ == "__main__":
    main()
