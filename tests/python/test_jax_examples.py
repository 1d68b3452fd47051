# SPDX-License-Identifier: Apache-2.0
"""The JAX example at reduced length: far above chance in every mode, and FP8 is really another computation. README's words on JAX run."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("libte_jax", reason="libte_xla.so was not built (no XLA headers)", exc_type=ImportError)
pytest.importorskip("flax")
pytest.importorskip("sklearn")

ROOT = Path(__file__).resolve().parents[2]


def test_mnist(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    example = importlib.import_module("jax_mnist")
    losses = {}
    for mode in ("--use-te", "--use-fp8"):
        assert example.main(["--epochs", "4", mode]) > 0.8  # chance is 0.1
        out = capsys.readouterr()
        assert "accuracy" in out.out and "4/4" in out.err
        losses[mode] = out.err.rsplit("loss", 1)[1]
    assert len(set(losses.values())) == 2


def test_readme() -> None:
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S) if "libte_jax" in b)
    names: dict[str, Any] = {}
    exec(block, names)
    assert all((m.scale != 1).all() for m in names["jax"].tree.leaves(names["state"], is_leaf=lambda m: hasattr(m, "rolled")))
