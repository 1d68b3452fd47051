# SPDX-License-Identifier: Apache-2.0
"""The gradient table: names that exist, and derivatives that equal finite differences when a driver follows the rows."""

from __future__ import annotations

from typing import Any

import libte.numpy as tn
import numpy as np
import pytest
import tolerance
from libte.grads import GRADIENTS, NOT_DIFFERENTIABLE, Gradient, saved
from libte.schema import OPS


def test_every_operator_is_in_one_place():
    backward = {s.op for g in GRADIENTS.values() for s in g.steps}
    for name in OPS:
        assert (name in GRADIENTS) + (name in NOT_DIFFERENTIABLE) == 1 or name in backward, name
    assert not set(GRADIENTS) & set(NOT_DIFFERENTIABLE) and all(NOT_DIFFERENTIABLE.values())


@pytest.mark.parametrize("row", GRADIENTS.values(), ids=GRADIENTS)
def test_names_exist(row):
    if row.forward not in OPS:
        pytest.fail(f"{row.forward} is no operator")
    forward = OPS[row.forward]
    ins = {f.name for f in forward.fields if not f.writes}
    every = {f.name for f in forward.fields}
    assert set(row.differentiable) <= ins | {"x,residual"}
    assert set(row.outputs) <= {f.name for f in forward.outputs}
    made = {f"grad:{o}" for o in row.outputs}
    for step in row.steps:
        op = OPS[step.op]
        for field, source in step.inputs.items():
            assert not op.field(field).direction == "out", (step.op, field)
            if source.startswith("grad:"):
                assert source in made, source
            else:
                assert set(source.split("|")) <= every, source
        for field, target in step.results.items():
            assert op.field(field).writes
            if target.startswith("grad:"):
                made.add(target)
            else:
                assert set(target.split(",")) <= ins, target
        for name, value in step.scalars.items():
            assert name in {s.name for s in op.scalars}
            assert isinstance(value, int) or value in {s.name for s in forward.scalars}
        assert set(step.when) <= {s.name for s in forward.scalars}
        required = {f.name for f in op.fields if not f.optional and not f.writes}
        assert required <= set(step.inputs), (step.op, required)


def follow(row: Gradient, inputs: dict[str, np.ndarray], scalars: dict[str, Any], weights: dict[str, np.ndarray] | None):
    """Forward, and with `weights` (gradients of outputs) backward: what an adapter does with a row."""
    forward = OPS[row.forward]
    read = {n for source in saved(row) for n in source.split("|")}
    wanted = {o.name: True for o in forward.outputs if o.name in {*read, *row.outputs} and not o.name.endswith("_quantized")
              and (o.name != "residual_out" or "residual" in inputs) and (o.name != "mu" or scalars.get("norm") != 1)}
    out = getattr(tn.ops, row.forward)(**inputs, **wanted, **scalars)
    values = out._asdict() if hasattr(out, "_asdict") else {next(iter(wanted)): out}
    values = {k: v for k, v in values.items() if v is not None}
    if weights is None:
        return values, {}
    numbers = {s.name: s.default for s in forward.scalars} | scalars
    known = {f"grad:{k}": v for k, v in weights.items()} | inputs | values
    gradients: dict[str, np.ndarray] = {}
    for step in row.steps:
        if any(numbers[k] != v for k, v in step.when.items()):
            continue
        op = OPS[step.op]
        arguments = {f: next((known[n] for n in source.split("|") if n in known), None) for f, source in step.inputs.items()}
        asked = {f: True for f, target in step.results.items() if target.startswith("grad:") or any(t in inputs for t in target.split(","))}
        passed = {s.name: numbers[s.name] for s in op.scalars if s.name in numbers and op.name != "gemm"}
        passed |= {k: numbers[v] if isinstance(v, str) else v for k, v in step.scalars.items()}
        got = getattr(tn.ops, step.op)(**{k: v for k, v in arguments.items() if v is not None}, **asked, **passed)
        results = got._asdict() if hasattr(got, "_asdict") else {next(iter(asked)): got}
        for field, target in step.results.items():
            if results.get(field) is None:
                continue
            for t in target.split(","):
                if t.startswith("grad:"):
                    known[t] = results[field]
                elif t in inputs:
                    gradients[t] = results[field]
    return values, gradients


def check(name: str, inputs: dict[str, np.ndarray], rng: np.random.Generator, **scalars: Any) -> None:
    """Each gradient of a random linear function of the outputs, along a random direction, against a central difference."""
    row = GRADIENTS[name]
    values, _ = follow(row, inputs, scalars, None)
    weights = {o: rng.standard_normal(values[o].shape).astype(np.float32) for o in row.outputs if o in values}
    _, gradients = follow(row, inputs, scalars, weights)
    differentiable = [i for i in row.differentiable for i in i.split(",") if i in inputs]
    assert set(gradients) == set(differentiable)
    h = tolerance.DIFFERENCE_STEP
    for i in differentiable:
        x = inputs[i]
        direction = rng.standard_normal(x.shape).astype(np.float32)
        direction /= np.linalg.norm(direction)

        def value(at: np.ndarray, i: str = i) -> float:
            out, _ = follow(row, inputs | {i: at}, scalars, None)
            return sum(float((weights[o].astype(np.float64) * out[o]).sum()) for o in weights)

        up, down = x + np.float32(h) * direction, x - np.float32(h) * direction
        numeric = (value(up) - value(down)) / float((up.astype(np.float64) - down).ravel() @ direction.ravel().astype(np.float64))
        analytic = float((gradients[i].astype(np.float64) * direction).sum())
        size = np.linalg.norm(gradients[i].astype(np.float64))
        assert gradients[i].shape == x.shape and size > 0, i
        assert abs(numeric - analytic) <= tolerance.DIFFERENCE_RELATIVE * size, (i, numeric, analytic, size)


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("flags", [0, 1])
def test_norms(rng, residual, flags):
    more = {"residual": draw(rng, 5, 24)} if residual else {}
    check("rmsnorm_forward", {"x": draw(rng, 5, 24), "gamma": draw(rng, 24)} | more, rng, flags=flags)
    check("layernorm_forward", {"x": draw(rng, 5, 24), "gamma": draw(rng, 24), "beta": draw(rng, 24)} | more, rng, flags=flags)


@pytest.mark.parametrize("activation", ["gelu", "gelu_erf", "qgelu", "srelu", "silu", "sigmoid"])
def test_activations(rng, activation):
    check("activation_forward", {"x": draw(rng, 4, 9)}, rng, activation=activation)
    check("gated_activation_forward", {"x": draw(rng, 4, 18)}, rng, activation=activation)


def test_clamped_swiglu(rng):
    check("gated_activation_forward", {"x": draw(rng, 4, 18)}, rng, activation="silu", flags=1)


def test_softmax(rng):
    check("softmax_forward", {"x": draw(rng, 2, 2, 4, 6)}, rng, scale=0.7, mask_kind=1)


def test_rope(rng):
    check("rope_forward", {"x": draw(rng, 2, 5, 3, 8), "freqs": draw(rng, 9, 4), "start_positions": np.array([0, 2], np.int32)}, rng, format=1)


def test_dropout(rng):
    check("dropout_forward", {"x": draw(rng, 6, 7), "rng_state": np.array([3, 1])}, rng, p=0.3)


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_cross_entropy(rng, reduction):
    inputs = {"logits": draw(rng, 5, 9), "target": np.array([0, 8, -100, 3, 2])}
    check("cross_entropy_forward", inputs, rng, reduction=reduction, label_smoothing=0.1)


def test_attention(rng):
    inputs = {"q": draw(rng, 2, 5, 4, 8), "k": draw(rng, 2, 6, 2, 8), "v": draw(rng, 2, 6, 2, 8)}
    check("attention_forward", inputs, rng, scale=0.35, mask_kind=1)
    check("attention_forward", inputs | {"bias": draw(rng, 1, 4, 5, 6)}, rng, scale=0.35)
    check("attention_forward", inputs | {"softmax_offset": draw(rng, 4)}, rng, scale=0.35, softmax_kind=2)
    check("attention_forward", inputs | {"rng_state": np.array([5, 0])}, rng, scale=0.35, dropout=0.2)


def test_linear(rng):
    check("linear_forward", {"x": draw(rng, 2, 5, 16), "weight": draw(rng, 12, 16), "bias": draw(rng, 12)}, rng)


@pytest.mark.parametrize("norm", [0, 1])
def test_norm_linear(rng, norm):
    inputs = {"x": draw(rng, 5, 16), "gamma": draw(rng, 16), "weight": draw(rng, 12, 16), "bias": draw(rng, 12)}
    check("norm_linear_forward", inputs | ({"beta": draw(rng, 16)} if norm == 0 else {}), rng, norm=norm)


@pytest.mark.parametrize("flags", [0, 2])
def test_gemm(rng, flags):
    check("gemm", {"a": draw(rng, 5, 16), "b": draw(rng, *((16, 7) if flags == 0 else (7, 16)))}, rng, flags=flags)


def test_transpose(rng):
    check("transpose", {"x": draw(rng, 5, 16)}, rng)
