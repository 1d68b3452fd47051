# SPDX-License-Identifier: Apache-2.0
"""The host's part of a step of te.Linear in FP8: implementations that do nothing (tests/plugins/null.c) in the place of the CPU's.

    python bench/host.py [--instructions]     microseconds a step beside nn.Linear's, and with valgrind at hand instructions a step"""
from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, Callable, Optional

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FEW, MANY = 20, 220  # steps of the two runs whose instructions are subtracted


def load_nothing() -> None:
    import libte
    import tvm_ffi
    from libte import _load

    target = ROOT / "build" / "bench" / "nothing.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    include = [f"-I{ROOT / 'libte' / 'include'}", f"-I{tvm_ffi.libinfo.find_dlpack_include_path()}"]
    device = ["-DNULL_DEVICE=kDLCPU", '-DNULL_NAME="nothing"', "-DNULL_PRIORITY=1000"]
    source = ROOT / "tests" / "plugins" / "null.c"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", *device, *include, str(source), str(libte.library), f"-Wl,-rpath,{Path(libte.library).parent}", "-o", str(target)], check=True)
    status = _load.lib.nvte_backend_load(str(target).encode())
    if status:
        raise RuntimeError(_load.ffi.string(_load.lib.nvte_last_error()).decode())


def steps(threads: int = 1, fresh: bool = False) -> dict[str, Any]:
    """32x256 -> 256 in bf16: forward + backward of te.Linear under delayed scaling, and of nn.Linear. fresh: gradients are dropped after
    each step, so that torch's adding them up is not counted."""
    import libte_torch as te
    import torch

    torch.set_num_threads(threads)
    x = torch.randn(32, 256, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.ones(32, 256, dtype=torch.bfloat16)
    mine, theirs = te.Linear(256, 256, params_dtype=torch.bfloat16), torch.nn.Linear(256, 256, dtype=torch.bfloat16)
    recipe = te.DelayedScaling()

    def fp8() -> None:
        with te.autocast(enabled=True, recipe=recipe):
            y = mine(x)
        y.backward(dy)

    leaves = [x, *mine.parameters(), *theirs.parameters()]

    def dropping(call: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            call()
            for leaf in leaves:
                leaf.grad = None

        return run

    calls: dict[str, Callable[[], None]] = {"te.Linear fp8": fp8, "te.Linear bf16": lambda: mine(x).backward(dy), "nn.Linear bf16": lambda: theirs(x).backward(dy)}
    return {name: dropping(call) for name, call in calls.items()} if fresh else calls


def microseconds() -> dict[str, float]:
    """Interleaved, medians: with the CPU's implementations, then te.Linear again with none."""
    result = {}
    for suffix in ("", " (nothing)"):
        if suffix:
            load_nothing()
        calls = {name: call for name, call in steps().items() if not suffix or name.startswith("te.")}
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(41):
            for name, call in calls.items():
                call()
                start = time.perf_counter()
                for _ in range(20):
                    call()
                samples[name].append((time.perf_counter() - start) / 20 * 1e6)
        result.update({name + suffix: median(values) for name, values in samples.items()})
    return result


def instructions(step: str, nothing: bool) -> Optional[float]:
    """Instructions a step under valgrind (which has no AVX-512: both sides run their plain code); None without valgrind."""
    if not shutil.which("valgrind"):
        return None
    counts = []
    for n in (FEW, MANY):
        environment = {**os.environ, "LIBTE_CPU_ISA": "base", "ATEN_CPU_CAPABILITY": "default", "DNNL_MAX_CPU_ISA": "SSE41", "MKL_DEBUG_CPU_TYPE": "1", "OMP_NUM_THREADS": "1"}
        command = ["valgrind", "--tool=exp-bbv", "--bb-out-file=/dev/null", "--pc-out-file=/dev/null", sys.executable, __file__, "--child", step, "--steps", str(n)]
        run = subprocess.run([*command, *(["--nothing"] if nothing else [])], capture_output=True, text=True, env=environment)
        found = re.search(r"Total instructions: ([\d,]+)", run.stderr)
        if run.returncode or not found:
            raise RuntimeError(f"valgrind: {run.stderr[-500:]}")
        counts.append(int(found.group(1).replace(",", "")))
    return (counts[1] - counts[0]) / (MANY - FEW)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instructions", action="store_true", help="count instructions too (minutes)")
    parser.add_argument("--update", default="", help="file of raw samples that takes the report")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--nothing", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        if options.nothing:
            load_nothing()
        call = steps(fresh=True)[options.child]
        for _ in range(options.steps):
            call()
        return
    report: dict[str, Any] = {"microseconds": microseconds()}
    if options.instructions:
        report["instructions"] = {name + " (nothing)": instructions(name, True) for name in ("te.Linear fp8", "te.Linear bf16")}
    print(json.dumps(report, indent=1))
    if options.update:
        path = Path(options.update)
        path.write_text(json.dumps({**json.loads(path.read_text()), "host": report}, indent=1))


if __name__ == "__main__":
    main()
