# SPDX-License-Identifier: Apache-2.0
"""docs/benchmarks.md from the committed raw samples: python bench/render.py [--check]."""
from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any, Optional

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

Rendered by `bench/render.py` from the raw samples in `bench/samples/`; `make bench` measures anew and prints the same table.

* All sides of a row run in turn in one process (A, B, A, B, ...); a figure is the median of its rounds; **ratio = rival's time / ours**,
  so above 1 libte is faster.
* In every round two ceilings are timed too: multiply-adds on registers, and a copy with non-temporal stores. A round in which the former is
  below 90 % of its best is discarded (other programs had the cores) but stays in the samples.
* *preallocated*: outputs are given (`out=` where torch has it) and malloc keeps large blocks, for both sides. *default*: both sides allocate
  their outputs at every call, as a program does; glibc then maps and unmaps blocks of 32 MiB and up, and both pay the page faults.
* *must* is the gate, *aim* what the machine could give. A missed gate has its reason below the table.
"""


def median(record: dict[str, Any], side: str) -> float:
    values = [r[side] for r in record.get("rounds", []) if side in r]
    return statistics.median(values) if values else math.nan


def number(x: float, digits: int = 2) -> str:
    return "–" if math.isnan(x) else f"{x:.{digits}f}"


def time_of(seconds: float) -> str:
    if math.isnan(seconds):
        return "–"
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def speed(record: dict[str, Any]) -> str:
    ours = median(record, "ours")
    if record["flops"]:
        rate = record["flops"] / ours
        return f"{rate * 1e-9:.0f} GF/s"
    if record["bytes"]:
        rate = record["bytes"] / ours
        return f"{rate * 1e-9:.1f} GB/s, {rate / median(record, 'copy') * 100:.0f} % of copy"
    return ""


def gates(record: dict[str, Any], default: Optional[dict[str, Any]] = None) -> list[tuple[str, str, bool]]:
    """(must, measured, met) of each gate; `default` is the row's record with default allocation."""
    ours = median(record, "ours")
    found: list[tuple[str, str, bool]] = []
    if math.isnan(ours):
        return found
    for side, least in record["must"].items():
        ratio = median(record, side) / ours
        if not math.isnan(ratio):
            found.append((f"{side} {least:g}", f"{ratio:.2f}", ratio >= least))
    for side, least in record.get("must_default", {}).items():
        ratio = median(default, side) / ours if default else math.nan
        if not math.isnan(ratio):
            found.append((f"{side} allocating by default {least:g}", f"{ratio:.2f}", ratio >= least))
    if record.get("must_more_us"):
        more = (ours - median(record, "rival")) * 1e6
        found.append((f"rival + {record['must_more_us']:g} us", f"{more:.2f} us", more <= record["must_more_us"]))
    if record["must_us"]:
        found.append((f"{record['must_us']:g} us", f"{ours * 1e6:.2f} us", ours * 1e6 <= record["must_us"]))
    if record["must_roof"]:
        share = record["bytes"] / ours / median(record, "copy")
        found.append((f"{record['must_roof'] * 100:.0f} % of copy", f"{share * 100:.0f} %", share >= record["must_roof"]))
    return found


def ratios(record: Optional[dict[str, Any]]) -> str:
    if record is None or not record.get("rounds"):
        return "–"
    ours = median(record, "ours")
    sides = [s for s in record["rounds"][0] if s not in ("ours", "copy", "fma")]
    return ", ".join(f"{number(median(record, s) / ours)}" + ("" if s == "rival" else f" ({s})") for s in sides)


def row_line(record: dict[str, Any], default: Optional[dict[str, Any]]) -> str:
    name = f"{record['what']}, {record['shape']}" + (", 1 thread" if record.get("threads") == 1 else "")
    if "error" in record:
        return f"| {name} | {record['rival']} | error: {record['error']} | | | | | | | |"
    if not record["rounds"]:
        return f"| {name} | {record['rival']} | no quiet round ({len(record['discarded'])} discarded) | | | | | | | |"
    found = gates(record, default)
    must = "; ".join(g[0] for g in found)
    aim = "; ".join(f"{k} {v:g}" for k, v in record["aim"].items()) + (f"{record['aim_us']:g} us" if record["aim_us"] else "")
    verdict = "" if not found else "met" if all(g[2] for g in found) else "**missed**"
    return (f"| {name} | {record['rival']} | {time_of(median(record, 'ours'))} | {time_of(median(record, 'rival'))} | {ratios(record)} | {ratios(default)} | {must} | {aim} | "
            f"{verdict} | {speed(record)} |")


def table(sample: dict[str, Any]) -> str:
    passes = {p["pass"]: p for p in sample["passes"]}
    first = passes.get("preallocated") or next(iter(passes.values()), None)
    if first is None:
        return "no rows"
    default = {r["id"]: r for r in passes.get("default", {}).get("rows", [])} if first["pass"] == "preallocated" else {}
    lines = ["| operation | rival | ours | rival | ratio, preallocated | ratio, default | must | aim | gate | ours, rate |", "|---|---|---|---|---|---|---|---|---|---|"]
    return "\n".join(lines + [row_line(r, default.get(r["id"])) for r in first["rows"]])


def missed(sample: dict[str, Any]) -> list[str]:
    passes = {p["pass"]: {r["id"]: r for r in p["rows"]} for p in sample["passes"]}
    default = passes.get("default", {})
    return [i for i, r in passes.get("preallocated", {}).items() if "error" not in r and any(not g[2] for g in gates(r, default.get(i)))]


def section(name: str, sample: dict[str, Any], reasons: dict[str, dict[str, str]]) -> str:
    first = sample["passes"][0]
    cpu, settings = first["machine"]["cpu"], first["rival"]
    kept = sum(len(r.get("rounds", [])) for p in sample["passes"] for r in p["rows"])
    gone = sum(len(r.get("discarded", [])) for p in sample["passes"] for r in p["rows"])
    copies = [x["copy"] for p in sample["passes"] for r in p["rows"] for x in r.get("rounds", [])]
    threads = settings["threads"]
    fma = max((r.get("fma_best", 0) for p in sample["passes"] for r in p["rows"] if r.get("threads") == threads), default=0)
    text = [f"## {cpu.get('Model name', '?')}, {settings['threads']} threads, {sample['date'][:10]}", "",
            f"Samples: `bench/samples/{name}`. {', '.join(f'{k} {v}' for k, v in first['versions'].items())}. Kernel {first['machine']['kernel']}, {first['machine']['libc']}, "
            f"{', '.join(first['machine']['isa'])}; L3 {cpu.get('L3 cache', '?')}. Environment: {', '.join(f'{k}={v}' for k, v in settings['environment'].items())}; "
            f"torch {settings['threads']} threads, float32 matmul precision {settings['float32_matmul_precision']}, {settings['compile']}.",
            f"Ceilings: {fma * 1e-9:.0f} GF/s multiply-add (f32), copy {min(copies, default=0) * 1e-9:.0f} to {max(copies, default=0) * 1e-9:.0f} GB/s, median "
            f"{statistics.median(copies) * 1e-9 if copies else 0:.0f}. {kept} rounds kept, {gone} discarded. Load before and after: "
            f"{first['load_before'][0]:.1f}, {sample['passes'][-1]['load_after'][0]:.1f}.", "", table(sample), ""]
    for again in sample.get("reruns", []):
        text += [f"Measured again {again['date']} at {again['libte']}, in the place of their first samples: {', '.join(f'`{i}`' for i in again['rows'])}.", ""]
    if "host" in sample:
        text += ["Host cost of a step of te.Linear, 32x256 -> 256, forward + backward, 1 thread (`bench/host.py`; *nothing*: with implementations that do nothing):", ""]
        text += [f"* {name}: {us:.0f} us" for name, us in sample["host"]["microseconds"].items()]
        text += [f"* {name}: {count:.0f} instructions, autograd's included (valgrind exp-bbv)" for name, count in sample["host"].get("instructions", {}).items() if count] + [""]
    late = missed(sample)
    if late:
        text += ["Missed gates:", ""] + [f"* `{i}`: {reasons.get(name, {}).get(i, 'NO REASON GIVEN YET')}" for i in late] + [""]
    return "\n".join(text)


def gpu_gates(r: dict[str, Any], sample: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """(must, measured, met) of each gate of a row of bench/gpu.py."""
    found: list[tuple[str, str, bool]] = []
    if "seconds" not in r:
        return found
    middle = {side: statistics.median(t) for side, t in r["seconds"].items()}
    ours = middle["ours"]
    for kind, bound in r.get("must", {"copy": r.get("must_copy", 0)}).items():
        if kind == "copy" and bound:
            share = r["work"] / ours / (4 * sample["options"]["size"] ** 2 / middle["copy"])
            found.append((f"{bound * 100:.0f} % of copy", f"{share * 100:.1f} %", share >= bound))
        elif kind == "rival":
            ratio = ours / middle["rival"] if r["unit"] == "us" else middle["rival"] / ours
            met = ratio <= bound if r["unit"] == "us" else ratio >= bound
            found.append((f"{bound:g} x torch" + ("'s time" if r["unit"] == "us" else ""), f"{ratio:.2f}", met))
        elif kind == "us":
            found.append((f"{bound:.0f} us", f"{ours * 1e6:.0f} us", ours * 1e6 <= bound))
        elif kind == "te":
            card = 2e-12 * 8192**3 / middle["gemm"] / 665
            ratio = r["work"] / ours * 1e-12 / (bound * card)
            found.append((f"Transformer Engine's {bound:g} x {card:.2f}", f"{ratio:.2f}", ratio >= 1))
    return found


def gpu_section(name: str, sample: dict[str, Any], reasons: dict[str, dict[str, str]]) -> str:
    """Rows of bench/gpu.py: memory-bound work against a device-to-device copy that takes turns with it, and the others against their rival."""
    size = sample["options"]["size"]
    lines = [f"## {sample['gpu']}, driver {sample['driver']}, {sample['date'][:10]}", "",
             f"Samples: `bench/samples/{name}`, torch {sample['torch']}. Rates count each input read once and each output written once; {size} x {size} numbers. *copy*: a "
             "device-to-device copy in the same loop. *must*: the gate; *goal*: what a rival or the card suggests. Attention's rival is torch's SDPA on its cuDNN back end, "
             "*flash* its FlashAttention back end, *gpu* libte's own kernel. FP8 layers: *gemm* is torch's 8192^3 bf16 product in the same loop, which over its 665 TFLOP/s there scales Transformer Engine's figures; *gemms* the layer's own products alone, by torch; *dy=1* ours with a gradient of ones (to see whether data decide the power: they do not). Layers and host time: a step as training has it, gradients set to None, forward, backward.", "",
             "| operation | ours | copy | must | measured | gate | goal | torch's time / ours | others' time / ours |", "|---|---|---|---|---|---|---|---|---|"]
    late = []
    for r in sample["rows"]:
        if "error" in r:
            lines.append(f"| {r['id']} | error: {r['error']} | | | | | | | |")
            continue
        seconds = {side: statistics.median(t) for side, t in r["seconds"].items()}
        copy = f"{4 * size**2 / seconds['copy'] * 1e-12:.2f} TB/s" if "copy" in seconds else ""
        ours = seconds["ours"] * 1e6 if r["unit"] == "us" else r["work"] / seconds["ours"] * 1e-12
        found = gpu_gates(r, sample)
        met = all(good for _, _, good in found)
        if not met:
            late.append(r["id"])
        gate = f"{'; '.join(g[0] for g in found)} | {'; '.join(g[1] for g in found)} | {('met' if met else '**missed**') if found else ''}"
        others = ", ".join(f"{number(t / seconds['ours'])} ({side})" for side, t in seconds.items() if side not in ("ours", "copy", "rival", "gemm"))
        lines.append(f"| {r['id']} | {ours:.2f} {r['unit']} | {copy} | {gate} | {format(r['goal'], 'g') if r['goal'] else '–'} | "
                     f"{number(seconds.get('rival', math.nan) / seconds['ours'])} | {others} |")
    if late:
        lines += ["", "Missed gates:", ""] + [f"* `{i}`: {reasons.get(name, {}).get(i, 'NO REASON GIVEN YET')}" for i in late]
    return "\n".join([*lines, ""])


def document() -> str:
    path = HERE / "reasons.json"
    reasons = json.loads(path.read_text()) if path.exists() else {}
    samples = {f.name: json.loads(f.read_text()) for f in sorted((HERE / "samples").glob("*.json"), reverse=True)}
    return "\n".join([HEAD, *((gpu_section if "gpu" in s else section)(name, s, reasons) for name, s in samples.items())])


if __name__ == "__main__":
    text = document()
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.exists() and TARGET.read_text() == text else f"{TARGET} is not what bench/render.py makes of bench/samples")
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(text)
