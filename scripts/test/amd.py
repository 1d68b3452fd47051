# SPDX-License-Identifier: Apache-2.0
"""Checks every AMD kernel in a library or program: no private segment, no spills, shared memory within the chip, wave 64, the same kernels for
every architecture, and the instructions that the fp8 and reduction words are there for. Needs LLVM's tools of the ROCm toolchain."""

from __future__ import annotations

import argparse
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

LDS = {"gfx942": 64 << 10, "gfx950": 160 << 10}
# kernels whose name holds the first word must hold the instruction of the second
EXPECTED = (("quantize_kernel", r"\bv_cvt_pk_fp8_f32\b"), ("quantize_kernel", r"\bv_cvt_pk_bf8_f32\b"), ("norm_forward_kernel", r"\bv_\w+_dpp\b|row_mirror"))
MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"


def code_objects(data: bytes) -> list[tuple[str, bytes]]:
    """(architecture, ELF) of each device entry of each bundle."""
    found, at = [], data.find(MAGIC)
    while at >= 0:
        (count,) = struct.unpack_from("<Q", data, at + len(MAGIC))
        p = at + len(MAGIC) + 8
        if count < 64:
            for _ in range(count):
                offset, size, length = struct.unpack_from("<QQQ", data, p)
                triple = data[p + 24:p + 24 + length].decode()
                p += 24 + length
                if "amdgcn" in triple and size:
                    found.append((triple.split("-")[-1], data[at + offset:at + offset + size]))
        at = data.find(MAGIC, at + 1)
    return found


def tool(name: str, *args: str) -> str:
    return subprocess.run([name, *args], check=True, capture_output=True, text=True).stdout


def kernels(notes: str) -> list[dict[str, str]]:
    """One dictionary a kernel from readelf's rendering of the metadata."""
    rows = []
    for block in re.split(r"(?m)^  - \.", notes.split("amdhsa.kernels:")[-1].split("amdhsa.target:")[0])[1:]:
        rows.append(dict(re.findall(r"(?m)^(?:    )?\.?([a-z_]+): +(\S+)$", block)))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--archs", default="gfx942,gfx950")
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    archs = args.archs.split(",")
    complaints: list[str] = []
    names: dict[str, set[str]] = {a: set() for a in archs}
    listed: dict[str, int] = dict.fromkeys(archs, 0)
    seen: dict[tuple[str, str], bool] = {}
    symbols = 0
    for arch, elf in code_objects(args.file.read_bytes()):
        if arch not in names:
            complaints.append(f"a code object for {arch}, which was not asked for")
            continue
        with tempfile.NamedTemporaryFile(suffix=".co") as f:
            f.write(elf)
            f.flush()
            rows = kernels(tool("llvm-readelf-22", "--notes", f.name))
            descriptors = {w for w in tool("llvm-readelf-22", "--symbols", "--wide", f.name).split() if w.endswith(".kd")}
            symbols += len(descriptors)
            for row in rows:
                name = row["name"]
                names[arch].add(name)
                listed[arch] += 1
                short = re.sub(r"^_ZN?", "", name)[:90]
                for key in ("private_segment_fixed_size", "vgpr_spill_count", "sgpr_spill_count"):
                    if row.get(key) != "0":
                        complaints.append(f"{arch} {short}: {key} is {row.get(key)}")
                if int(row["group_segment_fixed_size"]) > LDS.get(arch, 64 << 10):
                    complaints.append(f"{arch} {short}: {row['group_segment_fixed_size']} bytes of LDS, the chip has {LDS.get(arch)}")
                if arch.startswith("gfx9") and row.get("wavefront_size") != "64":
                    complaints.append(f"{arch} {short}: wave of {row.get('wavefront_size')}, expected 64")
                if name + ".kd" not in descriptors:
                    complaints.append(f"{arch} {short}: no descriptor")
            for word, pattern in EXPECTED:
                if any(word in row["name"] for row in rows):
                    text = tool("llvm-objdump-22", "-d", f"--mcpu={arch}", f.name)
                    seen[arch, pattern] = seen.get((arch, pattern), False) or bool(re.search(pattern, text))
    for arch in archs:
        if not names[arch]:
            complaints.append(f"no kernel for {arch}")
        for word, pattern in EXPECTED:
            if not seen.get((arch, pattern)):
                complaints.append(f"{arch}: no {pattern} in the code object of {word}")
        if names[arch] != names[archs[0]]:
            complaints.append(f"{arch} and {archs[0]} have different kernels: {sorted(names[arch] ^ names[archs[0]])[:3]}")
    if symbols != sum(listed.values()):
        complaints.append(f"{sum(listed.values())} kernels inspected, {symbols} kernel descriptors found")
    print(f"{args.file.name}: " + ", ".join(f"{n} kernels for {a}" for a, n in listed.items()) + f"; {len(complaints)} complaints")
    for c in complaints:
        print("   ", c)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
