# SPDX-License-Identifier: Apache-2.0
"""torch.compile: whole graphs, few compilations, the numbers of eager; and what a newcomer's script needs."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.testing

import libte_torch as te


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


def make(name: str) -> torch.nn.Module:
    return {
        "Linear": lambda: te.Linear(16, 24),
        "LayerNorm": lambda: te.LayerNorm(16),
        "RMSNorm": lambda: te.RMSNorm(16),
        "LayerNormLinear": lambda: te.LayerNormLinear(16, 24, normalization="RMSNorm"),
        "LayerNormMLP": lambda: te.LayerNormMLP(16, 32, activation="swiglu"),
        "TransformerLayer": lambda: te.TransformerLayer(16, 32, 2, hidden_dropout=0, attention_dropout=0),
    }[name]()


NAMES = ["Linear", "LayerNorm", "RMSNorm", "LayerNormLinear", "LayerNormMLP", "TransformerLayer"]


def gradients(m: torch.nn.Module, y: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(y.square().sum(), [x, *m.parameters()]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("recipe", ["none", "delayed", "current"])
def test_fullgraph_equals_eager(name: str, recipe: str) -> None:
    m = make(name)
    compiled = torch.compile(m, backend="aot_eager", fullgraph=True)
    r = {"none": None, "delayed": te.DelayedScaling(amax_history_len=4), "current": te.Float8CurrentScaling()}[recipe]
    x = torch.randn(5, 2, 16, requires_grad=True)

    def run(call: torch.nn.Module) -> list[torch.Tensor]:
        with te.autocast(enabled=r is not None, recipe=r):
            y = call(x)
        return [y, *gradients(m, y, x)]

    if hasattr(m, "fp8_state") and recipe == "delayed":
        run(m)
        saved = m.get_extra_state()
        want = run(m)
        after = m.get_extra_state()
        m.set_extra_state(saved)
        got = run(compiled)
        assert torch.equal(after, m.get_extra_state())  # amaxes and scales moved alike
    else:
        if recipe == "delayed":
            pytest.skip("state of several modules: the single modules show it")
        want, got = run(m), run(compiled)
    for a, b in zip(got, want):
        assert torch.equal(a, b)


def test_inductor() -> None:
    m = make("LayerNormMLP")
    compiled = torch.compile(m, fullgraph=True)
    x = torch.randn(4, 16, requires_grad=True)
    assert torch.equal(compiled(x), m(x))


def test_dynamic_shapes_compile_twice_at_most() -> None:
    m = make("LayerNormMLP")
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(m, backend=counter, fullgraph=True)
    for n in (3, 5, 8, 13, 21):
        x = torch.randn(n, 16, requires_grad=True)
        y = compiled(x)
        assert torch.equal(y, m(x))
        y.sum().backward()
    assert counter.frame_count <= 2


SCRIPT = """
import torch
import {te} as te
from {te} import recipe as unused
fp8_recipe = te.recipe.DelayedScaling(margin=0, fp8_format=te.recipe.Format.HYBRID, amax_history_len=16, amax_compute_algo="max")
model = te.TransformerLayer(64, 128, 4, layer_number=1, hidden_dropout=0.0, attention_dropout=0.0, fuse_qkv_params=True, device="cpu")
x = torch.randn(8, 2, 64, requires_grad=True)
with te.fp8_autocast(enabled=True, fp8_recipe=fp8_recipe):
    y = model(x, attention_mask=None)
y.sum().backward()
assert y.shape == x.shape and x.grad is not None
with te.fp8_model_init(enabled=False):
    linear = te.Linear(64, 64, bias=True, params_dtype=torch.bfloat16)
print("ok")
"""


def test_upstream_script_with_its_import_line_changed(python) -> None:  # type: ignore[no-untyped-def]
    """decisions.md 26."""
    done = python(SCRIPT.format(te="libte_torch"))
    assert done.returncode == 0 and done.stdout.strip() == "ok", done.stderr


def test_importing_touches_no_device(python) -> None:  # type: ignore[no-untyped-def]
    done = python("import torch, libte_torch, sys; assert not torch.cuda.is_initialized(); print('ok')")
    assert done.stdout.strip() == "ok", done.stderr


def test_import_order_does_not_matter(python) -> None:  # type: ignore[no-untyped-def]
    """I03."""
    body = "import libte.numpy as tn; import numpy as np; tn.quantize(np.ones((2, 2), np.float32)); import libte_torch as te; te.Linear(4, 4, device='cpu')(torch.ones(2, 4)); print('ok')"
    for first in ("import torch; import libte", "import libte; import torch"):
        done = python(f"{first}\n{body}")
        assert done.stdout.strip() == "ok", done.stderr


@pytest.mark.parametrize("make", [te.DelayedScaling, te.Float8CurrentScaling])
def test_a_recipe_made_in_a_compiled_function(make: type[te.Recipe]) -> None:
    """The settings behind its defaults are not traced: Dynamo in cffi's library ended the process."""
    m, x = te.Linear(16, 24), torch.randn(4, 16)

    def f(x: torch.Tensor) -> torch.Tensor:
        with te.autocast(recipe=make()):
            return m(x)

    f(x)  # the first call's scales are not those of the others
    got = torch.compile(f, backend="aot_eager")(x)
    assert torch.equal(got, f(x))
