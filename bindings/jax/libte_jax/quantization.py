# SPDX-License-Identifier: Apache-2.0
"""Which recipe modules use: a stack per thread, read while a model is traced."""
from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Optional

import jax
import numpy as np
from libte.recipe import DelayedScaling, Recipe

from .functional import Fp8


class _Stack(threading.local):
    def __init__(self) -> None:
        self.recipes: list[Optional[Recipe]] = []


_stack = _Stack()
# Makes the recipe part of jit's cache key. Without it (an older jax) a function that was traced outside of autocast stays so inside.
_traced_under = jax.make_user_context(default_value=None) if hasattr(jax, "make_user_context") else lambda recipe: nullcontext()


def current_recipe() -> Optional[Recipe]:
    """The recipe of the innermost autocast; None outside of one or where it is disabled."""
    return _stack.recipes[-1] if _stack.recipes else None


@contextmanager
def autocast(enabled: bool = True, recipe: Optional[Recipe] = None) -> Iterator[None]:
    """Modules called inside run their GEMMs by `recipe` (default: delayed scaling). It counts where a function is traced; where jax has
    make_user_context, one that was jitted elsewhere is traced again."""
    if not isinstance(enabled, (bool, np.bool_)):
        raise TypeError(f"autocast: enabled must be True or False, got {enabled!r}; the recipe is a keyword")
    if enabled:
        recipe = DelayedScaling() if recipe is None else recipe
    fp8 = Fp8.of(recipe) if enabled else None  # refuses here what cannot be run
    _stack.recipes.append(recipe if enabled else None)
    try:
        with _traced_under(fp8):
            yield
    finally:
        _stack.recipes.pop()


@contextmanager
def fp8_autocast(enabled: bool = False, fp8_recipe: Optional[Recipe] = None, **ignored: Any) -> Iterator[None]:
    """The older spelling of autocast."""
    if ignored:
        raise NotImplementedError(f"fp8_autocast takes enabled and fp8_recipe, not {', '.join(ignored)}")
    with autocast(enabled, fp8_recipe):
        yield
