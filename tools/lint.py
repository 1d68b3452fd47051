# SPDX-License-Identifier: Apache-2.0
"""The laws that CI checks. Each is a function(tree) that yields complaints; `python tools/lint.py [--build DIR] [LAW ...]`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

SOURCE = {".h", ".hpp", ".c", ".cpp", ".cc", ".cu", ".hip", ".py", ".pyi", ".sh", ".map", ".cmake"}
C_FAMILY = {".h", ".hpp", ".c", ".cpp", ".cc", ".cu", ".hip"}
LAWS: dict[str, Callable[[Tree], Iterator[str]]] = {}


@dataclass
class Tree:
    """A checkout, and the build folder where there is one (laws about objects and libraries need it)."""

    root: Path
    build: Path | None = None

    @cached_property
    def files(self) -> list[Path]:
        """Tracked files, and new ones that git does not ignore; every file where there is no git."""
        if (self.root / ".git").exists():
            out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=self.root, check=True,
                                 capture_output=True, text=True).stdout
            names = [n for n in out.split("\0") if n]
        else:
            names = [str(p.relative_to(self.root)) for p in self.root.rglob("*") if p.is_file()]
        return sorted(Path(n) for n in set(names) if (self.root / n).is_file())

    def under(self, folder: str, suffixes: set[str] = SOURCE) -> list[Path]:
        return [f for f in self.files if f.is_relative_to(folder) and f.suffix in suffixes]

    def text(self, f: Path) -> str:
        return (self.root / f).read_text(encoding="utf-8", errors="replace")

    @cached_property
    def ops(self) -> list[str]:
        """Operators: every args struct of the public headers, in order."""
        names: list[str] = []
        for f in self.under("libte/include/libte", {".h"}):
            names += re.findall(r"typedef struct nvte_(\w+)_args \{", self.text(f))
        return names


def law(name: str) -> Callable[[Callable[[Tree], Iterator[str]]], Callable[[Tree], Iterator[str]]]:
    def add(f: Callable[[Tree], Iterator[str]]) -> Callable[[Tree], Iterator[str]]:
        LAWS[name] = f
        return f

    return add


def code(text: str) -> str:
    """C or C++ without comments and string contents, line numbers kept."""
    def blank(m: re.Match[str]) -> str:
        s = m.group(0)
        return '""' if s[0] == '"' else "''" if s[0] == "'" else re.sub(r"[^\n]", " ", s)

    return re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/', blank, text, flags=re.S)


def lines_with(text: str, pattern: str) -> Iterator[tuple[int, str]]:
    for m in re.finditer(pattern, text):
        yield text.count("\n", 0, m.start()) + 1, m.group(0).strip()


def dlpack_include() -> str | None:
    """The folder that holds dlpack/dlpack.h: from the wheel apache-tvm-ffi of this interpreter."""
    try:
        import tvm_ffi.libinfo as info  # type: ignore[import-not-found]

        return str(info.find_dlpack_include_path())
    except ImportError:
        return None


# ------------------------------------------------------------------------------------------------------------- the laws

@law("1-headers")
def headers_compile_alone(t: Tree) -> Iterator[str]:
    """Every public header compiles alone, as C11 and as C++17, with -pedantic-errors -Wall -Wextra -Werror."""
    dlpack = dlpack_include()
    if dlpack is None:
        yield "law 1: this interpreter has no apache-tvm-ffi, so dlpack.h is missing (run make build)"
        return
    common = ["-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{t.root}/libte/include", "-isystem", dlpack]
    for f in t.under("libte/include", {".h", ".hpp"}):
        c_too = f.suffix == ".h" and not f.is_relative_to("libte/include/compat")
        for compiler, std in (("gcc", "-std=c11"), ("g++", "-std=c++17")):
            if std == "-std=c11" and not c_too:
                continue
            with tempfile.NamedTemporaryFile("w", suffix=".c" if c_too and std == "-std=c11" else ".cpp") as unit:
                unit.write(f'#include "{t.root / f}"\n')
                unit.flush()
                run = subprocess.run([compiler, std, *common, unit.name], capture_output=True, text=True)
            if run.returncode:
                yield f"{f}: does not compile alone with {compiler} {std}: {run.stderr.strip().splitlines()[0]}"


def library(t: Tree) -> Path | None:
    return next((p for p in (t.build / "libte.so.0", t.build / "lib" / "libte.so.0", t.build / "libte" / "libte.so.0")
                 if p.exists()), None) if t.build else None


@law("2-symbols")
def exported_symbols(t: Tree) -> Iterator[str]:
    """libte.so exports nvte_* only, each in a LIBTE_* version node, and needs no library that a bare machine lacks."""
    lib = library(t)
    if lib is None:
        return
    out = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", lib], check=True, capture_output=True, text=True).stdout
    for line in out.splitlines():
        symbol = line.split()[-1]
        if re.fullmatch(r"LIBTE_\d+(@@LIBTE_\d+)?", symbol):
            continue
        if not re.fullmatch(r"nvte_\w+@@LIBTE_\d+", symbol):
            yield f"{lib.name}: exports {symbol}; only nvte_* in a LIBTE_ version node may be exported"
    allowed = re.compile(r"lib(c|m|stdc\+\+|gcc_s|pthread|dl|rt)\.so\.\d+|ld-linux.*")
    out = subprocess.run(["readelf", "-d", lib], check=True, capture_output=True, text=True).stdout
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", out):
        if not allowed.fullmatch(name):
            yield f"{lib.name}: needs {name}; libte.so may need libc, libm, libstdc++, libgcc, pthread only"


@law("2-golden")
def golden_only_grows(t: Tree) -> Iterator[str]:
    """The committed ABI list (tests/abi/golden.txt) only grows against the last tag; tests/abi/golden.py holds it to the library."""
    golden = Path("tests/abi/golden.txt")
    if not (t.root / golden).exists():
        return
    tag = subprocess.run(["git", "describe", "--tags", "--abbrev=0"], cwd=t.root, capture_output=True, text=True)
    if tag.returncode:
        return
    name = tag.stdout.strip()
    old = subprocess.run(["git", "show", f"{name}:{golden}"], cwd=t.root, capture_output=True, text=True)
    complaints, _ = golden_rules().compare(old.stdout.splitlines(), t.text(golden).splitlines())
    yield from (f"{golden} against {name}: {c}" for c in complaints)


def golden_rules() -> Any:
    """tests/abi/golden.py: what growth is legal is said there, once."""
    path = Path(__file__).resolve().parents[1] / "tests" / "abi" / "golden.py"
    spec = importlib.util.spec_from_file_location("libte_golden", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@law("3-places")
def words_in_their_place(t: Tree) -> Iterator[str]:
    """try/catch only at the boundary, getenv only in the configuration table, platform #if only in the vendor headers."""
    gpu = ("libte/src/gpu/vendor", "libte/src/gpu/device/mma.h", "libte/src/gpu/device/convert.h", "libte/src/gpu/device/wave.h")
    rules = (
        ("try/catch", r"\b(try\s*\{|catch\s*\()", ("libte/src/api", "libte/src/gpu/plugin.cpp", "libte/include/libte/libte.hpp")),
        ("getenv", r"\b(?:secure_)?getenv\s*\(", ("libte/src/core/config.cpp",)),
        ("platform #if", r"#\s*(?:el)?if[^\n]*\b(__HIP\w*|__CUDA\w*|__NVCC__|__AMDGCN\w*|__gfx\w+__|__GFX\w+__|USE_ROCM)\b", gpu),
    )
    for f in t.under("libte", C_FAMILY):
        text = code(t.text(f))
        for what, pattern, places in rules:
            if not any(f.is_relative_to(p) for p in places):
                for n, word in lines_with(text, pattern):
                    yield f"{f}:{n}: {what} ({word}) belongs in {', '.join(places)}"


@law("4-abi")
def struct_size_first(t: Tree) -> Iterator[str]:
    """struct_size is the first member of every public struct; a function takes at most 6 parameters; no type that C cannot fix."""
    for f in t.under("libte/include/libte", {".h"}):
        text = code(t.text(f))
        for m in re.finditer(r"typedef struct (nvte_\w+) \{(.*?)\}\s*\1;", text, re.S):
            n = text.count("\n", 0, m.start()) + 1
            if m.group(1) != "nvte_field" and not re.match(r"\s*size_t struct_size;", m.group(2)):  # a table row, its stride is fixed by nvte_op
                yield f"{f}:{n}: {m.group(1)}: the first member must be size_t struct_size"
            for word in re.findall(r"\b(bool|_Bool|long|enum)\b|(\w+\s*:\s*\d+);", m.group(2)):
                yield f"{f}:{n}: {m.group(1)}: {''.join(word)} has no fixed layout in the ABI"
        for m in re.finditer(r"NVTE_API\s+[^;(]*?(nvte_\w+)\(((?:[^()]|\([^()]*\))*)\);", text):
            parameters = re.sub(r"\([^()]*\)", "", m.group(2)).count(",") + 1
            if parameters > 6:
                yield f"{f}:{text.count(chr(10), 0, m.start()) + 1}: {m.group(1)} takes {parameters} parameters; 6 at most (use a struct)"


STREET = {  # what a folder of libte/src may include, besides itself and the public headers
    "core": (), "scaling": ("core",), "cpu": ("scaling", "core"), "gpu": ("scaling", "core"), "dispatch": ("core",),
    "ops": ("cpu", "gpu", "scaling", "core"), "api": ("ops", "dispatch", "cpu", "gpu", "scaling", "core"),
}
FRAMEWORK = r"(torch|ATen|c10|pybind11|nanobind|xla|jaxlib|jax|tensorflow|numpy)/|Python\.h"


@law("5-street")
def includes_follow_the_street(t: Tree) -> Iterator[str]:
    """api -> {ops, dispatch}, ops -> {cpu, gpu} -> scaling -> core -> include; an op never includes another op."""
    for f in t.under("libte", C_FAMILY):
        parts = f.parts
        for n, line in lines_with(t.text(f), r'(?m)^\s*#\s*include\s*[<"][^>"\n]+[>"]'):
            target = re.sub(r'^#\s*include\s*[<"]|[>"]$', "", line)
            if re.match(FRAMEWORK, target):
                yield f"{f}:{n}: framework header {target} under libte/"
            if len(parts) < 4 or parts[1] != "src":
                continue
            here, there = parts[2], target.split("/")[0]
            if there in STREET and there != here and there not in STREET.get(here, ()):
                yield f"{f}:{n}: {here} may not include {target} (it may include: {', '.join(STREET.get(here, ())) or 'nothing'})"
            if here == "ops" and there == "ops" and target.count("/") > 1 and target.split("/")[1] != parts[3]:
                yield f"{f}:{n}: operator {parts[3]} includes {target}; call other operators through the table"
    for f in t.under("bindings", C_FAMILY):
        for n, line in lines_with(t.text(f), r'(?m)^\s*#\s*include\s*[<"][^>"\n]+[>"]'):
            target = re.sub(r'^#\s*include\s*[<"]|[>"]$', "", line)
            if target.split("/")[0] in STREET or "libte/src" in target:
                yield f"{f}:{n}: bindings include only libte/include, not {target}"


def largest(t: Tree) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Law 6, reported: the ten largest files and functions."""
    files, functions = [], []
    for f in t.files:
        if f.suffix not in C_FAMILY | {".py"}:
            continue
        text = t.text(f).splitlines()
        files.append((len(text), str(f)))
        if f.suffix == ".py":
            starts = [(i, m) for i, s in enumerate(text) if (m := re.match(r"(\s*)def (\w+)", s))]
            for i, m in starts:
                end = next((k for k in range(i + 1, len(text)) if text[k].strip() and not text[k].startswith((m[1] + " ", m[1] + ")"))),
                           len(text))
                functions.append((end - i, f"{f}:{i + 1} {m[2]}"))
        else:  # clang-format's shape: a function ends at the first line that is a brace in its own column
            for i, s in enumerate(text):
                m = re.match(r"(?!\s|#|namespace|struct|class|enum|typedef|extern|using).*?(\w+)\(.*\{\s*$", s)
                if m:
                    end = next((k for k in range(i + 1, len(text)) if text[k].startswith("}")), len(text))
                    functions.append((end - i + 1, f"{f}:{i + 1} {m[1]}"))
    return sorted(files, reverse=True)[:10], sorted(functions, reverse=True)[:10]


def folder_of(op: str) -> str:
    return re.sub(r"_(forward|backward)$", "", op)


@law("7-complete")
def operators_are_complete(t: Tree) -> Iterator[str]:
    """Each operator has a comment above its struct, op.cpp and cpu.cpp, a test and a case file."""
    for f in t.under("libte/include/libte", {".h"}):
        text = t.text(f)
        for m in re.finditer(r"typedef struct nvte_(\w+)_args \{", text):
            before = re.sub(r"(#define[^\n]*|\s)+$", "", text[:m.start()])
            if not before.endswith("*/"):
                yield f"{f}: nvte_{m.group(1)}_args has no comment above it"
    for folder in dict.fromkeys(map(folder_of, t.ops)):
        for need in (f"libte/src/ops/{folder}/op.cpp", f"libte/src/ops/{folder}/cpu.cpp", f"tests/cpp/ops/{folder}.cpp",
                     f"tests/cases/{folder}.txt"):
            if need.endswith("/cpu.cpp") and is_composite(t, folder):
                continue
            if not (t.root / need).is_file():
                yield f"operator {folder}: {need} is missing"


def is_composite(t: Tree, folder: str) -> bool:
    """A composite runs other operators through the table (call_op in op.cpp), so it has no kernel of its own."""
    f = t.root / "libte/src/ops" / folder / "op.cpp"
    return f.is_file() and re.search(r'"ops/composite\.h"|\bcall_op\(', f.read_text()) is not None


@law("7-gradients")
def gradient_rows(t: Tree) -> Iterator[str]:
    """Each operator stands in a gradient row, or in the list of those that have no gradient, with the reason."""
    f = t.root / "bindings/python/libte/grads.py"
    if not f.is_file():
        yield "bindings/python/libte/grads.py is missing"
        return
    text = f.read_text()
    named = set(re.findall(r'"(\w+)"', text))
    for op in t.ops:
        if op not in named:
            yield f"operator {op}: no row in bindings/python/libte/grads.py and not in NOT_DIFFERENTIABLE"


NUMBER = r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?)f?"


@law("8-tolerance")
def tolerance_literals(t: Tree) -> Iterator[str]:
    """No numeric tolerance outside tests/cpp/harness/tolerance.h and tests/python/tolerance.py."""
    keyword = rf"\b(?:[ra]tol|rel_tol|abs_tol|tol|tolerance|rtol_|atol_|eps_tol)\s*(?:=|:)\s*{NUMBER}"
    call = rf"\b(?:EXPECT_NEAR|ASSERT_NEAR)\s*\([^;]*,\s*{NUMBER}\s*\)|\b(?:approx|isclose|allclose|assert_allclose|assert_close)" \
           rf"\s*\([^\n]*(?:rel|abs|rtol|atol|rel_tol|abs_tol)\s*=\s*{NUMBER}"
    small = r"(?:\d*\.?\d*e-\d+|0?\.\d+)"
    claim = rf"(?:EXPECT|ASSERT|CHECK|assert)[^\n;]*abs\([^\n;]*\)(?:\.\w+\(\))?\s*(?:<=?|,)\s*{small}"
    compare = r"abs\([^\n;]*\)(?:\.\w+\(\))?\s*[<>]=?\s*\d*\.?\d*e-\d+"
    for f in t.under("tests", C_FAMILY | {".py"}):
        if str(f) in ("tests/cpp/harness/tolerance.h", "tests/python/tolerance.py"):
            continue
        text = code(t.text(f)) if f.suffix in C_FAMILY else re.sub(r"#[^\n]*", "", t.text(f))
        for pattern in (keyword, call, claim, compare):
            for n, word in lines_with(text, pattern):
                if re.search(rf"(?:=|:)\s*0(?:\.0*)?f?$", word):  # "equal" is no tolerance
                    continue
                yield f"{f}:{n}: tolerance literal ({word[:60]}) belongs in tolerance.h / tolerance.py"


@law("9-generated")
def nothing_generated_committed(t: Tree) -> Iterator[str]:
    """No generated file is committed but the golden ABI."""
    for f in t.files:
        if f.suffix in {".so", ".o", ".a", ".pyc", ".whl", ".gguf"} or "_generated" in f.parts or f.parts[0] in {"build", "dist"}:
            yield f"{f}: generated file is committed"
        elif f.suffix in SOURCE and re.search(r"(?im)^\W*(generated by tools/|do not edit)", t.text(f)[:400]):
            yield f"{f}: says that it is generated, and is committed"


GPU_TESTS = {Path("tests/cpp/harness/gpu.cpp")}  # compiled by make cuda and make hip, in build folders of their own


@law("10-collected")
def tests_are_collected(t: Tree) -> Iterator[str]:
    """Every test file is run by some job: Python tests by their name, C++ tests by being compiled."""
    for f in t.under("tests/python", {".py"}):
        text = t.text(f)
        tests = re.search(r"(?m)^\s*(?:async )?def test_\w+\(", text)
        if f.name.startswith("test_") and not tests:
            yield f"{f}: a test file with no test in it"
        if tests and not f.name.startswith("test_"):
            yield f"{f}: has tests, but pytest collects test_*.py only"
        if re.search(r"(?m)^\s*(collect_ignore|__test__\s*=\s*False)", text):
            yield f"{f}: takes tests out of the collection"
    commands = t.build / "compile_commands.json" if t.build else None
    if commands and commands.is_file():
        compiled = {Path(c["file"]).resolve() for c in json.loads(commands.read_text())}
        for f in t.under("tests/cpp", {".c", ".cpp"}):
            if f not in GPU_TESTS and (t.root / f).resolve() not in compiled:
                yield f"{f}: is compiled by no target of {t.build}"


@law("spdx")
def licence_lines(t: Tree) -> Iterator[str]:
    """Each source says its licence in the first two lines."""
    for f in t.files:
        name = f.name
        if (f.suffix in SOURCE - {".map"} or name in {"CMakeLists.txt", "Makefile", "run"}) and (t.root / f).stat().st_size:
            if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(t.text(f).splitlines()[:2]):
                yield f"{f}: no SPDX-License-Identifier: Apache-2.0 in the first two lines"


@law("isa-weak")
def no_weak_symbols_in_isa_objects(t: Tree) -> Iterator[str]:
    """Objects built once an ISA level hold no weak symbol: the linker could give an old chip the AVX-512 copy."""
    if t.build is None:
        return
    for obj in isa_objects(t.build):
        out = subprocess.run(["nm", "-C", obj], check=True, capture_output=True, text=True).stdout
        for line in out.splitlines():
            m = re.match(r"[0-9a-f ]{16} ([WVu]) (.*)", line)
            if m:
                yield f"{obj.relative_to(t.build)}: weak symbol {m.group(2)}; per-ISA code may have internal linkage only"


def isa_objects(build: Path) -> list[Path]:
    """Objects whose compile command defines TE_CPU_ISA."""
    commands = build / "compile_commands.json"
    if not commands.is_file():
        return []
    found = []
    for c in json.loads(commands.read_text()):
        text = c.get("command") or " ".join(c.get("arguments", ()))
        if "-DTE_CPU_ISA=" in text:
            out = c.get("output") or re.search(r"\s-o\s+(\S+)", text)[1]  # type: ignore[index]
            path = Path(c["directory"]) / out
            if path.is_file():
                found.append(path)
    return found


@law("hosts")
def no_registry_hosts(t: Tree) -> Iterator[str]:
    """No name of a package registry's host is written into a file; the machine's own configuration says where packages are."""
    hosts = re.compile(r"\b[\w.-]*(?:py" r"pi|python" r"hosted|deb" r"ian|npm" r"js)\.(?:org|com)\b")
    for f in t.files:
        if f.suffix in SOURCE | {".toml", ".txt", ".md", ".yml", ".cfg"} or f.name in {"Makefile", "run"}:
            for n, word in lines_with(t.text(f), hosts.pattern):
                yield f"{f}:{n}: names a registry host ({word})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--build", type=Path, help="build folder, for the laws about objects and libraries")
    parser.add_argument("laws", nargs="*", help=f"of: {', '.join(LAWS)}; all by default")
    args = parser.parse_args()
    tree = Tree(args.root, args.build)
    failed = 0
    for name in args.laws or LAWS:
        complaints = list(LAWS[name](tree))
        failed += len(complaints)
        print(f"{'FAIL' if complaints else 'ok  '} {name}: {(LAWS[name].__doc__ or '').splitlines()[0]}")
        for c in complaints:
            print(f"     {c}")
    if not args.laws:
        files, functions = largest(tree)
        print("largest files:    " + ", ".join(f"{f} {n}" for n, f in files))
        print("largest functions: " + ", ".join(f"{f} {n}" for n, f in functions))
    print(f"{failed} complaint{'s' * (failed != 1)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
