# SPDX-License-Identifier: Apache-2.0
"""The rows of the goals table, a file a family. Each module has rows() -> list[Row]."""
from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def all_rows() -> list[Any]:
    found = []
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        found += importlib.import_module(f"{__name__}.{module}").rows()
    ids = [r.id for r in found]
    if len(set(ids)) != len(ids):
        raise RuntimeError(f"rows with the same id: {sorted({i for i in ids if ids.count(i) > 1})}")
    return found
