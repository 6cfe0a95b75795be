"""Reads the text form of loop programs: `parse(show(program)) == program`. The grammar is in docs/loop-ir.md.

Lines are taken apart with a few regular expressions; the scalars and indices in them are Python expressions, once
the names of temporaries (%0) are spelled as Python names.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from firebrick.errors import FirebrickError
from firebrick.ir.index.expr import INF, ZERO, Expr, Var, exprs, var
from firebrick.ir.index.index_text import from_ast
from firebrick.ir.index.index_text import parse as parse_expr
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import (
    Axis,
    Buffer,
    Const,
    Enum,
    Extern,
    Index,
    Load,
    LoopProgram,
    Masked,
    Nest,
    Node,
    Op,
    Recipe,
    Reduce,
    Ref,
    Scan,
    Store,
    Value,
    contiguous_strides,
)
from firebrick.ir.loops.scalar_ops import REDUCTIONS, SCALAR_OPS, SCANS, result_dtype
from firebrick.ir.loops.show import INFIX


class LoopSyntaxError(FirebrickError, ValueError):
    """The text is not a loop program."""


def parse(text: str) -> LoopProgram:
    """Read a program.

    Raises:
        LoopSyntaxError: with the line that can't be read.
    """
    return Reader(text).program()


_BUFFER_KINDS = ("input", "const", "derived", "temp", "output")
_BUFFER = re.compile(r"\s*(\S+): (\w+)\[([^\]]*)\](?: on (\w+(?::\d+)?))?")
_EXTERN = re.compile(r"(\S+) extern (.*?) = (\w+::[\w.]+)\((.*)\)( into)?(?: writes (.*?))?(?: on (\w+(?::\d+)?))?")
_NEST = re.compile(r"(\S+) (?:for (.*)|once)")
_SIZE = re.compile(r"size (\w+) in (-?\d+)\.\.(\d+|inf)")
_TEMP = re.compile(r"(?<![\w)%])%(\w+)")
_TEMP_NAME = "_temp_"


def _name(text: str) -> str:
    return "%" + text[len(_TEMP_NAME) :] if text.startswith(_TEMP_NAME) else text


class Reader:
    """Goes through the lines once."""

    def __init__(self, text: str) -> None:
        self.lines = [line for line in text.split("\n") if line.strip()]
        self.at = 0
        self.sizes: dict[str, Expr] = {}
        self.buffers: dict[str, Buffer] = {}

    def fail(self, why: str) -> NoReturn:
        """Report the current line."""
        line = self.lines[self.at].strip() if self.at < len(self.lines) else "the end"
        raise LoopSyntaxError(f"{why} in line {self.at + 1}: {line}")

    def program(self) -> LoopProgram:
        """The whole text."""
        if not self.lines or not self.lines[0].startswith("loops "):
            self.fail("expected `loops NAME`")
        name = self.lines[0][len("loops ") :].strip()
        nodes: list[Node] = []
        recipe: list[Extern] = []
        self.at = 1
        while self.at < len(self.lines):
            line = _strip_comment(self.lines[self.at]).strip()
            word = line.split(" ", 1)[0]
            if word == "out":
                outputs = self.arguments(line[len("out") :])[0]
                if self.at != len(self.lines) - 1:
                    self.at += 1
                    self.fail("text after the outputs")
                return self.finish(name, nodes, recipe, outputs)
            if word == "size":
                self.size(line)
            elif word in _BUFFER_KINDS:
                self.declare(word, line[len(word) :])
            elif word == "recipe":
                recipe.append(self.extern(line[len("recipe ") :]))
            elif " extern " in line:
                nodes.append(self.extern(line))
            else:
                nodes.append(self.nest(line))
                continue
            self.at += 1
        return self.fail("expected the outputs")

    def finish(self, name: str, nodes: list[Node], recipe: list[Extern], outputs: tuple[object, ...]) -> LoopProgram:
        """Assemble the parts."""
        buffers = tuple(self.buffers.values())
        inputs = tuple(b.name for b in buffers if b.kind == "input")
        consts = tuple(b.name for b in buffers if b.kind == "const")
        return LoopProgram(name, buffers, tuple(nodes), inputs, consts, outputs, Recipe(tuple(recipe)))

    # ------------------------------------------------------------ declarations

    def size(self, line: str) -> None:
        """A symbolic size."""
        match = _SIZE.fullmatch(line) or self.fail("expected `size NAME in LOW..HIGH`")
        hi = INF if match[3] == "inf" else int(match[3])
        self.sizes[match[1]] = var(match[1], int(match[2]), hi)

    def declare(self, kind: str, rest: str) -> None:
        """One or more buffers of a kind."""
        end = 0
        while end < len(rest):
            match = _BUFFER.match(rest, end) or self.fail("expected `NAME: DTYPE[SIZES]`")
            if match[2] not in DTYPES:
                self.fail(f"unknown dtype {match[2]}")
            sizes, _, strides = match[3].partition("|")
            shape = self.exprs(sizes)
            layout = self.exprs(strides) if strides else contiguous_strides(shape)
            self.buffers[match[1]] = Buffer(match[1], match[2], shape, layout, kind, match[4] or "cpu")
            end = match.end()
            if end < len(rest) and rest[end] != ",":
                self.fail("expected `,`")
            end += 1

    def exprs(self, text: str) -> tuple[Expr, ...]:
        """Index expressions between commas."""
        try:
            return tuple(parse_expr(t, self.sizes) for t in _split(text))
        except ValueError as error:
            self.fail(str(error))

    # ------------------------------------------------------------ library calls

    def extern(self, line: str) -> Extern:
        """A library call."""
        match = _EXTERN.fullmatch(line) or self.fail("expected `NAME extern OUTS = OP(ARGUMENTS)`")
        args, kwargs = self.arguments(match[4])
        outs = tuple(None if o == "_" else o for o in _split(match[2]))
        writes = tuple(_split(match[6] or ""))
        return Extern(match[1], match[3], args, kwargs, outs, bool(match[5]), writes, device=match[7] or "cpu")

    def arguments(self, text: str) -> tuple[tuple[object, ...], tuple[tuple[str, object], ...]]:
        """Arguments of a call."""
        tree = self.python(f"f({text})")
        assert isinstance(tree, ast.Call)
        args = tuple(self.argument(a) for a in tree.args)
        return args, tuple((k.arg or "", self.argument(k.value)) for k in tree.keywords)

    def argument(self, tree: ast.expr) -> object:
        """One argument of a library call."""
        match tree:
            case ast.Constant(value=value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                number = self.argument(operand)
                if isinstance(number, (int, float)):
                    return -number
            case ast.Name(id="inf"):
                return math.inf
            case ast.Name(id="nan"):
                return math.nan
            case ast.Name(id=name) if _name(name) in self.buffers:
                b = self.buffers[_name(name)]
                return Ref(b.name, b.shape, b.strides, ZERO)
            case ast.List(elts=items):
                return tuple(self.argument(i) for i in items)
            case ast.Call(func=ast.Name(id="complex"), args=[real, imaginary]):
                parts = (self.argument(real), self.argument(imaginary))
                return complex(*(p for p in parts if isinstance(p, float)))
            case ast.Call(func=ast.Name(id="expr"), args=[inner]):
                return self.index(inner, {})
            case ast.Call(
                func=ast.Name(id="view"), args=[ast.Name(id=name), ast.List() as shape, ast.List() as strides, *rest]
            ):
                return self.view(_name(name), shape, strides, rest)
            case ast.Call(func=ast.Name(id=kind), args=[ast.Constant(value=str(value))]):
                return Enum(kind, value)
        return self.fail(f"can't read the argument {ast.unparse(tree)}")

    def view(self, name: str, shape: ast.List, strides: ast.List, rest: Sequence[ast.expr]) -> Ref:
        """A strided view of a buffer."""
        if name not in self.buffers or not rest:
            self.fail(f"can't read a view of {name}")
        sizes = exprs(self.index(n, {}) for n in shape.elts)
        steps = exprs(self.index(n, {}) for n in strides.elts)
        dtype = rest[1].value if len(rest) > 1 and isinstance(rest[1], ast.Constant) else None
        return Ref(name, sizes, steps, self.index(rest[0], {}), str(dtype) if dtype is not None else None)

    # ------------------------------------------------------------ loop nests

    def nest(self, line: str) -> Nest:
        """A loop nest: its head and the more indented lines after it."""
        match = _NEST.fullmatch(line) or self.fail("expected a loop nest")
        indent = _indent(self.lines[self.at])
        axes = []
        for part in _split(match[2] or ""):
            loop = re.fullmatch(r"(\w+) in (.+)", part) or self.fail("expected `NAME in SIZE`")
            axes.append(self.axis(loop[1], loop[2]))
        self.at += 1
        end = self.at
        while end < len(self.lines) and _indent(self.lines[end]) > indent:
            end += 1
        texts = [_strip_comment(line).strip() for line in self.lines[self.at : end]]
        return Nest(match[1], tuple(axes), tuple(NestReader(self, axes).stores(texts)))

    def axis(self, name: str, size: str) -> Axis:
        """A loop over a size in text form."""
        return _axis(name, self.exprs(size)[0])

    def python(self, text: str) -> ast.expr:
        """Text as a Python expression, temporaries as Python names; the modulus sign always follows its operand."""
        try:
            return ast.parse(_TEMP.sub(rf"{_TEMP_NAME}\1", text), mode="eval").body
        except SyntaxError:
            self.fail("can't read the expression")

    def index(self, tree: ast.expr, variables: Mapping[str, Expr]) -> Expr:
        """An index expression."""
        try:
            return from_ast(tree, {**self.sizes, **variables})
        except ValueError as error:
            self.fail(str(error))


class NestReader:
    """The lines of one loop nest."""

    def __init__(self, reader: Reader, axes: Sequence[Axis]) -> None:
        self.reader = reader
        self.variables: dict[str, Expr] = {a.var.name: a.var for a in axes}
        self.named: dict[str, Value] = {}

    def stores(self, texts: Sequence[str]) -> list[Store]:
        """Consecutive lines from the reader's place on: definitions of names, and stores."""
        lines: list[tuple[str, ast.expr | None, ast.expr]] = []
        start = self.reader.at
        for self.reader.at, text in enumerate(texts, start):  # so that what fails is reported with its line
            left, sign, right = text.partition(" = ")
            if not sign:
                self.reader.fail("expected `PLACE = VALUE`")
            tree = self.reader.python(right)
            lines.append((left.strip(), self.reader.python(left) if "[" in left else None, tree))
            # A value may use loops that only a later line's reduction names.
            self._find_axes(tree)
        stores = []
        for self.reader.at, (name, target, tree) in enumerate(lines, start):
            if target is None:
                self.named[name] = self.value(tree)
            else:
                stores.append(self._store(target, tree))
        self.reader.at = start + len(texts)
        return stores

    def _store(self, target: ast.expr, tree: ast.expr) -> Store:
        mode = "set"
        match tree:
            case ast.Call(func=ast.Name(id=("atomic_add" | "atomic_max" | "atomic_min") as name), args=[inner]):
                mode, tree = name.removeprefix("atomic_"), inner
        if not isinstance(target, ast.Subscript):
            self.reader.fail("expected a place to store in")
        buffer, index, binds = self.place(target)
        return Store(buffer, index, self.value(tree), mode, binds)

    def _find_axes(self, tree: ast.expr) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.comprehension) and isinstance(node.target, ast.Name):
                size = self.reader.index(node.iter, {})
                self.variables[node.target.id] = _axis(node.target.id, size).var

    # ------------------------------------------------------------ values

    def value(self, tree: ast.expr, dtype: str | None = None) -> Value:
        """A scalar; a bare number needs the `dtype` that its place gives it."""
        if _is_number(tree):
            if dtype is None:
                self.reader.fail(f"the dtype of {ast.unparse(tree)} is unknown")
            return _constant(tree, dtype)
        match tree:
            case ast.Name(id=name) if name in self.named:
                return self.named[name]
            case ast.Subscript():
                buffer, index, binds = self.place(tree)
                return Load(self.reader.buffers[buffer].dtype, buffer, index, binds)
            case ast.Compare(left=left, ops=[sign], comparators=[right]):
                return self.infix(type(sign), left, right)
            case ast.BinOp(left=left, op=sign, right=right):
                return self.infix(type(sign), left, right)
            case ast.Call(func=ast.Name(id=name), args=args):
                return self.call(name, args)
        return self.reader.fail(f"can't read {ast.unparse(tree)}")

    def infix(self, sign: type[ast.AST], left: ast.expr, right: ast.expr) -> Value:
        """A scalar function written with a sign."""
        a, b = self.uniform([left, right])
        for name in _SIGNS.get(sign, ()):
            row = SCALAR_OPS[name]
            if DTYPES[a.dtype].kind in row.takes.split():
                return Op(result_dtype(name, a.dtype), name, (a, b))
        return self.reader.fail(f"no such operation on {a.dtype}")

    def uniform(self, trees: Sequence[ast.expr]) -> list[Value]:
        """Values of one dtype, which bare numbers take from the others."""
        values = [None if _is_number(t) else self.value(t) for t in trees]
        dtype = next((v.dtype for v in values if v is not None), None)
        return [self.value(t, dtype) if v is None else v for v, t in zip(values, trees, strict=True)]

    def call(self, name: str, args: list[ast.expr]) -> Value:
        """A scalar function, reduction or conversion written as a call."""
        if name in DTYPES and len(args) == 1:
            if _is_number(args[0]):
                return _constant(args[0], name)
            return Index(name, self.reader.index(args[0], self.variables))
        if name.startswith("to_") and name[3:] in DTYPES:
            return Op(name[3:], "to", (self.value(args[0]),))
        if name == "masked":
            cond, body = self.value(args[0]), self.value(args[1])
            return Masked(body.dtype, cond, body, _constant(args[2], body.dtype))
        if name in REDUCTIONS and len(args) == 1:
            return self.reduction(name, args[0])
        kind = name.removeprefix("running_")
        if kind != name and kind in SCANS and len(args) == 2 and isinstance(args[1], ast.Name):
            loop, body = self.variables.get(args[1].id), self.value(args[0])
            if not isinstance(loop, Var):
                self.reader.fail(f"no loop {args[1].id}")
            return Scan(body.dtype, kind, loop, body)
        name = name.removesuffix("_")
        row = SCALAR_OPS.get(name)
        if row is None or row.arity != len(args):
            self.reader.fail(f"no function {name} of {len(args)} arguments")
        if name == "where":
            a, b = self.uniform(args[1:])
            return Op(b.dtype, name, (self.value(args[0]), a, b))
        values = self.uniform(args)
        return Op(result_dtype(name, values[-1].dtype), name, tuple(values))

    def reduction(self, name: str, tree: ast.expr) -> Value:
        """A reduction over the loops that it names."""
        axes: list[Axis] = []
        if isinstance(tree, ast.GeneratorExp):
            for loop in tree.generators:
                assert isinstance(loop.target, ast.Name)
                axes.append(_axis(loop.target.id, self.reader.index(loop.iter, {})))
            tree = tree.elt
        body = self.value(tree)
        dtype = {"same": body.dtype, "bool": "b8", "i64": "i64"}[REDUCTIONS[name].result]
        return Reduce(dtype, name, tuple(axes), body)

    def place(self, tree: ast.Subscript) -> tuple[str, Expr, tuple[tuple[Var, Value], ...]]:
        """buffer[index, x := below(value, limit)...]."""
        assert isinstance(tree.value, ast.Name)
        name = _name(tree.value.id)
        if name not in self.reader.buffers:
            self.reader.fail(f"unknown buffer {name}")
        parts = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        variables, binds = dict(self.variables), []
        for part in parts[1:]:
            match part:
                case ast.NamedExpr(
                    target=ast.Name(id=slot), value=ast.Call(func=ast.Name(id="below"), args=[inner, limit])
                ):
                    bound = self._bound(slot, limit)
                    variables[slot] = bound
                    binds.append((bound, self.value(inner)))
                case _:
                    self.reader.fail(f"can't read {ast.unparse(part)}")
        return name, self.reader.index(parts[0], variables), tuple(binds)

    def _bound(self, name: str, limit: ast.expr) -> Var:
        if isinstance(limit, ast.Name) and limit.id == "inf":
            return var(name)
        e = self.reader.index(limit, {})
        return var(name, 0, e.const - 1) if e.is_const else var(name, bound=e)


# ---------------------------------------------------------------- text


def _signs() -> dict[type[ast.AST], list[str]]:
    """What Python's grammar calls a sign -> the scalar functions that are written with it."""
    signs: dict[type[ast.AST], list[str]] = {}
    for name, sign in INFIX.items():
        tree: Any = ast.parse(f"a {sign} b", mode="eval").body
        signs.setdefault(type(tree.op if isinstance(tree, ast.BinOp) else tree.ops[0]), []).append(name)
    return signs


_SIGNS = _signs()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _strip_comment(line: str) -> str:
    return line.split("  # ", 1)[0]


def _split(text: str) -> list[str]:
    """Parts between commas that are outside of all brackets."""
    parts: list[str] = []
    depth = 0
    current = ""
    for char in text:
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    if current.strip():
        parts.append(current.strip())
    return parts


def _axis(name: str, size: Expr) -> Axis:
    return Axis(var(name, 0, max(size.const - 1, 0)) if size.is_const else var(name, bound=size), size)


def _is_number(tree: ast.expr) -> bool:
    match tree:
        case ast.Constant() | ast.Name(id="inf" | "nan"):
            return True
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_number(operand)
    return False


def _constant(tree: ast.expr, dtype: str) -> Const:
    sign = 1
    while isinstance(tree, ast.UnaryOp):
        sign, tree = -sign, tree.operand
    value = getattr(math, tree.id) if isinstance(tree, ast.Name) else tree.value  # type: ignore[attr-defined]
    if dtype == "b8":
        return Const(dtype, bool(value))
    return Const(dtype, _rounded(sign * float(value), dtype) if DTYPES[dtype].is_float else sign * value)


def _rounded(value: float, dtype: str) -> float:
    """The number of `dtype` that a short decimal stands for."""
    return float(np.float32(value)) if dtype == "f32" else value
