#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gate itself (bugs.md I13): a header changed in a scratch copy must turn it red, or leave it green, for the right reason.

    test_golden.py CC DLPACK_INCLUDE
"""
from __future__ import annotations

import shutil
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import golden as G

CC, DLPACK = "cc", ""


def lines_of(changes: dict[str, list[tuple[str, str]]]) -> list[str]:
    """The ABI of a copy of the headers with texts replaced, each of which must be there once."""
    with tempfile.TemporaryDirectory() as tmp:
        headers = Path(tmp, "libte")
        shutil.copytree(G.ROOT / "libte" / "include" / "libte", headers)
        for name, pairs in changes.items():
            text = (headers / name).read_text()
            for old, new in pairs:
                assert text.count(old) == 1, f"{name}: {old!r} is there {text.count(old)} times"
                text = text.replace(old, new)
            (headers / name).write_text(text)
        return G.current(G.S.load(headers), None, CC, [tmp, DLPACK])


NOOP = "  const nvte_tensor *noop; /* in? [1] f32; 1 = do nothing */\n  nvte_tensor *dbias;      /* out? [K] f32|f16|bf16; column sums of x */\n"
SWAPPED = "".join(reversed(NOOP.splitlines(keepends=True)))


class Gate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.now = lines_of({})

    def red(self, changes, words):
        complaints, _ = G.compare(self.now, lines_of(changes))
        self.assertTrue(any(words in c for c in complaints), complaints)

    def green(self, changes, words):
        complaints, grown = G.compare(self.now, lines_of(changes))
        self.assertEqual(complaints, [])
        self.assertTrue(any(words in g for g in grown), grown)

    def test_unchanged(self):
        self.assertEqual(G.compare(self.now, lines_of({})), ([], []))
        self.assertGreater(len(self.now), 300)

    def test_I13_field_order(self):
        self.red({"quantize.h": [(NOOP, SWAPPED)]}, "lost or changed: field nvte_quantize_args.noop")

    def test_I13_new_enumerator(self):
        self.green({"tensor.h": [("  NVTE_SCALING_TENSOR = 1 ", "  NVTE_SCALING_MX = 2,\n  NVTE_SCALING_TENSOR = 1 ")]}, "constant NVTE_SCALING_MX 2")

    def test_I02_renumbered(self):
        self.red({"base.h": [("NVTE_ERR_IO = 66", "NVTE_ERR_IO = 67")]}, "constant NVTE_ERR_IO 66")

    def test_field_at_the_end(self):
        extra = NOOP + "  uint64_t later;          /* = 0; a later field */\n"
        with self.assertRaises(G.S.SchemaError):  # uint64_t is no type of an args struct
            lines_of({"quantize.h": [(NOOP, extra)]})
        self.green({"quantize.h": [(NOOP, extra.replace("uint64_t", "int64_t"))]}, "field nvte_quantize_args.later 40 8")

    def test_field_in_padding(self):
        old = "  float epsilon;               /* = 1e-5, >= 0; added to the variance */\n  uint32_t flags;              /* = 0; NVTE_NORM_* */\n} nvte_layernorm_forward_args;"
        padded = "  float p;                 /* = 0, >= 0; probability of dropping */\n} nvte_dropout_backward_args;"
        self.green({"norm.h": [(old, old.replace("} nvte", "  uint32_t more; /* = 0; more */\n} nvte"))]}, "nvte_layernorm_forward_args.more")
        self.red({"dropout.h": [(padded, padded.replace("} nvte", "  uint32_t more; /* = 0; more */\n} nvte"))]}, "inside the 40 bytes")

    def test_type_and_prototype(self):
        self.red({"base.h": [("nvte_set_num_threads(int32_t n)", "nvte_set_num_threads(int64_t n)")]}, "function nvte_set_num_threads")
        self.red({"tensor.h": [("  int32_t scaling; ", "  uint32_t scaling; ")]}, "nvte_tensor.scaling")

    def test_fixed_stride(self):
        self.red({"info.h": [("  uint32_t reserved;    /* 0 */\n", "  uint32_t reserved;    /* 0 */\n  uint64_t more; /* more */\n")]}, "its stride is fixed")


if __name__ == "__main__":
    CC, DLPACK = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
