# SPDX-License-Identifier: Apache-2.0
"""te.checkpoint: recompute activations in backward, with the FP8 state of the first forward."""
from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from .quantization import current, entered


class _Stash:
    """Scales in the order modules ran; the recomputation reads them in the same order, and may be run again."""

    def __init__(self) -> None:
        self.scales: list[Tensor] = []
        self.next = 0

    def append(self, scale: Tensor) -> None:
        self.scales.append(scale)

    def pop_first(self) -> Tensor:
        if self.next >= len(self.scales):
            raise RuntimeError(
                f"te.checkpoint: the recomputation runs an FP8 module that the first forward did not ({len(self.scales)} ran); "
                "the function must do the same both times"
            )
        self.next += 1
        return self.scales[self.next - 1]


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs function(*args, **kwargs) without keeping its activations; backward runs it again.

    The recomputation quantises with the scales of the first forward, records no amax and updates no scale, so state is as without
    checkpoint. Upstream's keywords distribute_saved_activations, get_rng_state_tracker, tp_group and use_reentrant are taken at
    harmless values.
    """
    distribute = kwargs.pop("distribute_saved_activations", False)
    tracker, group = kwargs.pop("get_rng_state_tracker", None), kwargs.pop("tp_group", None)
    kwargs.pop("use_reentrant", None)
    for name, value in (("distribute_saved_activations", distribute), ("get_rng_state_tracker", tracker), ("tp_group", group)):
        if value:
            raise NotImplementedError(f"te.checkpoint: {name}={value!r} is not built in libte yet")
    stash = _Stash()
    outer = current()

    @contextmanager
    def first() -> Iterator[None]:
        with entered(current()._replace(phase=1, stash=stash)):
            yield

    @contextmanager
    def again() -> Iterator[None]:
        stash.next = 0
        with entered(outer._replace(phase=2, stash=stash)):
            yield

    if outer.phase or not torch.is_grad_enabled():  # inside another checkpoint, which recomputes this part too
        return function(*args, **kwargs)
    return torch_checkpoint(function, *args, use_reentrant=False, context_fn=lambda: (first(), again()), **kwargs)
