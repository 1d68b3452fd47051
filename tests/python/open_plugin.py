# SPDX-License-Identifier: Apache-2.0
"""Opens a GPU plug-in where there may be no GPU, in a process of its own: it must need no GPU library, load, list its operators, and answer a question
and a call with a clear status. test_libte_plugins.py runs it."""

from __future__ import annotations

import argparse
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
    args = parser.parse_args()
    dynamic = subprocess.run(["readelf", "-d", args.file], check=True, capture_output=True, text=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    foreign = [n for n in needed if not ALLOWED.fullmatch(n)]
    assert not foreign, f"{args.file} needs {foreign}"
    exported = subprocess.run(["nm", "-D", "--defined-only", args.file], check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1].split("@")[0] for line in exported.splitlines()} - {"LIBTE_PLUGIN_0"}
    assert names == {"nvte_backend_entry"}, f"{args.file} exports {sorted(names)}"

    import libte
    from libte import _call
    from libte._load import ffi, lib

    device = DEVICES[args.device]

    def error() -> str:
        return str(ffi.string(lib.nvte_last_error()).decode())

    status = lib.nvte_backend_load(str(args.file.resolve()).encode())
    assert status == 0, f"nvte_backend_load: {status}: {error()}"
    count = ffi.new("int32_t *", -1)
    status = lib.nvte_device_count(device, count)
    message = error() if status else ""
    assert (status == 0 and count[0] >= 0) or (64 <= status < 96 and message), f"device_count: status {status}, {count[0]} devices, '{message}'"
    got, n = ffi.new("char *[16]"), ffi.new("size_t *", 16)
    status = lib.nvte_op_implementations(b"quantize", device, got, n)
    assert status == 0, f"nvte_op_implementations: {status}: {error()}"
    names = [ffi.string(got[i]).decode() for i in range(n[0])]
    assert {"gpu", "rtc"} <= set(names), f"quantize has no implementation gpu or rtc but {names}"
    if count[0] < 1:  # memory of no device: the call must not come to it
        frame = _call.acquire("transpose")
        for i, name in enumerate(("x", "y")):
            frame.tensor(name).set(0, ffi.cast("void *", 1 << 20 << i), (16, 16), None, "f32", (device, 0))
        frame.exec.device.device_type = device
        try:
            _call.run(frame)
        except RuntimeError as e:
            message = str(e)
        else:
            raise AssertionError("a call on a device that is not there succeeded")
    print(f"{args.file.name}: needs {', '.join(needed)}; opens with libte {libte.__version__}; {count[0]} devices; {message}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
