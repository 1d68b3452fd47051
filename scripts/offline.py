# SPDX-License-Identifier: Apache-2.0
"""Puts what an interpreter lacks into a folder, from a folder of wheels: no network, no venv, nothing it has is replaced.

python offline.py --target DIR [--wheels DIR] -r requirements.txt
"""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement


def missing(names: list[Requirement], seen: set[str]) -> list[Requirement]:
    """Requirements that are not met, through what the installed ones require."""
    out = []
    for r in names:
        if r.name.lower() in seen or (r.marker and not r.marker.evaluate({"extra": ""})):
            continue
        seen.add(r.name.lower())
        try:
            have = importlib.metadata.distribution(r.name)
        except importlib.metadata.PackageNotFoundError:
            out.append(r)
            continue
        if not r.specifier.contains(have.version, prereleases=True):
            out.append(r)
        else:
            out += missing([Requirement(x) for x in have.requires or ()], seen)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("-r", dest="requirements", type=Path, required=True)
    args = parser.parse_args()
    sys.path.insert(0, args.target)
    lines = [line.split("#")[0].strip() for line in args.requirements.read_text().splitlines()]
    wanted = [Requirement(line) for line in lines if line]
    while need := missing(wanted, set()):
        names = ", ".join(map(str, need))
        if args.wheels is None:
            sys.exit(f"error: {sys.executable} lacks {names}; give WHEELS=<folder of wheels> or install them")
        print(f"== from {args.wheels}: {names}", file=sys.stderr)
        run = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--upgrade", "--find-links", args.wheels,
                              "--target", args.target, *map(str, need)])
        if run.returncode:
            sys.exit(f"error: {args.wheels} does not have all of {names}")
        importlib.invalidate_caches()


if __name__ == "__main__":
    main()
