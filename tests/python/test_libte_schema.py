# SPDX-License-Identifier: Apache-2.0
"""The operators as data: slots, shapes from expressions against nvte_infer, constants; and what the generator refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import libte.numpy as tn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libte import schema
from libte.schema import OPS

ROOT = Path(__file__).resolve().parents[2]


def test_slots_of_plain_quantized_and_list_fields():
    op = OPS["rmsnorm_forward"]
    assert [s.name for s in op.slots] == ["x", "gamma", "residual", "y", "y_columnwise", "y_scale_inv", "y_columnwise_scale_inv", "y_scale", "y_amax",
                                          "residual_out", "rstd"]
    by_name = {s.name: s for s in op.slots}
    assert by_name["y_scale"].direction == "in" and by_name["y_scale_inv"].direction == "out" and by_name["y_amax"].optional
    assert not by_name["x"].optional and by_name["gamma"].optional
    update = OPS["amax_and_scale_update"]
    assert [s.name for s in update.slots if s.is_list] == ["history", "scale", "new_history", "new_scale"]
    for op in OPS.values():
        names = [s.name for s in op.slots] + [s.name for s in op.scalars]
        assert len(names) == len(set(names)), op.name


def test_defaults_and_constants():
    scalars = {s.name: s for s in OPS["attention_forward"].scalars}
    assert scalars["window_left"].default == -1 and scalars["scale"].default == 1.0 and scalars["format"].default == schema.CONSTANTS["NVTE_FORMAT_BSHD"]
    assert {s.name: s for s in OPS["compute_scale"].scalars}["dtype"].default is None
    assert schema.CONSTANTS["NVTE_ERR_INTERNAL"] == 96 and schema.VERSION == (0, 1, 0)


# Operators whose outputs all have expressions, with inputs of a drawn size.
SMALL = st.integers(0, 5)
LEAD = st.lists(SMALL, min_size=0, max_size=3).map(tuple)


@settings(max_examples=40, deadline=None)
@given(lead=LEAD, h=st.integers(1, 9))
def test_shapes_equal_nvte_infer(lead, h):
    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    cases = {
        "rmsnorm_forward": {"x": zeros(*lead, h), "gamma": zeros(h)},
        "layernorm_backward": {"dy": zeros(*lead, h), "x": zeros(*lead, h), "gamma": zeros(h), "mu": zeros(*lead), "rstd": zeros(*lead)},
        "gated_activation_forward": {"x": zeros(*lead, 2 * h)},
        "dropout_forward": {"x": zeros(*lead, h), "rng_state": np.zeros(2, np.int64)},
        "transpose": {"x": zeros(*lead, h)},
        "linear_forward": {"x": zeros(*lead, h), "weight": zeros(3, h)},
    }
    for name, inputs in cases.items():
        op = OPS[name]
        want = schema.shapes(op, {k: v.shape for k, v in inputs.items()})
        asked = {o.name: True for o in op.outputs if not o.name.endswith("_quantized") and not (o.name == "residual_out")}
        scalars = {"flags": 0} if name != "dropout_forward" and any(s.name == "flags" for s in op.scalars) else {}
        got = getattr(tn.ops, name)(**inputs, **asked, **scalars)
        got = got._asdict() if hasattr(got, "_asdict") else {next(iter(asked)): got}
        for output in asked:
            assert got[output].shape == want[output], (name, output)


def test_expressions():
    assert schema.evaluate(("ceil", ("prod",), 8), {}, (3, 5)) == 2
    assert schema.evaluate(("-", ("*", 2, "H"), ("/", "K", 4)), {"H": 5, "K": 8}, ()) == 8
    op = OPS["gated_activation_forward"]
    assert schema.bind(op, {"x": (7, 10)}) == ({"H": 5}, (7,))
    assert schema.shapes(OPS["gemm"], {"a": (2, 3), "b": (3, 4)})["d"] is None


def test_generator_writes_only_what_changed(tmp_path):
    command = [sys.executable, str(ROOT / "tools" / "emit_python.py"), "--out", str(tmp_path)]
    subprocess.run(command, check=True)
    first = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    assert {"_cdef.py", "_schema.py", "_shim.py", "ops.py", "pyshim.c", "__init__.py"} <= set(first)
    subprocess.run(command, check=True)
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir() if p.name in first} == first
    for p in tmp_path.glob("*.py"):
        compile(p.read_text(), str(p), "exec")
        assert "enerated by tools/emit_python.py" in p.read_text()[:300]


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_entry_of_the_table_is_whole(name):
    op = OPS[name]
    assert op.help and op.outputs and op.fields
    for f in op.fields:
        assert f.help and f.dtypes and f.direction in ("in", "out", "inout")
        for d in f.dtypes:
            assert d == "any" or d in schema.DTYPES or (d.endswith(".dtype") and op.field(d[:-6]))
        assert (f.dims is None) == (f.dims_text == "[...]")
    for s in op.scalars:
        assert s.kind in ("f32", "i32", "u32", "i64", "size", "dtype") and s.help
