# SPDX-License-Identifier: Apache-2.0
"""Shared by all Python tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def pytest_configure() -> None:
    """LIBTE_TEST_DEVICE=cuda: torch's tests make their tensors and modules there."""
    device = os.environ.get("LIBTE_TEST_DEVICE")
    if device:
        import torch

        torch.set_default_device(device)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1234)


@pytest.fixture(scope="session")
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script in a new interpreter; `environment` is added to this one's (None removes)."""

    def run(script: str, environment: dict[str, str | None] | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        env = dict(os.environ)
        for key, value in (environment or {}).items():
            env.pop(key, None)
            if value is not None:
                env[key] = value
        return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=timeout, check=False)

    return run


@pytest.fixture
def wide() -> Any:
    """A context in which JAX keeps f64."""
    import jax

    return (jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64)(True)
