#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/schema.py: a header that breaks the grammar is refused with file and line; the real ones say what they should."""
from __future__ import annotations

import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import schema as S  # noqa: E402

HEADERS = ROOT / "libte" / "include" / "libte"
Y = "  nvte_tensor *y;          /* out [*, K] e4m3|e5m2|e4m3fnuz|e5m2fnuz|f32|f16|bf16 quantized; the codes */"


def load_with(name: str, old: str, new: str) -> S.Schema:
    with tempfile.TemporaryDirectory() as tmp:
        copy = Path(tmp, "libte")
        shutil.copytree(HEADERS, copy)
        text = (copy / name).read_text()
        assert text.count(old) == 1, f"{old!r}: {text.count(old)} times in {name}"
        (copy / name).write_text(text.replace(old, new))
        return S.load(copy)


class Grammar(unittest.TestCase):
    def refused(self, name: str, old: str, new: str, words: str, near: int = 0):
        text = (HEADERS / name).read_text()
        line = text[: text.index(old)].count("\n") + 1
        with self.assertRaises(S.SchemaError) as e:
            load_with(name, old, new)
        self.assertRegex(str(e.exception), rf"{re.escape(name)}:\d+: ")
        self.assertIn(words, str(e.exception))
        got = int(re.search(rf"{re.escape(name)}:(\d+)", str(e.exception))[1])
        self.assertLessEqual(abs(got - line), near, str(e.exception))

    def test_fields(self):
        for new, words in (
            ("  nvte_tensor *y;", "has no comment beside it"),
            ("  nvte_tensor *y; /* the codes */", "expected 'in|out|inout[?]"),
            (Y.replace("out ", "into "), "expected 'in|out|inout[?]"),
            (Y.replace("e5m2|", "e5m3|"), "unknown dtype 'e5m3'"),
            (Y.replace("e5m2|", "z.dtype|"), "names no tensor field"),
            (Y.replace("quantized", "quantised"), "unknown word 'quantised'"),
            (Y.replace("quantized", "rows strided"), "exclude each other"),
            (Y.replace("nvte_tensor", "const nvte_tensor"), "'in' goes with const"),
            (Y.replace("[*, K]", "[*, K K]"), "expected"),
            (Y.replace("[*, K]", "[*, K %2]"), "%2' in dims '*, K %2'"),
            (Y.replace("[*, K]", "[ceil(K)]"), "ceil() takes a quotient"),
            (Y.replace("out [", "out list(n) ["), "a list needs list(n)"),
            (Y.replace("; the codes", ";"), "has no text"),
            ("  double y; /* = 0; y */", "is none that an args struct may hold"),
        ):
            with self.subTest(new):
                self.refused("quantize.h", Y, new, words)

    def test_scalars(self):
        old = "  float epsilon;           /* = 0, >= 0; lower bound of amax */"
        for new, words in (
            ("  float epsilon; /* lower bound */", "needs a default"),
            ("  float epsilon; /* = NVTE_NOTHING; lower bound */", "neither a number nor a constant"),
            ("  float epsilon; /* = 0, >= zero; lower bound */", "is no number"),
            ("  float epsilon; /* = 0 lower bound */", "expected '; text'"),
            ("  float epsilon; /* = 0; */", "has no text"),
        ):
            with self.subTest(new):
                self.refused("quantize.h", old, new, words)

    def test_structure(self):
        self.refused("quantize.h", "typedef struct nvte_quantize_args {\n  size_t struct_size;\n", "typedef struct nvte_quantize_args {\n", "must begin with size_t struct_size")
        self.refused("quantize.h", "NVTE_API nvte_status nvte_transpose(const nvte_exec *exec, const nvte_transpose_args *args);", "", "no prototype", 10)
        self.refused("softmax.h", "NVTE_MASK_CAUSAL = 1,", "NVTE_MASK_CAUSAL,", "explicit integer value")
        self.refused("quantize.h", "list(n) [len, k] f32; row 0", "list(m) [len, k] f32; row 0", "count 'm' is no size_t field")


class Real(unittest.TestCase):
    def test_what_the_headers_say(self):
        s = S.load()
        x, gamma, y = (s.op("rmsnorm_forward").field(n) for n in ("x", "gamma", "y"))
        self.assertEqual((x.direction, x.optional, x.words), ("in", False, frozenset({"rows"})))
        self.assertEqual((gamma.optional, gamma.dims), (True, S.Dims(False, (S.Name("H"),))))
        self.assertEqual(y.dtypes[0], "x.dtype")
        gated = s.op("gated_activation_forward")
        self.assertEqual(gated.field("x").dims, S.Dims(True, (S.Bin("*", S.Num(2), S.Name("H")),)))
        self.assertEqual(gated.field("alpha").default, "1.702")
        self.assertEqual(gated.field("limit").bounds, ((">=", 0.0, "0"),))
        self.assertEqual(s.op("dropout_forward").field("mask").dims, S.Dims(False, (S.Ceil(S.Prod(), S.Num(8)),)))
        self.assertIsNone(s.op("gemm").field("a").dims)
        self.assertEqual(s.op("amax_and_scale_update").field("history").count, "n")
        self.assertEqual(s.op("cross_entropy_forward").field("ignore_index").default_value, -100)
        self.assertEqual(s.op("rmsnorm_backward").folder, "rmsnorm")
        self.assertIn("Root-mean-square", s.op("rmsnorm_forward").help)
        constants = {c.name: c.value for c in s.constants}
        self.assertEqual((constants["NVTE_ERR_INTERNAL"], constants["NVTE_GEMM_SPLIT_ACCUMULATOR"]), (96, 0x10))

    def test_every_prototype_is_there(self):
        text = "".join(p.read_text() for p in HEADERS.glob("*.h"))
        self.assertEqual(len(re.findall(r"^NVTE_API ", text, re.M)), len(S.load().functions))
        self.assertEqual(len(re.findall(r"^typedef struct nvte_\w+ \{", text, re.M)), len(S.load().structs))

    def test_expressions(self):
        self.assertEqual(S.parse_dims("[*, a/(b+1) - 2*c]"), S.Dims(True, (
            S.Bin("-", S.Bin("/", S.Name("a"), S.Bin("+", S.Name("b"), S.Num(1))), S.Bin("*", S.Num(2), S.Name("c"))),)))
        self.assertEqual(S.parse_dims("[]"), S.Dims(False, ()))
        self.assertEqual(S.names_in(S.parse_dims("[b, a*b]")), ["b", "a"])


if __name__ == "__main__":
    unittest.main()
