# SPDX-License-Identifier: Apache-2.0
"""The public headers as data: what every generator reads. `load()` parses libte/include/libte/*.h into a `Schema`.

An operator `<op>` is a struct `nvte_<op>_args` and a prototype `nvte_status nvte_<op>(const nvte_exec *, const nvte_<op>_args *)`.
The comment before the struct is its help; the comment beside each field (all but struct_size) follows this grammar:

    tensor  := direction ['?'] ['list(' count ')'] dims dtypes {word} ';' text
    direction := 'in' | 'out' | 'inout'           '?' = optional; in = `const nvte_tensor *`, the others `nvte_tensor *`
    count   := name of a size_t field              a list is `[const] nvte_tensor *const *`
    dims    := '[...]' | '[' ['*' [',']] [expr {',' expr}] ']'
                                                   '[...]' = not expressible: op.cpp's validate and infer do it
    expr    := term {('+' | '-') term}             term := factor {('*' | '/') factor}
    factor  := integer | name | '(' expr ')' | 'ceil(' expr '/' expr ')' | 'prod(*)'
                                                   '/' divides exactly; 'prod(*)' = product of the leading dimensions
    dtypes  := dtype {'|' dtype}                   dtype := one of DTYPES | 'any' | <field> '.dtype'
    word    := 'quantized' | 'rows' | 'strided'    none of the last two = contiguous
    scalar  := ['=' default] {[','] ('>=' | '<=') number} ';' text      or just text (a DLDataType: required)

`*` is any number of leading dimensions, one value for a whole operator. A bare name binds where it is first seen and must agree
later. Names that are seen in list fields only bind once a list entry. `[1]` also takes rank 0. For an output the first dtype
listed is the one that nvte_infer picks. An output's text may say 'may alias x [or y]': nothing else that is written may share
memory with another argument. A malformed or missing comment raises `SchemaError` with file:line.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional, Union

DTYPES = ("f32", "f16", "bf16", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0", "u8", "i8", "i16", "i32", "i64", "bool", "f64")
WORDS = ("quantized", "rows", "strided")
ALIAS = re.compile(r"\bmay alias (\w+(?: or \w+)*)")  # in an output's text

# C type -> kind. Kinds are the NVTE_FIELD_* names in lower case.
SCALARS = {"float": "f32", "int32_t": "i32", "uint32_t": "u32", "int64_t": "i64", "size_t": "size", "DLDataType": "dtype"}
KIND_CONSTANT = {k: "NVTE_FIELD_" + k.upper() for k in ("tensor", "tensor_list", "f32", "i32", "u32", "i64", "size", "dtype")}


class SchemaError(Exception):
    """A header that breaks the grammar; the text starts with file:line."""


@dataclass(frozen=True)
class Num:
    value: int


@dataclass(frozen=True)
class Name:
    name: str


@dataclass(frozen=True)
class Bin:
    op: str  # + - * /
    a: "Expr"
    b: "Expr"


@dataclass(frozen=True)
class Ceil:
    """ceil(a / b)"""

    a: "Expr"
    b: "Expr"


@dataclass(frozen=True)
class Prod:
    """prod(*)"""


Expr = Union[Num, Name, Bin, Ceil, Prod]


@dataclass(frozen=True)
class Dims:
    """star: leading `*`; trailing: the expressions after it."""

    star: bool
    trailing: tuple[Expr, ...]


@dataclass(frozen=True)
class Field:
    name: str
    kind: str  # a key of KIND_CONSTANT
    ctype: str  # "const nvte_tensor *", "float", ...
    help: str
    line: int
    direction: str = ""  # tensors: in, out, inout
    optional: bool = False
    count: str = ""  # lists: the field with the count
    dims: Optional[Dims] = None  # None: [...] or a scalar
    dims_text: str = ""  # "[*, H]"; "" for scalars
    dtypes: tuple[str, ...] = ()  # ("f32", "x.dtype", "any", ...)
    words: frozenset[str] = frozenset()
    default: Optional[str] = None  # scalars: as written; None = required
    default_value: float = 0.0  # resolved
    bounds: tuple[tuple[str, float, str], ...] = ()  # (">=", 0.0, "0")

    @property
    def is_tensor(self) -> bool:
        return self.kind in ("tensor", "tensor_list")

    @property
    def is_list(self) -> bool:
        return self.kind == "tensor_list"

    @property
    def reads(self) -> bool:
        return self.direction in ("in", "inout")

    @property
    def writes(self) -> bool:
        return self.direction in ("out", "inout")


    @property
    def may_alias(self) -> tuple[str, ...]:
        """Fields whose memory this output may be, element for element."""
        return tuple(name for found in ALIAS.finditer(self.help) for name in found[1].split(" or "))


@dataclass(frozen=True)
class Op:
    name: str  # "rmsnorm_forward"
    header: str  # "norm.h"
    help: str
    fields: tuple[Field, ...]  # without struct_size, in struct order
    line: int

    @property
    def struct(self) -> str:
        return f"nvte_{self.name}_args"

    @property
    def function(self) -> str:
        return f"nvte_{self.name}"

    @property
    def folder(self) -> str:
        """libte/src/ops/<folder>"""
        return re.sub(r"_(forward|backward)$", "", self.name)

    @property
    def has_aliases(self) -> bool:
        return any(f.may_alias for f in self.fields)

    def field(self, name: str) -> Field:
        return next(f for f in self.fields if f.name == name)


@dataclass(frozen=True)
class Constant:
    name: str
    value: int
    text: str  # as written: "0x1u"
    header: str
    help: str
    enum: bool  # from an anonymous enum, else a #define


@dataclass(frozen=True)
class Member:
    """A field of a struct that is no operator's."""

    ctype: str
    name: str
    help: str
    declaration: str  # as written, without the semicolon


@dataclass(frozen=True)
class Struct:
    name: str
    header: str
    help: str
    members: tuple[Member, ...]  # struct_size included; the args structs too


@dataclass(frozen=True)
class Typedef:
    name: str
    header: str
    declaration: str  # "typedef int32_t nvte_status;"


@dataclass(frozen=True)
class Function:
    name: str
    header: str
    help: str
    result: str
    parameters: tuple[tuple[str, str], ...]  # (C type, name)
    declaration: str  # without NVTE_API and semicolon


@dataclass
class Schema:
    ops: list[Op] = field(default_factory=list)  # by header name, then in the order of the header
    constants: list[Constant] = field(default_factory=list)
    structs: list[Struct] = field(default_factory=list)  # in an order in which C accepts them
    typedefs: list[Typedef] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    # structs and typedefs in source order, for a cdef
    declarations: list[Union[Struct, Typedef]] = field(default_factory=list)

    def op(self, name: str) -> Op:
        return next(o for o in self.ops if o.name == name)


# ---- expressions ----
_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|[-+*/(),])")


class _Parser:
    def __init__(self, text: str, where: str):
        self.where, self.text, self.tokens, at = where, text, [], 0
        text = text.rstrip()
        while at < len(text):
            m = _TOKEN.match(text, at)
            if not m:
                raise SchemaError(f"{where}: cannot read '{text[at:]}' in dims '{text}'")
            self.tokens.append(m.group(1))
            at = m.end()
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, want: str = "") -> str:
        token = self.peek()
        if not token or (want and token != want):
            raise SchemaError(f"{self.where}: expected '{want or 'a value'}', found '{token or 'the end'}' in dims '{self.text}'")
        self.at += 1
        return token

    def expr(self) -> Expr:
        e = self.term()
        while self.peek() in ("+", "-"):
            e = Bin(self.take(), e, self.term())
        return e

    def term(self) -> Expr:
        e = self.factor()
        while self.peek() in ("*", "/"):
            e = Bin(self.take(), e, self.factor())
        return e

    def factor(self) -> Expr:
        token = self.take()
        if token.isdigit():
            return Num(int(token))
        if token == "(":
            e = self.expr()
            self.take(")")
            return e
        if token == "prod":
            for t in ("(", "*", ")"):
                self.take(t)
            return Prod()
        if token == "ceil":
            self.take("(")
            e = self.expr()
            self.take(")")
            if not (isinstance(e, Bin) and e.op == "/"):
                raise SchemaError(f"{self.where}: ceil() takes a quotient, in dims '{self.text}'")
            return Ceil(e.a, e.b)
        if re.match(r"[A-Za-z_]", token):
            return Name(token)
        raise SchemaError(f"{self.where}: unexpected '{token}' in dims '{self.text}'")


def parse_dims(text: str, where: str = "dims") -> Optional[Dims]:
    """'[*, H]' -> Dims; None for '[...]'."""
    inner = text.strip()[1:-1].strip()
    if inner == "...":
        return None
    p = _Parser(inner, where)
    star, trailing = False, []
    if p.peek() == "*":
        p.take()
        star = True
        if p.peek():
            p.take(",")
    while p.peek():
        trailing.append(p.expr())
        if p.peek():
            p.take(",")
    return Dims(star, tuple(trailing))


def names_in(e: Union[Expr, Dims, None]) -> list[str]:
    """Names of an expression, in order, each once."""
    out: list[str] = []

    def walk(x):
        if isinstance(x, Name):
            if x.name not in out:
                out.append(x.name)
        elif isinstance(x, (Bin, Ceil)):
            walk(x.a)
            walk(x.b)

    for x in e.trailing if isinstance(e, Dims) else [e]:
        walk(x)
    return out


def uses_star(e: Union[Expr, Dims, None]) -> bool:
    if isinstance(e, Dims):
        return e.star or any(uses_star(x) for x in e.trailing)
    if isinstance(e, (Bin, Ceil)):
        return uses_star(e.a) or uses_star(e.b)
    return isinstance(e, Prod)


# ---- headers ----
def _clean(comment: str) -> str:
    """The text of a /* */ comment without its furniture."""
    lines = comment.split("\n")
    out = [lines[0].strip()]
    for line in lines[1:]:
        out.append(re.sub(r"^\s*\*? ?", "", line).rstrip())
    return "\n".join(out).strip()


def _scalar_field(name, ctype, comment, where, line, constants) -> Field:
    default, value, bounds, rest = None, 0.0, [], comment
    m = re.match(r"=\s*([^,;\s]+)\s*", rest)
    if m:
        default, rest = m.group(1), rest[m.end():]
        if default in constants:
            value = float(constants[default].value)
        else:
            try:
                value = float(default)
            except ValueError:
                raise SchemaError(f"{where}: default '{default}' of {name} is neither a number nor a constant") from None
    while True:
        m = re.match(r",?\s*(>=|<=)\s*([-\w.]+)\s*", rest)
        if not m:
            break
        try:
            bounds.append((m.group(1), float(m.group(2)), m.group(2)))
        except ValueError:
            raise SchemaError(f"{where}: bound '{m.group(2)}' of {name} is no number") from None
        rest = rest[m.end():]
    if default is not None or bounds:
        if not rest.startswith(";"):
            raise SchemaError(f"{where}: {name}: expected '; text' after the default and the bounds, found '{rest}'")
        rest = rest[1:].strip()
    if default is None and SCALARS[ctype] != "dtype":
        raise SchemaError(f"{where}: scalar {name} needs a default ('= value; text')")
    if not rest:
        raise SchemaError(f"{where}: {name} has no text")
    return Field(name, SCALARS[ctype], ctype, rest, line, default=default, default_value=value, bounds=tuple(bounds))


_TENSOR = re.compile(r"(in|out|inout)(\?)?\s+(?:list\((\w+)\)\s+)?(\[[^\]]*\])\s+([^\s;]+)((?:\s+\w+)*)\s*;\s*(.*)$", re.S)


def _tensor_field(name, ctype, comment, where, line) -> Field:
    m = _TENSOR.match(comment)
    if not m:
        raise SchemaError(f"{where}: {name}: expected 'in|out|inout[?] [list(n)] [dims] dtypes words; text', found '{comment}'")
    direction, optional, count, dims_text, dtypes, words, text = m.groups()
    dtypes, words = tuple(dtypes.split("|")), words.split()
    for d in dtypes:
        if d not in DTYPES and d != "any" and not re.fullmatch(r"\w+\.dtype", d):
            raise SchemaError(f"{where}: {name}: unknown dtype '{d}'")
    for w in words:
        if w not in WORDS:
            raise SchemaError(f"{where}: {name}: unknown word '{w}'")
    if "rows" in words and "strided" in words:
        raise SchemaError(f"{where}: {name}: 'rows' and 'strided' exclude each other")
    is_list = ctype.count("*") == 2
    if is_list != bool(count):
        raise SchemaError(f"{where}: {name}: a list needs list(n) and a pointer to pointers")
    if (direction == "in") != ctype.startswith("const "):
        raise SchemaError(f"{where}: {name}: 'in' goes with const nvte_tensor, 'out' and 'inout' without const")
    if not text:
        raise SchemaError(f"{where}: {name} has no text")
    return Field(name, "tensor_list" if is_list else "tensor", ctype, text, line, direction, bool(optional), count or "",
                 parse_dims(dims_text, f"{where}: {name}"), dims_text, dtypes, frozenset(words))


_ITEM = re.compile(
    r"(?P<comment>/\*.*?\*/)"
    r"|(?P<define>^[ \t]*#define[ \t]+(?P<dname>\w+)(?P<dargs>\([^)]*\))?(?P<dvalue>(?:[^\n/]|/(?!\*)|\\\n)*)(?P<dcomment>/\*.*?\*/)?)"
    r"|(?P<pre>^[ \t]*#[^\n]*)"
    r"|(?P<enum>enum\s*\{(?P<ebody>.*?)\}\s*;)"
    r"|(?P<struct>typedef\s+struct\s+(?P<sname>\w+)\s*\{(?P<sbody>.*?)\n?\}\s*(?P=sname)\s*;)"
    r"|(?P<typedef>typedef\s+[^;{]*;)"
    r"|(?P<function>NVTE_API\s+(?P<fdecl>[^;{]*);)"
    r"|(?P<extern>extern\s+\"C\"\s*\{|\})"
    r"|(?P<line>//[^\n]*)"
    r"|(?P<space>\s+)", re.S | re.M)

_MEMBER = re.compile(r"\s*((?:/\*.*?\*/\s*)*)([^;/]+);[ \t]*(/\*.*?\*/)?", re.S)


def _split_declarator(declaration: str) -> tuple[str, str]:
    """'const nvte_tensor *const *history' -> ('const nvte_tensor *const *', 'history'); function pointers keep their type whole."""
    d = re.sub(r"\s+", " ", declaration).strip()
    m = re.search(r"\(\*(\w+)\)\(", d)
    if m:
        return d, m.group(1)
    m = re.match(r"(.*?[\s*])(\w+)$", d)
    if not m:
        return d, ""
    return m.group(1).strip(), m.group(2)


class _Header:
    def __init__(self, path: Path, schema: Schema, constants: dict[str, Constant]):
        self.path, self.schema, self.constants = path, schema, constants
        self.text = path.read_text()
        self.doc, self.last_doc = "", ""
        self.args: dict[str, tuple[Struct, int, int]] = {}  # op -> struct, offset of the body, line
        self.bodies: dict[str, tuple[str, int]] = {}

    def where(self, at: int) -> str:
        return f"{self.path}:{self.text.count(chr(10), 0, at) + 1}"

    def constant(self, name, text, comment, at, enum):
        try:
            value = int(re.sub(r"[uUlL]+$", "", text), 0)
        except ValueError:
            if enum:
                raise SchemaError(f"{self.where(at)}: {name} needs an explicit integer value, found '{text}'") from None
            return
        c = Constant(name, value, text, self.path.name, comment, enum)
        self.constants[name] = c
        self.schema.constants.append(c)

    def parse(self):
        at = 0
        while at < len(self.text):
            m = _ITEM.match(self.text, at)
            if not m:
                raise SchemaError(f"{self.where(at)}: cannot read '{self.text[at:at + 40].splitlines()[0]}'")
            kind = next(k for k in ("comment", "define", "pre", "enum", "struct", "typedef", "function", "extern", "line", "space")
                        if m.group(k) is not None)
            getattr(self, "on_" + kind)(m, at)
            at = m.end()

    def on_comment(self, m, at):
        self.doc = _clean(m.group()[2:-2])

    def on_define(self, m, at):
        if m["dargs"] or not m["dname"].startswith("NVTE_"):
            return
        self.constant(m["dname"], m["dvalue"].strip(), _clean((m["dcomment"] or "/**/")[2:-2]), at, False)

    def on_pre(self, m, at): ...
    def on_extern(self, m, at): ...
    def on_line(self, m, at): ...
    def on_space(self, m, at): ...

    def take_doc(self) -> str:
        self.last_doc, self.doc = self.doc or self.last_doc, ""
        return self.last_doc

    def on_enum(self, m, at):
        self.take_doc()
        body = m["ebody"]
        for e in re.finditer(r"(\w+)\s*(?:=\s*([^,/\s]+))?\s*(?:/\*(.*?)\*/\s*)?(?:,|$)[ \t]*(?:/\*(.*?)\*/)?", body, re.S):
            if not e.group(1).startswith("NVTE_"):
                raise SchemaError(f"{self.where(m.start('ebody') + e.start())}: enumerator '{e.group(1)}' is not NVTE_*")
            self.constant(e.group(1), e.group(2) or "", _clean(e.group(3) or e.group(4) or ""), m.start("ebody") + e.start(), True)

    def on_struct(self, m, at):
        name, help_ = m["sname"], self.take_doc()
        members, pos, body = [], 0, m["sbody"]
        offset = m.start("sbody")
        raw = []
        while body[pos:].strip():
            f = _MEMBER.match(body, pos)
            if not f:
                raise SchemaError(f"{self.where(offset + pos)}: cannot read a field of {name}: '{body[pos:].strip()[:40]}'")
            before, declaration, after = f.groups()
            line = self.where(offset + f.start(2))
            comment = after[2:-2] if after else before.strip()[2:-2] if before.strip() else ""
            ctype, fname = _split_declarator(declaration)
            if not fname:
                raise SchemaError(f"{line}: cannot read the field '{declaration.strip()}' of {name}")
            members.append(Member(ctype, fname, re.sub(r"\s+", " ", _clean(comment)), re.sub(r"\s+", " ", declaration).strip()))
            raw.append((line, bool(after)))
            pos = f.end()
        if not members or (members[0].name, members[0].ctype) != ("struct_size", "size_t"):
            if name != "nvte_field":  # a table row whose stride is fixed by nvte_op
                raise SchemaError(f"{self.where(at)}: {name} must begin with size_t struct_size")
        s = Struct(name, self.path.name, help_, tuple(members))
        self.schema.structs.append(s)
        self.schema.declarations.append(s)
        op = re.fullmatch(r"nvte_(\w+)_args", name)
        if op:
            self.op(op.group(1), s, raw, self.where(at))

    def op(self, name, s, raw, where):
        if not s.help:
            raise SchemaError(f"{where}: {s.name} has no comment before it")
        fields = []
        for member, (line, beside) in list(zip(s.members, raw))[1:]:
            number = int(line.rsplit(":", 1)[1])
            if not beside or not member.help:
                raise SchemaError(f"{line}: {s.name}.{member.name} has no comment beside it")
            if member.ctype in SCALARS:
                fields.append(_scalar_field(member.name, member.ctype, member.help, line, number, self.constants))
            elif re.fullmatch(r"(const )?nvte_tensor \*(const \*)?", member.ctype):
                fields.append(_tensor_field(member.name, member.ctype, member.help, line, number))
            else:
                raise SchemaError(f"{line}: {s.name}.{member.name}: type '{member.ctype}' is none that an args struct may hold")
        by_name = {f.name: f for f in fields}
        for f in fields:
            line = f"{self.path}:{f.line}"
            if f.count and (f.count not in by_name or by_name[f.count].kind != "size"):
                raise SchemaError(f"{line}: {f.name}: count '{f.count}' is no size_t field")
            for d in f.dtypes:
                ref = d[:-6] if d.endswith(".dtype") else ""
                if ref and (ref not in by_name or not by_name[ref].is_tensor):
                    raise SchemaError(f"{line}: {f.name}: dtype '{d}' names no tensor field")
            for other in f.may_alias:
                if other not in by_name or not by_name[other].is_tensor or not f.writes:
                    raise SchemaError(f"{line}: {f.name}: 'may alias {other}' is for outputs and names a tensor field")
        self.schema.ops.append(Op(name, self.path.name, s.help, tuple(fields), int(where.rsplit(":", 1)[1])))

    def on_typedef(self, m, at):
        text = re.sub(r"\s+", " ", m.group())
        f = re.search(r"\(\*(\w+)\)\(", text) or re.search(r"(\w+)\s*;$", text)
        t = Typedef(f.group(1), self.path.name, text)
        self.take_doc()
        self.schema.typedefs.append(t)
        self.schema.declarations.append(t)

    def on_function(self, m, at):
        text = re.sub(r"\s+", " ", m["fdecl"]).strip()
        f = re.match(r"(.*?[\s*])(\w+)\((.*)\)$", text)
        if not f:
            raise SchemaError(f"{self.where(at)}: cannot read the prototype '{text}'")
        parameters, depth, part = [], 0, ""
        for c in f.group(3) + ",":
            depth += (c == "(") - (c == ")")
            if c == "," and not depth:
                parameters.append(_split_declarator(part))
                part = ""
            else:
                part += c
        if parameters == [("void", "")]:
            parameters = []
        self.schema.functions.append(
            Function(f.group(2), self.path.name, self.take_doc(), f.group(1).strip(), tuple(parameters), text))


def include_dir() -> Path:
    return Path(__file__).resolve().parent.parent / "libte" / "include" / "libte"


def load(directory: Optional[Path] = None) -> Schema:
    """Parses every header, in an order that respects their includes."""
    directory = Path(directory) if directory else include_dir()
    order: list[Path] = []

    def visit(path: Path):
        if path in order or path.name == "libte.h":
            return
        for inc in re.findall(r'^#include "(\w+\.h)"', path.read_text(), re.M):
            visit(directory / inc)
        order.append(path)

    for path in sorted(directory.glob("*.h")):
        visit(path)
    schema, constants = Schema(), {}
    for path in order:
        _Header(path, schema, constants).parse()
    prototypes = {f.name: f for f in schema.functions}
    for op in schema.ops:
        f = prototypes.get(op.function)
        if not f or [p[0] for p in f.parameters] != ["const nvte_exec *", f"const {op.struct} *"]:
            raise SchemaError(f"{directory / op.header}:{op.line}: no prototype nvte_status {op.function}(const nvte_exec *exec, "
                              f"const {op.struct} *args)")
    return schema


if __name__ == "__main__":
    s = load()
    for o in s.ops:
        print(o.name, o.header, [(f.name, f.kind, f.direction, f.dims_text, f.default) for f in o.fields])
    print(len(s.ops), "operators", len(s.constants), "constants", len(s.structs), "structs", len(s.functions), "functions")
