# SPDX-License-Identifier: Apache-2.0
"""How operators are cut over the devices of a mesh, so that plain jax.jit keeps sharded arrays sharded.

Each dimension of each argument has a *factor*: a name that may be sharded (each device then works on its part), or None, which every device
holds whole. `*` of the schema gives l0, l1, ...; FREE says which of its names are factors too; dimensions that the schema leaves to the
operator are written down here. A mesh axis cuts at most one factor of a call. What a factor that an output lacks means is said by `sums`
(psum, or psum_scatter where the result is wanted sharded by the same axis) and `maxes` (pmax); everything else needs no collective.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule
from jax.sharding import NamedSharding, PartitionSpec
from libte.schema import CONSTANTS, OPS, Op

Shape = tuple[int, ...]
Dims = tuple[Optional[str], ...]
Axes = dict[str, tuple[str, ...]]  # of each factor
Call = Callable[..., dict[str, Any]]  # ops.raw: (operator, inputs, outputs, scalars)

FREE: dict[str, str] = {
    "activation_forward": "H", "activation_backward": "H", "quantize": "K", "dequantize": "K", "compute_amax": "K", "transpose": "K",
    "linear_forward": "N K", "linear_backward": "N K", "norm_linear_forward": "N", "softmax_forward": "Q", "softmax_backward": "Q",
    "cross_entropy_forward": "T", "cross_entropy_backward": "T"}
# Sums over named factors; an output without `*` is summed over it by itself.
SUMS: dict[str, dict[str, tuple[str, ...]]] = {"linear_forward": {"y": ("K",)}, "linear_backward": {"dx": ("N",)}}
# What is added to a sum: one device alone adds it.
ONCE: dict[str, dict[str, str]] = {"linear_forward": {"bias": "y"}, "linear_backward": {"dweight": "dweight"}, "gemm": {"bias": "d", "c": "d"}}


# A pair of equal halves that stand one after the other in a dimension of these arguments (gate and linear part; the weights that make them) may
# be a dimension of its own before it, so that devices can cut both halves alike: [*, 2, H] instead of [*, 2 * H]. Operators on such arguments
# are named with this suffix.
PAIRS = ":pairs"
_LINEAR = {"weight": -2, "dweight": -2, "weight_quantized": -2, "bias": -1, "dbias": -1, "y": -1, "dy": -1, "dy_quantized": -1}
_GATED = {"x": -1, "dx": -1}
MERGED: dict[str, dict[str, int]] = {"linear_forward": _LINEAR, "linear_backward": _LINEAR, "gated_activation_forward": _GATED,
                                     "gated_activation_backward": _GATED}


def flat(shape: Shape, at: Optional[int]) -> Shape:
    """The shape with the pair in its dimension `at` again."""
    return shape if at is None else (*shape[:at - 1], shape[at - 1] * shape[at], *shape[len(shape) + at + 1:])


class Rule(NamedTuple):
    """The factors of a call's arguments, by slot."""

    dims: dict[str, Dims]
    rows: tuple[str, ...]  # cut before others: the batch
    sums: dict[str, tuple[str, ...]]
    maxes: dict[str, tuple[str, ...]]
    once: dict[str, str]
    lower: Optional[Callable[..., dict[str, Any]]] = None  # (call, part) -> outputs; None: the operator itself


class Part(NamedTuple):
    """One device's share of a call, while it is traced."""

    name: str
    inputs: dict[str, Any]
    outputs: dict[str, Optional[str]]
    scalars: dict[str, Any]
    shapes: dict[str, Shape]  # of the whole arrays
    rule: Rule
    axes: Axes
    sizes: dict[str, int]  # of the mesh axes

    def axes_of(self, factors: Sequence[Optional[str]]) -> tuple[str, ...]:
        return tuple(a for f in factors if f for a in self.axes.get(f, ()))

    def index(self, factor: str) -> Any:
        """Which part of the factor this device has."""
        at: Any = 0
        for a in self.axes.get(factor, ()):
            at = at * self.sizes[a] + jax.lax.axis_index(a)
        return at


# ---- the rules ----
def rule_of(name: str, shapes: dict[str, Shape], scalars: dict[str, Any]) -> Rule:
    """The rule of a call from the shapes of its present slots."""
    if name.endswith(PAIRS):
        return _pairs(name.removesuffix(PAIRS), shapes, scalars)
    op = OPS[name]
    if any(f.count for f in op.fields):
        return _whole(shapes)
    base = _from_schema(op, shapes)
    return _WRITTEN[name](base, shapes, scalars) if name in _WRITTEN else base


def _whole(shapes: dict[str, Shape]) -> Rule:
    return Rule({s: (None,) * len(shape) for s, shape in shapes.items()}, (), {}, {}, {})


def _from_schema(op: Op, shapes: dict[str, Shape]) -> Rule:
    free = FREE.get(op.name, "").split()
    dims: dict[str, Dims] = {}
    sums = dict(SUMS.get(op.name, {}))
    lead: tuple[str, ...] = ()
    for s in op.slots:
        if s.name not in shapes:
            continue
        f, rank = op.field(s.field), len(shapes[s.name])
        dims[s.name] = (None,) * rank
        if s.part not in ("data", "columnwise") or f.dims is None:
            continue
        tail = tuple(e if isinstance(e, str) and e in free else "l0" if e == ("prod",) else None for e in f.dims)
        here = tuple(f"l{i}" for i in range(rank - len(tail))) if f.star else ()
        lead = max(lead, here, key=len)
        dims[s.name] = here + tail if s.part == "data" else tail[-1:] + here + tail[:-1]
        if f.writes and not (f.star or f.quantized or ("prod",) in f.dims):
            sums.setdefault(s.name, ())
    sums = {n: named or lead for n, named in sums.items() if n in shapes and n not in ("amax", "loss")}
    maxes = {s.name: _factors(op, s.field, dims) for s in op.slots if s.part == "amax" and s.name in dims}
    return Rule(dims, lead + tuple(n for n in free if n == "T"), sums, maxes, {i: o for i, o in ONCE.get(op.name, {}).items() if i in dims})


def _pairs(name: str, shapes: dict[str, Shape], scalars: dict[str, Any]) -> Rule:
    merged, gated = MERGED[name], MERGED[name] is _GATED
    base = rule_of(name, {s: flat(shape, merged.get(s)) for s, shape in shapes.items()}, scalars)
    half = "H" if gated else "N"
    dims = dict(base.dims)
    for s, d in base.dims.items():
        if s in merged:
            dims[s] = (*d[:merged[s]], None, half, *d[len(d) + merged[s] + 1:])
        elif gated and s in ("y", "dy"):
            dims[s] = (*d[:-1], half)
    return base._replace(dims=dims)


def _factors(op: Op, field: str, dims: dict[str, Dims]) -> tuple[str, ...]:
    """All factors of a field, from whichever orientation is there."""
    source = next((n for n in (field, f"{field}_columnwise") if n in dims), None)
    return () if source is None else tuple(f for f in dims[source] if f)


def _amax(base: Rule, shapes: dict[str, Shape], scalars: dict[str, Any]) -> Rule:
    return base._replace(maxes={"amax": tuple(f for f in base.dims["x"] if f)})


def _softmax(base: Rule, shapes: dict[str, Shape], scalars: dict[str, Any]) -> Rule:
    x = base.dims["x"] if "x" in base.dims else base.dims["dy"]
    dims = dict(base.dims)
    if "mask" in shapes:  # aligns right, size 1 = for all
        dims["mask"] = tuple(f if n > 1 else None for f, n in zip(x[len(x) - len(shapes["mask"]):], shapes["mask"]))
    if scalars.get("mask_kind"):  # the mask counts queries from 0
        dims = {s: tuple(None if f == "Q" else f for f in d) for s, d in dims.items()}
    return base._replace(dims=dims)


_FORMATS = {0: "sbhd", 1: "bshd", 2: "thd", 3: "bhsd"}


def _rope(base: Rule, shapes: dict[str, Shape], scalars: dict[str, Any]) -> Rule:
    letters = tuple(c if c in "bh" else None for c in _FORMATS[scalars["format"]])
    given = {"x": letters, "dy": letters, "y": letters, "dx": letters, "start_positions": ("b",), "positions": ("b", None)}
    return base._replace(dims=base.dims | {s: d for s, d in given.items() if s in shapes and len(d) == len(shapes[s])}, rows=("b",))


def _attention(base: Rule, shapes: dict[str, Shape], scalars: dict[str, Any]) -> Rule:
    form = _FORMATS[scalars["format"]]
    b = "b" if "b" in form and "cu_seqlens_q" not in shapes and "cu_seqlens_kv" not in shapes else None
    h, counted = form.index("h"), bool(scalars.get("dropout"))
    shared = shapes["k"][h] == 1 < shapes["q"][h]  # one key/value head for all: it is not cut
    heads = None if counted and b is None else "h"  # dropout counts (batch entry, head): see _lower_attention
    q: Dims = tuple({"b": b, "h": heads}.get(c) for c in form)
    kv: Dims = tuple(None if f == "h" and shared else f for f in q)
    dims = dict(base.dims)
    for s in shapes:
        if s in ("q", "o", "d_o", "dq"):
            dims[s] = q
        elif s in ("k", "v", "dk", "dv"):
            dims[s] = kv
        elif s == "stats":
            dims[s] = (b, heads, None) if len(shapes[s]) == 3 else (heads, None)
        elif s in ("bias", "mask", "dbias"):
            dims[s] = tuple(f if n > 1 else None for f, n in zip((b, heads, None, None), shapes[s]))
        elif s in ("softmax_offset", "dsoftmax_offset", "alibi_slopes"):
            dims[s] = (heads,)
    sums: dict[str, tuple[str, ...]] = {}
    every = tuple(f for f in (b, heads) if f)
    for s in ("dk", "dv", "dbias", "dsoftmax_offset"):
        if s in shapes:
            sums[s] = tuple(f for f in every if f not in dims[s])
    return base._replace(dims=dims, rows=("b",), sums=sums, lower=_lower_attention if counted else None)


def _gemm(base: Rule, shapes: dict[str, Shape], scalars: dict[str, Any]) -> Rule:
    flags = scalars.get("flags", 0)
    epilogue = flags & (CONSTANTS["NVTE_GEMM_GELU"] | CONSTANTS["NVTE_GEMM_DGELU"])

    def shape(s: str) -> Shape:
        if s in shapes:
            return shapes[s]
        c = shapes[f"{s}_columnwise"]
        return (*c[1:], c[0])

    def names(letter: str, n: int, whole: bool = False) -> Dims:
        return tuple(None if whole else f"{letter}{i}" for i in range(n))

    a, b = shape("a"), shape("b")
    inner_a = a[:-1] if flags & CONSTANTS["NVTE_GEMM_TRANS_A"] else a[-1:]
    inner_b = b[-1:] if flags & CONSTANTS["NVTE_GEMM_TRANS_B"] else b[:-1]
    nonlinear = bool(epilogue) or "d_amax" in shapes or "d_scale_inv" in shapes  # of the finished sum
    k = names("k", 1 if inner_a != inner_b else len(inner_a), nonlinear)  # folded differently: only the outermost part is common
    m = names("m", 1 if flags & CONSTANTS["NVTE_GEMM_TRANS_A"] else len(a) - 1)

    def cut(f: Dims, n: int) -> Dims:
        return f if len(f) == n else (*f[:1], *(None,) * (n - 1))

    full = {"a": cut(k, len(inner_a)) + m if flags & CONSTANTS["NVTE_GEMM_TRANS_A"] else m + cut(k, len(inner_a)),
            "b": ("n", *cut(k, len(inner_b))) if flags & CONSTANTS["NVTE_GEMM_TRANS_B"] else (*cut(k, len(inner_b)), "n"), "bias": ("n",)}
    for s in ("c", "d", "aux"):
        if s in shapes or f"{s}_columnwise" in shapes:
            full[s] = (*cut(m, len(shape(s)) - 1), "n")
    dgelu = bool(flags & CONSTANTS["NVTE_GEMM_DGELU"])
    full["dbias"] = ("n",) if dgelu else cut(m, 1)
    dims = dict(base.dims)
    for s, f in full.items():
        if s in shapes and len(f) == len(shapes[s]):
            dims[s] = f
        if f"{s}_columnwise" in shapes:
            dims[f"{s}_columnwise"] = f[-1:] + f[:-1]
    inner, rows = (tuple(f for f in d if f) for d in (k, m))
    sums = {s: f for s, f in {"d": inner, "d_columnwise": inner, "dbias": rows if dgelu else inner}.items() if s in shapes}
    return base._replace(dims=dims, rows=rows, sums=sums, maxes={s: rows + ("n",) for s in base.maxes if s == "d_amax"})


def _linear(base: Rule, shapes: dict[str, Shape], scalars: dict[str, Any]) -> Rule:
    sums = dict(base.sums)
    if "dbias" in sums:
        sums["dbias"] = base.rows
    current = scalars.get("flags", 0) & CONSTANTS["NVTE_LINEAR_CURRENT_SCALING"]
    return base._replace(sums=sums, lower=_lower_linear if current else None)


def _norm_linear(base: Rule, shapes: dict[str, Shape], scalars: dict[str, Any]) -> Rule:
    # amax of the normalised rows is taken inside
    return _whole(shapes) if scalars.get("flags", 0) & CONSTANTS["NVTE_LINEAR_CURRENT_SCALING"] else base


def _dropout(base: Rule, shapes: dict[str, Shape], scalars: dict[str, Any]) -> Rule:
    return _whole(shapes) if "mask" in shapes else base._replace(lower=_lower_dropout)  # bits of the whole array are packed in one row


def _cross_entropy(base: Rule, shapes: dict[str, Shape], scalars: dict[str, Any]) -> Rule:
    each = scalars["reduction"] == CONSTANTS["NVTE_REDUCTION_NONE"]
    dims = base.dims | {s: ("T" if each else None,) for s in ("loss", "dloss") if s in shapes}
    mean = scalars["reduction"] == CONSTANTS["NVTE_REDUCTION_MEAN"]
    return base._replace(dims=dims, sums={} if each or "loss" not in shapes else {"loss": ("T",)}, lower=_lower_mean if mean else None)


_WRITTEN: dict[str, Callable[[Rule, dict[str, Shape], dict[str, Any]], Rule]] = {
    "compute_amax": _amax, "softmax_forward": _softmax, "softmax_backward": _softmax, "rope_forward": _rope, "rope_backward": _rope,
    "attention_forward": _attention, "attention_backward": _attention, "gemm": _gemm, "linear_forward": _linear, "linear_backward": _linear,
    "norm_linear_forward": _norm_linear, "dropout_forward": _dropout, "dropout_backward": _dropout,
    "cross_entropy_forward": _cross_entropy, "cross_entropy_backward": _cross_entropy}


# ---- operators whose parts are not the operator of the parts ----
def _lower_linear(call: Call, p: Part) -> dict[str, Any]:
    """Current scaling: amaxes of whole tensors come before the codes, so the composite is taken apart (which keeps its bits)."""
    flags, inputs, outputs, made = p.scalars["flags"], dict(p.inputs), dict(p.outputs), {}
    ready = {"x": "NVTE_LINEAR_INPUT_READY", "dy": "NVTE_LINEAR_INPUT_READY", "weight": "NVTE_LINEAR_WEIGHT_READY"}
    for n, bit in ready.items():
        q = f"{n}_quantized"
        dtype = outputs.get(q) or outputs.get(f"{q}_columnwise")
        if dtype is None or flags & CONSTANTS[bit]:
            continue
        x = inputs[n]
        amax = call("compute_amax", {"x": x}, {"amax": None}, {})["amax"]
        axes = p.axes_of(p.rule.dims[n])
        amax = jax.lax.pmax(amax, axes) if axes else amax
        power = int(bool(flags & CONSTANTS["NVTE_LINEAR_POW2_SCALES"]))
        scale = call("compute_scale", {"amax": amax}, {"scale": None}, {"dtype": dtype, "flags": power})["scale"]
        asked = {s.replace(q, "y", 1): d for s, d in outputs.items() if s in (q, f"{q}_columnwise", f"{q}_scale_inv", f"{q}_columnwise_scale_inv")}
        codes = call("quantize", {"x": x, "y_scale": scale}, asked, {})
        made |= {s.replace("y", q, 1): v for s, v in codes.items()} | {f"{q}_amax": amax, f"{q}_scale": scale}
        inputs |= {s: v for s, v in made.items() if s in (q, f"{q}_columnwise", f"{q}_scale_inv", f"{q}_columnwise_scale_inv")}
        inputs.pop(f"{q}_scale", None)
        if n != "dy" or "dbias" not in outputs:
            del inputs[n]
        outputs = {s: d for s, d in outputs.items() if not s.startswith(q)}
        flags |= CONSTANTS[bit]
    made |= call(p.name, inputs, outputs, p.scalars | {"flags": flags & ~CONSTANTS["NVTE_LINEAR_CURRENT_SCALING"]})
    return {s: made[s] for s in p.outputs}


def _lower_mean(call: Call, p: Part) -> dict[str, Any]:
    """The mean is over the tokens of all devices that are not ignored."""
    count = jnp.sum(p.inputs["target"] != p.scalars["ignore_index"])
    axes = p.axes_of(("T",))
    count = jnp.maximum(jax.lax.psum(count, axes) if axes else count, 1).astype(jnp.float32)
    inputs = dict(p.inputs)
    if "dloss" in inputs:
        inputs["dloss"] = inputs["dloss"] / count
    out = call(p.name, inputs, p.outputs, p.scalars | {"reduction": CONSTANTS["NVTE_REDUCTION_SUM"]})
    return {s: v / count if s == "loss" else v for s, v in out.items()}


def _advanced(state: Any, by: Any) -> Any:
    """rng_state with its offset moved; as pairs of i32 where it is i32 (there is no i64 then)."""
    if state.dtype == jnp.int64:
        return state.at[1].add(by)
    low = state.astype(jnp.uint32)
    moved = low[1] + jnp.asarray(by).astype(jnp.uint32)
    high = (state >> 31).at[1].add((moved < low[1]).astype(jnp.int32))
    return jnp.stack([low.at[1].set(moved).astype(jnp.int32), high], -1)


def _lower_dropout(call: Call, p: Part) -> dict[str, Any]:
    """The mask depends on the index in the whole array: where this part is no run of it that starts at a multiple of 4, the operator runs on
    the smallest such run that contains it."""
    (source, result) = ("x", "y") if "x" in p.inputs else ("dy", "dx")
    x, whole, factors = p.inputs[source], p.shapes[source], p.rule.dims[source]
    cut = [i for i, f in enumerate(factors) if p.axes.get(f or "")]
    grown = tuple(n if i == 0 else w for i, (n, w) in enumerate(zip(x.shape, whole)))
    if cut and prod(grown) % 4:
        grown = whole
    starts = [p.index(f or "") * n if g != n else 0 for f, n, g in zip(factors, x.shape, grown)]
    run = x if grown == x.shape else jax.lax.dynamic_update_slice(jnp.zeros(grown, x.dtype), x, starts)
    moved = p.index(factors[0] or "") * (prod(grown) // 4) if factors and grown[:1] != whole[:1] else 0
    out = call(p.name, p.inputs | {source: run, "rng_state": _advanced(p.inputs["rng_state"], moved)}, p.outputs, p.scalars)[result]
    return {result: out if grown == x.shape else jax.lax.dynamic_slice(out, starts, x.shape)}


def _lower_attention(call: Call, p: Part) -> dict[str, Any]:
    """Dropout counts heads through the whole batch: a device with some of the heads runs its batch entries one by one."""
    form = _FORMATS[p.scalars["format"]]
    heads = p.shapes["q"][form.index("h")]
    local = p.inputs["q"].shape
    h0 = p.index("h") * local[form.index("h")]
    if "b" not in form or not p.axes.get("h"):
        b0 = p.index("b") * local[form.index("b")] if "b" in form else 0
        return call(p.name, p.inputs | {"rng_state": _advanced(p.inputs["rng_state"], b0 * heads + h0)}, p.outputs, p.scalars)
    batch = form.index("b")
    b0 = p.index("b") * local[batch]

    def at(slot: str) -> Optional[int]:
        if slot in ("stats", "bias", "mask", "dbias"):
            return 0 if p.shapes[slot][0] == p.shapes["q"][batch] > 1 or slot == "stats" else None
        return batch if slot in ("q", "k", "v", "o", "d_o", "dq", "dk", "dv") else None

    pieces = []
    for i in range(local[batch]):
        inputs = {s: v if at(s) is None else jax.lax.slice_in_dim(v, i, i + 1, axis=at(s)) for s, v in p.inputs.items()}
        inputs["rng_state"] = _advanced(p.inputs["rng_state"], (b0 + i) * heads + h0)
        pieces.append(call(p.name, inputs, p.outputs, p.scalars))
    return {s: sum(c[s] for c in pieces) if at(s) is None else jnp.concatenate([c[s] for c in pieces], at(s)) for s in p.outputs}


# ---- from factors to shardings ----
def _axes_at(sharding: Any, rank: int) -> tuple[tuple[str, ...], ...]:
    entries = tuple(getattr(sharding, "spec", ()) or ())
    entries += (None,) * (rank - len(entries))
    return tuple(e if isinstance(e, tuple) else (e,) if isinstance(e, str) else () for e in entries)


def assign(rule: Rule, sizes: dict[str, int], shapes: dict[str, Shape], inputs: dict[str, Any], outputs: dict[str, Any]) -> Axes:
    """Which mesh axes cut which factor. First what contracts without moving anything (all operands agree), then the batch as results and then
    operands have it, then the rest; an axis serves one factor, and only where it divides."""
    taken: set[str] = set()
    axes: Axes = {}
    at = {s: _axes_at(v, len(shapes[s])) for s, v in {**inputs, **outputs}.items()}

    def take(factor: Optional[str], wanted: Sequence[str]) -> None:
        if factor is None or factor in axes:
            return
        free = [a for a in wanted if sizes[a] > 1 and a not in taken]
        while free and any(n % prod(sizes[a] for a in free) for s in shapes for f, n in zip(rule.dims[s], shapes[s]) if f == factor):
            free.pop()
        if free:
            axes[factor] = tuple(free)
            taken.update(free)

    for factor in dict.fromkeys(f for fs in rule.sums.values() for f in fs):
        have = [at[s][i] for s in inputs for i, f in enumerate(rule.dims[s]) if f == factor]
        if len(have) > 1 and all(h == have[0] for h in have):
            take(factor, have[0])

    def follow(slots: dict[str, Any], rows: bool) -> None:
        for s in slots:
            if not rows or set(rule.dims[s]) & set(rule.rows):
                for f, wanted in zip(rule.dims[s], at[s]):
                    if not rows or slots is outputs or f in rule.rows:
                        take(f, wanted)

    for rows in (True, False):
        follow(outputs, rows)
        follow(inputs, rows)
    return axes


def _spec(dims: Dims, axes: Axes) -> list[tuple[str, ...]]:
    return [axes.get(f or "", ()) for f in dims]


def _named(mesh: Any, spec: Sequence[tuple[str, ...]]) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*(None if not e else e[0] if len(e) == 1 else e for e in spec)))


def result_shardings(rule: Rule, shapes: dict[str, Shape], mesh: Any, inputs: dict[str, Any], outputs: Sequence[str]) -> list[NamedSharding]:
    """Shardings of outputs from those of inputs."""
    axes = assign(rule, dict(mesh.shape), shapes, inputs, {})
    return [_named(mesh, _spec(rule.dims[s], axes)) for s in outputs]


def plan(call: Call, name: str, outputs: dict[str, Optional[str]], scalars: dict[str, Any], rule: Rule, shapes: dict[str, Shape], mesh: Any,
         given: dict[str, Any], wanted: dict[str, Any]) -> tuple[Callable[..., list[Any]], list[NamedSharding], list[NamedSharding]]:
    """A device's function of its parts of the inputs, and the shardings of results and operands that go with it."""
    sizes = dict(mesh.shape)
    axes = assign(rule, sizes, shapes, given, wanted)
    summed = {s: tuple(a for f in fs for a in axes.get(f, ())) for s, fs in rule.sums.items()}
    specs, scatter = {}, {}
    for s in outputs:
        spec, steps, left = _spec(rule.dims[s], axes), [], list(summed.get(s, ()))
        used = {a for e in spec for a in e}
        for i, entry in enumerate(_axes_at(wanted[s], len(spec))):
            for a in entry:
                if a in left and a not in used and shapes[s][i] % prod(sizes[b] for b in (*spec[i], a)) == 0:
                    left.remove(a)
                    steps.append((a, i))
                    spec[i] = (*spec[i], a)
        specs[s], scatter[s] = spec, (steps, tuple(left))

    def run(*operands: Any) -> list[Any]:
        inputs = dict(zip(given, operands))
        for s, o in rule.once.items():
            if summed.get(o) and s in inputs:
                first = jnp.stack([jax.lax.axis_index(a) == 0 for a in summed[o]]).all()
                inputs[s] = jnp.where(first, inputs[s], jnp.zeros_like(inputs[s]))
        part = Part(name, inputs, outputs, scalars, shapes, rule, axes, sizes)
        out = call(name, inputs, outputs, scalars) if rule.lower is None or not axes else rule.lower(call, part)
        for s in outputs:
            for a, i in scatter[s][0]:
                out[s] = jax.lax.psum_scatter(out[s], a, scatter_dimension=i, tiled=True)
            if scatter[s][1]:
                out[s] = jax.lax.psum(out[s], scatter[s][1])
            over = part.axes_of(rule.maxes.get(s, ()))
            if over:
                out[s] = jax.lax.pmax(out[s], over)
        return [out[s] for s in outputs]

    return run, [_named(mesh, specs[s]) for s in outputs], [_named(mesh, _spec(rule.dims[s], axes)) for s in given]


def shardy_rule(rule: Rule, shapes: dict[str, Shape], inputs: Sequence[str], outputs: Sequence[str]) -> SdyShardingRule:
    """The same in Shardy's notation: a dimension that is not cut gets a name of its own. So does a factor in each of its sizes (query heads and
    key/value heads): as compound of both, Shardy cuts the smaller one by part of a mesh axis, which JAX cannot name."""
    count = itertools.count()

    def word(f: Optional[str], n: int) -> str:
        return f"{f}of{n}" if f else f"w{next(count)}"

    sides = [tuple(ArrayMapping(*(word(f, n) for f, n in zip(rule.dims[s], shapes[s]))) for s in slots) for slots in (inputs, outputs)]
    return SdyShardingRule(*sides)
