# SPDX-License-Identifier: Apache-2.0
"""Registers the one handler of libte_xla.so with XLA, for the CPU and for GPUs."""
from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import jax
from libte import _load

TARGET = "libte"
_PLATFORMS = {"cpu": "libte_xla_cpu", "CUDA": "libte_xla_cuda", "ROCM": "libte_xla_rocm"}


def runtime_version() -> tuple[int, int]:
    """The FFI version of the jaxlib in use, from the header that it ships."""
    text = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    major, minor = (re.search(rf"#define XLA_FFI_API_{n} (\d+)", text) for n in ("MAJOR", "MINOR"))
    if major is None or minor is None:
        raise ImportError(f"libte_jax: jaxlib's FFI header in {jax.ffi.include_dir()} states no version")
    return int(major[1]), int(minor[1])


def check_version(built: tuple[int, int], runtime: tuple[int, int]) -> None:
    """XLA would refuse a handler of a newer FFI only when a back end starts, and take that back end down."""
    if built[0] != runtime[0] or built[1] > runtime[1]:
        raise ImportError(f"libte_jax: libte_xla.so speaks XLA FFI {built[0]}.{built[1]}, but jax {jax.__version__} takes "
                          f"{runtime[0]}.{runtime[1]} or older: install a newer jax, or build libte against jaxlib 0.5.3's headers")


def register() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(_load.find("libte_xla.so")), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    check_version((lib.libte_xla_api_major(), lib.libte_xla_api_minor()), runtime_version())
    for platform, symbol in _PLATFORMS.items():
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(getattr(lib, symbol)), platform=platform)
    return lib


library = register()
