# SPDX-License-Identifier: Apache-2.0
"""Runs a training of examples/ at reduced length and reads what it prints."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, capsys: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[float, int, int]:
    """(accuracy, libte's GEMMs in the last step, those of them on FP8 codes), as printed."""
    monkeypatch.syspath_prepend(EXAMPLES)
    importlib.import_module(name).main(list(arguments))
    seen = capsys.readouterr()
    assert "100%" in seen.err and "device: " in seen.out
    accuracy, _ = re.findall(r": accuracy (\d\.\d+) on .*, (\d+\.\d) s$", seen.out, re.M)[0]
    all_, fp8, names = re.findall(r"(\d+) GEMMs of libte's, (\d+) of them on FP8 codes; implementations: (.*)", seen.out)[0]
    assert (int(all_) > 0) == (names != "none of libte's")
    return float(accuracy), int(all_), int(fp8)


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of that name in examples/."""
    monkeypatch.syspath_prepend(EXAMPLES)
    sys.modules.pop(name, None)
    return importlib.import_module(name)
