# SPDX-License-Identifier: Apache-2.0
"""Finds and opens libte.so. Importing it touches no device: plug-ins are opened by the first call for their device."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
LIBRARY, SHIM = "libte.so.0", "libte_pyshim.so"


def candidates(name: str = LIBRARY) -> list[Path]:
    """Where `name` is looked for. LIBTE_LIBRARY (a file) is the only place when it is set; the shim lies beside it."""
    override = os.environ.get("LIBTE_LIBRARY")
    if override:
        path = Path(override)
        return [path if name == LIBRARY else path.parent / name]
    return [_HERE / "lib" / name]


def find(name: str = LIBRARY) -> Path:
    tried = candidates(name)
    for path in tried:
        if path.is_file():
            return path
    raise ImportError(f"libte: {name} not found; searched: {', '.join(map(str, tried))}. "
                      "In a checkout run `make build`; LIBTE_LIBRARY names a library file elsewhere.", name="libte")


def _open() -> tuple[Any, Any, Path]:
    path = find()
    try:
        from ._generated import _cdef
    except ImportError as e:
        raise ImportError(f"libte: {_HERE / '_generated' / '_cdef.py'} is missing or broken ({e}); run `make build`",
                          name="libte") from e
    ffi = _cdef.ffi
    try:
        lib = ffi.dlopen(str(path), ffi.RTLD_NOW | ffi.RTLD_LOCAL)
    except OSError as e:
        raise ImportError(f"libte: {path} cannot be loaded: {e}", name="libte", path=str(path)) from e
    from ._generated._schema import VERSION

    have = lib.nvte_version()
    if (have >> 16, have >> 8 & 255) != VERSION[:2]:
        raise ImportError(f"libte: {path} is version {have >> 16}.{have >> 8 & 255}, but this package speaks "
                          f"{VERSION[0]}.{VERSION[1]}", name="libte", path=str(path))
    return ffi, lib, path


ffi, lib, path = _open()


def open_shim() -> ctypes.PyDLL:
    """The framework shim. It asks for libte.so.0, which is in the process already, so both share one library."""
    return ctypes.PyDLL(str(find(SHIM)), mode=os.RTLD_NOW | os.RTLD_LOCAL)
