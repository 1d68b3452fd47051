# SPDX-License-Identifier: Apache-2.0
"""Byte-level text for the examples: a file of yours, or the language reference that every CPython ships."""
from __future__ import annotations

import math
from pathlib import Path
from typing import Optional

import torch


def load_bytes(path: Optional[str] = None) -> torch.Tensor:
    """uint8 [n]: the file's bytes, or those of pydoc_data.topics (about 0.7 MB of English prose and code)."""
    if path:
        return torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8)
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[k] for k in sorted(topics))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def split(data: torch.Tensor, held_out: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    """(training bytes, held-out bytes): the last tenth is never trained on."""
    n = int(len(data) * (1 - held_out))
    return data[:n], data[n:]


def batch(data: torch.Tensor, size: int, length: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Random windows: (input [size, length], target [size, length]) int64."""
    start = torch.randint(0, len(data) - length - 1, (size,), generator=generator)
    windows = torch.stack([data[s : s + length + 1] for s in start]).long()
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def unigram_entropy(train: torch.Tensor, test: torch.Tensor) -> float:
    """Nats a byte of predicting `test` by the byte frequencies of `train` (add-one smoothed): what a model must beat."""
    counts = torch.bincount(train.long(), minlength=256).double() + 1
    log_p = (counts / counts.sum()).log()
    return float(-log_p[test.long()].mean()) if len(test) else math.nan
