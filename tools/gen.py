#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Headers -> operator table, doors, initialisers, docs; and the Python side where tools/emit_python.py exists.

    python3 tools/gen.py --out BUILD/gen [--python-out DIR] [--allow-missing]
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import emit_c  # noqa: E402
import schema as S  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


def write(path: Path, text: str) -> None:
    """Writes only what changed, so that nothing is rebuilt for nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--python-out", type=Path)
    p.add_argument("--include", type=Path, default=ROOT / "libte" / "include" / "libte")
    p.add_argument("--ops-dir", type=Path, default=ROOT / "libte" / "src" / "ops")
    p.add_argument("--allow-missing", action="store_true", help="leave out operators that have no folder yet")
    a = p.parse_args()
    try:
        schema = S.load(a.include)
    except S.SchemaError as e:
        print(e, file=sys.stderr)
        return 1
    ops = [o for o in schema.ops if not a.allow_missing or (a.ops_dir / o.folder / "op.cpp").exists()]
    left_out = [o.name for o in schema.ops if o not in ops]
    if left_out:
        print("gen.py: left out, no folder yet:", ", ".join(left_out), file=sys.stderr)
    emit_c.emit(schema, ops, a.out, write)
    if a.python_out and (Path(__file__).parent / "emit_python.py").exists():
        import emit_python

        emit_python.emit(schema, a.python_out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
