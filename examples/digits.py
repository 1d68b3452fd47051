# SPDX-License-Identifier: Apache-2.0
"""Images of digits: MNIST from your files, or scikit-learn's digits (1,797 images of 8 x 8), which need no download."""
from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any, Optional

import numpy as np

HELP = "MNIST: the folder of its idx files (plain or .gz), or an .npz of x_train, y_train, x_test, y_test; by default scikit-learn's digits"


def read_idx(folder: Path, name: str) -> Any:
    """The uint8 array in folder/name or folder/name.gz: two zero bytes, 8 (unsigned byte), the rank, the big-endian extents, the data."""
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder}: neither {name} nor {name}.gz is there")
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    rank = data[3] if len(data) > 3 else 0
    shape = tuple(np.frombuffer(data, ">u4", rank, 4).tolist()) if len(data) >= 4 + 4 * rank else (0,)
    if data[:3] != b"\0\0\x08" or len(data) != 4 + 4 * rank + math.prod(shape):
        raise ValueError(f"{path}: must be an idx file of unsigned bytes, begins with {data[:4]!r} and holds {len(data)} bytes")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def load(path: Optional[str] = None) -> tuple[Any, Any, Any, Any]:
    """(images f32 [n, side, side] in [0, 1], those to test on, labels i32 [n], those to test on)."""
    if path is None:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        x, y = x[order].reshape(-1, 8, 8), y[order]
        parts = (x[:1437], x[1437:], y[:1437], y[1437:])
    elif Path(path).is_dir():
        names = ("train-images-idx3", "t10k-images-idx3", "train-labels-idx1", "t10k-labels-idx1")
        parts = tuple(read_idx(Path(path), f"{n}-ubyte") for n in names)
    else:
        with np.load(path) as f:
            parts = tuple(f[n] for n in ("x_train", "x_test", "y_train", "y_test"))
    images, tests, *labels = parts
    top = np.float32(images.max())
    return images.astype(np.float32) / top, tests.astype(np.float32) / top, labels[0].astype(np.int32), labels[1].astype(np.int32)
