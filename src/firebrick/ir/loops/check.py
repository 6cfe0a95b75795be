"""The legality of a loop program, checked between passes under `FIREBRICK_CHECK=1` and always in tests."""

from __future__ import annotations

from collections.abc import Iterable

from firebrick.errors import InternalError
from firebrick.ir.index.expr import Var
from firebrick.ir.loops import program as ir
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.parse import parse
from firebrick.ir.loops.scalar_ops import REDUCTIONS, SCALAR_OPS, SCANS, result_dtype
from firebrick.ir.loops.show import show
from firebrick.ir.loops.values import values_of


def check(program: ir.LoopProgram) -> None:
    """Verify what every stage relies on: declared buffers, order, dtypes, scopes of variables, and the text form.

    Raises:
        InternalError: the program is not legal; names the node.
    """
    _Checker(program).run()


class _Checker:
    """What is declared and computed so far."""

    def __init__(self, program: ir.LoopProgram) -> None:
        self.program = program
        self.buffers: dict[str, ir.Buffer] = {b.name: b for b in program.buffers}
        self.filled = {b.name for b in program.buffers if b.kind in ("input", "const")}
        self.sizes: set[Var] = set()
        self.where = "buffers"

    def expect(self, holds: bool, why: str) -> None:
        """Fail at the current node unless `holds`."""
        if not holds:
            raise InternalError(f"illegal loop program: {why}, in {self.where}")

    def run(self) -> None:
        """Check all parts."""
        program = self.program
        self.expect(len(self.buffers) == len(program.buffers), "two buffers of one name")
        for b in program.buffers:
            self.expect(b.dtype in DTYPES, f"{b.name} has dtype {b.dtype}")
            self.expect(len(b.shape) == len(b.strides), f"{b.name} has {len(b.strides)} strides")
            for e in (*b.shape, *b.strides):
                self.sizes |= e.vars()
        self.expect(program.inputs == self._of_kind("input"), "inputs are not the buffers of kind input in order")
        self.expect(program.consts == self._of_kind("const"), "consts are not the buffers of kind const in order")
        for call in program.recipe.calls:
            self.where = call.name
            self._extern(call)
        names: set[str] = set()
        for node in program.nodes:
            self.where = node.name
            self.expect(node.name not in names, "two nodes of one name")
            names.add(node.name)
            if isinstance(node, ir.Extern):
                self._extern(node)
            else:
                self._nest(node)
        self.where = "outputs"
        for out in program.outputs:
            self._argument(out)
        self.expect(parse(show(program)) == program, "its text reads back as another program")

    def _of_kind(self, kind: str) -> tuple[str, ...]:
        return tuple(b.name for b in self.program.buffers if b.kind == kind)

    def _extern(self, node: ir.Extern) -> None:
        for value in (*node.args, *(v for _, v in node.kwargs)):
            self._argument(value)
        for name in (*node.writes, *(o for o in node.outs if o is not None)):
            self.expect(name in self.buffers, f"unknown buffer {name}")
        self.filled.update(o for o in node.outs if o is not None)

    def _argument(self, value: object) -> None:
        if isinstance(value, tuple):
            for v in value:
                self._argument(v)
        elif isinstance(value, ir.Ref):
            self._readable(value.buffer, empty=any(n.is_const and n.const == 0 for n in value.shape))

    def _readable(self, name: str, empty: bool = False) -> None:
        self.expect(name in self.buffers, f"unknown buffer {name}")
        self.expect(name in self.filled or empty, f"{name} is read before it is computed")

    # ------------------------------------------------------------ nests

    def _nest(self, node: ir.Nest) -> None:
        loops = {a.var.name: a.var for a in node.axes}
        self.expect(len(loops) == len(node.axes), "two loops of one name")
        self._axes(node.axes)
        self.expect(bool(node.stores), "no store")
        scopes: dict[ir.Value, frozenset[Var]] = {}
        outer = frozenset(loops.values()) | self.sizes
        for store in node.stores:
            for v in values_of(store.value, *(b for _, b in store.binds)):
                if v not in scopes:
                    scopes[v] = self._value(v, scopes, loops)
            self._store(store, outer, scopes)
        self.filled.update(s.buffer for s in node.stores)

    def _axes(self, axes: Iterable[ir.Axis]) -> None:
        for axis in axes:
            v, n = axis.var, axis.size
            fits = (v.lo, v.hi) == (0, max(n.const - 1, 0)) if n.is_const else v.lo == 0 and v.bound is n
            self.expect(fits, f"{v.name} doesn't range over 0..{n.show()}-1")

    def _store(self, store: ir.Store, outer: frozenset[Var], scopes: dict[ir.Value, frozenset[Var]]) -> None:
        self.expect(store.buffer in self.buffers, f"unknown buffer {store.buffer}")
        dtype = self.buffers[store.buffer].dtype
        self.expect(dtype == store.value.dtype, f"store of {store.value.dtype} in {dtype}")
        self.expect(store.mode in ("set", "add", "max", "min"), f"mode {store.mode}")
        used = scopes[store.value] | (store.index.vars() - {v for v, _ in store.binds})
        for _, value in store.binds:
            used |= scopes[value]
        self.expect(used <= outer, f"{', '.join(v.name for v in used - outer)} out of scope")

    def _value(self, v: ir.Value, scopes: dict[ir.Value, frozenset[Var]], loops: dict[str, Var]) -> frozenset[Var]:
        """The variables that a value depends on."""
        match v:
            case ir.Const():
                kind = DTYPES[v.dtype].kind
                expected = {"float": float, "bool": bool}.get(kind, int)
                self.expect(type(v.value) is expected, f"constant {v.value!r} of {v.dtype}")
                return frozenset()
            case ir.Index():
                self.expect(v.dtype in ("i64", "i32") and not v.expr.is_const, f"index {v.expr.show()} of {v.dtype}")
                return v.expr.vars()
            case ir.Load():
                return self._load(v, scopes)
            case ir.Op():
                self._op(v)
                return frozenset().union(*(scopes[a] for a in v.args))
            case ir.Masked():
                self.expect(v.cond.dtype == "b8" and v.dtype == v.body.dtype == v.other.dtype, "dtypes of masked")
                return scopes[v.cond] | scopes[v.body]
            case ir.Reduce():
                return self._reduce(v, scopes, loops)
            case ir.Scan():
                kind = DTYPES[v.body.dtype].kind
                self.expect(v.name in SCANS and kind != "bool" and v.dtype == v.body.dtype, f"running {v.name}")
                self.expect(loops.get(v.var.name) is v.var, f"no loop {v.var.name} of the nest to run along")
                return scopes[v.body] | {v.var}

    def _load(self, v: ir.Load, scopes: dict[ir.Value, frozenset[Var]]) -> frozenset[Var]:
        self._readable(v.buffer)
        self.expect(self.buffers[v.buffer].dtype == v.dtype, f"{v.buffer} is not {v.dtype}")
        used: frozenset[Var] = v.index.vars() - {x for x, _ in v.binds}
        for slot, value in v.binds:
            self.expect(value.dtype == "i64" and slot.lo == 0, f"place {slot.name} of {v.buffer}")
            used |= scopes[value]
        return used

    def _op(self, v: ir.Op) -> None:
        row = SCALAR_OPS.get(v.name)
        self.expect(row is not None and len(v.args) == row.arity, f"function {v.name} of {len(v.args)} arguments")
        assert row is not None
        dtypes = [a.dtype for a in v.args]
        if v.name == "where":
            self.expect(dtypes.pop(0) == "b8", "condition is not b8")
        self.expect(len(set(dtypes)) == 1, f"{v.name} of {', '.join(dtypes)}")
        self.expect(DTYPES[dtypes[0]].kind in row.takes.split(), f"{v.name} of {dtypes[0]}")
        result = v.dtype if row.result == "cast" else result_dtype(v.name, dtypes[0])
        self.expect(v.dtype == result, f"{v.name} gives {result}, not {v.dtype}")

    def _reduce(self, v: ir.Reduce, scopes: dict[ir.Value, frozenset[Var]], loops: dict[str, Var]) -> frozenset[Var]:
        row = REDUCTIONS.get(v.name)
        self.expect(row is not None and DTYPES[v.body.dtype].kind in row.takes.split(), f"{v.name} of {v.body.dtype}")
        self._axes(v.axes)
        for axis in v.axes:
            # One name means one loop size in a nest, so that text tells them apart.
            self.expect(loops.setdefault(axis.var.name, axis.var) is axis.var, f"two ranges of {axis.var.name}")
        return scopes[v.body] - {a.var for a in v.axes}
