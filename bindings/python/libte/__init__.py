# SPDX-License-Identifier: Apache-2.0
"""libte: transformer operators behind a stable C ABI.

``libte.numpy`` runs every operator on arrays, ``libte.recipe`` holds the training recipes, ``libte.schema`` the operators as data,
``libte.config`` the library's settings. Importing libte opens libte.so and touches no device.
"""

from __future__ import annotations

from typing import Any

from . import _load, errors
from ._load import ffi, lib
from .errors import Error
from .trace import trace

__all__ = ["Error", "__version__", "config", "constants", "errors", "explain", "ffi", "implementations", "lib", "numpy", "operators", "recipe",
           "schema", "trace"]

_v = lib.nvte_version()
__version__ = f"{_v >> 16}.{_v >> 8 & 255}.{_v & 255}"
library = _load.path


def operators() -> list[str]:
    """Names of all operators."""
    from .schema import OPS  # type: ignore[attr-defined]

    return list(OPS)


def explain(op: str, *args: Any, **kwargs: Any) -> str:
    """Which implementation would run for ``libte.numpy.<op>(*args, **kwargs)``, and why each better one refuses."""
    from . import _arrays
    from ._generated import ops

    function = getattr(ops, op, None)
    if op not in ops.__all__ or function is None:
        raise errors.error(errors.NOT_FOUND, f"libte has no operator {op!r}; it has {', '.join(ops.__all__)}")
    _arrays.mode.explain = True
    try:
        return function(*args, **kwargs)
    finally:
        _arrays.mode.explain = False


def implementations(op: str, device_type: int = 1) -> list[str]:
    """Implementations of an operator on a DLPack device type (1 = CPU), best first."""
    from ._call import check

    count = ffi.new("size_t *", 32)
    names = ffi.new("const char *[32]")
    check(lib.nvte_op_implementations(op.encode(), device_type, names, count))
    return [ffi.string(names[i]).decode() for i in range(count[0])]


def __getattr__(name: str) -> Any:
    if name in ("config", "grads", "numpy", "recipe", "schema"):
        import importlib

        return importlib.import_module(f".{name}", __name__)
    if name == "constants":
        from .schema import CONSTANTS  # type: ignore[attr-defined]

        return CONSTANTS
    raise AttributeError(f"module 'libte' has no attribute {name!r}")
