# SPDX-License-Identifier: Apache-2.0
"""The frameworks' hot path: operators on a framework's tensors through a C shim, about one microsecond a call.

``shim = Shim(torch.Tensor)`` gives one function an operator, ``shim.rmsnorm_forward(x, gamma, None, y)``: slots, then scalars
(libte.schema). Descriptors are filled in C from DLPack's exchange table, the stream comes from the table, the GIL is released round
the operator. A framework without the table gives `describe`, and descriptors are cached by shape.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

from . import errors
from ._call import AMAX_ACCUMULATE
from ._generated import _shim as _generated
from ._generated._schema import OPS
from ._load import ffi, lib, open_shim

_P = ctypes.c_void_p
_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype, _api.PyCapsule_GetPointer.argtypes = _P, (ctypes.py_object, ctypes.c_char_p)


class Context(ctypes.Structure):
    """te_py of bindings/python/shim/shim.h."""

    _fields_ = (
        ("api", _P), ("tensor_type", _P), ("none", _P), ("type_offset", ctypes.c_ssize_t), ("is_subtype", _P),
        ("is_instance", _P), ("tuple_item", _P), ("tuple_size", _P), ("as_double", _P), ("as_long", _P), ("as_pointer", _P),
        ("error_occurred", _P), ("error_clear", _P), ("save_thread", _P), ("restore_thread", _P), ("implementation", ctypes.c_char_p), ("workspace", _P),
        ("workspace_size", ctypes.c_size_t), ("stream", _P), ("exec_flags", ctypes.c_uint32), ("tensor_flags", ctypes.c_uint32),
        ("needed", ctypes.c_size_t), ("lend", _P), ("is_capturing", _P),
    )


# te_py.lend: (device type, device id, stream, bytes, captured) -> address
LEND = ctypes.PYFUNCTYPE(_P, ctypes.c_int32, ctypes.c_int32, _P, ctypes.c_size_t, ctypes.c_int32)


@functools.cache
def _library() -> ctypes.PyDLL:
    shim = open_shim()
    shim.nvte_py_context_size.restype = ctypes.c_uint64
    if shim.nvte_py_context_size() != ctypes.sizeof(Context):
        raise ImportError("libte: the shim and libte/_shim.py are of different versions; run `make build`", name="libte")
    return shim


def _type_offset() -> int:
    """Where ob_type lies in an object: the last field of a bare one. -1 where that does not hold."""
    at = object.__basicsize__ - ctypes.sizeof(_P)
    return at if all(_P.from_address(id(o) + at).value == id(type(o)) for o in (object(), _api, errors, _type_offset)) else -1


class _Header(ctypes.Structure):
    """DLPackExchangeAPIHeader, and the entry of DLPackExchangeAPI that must be there."""


_Header._fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("prev", ctypes.POINTER(_Header)), ("allocator", _P), ("from_py", _P),
                    ("to_py", _P), ("dltensor_from_py", _P), ("stream", _P))


def exchange_table(tensor_type: type) -> int | None:
    """Address of the framework's DLPack exchange table of major version 1; None where there is none."""
    for name in ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__"):
        capsule = getattr(tensor_type, name, None)
        if capsule is None:
            continue
        address = capsule if isinstance(capsule, int) else _api.PyCapsule_GetPointer(capsule, b"dlpack_exchange_api")
        table = ctypes.cast(address, ctypes.POINTER(_Header))
        while table and table.contents.major != 1:
            table = table.contents.prev
        if table and table.contents.dltensor_from_py:
            return ctypes.cast(table, _P).value
    return None


class _Descriptors(threading.local):
    """DLTensors by slot, shape, strides, dtype and device; a thread's own, so only the pointer changes between calls."""

    def __init__(self) -> None:
        self.cache: dict[Any, Any] = {}

    def address(self, slot: Any, data: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: tuple[int, int],
                device: tuple[int, int]) -> int:
        key = (slot, shape, strides, dtype, device)
        entry = self.cache.get(key)
        if entry is None:
            if len(self.cache) > 4096:
                self.cache.clear()
            d = ffi.new("DLTensor *")
            room = ffi.new("int64_t[]", [*shape, *strides, 0])
            d.shape, d.strides, d.ndim = room, room + len(shape), len(shape)
            (d.dtype.code, d.dtype.bits), d.dtype.lanes = dtype, 1
            d.device.device_type, d.device.device_id = device
            entry = self.cache[key] = (d, ffi.cast("uintptr_t *", d), room, int(ffi.cast("uintptr_t", d)))
        entry[1][0] = data
        return entry[3]


class Shim:
    """Operators on the tensors of one framework.

    describe(tensor) -> (address, shape, strides, (DLPack code, bits), (device type, id)) serves where there is no table.
    A Shim whose `workspace` is set belongs to one thread; without, it may be shared.
    lend(device type, device id, stream, bytes, captured) -> address gives workspace on a device, valid until the same thread asks for the
    same again; what it raises the operator raises. is_capturing is the address of the runtime's function for a stream's capture status.
    """

    def __init__(self, tensor_type: type, *, describe: Callable[[Any], tuple[Any, ...]] | None = None, use_table: bool = True,
                 implementation: str | None = None, accumulate_amax: bool = False, deterministic: bool = False,
                 lend: Callable[..., int] | None = None, is_capturing: int | None = None) -> None:
        self.tensor_type = tensor_type
        table = exchange_table(tensor_type) if use_table else None
        if table is None and describe is None:
            raise errors.UnsupportedError(f"{tensor_type.__module__}.{tensor_type.__qualname__} has no DLPack exchange table")
        self._describe = describe if table is None else None
        self._options = {"describe": describe, "use_table": use_table, "implementation": implementation,
                         "accumulate_amax": accumulate_amax, "deterministic": deterministic, "lend": lend, "is_capturing": is_capturing}
        self._lent_errors: dict[int, BaseException] = {}

        def lend_or_note(*asked: int) -> int | None:
            assert lend is not None
            try:
                return lend(*asked)
            except BaseException as e:  # C code is in between: raised again by _fail
                self._lent_errors[threading.get_ident()] = e
                return None

        self._lend = LEND(lend_or_note) if lend else None

        def function(name: str) -> int | None:
            return ctypes.cast(getattr(_api, name), _P).value

        self.context = Context(
            table, id(tensor_type), id(None), _type_offset(), function("PyType_IsSubtype"), function("PyObject_IsInstance"),
            function("PyTuple_GetItem"), function("PyTuple_Size"), function("PyFloat_AsDouble"), function("PyLong_AsLongLong"),
            function("PyLong_AsVoidPtr"), function("PyErr_Occurred"), function("PyErr_Clear"),
            function("PyEval_SaveThread"), function("PyEval_RestoreThread"),
            implementation.encode() if implementation else None, None, 0, None, int(deterministic),
            AMAX_ACCUMULATE if accumulate_amax else 0, 0, ctypes.cast(self._lend, _P) if self._lend else None, is_capturing)
        self.address, self.fail = ctypes.addressof(self.context), self._fail
        functions = _generated.make(_library(), self.address, self._fail)
        if self._describe:
            self._descriptors = _Descriptors()
            functions = {name: self._prepared(name, f) for name, f in functions.items()}
        self.functions: dict[str, Callable[..., None]] = functions
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Callable[..., None]:
        raise AttributeError(f"libte has no operator {name!r}")

    def entry(self, name: str) -> Callable[[int, int], int] | None:
        """(address, id of the tuple of all arguments, lists as tuples) -> status for `fail`: the C function without the Python one around it.
        None where tensors have to be described first."""
        if self._describe:
            return None
        function = _library()[f"nvte_py_{name}"]
        function.argtypes, function.restype = (_P, _P), ctypes.c_int32
        return function

    def variant(self, **options: Any) -> Shim:
        """The same framework with other options."""
        return Shim(self.tensor_type, **{**self._options, **options})

    def _prepared(self, name: str, function: Callable[..., None]) -> Callable[..., None]:
        """The function with each tensor turned into the address of a descriptor."""
        kind, describe, descriptors = self.tensor_type, self._describe, self._descriptors
        slots = [s.name for s in OPS[name].slots]
        names = frozenset(slots)
        assert describe is not None

        def prepare(slot: Any, x: Any) -> Any:
            if x is None:
                return None
            if isinstance(x, (tuple, list)):
                return tuple(prepare((slot, i), e) for i, e in enumerate(x))
            if not isinstance(x, kind):
                raise TypeError(f"nvte_{name}: {slot[0] if isinstance(slot, tuple) else slot} must be a {kind.__module__}.{kind.__qualname__}, "
                                f"got {type(x).__name__}")
            return descriptors.address(slot, *describe(x))

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> None:
            function(*map(prepare, slots, args), *args[len(slots):], **{k: prepare(k, x) if k in names else x for k, x in kwargs.items()})

        return call

    def _fail(self, status: int, name: str, arguments: tuple[Any, ...]) -> None:
        if status > 0:
            raise errors.error(status, ffi.string(lib.nvte_last_error()).decode(errors="replace"))
        kind, index = divmod(-status, 1000)
        lent = self._lent_errors.pop(threading.get_ident(), None)
        if lent is not None:
            raise lent
        op = OPS[name]
        names = [s.name for s in op.slots] + [s.name for s in op.scalars]
        argument, value = f"nvte_{name}: {names[index]}", arguments[index]
        wanted = f"{self.tensor_type.__module__}.{self.tensor_type.__qualname__}"
        if kind == 1:
            raise TypeError(f"{argument} must be a {wanted}, got {type(value).__name__}")
        if kind == 2:
            raise errors.InvalidArgumentError(f"{argument} has no memory: {type(value).__name__} with {_about(value)} is fake or a wrapper "
                                              "without storage")
        if kind == 3:
            raise errors.InvalidArgumentError(f"{argument} is out of range, got {value!r}")
        if kind == 5:
            raise errors.OutOfMemoryError(f"nvte_{name}: no memory for the call")
        if kind == 4 and index >= len(op.slots):
            raise TypeError(f"{argument} must be a number, got {value!r}")
        if kind == 4:
            raise errors.InvalidArgumentError(f"{argument}: DLPack cannot describe a {type(value).__name__} with {_about(value)}")
        raise TypeError(f"{argument} has the wrong number of entries, got {value!r}")


def _about(x: Any) -> str:
    return ", ".join(f"{a} {getattr(x, a)}" for a in ("shape", "dtype", "device", "layout") if hasattr(x, a))
