# SPDX-License-Identifier: Apache-2.0
"""Every operator on torch tensors, outputs given by the caller: ``ops.rmsnorm_forward(x, gamma, None, y, ...)`` takes the operator's slots and
then its scalars (libte.schema). Eager calls go through the C shim; inside torch.compile the same call is the torch.library operator
``torch.ops.libte.<op>``, whose outputs are mutated arguments.

An amax given here is max-merged with what it holds (delayed scaling collects over micro-batches): zero it first where that is not wanted.
compute_amax overwrites unless its flag says otherwise.
"""
from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, Callable, Optional

import torch
from libte import _call, _shim
from libte.schema import OPS
from torch import Tensor

_DTYPES = {
    torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2",
    torch.float8_e4m3fnuz: "e4m3fnuz", torch.float8_e5m2fnuz: "e5m2fnuz", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16",
    torch.int32: "i32", torch.int64: "i64", torch.bool: "bool", torch.float64: "f64",
}
_DEVICES = {"cpu": 1, "cuda": 10 if torch.version.hip else 2}  # DLPack device types


def _describe(t: Tensor) -> tuple[Any, ...]:
    """For torch versions without DLPack's exchange table."""
    name = _DTYPES.get(t.dtype)
    if name is None or t.device.type not in _DEVICES:
        raise TypeError(f"libte takes no {t.dtype} tensor on {t.device}")
    if t.device.type != "cpu":
        raise TypeError(f"libte needs DLPack's exchange table for tensors on {t.device}, which torch {torch.__version__} lacks")
    return t.data_ptr(), tuple(t.shape), t.stride(), _call.DLPACK[name], (_DEVICES[t.device.type], t.device.index or 0)


# Workspaces on GPUs, from torch's caching allocator, by thread, device, stream and whether a graph captures. A tensor is only used on the
# stream that it was allocated on. Under capture it is of the graph's pool; the next call's replaces it, in the order of the stream.
_workspaces: dict[Any, Tensor] = {}


def _lend(kind: int, index: int, stream: Optional[int], size: int, captured: int) -> int:
    key = (threading.get_ident(), kind, index, stream, captured)
    _workspaces.pop(key, None)
    _workspaces[key] = memory = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", index))
    return memory.data_ptr()


def _is_capturing() -> Optional[int]:
    """Address of the runtime's function in the copy that torch uses; None where it uses none."""
    version, prefix = torch.version.hip or torch.version.cuda, "hip" if torch.version.hip else "cuda"
    if version is None:
        return None
    major = version.split(".")[0]
    for name in (f"libamdhip64.so.{major}", "libamdhip64.so") if torch.version.hip else (f"libcudart.so.{major}",):
        try:
            runtime = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
        return ctypes.cast(getattr(runtime, f"{prefix}StreamIsCapturing"), ctypes.c_void_p).value
    return None


_eager = _shim.Shim(Tensor, describe=_describe, accumulate_amax=True, lend=_lend, is_capturing=_is_capturing())
_compiling = torch.compiler.is_compiling

# ---- torch.library: the operators that torch.compile sees ----

_KINDS = {"f32": "float", "i32": "int", "u32": "int", "i64": "int", "size": "int", "dtype": "int"}
_library = torch.library.Library("libte", "DEF")


# Composites with CURRENT_SCALING compute the scale that they quantise with.
_WRITE_SCALES = ("linear_forward", "linear_backward", "norm_linear_forward")


def _schema_of(op: Any) -> str:
    parts, alias = [], iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    for s in op.slots:
        written = s.direction != "in" or (s.part == "scale" and op.name in _WRITE_SCALES and op.field(s.field).writes)
        parts.append(f"Tensor{f'({next(alias)}!)' if written else ''}{'?' if s.optional else ''} {s.name}")
    parts += [f"{_KINDS[s.kind]} {s.name}" for s in op.scalars]
    return f"{op.name}({', '.join(parts)}) -> ()"


def _nothing(*args: Any) -> None:
    """Outputs are arguments, so a fake has nothing to make."""


def _define(name: str) -> Optional[Any]:
    op = OPS[name]
    if any(s.is_list for s in op.slots):
        return None
    _library.define(_schema_of(op))
    implementation = getattr(_eager, name)
    for key in ("CPU", "CUDA"):
        _library.impl(name, implementation, key)
    torch.library.register_fake(f"libte::{name}", _nothing, lib=_library)
    return getattr(torch.ops.libte, name).default


def _bind(name: str) -> Callable[..., None]:
    eager, compiled = getattr(_eager, name), _define(name)
    if compiled is None:
        return eager
    whole = _eager.entry(name)

    def call(*args: Any) -> None:
        if _compiling():
            compiled(*args)
        elif len(args) == n:
            status = whole(context, id(args))
            if status:
                fail(status, name, args)
        else:
            eager(*args)

    n, context, fail = (len(OPS[name].slots) + len(OPS[name].scalars) if whole else -1), _eager.address, _eager.fail

    call.__name__ = call.__qualname__ = name
    call.__doc__ = OPS[name].help
    return call


_functions = {name: _bind(name) for name in OPS}
globals().update({name: f for name, f in _functions.items() if name not in ("amax_and_scale_update", "compute_scale")})


def _of(name: str) -> Callable[[tuple[Any, ...]], None]:
    """The operator on the tuple of all its arguments."""
    whole, context, eager, fail = _eager.entry(name), _eager.address, _functions[name], _eager.fail

    def call(args: tuple[Any, ...]) -> None:
        if whole is None or _compiling():
            eager(*args)
            return
        status = whole(context, id(args))
        if status:
            fail(status, name, args)

    return call


linear_forward_of, linear_backward_of = _of("linear_forward"), _of("linear_backward")


def dtype_word(dtype: torch.dtype) -> int:
    """A torch dtype as the integer that `dtype` scalars take."""
    return _words[dtype]


_words = {t: _call.dtype_word(n) for t, n in _DTYPES.items()}


def compute_scale(
    amax: Tensor, scale: Tensor, scale_inv: Optional[Tensor], dtype: torch.dtype, epsilon: float = 0.0, flags: int = 0
) -> None:
    """Scales of current scaling for a format given as torch dtype."""
    _functions["compute_scale"](amax, scale, scale_inv, _words[dtype], epsilon, flags)


_ALGORITHMS = {"max": 0, "most_recent": 1}


def bound_update(histories: list[Tensor], scales: list[Tensor], dtype: torch.dtype, margin: int = 0, algorithm: str = "max") -> Callable[[Optional[Tensor]], None]:
    """amax_and_scale_update in place with all but the reduced amaxes bound."""
    name = "amax_and_scale_update"
    h, s = tuple(histories), tuple(scales)
    given = (h, s, h, s, None, len(h), _words[dtype], margin, _ALGORITHMS[algorithm])
    call, whole, context = _functions[name], _eager.entry(name), _eager.address

    def update(amax: Optional[Tensor]) -> None:
        if amax is not None or whole is None:
            call(*given[:4], amax, *given[5:])
            return
        status = whole(context, id(given))
        if status:
            _eager.fail(status, name, given)

    return update


def amax_and_scale_update(
    histories: list[Tensor], scales: list[Tensor], amax: Optional[Tensor], dtype: torch.dtype, margin: int = 0, algorithm: str = "max"
) -> None:
    """Delayed scaling over many modules at once, in place."""
    bound_update(histories, scales, dtype, margin, algorithm)(amax)


def device_usable(kind: str) -> bool:
    """Whether libte has implementations for a device kind here (opens its plug-in)."""
    import libte

    try:
        return bool(libte.implementations("rmsnorm_forward", _DEVICES[kind]))
    except libte.Error:
        return False


def __getattr__(name: str) -> Any:
    raise AttributeError(f"libte has no operator {name!r}; it has {', '.join(sorted(OPS))}")
