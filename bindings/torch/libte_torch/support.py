# SPDX-License-Identifier: Apache-2.0
"""Which formats run on the current device, and why not. The CPU back end runs FP8 everywhere."""
from __future__ import annotations

from typing import Union

_Answer = Union[bool, tuple[bool, str]]


def _answer(ok: bool, reason: str, return_reason: bool) -> _Answer:
    return (ok, "" if ok else reason) if return_reason else ok


def is_fp8_available(return_reason: bool = False) -> _Answer:
    return _answer(True, "", return_reason)


def is_bf16_available(return_reason: bool = False) -> _Answer:
    return _answer(True, "", return_reason)


def is_mxfp8_available(return_reason: bool = False) -> _Answer:
    return _answer(False, "MXFP8 is not built in libte yet", return_reason)


def is_fp8_block_scaling_available(return_reason: bool = False) -> _Answer:
    return _answer(False, "FP8 block scaling is not built in libte yet", return_reason)


def is_nvfp4_available(return_reason: bool = False) -> _Answer:
    return _answer(False, "NVFP4 is not built in libte yet", return_reason)
