# SPDX-License-Identifier: Apache-2.0
"""QuantizedTensor: the one tensor type that carries codes and their scale.

It looks like a tensor of its nominal dtype. Operators that do not know it work on the dequantised values; operators that write to it
quantise the result again with a fresh scale (current scaling).
"""
from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from . import ops

_aten = torch.ops.aten


class QuantizedTensor(torch.Tensor):
    """FP8 codes of a tensor: value = codes * scale_inv.

    `_data` fp8 [*shape], `_columnwise` fp8 transposed copy [K, M] or None, `_scale_inv` f32 [1], `_scaling` the scaling row
    ("tensor"). Columnwise-only tensors keep the logical shape.
    """

    _data: Optional[Tensor]
    _columnwise: Optional[Tensor]
    _scale_inv: Tensor
    _scaling: str
    _high_precision_init_val: Optional[Tensor]

    @staticmethod
    def __new__(
        cls, shape: Any, dtype: torch.dtype, data: Optional[Tensor], scale_inv: Tensor, columnwise: Optional[Tensor] = None,
        scaling: str = "tensor", requires_grad: bool = False,
    ) -> "QuantizedTensor":
        part = data if data is not None else columnwise
        if part is None:
            raise ValueError("QuantizedTensor: data or columnwise must be given")
        if data is not None and tuple(data.shape) != tuple(shape):
            raise ValueError(f"QuantizedTensor: data must be {list(shape)}, got {list(data.shape)}")
        self = torch.Tensor._make_wrapper_subclass(cls, torch.Size(shape), dtype=dtype, device=part.device, requires_grad=requires_grad)
        self._data, self._columnwise, self._scale_inv, self._scaling = data, columnwise, scale_inv, scaling
        self._high_precision_init_val = None
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    # -- values --

    @property
    def fp8_dtype(self) -> torch.dtype:
        return (self._data if self._data is not None else self._columnwise).dtype  # type: ignore[union-attr]

    def dequantize(self, *, dtype: Optional[torch.dtype] = None) -> Tensor:
        """codes * scale_inv in the nominal dtype (or `dtype`)."""
        return _Dequantize.apply(self, dtype or self.dtype)

    def quantize_(self, values: Tensor) -> "QuantizedTensor":
        """Replaces the values: fresh amax, scale and codes; a columnwise copy is renewed with them."""
        if tuple(values.shape) != tuple(self.shape):
            raise ValueError(f"QuantizedTensor.quantize_: values must be {list(self.shape)}, got {list(values.shape)}")
        write_codes(_plain(values.detach()).to(self.device), self._data, self._columnwise, self._scale_inv)
        return self

    def update_usage(self, rowwise_usage: Optional[bool] = None, columnwise_usage: Optional[bool] = None) -> None:
        """Makes the orientation asked for exist, and drops the one that is not wanted."""
        if columnwise_usage and self._columnwise is None:
            assert self._data is not None
            flat = self._data.view(-1, self._data.shape[-1])
            self._columnwise = _transpose(flat)
        if rowwise_usage and self._data is None:
            assert self._columnwise is not None
            self._data = _transpose(self._columnwise).view(self.shape)
        if rowwise_usage is False and self._columnwise is not None:
            self._data = None
        if columnwise_usage is False and self._data is not None:
            self._columnwise = None

    # -- copies --

    def _like(self, move: Any, dtype: Optional[torch.dtype] = None) -> "QuantizedTensor":
        data = None if self._data is None else move(self._data)
        columnwise = None if self._columnwise is None else move(self._columnwise)
        new = QuantizedTensor(self.shape, dtype or self.dtype, data, move(self._scale_inv), columnwise, self._scaling)
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> "QuantizedTensor":
        new = self._like(torch.clone)
        new.requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            new._is_param = True  # type: ignore[attr-defined]
        if self.grad is not None:
            new.grad = self.grad.clone()
        value = getattr(self, "_high_precision_init_val", None)
        if value is not None:
            from .modules.base import bind_init_value

            bind_init_value(new, value.clone())
        memo[id(self)] = new
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (
            tuple(self.shape), self.dtype, self._data, self._scale_inv, self._columnwise, self._scaling, self.requires_grad,
            bool(getattr(self, "_is_param", False)),
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"QuantizedTensor({self.fp8_dtype}, scaling={self._scaling}, scale_inv={self._scale_inv.item():g}, data={self.dequantize()})"

    def __tensor_flatten__(self) -> Any:
        names = [n for n in ("_data", "_columnwise", "_scale_inv") if getattr(self, n) is not None]
        return names, (tuple(self.shape), self.dtype, self._scaling, self.requires_grad)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: Any, outer_size: Any, outer_stride: Any) -> "QuantizedTensor":
        shape, dtype, scaling, requires_grad = meta
        return QuantizedTensor(shape, dtype, inner.get("_data"), inner["_scale_inv"], inner.get("_columnwise"), scaling, requires_grad)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten.detach.default:
            return args[0]._like(lambda t: t)
        if func is _aten.clone.default:
            return args[0]._like(torch.clone)
        if func in (_aten.alias.default, _aten.lift_fresh.default):
            return args[0]._like(lambda t: t)
        if func is _aten._to_copy.default and isinstance(args[0], cls):
            device, dtype = kwargs.get("device"), kwargs.get("dtype")
            return args[0]._like(lambda t: t.to(device) if device is not None else t.clone(), dtype)
        if func is _aten.copy_.default and isinstance(args[0], cls):
            target, source = args[0], args[1]
            if isinstance(source, cls) and source._data is not None and target._data is not None and source.fp8_dtype is target.fp8_dtype:
                target._data.copy_(source._data)
                target._scale_inv.copy_(source._scale_inv)
                if target._columnwise is not None:
                    target._columnwise.copy_(_transpose(target._data.view(-1, target._data.shape[-1])))
                return target
            return target.quantize_(source.expand(target.shape) if source.shape != target.shape else source)
        if func in (_aten.empty_like.default, _aten.zeros_like.default, _aten.ones_like.default) and isinstance(args[0], cls):
            kwargs.setdefault("dtype", args[0].dtype)
            kwargs.setdefault("device", args[0].device)
            return func(torch.empty(args[0].shape, dtype=args[0].dtype, device="meta"), **kwargs)
        wide: dict[int, tuple[QuantizedTensor, Tensor]] = {}

        def lower(t: Any) -> Any:
            if not isinstance(t, cls):
                return t
            if id(t) not in wide:
                wide[id(t)] = (t, _dequantized(t, t.dtype))
            return wide[id(t)][1]

        out = func(*tree_map(lower, args), **tree_map(lower, kwargs))
        written = [a for a, s in zip(args, func._schema.arguments) if s.alias_info is not None and s.alias_info.is_write]
        written += [kwargs[s.name] for s in func._schema.arguments if s.name in kwargs and s.alias_info is not None and s.alias_info.is_write]
        for w in written:
            for t in w if isinstance(w, (list, tuple)) else (w,):
                if isinstance(t, cls):
                    t.quantize_(wide[id(t)][1])
        back = {id(values): t for t, values in wide.values()}
        return tree_map(lambda t: back.get(id(t), t), out) if written else out


class _Dequantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: QuantizedTensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = t.dtype
        return _dequantized(t, dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return dy.to(ctx.dtype), None


def _dequantized(t: QuantizedTensor, dtype: torch.dtype) -> Tensor:
    y = torch.empty(t.shape, dtype=dtype, device=t.device)
    if t._data is not None:
        ops.dequantize(t._data, None, t._scale_inv, None, None, None, y)
    else:  # a column-wise-only descriptor is seen as [M, K]
        ops.dequantize(None, t._columnwise, t._scale_inv, t._scale_inv, None, None, y.view(-1, y.shape[-1]))
    return y


def _plain(t: Tensor) -> Tensor:
    return _dequantized(t, t.dtype) if isinstance(t, QuantizedTensor) else t


def _transpose(flat: Tensor) -> Tensor:
    out = torch.empty((flat.shape[1], flat.shape[0]), dtype=flat.dtype, device=flat.device)
    ops.transpose(flat, out, None)
    return out


def dequantized(t: Tensor) -> Tensor:
    """t itself, or the wide values of a QuantizedTensor (gradients flow through)."""
    return t.dequantize() if isinstance(t, QuantizedTensor) else t


def write_codes(values: Tensor, data: Optional[Tensor], columnwise: Optional[Tensor], scale_inv: Tensor) -> None:
    """Current scaling: amax, scale, codes and scale_inv of `values`, into the buffers given."""
    part = data if data is not None else columnwise
    both = torch.empty(2, dtype=torch.float32, device=values.device)
    values = values if values.is_contiguous() else values.contiguous()
    ops.compute_amax(values, None, both[0:1], 0)
    ops.compute_scale(both[0:1], both[1:2], None, part.dtype, 0.0, 0)  # type: ignore[union-attr]
    if data is None:  # a column-wise-only descriptor is seen as [M, K]
        values = values.view(-1, values.shape[-1])
    ops.quantize(values, data, columnwise, scale_inv, scale_inv if columnwise is not None else None, both[1:2], None, None, None)


def quantize(values: Tensor, fp8_dtype: torch.dtype, rowwise: bool = True, columnwise: bool = False) -> QuantizedTensor:
    """A QuantizedTensor of `values` with a scale of its own."""
    values = values.detach()
    data = torch.empty(values.shape, dtype=fp8_dtype, device=values.device) if rowwise else None
    k = values.shape[-1] if values.dim() else 1
    column = torch.empty((k, values.numel() // max(k, 1)), dtype=fp8_dtype, device=values.device) if columnwise else None
    scale_inv = torch.empty(1, dtype=torch.float32, device=values.device)
    write_codes(values, data, column, scale_inv)
    return QuantizedTensor(values.shape, values.dtype, data, scale_inv, column)


def _rebuild(
    shape: Any, dtype: torch.dtype, data: Any, scale_inv: Tensor, columnwise: Any, scaling: str, requires_grad: bool, is_param: bool
) -> QuantizedTensor:
    t = QuantizedTensor(shape, dtype, data, scale_inv, columnwise, scaling, requires_grad)
    if is_param:
        t._is_param = True  # type: ignore[attr-defined]
    return t


torch.serialization.add_safe_globals([_rebuild, QuantizedTensor])
