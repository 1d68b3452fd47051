# SPDX-License-Identifier: Apache-2.0
"""DLPack as Python sees it: views without copies, deleters called once, strides, versions and flags honoured or refused."""

from __future__ import annotations

import ctypes
import gc
import importlib.util

import libte
import libte.numpy as tn
import ml_dtypes
import numpy as np
import pytest

ffi, lib = libte.ffi, libte.lib
_api = ctypes.pythonapi
_api.PyCapsule_New.restype, _api.PyCapsule_New.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
NAMES = {True: ctypes.c_char_p(b"dltensor_versioned"), False: ctypes.c_char_p(b"dltensor")}
READ_ONLY = 1


KEEP: list = []  # what was exported outlives its consumer


class Producer:
    """A hand-made exporter: what it hands out, and how often its deleter ran."""

    def __init__(self, array, *, versioned=True, strides=..., major=1, flags=0, null=False, dtype=None):
        self.array = array
        self.versioned = versioned
        self.deleted = 0
        self.keep: list = []
        KEEP.append(self.keep)
        self.strides = tuple(s // array.itemsize for s in array.strides) if strides is ... else strides
        self.major, self.flags, self.null, self.dtype = major, flags, null, dtype

    def capsule(self):
        kind = "DLManagedTensorVersioned" if self.versioned else "DLManagedTensor"
        m = ffi.new(f"{kind} *")
        a = self.array
        shape = ffi.new("int64_t[]", list(a.shape) or [0])
        d = m.dl_tensor
        d.data = ffi.NULL if self.null else ffi.cast("void *", a.__array_interface__["data"][0])
        d.device.device_type, d.ndim, d.shape = 1, a.ndim, shape
        code, bits = self.dtype or {"f": (2, 8 * a.itemsize), "i": (0, 8 * a.itemsize)}[a.dtype.kind]
        d.dtype.code, d.dtype.bits, d.dtype.lanes = code, bits, 1
        if self.strides is not None:
            strides = ffi.new("int64_t[]", list(self.strides) or [0])
            self.keep.append(strides)
            d.strides = strides

        def deleter(_):
            self.deleted += 1

        callback = ffi.callback(f"void({kind} *)", deleter)
        m.deleter = callback
        if self.versioned:
            m.version.major, m.version.minor, m.flags = self.major, 0, self.flags
        self.keep += [m, shape, callback]
        return _api.PyCapsule_New(int(ffi.cast("uintptr_t", m)), NAMES[self.versioned], None)

    def __dlpack__(self, *, max_version=None, **_):
        return self.capsule()

    def __dlpack_device__(self):
        return (1, 0)


class Old(Producer):
    """A producer of before DLPack 1.0, whose __dlpack__ knows no max_version."""

    def __init__(self, array, **kwargs):
        super().__init__(array, versioned=False, **kwargs)

    def __dlpack__(self, stream=None):
        return self.capsule()


@pytest.fixture
def x() -> np.ndarray:
    return np.arange(12, dtype=np.float32).reshape(3, 4) - 5


@pytest.mark.parametrize("kind", [Producer, Old])
def test_view_without_copy_deleter_once(kind, x):
    p = kind(x)
    y = tn.from_dlpack(p)
    assert y.ctypes.data == x.ctypes.data and np.array_equal(y, x) and p.deleted == 0
    part = y[1:]
    del y
    gc.collect()
    assert p.deleted == 0
    del part
    gc.collect()
    assert p.deleted == 1


def test_operators_take_dlpack_objects(x):
    p = Producer(x)
    assert np.array_equal(tn.rmsnorm_forward(p), tn.rmsnorm_forward(x))
    gc.collect()
    assert p.deleted == 1


def test_deleter_runs_when_the_operator_refuses(x):
    p = Producer(x)
    with pytest.raises(ValueError):
        tn.rmsnorm_forward(p, np.ones(3, np.float32))
    gc.collect()
    assert p.deleted == 1


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_d01_torch_exports():
    import torch

    with pytest.raises(BufferError):
        tn.rmsnorm_forward(torch.ones(2, 4, requires_grad=True))
    with pytest.raises((BufferError, RuntimeError)):
        tn.rmsnorm_forward(torch.ones(2, 4, dtype=torch.complex64).conj())
    codes = torch.ones(2, 4).to(torch.float8_e4m3fn)
    assert tn.from_dlpack(codes).dtype == ml_dtypes.float8_e4m3fn
    t = torch.arange(8, dtype=torch.bfloat16).reshape(2, 4)
    assert np.array_equal(tn.from_dlpack(t).astype(np.float32), t.float().numpy())
    assert np.array_equal(tn.rmsnorm_forward(t.t()), tn.rmsnorm_forward(tn.from_dlpack(t).T.copy()))


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_jax_arrays(x):
    import jax.numpy as jnp

    assert np.array_equal(tn.rmsnorm_forward(jnp.asarray(x)), tn.rmsnorm_forward(x))


@pytest.mark.parametrize(("shape", "strides"), [((1, 5), (77, 1)), ((1, 1), (5, 3)), ((5, 1), (1, 9))])
def test_d02_strides_of_size_one_dimensions(shape, strides):
    a = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1
    y = tn.from_dlpack(Producer(a, strides=strides))
    assert np.array_equal(y, a)
    assert np.array_equal(tn.rmsnorm_forward(Producer(a, strides=strides)), tn.rmsnorm_forward(a))
    out = np.lib.stride_tricks.as_strided(np.empty_like(a), shape, [s * 4 for s in strides])
    if shape != (5, 1):
        assert np.array_equal(tn.rmsnorm_forward(a, y=out), tn.rmsnorm_forward(a))


def test_d03_strides(x):
    null = tn.from_dlpack(Producer(x, strides=None))
    assert np.array_equal(null, x)
    flat = np.arange(4, dtype=np.float32)
    reverse = Producer(flat, strides=(-1,))
    with pytest.raises(ValueError, match="stride"):
        tn.from_dlpack(reverse)
    gc.collect()
    assert reverse.deleted == 1
    stretched = Producer(np.lib.stride_tricks.as_strided(flat, (3, 4), (0, 4)))
    assert np.array_equal(tn.from_dlpack(stretched), np.tile(flat, (3, 1)))
    transposed = Producer(x.T)
    assert np.array_equal(tn.from_dlpack(transposed), x.T)
    assert np.array_equal(tn.rmsnorm_forward(transposed), tn.rmsnorm_forward(np.ascontiguousarray(x.T)))


def test_d03_negative_strides_of_numpy_inputs_are_copied(x):
    assert np.array_equal(tn.rmsnorm_forward(x[::-1, ::-1]), tn.rmsnorm_forward(x[::-1, ::-1].copy()))


@pytest.mark.parametrize("out", ["stride 0", "negative", "gap"])
def test_d03_outputs_must_have_their_layout(x, out):
    base = np.zeros((3, 8), np.float32)
    y = {"stride 0": np.lib.stride_tricks.as_strided(base, (3, 4), (0, 4)), "negative": base[:, 3::-1], "gap": base[:, ::2]}[out]
    with pytest.raises(ValueError, match="nvte_rmsnorm_forward: output y must be"):
        tn.rmsnorm_forward(x, y=y)
    assert (base == 0).all()


def test_d04_empty_with_null_data():
    p = Producer(np.empty((0, 3), np.float32), null=True)
    y = tn.from_dlpack(p)
    assert y.shape == (0, 3)
    assert tn.rmsnorm_forward(Producer(np.empty((0, 3), np.float32), null=True)).shape == (0, 3)
    gc.collect()
    assert p.deleted == 1


def test_d04_memory_at_odd_addresses():
    memory = np.zeros(64 + 4 * 40, np.uint8)
    start = (-memory.ctypes.data) % 64 + 4
    a = memory[start:start + 4 * 33].view(np.float32)
    assert a.ctypes.data % 64 == 4
    a[:] = np.arange(33)
    assert np.array_equal(tn.rmsnorm_forward(a.reshape(3, 11)), tn.rmsnorm_forward(a.reshape(3, 11).copy()))
    unaligned = memory[start + 1:start + 1 + 4 * 8].view(np.float32).reshape(2, 4)
    unaligned[:] = 3
    assert np.array_equal(tn.rmsnorm_forward(unaligned), tn.rmsnorm_forward(np.full((2, 4), 3, np.float32)))
    with pytest.raises(ValueError, match="aligned"):
        tn.rmsnorm_forward(np.ones((2, 4), np.float32), y=unaligned)


@pytest.mark.parametrize("versioned", [True, False])
def test_d05_capsule_consumed_twice(x, versioned):
    p = Producer(x, versioned=versioned)
    capsule = p.capsule()
    y = tn.from_dlpack(capsule)
    with pytest.raises(ValueError, match="used"):
        tn.from_dlpack(capsule)
    assert p.deleted == 0
    del y
    gc.collect()
    assert p.deleted == 1
    del capsule
    gc.collect()
    assert p.deleted == 1


def test_d06_another_major_version(x):
    p = Producer(x, major=99)
    with pytest.raises(ValueError, match="99") as e:
        tn.from_dlpack(p)
    assert e.value.name == "NVTE_ERR_VERSION"
    gc.collect()
    assert p.deleted == 1


def test_d07_read_only(x):
    y = tn.from_dlpack(Producer(x, flags=READ_ONLY))
    assert not y.flags.writeable
    before = x.copy()
    with pytest.raises(ValueError, match="nvte_rmsnorm_forward: y is written but flagged NVTE_TENSOR_READ_ONLY"):
        tn.rmsnorm_forward(np.ones((3, 4), np.float32), y=Producer(x, flags=READ_ONLY))
    frozen = np.zeros((3, 4), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="nvte_rmsnorm_forward: y is written but flagged NVTE_TENSOR_READ_ONLY"):
        tn.rmsnorm_forward(x, y=frozen)
    assert np.array_equal(x, before) and (frozen == 0).all()
    assert np.array_equal(tn.rmsnorm_forward(Producer(x, flags=READ_ONLY)), tn.rmsnorm_forward(x))


def test_other_dtypes_and_devices_are_refused(x):
    p = Producer(x, dtype=(5, 32))
    with pytest.raises(ValueError, match="dtype"):
        tn.from_dlpack(p)
    gc.collect()
    assert p.deleted == 1
    with pytest.raises(TypeError, match="__dlpack__"):
        tn.from_dlpack(3)


def test_export_and_import_again(x):
    """nvte_tensor_to_dlpack: strides are written, release runs once."""
    released = []
    release = ffi.callback("void(void *)", lambda _: released.append(1))
    part = ffi.new("DLTensor *")
    shape = ffi.new("int64_t[]", [3, 4])
    part.data, part.ndim, part.shape = ffi.cast("void *", x.ctypes.data), 2, shape
    part.device.device_type, part.dtype.code, part.dtype.bits, part.dtype.lanes = 1, 2, 32, 1
    out = ffi.new("DLManagedTensorVersioned **")
    assert lib.nvte_tensor_to_dlpack_versioned(part, 0, release, ffi.NULL, out) == 0
    assert [out[0].dl_tensor.strides[i] for i in range(2)] == [4, 1] and out[0].version.major == 1
    y = tn.from_dlpack(_api.PyCapsule_New(int(ffi.cast("uintptr_t", out[0])), NAMES[True], None))
    assert np.array_equal(y, x) and not released
    del y
    gc.collect()
    assert released == [1]
