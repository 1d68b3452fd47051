# SPDX-License-Identifier: Apache-2.0
"""The operators as data, generated from the public headers. No library is opened by importing this.

Every adapter calls an operator by one flat argument list, its *slots* followed by its *scalars*. A plain tensor field is one slot.
A field that carries scaling (`quantized`) is six, all optional but as the operator needs them: F, F_columnwise, F_scale_inv,
F_columnwise_scale_inv, F_scale, F_amax. A list field is one slot that takes a tuple of tensors.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Union

# A dimension: an int, a name, ("prod",) for the product of the leading ones, or (operator, a, b) with + - * / ceil.
Expr = Union[int, str, tuple]
PARTS = ("data", "columnwise", "scale_inv", "columnwise_scale_inv", "scale", "amax")


class Field(NamedTuple):
    """A tensor field of an args struct."""

    name: str
    direction: str  # in, out, inout
    optional: bool
    count: str  # lists: the scalar that holds the count; "" for one tensor
    star: bool  # dims begin with any number of leading dimensions
    dims: tuple[Expr, ...] | None  # the others; None where the operator infers them itself
    dims_text: str
    dtypes: tuple[str, ...]  # of DTYPES, "any", "<field>.dtype"
    words: frozenset[str]  # quantized, rows, strided; neither of the last two: contiguous
    help: str

    @property
    def writes(self) -> bool:
        return self.direction != "in"

    @property
    def quantized(self) -> bool:
        return "quantized" in self.words


class Scalar(NamedTuple):
    name: str
    kind: str  # f32 i32 u32 i64 size dtype
    default: Any  # None: required
    help: str


class Slot(NamedTuple):
    name: str  # y_scale_inv
    field: str  # y
    part: str  # of PARTS
    direction: str
    optional: bool
    is_list: bool


class Op(NamedTuple):
    name: str
    fields: tuple[Field, ...]
    scalars: tuple[Scalar, ...]
    help: str

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(s for f in self.fields for s in slots_of(f))

    @property
    def outputs(self) -> tuple[Field, ...]:
        return tuple(f for f in self.fields if f.writes)

    def field(self, name: str) -> Field:
        return next(f for f in self.fields if f.name == name)


def slots_of(f: Field) -> list[Slot]:
    """A field's slots. scale is read and amax and the inverses are written by whoever writes the codes."""
    if not f.quantized:
        return [Slot(f.name, f.name, "data", f.direction, f.optional, bool(f.count))]
    return [Slot(f.name if part == "data" else f"{f.name}_{part}", f.name, part, "in" if part == "scale" else f.direction, True, False)
            for part in PARTS]


def leading(f: Field, shape: tuple) -> tuple:
    """The part of `shape` that `*` stands for."""
    n = len(f.dims or ())
    return tuple(shape[:len(shape) - n])


def evaluate(e: Expr, names: dict[str, Any], lead: tuple) -> Any:
    """Value of a dimension. Only + - * // are used, so symbolic integers work."""
    if isinstance(e, int):
        return e
    if isinstance(e, str):
        return names[e]
    if e[0] == "prod":
        out: Any = 1
        for n in lead:
            out = out * n
        return out
    a, b = evaluate(e[1], names, lead), evaluate(e[2], names, lead)
    if e[0] == "+":
        return a + b
    if e[0] == "-":
        return a - b
    if e[0] == "*":
        return a * b
    return -(-a // b) if e[0] == "ceil" else a // b


def bind(op: Op, shapes: dict[str, tuple]) -> tuple[dict[str, Any], tuple]:
    """Values of the dimension names and of `*`, from the shapes of the given fields; `2*H` alone solves for H."""
    names: dict[str, Any] = {}
    lead: tuple = ()
    for f in op.fields:
        if f.name not in shapes or f.dims is None or f.count:
            continue
        shape = tuple(shapes[f.name])
        if f.star:
            lead = leading(f, shape)
        for e, n in zip(f.dims, shape[len(shape) - len(f.dims):]):
            if isinstance(e, str):
                names.setdefault(e, n)
            elif isinstance(e, tuple) and e[0] == "*" and isinstance(e[1], int) and isinstance(e[2], str):
                names.setdefault(e[2], n // e[1])
    return names, lead


def shapes(op: Op, given: dict[str, tuple]) -> dict[str, tuple | None]:
    """Shapes of the outputs from the shapes of the inputs; None where the operator infers them itself (nvte_infer then)."""
    names, lead = bind(op, given)
    out: dict[str, tuple | None] = {}
    for f in op.outputs:
        if f.count:
            continue
        try:
            out[f.name] = None if f.dims is None else (lead if f.star else ()) + tuple(evaluate(e, names, lead) for e in f.dims)
        except KeyError:
            out[f.name] = None
    return out


def numel(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def __getattr__(name: str) -> Any:
    if name in ("OPS", "CONSTANTS", "VERSION", "DTYPES"):
        from ._generated import _schema

        return getattr(_schema, name)
    raise AttributeError(name)
