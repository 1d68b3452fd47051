# SPDX-License-Identifier: Apache-2.0
"""Ranges for profilers (NVTX, roctx): operator calls have theirs from the library, the adapters' functions from `ranged`, if NVTE_NVTX_ENABLED is 1
when they are imported. Off, a function is what it was."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import config
from ._call import check
from ._load import lib

enabled: bool = config.get("NVTE_NVTX_ENABLED")


def _use_wheel() -> None:
    """The nvidia-nvtx wheel's library is where no loader looks."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for found in sorted(Path(folder).glob("*/lib/libnvtx3interop.so*")):
            config.set("ranges.library", str(found))
            return


if enabled and not config.get("ranges.library"):
    _use_wheel()


def ranged(name: str, function: Callable[..., Any], unless: Callable[[], bool] = lambda: False) -> Callable[..., Any]:
    """`function` in a range of that name, except while `unless()` (a tracer compiles it)."""
    if not enabled:
        return function
    text = name.encode()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if unless():
            return function(*args, **kwargs)
        check(lib.nvte_range_push(text))
        try:
            return function(*args, **kwargs)
        finally:
            check(lib.nvte_range_pop())

    return call
