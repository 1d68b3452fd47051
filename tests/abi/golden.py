#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The frozen ABI: symbols, prototypes, typedefs, struct sizes, field offsets and types, constants. golden.txt may only grow.

    golden.py --lib libte.so [--cc cc] [--include DIR ...] [--headers DIR] [--update]

A line of golden.txt that is gone or different is a failure. Two kinds of growth are legal: a new line, and a struct that begins with
struct_size getting larger by fields that lie at or past its old size (so that an older caller's struct_size cuts them off, padding
never becomes a field). --update adds new lines and sizes; it refuses to take anything else away.
"""
from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import schema as S  # noqa: E402

GOLDEN = Path(__file__).with_name("golden.txt")


def measured(schema: S.Schema, cc: str, includes: list[str]) -> list[str]:
    """sizeof, offsetof and constants, as the C compiler sees them."""
    body = []
    for s in schema.structs:
        body.append(f'  printf("size {s.name} %zu\\n", sizeof({s.name}));')
        for m in s.members:
            text = m.declaration.replace('"', '\\"')
            body.append(f'  printf("field {s.name}.{m.name} %zu %zu | {text}\\n", offsetof({s.name}, {m.name}), sizeof((({s.name} *)0)->{m.name}));')
    for c in schema.constants:
        if not c.name.startswith("NVTE_VERSION_"):  # meant to change
            body.append(f'  printf("constant {c.name} %lld\\n", (long long){c.name});')
    source = "#include <libte/libte.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(body) + "\n  return 0;\n}\n"
    with tempfile.TemporaryDirectory() as tmp:
        c, exe = Path(tmp, "probe.c"), Path(tmp, "probe")
        c.write_text(source)
        subprocess.run([cc, "-std=c11", *[f"-I{i}" for i in includes], str(c), "-o", str(exe)], check=True)
        return subprocess.run([str(exe)], check=True, capture_output=True, text=True).stdout.splitlines()


def prototypes(schema: S.Schema) -> list[str]:
    lines = [f"typedef {t.name} | {t.declaration}" for t in schema.typedefs]
    for f in schema.functions:
        types = ", ".join(re.sub(r"\(\*\w+\)", "(*)", t) for t, _ in f.parameters) or "void"
        lines.append(f"function {f.name} | {f.result} ({types})")
    return lines


def symbols(lib: Path) -> list[str]:
    out = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", str(lib)], check=True, capture_output=True, text=True).stdout
    return [f"symbol {m[1]} {m[2]}" for m in re.finditer(r" [TDBRVW] (\w+)@@?(\w+)", out)]


def current(schema: S.Schema, lib: Path | None, cc: str, includes: list[str]) -> list[str]:
    return sorted(set(measured(schema, cc, includes) + prototypes(schema) + (symbols(lib) if lib else [])))


def compare(golden: list[str], now: list[str]) -> tuple[list[str], list[str]]:
    """Complaints, and the lines that are new (legal growth)."""
    def split(lines):
        sizes = {p[1]: int(p[2]) for p in (line.split() for line in lines if line.startswith("size "))}
        return sizes, {line for line in lines if not line.startswith("size ")}

    old_sizes, old = split(golden)
    sizes, new = split(now)
    complaints = [f"lost or changed: {line}" for line in sorted(old - new)]
    grown = sorted(new - old)
    first = {line.split()[1].split(".")[0] for line in new if re.match(r"field \w+\.struct_size 0 8 ", line)}
    for name, size in old_sizes.items():
        if name not in sizes:
            complaints.append(f"lost: size {name} {size}")
        elif sizes[name] < size:
            complaints.append(f"{name} shrank from {size} to {sizes[name]} bytes")
        elif sizes[name] > size and name not in first:
            complaints.append(f"{name} grew from {size} to {sizes[name]} bytes but has no struct_size: its stride is fixed")
    for line in grown:
        m = re.match(r"field (\w+)\.(\w+) (\d+) ", line)
        if m and m[1] in old_sizes and int(m[3]) < old_sizes[m[1]]:
            complaints.append(f"{m[1]}.{m[2]} lies at {m[3]}, inside the {old_sizes[m[1]]} bytes that older callers fill")
    grown += [f"size {n} {s}" for n, s in sorted(sizes.items()) if old_sizes.get(n) != s]
    return complaints, grown


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", type=Path)
    p.add_argument("--cc", default="cc")
    p.add_argument("--include", action="append", default=[])
    p.add_argument("--headers", type=Path, default=ROOT / "libte" / "include" / "libte")
    p.add_argument("--update", action="store_true")
    a = p.parse_args()
    now = current(S.load(a.headers), a.lib, a.cc, [str(a.headers.parent), *a.include])
    golden = GOLDEN.read_text().splitlines() if GOLDEN.exists() else []
    golden = [line for line in golden if line and not line.startswith("#")]
    if not a.lib:
        golden = [line for line in golden if not line.startswith("symbol ")]
    complaints, grown = compare(golden, now)
    for c in complaints:
        print(c)
    for g in grown:
        print("new:", g)
    if a.update and not complaints:
        kept = [g for g in golden if not g.startswith("size ")]
        lines = sorted(set(kept) | set(now))
        GOLDEN.write_text("# SPDX-License-Identifier: Apache-2.0\n# The frozen ABI; may only grow (golden.py).\n" + "\n".join(lines) + "\n")
    elif grown and not complaints:
        print(f"{len(grown)} new lines: legal growth; golden.py --update takes them in")
    print(f"{len(golden)} frozen lines, {len(complaints)} complaints, {len(grown)} new")
    return 1 if complaints or not now or (not golden and not a.update) else 0


if __name__ == "__main__":
    sys.exit(main())
