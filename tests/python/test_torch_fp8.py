# SPDX-License-Identifier: Apache-2.0
"""autocast, recipes and FP8 state of the torch adapter."""

from __future__ import annotations

import _thread
import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
import twins
from tolerance import FP8_DISTANCE, FP8_MAX_DIFFERENCE, distance
from twins import numpy

import libte
import libte_torch as te
from libte_torch import quantization

DELAYED = dict(amax_history_len=4)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def recipes() -> list[te.Recipe]:
    return [te.DelayedScaling(**DELAYED), te.DelayedScaling(amax_compute_algo="most_recent", fp8_format=te.Format.E4M3), te.Float8CurrentScaling(),
            te.Float8CurrentScaling(use_power_2_scales=True)]


def modules(dtype: torch.dtype = torch.float32) -> list[torch.nn.Module]:
    kw = dict(params_dtype=dtype)
    return [te.Linear(32, 48, **kw), te.LayerNormLinear(32, 48, normalization="RMSNorm", **kw), te.LayerNormMLP(32, 64, activation="swiglu", **kw),
            te.LayerNormMLP(32, 64, **kw), te.TransformerLayer(32, 64, 4, hidden_dropout=0, attention_dropout=0, **kw)]


@pytest.mark.parametrize("recipe", recipes(), ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_is_near_the_wide_module(recipe: te.Recipe, index: int, dtype: torch.dtype) -> None:
    m = modules(dtype)[index]
    x = torch.randn(6, 3, 32).to(dtype).requires_grad_()
    wide = m(x)
    dy = torch.randn(wide.shape).to(dtype)
    want = torch.autograd.grad(wide, [x, *m.parameters()], dy)
    for _ in range(3):  # delayed scaling needs a step or two
        with te.autocast(recipe=recipe):
            y = m(x)
        got = torch.autograd.grad(y, [x, *m.parameters()], dy)
    assert y.dtype is dtype and not torch.equal(y, wide)
    assert distance(numpy(y), numpy(wide)) < FP8_DISTANCE
    for (name, _), g, w in zip([("x", None), *m.named_parameters()], got, want):
        if name.endswith("key_bias"):
            continue  # vanishes by cancellation: only noise is left of it
        assert distance(numpy(g), numpy(w)) < 2 * FP8_DISTANCE, name


def test_what_runs_in_fp8() -> None:
    m = te.LayerNormMLP(32, 64)
    x = torch.randn(4, 32, requires_grad=True)
    with libte.trace() as t:
        with te.autocast(recipe=te.DelayedScaling(**DELAYED)):
            y = m(x)
        y.sum().backward()
    calls = t.calls()
    gemms = [c for c in calls if c.op == "gemm"]
    assert len(gemms) == 6 and all(c.fp8 for c in gemms)
    assert [("e5m2" in c.tensors) for c in gemms] == [False, False, True, True, True, True]  # HYBRID
    assert any(c.op == "activation_forward" and "y=e4m3" in c.tensors for c in calls)  # the activation writes codes
    assert any(c.op == "activation_backward" and "dx=e5m2" in c.tensors for c in calls)
    with libte.trace() as t:
        m(x).sum().backward()
    assert not any(c.fp8 for c in t.calls())


def step(m: torch.nn.Module, x: torch.Tensor, recipe: te.Recipe) -> torch.Tensor:
    with te.autocast(recipe=recipe):
        y = m(x)
    y.sum().backward()
    return y


def test_scales_that_products_read_lie_at_multiples_of_16_bytes() -> None:
    m = te.LayerNormMLP(32, 64)
    with te.autocast(recipe=te.DelayedScaling(**DELAYED)):
        m(torch.randn(4, 32))
    inverses = [inverse.data_ptr() for _, _, inverse in m.fp8_state.slots[1].views]
    assert len(inverses) == 2 and not any(p % 16 for p in inverses)


def forward_slots(m: torch.nn.Module):  # type: ignore[no-untyped-def]
    return m.fp8_state.slots[0]


def test_q05_unused_module_keeps_its_state() -> None:
    recipe = te.DelayedScaling(**DELAYED)
    a, b = te.Linear(8, 8), te.Linear(8, 8)
    x = torch.randn(4, 8)
    step(b, x, recipe)
    before = forward_slots(b).scale.clone(), forward_slots(b).history.clone()
    for _ in range(3):
        step(a, x, recipe)
    assert torch.equal(forward_slots(b).scale, before[0]) and torch.equal(forward_slots(b).history, before[1])
    step(b, x, recipe)
    assert not torch.equal(forward_slots(b).history, before[1])


def test_q06_history_lengths() -> None:
    m = te.Linear(8, 8)
    one = te.DelayedScaling(amax_history_len=1)
    for a in (1.0, 2.0, 4.0, 8.0):
        step(m, torch.full((2, 8), a), one)
        assert forward_slots(m).scale[0] == 448 / a
    long, m = te.DelayedScaling(amax_history_len=1024), te.Linear(8, 8)
    for a in range(1, 21):
        step(m, torch.full((2, 8), float(a)), long)
    step(m, torch.full((2, 8), 21.0), te.DelayedScaling(amax_history_len=16))
    assert forward_slots(m).history[:, 0].tolist() == [0.0, *(float(v) for v in range(7, 22))]


def test_q07_calibration_records_magnitudes() -> None:
    m = te.Linear(2, 2, bias=False)
    recipe = te.DelayedScaling(**DELAYED)
    wide = m(torch.tensor([[-5.0, -1.0]]))
    with te.autocast(enabled=False, calibrating=True, recipe=recipe):
        y = m(torch.tensor([[-5.0, -1.0]]))
    assert torch.equal(y, wide)
    assert forward_slots(m).history[-1, 0] == 5 and forward_slots(m).scale[0] == torch.tensor(448.0) / 5
    for n in (te.LayerNormLinear(8, 8), te.LayerNormMLP(8, 8)):
        with te.autocast(enabled=False, calibrating=True, recipe=recipe):
            n(torch.randn(3, 8))
        assert (forward_slots(n).history[-1] > 0).all()


def test_q13_weight_cache_over_microbatches() -> None:
    m, recipe = te.Linear(768, 768, params_dtype=torch.bfloat16), te.Float8CurrentScaling()
    x = torch.randn(128, 768).bfloat16()  # more numbers than a composite quantises by itself
    with torch.no_grad(), te.autocast(recipe=recipe):
        want = m(x)
        cached = [m(x, is_first_microbatch=i == 0) for i in range(5)]
    for y in cached:
        assert (y - want).abs().max() < FP8_MAX_DIFFERENCE
    with libte.trace() as t, torch.no_grad(), te.autocast(recipe=recipe):
        m(x, is_first_microbatch=False)
    assert sum(c.op == "quantize" for c in t.calls()) == 1  # the input only
    with torch.no_grad():
        m.weight.mul_(2)
        with te.autocast(recipe=recipe):
            assert (m(x, is_first_microbatch=True) - m.bias - 2 * (want - m.bias)).abs().max() < 4 * FP8_MAX_DIFFERENCE  # renewed


def test_x01_no_grad_first_microbatch_under_checkpoint() -> None:
    recipe = te.Float8CurrentScaling()
    x = torch.randn(16, 32)

    def run(checkpointed: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        m = te.Linear(32, 32)
        for i in range(2):
            with te.autocast(recipe=recipe):
                leaf = x.clone().requires_grad_()
                y = te.checkpoint(m, leaf, is_first_microbatch=i == 0) if checkpointed else m(leaf, is_first_microbatch=i == 0)
            y.sum().backward()
        return [m.weight.grad, leaf.grad]  # type: ignore[list-item]

    assert all(torch.equal(a, b) for a, b in zip(run(False), run(True)))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_x02_x03_q24_checkpoint_leaves_the_same_state(inside: bool, nested: bool) -> None:
    """Recomputation uses the first forward's scales (Q24), advances nothing (X02), and autocast may be inside (X03)."""
    recipe = te.DelayedScaling(**DELAYED)

    def run(checkpointed: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        net = torch.nn.ModuleList([te.Linear(32, 32), te.LayerNormMLP(32, 64, activation="swiglu")])

        def body(x: torch.Tensor) -> torch.Tensor:
            return net[1](te.checkpoint(net[0], x) if nested and checkpointed else net[0](x))

        def body_with_autocast(x: torch.Tensor) -> torch.Tensor:
            with te.autocast(recipe=recipe):
                return body(x)

        out = []
        for i in range(3):
            x = torch.randn(8, 32, generator=twins.seeded(i)).mul_(2.0**i).requires_grad_()
            if inside:
                y = te.checkpoint(body_with_autocast, x) if checkpointed else body_with_autocast(x)
            else:
                with te.autocast(recipe=recipe):
                    y = te.checkpoint(body, x) if checkpointed else body(x)
            y.sum().backward()
            out += [y.detach(), x.grad]  # type: ignore[list-item]
        for m in net:
            m.get_extra_state()  # finishes pending updates
            out += [t.clone() for s in m.fp8_state.slots for t in (s.scale, s.history)]
        return out + [p.grad for p in net.parameters()]  # type: ignore[misc]

    for i, (a, b) in enumerate(zip(run(False), run(True))):
        assert torch.equal(a, b), i


def test_checkpointed_mlp_module() -> None:
    torch.manual_seed(2)
    a = te.LayerNormMLP(16, 32)
    b = te.LayerNormMLP(16, 32, checkpoint=True)
    b.load_state_dict(a.state_dict())
    x = torch.randn(4, 16, requires_grad=True)
    for recipe in (None, te.DelayedScaling(**DELAYED)):
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            ya, yb = a(x), b(x)
        assert torch.equal(ya, yb)
        assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (ya, yb)))


def test_x04_frozen_module_in_eval() -> None:
    m, recipe = te.Linear(16, 16).eval(), te.DelayedScaling(**DELAYED)
    for p in m.parameters():
        p.requires_grad_(False)
    x = torch.randn(4, 16, requires_grad=True)
    y = step(m, x, recipe)
    assert x.grad is not None and distance(numpy(x.grad), numpy((torch.ones_like(y) @ m.weight).detach())) < FP8_DISTANCE


def test_x05_module_without_backward_keeps_its_backward_scale() -> None:
    recipe = te.DelayedScaling(**DELAYED)
    a, b = te.Linear(8, 8), te.Linear(8, 8)
    for _ in range(3):
        with te.autocast(recipe=recipe):
            with torch.no_grad():
                h = a(torch.randn(4, 8))
            y = b(h)
        y.sum().backward()
    a.get_extra_state(), b.get_extra_state()
    assert (a.fp8_state.slots[1].scale == 1).all() and (a.fp8_state.slots[1].history == 0).all()
    assert (b.fp8_state.slots[1].scale != 1).all()


def test_x11_module_first_run_outside_autocast() -> None:
    m = te.Linear(8, 8)
    x = torch.randn(2, 8, requires_grad=True)
    te.checkpoint(m, x).sum().backward()
    with te.autocast(recipe=te.DelayedScaling(**DELAYED)):
        y = te.checkpoint(m, x)
    y.sum().backward()
    assert torch.isfinite(x.grad).all()  # type: ignore[arg-type]


def test_autocast_nests() -> None:
    m = te.Linear(16, 16)
    x = torch.randn(4, 16)
    wide = m(x)
    with te.autocast():
        assert not torch.equal(m(x), wide)
        with te.autocast(enabled=False):
            assert torch.equal(m(x), wide)
        with te.fp8_autocast(fp8_recipe=te.Float8CurrentScaling()):
            assert not torch.equal(m(x), wide)
    assert torch.equal(m(x), wide)  # X06: high precision again outside


def test_scales_by_callables() -> None:
    seen = []

    def amax(history: torch.Tensor) -> torch.Tensor:
        seen.append(history.clone())
        return history.amax(0) * 2

    m = te.Linear(8, 8)
    recipe = te.DelayedScaling(amax_history_len=4, amax_compute_algo=amax, scaling_factor_compute_algo=lambda a, s, top, r: top / a / 4)
    step(m, torch.full((2, 8), 3.0), recipe)
    assert forward_slots(m).scale[0] == 448.0 / torch.tensor(6.0) / 4 and seen


def test_a_recipe_is_not_taken_for_enabled() -> None:
    for wrong in (te.Float8CurrentScaling(), "yes", None):
        with pytest.raises(TypeError, match="enabled must be True or False"):
            te.autocast(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="enabled must be True or False"):
            te.fp8_autocast(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="calibrating must be"):
        te.autocast(True, te.DelayedScaling())  # type: ignore[arg-type]


def test_what_a_callable_may_return() -> None:
    x = torch.full((2, 8), 3.0)
    for returned, rule in ((lambda h: h.amax(0, keepdim=True), r"amax_compute_algo: must return a tensor \[2\], got \[1, 2\]"), (lambda h: 3.0, "got float")):
        m = te.Linear(8, 8)
        with pytest.raises(ValueError, match=rule):
            step(m, x, te.DelayedScaling(amax_history_len=4, amax_compute_algo=returned))
    # a scale that is no scale is not taken
    for bad in (float("nan"), float("inf"), 0.0, -1.0):
        m = te.Linear(8, 8)
        step(m, x, te.DelayedScaling(amax_history_len=4, scaling_factor_compute_algo=lambda a, s, top, r, bad=bad: torch.full_like(a, bad)))
        assert (forward_slots(m).scale == 1).all() and (forward_slots(m).history[-1] == torch.tensor([3.0, m.weight.detach().abs().max()])).all()


def test_q02_zero_and_non_finite_inputs() -> None:
    for recipe in (te.DelayedScaling(**DELAYED), te.Float8CurrentScaling()):
        m = te.Linear(8, 8, bias=False)
        y = step(m, torch.zeros(2, 8), recipe)
        assert (y == 0).all()
    m, recipe = te.Linear(8, 8), te.DelayedScaling(**DELAYED)
    step(m, torch.full((2, 8), 3.0), recipe)
    before = forward_slots(m).scale[0].clone()
    step(m, torch.full((2, 8), torch.inf), recipe)
    assert forward_slots(m).scale[0] == before


def test_g10_wgrad_accumulates_into_main_grad() -> None:
    for recipe in (None, te.Float8CurrentScaling()):
        m = te.Linear(16, 8, bias=False, params_dtype=torch.bfloat16, fuse_wgrad_accumulation=True)
        m.weight.main_grad = torch.ones(8, 16)
        x = torch.randn(32, 16).bfloat16()
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            y = m(x)
        y.sum().backward()
        assert m.weight.grad is None and m.weight.main_grad.dtype is torch.float32
        assert distance(numpy(m.weight.main_grad), numpy(1 + x.float().sum(0).expand(8, 16))) < FP8_DISTANCE


def test_quantized_model_init() -> None:
    """Q14: gradients use the weight as the optimiser left it."""
    with te.quantized_model_init(recipe=te.Float8CurrentScaling(), preserve_high_precision_init_val=True):
        m = te.Linear(32, 16)
    assert isinstance(m.weight, te.QuantizedTensor) and isinstance(m.weight, torch.nn.Parameter)
    high = m.weight.get_high_precision_init_val()
    assert distance(numpy(m.weight.dequantize()), numpy(high)) < FP8_DISTANCE
    x = torch.randn(8, 32, requires_grad=True)
    for _ in range(2):
        with te.autocast(recipe=te.Float8CurrentScaling()):
            y = m(x)
        (dx,) = torch.autograd.grad(y.sum(), x, retain_graph=False)
        assert distance(numpy(dx), numpy(torch.ones(8, 16) @ m.weight.dequantize())) < FP8_DISTANCE
        with torch.no_grad():
            m.weight.mul_(2)
    assert distance(numpy(m.weight.dequantize()), 4 * numpy(high)) < FP8_DISTANCE
    y = m(x)  # outside autocast: the dequantised weight
    y.sum().backward()
    assert m.weight.grad.shape == (16, 32)


def test_fp8_training_learns_like_wide_training() -> None:
    def run(recipe: te.Recipe | None) -> list[float]:
        torch.manual_seed(3)
        net = torch.nn.Sequential(te.LayerNormMLP(16, 32, activation="swiglu"), te.Linear(16, 4))
        x, target = torch.randn(64, 16), torch.randint(0, 4, (64,))
        optimizer = torch.optim.AdamW(net.parameters(), lr=2e-2)
        losses = []
        for _ in range(25):
            with te.autocast(enabled=recipe is not None, recipe=recipe):
                loss = te.cross_entropy(net(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    wide = run(None)
    for recipe in recipes():
        losses = run(recipe)
        assert losses != wide and losses[-1] < 0.6 * losses[0] and losses[-1] < 1.5 * wide[-1] + 0.05


def test_a25_memory_does_not_grow() -> None:
    m, recipe = te.TransformerLayer(32, 64, 4), te.DelayedScaling(**DELAYED)

    def tensors() -> int:
        gc.collect()
        return sum(isinstance(o, torch.Tensor) for o in gc.get_objects())

    x = torch.randn(4, 2, 32, requires_grad=True)
    for _ in range(2):
        step(m, x, recipe)
    before = tensors()
    for _ in range(20):
        step(m, x, recipe)
    assert tensors() <= before  # fewer where garbage of earlier tests went meanwhile


def test_unbuilt_recipes_are_named() -> None:
    for name in ("MXFP8BlockScaling", "Float8BlockScaling", "NVFP4BlockScaling"):
        with pytest.raises(NotImplementedError, match=name):
            getattr(te.recipe, name)()
    with pytest.raises(NotImplementedError, match="fp8_dpa"):
        te.autocast(recipe=te.DelayedScaling(fp8_dpa=True))


def test_empty_batch_in_fp8() -> None:
    for recipe in recipes():
        m = te.Linear(16, 8)
        x = torch.randn(0, 16, requires_grad=True)
        y = step(m, x, recipe)
        assert y.shape == (0, 8) and x.grad.shape == (0, 16) and (m.weight.grad == 0).all() and (m.bias.grad == 0).all()  # type: ignore[union-attr]


def test_non_contiguous_in_fp8() -> None:
    m, recipe = te.Linear(16, 8), te.Float8CurrentScaling()
    x = torch.randn(5, 3, 16)
    with te.autocast(recipe=recipe):
        assert torch.equal(m(x.transpose(0, 1)), m(x.transpose(0, 1).contiguous()))




@pytest.mark.parametrize("recipe", [te.DelayedScaling(amax_history_len=4), te.Float8CurrentScaling()], ids=["delayed", "current"])
def test_the_usual_call_of_linear_is_the_general_one(recipe: te.Recipe) -> None:
    """Its short way from the second call on gives the bits of the long one, and is left whenever anything is different."""
    torch.manual_seed(0)
    for bias, shape, dtype in ((True, (6, 32), torch.bfloat16), (False, (2, 3, 32), torch.float32)):
        short = te.Linear(32, 48, bias=bias, params_dtype=dtype)
        long = copy.deepcopy(short)
        assert short.fp8_state.usual is None

        def run(m: te.Linear, x: torch.Tensor, first: bool | None = None) -> list[torch.Tensor]:
            x = x.clone().requires_grad_(m.weight.requires_grad)
            if m is long:
                m.fp8_state.usual = None
            with te.autocast(recipe=recipe):
                y = m(x, is_first_microbatch=first)
            wanted = [t for t in (x, *m.parameters()) if t.requires_grad]
            return [y.detach(), *(torch.autograd.grad(y, wanted, torch.ones_like(y)) if wanted else ())]

        def same(*args: object) -> None:
            for a, b in zip(run(short, *args), run(long, *args), strict=True):  # type: ignore[arg-type]
                assert torch.equal(a, b) and a.dtype == b.dtype

        for i in range(4):
            same(torch.randn(shape, dtype=dtype) * (i + 1))
        assert short.fp8_state.usual is not None
        same(torch.randn(4, 8, dtype=dtype).repeat(1, 4).t().contiguous().t().reshape(4, 32))
        same(torch.randn(5, 64, dtype=dtype)[:, ::2])
        same(torch.randn(0, 32, dtype=dtype))
        for first in (True, False, None):
            same(torch.randn(shape, dtype=dtype), first)
        with torch.no_grad():
            short.weight.mul_(2), long.weight.mul_(2)
        same(torch.randn(shape, dtype=dtype))
        short.weight.requires_grad_(False), long.weight.requires_grad_(False)
        same(torch.randn(shape, dtype=dtype))
        short.weight.requires_grad_(True), long.weight.requires_grad_(True)
        for m in (short, long):
            m.weight = torch.nn.Parameter(torch.ones(48, 32, dtype=dtype))
        same(torch.randn(shape, dtype=dtype))
        for m in (short, long):
            m.to(torch.float16)
        same(torch.randn(shape, dtype=torch.float16))
        with pytest.raises(ValueError, match="inp must be"), te.autocast(recipe=recipe):
            short(torch.randn(2, 31, dtype=torch.float16))
        y = short(torch.randn(shape, dtype=torch.float16))  # outside autocast nothing is quantised
        assert y.grad_fn is not None and "Fp8" not in y.grad_fn.name()
        x = torch.randn(shape, dtype=torch.float16, requires_grad=True)
        with te.autocast(recipe=recipe):
            y = short(x)
        assert "Fp8Linear" in y.grad_fn.name()
        with pytest.raises(RuntimeError, match="once differentiable"):
            torch.autograd.grad(y.sum(), x, create_graph=True)


RECIPES = pytest.mark.parametrize("make", [lambda: te.DelayedScaling(amax_history_len=4), te.Float8CurrentScaling], ids=["delayed", "current"])


@RECIPES
def test_torchs_checkpoint_recomputes_the_first_call(make: Callable[[], te.Recipe]) -> None:
    """It compares what forward and recomputation save, so te.Linear's first call is no other function than the second."""
    recipe = make()
    for m in (te.Linear(32, 48), te.LayerNormLinear(32, 48)):
        x = torch.randn(8, 32, requires_grad=True)
        with te.autocast(recipe=recipe):
            for _ in range(2):
                torch.utils.checkpoint.checkpoint(m, x, use_reentrant=False).sum().backward()


def test_torchs_checkpoint_recomputes_in_a_thread_of_autograds() -> None:
    """As on GPUs, whose backward passes run in threads that Python did not start."""
    m, x, recipe, errors, done = te.Linear(32, 48), torch.randn(8, 32, requires_grad=True), te.Float8CurrentScaling(), [], threading.Event()

    def backward() -> None:
        try:
            assert not quantization.current().enabled  # no backward pass yet
            y.sum().backward()
        except Exception as e:
            errors.append(e)
        done.set()

    with te.autocast(recipe=recipe):
        y = torch.utils.checkpoint.checkpoint(m, x, use_reentrant=False)
        _thread.start_new_thread(backward, ())
        assert done.wait(60) and not errors and x.grad is not None


@RECIPES
def test_the_usual_call_keeps_no_weight_and_sees_what_replaces_it(make: Callable[[], te.Recipe]) -> None:
    m, x, recipe = te.Linear(32, 48, bias=False), torch.randn(8, 32), make()

    def run() -> torch.Tensor:
        with te.autocast(recipe=recipe):
            return m(x).detach()

    want = run()
    old = weakref.ref(m.weight)
    m.weight = torch.nn.Parameter(torch.zeros(48, 32))
    assert old() is None and not run().any()
    with te.quantized_model_init(recipe=recipe):
        codes = te.Linear(32, 48, bias=False)
    torch.utils.swap_tensors(m.weight, codes.weight)  # the same object, of another class
    assert (run() - x @ m.weight.dequantize().t()).norm() < 0.1 * want.norm()
    with pytest.raises(ValueError, match="inp must be"), te.autocast(recipe=recipe):
        m(torch.tensor(1.0))


@RECIPES
def test_a_recipe_changed_in_place(make: Callable[[], te.Recipe]) -> None:
    recipe = make()
    recipe.fp8_format = te.Format.E4M3
    for m in (te.Linear(32, 48), te.LayerNormLinear(32, 48)):
        x = torch.randn(8, 32, requires_grad=True)
        with te.autocast(enabled=False):
            (want,) = torch.autograd.grad(m(x).sum(), x)
        for fp8_format, backward in ((te.Format.E4M3, torch.float8_e4m3fn), (te.Format.HYBRID, torch.float8_e5m2)):
            recipe.fp8_format = fp8_format
            for _ in range(3):
                with te.autocast(recipe=recipe):
                    y = m(x)
                (got,) = torch.autograd.grad(y.sum(), x)
            assert m.fp8_state.known[1].backward is backward and (got - want).norm() < 0.1 * want.norm()
        if isinstance(recipe, te.DelayedScaling):
            recipe.amax_history_len = 7
            with te.autocast(recipe=recipe):
                m(x)
            assert m.fp8_state.slots is not None and m.fp8_state.slots[0].history.shape[0] == 7
            recipe.amax_history_len = 4


@RECIPES
def test_training_after_inference_mode(make: Callable[[], te.Recipe]) -> None:
    """States and codes made in inference mode would be tensors that autograd refuses to save."""
    recipe, x = make(), torch.randn(8, 32)
    for m in (te.Linear(32, 48), te.LayerNormLinear(32, 48)):
        for first in (None, True, False):
            with torch.inference_mode(), te.autocast(recipe=recipe):
                m(x, is_first_microbatch=None if first is None else True)
            with te.autocast(recipe=recipe):
                y = m(x, is_first_microbatch=first)
            y.sum().backward()


@RECIPES
def test_parametrised_parameters(make: Callable[[], te.Recipe]) -> None:
    class Double(torch.nn.Module):
        def forward(self, w: torch.Tensor) -> torch.Tensor:
            return 2 * w

    recipe, x = make(), torch.randn(8, 32)
    for m in (te.Linear(32, 48), te.LayerNormLinear(32, 48), te.LayerNormMLP(32, 48), te.LayerNorm(32)):
        with te.autocast(recipe=recipe):
            m(x)
        twice = copy.deepcopy(m)
        for name, p in list(twice.named_parameters()):
            p.data.mul_(2)
            torch.nn.utils.parametrize.register_parametrization(m, name, Double())
        with te.autocast(recipe=recipe):
            assert torch.equal(m(x), twice(x))


def test_a_module_pickles_between_microbatches() -> None:
    m, x = te.Linear(32, 48), torch.randn(8, 32)
    with te.autocast(recipe=te.Float8CurrentScaling()):
        want = m(x, is_first_microbatch=True)
        assert torch.equal(pickle.loads(pickle.dumps(m))(x, is_first_microbatch=False), want)
