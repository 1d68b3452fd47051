# SPDX-License-Identifier: Apache-2.0
"""Softmax cross-entropy."""
from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import functional as F
from . import ops

_REDUCTIONS = {"none": 0, "sum": 1, "mean": 2}


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float, reduction: int, ignore: int) -> Tensor:
        tokens = logits.shape[0]
        loss = torch.empty(tokens if reduction == 0 else 1, dtype=torch.float32, device=logits.device)
        lse = torch.empty(tokens, dtype=torch.float32, device=logits.device)
        ops.cross_entropy_forward(logits, target, loss, lse, None, smoothing, reduction, ignore, 0, 0)
        ctx.save_for_backward(logits, target, lse)
        ctx.constants = (smoothing, reduction, ignore)
        return loss if reduction == 0 else loss.view(())

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> Any:
        F.once("cross_entropy")
        logits, target, lse = ctx.saved_tensors
        dlogits = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        ops.cross_entropy_backward(logits, target, lse, dloss.view(1) if dloss.dim() == 0 else dloss, dlogits, *ctx.constants, 0, 0)
        return dlogits, None, None, None, None


def cross_entropy(
    logits: Tensor, target: Tensor, reduction: str = "mean", label_smoothing: float = 0.0, ignore_index: int = -100
) -> Tensor:
    """Loss of logits [*, V] (f32|f16|bf16) against target [*] (int64), in f32. reduction none gives [*]; mean divides by the tokens
    that are not ignored."""
    if reduction not in _REDUCTIONS:
        raise ValueError(f"cross_entropy: reduction must be one of {sorted(_REDUCTIONS)}, got {reduction!r}")
    flat = logits.reshape(-1, logits.shape[-1])
    if flat.stride(-1) != 1 and flat.shape[-1] > 1:
        flat = flat.contiguous()
    loss = _CrossEntropy.apply(flat, target.reshape(-1).contiguous(), label_smoothing, _REDUCTIONS[reduction], ignore_index)
    return loss.view(target.shape) if reduction == "none" else loss


def parallel_cross_entropy(
    inp: Tensor, target: Tensor, label_smoothing: float = 0.0, reduce_loss: bool = False, dist_process_group: Any = None,
    ignore_idx: int = -100, is_cg_capturable: bool = False, *, _input: Optional[Tensor] = None,
) -> Tensor:
    """Upstream's name. inp [*, V] is this rank's shard of the vocabulary when dist_process_group has more than one member (rank r holds
    columns [r V, (r+1) V)); target holds classes of the whole vocabulary. reduce_loss: mean over the tokens not ignored, else [*]."""
    inp = _input if _input is not None else inp
    world = torch.distributed.get_world_size(dist_process_group) if dist_process_group is not None else 1
    if world == 1:
        return cross_entropy(inp, target, "mean" if reduce_loss else "none", label_smoothing, ignore_idx)
    flat = inp.reshape(-1, inp.shape[-1])
    loss = _Parallel.apply(flat.contiguous(), target.reshape(-1).contiguous(), label_smoothing, ignore_idx, dist_process_group)
    if reduce_loss:
        return loss.sum() / (target.reshape(-1) != ignore_idx).sum().clamp(min=1)
    return loss.view(target.shape)


class _Parallel(torch.autograd.Function):
    """Combines the shards' (max, sum exp, target logit, sum) partials; backward needs only the global log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float, ignore: int, group: Any) -> Tensor:
        tokens, local = logits.shape
        rank, world = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
        start, vocab = rank * local, world * local
        partials = torch.empty(tokens, 4, dtype=torch.float32, device=logits.device)
        ops.cross_entropy_forward(logits, target, None, None, partials, smoothing, 0, ignore, start, vocab)
        top = partials[:, 0].clone()
        torch.distributed.all_reduce(top, op=torch.distributed.ReduceOp.MAX, group=group)
        shift = torch.where(torch.isfinite(top), partials[:, 0] - top, torch.zeros_like(top))
        sums = torch.stack([partials[:, 1] * torch.exp(shift), partials[:, 2], partials[:, 3]])
        torch.distributed.all_reduce(sums, group=group)
        lse = top + torch.log(sums[0])
        loss = lse - (1.0 - smoothing) * sums[1]
        if smoothing > 0.0:
            loss = loss - smoothing / vocab * sums[2]
        ctx.save_for_backward(logits, target, lse)
        ctx.constants = (smoothing, 0, ignore, start, vocab)
        return torch.where(target == ignore, torch.zeros_like(loss), loss)

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> Any:
        F.once("parallel_cross_entropy")
        logits, target, lse = ctx.saved_tensors
        dlogits = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        ops.cross_entropy_backward(logits, target, lse, dloss, dlogits, *ctx.constants)
        return dlogits, None, None, None, None
