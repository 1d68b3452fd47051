# SPDX-License-Identifier: Apache-2.0
"""Calling operators through cffi: descriptors, pooled args structs, workspace, errors.

Structs are pooled per thread and popped while in use: cffi drops the GIL during a call, so another thread, or a finaliser on this
one, may call again before the first call returns.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Any

from . import errors
from ._generated._schema import CONSTANTS, FLAGS, OPS
from ._load import ffi, lib
from .schema import PARTS, Field, Op, Scalar

NULL = ffi.NULL
MAX_DIMS = CONSTANTS["NVTE_MAX_DIMS"]
CPU = 1  # kDLCPU
SCALING_NONE, SCALING_TENSOR = CONSTANTS["NVTE_SCALING_NONE"], CONSTANTS["NVTE_SCALING_TENSOR"]
READ_ONLY, AMAX_ACCUMULATE = CONSTANTS["NVTE_TENSOR_READ_ONLY"], CONSTANTS["NVTE_TENSOR_AMAX_ACCUMULATE"]

# DLPack (code, bits) of each dtype name.
DLPACK = {"f32": (2, 32), "f16": (2, 16), "bf16": (4, 16), "e4m3": (10, 8), "e5m2": (12, 8), "e4m3fnuz": (11, 8), "e5m2fnuz": (13, 8),
          "e8m0": (14, 8), "u8": (1, 8), "i8": (0, 8), "i16": (0, 16), "i32": (0, 32), "i64": (0, 64), "bool": (6, 8), "f64": (2, 64)}
NAME = {v: k for k, v in DLPACK.items()}
FP8 = ("e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz")
_nothing = ffi.new("char[64]")  # where empty tensors point: NULL would mean absent


def check(status: int) -> None:
    if status:
        raise errors.error(status, ffi.string(lib.nvte_last_error()).decode(errors="replace"))


def dtype_word(name: str) -> int:
    """A dtype name as the shim's integer: code | bits << 8 | lanes << 16."""
    code, bits = DLPACK[name]
    return code | bits << 8 | 1 << 16


class Tensor:
    """One nvte_tensor with room for the shapes and strides of its parts."""

    __slots__ = ("c", "data", "extra", "fast", "keys", "parts", "room", "shapes")

    def __init__(self) -> None:
        self.extra = False  # anything but part 0 may be set
        self.fast: Any = None  # (shape, dtype) of the contiguous array that part 0 describes
        self.c = ffi.new("nvte_tensor *")
        self.c.struct_size = ffi.sizeof("nvte_tensor")
        self.parts = [getattr(self.c, p) for p in PARTS]
        self.data = self.parts[0]
        self.keys: list[Any] = [None] * len(PARTS)
        self.room = ffi.new("int64_t[]", 2 * MAX_DIMS * len(PARTS))
        self.shapes = [self.room + 2 * MAX_DIMS * i for i in range(len(PARTS))]

    def set(self, i: int, address: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: str, device: tuple[int, int]) -> None:
        """Part i; address is a cdata pointer, strides count elements, None = C-contiguous."""
        d = self.parts[i]
        self.fast = None
        key = (shape, strides, dtype, device)
        if self.keys[i] != key:
            n = len(shape)
            if n > MAX_DIMS:
                raise errors.InvalidArgumentError(f"a tensor has at most {MAX_DIMS} dimensions, got {n}")
            room = self.shapes[i]
            for k in range(n):
                room[k] = shape[k]
            d.shape = room
            if strides is None:
                d.strides = NULL
            else:
                d.strides = room + MAX_DIMS
                for k in range(n):
                    room[MAX_DIMS + k] = strides[k]
            d.ndim = n
            d.dtype.code, d.dtype.bits = DLPACK[dtype]
            d.dtype.lanes = 1
            d.device.device_type, d.device.device_id = device
            self.keys[i] = key
        d.data = address if address != NULL or 0 not in shape else _nothing

    def ask(self, i: int, dtype: str | None) -> None:
        """Part i is to be filled by nvte_infer."""
        d = self.parts[i]
        self.keys[i] = self.fast = None
        d.data, d.strides, d.shape, d.ndim = NULL, NULL, self.shapes[i], 0
        d.device.device_type, d.device.device_id = CPU, 0
        if dtype is None:
            d.dtype.code = d.dtype.bits = d.dtype.lanes = 0
        else:
            (d.dtype.code, d.dtype.bits), d.dtype.lanes = DLPACK[dtype], 1

    def answer(self, i: int) -> tuple[tuple[int, ...], str]:
        """Shape and dtype that nvte_infer wrote."""
        d = self.parts[i]
        return tuple(d.shape[k] for k in range(d.ndim)), NAME.get((d.dtype.code, d.dtype.bits), "other")

    def clear(self, i: int) -> None:
        self.fast = None
        self.parts[i].data = NULL
        self.parts[i].ndim = 0
        self.keys[i] = None

    def plain(self) -> None:
        """Everything but part 0 absent, no scaling, no flags."""
        if self.extra:
            for i in range(1, len(PARTS)):
                self.clear(i)
            self.c.flags, self.c.scaling, self.extra = 0, SCALING_NONE, False


class Frame:
    """A pooled args struct of one operator, with a Tensor for each field that has been used."""

    __slots__ = ("args", "attached", "counts", "exec", "keep", "op", "run", "scalars", "tensors", "void", "workspace")

    def __init__(self, op: Op) -> None:
        self.op = op
        self.args = ffi.new(f"nvte_{op.name}_args *")
        self.args.struct_size = ffi.sizeof(f"nvte_{op.name}_args")
        self.void = ffi.cast("void *", self.args)
        self.exec = ffi.new("nvte_exec *")
        self.exec.struct_size = ffi.sizeof("nvte_exec")
        self.exec.device.device_type = CPU
        self.run = getattr(lib, f"nvte_{op.name}")
        self.tensors: dict[str, Tensor] = {}
        self.attached: set[str] = set()
        self.keep: list[Any] = []
        self.scalars: Any = None
        self.workspace: Any = None
        self.counts: dict[str, tuple[str, int]] = {}  # (first list, its length) of this call, by count field

    def tensor(self, name: str) -> Tensor:
        """The descriptor of a field, attached to the args."""
        t = self.tensors.get(name)
        if t is None:
            t = self.tensors[name] = Tensor()
        if name not in self.attached:
            setattr(self.args, name, t.c)
            self.attached.add(name)
        return t

    def list(self, field: Field, n: int) -> Sequence[Tensor]:
        other, m = self.counts.setdefault(field.count, (field.name, n))
        if n != m:  # C knows one count: the shorter list would be read past its end
            raise errors.error(errors.INVALID_ARGUMENT, f"{self.op.name}: {field.name} must be as long as {other}, {m}, got {n}")
        tensors = [Tensor() for _ in range(n)]
        pointers = ffi.new("nvte_tensor *[]", [t.c for t in tensors]) if n else NULL
        self.keep += [tensors, pointers]
        setattr(self.args, field.name, pointers)
        setattr(self.args, field.count, n)
        return tensors

    def absent(self, name: str) -> None:
        if name in self.attached:
            setattr(self.args, name, NULL)
            self.attached.discard(name)


class _Local(threading.local):
    def __init__(self) -> None:
        self.pool: dict[str, list[Frame]] = {}
        self.workspace: Any = NULL
        self.memory: Any = None
        self.size = 0


_local = _Local()


def acquire(name: str) -> Frame:
    free = _local.pool.get(name)
    if not free:
        return Frame(OPS[name])
    f = free.pop()
    f.counts.clear()
    return f


def release(f: Frame) -> None:
    if f.keep:
        f.keep.clear()
    pool = _local.pool
    free = pool.get(f.op.name)
    if free is None:
        free = pool[f.op.name] = []
    free.append(f)


def _grow(bytes_: int) -> None:
    memory = ffi.new("char[]", bytes_ + 256)
    start = int(ffi.cast("uintptr_t", memory))
    _local.memory, _local.size = memory, bytes_
    _local.workspace = memory + (-start % 256)


def run(f: Frame, implementation: str | None = None) -> None:
    """Runs the call that a frame describes, on the CPU, with the thread's workspace."""
    e = f.exec
    if implementation is not None:
        name = ffi.new("char[]", implementation.encode())  # alive until the call is over
        e.implementation = name
    if f.workspace is not _local.workspace:
        f.workspace = e.workspace = _local.workspace
        e.workspace_size = _local.size
    try:
        status = _attempt(f, e)
    finally:
        if implementation is not None:
            e.implementation = NULL
    check(status)


def _attempt(f: Frame, e: Any) -> int:
    status = f.run(e, f.args)
    if status == errors.WORKSPACE:
        bytes_ = ffi.new("size_t *")
        check(lib.nvte_workspace(f.op.name.encode(), e, f.void, bytes_))
        _grow(bytes_[0])
        f.workspace = e.workspace = _local.workspace
        e.workspace_size = _local.size
        status = f.run(e, f.args)
    return status


def infer(f: Frame) -> None:
    status = lib.nvte_infer(f.op.name.encode(), f.void)
    if status:  # the caller asked for the operator, not for nvte_infer
        message = ffi.string(lib.nvte_last_error()).decode(errors="replace")
        raise errors.error(status, message.replace(f"nvte_infer: {f.op.name}:", f"nvte_{f.op.name}:", 1))


def explain(f: Frame, implementation: str | None = None) -> str:
    e = ffi.new("nvte_exec *", f.exec[0])
    name = ffi.new("char[]", implementation.encode()) if implementation else NULL
    e.implementation = name
    buf = ffi.new("char[]", 8192)
    check(lib.nvte_explain(f.op.name.encode(), e, f.void, buf, 8192))
    return ffi.string(buf).decode(errors="replace")


def number(op: Op, s: Scalar, value: Any) -> Any:
    """A scalar as the C field takes it: a number; the name of a constant where the header names its family ("gelu" for
    NVTE_ACTIVATION_GELU); a tuple of names for flags; a dtype name."""
    if s.kind == "dtype":
        if value not in DLPACK:
            raise errors.error(errors.INVALID_ARGUMENT, f"dtype must be one of {', '.join(DLPACK)}, got {value!r}")
        code, bits = DLPACK[value]
        return (code, bits, 1)
    if isinstance(value, str):
        value = (value,)
    if isinstance(value, (tuple, list)):
        families = re.findall(r"NVTE_[A-Z_]+_(?=\*)|NVTE_[A-Z]+_", s.help) or [f"NVTE_{op.name.upper()}_"]
        known = {c[len(p):].lower(): v for p in families for c, v in CONSTANTS.items() if c.startswith(p) and (c in FLAGS) == (s.kind == "u32")}
        total = 0
        for word in value:
            if word not in known:
                raise errors.InvalidArgumentError(f"nvte_{op.name}: {s.name} takes {', '.join(known) or 'no names'}, got {word!r}")
            total |= known[word]
        return total
    return value


def set_scalars(f: Frame, values: tuple[Any, ...], counts: frozenset[str]) -> None:
    if f.scalars == values:
        return
    f.scalars = None  # until all are set
    it = iter(values)
    for s in f.op.scalars:
        if s.name in counts:
            continue
        value = number(f.op, s, next(it))
        try:
            if s.kind == "dtype":
                d = getattr(f.args, s.name)
                d.code, d.bits, d.lanes = value
            else:
                setattr(f.args, s.name, value)
        except (TypeError, OverflowError) as e:
            raise errors.InvalidArgumentError(f"nvte_{f.op.name}: {s.name} must fit {s.kind}, got {value!r}") from e
    f.scalars = values
