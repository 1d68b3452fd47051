# SPDX-License-Identifier: Apache-2.0
"""The lint turns red on a planted fault of each law, and is green on the same tree without it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("libte_lint", ROOT / "tools" / "lint.py")
assert spec and spec.loader
lint = importlib.util.module_from_spec(spec)
sys.modules["libte_lint"] = lint
spec.loader.exec_module(lint)

SMALL = "1" + "e-3"  # so that this file passes the law that it tests
SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
HEADER = """/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
typedef int nvte_status;
#define NVTE_API
/* y = x. */
typedef struct nvte_copy_forward_args {
  size_t struct_size;
  const void *x; /* in [*] any; input */
} nvte_copy_forward_args;
NVTE_API nvte_status nvte_copy_forward(const void *exec, const nvte_copy_forward_args *args);
"""
GOOD = {
    "libte/include/libte/copy.h": HEADER,
    "libte/src/ops/copy/op.cpp": SPDX + '#include "core/op.h"\n',
    "libte/src/ops/copy/cpu.cpp": SPDX + '#include "cpu/vec.h"\n',
    "libte/src/api/guard.cpp": SPDX + "int f() { try { return 1; } catch (...) { return 0; } }\n",
    "libte/src/core/config.cpp": SPDX + 'const char *g() { return getenv("X"); }\n',
    "libte/src/gpu/device/wave.h": SPDX + "#if defined(__HIP_PLATFORM_AMD__)\n#endif\n",
    "tests/cpp/ops/copy.cpp": SPDX + f"// the tolerance comes from tolerance.h: atol = {SMALL} in a comment is no fault\n",
    "tests/cases/copy.txt": "4 4\n",
    "tests/cpp/harness/tolerance.h": SPDX + f"constexpr double atol = {SMALL};\n",
    "tests/python/tolerance.py": "# SPDX-License-Identifier: Apache-2.0\nrtol = " + SMALL + "\n",
    "tests/python/test_copy.py": "# SPDX-License-Identifier: Apache-2.0\ndef test_x():\n    assert abs(1 - 1) == 0\n",
    "bindings/python/libte/grads.py": '# SPDX-License-Identifier: Apache-2.0\nROWS = ["copy_forward"]\n',
}


@pytest.fixture
def plant(tmp_path):
    """Writes the good tree, then the faults, and returns the law's complaints."""

    def run(law: str, faults: dict[str, str | None], build: Path | None = None) -> list[str]:
        for name, text in {**GOOD, **faults}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                path.unlink(missing_ok=True)
            else:
                path.write_text(text)
        return list(lint.LAWS[law](lint.Tree(tmp_path, build)))

    return run


@pytest.mark.parametrize("law", [n for n in lint.LAWS if n != "2-golden"])
def test_good_tree_is_green(plant, law):
    assert plant(law, {}) == []


def replaced(old: str, new: str) -> dict[str, str | None]:
    assert old in HEADER
    return {"libte/include/libte/copy.h": HEADER.replace(old, new)}


FAULTS = [
    ("1-headers", replaced("#include <stddef.h>\n", ""), "copy.h"),
    ("1-headers", replaced("const void *x;", "const void *x; static const int n = 3;"), "gcc"),
    ("1-headers", replaced("nvte_status nvte_copy_forward(const void *exec", "nvte_status nvte_copy_forward(const void *class"), "g++"),
    ("3-places", {"libte/src/core/a.cpp": SPDX + "void f() { try { } catch (...) { } }\n"}, "try/catch"),
    ("3-places", {"libte/src/cpu/a.cpp": SPDX + 'auto x = std::getenv("HOME");\n'}, "getenv"),
    ("3-places", {"libte/src/ops/copy/gpu.hip": SPDX + "#ifdef __CUDACC__\n#endif\n"}, "platform #if"),
    ("4-abi", replaced("  size_t struct_size;\n", ""), "struct_size"),
    ("4-abi", replaced("const void *x;", "const void *x; long n;"), "long"),
    ("4-abi", replaced("const void *x;", "const void *x; unsigned flag : 3;"), "flag : 3"),
    ("4-abi", replaced("args);", "args, int a, int b, int c, int d, int e);"), "7 parameters"),
    ("5-street", {"libte/src/core/a.h": SPDX + '#include "ops/copy/op.h"\n'}, "core may not include"),
    ("5-street", {"libte/src/dispatch/a.h": SPDX + '#include "ops/copy/op.h"\n'}, "dispatch may not include"),
    ("5-street", {"libte/src/cpu/a.h": SPDX + '#include "dispatch/registry.h"\n'}, "cpu may not include"),
    ("5-street", {"libte/src/ops/copy/a.h": SPDX + '#include "ops/other/kernel.h"\n'}, "copy includes ops/other"),
    ("5-street", {"libte/src/core/a.h": SPDX + "#include <torch/extension.h>\n"}, "framework header"),
    ("5-street", {"libte/src/core/a.h": SPDX + "#include <Python.h>\n"}, "framework header"),
    ("5-street", {"bindings/jax/a.c": SPDX + '#include "core/op.h"\n'}, "bindings include only"),
    ("7-complete", {"libte/src/ops/copy/op.cpp": None}, "op.cpp is missing"),
    ("7-complete", {"libte/src/ops/copy/cpu.cpp": None}, "cpu.cpp is missing"),
    ("7-complete", {"tests/cpp/ops/copy.cpp": None}, "tests/cpp/ops/copy.cpp is missing"),
    ("7-complete", {"tests/cases/copy.txt": None}, "tests/cases/copy.txt is missing"),
    ("7-complete", replaced("/* y = x. */\n", ""), "no comment above"),
    ("7-gradients", {"bindings/python/libte/grads.py": "# SPDX-License-Identifier: Apache-2.0\n"}, "no row"),
    ("8-tolerance", {"tests/cpp/ops/copy.cpp": SPDX + f"void t() {{ EXPECT_NEAR(a, b, {SMALL}); }}\n"}, "EXPECT_NEAR"),
    ("8-tolerance", {"tests/cpp/ops/copy.cpp": SPDX + f"const double tolerance = {SMALL};\n"}, "tolerance"),
    ("8-tolerance", {"tests/python/test_copy.py": f"def test_x():\n    assert_allclose(a, b, rtol={SMALL})\n"}, "rtol"),
    ("8-tolerance", {"tests/python/test_copy.py": f"def test_x():\n    assert a == pytest.approx(b, rel={SMALL})\n"}, "approx"),
    ("8-tolerance", {"tests/python/test_copy.py": f"def test_x():\n    assert np.abs(a - b).max() < {SMALL}\n"}, "abs"),
    ("8-tolerance", {"tests/c/copy.c": "/* x */\n" + f"int f(void) {{ if (fabs(a - b) > {SMALL}) return 1; }}\n"}, "abs"),
    ("9-generated", {"bindings/python/libte/_generated/_schema.py": "x = 1\n"}, "generated"),
    ("9-generated", {"libte/src/api/doors.cpp": SPDX + "// Generated by tools/gen.py; do not edit.\n"}, "generated"),
    ("9-generated", {"libte/libte.so": "x"}, "generated"),
    ("10-collected", {"tests/python/check_copy.py": "def test_x():\n    pass\n"}, "pytest collects"),
    ("10-collected", {"tests/python/test_empty.py": "x = 1\n"}, "no test in it"),
    ("10-collected", {"tests/python/conftest.py": "collect_ignore = ['test_copy.py']\n"}, "out of the collection"),
    ("spdx", {"libte/src/core/a.cpp": "int x;\n"}, "SPDX"),
    ("spdx", {"tools/a.py": "x = 1\n"}, "SPDX"),
    ("hosts", {"scripts/a.sh": "# SPDX-License-Identifier: Apache-2.0\npip install -i https://py" + "pi.org/simple x\n"}, "registry host"),
]


@pytest.mark.parametrize(("law", "fault", "word"), FAULTS, ids=[f"{law}-{word}" for law, _, word in FAULTS])
def test_planted_fault_is_found(plant, law, fault, word):
    complaints = plant(law, fault)
    assert any(word in c for c in complaints), complaints


def test_every_law_has_a_planted_fault():
    elsewhere = {"2-symbols", "2-golden", "isa-weak"}
    assert set(lint.LAWS) == {law for law, _, _ in FAULTS} | elsewhere


def build_folder(tmp_path: Path, sources: dict[str, tuple[str, str]]) -> Path:
    """Compiles {object: (source text, flags)} and writes compile_commands.json as CMake does."""
    build = tmp_path / "build"
    build.mkdir()
    commands = []
    for name, (text, flags) in sources.items():
        (build / f"{name}.cpp").write_text(text)
        command = f"g++ -std=c++17 {flags} -o {name}.o -c {name}.cpp"
        subprocess.run(command.split(), cwd=build, check=True)
        commands.append({"directory": str(build), "command": command, "file": f"{name}.cpp", "output": f"{name}.o"})
    (build / "compile_commands.json").write_text(json.dumps(commands))
    return build


def test_weak_symbols_in_isa_objects(plant, tmp_path):
    weak = "#include <vector>\nvoid f(std::vector<int> &v) { v.push_back(1); }\ninline int g() { static int n; return n++; }\nint h() { return g(); }\n"
    build = build_folder(tmp_path, {
        "clean": ("namespace { int helper(int x) { return x + 1; } } int kernel(int x) { return helper(x); }\n", "-DTE_CPU_ISA=avx2"),
        "core": (weak, ""), "bad": (weak, "-DTE_CPU_ISA=avx512")})
    complaints = plant("isa-weak", {}, build)
    assert complaints and all(c.startswith("bad.o: weak symbol") for c in complaints)
    assert any("g()" in c for c in complaints)


def library(tmp_path: Path, code: str, script: str, flags: str = "") -> Path:
    build = tmp_path / "build"
    build.mkdir(exist_ok=True)
    (build / "l.cpp").write_text(code)
    (build / "l.map").write_text(script)
    command = f"g++ -shared -fPIC -o libte.so.0 l.cpp -Wl,--version-script=l.map {flags}"
    subprocess.run(command.split(), cwd=build, check=True)
    return build


VERSIONED = "LIBTE_0 { global: nvte_*; local: *; };"


@pytest.mark.parametrize(("code", "script", "flags", "word"), [
    ('extern "C" int nvte_x() { return 1; } int hidden() { return 2; }', VERSIONED, "", None),
    ('extern "C" int nvte_x() { return 1; } int other() { return 2; }', "LIBTE_0 { global: *; };", "", "exports _Z5otherv"),
    ('extern "C" int nvte_x() { return 1; }', "OTHER_1 { global: nvte_*; local: *; };", "", "nvte_x@@OTHER_1"),
    ('extern "C" int nvte_x() { return 1; }', VERSIONED, "-Wl,--no-as-needed -lutil -lcrypt", "libcrypt")])
def test_symbols(plant, tmp_path, code, script, flags, word):
    complaints = plant("2-symbols", {}, library(tmp_path, code, script, flags))
    assert (complaints == []) if word is None else any(word in c for c in complaints), complaints


def test_golden_list_may_only_grow(plant, tmp_path):
    def git(*args: str) -> None:
        subprocess.run(["git", "-c", "user.email=a@b.c", "-c", "user.name=n", *args], cwd=tmp_path, check=True, capture_output=True)

    golden = "tests/abi/golden.txt"
    first = "size nvte_x_args 16\nsymbol nvte_a LIBTE_0\nsymbol nvte_b LIBTE_0\n"
    assert plant("2-golden", {golden: first}) == []
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "x")
    git("tag", "v0.1.0")
    assert plant("2-golden", {golden: first + "symbol nvte_c LIBTE_0\n"}) == []
    assert any("nvte_b" in c for c in plant("2-golden", {golden: first.replace("symbol nvte_b LIBTE_0\n", "")}))


def test_cpp_tests_that_nothing_compiles(plant, tmp_path):
    build = tmp_path / "build"
    build.mkdir()
    tests = [tmp_path / "tests/cpp/ops/copy.cpp"]
    (build / "compile_commands.json").write_text(json.dumps([{"directory": ".", "file": str(t), "command": ""} for t in tests]))
    assert plant("10-collected", {}, build) == []
    assert any("lost.cpp" in c for c in plant("10-collected", {"tests/cpp/ops/lost.cpp": SPDX}, build))


def test_a_composite_needs_no_kernel(plant):
    composite = {"libte/src/ops/copy/cpu.cpp": None, "libte/src/ops/copy/op.cpp": SPDX + 'int f() { return call_op("x", 0, 0); }\n'}
    assert plant("7-complete", composite) == []


def test_command_line(tmp_path, plant):
    assert plant("spdx", {}) == []
    script = [sys.executable, str(ROOT / "tools" / "lint.py"), "--root", str(tmp_path), "spdx", "3-places"]
    good = subprocess.run(script, capture_output=True, text=True)
    assert good.returncode == 0 and "0 complaints" in good.stdout
    (tmp_path / "libte/src/core/a.cpp").write_text("int x;\n")
    bad = subprocess.run(script, capture_output=True, text=True)
    assert bad.returncode == 1 and "FAIL spdx" in bad.stdout and "1 complaint" in bad.stdout


def test_largest_files_and_functions_are_reported(plant, tmp_path):
    plant("spdx", {"libte/src/core/long.cpp": SPDX + "int big(int x) {\n" + "  x++;\n" * 50 + "  return x;\n}\n"})
    files, functions = lint.largest(lint.Tree(tmp_path))
    assert files[0][1] == "libte/src/core/long.cpp"
    assert functions[0][1].endswith("long.cpp:2 big") and functions[0][0] >= 50
