# SPDX-License-Identifier: Apache-2.0
"""How a number is taken: all sides of a row in turn, in one process (A, B, C, A, B, C, ...), medians, ceilings timed in the same loop.

A round during which the machine did not give us its cores (the register-only FMA loop under 90 % of its best) is thrown away and
kept on record as such. What is compared is the ratio of medians."""
from __future__ import annotations

import ctypes
import gc
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent / "build" / "bench"
KEEP = 0.90  # of the FMA loop's best
COPY_BYTES = 64 << 20
SETTLE = 0.015  # seconds in which the other side's idle workers stop spinning (GNU OpenMP's held a core for over 5 ms here)
MIN_BURST = 1.5e-3  # seconds a side runs in one round: shorter calls are repeated

Call = Callable[[], Any]


@dataclass
class Sides:
    """The callables of a row. `ours` and `rival` are there always; others ("compiled", ...) are further rivals. check() raises if the
    sides do not compute the same thing."""

    ours: Call
    rival: Call
    others: dict[str, Call] = field(default_factory=dict)
    check: Optional[Call] = None


@dataclass
class Row:
    """make(allocate) builds the sides: with preallocated outputs, or (allocate) each side making its own, as a user meets it."""

    id: str
    what: str  # "layer_norm forward"
    shape: str
    rival: str  # what the rival is, in words
    make: Callable[[bool], Sides]
    must: dict[str, float] = field(default_factory=dict)  # least ratio rival's time / ours, by side
    aim: dict[str, float] = field(default_factory=dict)
    must_default: dict[str, float] = field(default_factory=dict)  # least ratio rival's time with default allocation / ours preallocated
    must_more_us: float = 0  # most microseconds over the rival
    must_us: float = 0  # most microseconds, for rows of overhead
    aim_us: float = 0
    must_roof: float = 0  # least share of the copy roof
    bytes: float = 0  # inputs and outputs once
    flops: float = 0
    passes: tuple[str, ...] = ("preallocated", "default")
    burst: float = MIN_BURST  # rows of overhead take longer ones: the pause before a burst leaves caches cold
    threads: int = 0  # 0: the run's; host costs are taken on one thread, where no barrier is waited for


class Roof:
    def __init__(self, threads: int) -> None:
        import torch

        self.threads = threads
        self.lib = self._build()
        self.lib.roof_fma.restype = ctypes.c_double
        self.lib.roof_fma.argtypes = (ctypes.c_int, ctypes.c_int64)
        self.lib.roof_copy.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        # from the allocator of the rows' tensors: NumPy asks for huge pages, which makes a copy a fifth faster
        self.memory = torch.ones(2 * COPY_BYTES + 4096, dtype=torch.uint8)
        base = -(-self.memory.data_ptr() // 4096) * 4096
        self.to, self.source = base, base + COPY_BYTES
        self.best = 0.0
        stop = time.perf_counter() + 0.5
        while time.perf_counter() < stop:
            self.fma()

    @staticmethod
    def _build() -> ctypes.CDLL:
        BUILD.mkdir(parents=True, exist_ok=True)
        source, target = HERE / "roof.cpp", BUILD / "roof.so"
        if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
            subprocess.run(["g++", "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-pthread", str(source), "-o", str(target)], check=True)
        return ctypes.CDLL(str(target))

    def fma(self) -> float:
        """Floating-point operations a second."""
        start = time.perf_counter()
        done = self.lib.roof_fma(self.threads, 600_000)
        rate = done / (time.perf_counter() - start)
        self.best = max(self.best, rate)
        return rate

    def steady(self) -> float:
        """The rate once every pool is asleep; the first runs after a pause only bring the clock up again."""
        time.sleep(SETTLE)
        return max(self.fma() for _ in range(4))

    def copy(self) -> float:
        """Bytes a second, read and written."""
        start = time.perf_counter()
        self.lib.roof_copy(self.threads, self.to, self.source, COPY_BYTES)
        return 2 * COPY_BYTES / (time.perf_counter() - start)


def burst(call: Call, repeats: int, roof: Optional[Roof] = None) -> float:
    if roof:
        roof.steady()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def measure(row: Row, sides: Sides, roof: Roof, rounds: int, seconds: float) -> dict[str, Any]:
    """Raw samples of one row: a record a round, discarded ones apart."""
    calls = {"ours": sides.ours, "rival": sides.rival, **sides.others}
    gc.collect()
    gc.disable()  # as timeit does: a collection takes longer than a call
    repeats = {}
    for name, call in calls.items():
        call()
        once = min(burst(call, 1), burst(call, 1))
        if once < row.burst:
            once = min(burst(call, 3) for _ in range(5))
        repeats[name] = max(1, min(20000, round(row.burst / max(once, 1e-8))))
    kept: list[dict[str, float]] = []
    discarded: list[dict[str, float]] = []
    stop = time.perf_counter() + seconds
    while len(kept) < rounds and len(kept) + len(discarded) < 8 * rounds and (time.perf_counter() < stop or len(kept) < 3):
        before = roof.steady()
        record = {name: burst(call, repeats[name], roof) for name, call in calls.items()}
        record["copy"] = roof.copy()
        record["fma"] = min(before, roof.steady())
        (kept if record["fma"] >= KEEP * roof.best else discarded).append(record)
    gc.enable()
    return {"rounds": kept, "discarded": discarded, "repeats": repeats, "fma_best": roof.best}


def median(records: list[dict[str, float]], side: str) -> float:
    return statistics.median(r[side] for r in records) if records else float("nan")
