# SPDX-License-Identifier: Apache-2.0
"""Fetches XLA's FFI headers into a folder: `xla_headers.py build/xla [--wheels DIR]`. They come from the wheel of the oldest supported jaxlib,
whatever Python runs this, because a runtime refuses handlers that are built for a newer FFI than its own. Nothing of it is committed."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

JAXLIB = "0.5.3"  # FFI 0.1, with every FP8 type


def fetch(out: Path, wheels: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = ["--no-index", "--find-links", wheels] if wheels else []
        subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps", "--python-version", "311",
                        "--only-binary=:all:", "--retries", "1", *source, "-d", folder, f"jaxlib=={JAXLIB}"], check=True, timeout=300)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            for name in wheel.namelist():
                if "/include/xla/" in name or name.endswith(("LICENSE", "LICENSE.txt")):
                    target = out / (name.removeprefix("jaxlib/") if name.startswith("jaxlib/") else Path(name).name)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(wheel.read(name))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--wheels")
    arguments = parser.parse_args()
    if not (arguments.out / "include/xla/ffi/api/c_api.h").is_file():
        try:
            fetch(arguments.out, arguments.wheels)
        except (subprocess.SubprocessError, StopIteration) as e:
            sys.exit(f"note: XLA's FFI headers (jaxlib {JAXLIB}) could not be fetched, so libte_jax is not built: {e}")
