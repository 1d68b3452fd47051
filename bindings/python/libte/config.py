# SPDX-License-Identifier: Apache-2.0
"""The library's configuration table: ``get``, ``set``, ``environment``, ``table``. Values are text in the library and typed here."""

from __future__ import annotations

from typing import NamedTuple

from ._call import check
from ._load import ffi, lib

__all__ = ["Entry", "environment", "get", "set", "table"]


class Entry(NamedTuple):
    key: str
    environment: str
    type: str
    default: str
    choices: str
    help: str


def _text(p: object) -> str:
    return ffi.string(p).decode() if p != ffi.NULL else ""


def table() -> list[Entry]:
    """Every key with its environment variable, type, default, choices and help."""
    rows = (lib.nvte_config_at(i) for i in range(lib.nvte_config_count()))
    return [Entry(*map(_text, (r.key, r.environment, r.type, r.default_value, r.choices, r.help))) for r in rows]


def _read(key: str) -> str:
    length = ffi.new("size_t *")
    buf = ffi.new("char[256]")
    check(lib.nvte_config_get(key.encode(), buf, 256, length))
    if length[0] >= 256:
        buf = ffi.new("char[]", length[0] + 1)
        check(lib.nvte_config_get(key.encode(), buf, length[0] + 1, length))
    return _text(buf)


def _typed(text: str, kind: str) -> str | int | bool:
    if kind == "int":
        return int(text)
    if kind == "bool":
        return text.lower() in ("1", "true", "on", "yes")
    return text


def get(key: str) -> str | int | bool:
    """The value in force. KeyError's place is taken by UnsupportedError (NVTE_ERR_NOT_FOUND); a bad environment value is a
    ValueError that names the variable and what it takes."""
    text = _read(key)
    return _typed(text, next((e.type for e in table() if e.key == key), "string"))


def set(key: str, value: str | int | bool) -> None:  # noqa: A001
    """Sets a key for the process; it overrides the environment."""
    text = str(int(value)) if isinstance(value, bool) else str(value)
    check(lib.nvte_config_set(key.encode(), text.encode()))


def environment(variable: str) -> str | int | bool:
    """The value in force of the key that an environment variable feeds, by the variable's name."""
    for e in table():
        if e.environment == variable:
            return _typed(_read(e.key), e.type)
    raise KeyError(f"libte has no environment variable {variable}")
