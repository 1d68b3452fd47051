# SPDX-License-Identifier: Apache-2.0
"""Recipes: names, arguments, defaults and validation as upstream's; environment defaults through the library's configuration."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from libte import recipe as r


def names(kind: type) -> list[str]:
    return [f.name for f in dataclasses.fields(kind)]


def test_arguments_in_upstream_s_order():
    assert names(r.DelayedScaling) == ["margin", "fp8_format", "amax_history_len", "amax_compute_algo", "scaling_factor_compute_algo", "reduce_amax",
                                       "fp8_dpa", "fp8_mha", "backward_override"]
    assert names(r.Float8CurrentScaling) == ["use_power_2_scales", "fp8_format", "fp8_gemm_fprop", "fp8_gemm_dgrad", "fp8_gemm_wgrad", "fp8_dpa",
                                             "fp8_mha", "backward_override"]
    assert names(r.MMParams) == ["use_split_accumulator"]
    assert names(r.QParams) == ["power_2_scale", "amax_epsilon", "random_hadamard_transform", "stochastic_rounding", "fp4_2d_quantization"]


def test_defaults(monkeypatch):
    d = r.DelayedScaling()
    assert (d.margin, d.fp8_format, d.amax_history_len, d.amax_compute_algo, d.reduce_amax) == (0, r.Format.HYBRID, 1024, "max", True)
    assert d.scaling_factor_compute_algo is None and d.backward_override is None and not d.fp8_dpa and not d.fp8_mha
    c = r.Float8CurrentScaling()
    assert c.use_power_2_scales is False and c.fp8_format is r.Format.HYBRID
    assert [g.use_split_accumulator for g in (c.fp8_gemm_fprop, c.fp8_gemm_dgrad, c.fp8_gemm_wgrad)] == [False, True, True]
    assert c.fp8_quant_fwd_inp == c.fp8_quant_fwd_weight == c.fp8_quant_bwd_grad == r.QParams()
    assert r.Float8CurrentScaling(use_power_2_scales=True).fp8_quant_bwd_grad.power_2_scale


def test_formats():
    assert tuple(r.Format.E4M3.value) == (448, 448) and tuple(r.Format.E5M2.value) == (57344, 57344)
    assert (r.Format.HYBRID.value.max_fwd, r.Format.HYBRID.value.max_bwd) == (448, 57344) and tuple(r.Format.E2M1.value) == (6, 6)


PREDICATES = ("nvfp4", "mxfp8", "delayed", "float8_current_scaling", "float8_per_tensor_scaling", "float8_block_scaling", "custom")


@pytest.mark.parametrize(("kind", "true"), [
    (r.DelayedScaling, {"delayed", "float8_per_tensor_scaling"}), (r.Float8CurrentScaling, {"float8_current_scaling", "float8_per_tensor_scaling"}),
    (r.MXFP8BlockScaling, {"mxfp8"}), (r.Float8BlockScaling, {"float8_block_scaling"}), (r.NVFP4BlockScaling, {"nvfp4"}), (r.CustomRecipe, {"custom"})])
def test_predicates(kind, true):
    assert {p for p in PREDICATES if getattr(kind, p)()} == true


@pytest.mark.parametrize(("kind", "arguments", "words"), [
    (r.DelayedScaling, {"fp8_format": r.Format.E5M2}, ["fp8_format", "E5M2"]),
    (r.DelayedScaling, {"fp8_format": "HYBRID"}, ["fp8_format", "must be a Format"]),
    (r.DelayedScaling, {"amax_history_len": 0}, ["amax_history_len", ">= 1", "0"]),
    (r.DelayedScaling, {"amax_history_len": 1.5}, ["amax_history_len", "integer"]),
    (r.DelayedScaling, {"margin": 0.5}, ["margin", "integer"]),
    (r.DelayedScaling, {"amax_compute_algo": "mean"}, ["amax_compute_algo", "most_recent", "mean"]),
    (r.DelayedScaling, {"scaling_factor_compute_algo": 3}, ["scaling_factor_compute_algo", "callable"]),
    (r.DelayedScaling, {"backward_override": "dequantized"}, ["backward_override", "None"]),
    (r.Float8CurrentScaling, {"fp8_format": r.Format.E5M2}, ["fp8_format", "E5M2"]),
    (r.Float8CurrentScaling, {"fp8_gemm_dgrad": True}, ["fp8_gemm_dgrad", "MMParams"]),
    (r.Float8CurrentScaling, {"backward_override": "bf16"}, ["backward_override", "high_precision", "bf16"])])
def test_validation(kind, arguments, words):
    with pytest.raises(ValueError) as e:
        kind(**arguments)
    for word in (kind.__name__, *words):
        assert word in str(e.value)


def test_q06_history_of_one_step_is_legal():
    assert r.DelayedScaling(amax_history_len=1).amax_history_len == 1
    assert r.DelayedScaling(amax_history_len=16, amax_compute_algo="most_recent", margin=-2).margin == -2
    assert callable(r.DelayedScaling(amax_compute_algo=max).amax_compute_algo)


@pytest.mark.parametrize("kind", [r.MXFP8BlockScaling, r.Float8BlockScaling, r.NVFP4BlockScaling, r.CustomRecipe])
def test_unbuilt_recipes_name_themselves(kind):
    assert issubclass(kind, r.Recipe)
    with pytest.raises(NotImplementedError, match=kind.__name__):
        kind()
    with pytest.raises(NotImplementedError, match=kind.__name__):
        kind(fp8_format=r.Format.E4M3)


def test_repr_equality_pickle():
    a = r.DelayedScaling(amax_history_len=16)
    assert repr(a).startswith("DelayedScaling(margin=0, fp8_format=HYBRID, amax_history_len=16")
    assert a == r.DelayedScaling(amax_history_len=16) and a != r.DelayedScaling()
    assert pickle.loads(pickle.dumps(a)) == a
    a.margin = 3
    assert "margin=3" in repr(a)


def test_environment_defaults(python):
    script = "from libte.recipe import *; c = Float8CurrentScaling(); print(c.use_power_2_scales, c.backward_override)"
    run = python(script, {"NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES": "1", "NVTE_BACKWARD_OVERRIDE": "high_precision"})
    assert run.stdout == "True high_precision\n", run.stderr
    run = python(script, {"NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES": "2"})
    last = run.stderr.splitlines()[-1]
    assert "InvalidArgumentError" in last and "NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES" in last and "'2'" in last
    run = python("from libte.recipe import DelayedScaling; DelayedScaling()", {"NVTE_BACKWARD_OVERRIDE": "dequantized"})
    assert "DelayedScaling: backward_override must be None" in run.stderr
