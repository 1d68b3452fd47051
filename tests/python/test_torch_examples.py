# SPDX-License-Identifier: Apache-2.0
"""The torch trainings at reduced length: each mode far above chance, FP8 GEMMs where asked for and nowhere else; the files of MNIST."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_runs import load, run

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("tqdm")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Such small models wait more than they compute where two threads share a busy core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("modes, gemms, fp8", [([], 0, 0), (["--use-te"], 6, 0), (["--use-fp8"], 6, 6)])
def test_mnist(modes: list[str], gemms: int, fp8: int, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracy, *counts = run("torch_mnist", capsys, monkeypatch, "--epochs", "5", *modes)
    assert counts == [gemms, fp8]  # two linears: forward, input's and weight's gradient
    assert accuracy > 0.85  # chance is 0.1


@pytest.mark.parametrize("modes, gemms, fp8", [([], 0, 0), (["--use-te"], 24, 0), (["--ln-mlp"], 12, 0), (["--use-fp8", "--ln-mlp"], 24, 24)])
def test_sort(modes: list[str], gemms: int, fp8: int, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracy, *counts = run("torch_sort_gpt", capsys, monkeypatch, "--steps", "120", "--length", "5", "--digits", "4", "--lr", "4e-3", *modes)
    assert counts == [gemms, fp8]  # two layers of four linears, three GEMMs each
    assert accuracy > 0.7  # of whole sequences; chance is 1 in 1,024


def test_sort_keeps_what_it_holds_out_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = load("torch_sort_gpt", monkeypatch).sequences
    generator = torch.Generator().manual_seed(0)
    held, trained = ({tuple(s) for s in sequences(500, 4, 5, kind, generator).tolist()} for kind in (True, False))
    assert not held & trained and 0.15 < len(held) / 625 < 0.35
    with pytest.raises(SystemExit, match="too few sequences"):
        for kind in (True, False):
            sequences(1, 1, 1, kind, generator)


def test_mnist_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load("digits", monkeypatch)
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (n, 4, 4), np.uint8) for n in (5, 3)]
    images[0][0, 0, 0] = 255
    labels = [rng.integers(0, 10, n).astype(np.uint8) for n in (5, 3)]

    def idx(a: Any) -> bytes:
        return bytes([0, 0, 8, a.ndim]) + np.array(a.shape, ">u4").tobytes() + a.tobytes()

    for name, x, y in zip(("train", "t10k"), images, labels):
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(idx(x))
        (tmp_path / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(y)))
    np.savez(tmp_path / "all.npz", x_train=images[0], x_test=images[1], y_train=labels[0], y_test=labels[1])
    want = [x.astype(np.float32) / np.float32(255) for x in images] + [y.astype(np.int32) for y in labels]
    for path in (tmp_path, tmp_path / "all.npz"):
        for have, should in zip(digits.load(str(path)), want):
            assert have.dtype == should.dtype and np.array_equal(have, should)
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte.gz"):
        digits.load(str(tmp_path.parent))
    for broken in (b"", b"\0\0\x0d\1", b"\0\0\x08\3\0", idx(images[0])[:-1]):
        (tmp_path / "train-images-idx3-ubyte").write_bytes(broken)
        with pytest.raises(ValueError, match="must be an idx file"):
            digits.load(str(tmp_path))
