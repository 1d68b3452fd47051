# SPDX-License-Identifier: Apache-2.0
"""The JAX trainings at reduced length: each mode far above chance, FP8 GEMMs where asked for and nowhere else. README's words on JAX run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from example_runs import EXAMPLES, load, run

pytest.importorskip("libte_jax", reason="libte_xla.so was not built (no XLA headers)", exc_type=ImportError)
pytest.importorskip("flax")
pytest.importorskip("sklearn")
pytest.importorskip("tqdm")


@pytest.mark.parametrize("modes, gemms, fp8", [([], 0, 0), (["--use-te"], 6, 0), (["--use-fp8"], 6, 6)])
def test_mnist(modes: list[str], gemms: int, fp8: int, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracy, *counts = run("jax_mnist", capsys, monkeypatch, "--epochs", "4", *modes)
    assert accuracy > 0.8  # chance is 0.1
    assert counts == [gemms, fp8]  # two linears: forward, input's and weight's gradient


@pytest.mark.parametrize("modes, fp8", [([], 0), (["--use-fp8"], 12)])
def test_encoder(modes: list[str], fp8: int, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracy, *counts = run("jax_encoder", capsys, monkeypatch, "--epochs", "2", "--layers", "1", "--lr", "2e-3", *modes)
    assert counts == [12, fp8]  # one layer of four linears, three GEMMs each
    assert accuracy > 0.5  # the most frequent family is 0.31 of the passages


def test_encoder_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("jax_encoder", monkeypatch)
    training, held_out = example.passages()
    assert {label for _, label in training} == {label for _, label in held_out} == set(range(4))
    assert not {tuple(text) for text, _ in training} & {tuple(text) for text, _ in held_out}
    (tmp_path / "train.tsv").write_text("gj04\t1\t\tThey drank it dry.\nbc01\t0\t*\tDrank they dry\n")
    (tmp_path / "dev.tsv").write_text("gj04\t1\t\tHe ran.\n")
    assert example.cola(str(tmp_path)) == ([(["they", "drank", "it", "dry", "."], 1), (["drank", "they", "dry"], 0)], [(["he", "ran", "."], 1)])
    x, y = example.encode([(["a", "b", "a", "c"], 1), ([], 0)], {"a": 2, "b": 3}, 3)
    assert x.tolist() == [[2, 3, 2], [0, 0, 0]] and y.tolist() == [1, 0]
    (tmp_path / "dev.tsv").write_text("gj04\tyes\t\tHe ran.\n")
    with pytest.raises(ValueError, match="dev.tsv:1: must be four columns"):
        example.cola(str(tmp_path))


def test_readme() -> None:
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", (EXAMPLES.parent / "README.md").read_text(), re.S) if "libte_jax" in b)
    names: dict[str, Any] = {}
    exec(block, names)
    assert all((m.scale != 1).all() for m in names["jax"].tree.leaves(names["state"], is_leaf=lambda m: hasattr(m, "rolled")))
