# SPDX-License-Identifier: Apache-2.0
"""What every module shares: devices, dtypes, parameters, FP8 state, refusals that name what is not built."""
from __future__ import annotations

from typing import Any, Callable, Optional, Union

import torch
from libte.recipe import Float8CurrentScaling
from torch import Tensor, nn

from .. import functional as F
from .. import ops
from ..quantization import Context, ModuleState, Slots, current, fp8_types, model_init_recipe, state_changes
from ..tensor import QuantizedTensor, quantize

Device = Union[torch.device, str, None]


def default_device(device: Device) -> torch.device:
    """Explicit argument > torch's default device > cuda where it exists and libte's plug-in opens > cpu."""
    if device is not None:
        return torch.device(device)
    # torch's default is "cpu" also when nobody chose it: only a choice other than cpu counts
    chosen = torch.get_default_device()
    if chosen.type != "cpu":
        return chosen
    if torch.cuda.is_available():
        from ..ops import device_usable

        if device_usable("cuda"):
            return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def autocast_dtype(x: Tensor) -> Optional[torch.dtype]:
    """The activation dtype that torch.autocast asks for on x's device, None outside it."""
    if not x.is_meta and not torch.compiler.is_compiling() and not any_autocast():
        return None
    kind = x.device.type
    if kind == "meta":
        raise NotImplementedError("libte's modules compute nothing on the meta device: materialise the module (to_empty, reset_parameters) and its inputs first")
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def tensor_of(module: nn.Module, name: str) -> Any:
    """module.`name`, sooner where it is a parameter; parametrisations, pruning and FSDP put other things in a parameter's place."""
    p = module._parameters
    return p[name] if name in p else getattr(module, name)


def refuse_unbuilt(owner: Any, **given: Any) -> None:
    """Raises for arguments of upstream's that libte does not have yet: given as name=(value, harmless values...)."""
    for name, (value, *harmless) in given.items():
        if not any(value is h or (type(value) is type(h) and value == h) for h in harmless):
            raise NotImplementedError(f"{type(owner).__name__}: {name}={value!r} is not built in libte yet")


# Arguments that only matter with tensor parallelism or comm overlap, and the values that ask for nothing.
_INERT: dict[str, tuple[Any, ...]] = {
    "sequence_parallel": (False, None), "tp_group": (None,), "tp_size": (1,), "get_rng_state_tracker": (None,), "rng_tracker_name": (None,),
    "parallel_mode": (None, "column", "row"), "return_layernorm_output_gathered": (False,), "ub_overlap_ag": (False, True),
    "ub_overlap_rs": (False, True), "ub_overlap_rs_dgrad": (False, True), "ub_bulk_wgrad": (False, True), "ub_bulk_dgrad": (False, True),
    "ub_tp_comm_overlap": (False,), "ub_name": None, "delay_wgrad_compute": (False,), "symmetric_ar_type": (None,),  # type: ignore[dict-item]
    "save_original_input": (False,), "set_parallel_mode": (False, True), "seq_length": None, "micro_batch_size": None, "name": None,  # type: ignore[dict-item]
}


def check_inert(owner: Any, kwargs: dict[str, Any]) -> None:
    """Accepts upstream's parallelism arguments at their harmless values, refuses the others by name."""
    for name, value in kwargs.items():
        if name not in _INERT:
            raise TypeError(f"{type(owner).__name__}.__init__() got an unexpected keyword argument {name!r}")
        harmless = _INERT[name]
        if harmless is not None:
            refuse_unbuilt(owner, **{name: (value, *harmless)})


def _fp8_plan(context: Context, device: torch.device) -> F.Fp8:
    """Constants of a recipe on a device."""
    recipe = context.recipe
    forward, backward = fp8_types(recipe, device)  # type: ignore[arg-type]
    if isinstance(recipe, Float8CurrentScaling):
        flags = F.CURRENT_SCALING | (F.POW2_SCALES if recipe.use_power_2_scales else 0)
        split_f = F.SPLIT_ACCUMULATOR if recipe.fp8_gemm_fprop.use_split_accumulator else 0
        split_b = F.SPLIT_ACCUMULATOR if recipe.fp8_gemm_dgrad.use_split_accumulator else 0
        return F.Fp8(forward, backward, flags | split_f, flags | split_b, True)
    return F.Fp8(forward, backward, 0, F.SPLIT_ACCUMULATOR, False)


class TransformerEngineBaseModule(nn.Module):
    """Base of modules that quantise. `fp8_counts` = tensors quantised (forward, backward)."""

    fp8_counts = (2, 1)

    def __init__(self, device: Device, params_dtype: Optional[torch.dtype]) -> None:
        super().__init__()
        self.device_ = default_device(device)
        self.params_dtype = params_dtype or torch.get_default_dtype()
        self.fp8_state = ModuleState(self.fp8_counts)
        self._weight_cache: dict[str, tuple[Tensor, Optional[Tensor], Tensor]] = {}

    # -- parameters --

    def make_weight(self, name: str, shape: tuple[int, ...], init: Callable[[Tensor], Any]) -> None:
        """A GEMM weight: plain, or FP8 inside quantized_model_init."""
        weight = torch.empty(shape, dtype=self.params_dtype, device=self.device_)
        if self.device_.type != "meta":
            with torch.no_grad():
                init(weight)
        chosen = model_init_recipe()
        if chosen is not None and self.device_.type != "meta":
            recipe, preserve = chosen
            high = weight.detach().cpu().clone() if preserve else None
            parameter = nn.Parameter(quantize(weight, fp8_types(recipe, self.device_)[0]))
            bind_init_value(parameter, high)
        else:
            parameter = nn.Parameter(weight)
        self.register_parameter(name, parameter)

    def make_vector(self, name: str, n: Optional[int], value: float = 0.0) -> None:
        vector = None if n is None else torch.full((n,), value, dtype=self.params_dtype, device=self.device_)
        self.register_parameter(name, None if vector is None else nn.Parameter(vector))

    # -- FP8 --

    def quantisation(self, device: torch.device) -> tuple[Optional[F.Fp8], Optional[tuple[list[Tensor], list[Tensor]]], Any]:
        """(how to quantise now, (scales, amaxes) of the forward tensors, (scale, amax, memory for scale_inv) of each gradient): Nones outside
        FP8; current scaling has no state."""
        context = current()
        if not context.enabled:
            return None, None, None
        recipe, compiling = context.recipe, torch.compiler.is_compiling()
        # on GPUs FP8 products take k contiguous only, so what backward needs is made in the same pass
        turned = device.type != "cpu" and torch.is_grad_enabled()
        if compiling:
            fp8 = _fp8_plan(context, device)._replace(turned=turned)
            if fp8.current:
                return fp8, None, None
            f, g = self.fp8_state.ensure(recipe, device, context.group)  # type: ignore[arg-type]
            scales, amaxes = ([t[i : i + 1] for i in range(f.k)] for t in (f.scale, f.history[0]))
            return fp8, (scales, amaxes), [(g.scale[i : i + 1], g.history[0, i : i + 1], None) for i in range(g.k)]
        state = self.fp8_state
        key = (id(recipe), recipe._version, id(context.group), device, turned, state_changes[0])  # type: ignore[union-attr]
        known = state.known
        if known is None or known[0] != key:
            fp8, slots = _fp8_plan(context, device)._replace(turned=turned), None
            if not fp8.current:
                slots = state.ensure(recipe, device, context.group)  # type: ignore[arg-type]
            known = state.known = (key[:-1] + (state_changes[0],), fp8, slots, recipe, context.group)
        _, fp8, slots, _, _ = known
        if slots is None:
            return fp8, None, None
        if context.phase:
            return fp8, self._forward_in_checkpoint(context, slots[0]), slots[1].views
        return fp8, (slots[0].scales, slots[0].amaxes), slots[1].views

    @staticmethod
    def _forward_in_checkpoint(context: Context, slots: Slots) -> tuple[list[Tensor], list[Tensor]]:
        """A checkpoint's first forward keeps the scales; the recomputation uses those and throws its amaxes away."""
        if context.phase == 1:
            context.stash.append(slots.scale.clone())
            return slots.scales, slots.amaxes
        scale = context.stash.pop_first()
        return [scale[i : i + 1] for i in range(slots.k)], list(torch.zeros(slots.k, 1, dtype=torch.float32, device=scale.device).unbind())

    def weight_codes(
        self, name: str, weight: Tensor, fp8: Optional[F.Fp8], is_first_microbatch: Optional[bool]
    ) -> tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor], bool]:
        """(codes, column-wise codes, scale_inv, ready): where this call finds or writes the weight's codes. Rows that only this call needs are
        left to libte."""
        if fp8 is None:
            return None, None, None, False
        if isinstance(weight, QuantizedTensor):
            return weight._data, weight._columnwise if fp8.turned else None, weight._scale_inv, True
        if is_first_microbatch is None:
            inv = torch.empty(1, dtype=torch.float32, device=weight.device)
            if fp8.turned:
                return None, F.turned(weight, fp8.forward), inv, False
            return torch.empty_like(weight, dtype=fp8.forward), None, inv, False
        cached = self._weight_cache.get(name)
        lost = cached is None or cached[0].dtype != fp8.forward or cached[0].device != weight.device
        if not lost and not torch.compiler.is_compiling():  # which traces no inference mode
            lost = cached[0].is_inference() and not torch.is_inference_mode_enabled()  # autograd could not save those
        if lost or is_first_microbatch:
            codes = torch.empty_like(weight, dtype=fp8.forward)
            cached = (codes, F.turned(weight, fp8.forward) if fp8.turned else None, torch.empty(1, dtype=torch.float32, device=weight.device))
            self._weight_cache[name] = cached
            return *cached, False
        return *cached, True

    def calibrate(self, index: int, x: Tensor, weight: Tensor) -> None:
        """autocast(enabled=False, calibrating=True): record amaxes of an input and a weight; nothing is quantised."""
        context = current()
        if context.enabled or not context.calibrating or context.phase == 2 or isinstance(context.recipe, Float8CurrentScaling):
            return
        slots = self.fp8_state.ensure(context.recipe, x.device, context.group)  # type: ignore[arg-type]
        for i, t in ((index, x), (index + 1, weight)):
            t = t.dequantize() if isinstance(t, QuantizedTensor) else t
            ops.compute_amax(F.packed(t.detach()), None, slots[0].amaxes[i], 1)

    # -- activations' dtype --

    def cast_input(self, x: Tensor, weight: Tensor) -> tuple[Tensor, torch.dtype]:
        """x in the activation dtype (torch.autocast's, else x's own), and that dtype."""
        dtype = autocast_dtype(x)
        if dtype is None or x.dtype is dtype:
            return x, x.dtype
        return x.to(dtype), dtype

    # -- state dict --

    def get_extra_state(self) -> Tensor:
        return self.fp8_state.pack()

    def set_extra_state(self, state: Any) -> None:
        if isinstance(state, dict):
            self.fp8_state.load_legacy(state, self.device_)
        else:
            self.fp8_state.unpack(state, self.device_)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: Any, unexpected: Any, errors: Any) -> None:
        # weights of plain torch modules carry no _extra_state: that means "no FP8 state"
        key = prefix + "_extra_state"
        state_dict.setdefault(key, torch.empty(0, dtype=torch.uint8, device="cpu"))
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        result = super()._apply(fn, recurse)
        self._weight_cache.clear()
        for parameter in self.parameters(recurse=False):
            self.device_ = parameter.device
            break
        if self.fp8_state.slots is not None and self.device_.type != "meta":
            for s in self.fp8_state.slots:
                s.to(self.device_)
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_weight_cache": {}}  # as in a copy; and plain pickle takes no FP8 tensor

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        import copy

        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        for key, value in self.__dict__.items():
            new.__dict__[key] = {} if key == "_weight_cache" else copy.deepcopy(value, memo)
        return new

    @staticmethod
    def init_or_default(init: Optional[Callable[[Tensor], Any]]) -> Callable[[Tensor], Any]:
        return init if init is not None else default_init


def default_init(weight: Tensor) -> None:
    """Upstream's: normal with standard deviation 0.023. A function with a name, so that modules pickle."""
    nn.init.normal_(weight, 0.0, 0.023)


def bind_init_value(parameter: Any, value: Optional[Tensor]) -> None:
    """Upstream's pair of methods on a parameter made with preserve_high_precision_init_val."""
    if value is not None:
        parameter._high_precision_init_val = value
        parameter.get_high_precision_init_val = lambda: parameter._high_precision_init_val
        parameter.clear_high_precision_init_val = lambda: setattr(parameter, "_high_precision_init_val", None)
