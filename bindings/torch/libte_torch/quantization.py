# SPDX-License-Identifier: Apache-2.0
"""What autocast means: the recipe in force, and each module's FP8 state.

Delayed scaling keeps, for a module and a direction, `scale` f32 [k] and `amax_history` f32 [len, k]. Row 0 of the history is where
kernels write the current amax. One bulk call rolls the histories of all modules and derives new scales; entries whose amax is 0
were not used and stay as they are, so it needs no list of what ran. Forward states are updated when the outermost autocast is left,
backward states when the next one is entered or the state is looked at.
"""
from __future__ import annotations

import functools
import itertools
import json
import struct
import threading
import weakref
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Iterable, Iterator, NamedTuple, Optional

import torch
from libte.recipe import DelayedScaling, Float8CurrentScaling, Format, Recipe

from . import ops

DIRECTIONS = ("forward", "backward")


class Context(NamedTuple):
    """What the innermost autocast says. `phase`: 0 normal, 1 first forward of a checkpoint, 2 its recomputation."""

    enabled: bool = False
    calibrating: bool = False
    recipe: Optional[Recipe] = None
    group: Any = None
    phase: int = 0
    stash: Any = None  # checkpoint: scales of the first forward, in module order


_OFF = Context()
# Dynamo cannot trace threading.local, so the innermost context of the last thread that changed it is kept here as well.
_latest = [_OFF]


class _Stack(threading.local):
    def __init__(self) -> None:
        self.items: list[Context] = []
        self.foreign = isinstance(threading.current_thread(), threading._DummyThread)  # Python did not start this thread


_stack = _Stack()


def _without() -> Context:
    """Outside any autocast of this thread. A backward pass in one of autograd's own threads (on GPUs all are) may compute a forward again, for
    torch's checkpoint, as the autocast says that is in force where backward was called."""
    return _latest[0] if _stack.foreign and torch._C._current_graph_task_id() != -1 else _OFF


def current() -> Context:
    """The innermost autocast of this thread."""
    if torch.compiler.is_compiling():
        return _latest[0]
    return innermost()


def innermost() -> Context:
    """current() where nothing is being compiled."""
    items = _stack.items
    return items[-1] if items else _without()


def _push(context: Context) -> None:
    _stack.items.append(context)
    _latest[0] = context


def _pop() -> None:
    items = _stack.items
    items.pop()
    _latest[0] = items[-1] if items else _OFF


@contextmanager
def entered(context: Context) -> Iterator[None]:
    """Puts a context in force as it is: no scale update on either side (checkpoint's recomputation)."""
    _push(context)
    try:
        yield
    finally:
        _pop()


def get_default_recipe() -> Recipe:
    """The recipe of `autocast()` without one: HYBRID delayed scaling."""
    return DelayedScaling()


@functools.cache
def _shared_default() -> Recipe:
    """What autocast takes: a recipe of its own for each step would be a change of recipe in every module."""
    return get_default_recipe()


class autocast:
    """Turns quantised compute on: ``with te.autocast(enabled=True, recipe=DelayedScaling()): y = module(x)``.

    calibrating: with enabled=False, collect amaxes without quantising.
    amax_reduction_group: torch.distributed group over which delayed scaling reduces amaxes (recipe.reduce_amax).
    """

    def __init__(
        self,
        enabled: bool = True,
        calibrating: bool = False,
        recipe: Optional[Recipe] = None,
        amax_reduction_group: Any = None,
        _graph: bool = False,
    ) -> None:
        for name, value in (("enabled", enabled), ("calibrating", calibrating)):
            if not isinstance(value, int) and type(value).__name__ not in ("bool", "bool_"):  # numpy's, too
                raise TypeError(f"autocast: {name} must be True or False, got {value!r}; the recipe is the argument recipe")
        if recipe is None and (enabled or calibrating):
            recipe = _shared_default()
        if recipe is not None and not isinstance(recipe, (DelayedScaling, Float8CurrentScaling)):
            raise NotImplementedError(f"autocast: recipe {type(recipe).__name__} is not built yet (DelayedScaling, Float8CurrentScaling are)")
        if getattr(recipe, "fp8_dpa", False) or getattr(recipe, "fp8_mha", False):
            raise NotImplementedError("autocast: recipe.fp8_dpa and fp8_mha (FP8 attention) are not built yet")
        self._arguments = (enabled, calibrating, recipe, amax_reduction_group)

    def __enter__(self) -> "autocast":
        enabled, calibrating, recipe, group = self._arguments
        items = _stack.items
        outer = items[-1] if items else _OFF
        # Inside a checkpoint the phase goes on: a recomputation neither records nor updates anything.
        if (enabled or calibrating) and outer.phase != 2 and not (items and any(c.enabled or c.calibrating for c in items)):
            update_states("backward")
        _push(Context(enabled, calibrating, recipe, group, outer.phase, outer.stash))
        return self

    def __exit__(self, *exc: Any) -> None:
        items = _stack.items
        context = items[-1]
        _pop()
        if (context.enabled or context.calibrating) and context.phase != 2 and not (items and any(c.enabled or c.calibrating for c in items)):
            update_states("forward")

    def __call__(self, function: Any) -> Any:
        """Use as a decorator."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with autocast(self._arguments[0], self._arguments[1], self._arguments[2], self._arguments[3]):
                return function(*args, **kwargs)

        return wrapped


def fp8_autocast(
    enabled: bool = True, calibrating: bool = False, fp8_recipe: Optional[Recipe] = None, fp8_group: Any = None, _graph: bool = False
) -> autocast:
    """The older spelling of `autocast`."""
    return autocast(enabled, calibrating, fp8_recipe, fp8_group, _graph)


# ---- quantized_model_init ----

_init = threading.local()


@contextmanager
def quantized_model_init(
    enabled: bool = True, recipe: Optional[Recipe] = None, preserve_high_precision_init_val: bool = False
) -> Iterator[None]:
    """Modules built inside keep their GEMM weights only as FP8 codes (te.QuantizedTensor parameters)."""
    saved = getattr(_init, "value", None)
    _init.value = (recipe or get_default_recipe(), preserve_high_precision_init_val) if enabled else None
    try:
        yield
    finally:
        _init.value = saved


def fp8_model_init(enabled: bool = True, recipe: Optional[Recipe] = None, preserve_high_precision_init_val: bool = False) -> Any:
    """The older spelling of `quantized_model_init`."""
    return quantized_model_init(enabled, recipe, preserve_high_precision_init_val)


def model_init_recipe() -> Optional[tuple[Recipe, bool]]:
    """(recipe, preserve_high_precision_init_val) inside quantized_model_init, else None."""
    return getattr(_init, "value", None)


# ---- formats ----

_FNUZ_ARCHS = ("gfx940", "gfx941", "gfx942")


def _is_fnuz(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is None:
        return False
    return torch.cuda.get_device_properties(device).gcnArchName.startswith(_FNUZ_ARCHS)


_types: dict[tuple[Format, str, Optional[int]], tuple[torch.dtype, torch.dtype]] = {}


def fp8_types(recipe: Recipe, device: torch.device) -> tuple[torch.dtype, torch.dtype]:
    """(forward, backward) storage types: OCP, or FNUZ where the device's hardware has only those."""
    fmt = recipe.fp8_format
    key = (fmt, device.type, device.index)
    if key not in _types:
        fnuz = _is_fnuz(device)
        e4m3 = torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn
        e5m2 = torch.float8_e5m2fnuz if fnuz else torch.float8_e5m2
        _types[key] = {Format.E4M3: (e4m3, e4m3), Format.HYBRID: (e4m3, e5m2), Format.E5M2: (e5m2, e5m2)}[fmt]
    return _types[key]


# ---- per-module state ----

# In order of creation, so that every process of a distributed run reduces the same amaxes in the same order.
_states: "weakref.WeakValueDictionary[int, ModuleState]" = weakref.WeakValueDictionary()
_serial = itertools.count()
state_changes = [0]  # counts what changes which tensors hold states, or how they are grouped


def _register(state: "ModuleState") -> None:
    state_changes[0] += 1
    if state.serial < 0:
        state.serial = next(_serial)
    _states[state.serial] = state


class Slots:
    """Scales and history of one direction of a module: k tensors are quantised there."""

    __slots__ = ("k", "scale", "history", "scales", "amaxes", "views")

    def __init__(self, k: int, length: int, device: torch.device) -> None:
        self.k = k
        self.set(torch.ones(k, dtype=torch.float32, device=device), torch.zeros(length, k, dtype=torch.float32, device=device))

    def set(self, scale: torch.Tensor, history: torch.Tensor) -> None:
        state_changes[0] += 1
        self.scale, self.history = scale, history
        # views made once: slicing costs as much as a kernel call
        self.scales = [scale[i : i + 1] for i in range(self.k)]
        self.amaxes = [history[0, i : i + 1] for i in range(self.k)]
        inverses = scale.new_empty(4 * self.k)  # cuBLASLt reads scales at multiples of 16 bytes only
        self.views = [(s, a, inverses[4 * i : 4 * i + 1]) for i, (s, a) in enumerate(zip(self.scales, self.amaxes))]

    def resize(self, length: int) -> None:
        """Keeps the current amax and the newest entries."""
        old = self.history
        if old.shape[0] == length:
            return
        new = old.new_zeros(length, self.k)
        new[0] = old[0]
        keep = min(length, old.shape[0]) - 1
        if keep > 0:
            new[length - keep :] = old[old.shape[0] - keep :]
        self.set(self.scale, new)

    def to(self, device: torch.device) -> None:
        if self.scale.device != device:
            self.set(self.scale.to(device), self.history.to(device))


class ModuleState:
    """Delayed-scaling state of one module."""

    def __init__(self, counts: tuple[int, int]) -> None:
        self.counts = counts  # tensors quantised (forward, backward)
        self.recipe: Optional[DelayedScaling] = None
        self.slots: Optional[tuple[Slots, Slots]] = None
        self.group: Any = None
        self.serial = -1
        self.known: Any = None  # what modules.base last derived from it
        self.usual: Any = None  # modules.linear's last call, where the next may be the same

    def ensure(self, recipe: DelayedScaling, device: torch.device, group: Any = None) -> tuple[Slots, Slots]:
        """The slots for this recipe on this device, made or adapted as needed."""
        if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():  # autograd could not save what is made there
            with torch.inference_mode(False):
                return self.ensure(recipe, device, group)
        if self.slots is None:
            n = recipe.amax_history_len
            self.slots = (Slots(self.counts[0], n, device), Slots(self.counts[1], n, device))
            _register(self)
        if self.recipe is not recipe:
            state_changes[0] += 1
            self.recipe = recipe
        for s in self.slots:
            s.resize(recipe.amax_history_len)
        if self.slots[0].scale.device != device:
            for s in self.slots:
                s.to(device)
        if self.group is not group:
            state_changes[0] += 1
            self.group = group
        return self.slots

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModuleState":
        copy = ModuleState(self.counts)
        copy.recipe, copy.group = self.recipe, self.group
        if self.slots is not None:
            copy.slots = tuple(_copy_slots(s) for s in self.slots)  # type: ignore[assignment]
            _register(copy)
        return copy

    def __getstate__(self) -> dict[str, Any]:
        return {"counts": self.counts, "bytes": self.pack()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["counts"])  # type: ignore[misc]
        self.unpack(state["bytes"], torch.device("cpu"))

    # -- state dict: one uint8 tensor, JSON header + raw f32, no pickle; its length is fixed by the recipe --

    def pack(self) -> torch.Tensor:
        if self.slots is None or self.recipe is None:
            return torch.empty(0, dtype=torch.uint8, device="cpu")
        update_states("backward", [self])
        r = self.recipe
        header = {
            "libte": 1,
            "recipe": "DelayedScaling",
            "format": r.fp8_format.name,
            "margin": r.margin,
            "algo": r.amax_compute_algo if isinstance(r.amax_compute_algo, str) else "custom",
            "length": r.amax_history_len,
            "counts": list(self.counts),
        }
        head = json.dumps(header, sort_keys=True).encode().ljust(256)
        body = [t.detach().cpu().contiguous().view(-1) for s in self.slots for t in (s.scale, s.history)]
        raw = torch.cat(body).view(torch.uint8) if body else torch.empty(0, dtype=torch.uint8, device="cpu")
        prefix = torch.frombuffer(bytearray(struct.pack("<8sI", b"LIBTEST1", len(head)) + head), dtype=torch.uint8)
        return torch.cat([prefix, raw])

    def unpack(self, blob: Any, device: torch.device) -> None:
        """Reads what pack() wrote. None, an empty tensor and an all-zero tensor mean "no state"."""
        data = _as_bytes(blob)
        if not data or not any(data[:12]):
            return
        if data[:8] != b"LIBTEST1":
            if data[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
                raise ValueError(
                    "_extra_state: this is a pickle (Transformer Engine 1.x/2.x checkpoint); libte never unpickles state. "
                    "Convert it with libte_torch.convert_extra_state(dict) or drop the key."
                )
            raise ValueError(f"_extra_state: must start with b'LIBTEST1', got {data[:8]!r}")
        if len(data) < 12:
            raise ValueError(f"_extra_state: truncated at {len(data)} bytes")
        (length,) = struct.unpack("<I", data[8:12])
        if length > 4096 or len(data) < 12 + length:
            raise ValueError(f"_extra_state: header of {length} bytes does not fit the {len(data)} bytes given")
        try:
            header = json.loads(data[12 : 12 + length])
            counts, n = tuple(int(c) for c in header["counts"]), int(header["length"])
            recipe = DelayedScaling(
                margin=int(header["margin"]),
                fp8_format=Format[header["format"]],
                amax_history_len=n,
                amax_compute_algo=header["algo"] if header["algo"] in ("max", "most_recent") else "max",
            )
        except (KeyError, TypeError, ValueError, UnicodeDecodeError) as e:
            raise ValueError(f"_extra_state: header is damaged: {e}") from None
        if counts != tuple(self.counts):
            raise ValueError(f"_extra_state: is of a module that quantises {counts} tensors, this one quantises {tuple(self.counts)}")
        need = 4 * sum(k + n * k for k in counts)
        if n < 1 or len(data) != 12 + length + need:
            raise ValueError(f"_extra_state: must hold {need} bytes of scales and history, got {len(data) - 12 - length}")
        values = torch.frombuffer(bytearray(data[12 + length :]), dtype=torch.float32) if need else torch.empty(0, device="cpu")
        slots, at = [], 0
        for k in counts:
            s = Slots(k, n, device)
            scale, history = values[at : at + k], values[at + k : at + k + n * k]
            s.set(scale.clone().to(device), history.clone().view(n, k).to(device))
            at += k + n * k
            slots.append(s)
        if self.recipe is not None:
            for s in slots:
                s.resize(self.recipe.amax_history_len)
        else:
            self.recipe = recipe
        self.slots = (slots[0], slots[1])
        _register(self)

    def load_legacy(self, state: dict[str, Any], device: torch.device) -> None:
        """A Transformer Engine state given as a plain dict of tensors: scale_fwd, amax_history_fwd, scale_bwd, amax_history_bwd.
        scale_inv is recomputed, a missing recipe means delayed scaling; entries beyond what this module quantises are dropped."""
        if not state:
            return
        slots = []
        if not any(f"{name}_{suffix}" in state for name in _LEGACY for suffix in ("fwd", "bwd")):
            raise ValueError(f"_extra_state: a dict must hold scale_fwd, amax_history_fwd, scale_bwd or amax_history_bwd, has {sorted(map(str, state))}")
        for k, suffix in zip(self.counts, ("fwd", "bwd")):
            scale, history = (_legacy_tensor(state, f"{name}_{suffix}", rank) for name, rank in _LEGACY.items())
            length = history.shape[0] if history is not None else DelayedScaling().amax_history_len
            s = Slots(k, length, device)
            if scale is not None:
                m = min(k, scale.numel())
                s.scale[:m] = scale.flatten()[:m].to(device)
            if history is not None:
                m = min(k, history.shape[1])
                s.history[:, :m] = history[:, :m].to(device)
            slots.append(s)
        self.recipe = replace(DelayedScaling(), amax_history_len=slots[0].history.shape[0])
        slots[1].resize(self.recipe.amax_history_len)
        self.slots = (slots[0], slots[1])
        _register(self)


_LEGACY = {"scale": None, "amax_history": 2}  # name -> rank, None = any


def _legacy_tensor(state: dict[str, Any], key: str, rank: Optional[int]) -> Optional[torch.Tensor]:
    t = state.get(key)
    if t is None:
        return None
    if not isinstance(t, torch.Tensor) or not t.is_floating_point() or (rank is not None and (t.ndim != rank or t.shape[0] < 1)):
        got = f"{t.dtype} {list(t.shape)}" if isinstance(t, torch.Tensor) else type(t).__name__
        raise ValueError(f"_extra_state: {key} must be a floating-point tensor{' [len >= 1, k]' if rank == 2 else ''}, got {got}")
    return t.detach()


def _copy_slots(s: Slots) -> Slots:
    copy = object.__new__(Slots)
    copy.k = s.k
    copy.set(s.scale.clone(), s.history.clone())
    return copy


def _as_bytes(blob: Any) -> bytes:
    if blob is None:
        return b""
    if hasattr(blob, "getvalue"):
        return bytes(blob.getvalue())
    if isinstance(blob, (bytes, bytearray)):
        return bytes(blob)
    if isinstance(blob, torch.Tensor):
        if blob.dtype != torch.uint8:
            raise ValueError(f"_extra_state: must be a uint8 tensor, got {blob.dtype}")
        return blob.detach().cpu().contiguous().numpy().tobytes()
    raise ValueError(f"_extra_state: must be None, bytes or a uint8 tensor, got {type(blob).__name__}")


class _Update:
    """One bulk call: what the same recipe says of some modules' slots of one direction on one device."""

    def __init__(self, members: list[ModuleState], which: int) -> None:
        first = members[0]
        r: DelayedScaling = first.recipe  # type: ignore[assignment]
        self.recipe, self.group, self.reduce = r, first.group, r.reduce_amax
        self.slots = [m.slots[which] for m in members]  # type: ignore[index]
        self.dtype = fp8_types(r, self.slots[0].scale.device)[which]
        self.python = callable(r.amax_compute_algo) or callable(r.scaling_factor_compute_algo)
        histories, scales = [s.history for s in self.slots], [s.scale for s in self.slots]
        self.call = None if self.python else ops.bound_update(histories, scales, self.dtype, r.margin, r.amax_compute_algo)  # type: ignore[arg-type]

    def run(self) -> None:
        amax = _reduced_amax(self.slots, self.group) if self.reduce and _distributed and torch.distributed.is_initialized() else None
        if self.call is None:
            _update_in_python(self.slots, amax, self.recipe, self.dtype)
        else:
            self.call(amax)


# The bulk calls of each direction, and what they were made from: grouping anew each step costs more than the calls.
_updates: list[tuple[Any, list[DelayedScaling], list[_Update]]] = [(None, [], []), (None, [], [])]


def _recipe_key(r: DelayedScaling) -> tuple[Any, ...]:
    return r.fp8_format, r.margin, r.amax_compute_algo, r.scaling_factor_compute_algo, r.amax_history_len, r.reduce_amax


def _grouped(states: Iterable[ModuleState], which: int) -> list[_Update]:
    groups: dict[Any, list[ModuleState]] = {}
    for s in states:
        if s.slots is None or s.recipe is None or s.slots[which].k == 0 or s.slots[which].scale.device.type == "meta":
            continue
        groups.setdefault((s.slots[which].scale.device, _recipe_key(s.recipe), s.group), []).append(s)
    return [_Update(members, which) for members in groups.values()]


def _all_updates(which: int) -> list[_Update]:
    made_of, recipes, updates = _updates[which]
    if made_of != (state_changes[0], len(_states), [r._version for r in recipes]):
        states = list(_states.values())
        updates = _grouped(states, which)
        recipes = list({id(s.recipe): s.recipe for s in states if s.recipe is not None}.values())
        _updates[which] = ((state_changes[0], len(states), [r._version for r in recipes]), recipes, updates)
    return updates


def update_states(direction: str, states: Optional[list[ModuleState]] = None) -> None:
    """Rolls histories and derives scales, all modules in one call for each format and device."""
    which = DIRECTIONS.index(direction)
    for u in _all_updates(which) if states is None else _grouped(states, which):
        u.run()


_distributed = torch.distributed.is_available()


def _reduced_amax(slots: list[Slots], group: Any) -> Optional[torch.Tensor]:
    amax = torch.cat([s.history[0] for s in slots])
    if torch.distributed.get_world_size(group) > 1:
        torch.distributed.all_reduce(amax, op=torch.distributed.ReduceOp.MAX, group=group)
    return amax


def _update_in_python(slots: list[Slots], amax: Optional[torch.Tensor], recipe: DelayedScaling, dtype: torch.dtype) -> None:
    """The recipe's own callables: amax_compute_algo(history) -> [k], scaling_factor_compute_algo(amax, scale, fp8_max, recipe) -> [k].
    A scale that is no positive finite number is not taken: the tensor keeps its scale, as where the library computes it."""
    fp8_max, at, made = torch.finfo(dtype).max, 0, []
    for s in slots:
        now = s.history[0] if amax is None else torch.where(amax[at : at + s.k] != 0, amax[at : at + s.k], s.history[0])
        at += s.k
        used = now != 0
        seen = s.history.clone()
        seen[0] = now
        if callable(recipe.amax_compute_algo):
            a = _of_shape("amax_compute_algo", recipe.amax_compute_algo(seen), s.scale)
        else:
            a = seen.amax(0) if recipe.amax_compute_algo == "max" else now
        if callable(recipe.scaling_factor_compute_algo):
            new = _of_shape("scaling_factor_compute_algo", recipe.scaling_factor_compute_algo(a, s.scale, fp8_max, recipe), s.scale)
        else:
            ok = torch.isfinite(a) & (a > 0)
            # (a number divided by a tensor is a product with a reciprocal in torch, which rounds twice)
            quotient = torch.full_like(a, fp8_max * 2.0**-recipe.margin) / a
            new = torch.where(ok, quotient.clamp(max=torch.finfo(torch.float32).max), s.scale)
        rolled = torch.cat([torch.zeros_like(now)[None], seen[2:], now[None]]) if len(seen) > 1 else torch.zeros_like(seen)
        made.append((torch.where(used & torch.isfinite(new) & (new > 0), new, s.scale), torch.where(used, rolled, s.history)))
    for s, (scale, history) in zip(slots, made):  # nothing is written where a callable raises
        s.scale.copy_(scale)
        s.history.copy_(history)


def _of_shape(name: str, result: Any, like: torch.Tensor) -> torch.Tensor:
    if not isinstance(result, torch.Tensor) or result.shape != like.shape:
        got = list(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
        raise ValueError(f"recipe.{name}: must return a tensor {list(like.shape)}, got {got}")
    return result


class FP8GlobalStateManager:
    """Upstream's name for the process-wide state; the parts that scripts use."""

    @staticmethod
    def is_fp8_enabled() -> bool:
        return current().enabled

    @staticmethod
    def is_fp8_calibration() -> bool:
        return current().calibrating

    @staticmethod
    def get_fp8_recipe() -> Recipe:
        return current().recipe or get_default_recipe()

    @staticmethod
    def get_fp8_group() -> Any:
        return current().group

    @staticmethod
    def reset() -> None:
        _stack.items.clear()
        _latest[0] = _OFF
        _states.clear()
        state_changes[0] += 1
