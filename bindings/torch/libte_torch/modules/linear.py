# SPDX-License-Identifier: Apache-2.0
"""te.Linear."""
from __future__ import annotations

from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor

from .. import functional as F
from ..quantization import Context, innermost, state_changes
from ..tensor import QuantizedTensor, dequantized
from .base import Device, TransformerEngineBaseModule, any_autocast, check_inert, refuse_unbuilt

_compiling, _transformed, _grad_enabled = torch.compiler.is_compiling, torch._C._are_functorch_transforms_active, torch.is_grad_enabled


class Linear(TransformerEngineBaseModule):
    """y = x W^T + b, in FP8 under `te.autocast`.

    x [*, in_features] -> [*, out_features] (and the bias apart with return_bias). weight [out_features, in_features], bias
    [out_features]. Backward gives dx, dW and db with the gradient quantised once.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Optional[Callable[..., Any]] = None,
        rng_tracker_name: Optional[str] = None,
        init_method: Optional[Callable[[Tensor], Any]] = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: Optional[torch.dtype] = None,
        parallel_mode: Optional[str] = None,
        parameters_split: Optional[Union[tuple[str, ...], dict[str, int]]] = None,
        device: Device = None,
        **unbuilt: Any,
    ) -> None:
        super().__init__(device, params_dtype)
        check_inert(self, dict(
            sequence_parallel=sequence_parallel, tp_group=tp_group, tp_size=tp_size, get_rng_state_tracker=get_rng_state_tracker,
            rng_tracker_name=rng_tracker_name, parallel_mode=parallel_mode, **unbuilt,
        ))
        self.in_features, self.out_features = in_features, out_features
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.return_bias, self.use_bias = return_bias, bias
        self.init_method = self.init_or_default(init_method)
        self.splits = make_linear_parameters(self, parameters_split, out_features, in_features, bias)

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Initialises again (after materialising from the meta device)."""
        with torch.no_grad():
            for name, parameter in self.named_parameters(recurse=False):
                if name.endswith("bias"):
                    parameter.zero_()
                else:
                    self.init_method(parameter)

    def whole(self) -> tuple[Tensor, Optional[Tensor]]:
        """(weight, bias), concatenated where the parameters are split by name."""
        p = self._parameters
        if self.splits is None:
            return p["weight"], p["bias"]  # type: ignore[return-value]
        weight = torch.cat([dequantized(p[n + "weight"]) for n in self.splits])  # type: ignore[arg-type]
        return weight, torch.cat([p[n + "bias"] for n in self.splits]) if self.use_bias else None  # type: ignore[misc]

    def forward(
        self, inp: Tensor, is_first_microbatch: Optional[bool] = None, fp8_output: Optional[bool] = False, fp8_grad: Optional[bool] = False
    ) -> Any:
        if _compiling():
            return self._forward(inp, is_first_microbatch, fp8_output, fp8_grad)
        # The usual FP8 call, as it was the last time: with all checks made anew it would take a small layer's host a third longer.
        c, usual = innermost(), self.fp8_state.usual
        if usual is not None and c.enabled:
            changes, recipe, group, grad, weight, bias, weight_dtype, dtype, device, forward, backward = usual
            p = self._parameters
            if (c.recipe is recipe and c.group is group and not c.phase and changes == state_changes[0] and _grad_enabled() is grad
                    and p["weight"] is weight and p["bias"] is bias and weight.dtype is weight_dtype and inp.dtype is dtype and inp.device == device
                    and inp.shape[-1] == self.in_features and is_first_microbatch is None and not (fp8_output or fp8_grad)
                    and not (self.return_bias or self.fuse_wgrad_accumulation or any_autocast() or _transformed())):
                return F.Fp8Linear.direct(inp, weight, bias, forward, backward)
        y = self._forward(inp, is_first_microbatch, fp8_output, fp8_grad)
        if c.enabled:
            self.fp8_state.usual = self._usual_of(inp, c)
        return y

    def _usual_of(self, inp: Tensor, c: Context) -> Optional[tuple[Any, ...]]:
        """What `forward` compares, and the two tuples of F.Fp8Linear; None where the call is not usual."""
        if c.phase or self.splits is not None or any_autocast() or type(self._parameters["weight"]) is not torch.nn.Parameter:
            return None
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        fp8, used, gradients = self.quantisation(inp.device)
        assert fp8 is not None
        scales = (None,) * 4 if used is None else (used[0][0], used[1][0], used[0][1], used[1][1])
        gradient = (None,) * 3 if gradients is None else gradients[0]
        return (state_changes[0], c.recipe, c.group, _grad_enabled(), weight, bias, weight.dtype, inp.dtype, inp.device,
                (fp8.forward, fp8.turned, fp8.forward_flags, *scales), (fp8.backward, fp8.backward_flags, *gradient))

    def _forward(self, inp: Tensor, is_first_microbatch: Optional[bool], fp8_output: Optional[bool], fp8_grad: Optional[bool]) -> Any:
        if fp8_output or fp8_grad:
            refuse_unbuilt(self, fp8_output=(fp8_output, False, None), fp8_grad=(fp8_grad, False, None))
        weight, bias = self.whole()
        if inp.shape[-1:] != (self.in_features,):
            raise ValueError(f"Linear: inp must be [*, {self.in_features}], got {list(inp.shape)}")
        y = linear(self, inp, weight, None if self.return_bias else bias, is_first_microbatch, 0)
        if self.return_bias:
            return y, (bias if bias is None or bias.dtype is y.dtype else bias.to(y.dtype))
        return y

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.use_bias}"


def split_sizes(owner: Any, split: Any, total: int) -> Optional[dict[str, int]]:
    """parameters_split as {prefix: rows}: names share the rows equally, a dict says how many each."""
    if split is None:
        return None
    if not isinstance(split, dict):
        names = tuple(split)
        if not names or total % len(names):
            raise ValueError(f"{type(owner).__name__}: out_features = {total} must divide by the {len(names)} names of parameters_split")
        split = {n: total // len(names) for n in names}
    if sum(split.values()) != total:
        raise ValueError(f"{type(owner).__name__}: parameters_split must add up to out_features = {total}, got {sum(split.values())}")
    return {(n[: -len("weight")] if n.endswith("weight") else n if n.endswith("_") else n + "_"): int(k) for n, k in split.items()}


def make_linear_parameters(owner: Any, split: Any, out_features: int, in_features: int, bias: bool) -> Optional[dict[str, int]]:
    """weight and bias of a linear-like module, whole or under the names of parameters_split; returns the split."""
    splits = split_sizes(owner, split, out_features)
    for name, n in (splits or {"": out_features}).items():
        owner.make_weight(name + "weight", (n, in_features), owner.init_method)
        owner.make_vector(name + "bias", n if bias else None)
    return splits


def linear(
    module: TransformerEngineBaseModule, inp: Tensor, weight: Tensor, bias: Optional[Tensor], is_first_microbatch: Optional[bool], index: int
) -> Tensor:
    """One linear layer of a module; `index` = the input's slot in its forward state."""
    x, dtype = module.cast_input(inp, weight)
    fp8, forward, gradients = module.quantisation(x.device)
    if fp8 is None:
        module.calibrate(index, x, weight)
        wide = dequantized(weight)
        if wide.dtype is not dtype:
            wide = wide.to(dtype)
        if bias is not None and bias.dtype is not dtype:
            bias = bias.to(dtype)
        config = F.LinearConfig(wide.shape[0], None, False, dtype, dtype, module.fuse_wgrad_accumulation)
        return F.apply(F.Linear, x, wide, bias, *(None,) * 10, _main_grad(module, weight), config)
    wq, wqt, wq_scale_inv, ready = module.weight_codes(str(index), weight, fp8, is_first_microbatch)
    if forward is None:
        s = (None,) * 7
    else:
        scales, amaxes = forward
        s = (scales[index], amaxes[index], scales[index + 1], amaxes[index + 1], *gradients[index // 2])
    config = F.LinearConfig(weight.shape[0], fp8, ready, dtype, weight.dtype, module.fuse_wgrad_accumulation)
    return F.apply(F.Linear, x, weight, bias, *s, wq, wqt, wq_scale_inv, _main_grad(module, weight), config)


def _main_grad(module: Any, weight: Tensor) -> Optional[Tensor]:
    return getattr(weight, "main_grad", None) if module.fuse_wgrad_accumulation else None
