"""The text form of kernels: `parse_kernel(show_kernel(k)) == k`.

kernel k0_rows
  param a0: f32
  param a1: f32 written
  for i0 in 512 parallel
    acc r0: max f32
    for i1 in 128 vector
      fold r0[0] = a0[128*i0 + i1]
    for i1 in 128 vector
      a1[128*i0 + i1] = a0[128*i0 + i1] - r0[0]
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from firebrick.ir.index.expr import INF, ZERO, Var
from firebrick.ir.kernels.schedule import Kernel, Param
from firebrick.ir.kernels.tree import Acc, Fold, Let, Loop, Scratch
from firebrick.ir.loops.parse import LoopSyntaxError, NestReader, Reader
from firebrick.ir.loops.program import Buffer, Nest, Store
from firebrick.ir.loops.show import show_node

if TYPE_CHECKING:
    from firebrick.ir.kernels.tree import Stmt
    from firebrick.ir.loops.program import Axis

__all__ = ["parse_kernel", "show_kernel"]


def show_kernel(kernel: Kernel) -> str:
    """A kernel as text."""
    lines = [f"kernel {kernel.name}"]
    symbols: dict[str, Var] = {}
    for loop in _loops(kernel.body):
        symbols.update((v.name, v) for v in loop.axis.size.vars())
    for name in kernel.sizes:
        v = symbols.get(name)
        low, high = (v.lo, v.hi) if v is not None else (0, INF)
        lines.append(f"  size {name} in {low}..{'inf' if high >= INF else high}")
    lines += [f"  param {p.name}: {p.dtype}{' written' if p.written else ''}" for p in kernel.params]
    lines += [f"  reuse {kernel.params[a].name} {kernel.params[b].name}" for a, b in kernel.reuse]
    for s in kernel.body:
        _show(s, "  ", lines)
    return "\n".join(lines) + "\n"


def _loops(body: tuple[Stmt, ...]) -> list[Loop]:
    return [x for s in body if isinstance(s, Loop) for x in (s, *_loops(s.body))]


def _show(s: Stmt, indent: str, lines: list[str]) -> None:
    if isinstance(s, Loop):
        kind = "" if s.kind == "serial" else f" {s.kind}"
        lines.append(f"{indent}for {s.axis.var.name} in {s.axis.size.show()}{kind}{' parallel' if s.parallel else ''}")
        for x in s.body:
            _show(x, indent + "  ", lines)
    elif isinstance(s, Scratch):
        lines.append(f"{indent}scratch {s.name}: {s.dtype}[{s.size}]")
    elif isinstance(s, Acc):
        lines.append(f"{indent}acc {s.name}: {s.reduction} {s.dtype}{' running' if s.running else ''}")
    else:
        word, store = "", s
        if isinstance(s, Let):
            word, store = f"let {s.value.dtype} ", Store(s.name, ZERO, s.value)
        elif isinstance(s, Fold):
            word, store = "fold ", Store(s.acc, s.position, s.value)
        assert isinstance(store, Store)
        *names, last = (line.strip() for line in show_node(Nest("", (), (store,))).split("\n")[1:])
        lines.extend(f"{indent}{line}" for line in (*names, word + last))


def parse_kernel(text: str) -> Kernel:
    """Read what `show_kernel` wrote.

    Raises:
        LoopSyntaxError: with the line that can't be read.
    """
    return _KernelReader(text).kernel()


_PARAM = re.compile(r"param (\w+): (\w+)( written)?")
_LOOP = re.compile(r"for (\w+) in (.+?)( vector| tile)?( parallel)?")
_LET = re.compile(r"let (\w+) ((\w+)\[.*)")
_SCRATCH = re.compile(r"scratch (\w+): (\w+)\[(\d+)\]")
_ACC = re.compile(r"acc (\w+): (\w+) (\w+)( running)?")
_NAMED = re.compile(r"v\d+ = ")


class _KernelReader(Reader):
    """Goes through the lines of a kernel once."""

    def kernel(self) -> Kernel:
        """The whole text."""
        name = self.lines[0].removeprefix("kernel ").strip() if self.lines else ""
        if not name or not self.lines[0].startswith("kernel "):
            raise LoopSyntaxError("expected `kernel NAME`")
        params: list[Param] = []
        reuse: list[tuple[int, int]] = []
        self.at = 1
        while self.at < len(self.lines):
            line = self.lines[self.at].strip()
            if line.startswith("size "):
                self.size(line)
            elif found := _PARAM.fullmatch(line):
                params.append(Param(found[1], found[2], bool(found[3])))
                self._declare(found[1], found[2])
            elif line.startswith("reuse "):
                places = {p.name: k for k, p in enumerate(params)}
                a, b = line.split()[1:]
                reuse.append((places[a], places[b]))
            else:
                break
            self.at += 1
        body = self._body(2, [])
        if self.at < len(self.lines):
            self.fail("can't read the statement")
        return Kernel(name, tuple(params), body, tuple(self.sizes), tuple(reuse))

    def _declare(self, name: str, dtype: str) -> None:
        self.buffers[name] = Buffer(name, dtype, (), (), "temp")

    def _body(self, indent: int, axes: list[Axis]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if len(line) - len(line.lstrip()) < indent:
                break
            out.append(self._statement(line.strip(), indent, axes))
        return tuple(out)

    def _statement(self, line: str, indent: int, axes: list[Axis]) -> Stmt:
        self.at += 1
        if found := _LOOP.fullmatch(line):
            axis = self.axis(found[1], found[2])
            body = self._body(indent + 2, [*axes, axis])
            return Loop(axis, (found[3] or " serial").strip(), bool(found[4]), body)
        if found := _SCRATCH.fullmatch(line):
            self._declare(found[1], found[2])
            return Scratch(found[1], found[2], int(found[3]))
        if found := _ACC.fullmatch(line):
            self._declare(found[1], "i64" if found[2].startswith("arg") else found[3])
            return Acc(found[1], found[2], found[3], bool(found[4]))
        texts = [line]
        while _NAMED.match(texts[-1]):
            texts.append(self.lines[self.at].strip())
            self.at += 1
        let = _LET.fullmatch(texts[-1])
        if let:
            self._declare(let[3], let[1])
        word = "let" if let else "fold" if texts[-1].startswith("fold ") else ""
        texts[-1] = let[2] if let else texts[-1].removeprefix("fold ")
        self.at -= len(texts)
        stores = NestReader(self, axes).stores(texts)
        if not stores:
            self.fail("expected a store")
        store = stores[0]
        if word == "let":
            return Let(store.buffer, store.value)
        return Fold(store.buffer, store.value, store.index) if word == "fold" else store
