# SPDX-License-Identifier: Apache-2.0
"""Finding and opening libte.so, and what a process may do with it: import order, fork, exit, plain ctypes."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import libte
import pytest
from libte import _load

OK = "print('fine')"
CALL = """
import numpy as np, libte.numpy as tn
x = np.arange(12, dtype=np.float32).reshape(3, 4)
y = tn.rmsnorm_forward(x, np.ones(4, np.float32))
assert y.shape == (3, 4) and np.isfinite(y).all()
"""
HAS_TORCH = importlib.util.find_spec("torch") is not None


def copy_of_package(folder: Path, with_library: bool) -> dict[str, str | None]:
    """A copy of the package in `folder`; the environment in which Python imports that one."""
    ignore = shutil.ignore_patterns("__pycache__", *([] if with_library else ["lib"]))
    shutil.copytree(Path(libte.__file__).parent, folder / "libte", ignore=ignore)
    return {"PYTHONPATH": str(folder), "LIBTE_LIBRARY": None}


def test_i12_missing_library_names_the_searched_paths(python, tmp_path):
    environment = copy_of_package(tmp_path, with_library=False)
    run = python("import libte", environment)
    assert run.returncode == 1
    assert "ImportError" in run.stderr.splitlines()[-1]
    assert str(tmp_path / "libte" / "lib" / "libte.so.0") in run.stderr
    assert "StopIteration" not in run.stderr


def test_i12_override_is_the_only_place(python, tmp_path):
    run = python("import libte", {"LIBTE_LIBRARY": str(tmp_path / "no.so")})
    last = run.stderr.splitlines()[-1]
    assert "ImportError" in last and str(tmp_path / "no.so") in last and "lib/libte.so.0" not in last


def test_override_is_loaded(python, tmp_path):
    shutil.copy(_load.path, tmp_path / "libte.so.0")
    run = python(f"import libte; print(libte.library); {CALL.strip().splitlines()[0]}", {"LIBTE_LIBRARY": str(tmp_path / "libte.so.0")})
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(tmp_path / "libte.so.0")


def test_a_file_that_is_no_library(python, tmp_path):
    (tmp_path / "x.so").write_text("not an ELF file")
    run = python("import libte", {"LIBTE_LIBRARY": str(tmp_path / "x.so")})
    last = run.stderr.splitlines()[-1]
    assert "ImportError" in last and "x.so" in last and "cannot be loaded" in last


def test_another_version_is_refused(python, tmp_path):
    source = tmp_path / "v.c"
    source.write_text("unsigned nvte_version(void) { return 9 << 16; }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libte.so.0", source], check=True)
    run = python("import libte", {"LIBTE_LIBRARY": str(tmp_path / "libte.so.0")})
    last = run.stderr.splitlines()[-1]
    assert "ImportError" in last and "version 9.0" in last and "0.1" in last


def test_package_moves(python, tmp_path):
    """Nothing in the package knows where it was built."""
    environment = copy_of_package(tmp_path, with_library=True)
    run = python(CALL + f"import libte; assert libte.__file__.startswith({str(tmp_path)!r}); {OK}", environment)
    assert run.stdout == "fine\n", run.stderr


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
@pytest.mark.parametrize("order", ["import torch; import libte", "import libte; import torch"])
def test_i03_import_order_with_torch(python, order):
    run = python(f"{order}\n{CALL}\nimport torch; assert torch.ones(3).sum() == 3; {OK}")
    assert run.stdout == "fine\n", run.stderr


def test_i03_nothing_leaks_into_the_global_scope(python):
    script = """
import ctypes, libte
everything = ctypes.CDLL(None)
for name in ("nvte_version", "nvte_rmsnorm_forward"):
    try:
        getattr(everything, name)
    except AttributeError:
        continue
    raise SystemExit(f"{name} is visible through RTLD_DEFAULT")
"""
    run = python(script + OK)
    assert run.stdout == "fine\n", run.stderr


def test_importing_touches_no_device(python):
    """No plug-in, driver or thread pool before the first call; a plug-in that a path offers is not opened either."""
    script = """
import os, libte
maps = open("/proc/self/maps").read()
for word in ("libte_cuda", "libte_hip", "libcuda.so", "libamdhip64", "torch", "jaxlib"):
    assert word not in maps, word
"""
    run = python(script + OK, {"LIBTE_BACKEND_PATH": "/nonexistent"})
    assert run.stdout == "fine\n", run.stderr


@pytest.mark.parametrize("used_before", [False, True])
def test_i06_fork_then_use_in_the_child(python, used_before):
    """The pool is the parent's; a child makes its own, whether or not the parent had one."""
    script = f"""
import os, numpy as np, libte.numpy as tn
x = np.ones((512, 1024), np.float32); g = np.ones(1024, np.float32)
if {used_before}:
    want = tn.rmsnorm_forward(x, g)
pid = os.fork()
if pid == 0:
    y = tn.rmsnorm_forward(x, g)
    os._exit(0 if abs(float(y.min()) - float(y.max())) == 0 else 7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
tn.rmsnorm_forward(x, g)
"""
    run = python(script + OK)
    assert run.stdout == "fine\n", run.stderr


def test_i11_use_until_the_very_end(python):
    """In atexit handlers, in a daemon thread that is still calling, and by objects that die with the interpreter."""
    script = f"""
import atexit, threading, time
{CALL}
def work():
    tn.rmsnorm_forward(np.ones((256, 512), np.float32), np.ones(512, np.float32))
atexit.register(work)
def forever():
    while True:
        work()
threading.Thread(target=forever, daemon=True).start()
class Last:
    def __del__(self):
        tn.rmsnorm_forward(x, np.ones(4, np.float32))
last = Last()
kept = tn.from_dlpack(x)
time.sleep(0.2)
"""
    run = python(script + OK)
    assert run.returncode == 0 and run.stdout == "fine\n", (run.returncode, run.stderr)


def test_plain_ctypes_script(tmp_path):
    """The installed library from Python's ctypes alone: no libte package, no compiler."""
    script = f"""
import ctypes as c
lib = c.CDLL({str(_load.path)!r})
class Device(c.Structure): _fields_ = [("type", c.c_int32), ("id", c.c_int32)]
class DType(c.Structure): _fields_ = [("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16)]
class DLTensor(c.Structure): _fields_ = [("data", c.c_void_p), ("device", Device), ("ndim", c.c_int32), ("dtype", DType),
    ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]
class Tensor(c.Structure): _fields_ = [("struct_size", c.c_size_t), ("data", DLTensor), ("columnwise", DLTensor), ("scale_inv", DLTensor),
    ("columnwise_scale_inv", DLTensor), ("scale", DLTensor), ("amax", DLTensor), ("scaling", c.c_int32), ("flags", c.c_uint32)]
class Args(c.Structure): _fields_ = [("struct_size", c.c_size_t)] + [(n, c.POINTER(Tensor)) for n in
    ("x", "gamma", "residual", "y", "residual_out", "rstd")] + [("epsilon", c.c_float), ("flags", c.c_uint32)]
def tensor(values, *shape):
    t = Tensor(struct_size=c.sizeof(Tensor))
    t.data = DLTensor(c.cast(values, c.c_void_p), Device(1, 0), len(shape), DType(2, 32, 1), (c.c_int64 * len(shape))(*shape), None, 0)
    return t
x, g, y = (c.c_float * 4)(3, 4, 0, 0), (c.c_float * 2)(1, 2), (c.c_float * 4)()
tx, tg, ty = tensor(x, 2, 2), tensor(g, 2), tensor(y, 2, 2)
a = Args(struct_size=c.sizeof(Args), x=c.pointer(tx), gamma=c.pointer(tg), y=c.pointer(ty))
lib.nvte_last_error.restype = c.c_char_p
assert lib.nvte_rmsnorm_forward(None, c.byref(a)) == 0, lib.nvte_last_error()
root = 12.5 ** 0.5
assert y[0] == c.c_float(3 / root).value or round(y[0] - 3 / root, 6) == 0
assert round(y[1] - 8 / root, 6) == 0 and y[2] == 0
a.gamma = None
tg2 = tensor(g, 1); a.gamma = c.pointer(tg2)
assert lib.nvte_rmsnorm_forward(None, c.byref(a)) == 1 and b"gamma" in lib.nvte_last_error()
print("fine")
"""
    run = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, cwd=tmp_path, env={"PATH": os.environ["PATH"]})
    assert run.stdout == "fine\n", run.stderr


def test_the_shim_shares_the_library():
    """The shim's libte is the one that cffi opened, so errors and settings are one."""
    _load.open_shim()
    files = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libte.so" in line}
    assert files == {str(_load.path)}


def test_c_layout_equals_the_declared_one():
    """cffi's struct offsets (ours, from the headers' text) against the library's own table (the compiler's)."""
    ffi, lib = libte.ffi, libte.lib
    assert ffi.sizeof("DLTensor") == 48 and ffi.sizeof("DLDataType") == 4 and ctypes.sizeof(ctypes.c_void_p) == 8
    seen = 0
    for i in range(lib.nvte_op_count()):
        op = lib.nvte_op_at(i)
        kind = f"nvte_{ffi.string(op.name).decode()}_args"
        assert op.args_size == ffi.sizeof(kind)
        for k in range(op.n_fields):
            field = op.fields[k]
            name = ffi.string(field.name).decode()
            assert field.offset == ffi.offsetof(kind, name), (kind, name)
            seen += 1
    assert seen > 20
