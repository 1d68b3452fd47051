# SPDX-License-Identifier: Apache-2.0
"""Arrays in and out: numpy, and whatever speaks DLPack on the CPU. The generated functions of libte.numpy call `call`."""

from __future__ import annotations

import ctypes
import threading
from collections import namedtuple
from collections.abc import Sequence
from typing import Any, Union

import ml_dtypes
import numpy as np

from . import _call, errors
from ._call import NULL, Frame, Tensor
from ._generated._schema import OPS
from ._load import ffi, lib
from .schema import PARTS, Field, Op

Array = Any  # numpy.ndarray, Quantized, or an object with __dlpack__ on the CPU
DTypeLike = Any  # "bf16", numpy.float32, an ml_dtypes type, ...
Output = Union[None, bool, Array, DTypeLike]  # None, True (make it), an array to write into, a dtype or Quantized to make

NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
         "e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "e5m2fnuz": ml_dtypes.float8_e5m2fnuz, "e8m0": ml_dtypes.float8_e8m0fnu, "u8": np.uint8,
         "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "bool": np.bool_, "f64": np.float64}
NUMPY = {k: np.dtype(v) for k, v in NUMPY.items()}
_name = {v: k for k, v in NUMPY.items()}
_HOST = (_call.CPU, 0)


def dtype_name(dtype: DTypeLike) -> str:
    """A dtype as libte spells it."""
    if isinstance(dtype, str) and dtype in NUMPY:
        return dtype
    try:
        return _name[np.dtype(dtype)]
    except (TypeError, KeyError):
        raise errors.InvalidArgumentError(f"dtype must be one of {', '.join(NUMPY)} (or numpy's or ml_dtypes' type), got {dtype!r}") from None


class Quantized:
    """FP8 codes with their scaling: numbers ~ data * scale_inv.

    As an argument for an output it asks for one: ``Quantized("e4m3", scale=2.0, columnwise=True)``; the call fills the arrays.
    ``columnwise`` is the transpose [K, M]; ``amax`` receives the largest magnitude.
    """

    __slots__ = ("accumulate", "amax", "columnwise", "columnwise_scale_inv", "data", "dtype", "scale", "scale_inv", "want")

    def __init__(self, dtype: DTypeLike = "e4m3", *, scale: Any = None, amax: Any = True, rowwise: bool = True, columnwise: bool = False,
                 accumulate: bool = False) -> None:
        self.dtype = dtype_name(dtype)
        self.data: np.ndarray | None = None
        self.columnwise: np.ndarray | None = None
        self.scale_inv: np.ndarray | None = None
        self.columnwise_scale_inv: np.ndarray | None = None
        self.scale = None if scale is None else np.array(scale, np.float32).reshape(1) if not isinstance(scale, np.ndarray) else scale
        self.amax = np.zeros(1, np.float32) if amax is True else amax if isinstance(amax, np.ndarray) else None
        self.want = (rowwise, columnwise)
        self.accumulate = accumulate

    @classmethod
    def of(cls, data: Array, scale_inv: Any, columnwise: Array = None) -> Quantized:
        """From codes and the factor that gives the numbers back."""
        data = asarray(data)
        q = cls(data.dtype, amax=False, columnwise=columnwise is not None)
        q.data, q.columnwise, q.scale_inv = data, columnwise, np.array(scale_inv, np.float32).reshape(1)
        return q

    @property
    def shape(self) -> tuple[int, ...]:
        if self.data is not None:
            return self.data.shape
        if self.columnwise is not None:
            return (*self.columnwise.shape[1:], self.columnwise.shape[0])
        raise AttributeError("nothing has been quantised yet")

    def dequantize(self, dtype: DTypeLike = "f32") -> np.ndarray:
        return call("dequantize", (self,), (dtype,), (), None)

    def __repr__(self) -> str:
        return f"Quantized({self.dtype!r}, shape={self.shape if self.data is not None or self.columnwise is not None else None})"


# ---- DLPack
_capi = ctypes.pythonapi
_capi.PyCapsule_GetName.restype, _capi.PyCapsule_GetName.argtypes = ctypes.c_char_p, (ctypes.py_object,)
_capi.PyCapsule_GetPointer.restype, _capi.PyCapsule_GetPointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_capi.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
_CAPSULE = type(np.empty(0).__dlpack__())
_USED = {b"dltensor": ctypes.c_char_p(b"used_dltensor"), b"dltensor_versioned": ctypes.c_char_p(b"used_dltensor_versioned")}


def _capsule(x: Any) -> Any:
    """Newest first; a producer of before 1.0 knows no max_version."""
    if isinstance(x, _CAPSULE):
        return x
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"libte takes numpy arrays and objects with __dlpack__, got {type(x).__name__}")
    try:
        return x.__dlpack__(max_version=(1, 0))
    except TypeError as e:
        if "max_version" not in str(e):
            raise
        return x.__dlpack__()


def from_dlpack(x: Any) -> np.ndarray:
    """A view of a DLPack object, or of a capsule (which is consumed): dtype, strides, read-only flag and version are honoured
    or refused, no data is copied, and the producer's deleter runs when the last view is gone."""
    capsule = _capsule(x)
    name = _capi.PyCapsule_GetName(capsule)
    if name not in _USED:
        raise ValueError(f"DLPack capsule must be a fresh dltensor or dltensor_versioned, got {(name or b'?').decode()!r} (used already?)")
    versioned = name == b"dltensor_versioned"
    kind = "DLManagedTensorVersioned *" if versioned else "DLManagedTensor *"
    managed = ffi.cast(kind, _capi.PyCapsule_GetPointer(capsule, name))
    _capi.PyCapsule_SetName(capsule, _USED[name])  # ours from here on, whatever happens
    owner = ffi.gc(managed, lib.nvte_dlpack_release_versioned if versioned else lib.nvte_dlpack_release)
    try:
        return _view(managed, owner, versioned)
    except BaseException:  # a traceback may keep the owner for long
        ffi.release(owner)
        raise


def _view(managed: Any, owner: Any, versioned: bool) -> np.ndarray:
    t = Tensor()
    check = lib.nvte_tensor_from_dlpack_versioned if versioned else lib.nvte_tensor_from_dlpack
    _call.check(check(managed, t.c))
    d = t.c.data
    if d.device.device_type != _call.CPU:
        raise errors.UnsupportedError(f"libte.numpy works on host memory, got a tensor on DLPack device type {d.device.device_type}")
    dtype = _call.NAME.get((d.dtype.code, d.dtype.bits)) if d.dtype.lanes == 1 else None
    if dtype is None:
        raise errors.InvalidArgumentError(f"DLPack dtype code {d.dtype.code}, {d.dtype.bits} bits, {d.dtype.lanes} lanes is none of libte's")
    shape = tuple(d.shape[i] for i in range(d.ndim))
    if 0 in shape or d.data == NULL:
        ffi.release(owner)
        return np.empty(shape, NUMPY[dtype])
    size = NUMPY[dtype].itemsize
    strides = tuple(d.strides[i] * size for i in range(d.ndim)) if d.strides != NULL else None
    extent = size + sum((n - 1) * s for n, s in zip(shape, strides)) if strides else size * int(np.prod(shape))
    base = ffi.gc(ffi.cast("char *", d.data) + d.byte_offset, lambda _: ffi.release(owner))
    array = np.ndarray(shape, NUMPY[dtype], ffi.buffer(base, extent), 0, strides)
    if t.c.flags & _call.READ_ONLY:
        array.flags.writeable = False
    return array


def asarray(x: Array) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else from_dlpack(x)


# ---- descriptors
def _describe(op: Op, name: str, words: frozenset[str], t: Tensor, i: int, x: np.ndarray, writes: bool, keep: list[Any]) -> None:
    """Part i of a descriptor from an array. An input whose layout the operator does not take is copied; an output is refused."""
    try:
        dtype = _name[x.dtype]
    except KeyError:
        raise errors.InvalidArgumentError(f"nvte_{op.name}: {name} has dtype {x.dtype}; libte takes {', '.join(NUMPY)}") from None
    flags = x.flags
    if flags.carray or (not writes and flags.c_contiguous and flags.aligned):  # carray: contiguous, aligned and writeable
        t.set(i, ffi.from_buffer(x), x.shape, None, dtype, _HOST)
        return
    if not flags.aligned or not (flags.c_contiguous or _takes(words, x)):
        if writes:
            raise errors.InvalidArgumentError(f"nvte_{op.name}: output {name} must be an aligned array with "
                                              f"{_layout(words)}, got strides {x.strides} for shape {x.shape}")
        x = np.array(x, order="C")
        keep.append(x)
        flags = x.flags
    if writes and not flags.writeable:
        t.c.flags |= _call.READ_ONLY
        t.extra = True
    if flags.c_contiguous:
        t.set(i, ffi.from_buffer(x), x.shape, None, dtype, _HOST)
    else:
        strides = tuple(s // x.itemsize for s in x.strides)
        t.set(i, ffi.cast("void *", x.__array_interface__["data"][0]), x.shape, strides, dtype, _HOST)


def _layout(words: frozenset[str]) -> str:
    return "unit stride in the last dimension" if "rows" in words else "non-negative strides" if "strided" in words else "C-contiguous memory"


def _takes(words: frozenset[str], x: np.ndarray) -> bool:
    if any(s < 0 or s % x.itemsize for s in x.strides):
        return False
    return "strided" in words or ("rows" in words and (x.ndim == 0 or x.shape[-1] <= 1 or x.strides[-1] == x.itemsize))


def _fill(op: Op, f: Field, t: Tensor, value: Any, keep: list[Any]) -> None:
    """A whole descriptor from an array or a Quantized."""
    if type(value) is np.ndarray:
        flags = value.flags
        if flags.carray and value.size:  # contiguous, aligned, writeable: only the pointer may have changed
            if t.extra:
                t.plain()
            key = (value.shape, value.dtype)
            if t.fast != key:
                _describe(op, f.name, f.words, t, 0, value, f.writes, keep)
                t.fast = key
            t.data.data = ffi.from_buffer(value)  # the caller keeps the array
            return
    t.plain()
    if type(value) is not Quantized:
        x = value if isinstance(value, np.ndarray) else from_dlpack(value)
        keep.append(x)
        _describe(op, f.name, f.words, t, 0, x, f.writes, keep)
        return
    c = t.c
    t.extra = True
    if not f.quantized:
        raise errors.InvalidArgumentError(f"nvte_{op.name}: {f.name} takes a plain array, got {value!r}")
    c.scaling = _call.SCALING_TENSOR if value.dtype in _call.FP8 else _call.SCALING_NONE
    c.flags = _call.AMAX_ACCUMULATE if value.accumulate and f.writes else 0
    for i, part in enumerate(PARTS):
        x = getattr(value, part)
        if x is None:
            t.clear(i)
        else:
            _describe(op, f.name if i == 0 else f"{f.name}.{part}", f.words, t, i, x, f.writes and part != "scale", keep)
    if value.columnwise is not None:
        if value.columnwise_scale_inv is None and value.scale_inv is not None:
            _describe(op, f.name, f.words, t, 3, value.scale_inv, f.writes, keep)
        if value.data is None:  # data.shape is the logical shape even where there is no row-wise memory
            t.set(0, NULL, value.shape, None, value.dtype, _HOST)


# ---- outputs
def _spec(value: Output) -> tuple[bool, str | None, Quantized | None]:
    """(to be made, its dtype, its Quantized) of an output argument that is no array."""
    if isinstance(value, Quantized):
        return value.data is None and value.columnwise is None, value.dtype, value
    if value is True:
        return True, None, None
    if isinstance(value, (str, type, np.dtype)):
        return True, dtype_name(value), None
    return False, None, None


def _make(field: Field, t: Tensor, q: Quantized | None) -> Any:
    shape, dtype = t.answer(0)
    if not field.quantized or (q is None and dtype not in _call.FP8):
        return np.empty(shape, NUMPY[dtype])
    q = q or Quantized(dtype)
    row, column = q.want
    q.data = np.empty(shape, NUMPY[dtype]) if row else None
    if column:
        wide = t.answer(1)[0]
        q.columnwise = np.empty(wide or (shape[-1], int(np.prod(shape[:-1]))), NUMPY[dtype])
    if dtype in _call.FP8 and q.scale_inv is None:
        q.scale_inv = np.empty(1, np.float32)
    return q


def _ask(t: Tensor, dtype: str | None, q: Quantized | None) -> None:
    t.plain()
    t.ask(0, dtype)
    if dtype in _call.FP8:
        t.c.scaling = _call.SCALING_TENSOR
        t.extra = True
    if q is not None and q.want[1]:
        t.ask(1, dtype)


class _Mode(threading.local):
    explain = False


mode = _Mode()
_results: dict[str, Any] = {}


class _Plan:
    """What `call` needs to know of an operator, looked up once."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.fields = tuple((f, f.name, f.writes, bool(f.count)) for f in op.fields)
        self.counts = frozenset(f.count for f in op.fields if f.count)
        # An operator whose outputs are all optional makes this one when none is named.
        self.default = next(o.name for o in op.outputs if o.direction == "out") if all(o.optional for o in op.outputs) else None


_plans: dict[str, _Plan] = {}


def call(name: str, inputs: Sequence[Any], outputs: Sequence[Any], scalars: tuple[Any, ...], implementation: str | None) -> Any:
    """Runs an operator. `inputs` and `outputs` follow the op's fields by direction, `scalars` its scalars but list counts.

    An output that is not given is made when it is required, or asked for by True, a dtype or a Quantized; nvte_infer says how
    large. Returns the one output there is, else a named tuple of all (None where absent)."""
    plan = _plans.get(name)
    if plan is None:
        plan = _plans[name] = _Plan(OPS[name])
    op = plan.op
    f: Frame = _call.acquire(name)
    keep = f.keep
    try:
        if f.scalars != scalars:
            _call.set_scalars(f, scalars, plan.counts)
        results: dict[str, Any] = {}
        pending: list[tuple[Field, Any, Any]] = []
        ins, outs = iter(inputs), iter(outputs)
        default = plan.default if plan.default and all(o is None for o in outputs) else None
        for field, field_name, writes, is_list in plan.fields:
            if is_list:
                _list(f, field, next(outs) if writes else next(ins), results, pending)
            elif writes:
                value = next(outs)
                if type(value) is np.ndarray:
                    _fill(op, field, f.tensor(field_name), value, keep)
                    results[field_name] = value
                else:
                    _output(f, field, True if field_name == default else value, results, pending)
            else:
                value = next(ins)
                if value is None:
                    f.absent(field_name)
                else:
                    _fill(op, field, f.tensor(field_name), value, keep)
        if pending:
            _call.infer(f)
            for field, t, q in pending:
                if isinstance(t, list):
                    results[field.name] = [_make(field, one, None) for one in t]
                    for one, made in zip(t, results[field.name]):
                        _fill(op, field, one, made, keep)
                else:
                    results[field.name] = made = _make(field, t, q)
                    _fill(op, field, t, made, keep)
        if mode.explain:
            return _call.explain(f, implementation)
        _call.run(f, implementation)
    finally:
        _call.release(f)
    if len(results) == 1:
        return next(iter(results.values()))
    kind = _results.get(name)
    if kind is None:
        kind = _results[name] = namedtuple(name, [o.name for o in op.outputs], defaults=[None] * len(op.outputs))  # type: ignore[misc]
    return kind(**results)


def _output(f: Frame, field: Field, value: Any, results: dict[str, Any], pending: list[Any]) -> None:
    make, dtype, q = _spec(value)
    if value is None or value is False:
        if field.optional:
            f.absent(field.name)
            return
        make = True
    t = f.tensor(field.name)
    if make:
        _ask(t, dtype, q)
        pending.append((field, t, q))
        results[field.name] = None
    else:
        _fill(f.op, field, t, value, f.keep)
        results[field.name] = value


def _list(f: Frame, field: Field, value: Any, results: dict[str, Any], pending: list[Any]) -> None:
    if value is None and field.writes:
        tensors = list(f.list(field, int(getattr(f.args, field.count))))
        for t in tensors:
            _ask(t, None, None)
        pending.append((field, tensors, None))
        results[field.name] = None
        return
    arrays = list(value)
    for t, x in zip(f.list(field, len(arrays)), arrays):
        _fill(f.op, field, t, x, f.keep)
    if field.writes:
        results[field.name] = arrays
