# SPDX-License-Identifier: Apache-2.0
"""Every operator on JAX arrays: ``ops.rmsnorm_forward(x, gamma, rstd=True, epsilon=1e-5)``.

Inputs come first, in the header's order; outputs are asked for by keyword (True, a dtype, or `Output` for FP8) and scalars are keywords,
constants by name (``activation="silu"``). A quantised argument is a `Quantized`. Shapes, dtypes and the operator's own rules are checked
when the call is traced, by nvte_infer and nvte_workspace, so a refusal is a Python exception with libte's message. Works eagerly, under
jit (sharded arrays stay sharded: `partition`), vmap and shard_map; for gradients see `functional`.

vmap: an operator whose results all have the leading dimensions `*` takes the batch as one more of them, if everything with `*` is batched and
nothing else is; all other calls run one entry after another. ``in_place=True`` lets the result have the input's memory, where the operator may.
"""
from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.custom_partitioning import custom_partitioning
from libte import _call, errors
from libte.schema import CONSTANTS, OPS, PARTS, Op, Slot

from . import _ffi
from . import partition as _partition

_DTYPES = {np.dtype(getattr(jnp, j)): n for j, n in {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "float8_e4m3fnuz": "e4m3fnuz",
    "float8_e5m2fnuz": "e5m2fnuz", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "bool_": "bool"}.items()}
_DTYPES[np.dtype(np.int64)] = "i64"
_BACK = {n: d for d, n in _DTYPES.items()}
_BORROWED = frozenset(np.dtype(t) for t in ("f4", "f2", "i4", "u1"))
_MAX_DIMS = 8  # NVTE_MAX_DIMS
# "Memory will be there", each slot's apart from the others': nvte_workspace reads no data, but refuses outputs that overlap.
_SOMEWHERE = [_call.ffi.cast("void *", i << 40) for i in range(1, 64)]


class Quantized(NamedTuple):
    """FP8 codes with their scaling: numbers ~ data * scale_inv. `columnwise` is the transpose [K, M]."""

    data: Optional[Array] = None
    columnwise: Optional[Array] = None
    scale_inv: Optional[Array] = None
    columnwise_scale_inv: Optional[Array] = None
    scale: Optional[Array] = None
    amax: Optional[Array] = None


class Output(NamedTuple):
    """What to make of an output that may be quantised. `compute_scale`: the operator computes the scale itself (current scaling)."""

    dtype: Any = None
    scale: Optional[Array] = None
    amax: bool = True
    rowwise: bool = True
    columnwise: bool = False
    compute_scale: bool = False


class Spec(NamedTuple):
    shape: tuple[int, ...]
    dtype: str


def dtype_name(dtype: Any) -> str:
    if isinstance(dtype, str) and dtype in _BACK:
        return dtype
    try:
        return _DTYPES[np.dtype(dtype)]
    except (KeyError, TypeError):
        got = "array for a dtype" if isinstance(dtype, (Array, np.ndarray)) else f"{dtype} arrays"
        raise errors.InvalidArgumentError(f"libte takes no {got}; it takes {', '.join(_BACK)}") from None


@lru_cache(maxsize=4096)
def _abstract(name: str, inputs: tuple[tuple[str, Spec], ...], outputs: tuple[tuple[str, Optional[str]], ...],
              scalars: tuple[tuple[str, Any], ...], device: int) -> tuple[tuple[tuple[str, Spec], ...], int]:
    """Shapes and dtypes of the asked output slots, and the bytes of workspace; refuses what the operator would refuse."""
    op = OPS[name]
    slots = {s.name: s for s in op.slots}
    memory = dict(zip(slots, _SOMEWHERE))
    f = _call.Frame(op)
    numbers = dict(scalars)
    _call.set_scalars(f, tuple(numbers[s.name] for s in op.scalars if s.name in numbers),
                      frozenset(s.name for s in op.scalars if s.name not in numbers))
    tensors: dict[str, Any] = {}

    def descriptor(s: Slot) -> Any:
        if s.field not in tensors:
            field = op.field(s.field)
            tensors[s.field] = f.list(field, 1)[0] if field.count else f.tensor(s.field)
        return tensors[s.field]

    for n, spec in inputs:
        s = slots[n]
        t = descriptor(s)
        if s.part not in ("data", "columnwise") and (prod(spec.shape) != 1 or spec.dtype != "f32"):
            raise errors.InvalidArgumentError(f"nvte_{name}: {s.field}.{s.part} must be f32 [1], got {spec.dtype} {list(spec.shape)}")
        t.set(PARTS.index(s.part), memory[n], spec.shape, None, spec.dtype, (device, 0))
        if s.part in ("data", "columnwise") and spec.dtype in _call.FP8:
            t.c.scaling = _call.SCALING_TENSOR
        if s.part == "columnwise" and t.data.data == _call.NULL:
            t.set(0, _call.NULL, (*spec.shape[1:], spec.shape[0]), None, spec.dtype, (device, 0))
    given = {n for n, _ in inputs}
    for n, dtype in outputs:
        if n in given:  # in place: what comes out is what went in
            continue
        s = slots[n]
        t = descriptor(s)
        t.ask(PARTS.index(s.part), dtype)
        if dtype in _call.FP8:
            t.c.scaling = _call.SCALING_TENSOR
    _call.infer(f)
    out = []
    ins = dict(inputs)
    for n, dtype in outputs:
        if n in given:
            out.append((n, ins[n]))
            continue
        s = slots[n]
        t, i = tensors[s.field], PARTS.index(s.part)
        shape, found = t.answer(i)
        if i > 1:
            shape, found = (1,), "f32"  # the scalars of tensor scaling
        if i == 1:
            wide = t.answer(0)[0]
            shape, found = (wide[-1], *wide[:-1]), dtype or found
        out.append((n, Spec(shape, found)))
    for n, spec in out:
        s = slots[n]
        tensors[s.field].set(PARTS.index(s.part), memory[n], spec.shape, None, spec.dtype, (device, 0))
    size = _call.ffi.new("size_t *")
    f.exec.device.device_type = device
    status = _call.lib.nvte_workspace(name.encode(), f.exec, f.void, size)
    if status:
        text = _call.ffi.string(_call.lib.nvte_last_error()).decode(errors="replace")
        raise errors.error(status, text.replace(f"nvte_workspace: {name}:", f"nvte_{name}:", 1))
    return tuple(out), size[0]


# ---- varying axes of shard_map ----
def _varying(x: Any) -> frozenset[str]:
    aval = jax.typeof(x) if hasattr(jax, "typeof") else None
    m = getattr(aval, "manual_axis_type", None)
    return frozenset(m.varying) if m is not None else frozenset(getattr(aval, "vma", ()) or ())


def vary(x: Array, axes: frozenset[str]) -> Array:
    """x as varying over mesh axes, where shard_map checks that."""
    missing = tuple(sorted(axes - _varying(x)))
    if not missing:
        return x
    return jax.lax.pcast(x, missing, to="varying") if hasattr(jax.lax, "pcast") else jax.lax.pvary(x, missing)


def like(gradient: Array, primal: Array) -> Array:
    """A gradient summed over the axes that its primal does not vary over (a weight that all shards share)."""
    extra = tuple(sorted(_varying(gradient) - _varying(primal)))
    return jax.lax.psum(gradient, extra) if extra else gradient


def greatest(amax: Array, primal: Array) -> tuple[Array, float]:
    """The same for amaxes: the largest of all shards; and which part of a sum over shards one of them is, where shard_map adds untold."""
    untold = _untold_axes()
    extra = untold or tuple(sorted(_varying(amax) - _varying(primal)))
    return jax.lax.pmax(amax, extra) if extra else amax, 1 / jax.lax.psum(1, untold) if untold else 1


def in_old_shard_map() -> bool:
    """Inside shard_map of a jax whose types do not say over which axes values vary."""
    return not hasattr(jax, "shard_map") and bool(jax.core.nonempty_axis_env_DO_NOT_USE())


def _untold_axes() -> tuple[str, ...]:
    """The axes of a shard_map that does not say what varies over them (check_vma=False, an older jax), so which gradients it adds up."""
    if in_old_shard_map():
        return tuple(jax.core.unsafe_get_axis_names_DO_NOT_USE())
    if not hasattr(jax, "shard_map"):
        return ()
    mesh = jax.sharding.get_abstract_mesh()
    manual = tuple(n for n, t in zip(mesh.axis_names, mesh.axis_types) if t == jax.sharding.AxisType.Manual)
    return () if not manual or _varying(jax.lax.axis_index(manual[0])) else manual


def _device(arrays: Iterable[Any] = ()) -> int:
    """Kind of device (DLPack's number) that a call runs on: its arrays' where they have memory, else the one that jit takes by default."""
    found = next((d for x in arrays if isinstance(x, Array) and not isinstance(x, jax.core.Tracer) for d in x.devices()), None)
    device = found or jax.config.jax_default_device
    platform = device if isinstance(device, str) else device.platform if device is not None else jax.default_backend()
    if platform == "cpu":
        return 1
    return 10 if "rocm" in jax.devices(platform)[0].client.platform_version.lower() else 2


_SCALAR = {"f32": np.float32, "i32": np.int32, "u32": np.uint32, "i64": np.int64, "size": np.int64}


_F32_MAX = float(np.finfo(np.float32).max)


def constant(name: str, argument: str, value: Any) -> Any:
    """A scalar of an operator as Python has it: it becomes part of the trace."""
    if isinstance(value, jax.core.Tracer):
        raise errors.InvalidArgumentError(f"nvte_{name}: {argument} must be known when the call is traced, got {value}")
    if hasattr(value, "item") and np.ndim(value) == 0:
        return value.item()
    if value is None or isinstance(value, (bool, int, float, complex, str, tuple, list)):
        return value
    raise errors.InvalidArgumentError(f"nvte_{name}: {argument} must be a number or a name, got {type(value).__name__}")


# Results that may take an input's memory, element for element (the header says so).
IN_PLACE = {"rmsnorm_forward": ("x", "y"), "layernorm_forward": ("x", "y"), "activation_forward": ("x", "y"), "softmax_forward": ("x", "y"),
            "softmax_backward": ("dy", "dx"), "dropout_forward": ("x", "y"), "dropout_backward": ("dy", "dx"),
            "cross_entropy_backward": ("logits", "dlogits"), "gemm": ("c", "d")}


def call(name: str, inputs: dict[str, Array], outputs: dict[str, Optional[str]], scalars: dict[str, Any], in_place: bool = False) -> dict[str, Array]:
    """An operator by slots. `outputs`: the slots to make and their dtypes (None = the operator's first); a slot that is in both is updated, and
    with `in_place` the result takes the input's memory (both functionally: XLA copies where the old value is still needed)."""
    op = OPS[name.removesuffix(_partition.PAIRS)]
    if in_place and name not in IN_PLACE:
        raise errors.InvalidArgumentError(f"nvte_{name}: in_place must be False, since no result may take an input's memory; it may for "
                                          f"{', '.join(IN_PLACE)}")
    numbers = {s.name: _call.number(op, s, constant(op.name, s.name, scalars.get(s.name, s.default)))
               for s in op.scalars if not any(f.count == s.name for f in op.fields)}
    for s in op.scalars:
        v = numbers.get(s.name, 0)
        if v is None:
            raise errors.InvalidArgumentError(f"nvte_{op.name}: {s.name} is required")
        if s.kind == "f32" and isinstance(v, (int, float)) and _F32_MAX < abs(v) < float("inf"):
            raise errors.InvalidArgumentError(f"nvte_{op.name}: {s.name} must fit f32, got {v!r}")
    named = {s.name: _call.NAME[numbers[s.name][:2]] if s.kind == "dtype" else numbers[s.name] for s in op.scalars if s.name in numbers}
    given = {s.name: inputs[s.name] for s in op.slots if s.name in inputs}
    asked = {s.name: outputs[s.name] for s in op.slots if s.name in outputs}
    if _direct(given.values()):
        return raw(name, given, asked, named, in_place)
    run = _whole(name, tuple(given), tuple(asked.items()), tuple(named.items()), in_place)
    mesh = jax.sharding.get_abstract_mesh()
    if hasattr(jax, "shard_map") and any(t == jax.sharding.AxisType.Explicit for t in mesh.axis_types):
        # Shardings are in types: the cut is known here, and types of the results follow from it.
        results = jax.eval_shape(run, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in given.values()))
        sizes = {s: tuple(x.shape) for s, x in (*given.items(), *zip(asked, results))}
        part, out, into = _partition.plan(raw, name, asked, named, _partition.rule_of(name, sizes, named), sizes, mesh,
                                          {s: jax.typeof(x).sharding for s, x in given.items()}, dict.fromkeys(asked))
        run = jax.shard_map(lambda *a: tuple(part(*a)), mesh=mesh, in_specs=tuple(s.spec for s in into), out_specs=tuple(s.spec for s in out),
                            check_vma=False)
        given = {s: jax.sharding.reshard(x, to) for (s, x), to in zip(given.items(), into)}
    return dict(zip(asked, run(*given.values())))


def raw(name: str, inputs: dict[str, Array], outputs: dict[str, Optional[str]], scalars: dict[str, Any], in_place: bool = False) -> dict[str, Array]:
    """`call` on one device's arrays, with scalars as numbers and dtypes by name. An i64 input may come as pairs of i32."""
    if name.endswith(_partition.PAIRS):
        base = name.removesuffix(_partition.PAIRS)
        merged = _partition.MERGED[base]
        for s, x in inputs.items():
            if s in merged and x.shape[merged[s] - 1:][:1] != (2,):
                raise errors.InvalidArgumentError(f"nvte_{base}: {s} must have a pair in dimension {merged[s] - 1}, got {list(x.shape)}")
        out = raw(base, {s: x.reshape(_partition.flat(x.shape, merged.get(s))) for s, x in inputs.items()}, outputs, scalars)
        return {s: x if s not in merged else x.reshape(*x.shape[:merged[s]], 2, x.shape[merged[s]] // 2, *x.shape[len(x.shape) + merged[s] + 1:])
                for s, x in out.items()}
    op = OPS[name]
    inputs = {s.name: inputs[s.name] for s in op.slots if s.name in inputs}
    wide = {s.name for s in op.slots if s.name in inputs and s.part == "data" and "i64" in op.field(s.field).dtypes
            and inputs[s.name].dtype == jnp.int32 and "i32" not in op.field(s.field).dtypes}
    for n in wide:  # JAX has no int64 by default: sign-extended little-endian pairs
        x = inputs[n]
        inputs[n] = x if x.ndim > len(op.field(n).dims or ()) else jnp.stack([x, x >> 31], -1)
    kinds = {s.name: s.kind for s in op.scalars}
    specs = tuple((n, Spec(x.shape[:-1], "i64") if n in wide else Spec(x.shape, dtype_name(x.dtype))) for n, x in inputs.items())
    made, workspace = _abstract(name, specs, tuple((s.name, outputs[s.name]) for s in op.slots if s.name in outputs),
                                tuple((s.name, scalars[s.name]) for s in op.scalars if s.name in scalars), _device(inputs.values()))
    masks, aliases, order = {"inputs": 0, "results": 0, "wide": 0}, {}, [n for n, _ in made]
    for i, s in enumerate(op.slots):
        masks["inputs"] |= (s.name in inputs) << i
        masks["results"] |= (s.name in outputs) << i
        masks["wide"] |= (s.name in wide) << i
        if s.name in inputs and s.name in outputs:
            aliases[list(inputs).index(s.name)] = order.index(s.name)
    if in_place:
        source, target = IN_PLACE[name]
        a, b = dict(specs).get(source), dict(made).get(target)
        if a is None or a != b:
            raise errors.InvalidArgumentError(f"nvte_{name}: in_place needs {target} of {source}'s shape and dtype, got {b} and {a}")
        aliases[list(inputs).index(source)] = order.index(target)
    results = [jax.ShapeDtypeStruct(spec.shape, _BACK[spec.dtype]) for _, spec in made]
    attributes: dict[str, Any] = {n: np.int64(m) for n, m in masks.items()}
    if workspace:
        results.append(jax.ShapeDtypeStruct((workspace,), np.uint8))
        attributes["workspace"] = np.int64(1)
    for n, v in scalars.items():
        attributes[n] = np.uint32(_call.dtype_word(v)) if kinds[n] == "dtype" else _SCALAR[kinds[n]](v)
    axes = frozenset().union(*(_varying(x) for x in inputs.values()))
    out = jax.ffi.ffi_call(_ffi.TARGET, results, vmap_method="sequential", input_output_aliases=aliases)(
        *(vary(x, axes) for x in inputs.values()), op=name, **attributes)
    return {n: vary(x, axes) for n, x in zip(order, out)}


# ---- whole arrays: partitioning, batching ----
def _direct(arrays: Iterable[Array]) -> bool:
    """Whether there is nothing to partition: one device's arrays, eagerly or inside of shard_map."""
    arrays = tuple(arrays)
    if not any(isinstance(x, jax.core.Tracer) for x in arrays):
        return all(len(x.devices()) == 1 for x in arrays if isinstance(x, Array))
    mesh = jax.sharding.get_abstract_mesh()
    manual = [n for n, t in zip(mesh.axis_names, mesh.axis_types) if t == jax.sharding.AxisType.Manual]
    rest = [n for n in mesh.axis_names if n not in manual and mesh.shape[n] > 1]
    if manual and rest and not getattr(jax.config, "jax_use_shardy_partitioner", True):  # XLA's older partitioner ends the process there
        raise NotImplementedError(f"libte_jax: shard_map must be over all axes of its mesh, or jax_use_shardy_partitioner True: got {manual} "
                                  f"without {rest}")
    return bool(manual) if hasattr(jax, "shard_map") else in_old_shard_map()


@lru_cache(maxsize=4096)
def _whole(name: str, given: tuple[str, ...], outputs: tuple[tuple[str, Optional[str]], ...], scalars: tuple[tuple[str, Any], ...],
           in_place: bool) -> Any:
    """(*inputs) -> outputs in order, of one call: cut over devices by `partition`, batched over leading dimensions where the schema lets it."""
    op, asked, numbers = OPS[name.removesuffix(_partition.PAIRS)], dict(outputs), dict(scalars)

    def function(*operands: Array) -> tuple[Array, ...]:
        return tuple(raw(name, dict(zip(given, operands)), asked, numbers, in_place).values())

    def shapes(operands: Iterable[Any], results: Iterable[Any]) -> dict[str, tuple[int, ...]]:
        return {s: tuple(x.shape) for s, x in (*zip(given, operands), *zip(asked, results))}

    def partition(mesh: Any, operands: Any, results: Any) -> Any:
        sizes = shapes(operands, results)
        rule = _partition.rule_of(name, sizes, numbers)
        run, out, into = _partition.plan(raw, name, asked, numbers, rule, sizes, mesh, {s: x.sharding for s, x in zip(given, operands)},
                                         {s: x.sharding for s, x in zip(asked, results)})
        return mesh, lambda *a: tuple(run(*a)), tuple(out), tuple(into)

    def infer(mesh: Any, operands: Any, results: Any) -> Any:
        sizes = shapes(operands, results)
        rule = _partition.rule_of(name, sizes, numbers)
        return tuple(_partition.result_shardings(rule, sizes, mesh, {s: x.sharding for s, x in zip(given, operands)}, tuple(asked)))

    def shardy(mesh: Any, operands: Any, results: Any) -> Any:
        sizes = shapes(operands, results)
        return _partition.shardy_rule(_partition.rule_of(name, sizes, numbers), sizes, given, tuple(asked))

    cut = custom_partitioning(function)
    cut.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=shardy)
    one = jax.custom_batching.custom_vmap(jax.jit(lambda *a: cut(*a)))
    fields = {s.name: op.field(s.field) for s in op.slots}
    rows = {s.name for s in op.slots if s.part == "data" and op.field(s.field).star}
    leading = (set(asked) <= rows and not any("prod(" in fields[s].dims_text for s in (*given, *asked))  # packed bits, transposes
               and name != "dropout_forward")  # its mask counts elements

    @one.def_vmap
    def batch(size: int, batched: list[bool], *operands: Array) -> Any:
        """A row-wise call takes the batch as one more leading dimension; others run one entry after another."""
        plain = leading and all((s in rows) == b for s, b in zip(given, batched)) and max(x.ndim for x in operands) <= _MAX_DIMS
        if plain:
            return one(*operands), (True,) * len(asked)
        stay = [x for x, b in zip(operands, batched) if not b]

        def entry(moving: list[Array]) -> Any:
            m, s = iter(moving), iter(stay)
            return one(*(next(m if b else s) for b in batched))

        return jax.lax.map(entry, [x for x, b in zip(operands, batched) if b]), (True,) * len(asked)

    whole = jax.custom_jvp(lambda *a: one(*a))

    @whole.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise NotImplementedError(f"nvte_{op.name} has no derivative: libte_jax.functional has the differentiable operators, once, in reverse mode")

    return whole


def asarray(x: Any) -> Array:
    """x as a JAX array. Torch tensors and numpy arrays of JAX's own dtypes come by DLPack: without a copy, where their memory is aligned as XLA
    needs it (64 bytes). The caller must not write to that memory while the array lives."""
    if isinstance(x, (Array, jax.core.Tracer)) or not hasattr(x, "__dlpack__"):
        return jnp.asarray(x)
    if isinstance(x, np.ndarray) and not (x.dtype in _BORROWED and x.flags.writeable):  # numpy's DLPack refuses these, or JAX has another dtype
        return jnp.asarray(x)
    return jax.dlpack.from_dlpack(x)


def argument(name: str, slot: str, value: Any) -> Array:
    """`asarray` of an argument, which the error names."""
    try:
        if value is not None and not isinstance(value, Quantized):
            return asarray(value)
        reason: Any = None
    except (TypeError, ValueError, BufferError, RuntimeError) as e:  # numpy's, torch's, DLPack's
        reason = e
    of = f" of {value.dtype}" if hasattr(value, "dtype") else ""
    why = f" ({str(reason).splitlines()[0]})" if reason and str(reason) else ""
    raise errors.InvalidArgumentError(f"nvte_{name}: {slot} must be an array that JAX takes, got {type(value).__name__}{of}{why}") from reason


def _put(op: Op, name: str, value: Any, inputs: dict[str, Array]) -> None:
    if isinstance(value, Quantized):
        if not op.field(name).quantized:
            raise errors.InvalidArgumentError(f"nvte_{op.name}: {name} takes a plain array, got a Quantized")
        for part, x in zip(PARTS, value):
            if x is not None and part not in ("scale", "amax"):
                slot = name if part == "data" else f"{name}_{part}"
                inputs[slot] = argument(op.name, slot, x)
    elif value is not None:
        inputs[name] = argument(op.name, name, value)


def _current_scaling(op: Op, flags: Any) -> bool:
    """Whether the operator computes the scales of its FP8 outputs."""
    kind = next((s for s in op.scalars if s.name == "flags"), None)
    if kind is None or "linear" not in op.name:
        return False
    number = _call.number(op, kind, constant(op.name, "flags", kind.default if flags is None else flags))
    return isinstance(number, int) and bool(number & CONSTANTS["NVTE_LINEAR_CURRENT_SCALING"])


def _want(op: Op, name: str, value: Any, current: bool, inputs: dict[str, Array], outputs: dict[str, Optional[str]]) -> None:
    if value is None or value is False:
        return
    o = value if isinstance(value, Output) else Output(None if value is True else value, amax=False)
    dtype = None if o.dtype is None else dtype_name(o.dtype)
    if dtype in _call.FP8 and isinstance(value, Output) and o.compute_scale != current:  # else a scale that nobody writes, or an input that is written
        raise errors.InvalidArgumentError(f"nvte_{op.name}: {name}.compute_scale must be {current}, since "
                                          f"{'flags have' if current else 'the operator or its flags lack'} current_scaling, got {o.compute_scale}")
    if o.compute_scale and o.scale is not None:
        raise errors.InvalidArgumentError(f"nvte_{op.name}: {name}.scale must be None with compute_scale, got {o.scale}")
    if o.rowwise:
        outputs[name] = dtype
    if not op.field(name).quantized or not isinstance(value, Output):
        if dtype in _call.FP8:
            outputs[f"{name}_scale_inv"] = "f32"
        return
    if o.columnwise:
        outputs[f"{name}_columnwise"] = dtype
    if dtype in _call.FP8:
        if o.rowwise:
            outputs[f"{name}_scale_inv"] = "f32"
        if o.columnwise:
            outputs[f"{name}_columnwise_scale_inv"] = "f32"
    if o.amax or o.compute_scale:
        outputs[f"{name}_amax"] = "f32"
    if o.compute_scale:
        outputs[f"{name}_scale"] = "f32"
    elif o.scale is not None:
        scale = argument(op.name, f"{name}.scale", o.scale)
        inputs[f"{name}_scale"] = scale.reshape(1) if scale.size == 1 else scale


def _make(name: str) -> Callable[..., Any]:
    op = OPS[name]
    takes = [f.name for f in op.fields if f.direction == "in"]
    gives = [f.name for f in op.fields if f.writes]
    # The first output is made unless others are named alone (all optional); required ones always are.
    required = [f.name for f in op.fields if f.writes and not f.optional]
    known = {*takes, *gives, *(s.name for s in op.scalars)}
    counts = {f.count for f in op.fields if f.count}
    result = namedtuple(name, gives)  # type: ignore[misc]

    def function(*args: Any, in_place: bool = False, view: str = "", **kwargs: Any) -> Any:
        if len(args) > len(takes):
            raise TypeError(f"{name} takes the inputs {', '.join(takes)}; outputs and scalars are keywords")
        if view and (view != _partition.PAIRS or name not in _partition.MERGED):
            raise errors.InvalidArgumentError(f"nvte_{name}: view must be '' (or {_partition.PAIRS!r} for {', '.join(_partition.MERGED)}), got {view!r}")
        values = dict(zip(takes, args))
        for k, v in kwargs.items():
            if k not in known or k in values or k in counts:
                raise TypeError(f"{name}: unexpected or repeated argument {k!r}")
            values[k] = v
        inputs: dict[str, Array] = {}
        outputs: dict[str, Optional[str]] = {}
        for n in takes:
            _put(op, n, values.get(n), inputs)
        wanted = {n: values.get(n) for n in gives}
        for n in required:
            wanted[n] = True if wanted[n] is None else wanted[n]
        if all(v is None for v in wanted.values()):
            wanted[next(n for n in gives if op.field(n).direction == "out")] = True
        current = _current_scaling(op, values.get("flags"))
        for n, v in wanted.items():
            if isinstance(v, (Quantized, jax.Array)):  # codes that are ready, or a value to update
                _put(op, n, v, inputs)
                if isinstance(v, jax.Array):
                    outputs[n] = None
            else:
                _want(op, n, v, current, inputs, outputs)
        out = call(name + view, inputs, outputs, {s.name: values[s.name] for s in op.scalars if s.name in values}, in_place)
        if any(hasattr(v, "__dlpack__") and not isinstance(v, Array) for v in values.values()):
            jax.block_until_ready(out)  # their owners may write to them once this returns
        fields = [_collect(op, n, out) for n in gives]
        present = [f for f in fields if f is not None]
        return present[0] if len(present) == 1 else result(*fields)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name}({', '.join(takes)}; {', '.join(gives)}; {', '.join(s.name for s in op.scalars)})\n\n{op.help}"
    return function


def _collect(op: Op, name: str, out: dict[str, Array]) -> Any:
    parts = [out.get(name if p == "data" else f"{name}_{p}") for p in PARTS]
    if not op.field(name).quantized or not any(p is not None for p in parts[1:]):
        return parts[0]
    return Quantized(*parts)


_functions = {name: _make(name) for name in OPS}
globals().update(_functions)
__all__ = ["Output", "Quantized", "asarray", "call", *_functions]


def names() -> Iterable[str]:
    return tuple(_functions)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"libte has no operator {name!r}; it has {', '.join(sorted(OPS))}")
