# SPDX-License-Identifier: Apache-2.0
"""The framework shim on torch tensors: values, what it refuses, threads, workspace, and the path without an exchange table."""

from __future__ import annotations

import threading

import libte.numpy as tn
import numpy as np
import pytest
from libte import errors
from libte._shim import Context, Shim, _type_offset, exchange_table
from tolerance import assert_close

torch = pytest.importorskip("torch")


def describe(t):
    code = {torch.float32: (2, 32), torch.bfloat16: (4, 16), torch.int64: (0, 64), torch.float8_e4m3fn: (10, 8)}[t.dtype]
    return t.data_ptr(), tuple(t.shape), t.stride(), code, (1, 0)


TABLE = Shim(torch.Tensor, describe=describe)
PREPARED = Shim(torch.Tensor, describe=describe, use_table=False)
BOTH = pytest.mark.parametrize("shim", [TABLE, PREPARED], ids=["table", "prepared"])


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(6, 16)


@BOTH
def test_values(shim, x):
    gamma, y, rstd = torch.nn.Parameter(torch.rand(16)), torch.empty_like(x), torch.empty(6)
    shim.rmsnorm_forward(x, gamma, None, y, None, None, None, None, None, None, rstd, 1e-5, 0)
    want = tn.rmsnorm_forward(x.numpy(), gamma.detach().numpy(), rstd=True)
    assert np.array_equal(y.numpy(), want.y) and np.array_equal(rstd.numpy(), want.rstd)
    z = torch.empty(3, 8)
    shim.rmsnorm_forward(x[::2, 4:12], None, y=z)  # keywords and defaults; strides are honoured, or refused
    assert np.array_equal(z.numpy(), tn.rmsnorm_forward(x.numpy()[::2, 4:12].copy()))
    with pytest.raises(ValueError, match="stride"):
        shim.rmsnorm_forward(x.t(), None, y=torch.empty(16, 6))


@BOTH
def test_scaling_parts(shim, x):
    data, wide = torch.empty(6, 16, dtype=torch.float8_e4m3fn), torch.empty(16, 6, dtype=torch.float8_e4m3fn)
    inverse, scale, amax = torch.zeros(1), torch.tensor([4.0]), torch.zeros(1)
    shim.quantize(x, data, wide, inverse, None, scale, amax)
    q = tn.quantize(x.numpy(), "e4m3", 4.0)
    assert np.array_equal(data.view(torch.uint8).numpy(), q.data.view(np.uint8)) and inverse == 0.25 and amax == x.abs().max()
    assert torch.equal(wide.view(torch.uint8), data.view(torch.uint8).t())
    alone = torch.zeros_like(wide)
    shim.quantize(x, None, alone, inverse, None, scale, None)
    assert torch.equal(alone.view(torch.uint8), wide.view(torch.uint8))
    back = torch.empty(6, 16)
    shim.dequantize(data, None, inverse, None, None, None, back)
    assert np.array_equal(back.numpy(), q.dequantize())
    shim.dequantize(None, wide, inverse, None, None, None, back.zero_())
    assert np.array_equal(back.numpy(), q.dequantize())


@BOTH
def test_amax_accumulates_in_a_variant(shim, x):
    data, inverse, amax = torch.empty(6, 16, dtype=torch.float8_e4m3fn), torch.zeros(1), torch.tensor([1000.0])
    shim.variant(accumulate_amax=True).quantize(x, data, None, inverse, None, None, amax)
    assert amax == 1000
    shim.quantize(x, data, None, inverse, None, None, amax)
    assert amax == x.abs().max()


@BOTH
def test_lists_and_dtype_scalars(shim):
    history, scale = [torch.tensor([[4.0], [1.0]]), torch.tensor([[2.0, 3.0]])], [torch.ones(1), torch.ones(2)]
    dtype = 10 | 8 << 8 | 1 << 16
    shim.amax_and_scale_update(history, scale, history, scale, None, 2, dtype, 0, 0)
    assert history[0].tolist() == [[0.0], [4.0]] and scale[0].item() == 112 and scale[1].tolist() == [224, np.float32(448) / np.float32(3)]
    with pytest.raises((TypeError, ValueError)):
        shim.amax_and_scale_update(history, scale, history, scale, None, 3, dtype, 0, 0)


@BOTH
@pytest.mark.parametrize("bad", [3, 0, [1.0], "x", np.ones((6, 16), np.float32), object()])
def test_things_that_are_no_tensors(shim, x, bad):
    with pytest.raises(TypeError, match="nvte_rmsnorm_forward: x must be a torch.Tensor, got"):
        shim.rmsnorm_forward(bad, None, y=x)
    with pytest.raises(TypeError, match="gamma must be a torch.Tensor"):
        shim.rmsnorm_forward(x, bad, y=x)


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, t):
        return torch.Tensor._make_wrapper_subclass(cls, t.shape, dtype=t.dtype)

    @classmethod
    def __torch_dispatch__(cls, *args, **kwargs):
        raise NotImplementedError


@pytest.mark.filterwarnings("ignore")
def test_tensors_without_memory_are_refused(x):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(6, 16)
    y = torch.zeros_like(x)
    for t in (fake, x.to("meta"), x.to_sparse(), Wrapper(x)):
        with pytest.raises(ValueError, match="nvte_rmsnorm_forward: x"):
            TABLE.rmsnorm_forward(t, None, y=y)
        with pytest.raises(ValueError, match="nvte_rmsnorm_forward: y"):
            TABLE.rmsnorm_forward(x, None, y=t)
    assert (y == 0).all()


@BOTH
def test_errors_of_the_library(shim, x):
    with pytest.raises(errors.InvalidArgumentError, match=r"gamma must be \[H\]"):
        shim.rmsnorm_forward(x, torch.ones(3), y=x)
    with pytest.raises(errors.InvalidArgumentError, match="y is missing"):
        shim.rmsnorm_forward(x, None, None, None)
    with pytest.raises(ValueError, match="flags is out of range, got -1"):
        shim.rmsnorm_forward(x, None, y=x, flags=-1)
    with pytest.raises(TypeError, match="epsilon must be a number"):
        shim.rmsnorm_forward(x, None, y=x, epsilon="a")
    with pytest.raises(NotImplementedError, match="quantum"):
        shim.variant(implementation="quantum").rmsnorm_forward(x, None, y=x)
    with pytest.raises(AttributeError, match="nonsense"):
        shim.nonsense(x)


@BOTH
def test_empty_and_requires_grad(shim):
    e = torch.empty(0, 16)
    shim.rmsnorm_forward(e, torch.ones(16), y=torch.empty(0, 16))
    t = torch.ones(2, 16, requires_grad=True)
    y = torch.empty(2, 16)
    shim.rmsnorm_forward(t, None, y=y, epsilon=0.0)
    assert (y == 1).all()


@BOTH
def test_workspace_is_found_by_itself(shim):
    """A composite needs memory; on the CPU the shim has a thread's own."""
    torch.manual_seed(1)
    x, w, y = torch.randn(40, 64), torch.randn(48, 64), torch.empty(40, 48)
    xq, wq = torch.empty(40, 64, dtype=torch.float8_e4m3fn), torch.empty(48, 64, dtype=torch.float8_e4m3fn)
    parts = [torch.ones(1) for _ in range(6)]
    current = 1
    shim.linear_forward(x, w, None, xq, None, parts[0], None, parts[1], parts[2], wq, None, parts[3], None, parts[4], parts[5], y, current)
    assert_close(y.numpy(), lambda a, b: a @ b.T, (xq.float() * parts[0]).numpy(), (wq.float() * parts[3]).numpy())
    assert parts[2] == x.abs().max()


@BOTH
def test_threads_run_side_by_side(shim):
    """The GIL is released and descriptors are a call's own: values stay right under contention."""
    inputs = [torch.randn(n, 32) for n in (1, 3, 50)]
    want = [tn.rmsnorm_forward(t.numpy()) for t in inputs]
    wrong = []

    def work(seed: int) -> None:
        for i in range(300):
            k = (seed + i) % 3
            y = torch.empty_like(inputs[k])
            shim.rmsnorm_forward(inputs[k], None, y=y)
            if not np.array_equal(y.numpy(), want[k]):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_table_and_layout():
    assert exchange_table(torch.Tensor) and exchange_table(int) is None
    assert TABLE.context.api and not PREPARED.context.api
    assert _type_offset() >= 0 and isinstance(TABLE.context, Context)
    with pytest.raises(NotImplementedError, match="no DLPack exchange table"):
        Shim(int)


def test_without_the_type_offset(x):
    """Where an object's layout is not known, PyObject_IsInstance is asked."""
    shim = TABLE.variant()
    shim.context.type_offset = -1
    y = torch.empty_like(x)
    shim.rmsnorm_forward(torch.nn.Parameter(x), None, y=y)
    assert np.array_equal(y.numpy(), tn.rmsnorm_forward(x.numpy()))
    with pytest.raises(TypeError, match="must be a torch.Tensor, got int"):
        shim.rmsnorm_forward(3, None, y=y)
