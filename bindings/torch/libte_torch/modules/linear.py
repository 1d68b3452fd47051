# SPDX-License-Identifier: Apache-2.0
"""te.Linear."""
from __future__ import annotations

from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor

from .. import functional as F
from ..quantization import Context, innermost, state_changes
from ..tensor import QuantizedTensor, dequantized
from .base import Device, TransformerEngineBaseModule, any_autocast, check_inert, refuse_unbuilt, tensor_of

_compiling, _transformed, _grad_enabled = torch.compiler.is_compiling, torch._C._are_functorch_transforms_active, torch.is_grad_enabled
_Parameter = torch.nn.Parameter


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
        if self.splits is None:
            return tensor_of(self, "weight"), tensor_of(self, "bias")
        weight = torch.cat([dequantized(tensor_of(self, n + "weight")) for n in self.splits])
        return weight, torch.cat([tensor_of(self, n + "bias") for n in self.splits]) if self.use_bias else None

    def forward(
        self, inp: Tensor, is_first_microbatch: Optional[bool] = None, fp8_output: Optional[bool] = False, fp8_grad: Optional[bool] = False
    ) -> Any:
        if _compiling():
            return self._forward(inp, is_first_microbatch, fp8_output, fp8_grad)
        c = innermost()
        if not c.enabled:
            return self._forward(inp, is_first_microbatch, fp8_output, fp8_grad)
        # The usual FP8 call is F.Fp8Linear, the first time as well: torch's checkpoint needs a recomputation to save the same tensors. What it is
        # called with is kept: with all checks made anew it would take a small layer's host a third longer.
        weight, shape, usual = self._parameters.get("weight"), inp.shape, self.fp8_state.usual
        if (is_first_microbatch is not None or fp8_output or fp8_grad or self.return_bias or self.fuse_wgrad_accumulation or c.phase
                or type(weight) is not _Parameter or not shape or shape[-1] != self.in_features or any_autocast() or _transformed()):
            return self._forward(inp, is_first_microbatch, fp8_output, fp8_grad)
        if usual is not None:
            changes, recipe, version, group, grad, device, forward, backward = usual
            if (c.recipe is recipe and recipe._version == version and c.group is group and changes == state_changes[0] and _grad_enabled() is grad
                    and inp.device == device):
                return F.Fp8Linear.direct(inp, weight, self._parameters["bias"], forward, backward)
        if self.splits is not None or inp.is_meta or "bias" not in self._parameters:
            return self._forward(inp, is_first_microbatch, fp8_output, fp8_grad)
        usual = self.fp8_state.usual = self._usual_of(inp.device, c)
        return F.Fp8Linear.direct(inp, weight, self._parameters["bias"], usual[-2], usual[-1])

    def _usual_of(self, device: torch.device, c: Context) -> tuple[Any, ...]:
        """What `forward` compares, and the two tuples of F.Fp8Linear. Nothing of a parameter, which may be replaced."""
        fp8, used, gradients = self.quantisation(device)
        assert fp8 is not None and c.recipe is not None
        scales = (None,) * 4 if used is None else (used[0][0], used[1][0], used[0][1], used[1][1])
        gradient = (None,) * 3 if gradients is None else gradients[0]
        return (state_changes[0], c.recipe, c.recipe._version, c.group, _grad_enabled(), device,
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
