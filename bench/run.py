# SPDX-License-Identifier: Apache-2.0
"""Measures libte against torch (eager and compiled) and keeps the raw samples.

    python bench/run.py [--rows REGEX] [--rounds 15] [--seconds 8] [--threads 2] [--out bench/samples/NAME.json] [--no-compile]

Two passes, each a process of its own with its own autogroup raised where we may (see launch): `preallocated`, outputs given and malloc told
to keep large blocks, and `default`, every side allocating its outputs as a user's program would. bench/render.py makes docs/benchmarks.md."""
from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PASSES = ("preallocated", "default")
# glibc gives blocks from 32 MiB up back to the kernel, and pays their page faults at every call
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 34), "MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_TOP_PAD_": str(1 << 28)}


def launch(command: list[str], environment: dict[str, str]) -> int:
    """Runs in a session of its own. Under autogroup scheduling `nice` counts only inside a session, so the session's group is raised;
    that needs root."""
    if os.geteuid() == 0 and Path("/proc/self/autogroup").exists() and shutil.which("setsid"):
        script = 'echo -19 > /proc/self/autogroup 2>/dev/null; exec nice -n -15 "$@"'
        command = ["setsid", "-w", "bash", "-c", script, "_", *command]
    return subprocess.run(command, env=environment).returncode


def text_of(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    except OSError:
        return ""


def machine() -> dict[str, Any]:
    cpu = dict(line.split(":", 1) for line in text_of(["lscpu"]).splitlines() if ":" in line)
    keep = ("Model name", "CPU(s)", "Thread(s) per core", "Core(s) per socket", "L1d cache", "L2 cache", "L3 cache")
    flags = cpu.get("Flags", "").split()
    return {"cpu": {k: cpu[k].strip() for k in keep if k in cpu}, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(), "libc": " ".join(platform.libc_ver()),
            "isa": [f for f in ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "amx_bf16") if f in flags],
            "autogroup": Path("/proc/self/autogroup").read_text().strip() if Path("/proc/self/autogroup").exists() else None}


def versions() -> dict[str, Any]:
    import numpy
    import torch
    from libte import _load, config

    found = {"libte": text_of(["git", "describe", "--always", "--dirty"]), "libte.so": f"{_load.lib.nvte_version():#x}", "python": platform.python_version(),
             "torch": torch.__version__, "numpy": numpy.__version__, "compiler": text_of(["g++", "-dumpfullversion"])}
    for key in ("cpu.isa", "num_threads"):
        try:
            found[key] = str(config.get(key))
        except Exception as e:  # a name that this build lacks must not cost the run
            found[key] = f"? ({e})"
    try:
        import jax

        found["jax"] = jax.__version__
    except ImportError:
        pass
    return found


def rival_settings() -> dict[str, Any]:
    import torch

    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", "LIBTE_NUM_THREADS", "LIBTE_CPU_ISA", *KEEP_MEMORY)
    return {"threads": torch.get_num_threads(), "float32_matmul_precision": torch.get_float32_matmul_precision(), "flush_denormal": False,
            "environment": {n: os.environ[n] for n in names if n in os.environ}, "parallel_info": torch.__config__.parallel_info(), "compile": "torch.compile, default mode"}


def child(options: argparse.Namespace) -> int:
    """One pass, in its own process."""
    sys.path.insert(0, str(HERE))
    import torch
    from measure import Roof, measure, median
    from rows import all_rows

    rows = [r for r in all_rows() if re.search(options.rows, r.id) and options.child in r.passes]
    roofs = {n: Roof(n) for n in sorted({r.threads or options.threads for r in rows})}
    result: dict[str, Any] = {"pass": options.child, "load_before": os.getloadavg(), "machine": machine(), "versions": versions(), "rival": rival_settings(), "rows": []}
    for row in rows:
        record: dict[str, Any] = {"id": row.id, "what": row.what, "shape": row.shape, "rival": row.rival, "bytes": row.bytes, "flops": row.flops,
                                  "must": row.must, "aim": row.aim, "must_default": row.must_default, "must_us": row.must_us, "aim_us": row.aim_us,
                                  "must_more_us": row.must_more_us, "must_roof": row.must_roof}
        result["rows"].append(record)
        threads = row.threads or options.threads
        record["threads"] = threads
        torch.set_num_threads(threads)
        try:
            torch._dynamo.reset()
            sides = row.make(options.child == "default")
            if options.no_compile:
                sides.others.pop("compiled", None)
            if sides.check:
                sides.check()
            record.update(measure(row, sides, roofs[threads], options.rounds, options.seconds))
        except Exception as e:  # the other rows still count; the run as a whole fails
            record["error"] = f"{type(e).__name__}: {e}".splitlines()[0][:300]
            print(f"{row.id:44} {record['error']}", file=sys.stderr, flush=True)
            continue
        kept = record["rounds"]
        shown = kept or record["discarded"]  # the latter to look at only; render.py never uses them
        line = f"{row.id:44}{' ' if kept else '~'}{median(shown, 'ours') * 1e3:9.4f} ms"
        for side in ["rival", *sides.others]:
            line += f"  {side} x{median(shown, side) / median(shown, 'ours'):.2f}"
        print(f"{line}  ({len(kept)} rounds, {len(record['discarded'])} discarded)", file=sys.stderr, flush=True)
    result["load_after"] = os.getloadavg()
    Path(options.out).write_text(json.dumps(result))
    return 1 if any("error" in r for r in result["rows"]) else 0


def updated(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`old` with the rows of `new` in their places."""
    for fresh in new["passes"]:
        rows = next(p for p in old["passes"] if p["pass"] == fresh["pass"])["rows"]
        for row in fresh["rows"]:
            places = [i for i, r in enumerate(rows) if r["id"] == row["id"]]
            rows[places[0] if places else len(rows) : places[0] + 1 if places else len(rows)] = [row]
    old.setdefault("reruns", []).append({"date": new["date"], "libte": new["passes"][0]["versions"]["libte"], "rows": sorted({r["id"] for p in new["passes"] for r in p["rows"]})})
    return old


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="only rows whose id matches this")
    parser.add_argument("--rounds", type=int, default=15, help="rounds to keep, a row")
    parser.add_argument("--seconds", type=float, default=8, help="most time for a row")
    parser.add_argument("--threads", type=int, default=min(2, len(os.sched_getaffinity(0))))
    parser.add_argument("--out", default="", help="file of raw samples")
    parser.add_argument("--update", default="", help="file of raw samples whose rows are replaced by this run's; it lists such reruns")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options)

    out = Path(options.out) if options.out else ROOT / "build" / "bench" / "samples.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    merged: dict[str, Any] = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "options": vars(options), "passes": []}
    failed = 0
    for name in PASSES:
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "LIBTE_NUM_THREADS": str(options.threads),
                       "TORCHINDUCTOR_CACHE_DIR": str(ROOT / "build" / "bench" / "inductor")}
        if name == "preallocated":
            environment.update(KEEP_MEMORY)
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / "pass.json"
            print(f"== {name}", file=sys.stderr, flush=True)
            arguments = ["--child", name, "--out", str(part), "--rows", options.rows, "--rounds", str(options.rounds), "--seconds", str(options.seconds),
                         "--threads", str(options.threads), *(["--no-compile"] if options.no_compile else [])]
            failed |= launch([sys.executable, str(Path(__file__).resolve()), *arguments], environment)
            if part.exists():
                merged["passes"].append(json.loads(part.read_text()))
    if options.update and merged["passes"]:
        out = Path(options.update)
        merged = updated(json.loads(out.read_text()), merged)
    out.write_text(json.dumps(merged, indent=1))
    print(f"raw samples: {out}", file=sys.stderr)
    import render

    print(render.table(merged))
    return 1 if failed or not merged["passes"] else 0


if __name__ == "__main__":
    sys.exit(main())
