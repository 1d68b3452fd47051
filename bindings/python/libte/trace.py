# SPDX-License-Identifier: Apache-2.0
"""What ran: ``with libte.trace() as t: ...`` collects one line an operator call, those that composites make included."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ._call import check
from ._load import ffi, lib

_LINE = re.compile(r"\s*nvte_(?P<op>\w+) on (?P<device>\S+)(?P<tensors>.*?)(?: -> (?P<implementation>\w+))?(?: \(refused: .*\))?$")
_FP8 = ("e4m3", "e5m2")


class Call(NamedTuple):
    """One call: operator, device, "x=bf16[4, 16] y=..." and the implementation that ran."""

    op: str
    device: str
    tensors: str
    implementation: str

    @property
    def fp8(self) -> bool:
        """Whether any tensor holds FP8 codes."""
        return any(f"={name}" in self.tensors for name in _FP8)


class trace:  # noqa: N801  a context manager named like a function
    """Records operator calls of the whole process while it is open. Not for timing: each call formats a line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._sink: Any = None
        self._before = "0"

    def __enter__(self) -> trace:
        def sink(level: int, message: Any, context: Any) -> None:
            if level == 0:
                self.lines.append(ffi.string(message).decode(errors="replace"))

        self._sink = ffi.callback("void(int32_t, const char *, void *)", sink)
        buffer = ffi.new("char[8]")
        check(lib.nvte_config_get(b"trace", buffer, 8, ffi.NULL))
        self._before = ffi.string(buffer).decode()
        check(lib.nvte_log_set(self._sink, ffi.NULL))
        check(lib.nvte_config_set(b"trace", b"1"))
        return self

    def __exit__(self, *exc: Any) -> None:
        check(lib.nvte_config_set(b"trace", self._before.encode()))
        check(lib.nvte_log_set(ffi.NULL, ffi.NULL))

    def calls(self) -> list[Call]:
        """The calls in order."""
        found = (_LINE.match(line) for line in self.lines)
        return [Call(m["op"], m["device"], m["tensors"].strip(), m["implementation"] or "") for m in found if m]

    def counts(self) -> dict[str, int]:
        """Calls by operator, kind of numbers and implementation: {"gemm[fp8]: cpu": 12, ...}."""
        out: dict[str, int] = {}
        for c in self.calls():
            key = f"{c.op}[{'fp8' if c.fp8 else 'wide'}]: {c.implementation}"
            out[key] = out.get(key, 0) + 1
        return out
