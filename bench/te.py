# SPDX-License-Identifier: Apache-2.0
"""libte on torch tensors with all arguments bound: what is timed is the call alone."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from libte import _shim
from libte.schema import OPS

SHIM = _shim.Shim(torch.Tensor)


def bind(name: str, **given: Any) -> Callable[[], None]:
    """bind("quantize", x=x, y=codes, y_scale_inv=inv) -> a call without arguments. Names are slots and scalars of libte.schema."""
    op = OPS[name]
    args: list[Any] = []
    for slot in op.slots:
        args.append(given.pop(slot.name, None))
    for scalar in op.scalars:
        args.append(given.pop(scalar.name) if scalar.name in given else scalar.default)
    if given:
        raise TypeError(f"{name} has no {', '.join(given)}")
    return functools.partial(getattr(SHIM, name), *args)
