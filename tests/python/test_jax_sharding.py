# SPDX-License-Identifier: Apache-2.0
"""Plain jax.jit over sharded arrays on 8 simulated devices (4 of data x 2 of tensor parallelism): values and gradients against one device,
shardings of the results, and exactly the collectives that the mathematics needs; and every operator on arrays that are cut at random."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

te = pytest.importorskip("libte_jax", reason="libte_xla.so was not built (no XLA headers)", exc_type=ImportError)
jax = pytest.importorskip("jax")
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jax_calls import calls
from libte import recipe
from libte.schema import OPS
from libte_jax import functional as F
from tolerance import assert_like

ROWS, D_T = P("d"), P("d", None, "t")
CALLS = calls("f32")
KEY = np.array([0, 3], np.uint32)
FREQS = np.outer(np.arange(4), np.ones(4)).astype(np.float32)
ALONE = False  # while one device makes the reference
CURRENT, DELAYED = recipe.Float8CurrentScaling(), recipe.DelayedScaling(amax_history_len=4)


class Case(NamedTuple):
    """f of arrays of small integers; `out` is what the results' shardings are, `ask` whether they are asked for instead of left to jit."""

    f: Callable[..., Any]
    args: list[tuple[tuple[int, ...], P]]
    out: list[P]
    collectives: list[str] = []
    ask: bool = False
    exact: bool = True
    dtype: str = "float32"


def grads(f: Callable[..., Any], n: int) -> Callable[..., Any]:
    def loss(*a: Any) -> Any:
        y = f(*a)
        return (y.astype(jnp.float32) ** 2).sum() / 2

    return jax.grad(loss, tuple(range(n)))


def mlp(x: Any, a: Any, b: Any) -> Any:
    return F.linear(F.activation(F.linear(x, a), "relu"), b)


def data_parallel(x: Any, w: Any) -> Any:
    y = F.linear(x, w)  # its activations follow the batch, as FSDP has it
    return y if ALONE else jax.lax.with_sharding_constraint(y, P("d", None, P.UNCONSTRAINED))


def causal(q: Any, k: Any, v: Any) -> Any:
    return F.attention(q, k, v, mask_kind="causal")


def dropped(q: Any, k: Any, v: Any) -> Any:
    return F.attention(q, k, v, key=jax.random.wrap_key_data(KEY), dropout=0.25)


def dropout(x: Any) -> Any:
    return F.dropout(x, jax.random.wrap_key_data(KEY), 0.5)


def delayed(x: Any, w: Any) -> Any:
    meta = F.Fp8Meta.new(F.Fp8.of(DELAYED))
    dx, dw, m = jax.grad(lambda x, w, m: (F.linear(x, w, None, DELAYED, m) ** 2).sum() / 2, (0, 1, 2))(x, w, meta)
    return dx, dw, m.amax_history


def codes(x: Any) -> Any:
    q = te.ops.quantize(x, y=te.Output("e4m3", scale=jnp.ones(1), columnwise=True), dbias="f32")
    return q.y.data.astype(jnp.float32), q.y.columnwise.astype(jnp.float32), q.y.amax, q.dbias


def targets(logits: Any) -> Any:
    return F.cross_entropy(logits, jnp.where(jnp.arange(24) == 3, -100, jnp.arange(24) % 16))


def layer(x: Any, qkv: Any, out: Any, wi: Any, wo: Any) -> Any:
    """A TransformerLayer of libte_jax.flax, by its kernels."""
    norm = {"scale": jnp.ones(16)}
    params = {"attention": {"norm": norm, "qkv": {"kernel": qkv / 8}, "out": {"kernel": out / 8}},
              "mlp": {"norm": norm, "wi": {"kernel": wi / 8}, "wo": {"kernel": wo / 8}}}
    module = te.flax.TransformerLayer(16, 32, 2, layernorm_type="rmsnorm", mlp_activations=("silu", "linear"))
    return module.apply({"params": params}, x, deterministic=True)


X, UP, DOWN = ((8, 3, 16), ROWS), ((32, 16), P("t")), ((16, 32), P(None, "t"))
WIDE = ((8, 3, 32), D_T)
QKV = [((8, 4, 4, 8), D_T), ((8, 4, 2, 8), D_T), ((8, 4, 2, 8), D_T)]
MQA = [((8, 4, 4, 8), D_T), ((8, 4, 1, 8), ROWS), ((8, 4, 1, 8), ROWS)]
GAMMA = ((16,), P())
CASES: dict[str, Case] = {
    "column": Case(F.linear, [X, UP, ((32,), P("t"))], [D_T]),
    "row": Case(F.linear, [WIDE, DOWN, ((16,), P())], [ROWS], ["all-reduce f32[2,3,16]"]),
    "row_bf16": Case(lambda *a: F.linear(*(t.astype(jnp.bfloat16) for t in a)).astype(jnp.float32), [WIDE, DOWN, ((16,), P())], [ROWS],
                     ["all-reduce f32[2,3,16]"]),  # XLA widens it on the CPU
    "row_sequence": Case(F.linear, [((8, 4, 32), D_T), DOWN], [P("d", "t")], ["reduce-scatter f32[2,2,16]"], ask=True),
    "mlp": Case(mlp, [X, UP, DOWN], [ROWS], ["all-reduce f32[2,3,16]"]),
    "mlp_gradients": Case(grads(mlp, 3), [X, UP, DOWN], [ROWS, P("t"), P(None, "t")],
                          ["all-reduce f32[16,16]", "all-reduce f32[16,16]", "all-reduce f32[2,3,16]", "all-reduce f32[2,3,16]"], ask=True),
    "linear_bias_gradients": Case(grads(F.linear, 3), [X, UP, ((32,), P("t"))], [ROWS, P("t"), P("t")],
                                  ["all-reduce f32[16,16]", "all-reduce f32[16]", "all-reduce f32[2,3,16]"], ask=True),
    "fsdp": Case(grads(data_parallel, 2), [X, ((32, 16), P("d"))], [ROWS, P("d")], ["all-gather f32[32,16]", "reduce-scatter f32[8,16]"], ask=True),
    "fsdp_tensor": Case(grads(data_parallel, 2), [X, ((32, 16), P("t", "d"))], [ROWS, P("t", "d")],
                        ["all-gather f32[16,16]", "all-reduce f32[2,3,16]", "reduce-scatter f32[16,4]"], ask=True),
    "gemm_inner": Case(lambda a, b: te.ops.gemm(a, b, flags="trans_a"), [((16, 8), P("d")), ((16, 6), P("d"))], [P()], ["all-reduce f32[8,6]"]),
    "gemm_epilogue": Case(lambda a, b: te.ops.gemm(a, b, flags="gelu"), [((8, 16), P("d")), ((16, 6), P(None, "t"))], [P("d", "t")]),
    "transformer_layer": Case(grads(layer, 5), [X, ((16, 2, 3, 8), P(None, "t")), ((2, 8, 16), P("t")), ((16, 2, 32), P(None, None, "t")),
                                                ((32, 16), P("t"))],
                              [ROWS, P(None, "t"), P("t"), P(None, None, "t"), P("t")],
                              ["all-reduce f32[2,3,16]"] * 4 + ["all-reduce f32[24,16]", "all-reduce f32[16,8]", "all-reduce f32[2,16,16]",
                                                                "all-reduce f32[16,16]"], ask=True, exact=False),
    "rmsnorm": Case(F.rmsnorm, [X, GAMMA], [ROWS]),
    "rmsnorm_gradients": Case(grads(F.rmsnorm, 2), [X, GAMMA], [ROWS, P()], ["all-reduce f32[16]"], exact=False),
    "layernorm_gradients": Case(grads(lambda x, g, b, r: sum(F.layernorm(x, g, b, r)), 4), [X, GAMMA, GAMMA, X], [ROWS, P(), P(), ROWS],
                                ["all-reduce f32[16]", "all-reduce f32[16]"], exact=False),
    "layernorm_fsdp": Case(grads(F.layernorm, 3), [X, ((16,), P("d")), ((16,), P("d"))], [ROWS, P("d"), P("d")],
                           ["all-gather f32[16]", "all-gather f32[16]", "reduce-scatter f32[4]", "reduce-scatter f32[4]"], ask=True, exact=False),
    "norm_is_whole_rows": Case(F.rmsnorm, [((8, 3, 16), D_T), GAMMA], [ROWS], ["all-gather f32[2,3,16]"]),
    "activation": Case(grads(F.activation, 1), [WIDE], [D_T]),
    "gated_activation": Case(grads(F.gated_activation, 1), [X], [ROWS]),
    "gated_pairs": Case(grads(lambda x: F.gated_activation(x, pairs=True), 1), [((8, 3, 2, 16), P("d", None, None, "t"))],
                        [P("d", None, None, "t")]),
    "softmax": Case(grads(lambda x: F.softmax(x, mask_kind="causal"), 1), [((8, 4, 6, 6), P("d", "t"))], [P("d", "t")]),
    "rope": Case(grads(lambda x: F.rope(x, FREQS, format="bshd"), 1), [((8, 4, 4, 8), D_T)], [D_T]),
    "attention": Case(causal, QKV, [D_T]),
    "attention_gradients": Case(grads(causal, 3), QKV, [D_T, D_T, D_T]),
    "attention_one_kv_head": Case(grads(causal, 3), MQA, [D_T, ROWS, ROWS], ["all-reduce f32[2,4,1,8]", "all-reduce f32[2,4,1,8]"], exact=False),
    "attention_bias": Case(grads(lambda q, k, v, b: F.attention(q, k, v, bias=b), 4), [*QKV, ((1, 4, 4, 4), P(None, "t"))],
                           [D_T, D_T, D_T, P(None, "t")], ["all-reduce f32[1,2,4,4]"], exact=False),
    "attention_dropout": Case(grads(dropped, 3), QKV, [D_T, D_T, D_T]),
    "attention_dropout_batch": Case(grads(dropped, 3), [(s, ROWS) for s, _ in QKV], [ROWS, ROWS, ROWS]),
    "dropout": Case(grads(dropout, 1), [X], [ROWS]),
    "dropout_columns": Case(grads(dropout, 1), [WIDE], [D_T]),
    "dropout_odd_rows": Case(grads(dropout, 1), [((4, 3, 5), ROWS)], [ROWS]),
    "cross_entropy": Case(jax.grad(targets), [((24, 16), ROWS)], [ROWS], ["all-reduce s32[]"], exact=False),
    "cross_entropy_value": Case(targets, [((24, 16), ROWS)], [P()], ["all-reduce f32[1]", "all-reduce s32[]"], exact=False),
    "quantize": Case(codes, [((8, 16), P("d", "t"))], [P("d", "t"), P("t", "d"), P(), P("t")], ["all-reduce f32[1]", "all-reduce f32[8]"]),
    "compute_amax": Case(te.ops.compute_amax, [((8, 16), P("d", "t"))], [P()], ["all-reduce f32[1]"]),
    "fp8_current": Case(lambda x, w: F.linear(x, w, None, CURRENT), [X, UP], [D_T], ["all-reduce f32[1]", "all-reduce f32[1]"]),
    "fp8_current_gradients": Case(grads(lambda x, w: F.linear(x, w, None, CURRENT), 2), [X, UP], [ROWS, P("t")],
                                  ["all-reduce f32[1]"] * 3 + ["all-reduce f32[16,16]", "all-reduce f32[2,3,16]"], exact=False),
    "fp8_delayed_gradients": Case(delayed, [X, UP], [ROWS, P("t"), P()],
                                  ["all-reduce f32[1]"] * 3 + ["all-reduce f32[16,16]", "all-reduce f32[2,3,16]"], exact=False),
}


# ---- in the process with 8 devices ----
def collectives(text: str) -> list[str]:
    found = []
    for types, kind in re.findall(r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", text):
        found += [f"{kind} {t}" for t in re.findall(r"\w+\[[\d,]*\]", types)]
    return sorted(found)


def trim(spec: Any) -> list[Any]:
    entries = [list(e) if isinstance(e, tuple) and len(e) > 1 else e[0] if isinstance(e, tuple) and e else e or None for e in spec]
    while entries and entries[-1] is None:
        entries.pop()
    return entries


def run(case: Case, mesh: Any) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    values = [rng.integers(-2, 3, s).astype(case.dtype) for s, _ in case.args]
    placed = [jax.device_put(v, NamedSharding(mesh, s)) for v, (_, s) in zip(values, case.args)]
    asked = {"out_shardings": jax.tree.unflatten(jax.tree.structure(jax.eval_shape(case.f, *values)), [NamedSharding(mesh, s) for s in case.out])}
    compiled = jax.jit(case.f, **(asked if case.ask else {})).lower(*placed).compile()
    alone = [jax.device_put(v, jax.devices()[0]) for v in values]
    global ALONE
    ALONE = True
    got, want = jax.tree.leaves(compiled(*placed)), jax.tree.leaves(case.f(*alone))
    ALONE = False
    bad = []
    for i, (g, w) in enumerate(zip(got, want)):
        g_, w_ = np.asarray(g), np.asarray(w)
        if case.exact and g_.tobytes() != w_.tobytes():
            bad.append(f"result {i} differs by {np.abs(g_ - w_).max()}")
        try:
            assert_like(g_, w_.astype(np.float64), w_, "float32", f"result {i}")
        except AssertionError as e:
            bad.append(str(e))
    return {"bad": bad, "out": [trim(g.sharding.spec) for g in got], "collectives": collectives(compiled.as_text())}


def random_cuts(name: str, mesh: Any, rng: np.random.Generator, times: int = 3) -> list[str]:
    """An operator on arrays that are cut anyhow: still what one device makes of them."""
    inputs, outputs, scalars = CALLS[name]

    def cut(shape: tuple[int, ...]) -> P:
        free = list(rng.permutation(list(mesh.shape)))
        return P(*(str(free.pop()) if free and rng.random() < 0.6 and n % mesh.shape[free[-1]] == 0 else None for n in shape))

    def f(given: dict[str, Any]) -> Any:
        return te.ops.call(name, given, outputs, scalars)

    values = {s: x.astype(np.int32) if x.dtype == np.int64 else x for s, x in inputs.items()}
    want, bad = f({s: jnp.asarray(x) for s, x in values.items()}), []
    for _ in range(times):
        specs = {s: cut(x.shape) for s, x in values.items()}
        got = jax.jit(f)({s: jax.device_put(x, NamedSharding(mesh, specs[s])) for s, x in values.items()})
        for s, w in want.items():
            g_, w_ = np.asarray(got[s]), np.asarray(w)
            try:
                if g_.tobytes() != w_.tobytes():
                    assert w_.dtype == np.float32, "codes or bits differ"
                    assert_like(g_, w_.astype(np.float64), w_, "float32", s)
            except AssertionError as e:
                bad.append(f"{s} with {specs}: {e}")
    return bad


def main() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("d", "t"))
    for name, case in CASES.items():
        if len(sys.argv) > 1 and not re.search(sys.argv[1], name):
            continue
        try:
            with mesh:
                print(json.dumps([name, run(case, mesh)]), flush=True)
        except Exception as e:
            print(json.dumps([name, {"bad": [f"{type(e).__name__}: {e}"[:2000]]}]), flush=True)


    for seed, name in enumerate(OPS):
        if len(sys.argv) > 1 and not re.search(sys.argv[1], name):
            continue
        try:
            print(json.dumps([f"{name}*", {"bad": random_cuts(name, mesh, np.random.default_rng(seed))}]), flush=True)
        except Exception as e:
            print(json.dumps([f"{name}*", {"bad": [f"{type(e).__name__}: {e}"[-2000:]]}]), flush=True)


# ---- in pytest's ----
@pytest.fixture(scope="module")
def results(python: Any) -> dict[str, Any]:
    out = python(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_jax_sharding as t; t.main()",
                 {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}, 600)
    assert out.returncode == 0, out.stderr
    return dict(json.loads(line) for line in out.stdout.splitlines())


@pytest.mark.parametrize("name", CASES)
def test_sharded(results: dict[str, Any], name: str) -> None:
    got, case = results[name], CASES[name]
    assert not got["bad"]
    assert got["out"] == [trim(s) for s in case.out]
    assert got["collectives"] == sorted(case.collectives)


@pytest.mark.parametrize("name", OPS)
def test_any_cut_gives_the_same(results: dict[str, Any], name: str) -> None:
    assert not results[f"{name}*"]["bad"]


if __name__ == "__main__":
    sys.exit(main())
