# SPDX-License-Identifier: Apache-2.0
"""What the trainings share: their options, the device, and the last lines that say how good, how fast, and what ran."""
from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Optional

import libte


def parser(description: Optional[str], te: bool = True, **defaults: Any) -> argparse.ArgumentParser:
    """Options that every training has, with the defaults given as name=value; `te`: plain framework modules are a mode of it."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, value in {**defaults, "seed": 0}.items():
        p.add_argument("--" + name.replace("_", "-"), type=type(value), default=value, help=name.replace("_", " "))
    p.add_argument("--device", help="cpu, or a GPU by the framework's name; by default the GPU where libte's plug-in for it opens, else the CPU")
    if te:
        p.add_argument("--use-te", action="store_true", help="libte's modules")
    p.add_argument("--use-fp8", action="store_true", help="libte's modules in FP8 with delayed scaling")
    return p


def mode(a: argparse.Namespace) -> str:
    """The modes asked for, by name."""
    return "+".join(n for n in ("use_te", "ln_mlp", "use_fp8") if getattr(a, n, False)).replace("use_", "").replace("_", "-") or "plain"


class Batches:
    """(whether it is the last, rows) of every step of `epochs` epochs over n examples in the order of `permutation(n)`; sized, for progress bars.
    Rows that fill no batch wait for another epoch's order."""

    def __init__(self, n: int, size: int, epochs: int, permutation: Callable[[int], Any]) -> None:
        if not 0 < size <= n:
            raise SystemExit(f"--batch-size must be in [1, {n}], the number of examples, got {size}")
        self.n, self.size, self.epochs, self.permutation = n, size, epochs, permutation

    def __len__(self) -> int:
        return self.epochs * (self.n // self.size)

    def __iter__(self) -> Iterator[tuple[bool, Any]]:
        steps = self.n // self.size
        for epoch in range(self.epochs):
            order = self.permutation(self.n)
            for i in range(steps):
                yield (epoch, i) == (self.epochs - 1, steps - 1), order[i * self.size :][: self.size]


def announce(framework: str, device: Any, name: str) -> None:
    print(f"libte {libte.__version__}, {framework}, device: {device} ({name})")


def torch_device(choice: Optional[str]) -> tuple[Any, str]:
    """The torch device of --device and its name, announced."""
    import torch
    from libte_torch.modules.base import default_device

    device = default_device(choice)
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    announce(f"torch {torch.__version__}", device, name)
    return device, name


@contextmanager
def jax_device(choice: Optional[str]) -> Iterator[None]:
    """Arrays are made on the JAX device of --device inside, announced."""
    import jax

    device = jax.devices(choice)[0]
    if choice is None and device.platform != "cpu":
        with jax.default_device(device):
            kind = jax.numpy.zeros(()).__dlpack_device__()[0]
        try:
            libte.implementations("rmsnorm_forward", int(kind))
        except libte.Error:  # no plug-in, or one that does not open here
            device = jax.devices("cpu")[0]
    announce(f"jax {jax.__version__}", device, platform.processor() or platform.machine() if device.platform == "cpu" else device.device_kind)
    with jax.default_device(device):
        yield


def every_call(step: Any, *args: Any) -> Any:
    """A jitted step compiled for these arguments such that each run makes its calls of libte: on GPUs XLA would repeat recorded kernels, which no
    trace sees."""
    import jax

    if jax.config.jax_default_device.platform == "cpu":
        return step
    return step.lower(*args).compile(compiler_options={"xla_gpu_enable_command_buffer": ""})


def gemms(calls: Mapping[str, int]) -> tuple[int, int]:
    """(all, those on FP8 codes) of libte's GEMMs among the counts of a libte.trace."""
    counts = {key: n for key, n in calls.items() if key.startswith("gemm[")}
    return sum(counts.values()), sum(n for key, n in counts.items() if "fp8" in key)


def implementations(*runs: Mapping[str, int]) -> str:
    """Names of the implementations that ran in the counts of traces."""
    return ", ".join(sorted({key.split(": ")[-1] for calls in runs for key in calls})) or "none of libte's"


class Result(NamedTuple):
    accuracy: float
    gemms: int
    fp8_gemms: int


def report(mode: str, accuracy: float, of: str, start: float, calls: Mapping[str, int], fp8: bool) -> Result:
    """Prints accuracy on `of`, the seconds since `start` and what `calls`, the last step's trace, holds; fails where FP8 was asked for and did
    not run, or the other way round."""
    result = Result(accuracy, *gemms(calls))
    print(f"{mode}: accuracy {accuracy:.4f} on {of}, {time.perf_counter() - start:.1f} s")
    print(f"in the last step: {result.gemms} GEMMs of libte's, {result.fp8_gemms} of them on FP8 codes; implementations: {implementations(calls)}")
    if fp8 != (result.fp8_gemms > 0):
        raise SystemExit(f"{mode}: FP8 was {'' if fp8 else 'not '}asked for, but {result.fp8_gemms} GEMMs ran on FP8 codes")
    return result
