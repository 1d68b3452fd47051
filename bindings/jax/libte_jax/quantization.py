# SPDX-License-Identifier: Apache-2.0
"""Which recipe modules use: a stack per thread, read while a model is traced."""
from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

from libte.recipe import DelayedScaling, Recipe

from .functional import Fp8


class _Stack(threading.local):
    def __init__(self) -> None:
        self.recipes: list[Optional[Recipe]] = []


_stack = _Stack()


def current_recipe() -> Optional[Recipe]:
    """The recipe of the innermost autocast; None outside of one or where it is disabled."""
    return _stack.recipes[-1] if _stack.recipes else None


@contextmanager
def autocast(enabled: bool = True, recipe: Optional[Recipe] = None) -> Iterator[None]:
    """Modules called inside run their GEMMs by `recipe` (default: delayed scaling)."""
    if enabled:
        recipe = DelayedScaling() if recipe is None else recipe
        Fp8.of(recipe)  # refuses here what cannot be run
    _stack.recipes.append(recipe if enabled else None)
    try:
        yield
    finally:
        _stack.recipes.pop()


@contextmanager
def fp8_autocast(enabled: bool = False, fp8_recipe: Optional[Recipe] = None, **ignored: Any) -> Iterator[None]:
    """The older spelling of autocast."""
    if ignored:
        raise NotImplementedError(f"fp8_autocast: {', '.join(ignored)} is not supported")
    with autocast(enabled, fp8_recipe):
        yield
