# SPDX-License-Identifier: Apache-2.0
"""Exceptions by status range; each carries ``.status`` (the number) and ``.name`` (``NVTE_ERR_...``)."""

from __future__ import annotations

NAMES = {1: "NVTE_ERR_INVALID_ARGUMENT", 2: "NVTE_ERR_VERSION", 3: "NVTE_ERR_CONFIG", 4: "NVTE_ERR_WORKSPACE",
         32: "NVTE_ERR_UNSUPPORTED", 33: "NVTE_ERR_NOT_FOUND", 64: "NVTE_ERR_OUT_OF_MEMORY", 65: "NVTE_ERR_DEVICE",
         66: "NVTE_ERR_IO", 96: "NVTE_ERR_INTERNAL"}
INVALID_ARGUMENT, VERSION, CONFIG, WORKSPACE, UNSUPPORTED, NOT_FOUND, OUT_OF_MEMORY = 1, 2, 3, 4, 32, 33, 64


class Error(Exception):
    """Whatever libte refuses. Also a ValueError, NotImplementedError, RuntimeError or MemoryError, by range."""

    status = 96

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status

    @property
    def name(self) -> str:
        return NAMES.get(self.status, "NVTE_ERR_UNKNOWN")


class InvalidArgumentError(Error, ValueError):
    """1-31: the caller can fix it."""

    status = INVALID_ARGUMENT


class UnsupportedError(Error, NotImplementedError):
    """32-63: legal, but not possible here."""

    status = UNSUPPORTED


class OutOfMemoryError(Error, MemoryError):
    status = OUT_OF_MEMORY


class DeviceError(Error, RuntimeError):
    """64-95: the machine."""

    status = 65


class InternalError(Error, RuntimeError):
    """96 and above: a fault of libte."""

    status = 96


def error(status: int, message: str) -> Error:
    """The exception of a status."""
    kind: type[Error]
    if 1 <= status <= 31:
        kind = InvalidArgumentError
    elif 32 <= status <= 63:
        kind = UnsupportedError
    elif status == OUT_OF_MEMORY:
        kind = OutOfMemoryError
    elif 65 <= status <= 95:
        kind = DeviceError
    else:
        kind = InternalError
    return kind(message or NAMES.get(status, f"status {status}"), status)
