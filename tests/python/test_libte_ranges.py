# SPDX-License-Identifier: Apache-2.0
"""Ranges for profilers: what a stand-in for NVTX or roctx is told, and that nothing is where they are off."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "plugins" / "ranges.c"
SCRIPT = """
import torch, libte_torch as te
m, x = te.Linear(16, 16, device="cpu"), torch.randn(4, 16, requires_grad=True)
with te.autocast(recipe=te.Float8CurrentScaling()):
    y = m(x)
y.sum().backward()
import libte
print(*(line for line in open("/proc/self/maps") if "ranges.so" in line), sep="")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def build(vendor: str) -> Path:
        out = tmp_path_factory.mktemp(vendor) / "ranges.so"
        push, pop = (f"{vendor}RangePushA", f"{vendor}RangePop")
        subprocess.run(["cc", "-shared", "-fPIC", f"-DPUSH={push}", f"-DPOP={pop}", str(SOURCE), "-o", str(out)], check=True)
        return out

    return build


def tree(lines: list[str]) -> list[str]:
    """The names in order, one more space a level."""
    out, depth = [], 0
    for line in lines:
        if line == "pop":
            depth -= 1
        else:
            out.append(" " * depth + line.removeprefix("push "))
            depth += 1
        assert depth >= 0
    assert depth == 0
    return out


@pytest.mark.parametrize("vendor", ["nvtx", "roctx"])
def test_modules_and_operators_are_ranges(python: Any, library: Any, tmp_path: Path, vendor: str) -> None:
    seen = tmp_path / "seen"
    run = python(SCRIPT, {"NVTE_NVTX_ENABLED": "1", "LIBTE_RANGES_LIBRARY": str(library(vendor)), "RANGES_SEEN": str(seen)})
    assert run.returncode == 0 and not run.stderr, run.stderr
    quantised = ["  nvte_compute_amax", "  nvte_compute_scale", "  nvte_quantize"]
    assert tree(seen.read_text().splitlines()) == [
        "transformer_engine._Linear.forward", " nvte_linear_forward", *quantised, *quantised, "  nvte_gemm",
        "transformer_engine._Linear.backward", " nvte_linear_backward", *quantised, "  nvte_gemm", "  nvte_gemm",
    ]


def test_off_opens_nothing(python: Any, library: Any, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    run = python(SCRIPT, {"NVTE_NVTX_ENABLED": None, "LIBTE_RANGES_LIBRARY": str(library("nvtx")), "RANGES_SEEN": str(seen)})
    assert run.returncode == 0 and not run.stdout.strip() and not seen.exists(), run.stderr


@pytest.mark.parametrize("name", ["missing", "libc.so.6"])
def test_a_library_that_does_not_serve_is_named_once(python: Any, name: str) -> None:
    run = python(SCRIPT, {"NVTE_NVTX_ENABLED": "1", "LIBTE_RANGES_LIBRARY": name})
    assert run.returncode == 0 and run.stderr.count("NVTE_NVTX_ENABLED is 1, but") == 1 and name in run.stderr
