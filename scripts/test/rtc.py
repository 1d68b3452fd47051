# SPDX-License-Identifier: Apache-2.0
"""Compiles the kernels of run-time compilation with the vendor's compiler, without a GPU, for every tile and dtype that a call can ask for, as
src/gpu/rtc does: scripts/test/rtc.py --chips gfx942,gfx950 --out FOLDER. The code objects are left in FOLDER for amd.py."""

from __future__ import annotations

import argparse
import ctypes
import itertools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "libte" / "src"
TILES = ((16, 16), (8, 16), (8, 8))  # rtc/tiles.h


class Compiler:
    def __init__(self, library: str) -> None:
        self.lib = ctypes.CDLL(library)
        listed = re.search(r"set\(rtc_sources ([^)]*)\)", (ROOT / "cmake" / "gpu.cmake").read_text())
        assert listed
        self.names = listed.group(1).split()
        self.texts = {n: (SOURCES / n).read_bytes() for n in self.names}

    def ask(self, name: str, *args: object) -> None:
        status = getattr(self.lib, "hiprtc" + name)(*args)
        if status:
            raise RuntimeError(f"hiprtc{name}: status {status}")

    def text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self.ask(f"Get{what}Size", program, ctypes.byref(size))
        out = ctypes.create_string_buffer(size.value + 1)
        self.ask(f"Get{what}", program, out)
        return out.raw[:size.value]

    def compile(self, file: str, chip: str, defines: dict[str, int]) -> bytes:
        program, n = ctypes.c_void_p(), len(self.names)
        strings = ctypes.c_char_p * n
        self.ask("CreateProgram", ctypes.byref(program), self.texts[file], file.encode(), n, strings(*self.texts.values()),
                 strings(*(name.encode() for name in self.names)))
        options = ["-std=c++17", "-DTE_RTC=1", "-O3", "-ffp-contract=off", "-D__HIP_PLATFORM_AMD__", f"--offload-arch={chip}",
                   *(f"-D{k}={v}" for k, v in defines.items())]
        try:
            self.ask("CompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*(o.encode() for o in options)))
        finally:
            log = self.text(program, "ProgramLog").strip(b"\0 \n")
        assert not log, log.decode()
        return self.text(program, "Code")


def wanted(chip: str) -> list[tuple[str, dict[str, int]]]:
    own = (5, 6) if chip == "gfx942" else (3, 4)  # fp8 that the chip converts itself, by core's numbers of dtypes
    calls = [("ops/quantize/rtc.h", {"TE_IN": i, "TE_OUT": o, "TE_OUTPUTS": 3, "TE_WIDE": wide, "TE_SUMS": sums, "TE_ACROSS": a, "TE_DOWN": d, "TE_BLOCKS": 1})
             for i, o, (wide, sums), (a, d) in itertools.product((0, 2), own, ((1, 0), (0, 1)), TILES)]
    return calls + [("ops/transpose/rtc.h", {"TE_BYTES": b, "TE_WIDE": wide, "TE_ACROSS": a, "TE_DOWN": d})
                    for b, wide, (a, d) in itertools.product((1, 2, 4, 8), (1, 0), TILES) if wide or (a, d) == TILES[0]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chips", default="gfx942,gfx950")
    parser.add_argument("--library", default="libhiprtc.so.7")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    compiler, failed, n = Compiler(args.library), 0, 0
    for chip in args.chips.split(","):
        for file, defines in wanted(chip):
            n += 1
            name = "-".join([Path(file).parent.name, *map(str, defines.values()), chip])
            try:
                (args.out / f"{name}.co").write_bytes(compiler.compile(file, chip, defines))
            except (RuntimeError, AssertionError) as e:
                failed += 1
                print(f"{name}: {e}")
    print(f"run-time compilation: {n} kernels, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
