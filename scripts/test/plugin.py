# SPDX-License-Identifier: Apache-2.0
"""Opens a GPU plug-in where there may be no GPU: it must need no GPU library, load, list its operators, and answer with a clear status."""

from __future__ import annotations

import argparse
import ctypes
import re
import subprocess
import sys
from pathlib import Path

DEVICES = {"cuda": 2, "rocm": 10}
ALLOWED = re.compile(r"lib(c|m|stdc\+\+|gcc_s|pthread|dl|rt)\.so\.\d+|ld-linux.*")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", choices=DEVICES, required=True)
    parser.add_argument("--library", type=Path, default=Path("build/libte.so.0"))
    args = parser.parse_args()
    dynamic = subprocess.run(["readelf", "-d", args.file], check=True, capture_output=True, text=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    foreign = [n for n in needed if not ALLOWED.fullmatch(n)]
    assert not foreign, f"{args.file} needs {foreign}"
    exported = subprocess.run(["nm", "-D", "--defined-only", args.file], check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1].split("@")[0] for line in exported.splitlines()} - {"LIBTE_PLUGIN_0"}
    assert names == {"nvte_backend_entry"}, f"{args.file} exports {sorted(names)}"

    lib = ctypes.CDLL(str(args.library.resolve()))
    lib.nvte_last_error.restype = ctypes.c_char_p
    status = lib.nvte_backend_load(str(args.file).encode())
    assert status == 0, f"nvte_backend_load: {status}: {lib.nvte_last_error().decode()}"
    count = ctypes.c_int32(-1)
    status = lib.nvte_device_count(DEVICES[args.device], ctypes.byref(count))
    message = lib.nvte_last_error().decode() if status else ""
    assert (status == 0 and count.value >= 0) or (64 <= status < 96 and message), f"device_count: status {status}, {count.value} devices, '{message}'"
    got, n = (ctypes.c_char_p * 16)(), ctypes.c_size_t(16)
    status = lib.nvte_op_implementations(b"quantize", DEVICES[args.device], got, ctypes.byref(n))
    assert status == 0 and b"gpu" in list(got)[:n.value], f"quantize has no implementation gpu: status {status}"
    print(f"{args.file.name}: needs {', '.join(needed)}; opens; " + (f"status {lib.nvte_device_count(DEVICES[args.device], ctypes.byref(count))}: {message}"
                                                                      if message else f"{count.value} devices"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
