# SPDX-License-Identifier: Apache-2.0
"""Low-precision training recipes: data only, shared by the torch and JAX adapters.

Names, arguments and defaults are upstream's. A default that an environment variable sets is read through libte's configuration
table when a recipe is made, so a bad value is an error there and nowhere else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

__all__ = ["CustomRecipe", "DelayedScaling", "Float8BlockScaling", "Float8CurrentScaling", "Format", "MMParams", "MXFP8BlockScaling",
           "NVFP4BlockScaling", "QParams", "Recipe"]


class _Range(NamedTuple):
    max_fwd: float
    max_bwd: float


class Format(enum.Enum):
    """Largest finite values of the formats used in forward and in backward (OCP types; the device says which E4M3 it has)."""

    E2M1 = _Range(6, 6)
    E4M3 = _Range(448, 448)
    E5M2 = _Range(57344, 57344)
    HYBRID = _Range(448, 57344)


@dataclass(frozen=True)
class MMParams:
    """Options of one GEMM. Split accumulator = slower, accurate accumulation; a hint where accumulation is always f32."""

    use_split_accumulator: bool = True


@dataclass(frozen=True)
class QParams:
    """Options of quantising one tensor."""

    power_2_scale: bool = False
    amax_epsilon: float = 0.0
    random_hadamard_transform: bool = False
    stochastic_rounding: bool = False
    fp4_2d_quantization: bool = False


def _setting(variable: str) -> Any:
    from . import config

    return config.environment(variable)


_setting._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch.compile, following this into cffi's library, would end the process


def _default(variable: str) -> Any:
    return field(default_factory=lambda: _setting(variable))


def _override() -> Any:
    return field(default_factory=lambda: _setting("NVTE_BACKWARD_OVERRIDE") or None)


class Recipe:
    """Base of all recipes; the predicates answer for a class and for an instance."""

    _version = 0  # counts assignments, so that what was derived from a recipe need not compare its fields

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        object.__setattr__(self, "_version", self._version + 1)

    @classmethod
    def nvfp4(cls) -> bool:
        return issubclass(cls, NVFP4BlockScaling)

    @classmethod
    def mxfp8(cls) -> bool:
        return issubclass(cls, MXFP8BlockScaling)

    @classmethod
    def delayed(cls) -> bool:
        return issubclass(cls, DelayedScaling)

    @classmethod
    def float8_current_scaling(cls) -> bool:
        return issubclass(cls, Float8CurrentScaling)

    @classmethod
    def float8_per_tensor_scaling(cls) -> bool:
        return issubclass(cls, (DelayedScaling, Float8CurrentScaling))

    @classmethod
    def float8_block_scaling(cls) -> bool:
        return issubclass(cls, Float8BlockScaling)

    @classmethod
    def custom(cls) -> bool:
        return issubclass(cls, CustomRecipe)

    def __repr__(self) -> str:
        def show(v: Any) -> str:
            return v.name if isinstance(v, Format) else repr(v)

        names = getattr(self, "__dataclass_fields__", ())
        return f"{type(self).__name__}({', '.join(f'{n}={show(getattr(self, n))}' for n in names)})"

    def _refuse(self, argument: str, rule: str) -> None:
        value = getattr(self, argument)
        raise ValueError(f"{type(self).__name__}: {argument} {rule}, got {value.name if isinstance(value, Format) else repr(value)}")

    def _check(self) -> None:
        if not isinstance(self.fp8_format, Format):  # type: ignore[attr-defined]
            self._refuse("fp8_format", "must be a Format")
        if self.fp8_format not in (Format.E4M3, Format.HYBRID):  # type: ignore[attr-defined]
            self._refuse("fp8_format", "must be Format.E4M3 or Format.HYBRID (pure E5M2 training is not supported)")
        if self.backward_override not in (None, "high_precision", "dequantized"):  # type: ignore[attr-defined]
            self._refuse("backward_override", "must be None, 'high_precision' or 'dequantized'")


@dataclass(repr=False)
class DelayedScaling(Recipe):
    """One scale a tensor, from the history of its amax over the last steps.

    ``amax_compute_algo`` is ``"max"``, ``"most_recent"`` or a callable(history) -> amax; ``scaling_factor_compute_algo`` is None
    or a callable(amax, scale, fp8_max, recipe) -> scale. ``reduce_amax`` takes the maximum over the amax group.
    """

    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: Literal["max", "most_recent"] | Callable[..., Any] = "max"
    scaling_factor_compute_algo: Callable[..., Any] | None = None
    reduce_amax: bool = True
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = _override()

    def __post_init__(self) -> None:
        self._check()
        if self.backward_override is not None:
            self._refuse("backward_override", "must be None (delayed scaling keeps its operands quantised)")
        if isinstance(self.margin, bool) or not isinstance(self.margin, int) or not -64 <= self.margin <= 64:
            self._refuse("margin", "must be an integer in [-64, 64]")
        if isinstance(self.amax_history_len, bool) or not isinstance(self.amax_history_len, int) or self.amax_history_len < 1:
            self._refuse("amax_history_len", "must be an integer >= 1")
        if self.amax_compute_algo not in ("max", "most_recent") and not callable(self.amax_compute_algo):
            self._refuse("amax_compute_algo", "must be 'max', 'most_recent' or a callable")
        if self.scaling_factor_compute_algo is not None and not callable(self.scaling_factor_compute_algo):
            self._refuse("scaling_factor_compute_algo", "must be None or a callable")


@dataclass(repr=False)
class Float8CurrentScaling(Recipe):
    """One scale a tensor, from the amax of that very tensor. ``fp8_quant_*`` follow from ``use_power_2_scales``."""

    use_power_2_scales: bool = _default("NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES")
    fp8_format: Format = Format.HYBRID
    fp8_gemm_fprop: MMParams = MMParams(use_split_accumulator=False)
    fp8_gemm_dgrad: MMParams = MMParams(use_split_accumulator=True)
    fp8_gemm_wgrad: MMParams = MMParams(use_split_accumulator=True)
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = _override()

    def __post_init__(self) -> None:
        self._check()
        for name in ("fp8_gemm_fprop", "fp8_gemm_dgrad", "fp8_gemm_wgrad"):
            if not isinstance(getattr(self, name), MMParams):
                self._refuse(name, "must be an MMParams")
        params = QParams(power_2_scale=self.use_power_2_scales)
        self.fp8_quant_fwd_inp = self.fp8_quant_fwd_weight = self.fp8_quant_bwd_grad = params


class _Unbuilt(Recipe):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} is not built yet; libte has DelayedScaling and Float8CurrentScaling")


class MXFP8BlockScaling(_Unbuilt):
    """E8M0 scales of 32-element blocks: not built yet."""


class Float8BlockScaling(_Unbuilt):
    """Scales of 1x128 and 128x128 blocks: not built yet."""


class NVFP4BlockScaling(_Unbuilt):
    """E2M1 values with E4M3 scales of 16-element blocks: not built yet."""


class CustomRecipe(_Unbuilt):
    """A quantiser for each tensor from the caller's factory: not built yet."""
