# SPDX-License-Identifier: Apache-2.0
"""GPU rows: libte beside torch on one card, memory-bound ones against a device-to-device copy in the same loop (the ceiling). Bytes count
each input read once and each output written once; a goal in TB/s is absolute, the others are multiples of the rival's figure or, where there
is no rival, absolute.

    LIBTE_BACKEND_PATH=build/cuda python bench/gpu.py [--rows REGEX] [--rounds 9] [--size 8192] [--out FILE] [--no-compile]

Sides take turns inside one process (ours, rival, copy, ours, ...); a figure is the median over rounds of the mean of a burst of calls between
two events. A row that misses its gate is marked; the run fails only where the sides disagree or a call fails. Tuned GEMMs are measured by a
process of their own, since the setting is read once a process."""
from __future__ import annotations

import argparse
import datetime
import json
import platform
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from libte import _call  # noqa: E402
from render import gpu_gates  # noqa: E402
from te import SHIM, bind  # noqa: E402

F = torch.nn.functional
E4M3, E5M2, BF16, F32 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float32
Call = Callable[[], Any]
# ours, rival, check, bytes or floating-point operations, further sides. A side whose name ends in "*" is slow: fewer calls a burst.
Made = tuple[Call, Optional[Call], Callable[[], None], float, dict[str, Call]]
ROWS: dict[str, tuple[float, str, dict[str, float], Callable[[int], Any]]] = {}  # goal (0 = none), unit, gates
TUNING = "TE_HIPBLASLT_TUNING_RUN_COUNT"


def row(name: str, goal: float, unit: str = "TB/s", must: float = 0, **gates: float) -> Callable[[Callable[[int], Any]], Callable[[int], Any]]:
    """Gates: must, a share of the copy's rate; rival, a multiple of the rival's speed (in us: at most that multiple of its time); te, TFLOP/s of
    Transformer Engine on a card whose 8192^3 bf16 GEMM ran at 665 in torch (the side "gemm"); us, at most."""
    def add(make: Callable[[int], Any]) -> Callable[[int], Any]:
        ROWS[name] = goal, unit, {**({"copy": must} if must else {}), **gates}, make
        return make

    return add


def new(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="cuda")


def normal(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def close(a: torch.Tensor, b: torch.Tensor, least: float = 2.0**-5) -> None:
    error = ((a.float() - b.float()).abs().max() / b.float().abs().max()).item()
    if not error < least:
        raise AssertionError(f"the sides differ by {error:.2e} of the largest value")


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    if not torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
        raise AssertionError("the codes differ")


def quantize(n: int, columnwise: bool, current: bool) -> Made:
    x, y, t = normal(n, n), new(n, n, dtype=E4M3), new(n, n, dtype=E4M3) if columnwise else None
    one, inv, amax = torch.ones(1, device="cuda"), new(1, dtype=F32), new(1, dtype=F32)
    cast = bind("quantize", x=x, y=y, y_columnwise=t, y_scale_inv=inv, y_columnwise_scale_inv=inv if columnwise else None, y_scale=one,
                y_amax=None if current else amax)
    first = bind("compute_amax", x=x, amax=amax)
    scale = bind("compute_scale", amax=amax, scale=one, scale_inv=inv, dtype=_call.dtype_word("e4m3")) if current else None

    def ours() -> None:
        if scale:
            first()
            scale()
        cast()

    def rival() -> Any:
        s = 448 / x.abs().amax().float() if current else one
        codes = (x.float() * s).clamp(-448, 448).to(E4M3)
        return codes, codes.t().contiguous() if columnwise else None

    def check() -> None:
        ours()
        if t is not None:
            same(t, y.t().contiguous())
        close(y.float() * inv, x, 2.0**-4)  # half a step of E4M3

    return ours, rival, check, n * n * (2 * (2 if current else 1) + 1 + columnwise)


row("cast_transpose.bf16", 3.9, must=0.9)(lambda n: quantize(n, True, False))
row("cast.bf16", 4.0, must=0.9)(lambda n: quantize(n, False, False))
row("cast_transpose.current.bf16", 3.8, must=0.9)(lambda n: quantize(n, True, True))


@row("transpose.bf16", 0, must=0.9)
def transpose(n: int) -> Made:
    x, y, out = normal(n, n), new(n, n), new(n, n)
    ours = bind("transpose", x=x, y=y)

    def check() -> None:
        ours()
        same(y, x.t().contiguous())

    return ours, lambda: out.copy_(x.t()), check, 4 * n * n


@row("dequantize.bf16", 0, must=0.9)
def dequantize(n: int) -> Made:
    x, y, inv = normal(n, n).to(E4M3), new(n, n), torch.ones(1, device="cuda")
    out = new(n, n)
    ours = bind("dequantize", x=x, x_scale_inv=inv, y=y)

    def check() -> None:
        ours()
        close(y, x.float())

    return ours, lambda: out.copy_(x), check, 3 * n * n


def norm(n: int, h: int, rms: bool, backward: bool) -> Made:
    m = n * n // h
    x, dy, gamma, beta = normal(m, h), normal(m, h), normal(h), normal(h)
    y, dx, mu, rstd, dgamma, dbeta = new(m, h), new(m, h), new(m, dtype=F32), new(m, dtype=F32), new(h), new(h)
    name = "rmsnorm" if rms else "layernorm"
    extra: dict[str, Any] = {} if rms else {"beta": beta, "mu": mu}
    forward = bind(f"{name}_forward", x=x, gamma=gamma, y=y, rstd=rstd, epsilon=1e-5, **extra)
    xs, gs, bs = x.clone().requires_grad_(), gamma.clone().requires_grad_(), beta.clone().requires_grad_()

    def reference(a: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(a, (h,), g, 1e-5) if rms else F.layer_norm(a, (h,), g, b, 1e-5)

    if not backward:
        def check() -> None:
            forward()
            close(y, reference(x, gamma, beta))

        return forward, lambda: reference(x, gamma, beta), check, 4 * m * h
    forward()
    saved: dict[str, Any] = {} if rms else {"mu": mu, "dbeta": dbeta}
    ours = bind(f"{name}_backward", dy=dy, x=x, gamma=gamma, rstd=rstd, dx=dx, dgamma=dgamma, **saved)
    inputs = [xs, gs] if rms else [xs, gs, bs]
    made = reference(xs, gs, bs)

    def rival() -> Any:
        return torch.autograd.grad(made, inputs, dy, retain_graph=True)

    def check_backward() -> None:
        ours()
        theirs = rival()
        close(dx, theirs[0])
        close(dgamma, theirs[1])

    return ours, rival, check_backward, 6 * m * h


for _h in (1024, 4096, 8192):
    row(f"layernorm.forward.{_h}", 3.9, must=0.88)(lambda n, h=_h: norm(n, h, False, False))
    row(f"layernorm.backward.{_h}", 3.6, must=0.82)(lambda n, h=_h: norm(n, h, False, True))
    row(f"rmsnorm.forward.{_h}", 3.9, must=0.88)(lambda n, h=_h: norm(n, h, True, False))
    row(f"rmsnorm.backward.{_h}", 3.7, must=0.82)(lambda n, h=_h: norm(n, h, True, True))


@row("gelu", 4.0, must=0.9)
def gelu(n: int) -> Made:
    x, y = normal(n, n), new(n, n)
    ours = bind("activation_forward", x=x, y=y, activation=0)

    def check() -> None:
        ours()
        close(y, F.gelu(x, approximate="tanh"))

    return ours, lambda: F.gelu(x, approximate="tanh"), check, 4 * n * n


@row("swiglu", 4.0, must=0.9)
def swiglu(n: int) -> Made:
    x, y = normal(n, 2 * n), new(n, n)
    ours = bind("gated_activation_forward", x=x, y=y, activation=5)

    def check() -> None:
        ours()
        close(y, F.silu(x[:, :n]) * x[:, n:])

    return ours, lambda: F.silu(x[:, :n]) * x[:, n:], check, 6 * n * n


@row("dswiglu", 4.0, must=0.9)
def dswiglu(n: int) -> Made:
    x, dy, dx = normal(n, 2 * n), normal(n, n), new(n, 2 * n)
    ours = bind("gated_activation_backward", dy=dy, x=x, dx=dx, activation=5)
    leaf = x.clone().requires_grad_()
    made = F.silu(leaf[:, :n]) * leaf[:, n:]

    def rival() -> Any:
        return torch.autograd.grad(made, leaf, dy, retain_graph=True)[0]

    def check() -> None:
        ours()
        close(dx, rival())

    return ours, rival, check, 10 * n * n


@row("softmax.forward", 0)
def softmax(n: int) -> Made:
    x, y = normal(n, n), new(n, n)
    ours = bind("softmax_forward", x=x, y=y)

    def check() -> None:
        ours()
        close(y, torch.softmax(x, -1))

    return ours, lambda: torch.softmax(x, -1), check, 4 * n * n


@row("dropout.forward", 0)
def dropout(n: int) -> Made:
    x, y, mask, rng = normal(n, n), new(n, n), new(n * n // 8, dtype=torch.uint8), torch.tensor([7, 0], device="cuda")
    ours = bind("dropout_forward", x=x, rng_state=rng, y=y, mask=mask, p=0.1)

    def check() -> None:
        ours()
        kept = (y != 0).float().mean().item()
        if not abs(kept - 0.9) < 2.0**-7:
            raise AssertionError(f"kept {kept}")

    return ours, lambda: torch.ops.aten.native_dropout(x, 0.1, True), check, n * n * 4.125


@row("rope.forward", 0)
def rope(n: int) -> Made:
    b, h, d = 2, 32, 128
    s = n * n // (b * h * d)
    x, y = normal(b, s, h, d), new(b, s, h, d)
    half = torch.arange(s, device="cuda").float()[:, None] / 10000 ** (torch.arange(0, d, 2, device="cuda") / d)
    freqs = torch.cat([half, half], -1)
    cos, sin = (f(freqs).to(BF16)[None, :, None, :] for f in (torch.cos, torch.sin))
    ours = bind("rope_forward", x=x, freqs=freqs, y=y, format=_call.CONSTANTS["NVTE_FORMAT_BSHD"])

    def rival() -> torch.Tensor:
        return x * cos + torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1) * sin

    def check() -> None:
        ours()
        close(y, rival())

    return ours, rival, check, 4 * n * n


@row("cross_entropy.forward", 0)
def cross_entropy(n: int) -> Made:
    v = 128000
    t = max(1, n * n // v)
    x, target, loss, lse = normal(t, v), torch.randint(v, (t,), device="cuda"), new(1, dtype=F32), new(t, dtype=F32)
    ours = bind("cross_entropy_forward", logits=x, target=target, loss=loss, lse=lse)

    def check() -> None:
        ours()
        close(loss, F.cross_entropy(x.float(), target).reshape(1))

    return ours, lambda: F.cross_entropy(x, target), check, 2 * t * v


# ---- matrix-bound rows and host time: TFLOP/s, microseconds ----


def gemm(n: int, fp8: bool, split: bool = False) -> Made:
    d, one = new(n, n), torch.ones(1, device="cuda")
    a, b = normal(n, n), normal(n, n)
    scales: dict[str, Any] = {}
    if fp8:
        a, b, scales = a.to(E4M3), b.to(E4M3), dict(a_scale_inv=one, b_scale_inv=one)
    ours = bind("gemm", a=a, b=b, d=d, flags=GEMM_TRANS_B | (GEMM_SPLIT if split else 0), **scales)

    def rival() -> Any:
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=BF16, use_fast_accum=not split) if fp8 else torch.mm(a, b.t())

    def check() -> None:
        ours()
        close(d, rival())

    return ours, rival, check, 2.0 * n**3


GEMM_TRANS_B, GEMM_SPLIT = 2, 16
for _n in (2048, 4096, 8192):
    for _fp8 in (False, True):
        row(f"gemm.{'e4m3' if _fp8 else 'bf16'}.{_n}", 1.0, "TFLOP/s", rival=0.99)(lambda _, n=_n, fp8=_fp8: gemm(n, fp8))
        row(f"tuned.gemm.{'e4m3' if _fp8 else 'bf16'}.{_n}", 1.03, "TFLOP/s", rival=1.0)(lambda _, n=_n, fp8=_fp8: gemm(n, fp8))
row("gemm.e4m3.split.8192", 1.0, "TFLOP/s", rival=0.99)(lambda _: gemm(8192, True, True))


class Own:
    """libte's own kernels in the place of the library's choice, for what is called inside."""

    def __enter__(self) -> None:
        from libte_torch import ops

        self.context = ops._eager.context
        self.context.implementation = b"gpu"

    def __exit__(self, *_: Any) -> None:
        self.context.implementation = None


def attention(shape: tuple[int, int, int, int], groups: int, causal: bool, backward: bool) -> Made:
    import libte_torch as te
    from torch.nn.attention import SDPBackend, sdpa_kernel

    b, h, s, d = shape
    q, k, v, do = normal(b, s, h, d).requires_grad_(), normal(b, s, groups, d).requires_grad_(), normal(b, s, groups, d).requires_grad_(), normal(b, s, h, d)
    core = te.DotProductAttention(h, d, groups, qkv_format="bshd", attn_mask_type="causal" if causal else "no_mask")

    def theirs(backend: SDPBackend) -> torch.Tensor:
        with sdpa_kernel([backend]):
            heads = (t.transpose(1, 2) for t in (q, k, v))
            return F.scaled_dot_product_attention(*heads, is_causal=causal, enable_gqa=groups != h).transpose(1, 2)

    def own() -> torch.Tensor:
        with Own():
            return core(q, k, v)

    def gradients(result: torch.Tensor) -> Any:
        return torch.autograd.grad(result, (q, k, v), do, retain_graph=True)

    def own_gradients() -> Any:
        with Own():
            return gradients(o)

    o, cudnn, flash = core(q, k, v).view_as(do), theirs(SDPBackend.CUDNN_ATTENTION), theirs(SDPBackend.FLASH_ATTENTION)

    def check() -> None:
        close(o, cudnn)
        for ours, theirs in zip(gradients(o), gradients(cudnn)):
            close(ours, theirs)

    flops = 4.0 * b * h * s * s * d * (0.5 if causal else 1) * (2.5 if backward else 1)
    if backward:
        return lambda: gradients(o), lambda: gradients(cudnn), check, flops, {"flash": lambda: gradients(flash), "gpu*": own_gradients}
    quiet = torch.no_grad()
    return (quiet(lambda: core(q, k, v)), quiet(lambda: theirs(SDPBackend.CUDNN_ATTENTION)), check, flops,
            {"flash": quiet(lambda: theirs(SDPBackend.FLASH_ATTENTION)), "gpu*": quiet(own)})


for _name, _shape, _groups, _causal in (("b4h32s4096d128.causal", (4, 32, 4096, 128), 32, True), ("b4h32s4096d128.causal.gqa8", (4, 32, 4096, 128), 8, True),
                                        ("b2h32s8192d128", (2, 32, 8192, 128), 32, False), ("b8h16s2048d64.causal", (8, 16, 2048, 64), 16, True),
                                        ("b8h32s1024d128.causal", (8, 32, 1024, 128), 32, True)):
    for _back in (False, True):
        row(f"attention.{'backward' if _back else 'forward'}.{_name}", 1.0, "TFLOP/s", rival=0.98)(
            lambda _, a=(_shape, _groups, _causal, _back): attention(*a))


def step(module: torch.nn.Module, twin: Optional[Callable[[torch.Tensor], torch.Tensor]], x: torch.Tensor, recipe: Any,
         flops: float) -> tuple[Call, Optional[Call], Callable[[], None], float]:
    """Forward and backward of a module as a training step has them, beside its plain-torch twin in bf16."""
    import libte_torch as te

    leaves = [x.requires_grad_(), *module.parameters()]
    dy = normal(*module(x).shape)

    def backward(y: torch.Tensor) -> torch.Tensor:
        for leaf in leaves:
            leaf.grad = None
        y.backward(dy)
        return y

    def ours() -> torch.Tensor:
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            y = module(x)
        return backward(y)

    def rival() -> torch.Tensor:
        assert twin is not None
        return backward(twin(x))

    def check() -> None:
        y = [ours() for _ in range(3)][-1]  # delayed scaling needs a step or two
        if twin is not None and recipe is None:
            close(y, rival())

    return ours, rival if twin is not None else None, check, flops


def with_limits(made: tuple[Call, Optional[Call], Callable[[], None], float], t: int, *layers: tuple[int, int]) -> Made:
    """Further sides of an FP8 row. The card's power and temperature decide the rates of such long work, so what they are compared with is measured
    in the same loop: "gemm", torch's 8192^3 bf16 product, by which Transformer Engine's figures are scaled; "gemms", the products of the layers
    (in, out) alone, by torch._scaled_mm with the same accumulators."""
    a, b = normal(8192, 8192), normal(8192, 8192)
    return (*made, {"gemm": lambda: torch.mm(a, b.t()), "gemms": products(t, *layers)})


def products(t: int, *layers: tuple[int, int]) -> Call:
    one = torch.ones(1, device="cuda")

    def operand(rows: int, columns: int, dtype: torch.dtype = E4M3) -> torch.Tensor:
        return normal(rows, columns).to(dtype)

    pairs = []
    for k, n in layers:
        pairs += [(operand(t, k), operand(n, k), True), (operand(t, n, E5M2), operand(k, n), False), (operand(n, t, E5M2), operand(k, t), False)]
    return lambda: [torch._scaled_mm(a, b.t(), one, one, out_dtype=BF16, use_fast_accum=fast) for a, b, fast in pairs]


def recipe_of(kind: str) -> Any:
    import libte_torch as te

    return {"bf16": lambda: None, "delayed": te.DelayedScaling, "current": te.Float8CurrentScaling}[kind]()


def layernorm_linear(kind: str) -> Made:
    import libte_torch as te

    t, h = 8192, 8192
    m = te.LayerNormLinear(h, 3 * h, params_dtype=BF16, device="cuda")

    def twin(x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.layer_norm(x, (h,), m.layer_norm_weight, m.layer_norm_bias), m.weight, m.bias)

    made = step(m, twin, normal(t, h), recipe_of(kind), 18.0 * t * h * h)
    return made if kind == "bf16" else with_limits(made, t, (h, 3 * h))


def layernorm_mlp(kind: str) -> Made:
    import libte_torch as te

    t, h, f = 8192, 8192, 28672
    m = te.LayerNormMLP(h, f, params_dtype=BF16, device="cuda")

    def twin(x: torch.Tensor) -> torch.Tensor:
        n = F.layer_norm(x, (h,), m.layer_norm_weight, m.layer_norm_bias)
        return F.linear(F.gelu(F.linear(n, m.fc1_weight, m.fc1_bias), approximate="tanh"), m.fc2_weight, m.fc2_bias)

    made = step(m, twin, normal(t, h), recipe_of(kind), 12.0 * t * h * f)
    return made if kind == "bf16" else with_limits(made, t, (h, f), (f, h))


def linear(t: int, h: int, kind: str) -> Made:
    import libte_torch as te

    m = te.Linear(h, h, params_dtype=BF16, device="cuda")
    return step(m, lambda x: F.linear(x, m.weight, m.bias), normal(t, h), recipe_of(kind), 6.0 * t * h * h)


def tiny_layer(kind: str) -> Made:
    import libte_torch as te

    m = te.TransformerLayer(256, 1024, 4, hidden_dropout=0, attention_dropout=0, params_dtype=BF16, device="cuda")
    return step(m, None, normal(32, 1, 256), recipe_of(kind), 0)


# Transformer Engine's figures on an H200: TFLOP/s of forward and backward; us of host time, the lower end
ENGINE = {"layernorm_linear": {"delayed": 1228, "current": 1182}, "layernorm_mlp": {"delayed": 1004, "current": 1091}}
LAYER_US = {"bf16": 6100, "delayed": 6800}
for _kind in ("bf16", "delayed", "current"):  # beside torch in bf16
    _gate = {} if _kind == "bf16" else {"rival": 1.6}
    for _name, _make in (("layernorm_linear", layernorm_linear), ("layernorm_mlp", layernorm_mlp)):
        row(f"{_name}.{_kind}", 0, "TFLOP/s", **{} if _kind == "bf16" else {"te": ENGINE[_name][_kind]})(lambda _, k=_kind, make=_make: make(k))
    row(f"linear.t8192h4096.{_kind}", 0, "TFLOP/s")(lambda _, k=_kind: linear(8192, 4096, k))
    row(f"host.linear.t32h256.{_kind}", 0 if _kind == "bf16" else 1.5, "us", **_gate)(lambda _, k=_kind: linear(32, 256, k))
for _kind, _us in LAYER_US.items():
    row(f"host.layer.s32h256.{_kind}", 0.35 * _us, "us", us=0.4 * _us)(lambda _, k=_kind: tiny_layer(k))


def burst(call: Call, calls: int) -> float:
    """Seconds a call, over `calls` of them."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    call()  # the clock starts on a busy GPU: what the host needs for its first launch is no time of the GPU's
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--out", default="")
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    space = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")  # tuning needs an f32 D beside the library's own
    SHIM.context.workspace, SHIM.context.workspace_size = space.data_ptr(), space.numel()
    a, b = new(options.size, options.size), new(options.size, options.size)
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=False).stdout.split()
    result: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "driver": "".join(driver[:1]), "date": datetime.datetime.now(datetime.timezone.utc).isoformat(),
                              "torch": torch.__version__, "python": platform.python_version(), "options": vars(options), "rows": []}
    failed = 0
    tuned = bool(os.environ.get(TUNING))
    for name, (goal, unit, gates, make) in ROWS.items():
        if not re.search(options.rows, name) or name.startswith("tuned.") != tuned:
            continue
        record: dict[str, Any] = {"id": name, "goal": goal, "unit": unit, "must": gates}
        result["rows"].append(record)
        try:
            torch.manual_seed(0)
            ours, rival, check, work, *more = make(options.size)
            check()
            sides: dict[str, Call] = {"ours": ours}
            if unit == "TB/s":
                sides["copy"] = lambda: a.copy_(b)
            if rival:
                sides["rival"] = rival
                if unit == "TB/s" and not options.no_compile and "backward" not in name and name != "dswiglu":
                    sides["compiled"] = torch.compile(rival)
            for further in more:
                sides.update(further)
            for call in sides.values():
                burst(call, 3)
            times: dict[str, list[float]] = {side.rstrip("*"): [] for side in sides}
            for _ in range(options.rounds * (3 if unit == "us" else 1)):  # a virtual machine's host time comes in two modes
                for side, call in sides.items():
                    times[side.rstrip("*")].append(burst(call, max(1, options.calls // (8 if side.endswith("*") else 1))))
            record.update(work=work, seconds=times)
            middle = {side: statistics.median(t) for side, t in times.items()}
            done = {"copy": 4 * options.size**2, "gemm": 2 * 8192**3}
            speed = {side: t * 1e6 if unit == "us" else done.get(side, work) / t / 1e12 for side, t in middle.items()}
            line = "  ".join(f"{side} {s:7.2f} {unit}" for side, s in speed.items())
            wanted = goal * (speed["rival"] if unit != "TB/s" and rival else 1)
            met = all(good for _, _, good in gpu_gates(record, result))
            print(f"{name:40} {line}  goal {f'{wanted:.2f}' if goal else '-'} {'' if met else 'MISSED'}", flush=True)
        except Exception as e:
            failed = 1
            record["error"] = f"{type(e).__name__}: {e}"[:400]
            print(f"{name:40} {record['error']}", flush=True)
        torch.cuda.empty_cache()
    if not tuned and any(name.startswith("tuned.") and re.search(options.rows, name) for name in ROWS):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            given = ["--rows", options.rows, "--rounds", str(options.rounds), "--calls", str(options.calls), "--out", file.name]
            environment = {**os.environ, TUNING: "10", "TE_HIPBLASLT_TUNING_ALGO_COUNT": "32"}
            failed |= subprocess.run([sys.executable, __file__, *given], env=environment, check=False).returncode
            result["rows"] += json.loads(Path(file.name).read_text() or '{"rows": []}')["rows"]
    if options.out:
        Path(options.out).write_text(json.dumps(result))
    return failed


if __name__ == "__main__":
    sys.exit(main())
