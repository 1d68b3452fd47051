# SPDX-License-Identifier: Apache-2.0
"""Errors by status range, messages, and the configuration table as Python sees it."""

from __future__ import annotations

import threading

import libte
import libte.numpy as tn
import numpy as np
import pytest
from libte import config, errors


@pytest.mark.parametrize(("status", "kind"), [
    (1, ValueError), (2, ValueError), (3, ValueError), (4, ValueError), (31, ValueError), (32, NotImplementedError), (33, NotImplementedError),
    (63, NotImplementedError), (64, MemoryError), (65, RuntimeError), (66, RuntimeError), (95, RuntimeError), (96, RuntimeError), (200, RuntimeError)])
def test_class_by_range(status, kind):
    e = errors.error(status, "text")
    assert isinstance(e, kind) and isinstance(e, errors.Error) and e.status == status and str(e) == "text"


def test_names_are_the_library_s():
    for status, name in errors.NAMES.items():
        assert libte.ffi.string(libte.lib.nvte_status_name(status)).decode() == name
    assert errors.error(1, "").name == "NVTE_ERR_INVALID_ARGUMENT" and str(errors.error(33, "")) == "NVTE_ERR_NOT_FOUND"


def test_message_names_function_argument_rule_and_value():
    x = np.ones((2, 16), np.float32)
    with pytest.raises(ValueError) as e:
        tn.rmsnorm_forward(x, np.ones(8, np.float32))
    for part in ("nvte_rmsnorm_forward", "gamma", "[H]", "16", "[8]"):
        assert part in str(e.value)
    assert e.value.status == errors.INVALID_ARGUMENT


def test_nothing_is_written_on_error():
    y = np.full((2, 16), 7, np.float32)
    with pytest.raises(ValueError):
        tn.rmsnorm_forward(np.ones((2, 16), np.float32), np.ones(8, np.float32), y=y)
    assert (y == 7).all()


def test_messages_are_a_thread_s_own():
    seen: dict[int, str] = {}

    def work(n):
        for _ in range(200):
            with pytest.raises(ValueError) as e:
                tn.rmsnorm_forward(np.ones((1, 16), np.float32), np.ones(n, np.float32))
            seen[n] = str(e.value)
            assert f"[{n}]" in seen[n]

    threads = [threading.Thread(target=work, args=(n,)) for n in (3, 5, 7, 9)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(seen) == 4


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.complex64, np.dtype(">f4"), np.uint16])
def test_wrong_dtypes_are_clear_errors(dtype):
    with pytest.raises(ValueError, match=r"nvte_rmsnorm_forward: x (has dtype|must be)"):
        tn.rmsnorm_forward(np.ones((2, 4)).astype(dtype))


@pytest.mark.parametrize("x", [[[1.0, 2.0]], 3.0, "text", object()])
def test_things_that_are_no_arrays(x):
    with pytest.raises(TypeError, match="numpy arrays and objects with __dlpack__"):
        tn.rmsnorm_forward(x)


def test_scalars():
    x = np.ones((2, 4), np.float32)
    with pytest.raises(ValueError, match="epsilon"):
        tn.rmsnorm_forward(x, epsilon=-1.0)
    with pytest.raises(ValueError, match="flags must fit u32"):
        tn.rmsnorm_forward(x, flags=-1)
    with pytest.raises(ValueError, match="flags takes zero_centered"):
        tn.rmsnorm_forward(x, flags="zero_centred")
    assert np.array_equal(tn.rmsnorm_forward(x, np.zeros(4, np.float32), flags="zero_centered"), tn.rmsnorm_forward(x))
    # a failed call leaves no half-set scalars behind
    assert np.array_equal(tn.rmsnorm_forward(x, epsilon=0.0), x)


def test_unknown_operator_and_implementation():
    with pytest.raises(NotImplementedError, match="nonsense"):
        libte.explain("nonsense")
    x = np.ones((2, 4), np.float32)
    with pytest.raises(NotImplementedError, match="quantum"):
        tn.rmsnorm_forward(x, implementation="quantum")
    assert np.array_equal(tn.rmsnorm_forward(x, implementation="cpu"), tn.rmsnorm_forward(x))


def test_explain_and_implementations():
    x = np.ones((2, 4), np.float32)
    text = libte.explain("rmsnorm_forward", x)
    assert "rmsnorm_forward" in text and "cpu" in text
    assert libte.implementations("rmsnorm_forward") == ["cpu"]
    with pytest.raises(NotImplementedError):
        libte.implementations("nonsense")


def test_rank_limit():
    with pytest.raises(ValueError, match="8 dimensions"):
        tn.rmsnorm_forward(np.ones((1,) * 9, np.float32))


# ---- configuration
def test_config_table_and_values():
    rows = {e.key: e for e in config.table()}
    assert rows["num_threads"].environment == "LIBTE_NUM_THREADS" and rows["num_threads"].type == "int"
    for e in rows.values():
        assert e.type in ("int", "bool", "string", "choice") and e.help
    assert isinstance(config.get("num_threads"), int)


def test_config_set_and_refusals():
    before = config.get("log.level")
    config.set("log.level", "error")
    assert config.get("log.level") == "error"
    config.set("log.level", before)
    with pytest.raises(ValueError, match="log.level takes .*loud") as e:
        config.set("log.level", "loud")
    assert e.value.status == errors.CONFIG
    assert config.get("log.level") == before
    with pytest.raises(NotImplementedError, match="nonsense"):
        config.get("nonsense")
    with pytest.raises(KeyError, match="NVTE_NONSENSE"):
        config.environment("NVTE_NONSENSE")


def test_environment_is_read_and_bad_values_are_errors(python):
    run = python("from libte import config; print(config.get('num_threads'), config.get('trace'))", {"LIBTE_NUM_THREADS": "3", "LIBTE_TRACE": "1"})
    assert run.stdout == "3 True\n", run.stderr
    run = python("from libte import config; config.get('num_threads')", {"LIBTE_NUM_THREADS": "many"})
    last = run.stderr.splitlines()[-1]
    assert "InvalidArgumentError" in last and "LIBTE_NUM_THREADS" in last and "many" in last
