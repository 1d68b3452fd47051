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
# (name, chip, instruction): every kernel whose mangled name matches, for that chip ("": every one), must hold it. Codes of the chip's own fp8 come
# from its conversion: FNUZ on gfx942, OCP on gfx950.
EXPECTED = (
    (r"quantize_kernel.*\dbf16.*8e4m3fnuz", "gfx942", r"\bv_cvt_pk_fp8_f32"),
    (r"quantize_kernel.*\dbf16.*8e5m2fnuz", "gfx942", r"\bv_cvt_pk_bf8_f32"),
    (r"quantize_kernel.*\dbf16.*4e4m3E", "gfx950", r"\bv_cvt_pk_fp8_f32"),
    (r"quantize_kernel.*\dbf16.*4e5m2E", "gfx950", r"\bv_cvt_pk_bf8_f32"),
    (r"^te_quantize$", "", r"\bv_cvt_pk_(fp8|bf8)_f32"),
    (r"gemm_kernel", "", r"\bv_mfma_f32_"),
    (r"flash_(forward|query_gradient|key_gradient)_kernel", "", r"\bv_mfma_f32_32x32x"),
    (r"norm_forward_kernel|norm_backward_kernel|reduce_amax", "", r"\bv_\w+_dpp\b.*|\b(quad_perm|row_mirror)"),
    # a whole wave's reduction reads all four rows of 16 lanes
    (r"reduce_amax|amax_kernel", "", r"\bv_readlane_b32 .*, 48\b"),
)
# Kernels that may spill scalar registers (into lanes of a vector register) or set aside scratch for now, printed each time. None may use scratch.
TOLERATED = {
    r"GLOBAL__N_1\d+(forward|query_gradient|key_gradient|bias_gradient)_kernel": "attention's general kernels, which are being replaced",
    r"GLOBAL__N_1\d+flash_(forward|query_gradient|key_gradient)_kernel": "attention's fast kernels: scalar registers, up to 25; scratch is set aside in four, no instruction uses it",
    r"gpuL10map_kernelINS0_3AnyENS_12_GLOBAL__N_18BackwardE": "the activation gradient of odd rows: 4 scalar registers on gfx950",
}
MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"


def code_objects(data: bytes) -> list[tuple[str, bytes]]:
    """(architecture, ELF) of each device entry of each bundle."""
    if data.startswith(b"\x7fELF") and data[18:20] == b"\xe0\0":  # one by itself
        return [(re.findall(rb"amdgcn-amd-amdhsa--(gfx\w+)", data)[0].decode(), data)]
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


def code(file: str, arch: str) -> dict[str, str]:
    """The disassembly of each symbol."""
    parts = re.split(r"(?m)^[0-9a-f]+ <(.+)>:$", tool("llvm-objdump-22", "-d", f"--mcpu={arch}", file))
    return dict(zip(parts[1::2], parts[2::2]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--archs", default="gfx942,gfx950")
    parser.add_argument("files", type=Path, nargs="+", help="libraries, programs, single code objects: looked at together")
    args = parser.parse_args()
    archs = args.archs.split(",")
    complaints: list[str] = []
    tolerated: list[str] = []
    names: dict[str, set[str]] = {a: set() for a in archs}
    listed: dict[str, int] = dict.fromkeys(archs, 0)
    matched: dict[str, int] = {name: 0 for name, _, _ in EXPECTED}
    symbols = 0
    for arch, elf in (found for file in args.files for found in code_objects(file.read_bytes())):
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
                        reason = next((r for pattern, r in TOLERATED.items() if re.search(pattern, name) and key != "vgpr_spill_count"), None)
                        (tolerated if reason else complaints).append(f"{arch} {short}: {key} is {row.get(key)}" + (f" ({reason})" if reason else ""))
                if int(row["group_segment_fixed_size"]) > LDS.get(arch, 64 << 10):
                    complaints.append(f"{arch} {short}: {row['group_segment_fixed_size']} bytes of LDS, the chip has {LDS.get(arch)}")
                if arch.startswith("gfx9") and row.get("wavefront_size") != "64":
                    complaints.append(f"{arch} {short}: wave of {row.get('wavefront_size')}, expected 64")
                if name + ".kd" not in descriptors:
                    complaints.append(f"{arch} {short}: no descriptor")
            bodies = code(f.name, arch)
            for row in rows:
                used = re.findall(r"\b(?:scratch|buffer)_(?:load|store)_\w+", bodies.get(row["name"], ""))
                if used:
                    complaints.append(f"{arch} {row['name'][:90]}: {len(used)} accesses to scratch memory, such as {used[0]}")
                for pattern, chip, instruction in EXPECTED:
                    if chip in ("", arch) and re.search(pattern, row["name"]):
                        matched[pattern] += 1
                        if not re.search(instruction, bodies.get(row["name"], "")):
                            complaints.append(f"{arch} {row['name'][:90]}: no {instruction}")
    for arch in archs:
        if not names[arch]:
            complaints.append(f"no kernel for {arch}")
        if names[arch] != names[archs[0]]:
            complaints.append(f"{arch} and {archs[0]} have different kernels: {sorted(names[arch] ^ names[archs[0]])[:3]}")
    complaints += [f"no kernel's name matches {pattern}" for pattern, n in matched.items() if not n]
    if symbols != sum(listed.values()):
        complaints.append(f"{sum(listed.values())} kernels inspected, {symbols} kernel descriptors found")
    print(f"{args.files[0].name}: " + ", ".join(f"{n} kernels for {a}" for a, n in listed.items()) + f"; {len(complaints)} complaints")
    for line in complaints + [f"tolerated: {t}" for t in tolerated]:
        print("   ", line)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
