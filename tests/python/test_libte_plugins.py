# SPDX-License-Identifier: Apache-2.0
"""The GPU plug-ins that were built here, opened on this machine: no driver and no ROCm needed, a clear status for what needs a device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("BUILD", HERE.parents[1] / "build"))


@pytest.mark.parametrize(("vendor", "device"), [("cuda", "cuda"), ("hip", "rocm")])
def test_the_plug_in_opens_without_a_driver(vendor: str, device: str) -> None:
    plugin = BUILD / vendor / f"libte_{vendor}.so"
    if not plugin.exists():
        pytest.skip(f"{plugin} is not built (make {vendor})")
    run = subprocess.run([sys.executable, HERE / "open_plugin.py", plugin, "--device", device], capture_output=True, text=True, timeout=120)
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
