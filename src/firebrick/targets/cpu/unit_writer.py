"""Writing C++: lines, scopes, names and types; and what a translation unit must define for its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from firebrick.ir.index.expr import Expr, Var
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Value
from firebrick.targets.cpu import cpp_types
from firebrick.targets.cpu.scalar_functions import HELPERS
from firebrick.targets.cpu.transpose import BLOCK, SHUFFLE, transpose_helper
from firebrick.targets.cpu.vector_math import HARDWARE, HARDWARE_FUNCTION, INLINE, STEPS, STEPS_ANY

if TYPE_CHECKING:
    from firebrick.targets.cpu.accumulators import AccState
    from firebrick.targets.cpu.cpu_target import CpuTarget


@dataclass(frozen=True, slots=True)
class Text:
    """A C++ expression that may be repeated; varying: it is a vector, one lane an iteration."""

    code: str
    varying: bool


@dataclass(frozen=True, slots=True)
class Lanes:
    """The loop whose iterations are lanes. count: how many lanes are meant, None for all of them."""

    var: Var
    width: int
    count: str | None = None


@dataclass(frozen=True, slots=True)
class Local:
    """A name that a kernel made. scratch: it is an array; private: each lane has its own element."""

    code: str
    varying: bool
    scratch: bool = False
    private: bool = False


@dataclass(slots=True)
class Replica:
    """One of several vectors that a loop body does side by side, with names of its own.

    lanes, name: the lane variable and its C++ name here. suffix: what its other names end with.
    """

    lanes: Lanes | None
    name: str = ""
    suffix: str = ""
    locals: dict[str, Local] = field(default_factory=dict)
    accs: dict[str, AccState] = field(default_factory=dict)
    scopes: list[dict[Value, Text]] = field(default_factory=lambda: [{}])


@dataclass(slots=True)
class Unit:
    """What the kernels of one translation unit need from its prelude.

    exact: functions must have the bits of eager PyTorch's.
    """

    target: CpuTarget
    exact: bool = False
    vectors: dict[tuple[str, int], None] = field(default_factory=dict)
    helpers: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)

    def vector(self, lane: str, width: int) -> str:
        """Name of a vector type."""
        self.vectors[lane, width] = None
        return f"{lane}x{width}"

    def fits(self, lane: str, width: int) -> bool:
        """Whether a vector is one register of the machine."""
        nbytes = DTYPES[lane].nbytes * width
        return nbytes in (16, 32, 64) and nbytes <= self.target.vector_bytes

    def fold(self, op: str, combine: str, lane: str, width: int) -> str:
        """Name of a function that folds the lanes of a vector."""
        name = f"fb_{op}_{lane}x{width}"
        self.vector(lane, width)
        if name not in self.helpers:
            if DTYPES[lane].nbytes >= 4:
                self.vector(cpp_types.SIGNED[DTYPES[lane].nbytes], width)
            self.helpers[name] = SHUFFLE + cpp_types.fold_vector(name, combine, lane, width)
        return name

    def block(self, vector: str, scalar: str, width: int) -> str:
        """Name of a function that turns a block of elements."""
        self.helpers[f"turn_{vector}"] = transpose_helper(vector, scalar, width)
        self.helpers[f"block_{vector}"] = BLOCK.format(v=vector, s=scalar)
        return f"fb_block_{vector}"

    def hidden(self, number: str) -> str:
        """A whole number of which the compiler knows nothing.

        GCC 12 folds `{0, 1, 2...} < 3 ? a : b` wrongly for constant a and b in AVX-512 vectors.
        """
        self.helpers["fb_hidden"] = cpp_types.HIDDEN
        return f"fb_hidden({number})"

    def inline(self, name: str, width: int) -> str:
        """Name of a function of f32 lanes that the unit defines."""
        vector, ints = self.vector("f32", width), self.vector("i32", width)
        steps = STEPS.get(self.target.simd, STEPS_ANY)
        facts = {step: text.format(v=vector, i=ints) for step, text in steps.items()} | {"v": vector, "i": ints}
        for text in INLINE[name]:
            self.helpers.setdefault(f"{text[:60]}{width}", text.format(**facts))
        return f"fb_{name}_{vector}"

    def hardware(self, name: str, lane: str, width: int) -> str:
        """Name of a function that is one instruction of the machine; empty if there is none."""
        text = HARDWARE.get(self.target.simd, {}).get(name, "")
        if not text or not self.fits(lane, width):
            return ""
        vector = self.vector(lane, width)
        text = text.format(p="ps" if lane == "f32" else "pd")
        self.helpers[f"{name}_{vector}"] = HARDWARE_FUNCTION.format(name=name, v=vector, text=text)
        return f"fb_{name}_{vector}"

    def library(self, name: str, lane: str, width: int, arity: int) -> str:
        """Name of a function of SLEEF, bound when the unit is loaded; `name` has {} for type and lanes."""
        lanes = max(width, self.target.sleef // DTYPES[lane].nbytes)
        vector, wide = self.vector(lane, width), self.vector(lane, lanes)
        function = "Sleef_" + name.format(f"{'f' if lane == 'f32' else 'd'}{lanes}")
        self.functions[function] = f"static {wide} (*{function})({', '.join([wide] * arity)});"
        if lanes == width:
            return function
        places, args = range(width), [f"x{k}" for k in range(arity)]
        filled = [f"{wide}{{{', '.join(f'{x}[{k}]' for k in places)}}}" for x in args]
        self.helpers[f"fb_{vector}_{function}"] = (
            f"static inline {vector} fb_{vector}_{function}({', '.join(f'{vector} {x}' for x in args)}) {{\n"
            f"  const {wide} y = {function}({', '.join(filled)});\n"
            f"  return {vector}{{{', '.join(f'y[{k}]' for k in places)}}};\n}}\n"
        )
        return f"fb_{vector}_{function}"

    def add(self, other: Unit) -> None:
        """Take in what other kernels need."""
        self.vectors |= other.vectors
        self.helpers = {**self.helpers, **other.helpers}
        self.functions |= other.functions

    def prelude(self) -> str:
        """Types, helpers and bound functions."""
        parts = [cpp_types.vector_prelude(lane, width, self.target.simd) for lane, width in sorted(self.vectors)]
        parts += [text + "\n" for text in self.functions.values()]
        parts += list(self.helpers.values())
        return "".join(parts)


class Writer:
    """Lines of C++, names and types, for one iteration or for the lanes of one or more vectors."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.lines: list[str] = []
        self.reset()

    def reset(self) -> None:
        """Begin another function."""
        self.depth = 1
        self.names: dict[Var, str] = {}
        self.replicas = [Replica(None)]
        self.guard: Text | None = None
        self._count = 0
        self._use(self.replicas[0])

    @property
    def width(self) -> int:
        """How many lanes a vector has."""
        assert self.lanes is not None
        return self.lanes.width

    # ------------------------------------------------------------ replicas

    def _use(self, replica: Replica) -> None:
        self.lanes = replica.lanes
        self.suffix = replica.suffix
        self.locals = replica.locals
        self.accs = replica.accs
        self.scopes = replica.scopes
        if replica.lanes is not None:
            self.names[replica.lanes.var] = replica.name

    def each_replica(self) -> Iterator[None]:
        """What is written during one step of the iteration belongs to one of the vectors done side by side."""
        for replica in self.replicas:
            self._use(replica)
            yield
        if len(self.replicas) > 1:
            self._use(self.replicas[0])

    @contextmanager
    def side_by_side(self, replicas: list[Replica]) -> Iterator[None]:
        """Write for these vectors."""
        (base,) = outside = self.replicas
        for r in replicas:
            r.locals, r.accs, r.scopes = dict(base.locals), dict(base.accs), [*base.scopes, {}]
        self.replicas = replicas
        self._use(replicas[0])
        yield
        self.replicas = outside
        self._use(outside[0])

    # ------------------------------------------------------------ text

    def line(self, text: str) -> None:
        """Add a line at the current depth."""
        self.lines.append("  " * self.depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write a block; values made in it are forgotten at its end."""
        self.line(f"{head} {{")
        self.depth += 1
        for r in self.replicas:
            r.scopes.append({})
        yield
        for r in self.replicas:
            r.scopes.pop()
        self.depth -= 1
        self.line("}")

    def fresh(self, letter: str = "x") -> str:
        """A new C++ name."""
        self._count += 1
        return f"{letter}{self._count}_"

    def type_of(self, dtype: str, varying: bool) -> str:
        """C++ type of a value."""
        return self.unit.vector(cpp_types.lane_type(dtype), self.width) if varying else cpp_types.SCALAR[dtype]

    def index(self, e: Expr, lane: int | str | None = None) -> str:
        """An index as C++; `lane` selects one lane of the lane variable."""
        if cpp_types.needs_division(e):
            self.unit.helpers["divide_int"] = HELPERS["divide_int"]
        names = self.names
        if lane is not None and self.lanes is not None:
            names = {**names, self.lanes.var: f"({names[self.lanes.var]} + {lane})"}
        return cpp_types.index_text(e, names)

    def spread(self, text: Text, dtype: str) -> str:
        """The value as a vector."""
        if text.varying:
            return text.code
        vector = self.type_of(dtype, True)
        return f"{vector}_of(-(int){text.code})" if dtype == "b8" else f"{vector}_of({text.code})"

    def named(self, dtype: str, code: str) -> str:
        """A name for a vector expression, so that it can be repeated."""
        return code if code.isidentifier() else self.name(dtype, code, True).code

    def name(self, dtype: str, code: str, varying: bool) -> Text:
        """Define a C++ constant."""
        name = self.fresh()
        self.line(f"const {self.type_of(dtype, varying)} {name} = {code};")
        return Text(name, varying)
