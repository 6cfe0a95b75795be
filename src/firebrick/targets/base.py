"""What a machine gives to get loops instead of ops: facts, texts of its kernels, and calls to launch them.

No stage knows a machine. Fusion asks its target what pays (`FusionFacts`); what was fused becomes kernels by
`Target.plan`, texts by `source`, and runs in the target's own memory. The CPU is one such target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, Protocol

import torch

from firebrick.artifact import Unit
from firebrick.config import Config
from firebrick.ir.index.expr import Expr, var
from firebrick.ir.kernels.groups import GroupPlan, PlannedLaunch, Work
from firebrick.ir.kernels.schedule import Kernel, Schedule
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Buffer, Extern
from firebrick.ir.loops.values import Table
from firebrick.targets.driven import View, moves, plan_called
from firebrick.targets.template_text import Refused, kernel_text, lane_count
from firebrick.targets.tree_kernels import plan_tree
from firebrick.targets.tree_order import serial

__all__ = ["CALL", "Choice", "FunctionText", "FusionFacts", "Refused", "Target", "Templates", "View"]


@dataclass(frozen=True, slots=True)
class FunctionText:
    """Text of a scalar function of {a}, {b} and {c}; {t} is the type of the result.

    scalar: for one value. vector: for lanes; empty: each lane by the scalar text. helper: what must be defined first.
    """

    scalar: str
    vector: str = ""
    helper: str = ""


@dataclass(frozen=True, slots=True)
class Templates:
    """How `Target.kernel` puts a kernel's text together, in the syntax of Python unless a field says otherwise.

    Iterations that depend on nothing are numbered by `lane`, from 0 to below {count}. A field that is empty makes
    kernels that need it be refused.

    kernel: a function; {body} is indented by two spaces, as in `loop`. param: a buffer; {t} is the type of its
      elements, as in all that has a type. size: a symbolic size.
    lanes: first lines of a body that finds its lanes out itself: from program ids, say. mask: the name that they give
      to "this lane is below {count}"; empty where lanes beyond it never run.
    start: the first value of an accumulator. scratch, read, write: an array private to each lane, and its elements.
    cast: {a}, a {old}, as a {t}. both: lanes of two masks.
    add, max, min: stores that combine with what is there.
    """

    kernel: str = "def {name}({params}):\n{body}"
    param: str = "{name}"
    size: str = "{name}"
    lanes: str = ""
    mask: str = ""
    loop: str = "for {var} in range({size}):\n{body}"
    assign: str = "{name} = {value}"
    start: str = "{name} = {value}"
    load: str = "{buffer}[{index}]"
    masked_load: str = ""
    store: str = "{buffer}[{index}] = {value}"
    masked_store: str = ""
    cast: str = ""
    both: str = "{a} & {b}"
    scratch: str = ""
    read: str = "{name}[{index}]"
    write: str = "{name}[{index}] = {value}"
    add: str = ""
    max: str = ""
    min: str = ""
    number: str = "{value}"
    infinity: str = 'float("inf")'
    nan: str = 'float("nan")'


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to compute an op: by a kernel of the machine's own, or of a library.

    name: its form, as passes and reports call it; "call" leaves the op as it is.
    cost: estimate, relative to that of the call.
    after, before: what it does to results ("scale", "bias", "add" of a tensor, activations) and to arguments ("pad")
      on the way. single: it does one of what is after beside the bias.
    options: further facts about the form, for the pass that writes it.
    """

    name: str
    cost: float
    after: frozenset[str] = frozenset()
    before: frozenset[str] = frozenset()
    single: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


class KernelTable(Protocol):
    """The kernels of a schedule, each made once; `add` returns the name of one."""

    program: Any

    def kernels(self) -> tuple[Kernel, ...]: ...
    def add(self, step: PlannedLaunch, device: str) -> str: ...


CALL = Choice("call", 1.0)
"""The library's own kernel of an op, on arguments as they are."""


@dataclass(frozen=True, slots=True)
class FusionFacts:
    """What fusion asks of a machine.

    independent: iterations that a kernel needs in order to use all of the machine. buffers: most that a kernel takes.
    small: iterations below which it doesn't matter how loops are nested. large: iterations from which it matters that a
    kernel has `independent` ones. alignment: bytes of whose multiples temporaries begin.
    """

    independent: int = 1
    buffers: int = 32
    small: int = 512
    large: int = 32768
    alignment: int = 64


class Target:
    """A machine. Derive from it, fill the tables, and write the calls of its driver.

    Attributes:
        name: of the machine; reports and cache keys use it.
        portable: what to do about a program whose kernels need a level that this machine lacks.
        dtypes: short dtype -> name of the type in the text. What is missing is refused.
        functions: kind of dtype ("float", "int", "uint", "bool") -> scalar function (`loops.ops.SCALAR_OPS`) -> text.
        templates: how kernels are written, by `kernel`.
        shares_memory: torch's tensors lie in its memory, and the native host drives it; otherwise the methods here do,
            and what tensors hold is copied to it.
        adds_bias: a library's convolution adds the bias in its own kernel.
        masks_parts: parts of a concatenation are read under masks where it is used, as launches cost more.
        draws: most blocks of a kernel of eager's for dropout, whose numbers its kernels draw; 0: they draw none.
        numbers: short dtypes of which its kernels take a number in the CPU's memory by value.
        updated_as: short dtype -> the one in which elements are while several iterations add to them or raise them.
        library: op ("aten::mm", overload left out) -> function `(target, outs, *args, **kwargs)` that runs it; tensors
            are `View`s.
    """

    name: str = ""
    portable: str = "save it again on a machine like those that are to run it"
    dtypes: Mapping[str, str] = {}
    functions: Mapping[str, Mapping[str, FunctionText]] = {}
    templates: Templates = Templates()
    library: Mapping[str, Callable[..., None]] = {}
    numbers: frozenset[str] = frozenset()
    updated_as: Mapping[str, str] = {}
    shares_memory = False
    adds_bias = True
    masks_parts = False
    draws = 0

    # ------------------------------------------------------------ facts

    def fusion(self) -> FusionFacts:
        """What fusion asks."""
        return FusionFacts()

    def key(self) -> str:
        """Text that belongs into cache keys: what generated code depends on."""
        return self.name

    def model(self) -> str:
        """What a measurement is of, within a level: it is no measurement of another model."""
        return self.level()

    def level(self) -> str:
        """What of a family of machines its kernels need, such as an instruction set."""
        return self.name

    def runs_level(self, level: str) -> bool:
        """Whether kernels that were made for a level run on this machine."""
        return level == self.level()

    def runs(self, op: str) -> bool:
        """Whether a library call ("namespace::name.overload") runs on the machine."""
        return op.partition(".")[0] in self.library

    def computes(self, dtype: str) -> bool:
        """Whether loops are written for a short dtype; without a table of types, for all that loops have."""
        return not self.dtypes or dtype in self.dtypes

    # ------------------------------------------------------------ plan

    def plan(self, work: Work, facts: Table) -> GroupPlan:
        """The kernels that do a group's work: here one whose body is a loop tree, its loops in the order of strides.

        Args:
            work: statements in common variables.
            facts: of values, kept from group to group.
        """
        step = plan_tree(work, facts, serial)
        # In terms of the kernel's sizes, which are to be in terms of the program's.
        count = lane_count(step.body).subs({var(f"s{k}", s.lo, s.hi): s for k, s in enumerate(step.sizes)})
        return GroupPlan((replace(step, grid=(count,)),))

    def widens(self, dtype: torch.dtype) -> bool:
        """Whether it multiplies numbers of a dtype faster as float32."""
        return False

    def choices(self, op: str, args: tuple[Any, ...]) -> tuple[Choice, ...]:
        """What may compute an op of these arguments, tensors without elements, the cheapest first.

        A matmul has the arguments (x, weight), several of one matrix, "firebrick::products", (rows, depth, columns of
        each, bytes of all weights), a convolution, "aten::conv_transpose" where it is transposed, (x, weight, stride,
        padding, dilation, groups, out), a recurrent layer (cell, sequences, hidden units).
        """
        del op, args
        return (CALL,)

    def measured(self, op: str, args: tuple[Any, ...], forms: Mapping[str, int], config: Config) -> Mapping[str, float]:
        """The seconds that some forms of an op take here, without a compile; empty where their costs have to do.

        Args:
            op, args: as in `choices`.
            forms: name of a choice -> passes over its results that are left to loops.
        """
        del op, args, forms, config
        return {}

    def prepare(self, calls: Iterable[tuple[str, tuple[Any, ...]]], config: Config) -> object:
        """Begin, in the background, what `measured` needs for these ops and arguments; what is kept meanwhile."""

    def layouts(self, op: str, args: Sequence[Any], out: Sequence[Expr]) -> Iterable[tuple[Expr, ...] | None]:
        """The strides that a kernel of the machine's own wants its tensors to have, in order; None for what lies well.

        Args:
            op: without its overload.
            args: of the op; tensors are `loops.ir.Ref`s.
            out: the shape of its (first) result.
        """
        del op, args, out
        return repeat(None)

    def plan_call(self, call: Extern, buffers: Mapping[str, Buffer]) -> PlannedLaunch | None:
        """The kernel of the machine's own that does what a call of an op would; None leaves it to torch.

        Here, where torch does not share the machine's memory, every call is such a kernel.

        Args:
            call: with views of buffers among its arguments.
            buffers: by name.
        """
        return plan_called(call, buffers) if not self.shares_memory and (moves(call) or self.runs(call.op)) else None

    def side_by_side(self, steps: list[Any], kernels: KernelTable, device: str, choose: Any = None) -> list[Any]:
        """The steps of a program: launches on a device that may run at once as one, in forms that `choose` measures."""
        del kernels, device, choose
        return steps

    # ------------------------------------------------------------ text

    def constant(self, value: bool | int | float, dtype: str) -> str:
        """A number."""
        text = repr(float(value) if DTYPES[dtype].is_float else value)
        if "inf" in text:
            text = text.replace("inf", self.templates.infinity)
        return self.templates.number.format(value=self.templates.nan if text == "nan" else text, t=self.type(dtype))

    def index(self, expr: Expr) -> str:
        """An index; division rounds down."""
        return expr.show()

    def function(self, name: str, dtype: str, args: Sequence[str]) -> str:
        """A scalar function of arguments of `dtype`.

        Raises:
            Refused: the table has no row for it.
        """
        row = self.functions.get(DTYPES[dtype].kind, {}).get(name)
        if row is None:
            raise Refused(f"no {name} of {dtype}")
        return row.scalar.format(**dict(zip("abc", args, strict=False)), t=self.type(dtype))

    def type(self, dtype: str) -> str:
        """Name of a type.

        Raises:
            Refused: the machine does not compute with it.
        """
        if dtype not in self.dtypes:
            raise Refused(f"no {dtype}")
        return self.dtypes[dtype]

    def kernel(self, kernel: Kernel) -> str:
        """Text of one kernel.

        Raises:
            Refused: the machine lacks something that it needs.
        """
        return kernel_text(kernel, self)

    def source(self, schedule: Schedule, config: Config) -> list[str]:
        """Texts that together define a schedule's kernels.

        Raises:
            Refused: as `kernel`.
        """
        del config
        return ["\n\n".join(self.kernel(k) for k in schedule.kernels)] if schedule.kernels else []

    def units(self, schedule: Schedule, config: Config) -> tuple[Unit, ...]:
        """The texts with the kernels that each defines, as they are kept and built; none where `load` compiles them.

        Raises:
            Refused: as `kernel`.
        """
        del schedule, config
        return ()

    # ------------------------------------------------------------ launch and memory

    def load(self, texts: Sequence[str], names: Sequence[str], config: Config) -> Mapping[str, Any]:
        """Compile texts and load them; returns what `launch` takes for each kernel."""
        raise NotImplementedError(f"{type(self).__name__}.load")

    def launch(self, kernel: Any, memory: Sequence[Any], sizes: Sequence[int], grid: Sequence[int]) -> None:
        """Start a kernel on these buffers, in the order of its parameters; `grid` as planned: the number of lanes."""
        raise NotImplementedError(f"{type(self).__name__}.launch")

    def call(self, op: str, outs: Sequence[View | None], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Start a library call that writes `outs`."""
        self.library[op.partition(".")[0]](self, outs, *args, **kwargs)

    def allocate(self, nbytes: int) -> Any:
        """Memory of the machine."""
        raise NotImplementedError(f"{type(self).__name__}.allocate")

    def release(self, memory: Any) -> None:
        """Give memory back, once what was started before is done."""

    def write(self, memory: Any, tensor: torch.Tensor) -> None:
        """Copy a dense one-dimensional tensor to the start of memory."""
        raise NotImplementedError(f"{type(self).__name__}.write")

    def read(self, memory: Any, tensor: torch.Tensor) -> None:
        """Wait for what was started, and copy from the start of memory to a dense one-dimensional tensor."""
        raise NotImplementedError(f"{type(self).__name__}.read")
