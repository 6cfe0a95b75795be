"""Targets that Python drives, as the native host program sees them: places in their memory and kernels are numbers.

A library call, and a copy between the host's memory and the target's, is a kernel like any other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch

from firebrick import _native
from firebrick.config import Config
from firebrick.ir.index.expr import ONE, ZERO, Expr, Var, as_expr
from firebrick.ir.kernels.groups import PlannedLaunch
from firebrick.ir.kernels.schedule import Param, Schedule
from firebrick.ir.loops.dtypes import DTYPES, enum_value
from firebrick.ir.loops.program import Buffer, Enum, Extern, Ref

if TYPE_CHECKING:
    from firebrick.targets.base import Target


@dataclass(frozen=True, slots=True)
class View:
    """A tensor in a target's memory, as library calls take it: `offset` and `strides` count elements."""

    memory: Any
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class _Called:
    """A library call as a kernel's body: its views are of parameters a0, a1..., its sizes of `symbols`.

    inward: it is a copy of the host's memory to the target's (True), or back (False).
    """

    op: str
    args: Any
    kwargs: Any
    outs: Any
    symbols: tuple[str, ...]
    inward: bool | None = None


def moves(call: Extern) -> bool:
    """Whether a call only copies from one device to another."""
    return call.op == "aten::_to_copy" and any(name == "device" for name, _ in call.kwargs)


def plan_called(call: Extern, buffers: Mapping[str, Buffer]) -> PlannedLaunch:
    """A library call as a launch."""
    names: dict[str, str] = {}
    symbols: dict[Var, None] = {}

    def local(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return tuple([local(v) for v in value])
        parts = (*value.shape, *value.strides, value.offset) if isinstance(value, Ref) else (value,)
        symbols.update((v, None) for e in parts if isinstance(e, Expr) for v in e.vars())
        if not isinstance(value, Ref):
            return value
        name = names.setdefault(value.buffer, f"a{len(names)}")
        return replace(value, buffer=name, dtype=value.dtype or buffers[value.buffer].dtype)

    def whole(name: str | None) -> Ref | None:
        return None if name is None else Ref(name, buffers[name].shape, buffers[name].strides, ZERO)

    args, kwargs, outs = local(call.args), local(call.kwargs), local([whole(name) for name in call.outs])
    inward = buffers[str(call.outs[0])].device == call.device if moves(call) else None
    params = tuple([Param(a, buffers[name].dtype, name in call.outs) for name, a in names.items()])
    body = _Called(call.op, args, kwargs, outs, tuple([v.name for v in symbols]), inward)
    kind = call.op.partition("::")[2].partition(".")[0] if inward is None else "write" if inward else "read"
    return PlannedLaunch(kind, params, body, tuple(names), tuple(symbols), (ONE,))


class _Driver:
    """What the native host calls for all machines of this process."""

    def __init__(self) -> None:
        self.machines: WeakValueDictionary[int, Machine] = WeakValueDictionary()
        self.places: dict[int, tuple[Target, Any]] = {}
        self.kernels: WeakValueDictionary[int, Loaded] = WeakValueDictionary()
        self.numbers = count(1)

    def has(self, name: str) -> bool:
        """Whether a machine has this name."""
        return any(machine.target.name == name for machine in self.machines.values())

    def allocate(self, number: int, nbytes: int) -> int:
        """Memory of a machine."""
        target, place = self.machines[number].target, next(self.numbers)
        self.places[place] = (target, target.allocate(max(1, nbytes)))
        return place

    def free(self, place: int) -> None:
        """Give memory back."""
        target, memory = self.places.pop(place)
        target.release(memory)

    def launch(self, number: int, kernel: int, places: list[int], sizes: list[int], grid: list[int]) -> None:
        """Start a kernel; a place that no machine knows is an address of the host's."""
        del number
        if all(grid):
            memory = [self.places[place][1] if place in self.places else place for place in places]
            self.kernels[kernel].runs[kernel](memory, sizes, grid)


_driver = _Driver()
_native.set_driver(_driver)
_free = _native.Wrapped(_driver.free, None)  # a place may die anywhere, where Python is captured too


class _Resident(int):
    """A constant in a machine's memory, which is given back with it."""

    def __del__(self) -> None:
        _free(int(self))


class Loaded:
    """Kernels of a machine for one program, as long as it lives. numbers: what the native host launches them by."""

    def __init__(self, machine: Machine, runs: Mapping[str, Callable[..., None]]) -> None:
        self.machine = machine
        self.numbers = {name: next(_driver.numbers) for name in runs}
        self.runs = {self.numbers[name]: run for name, run in runs.items()}
        _driver.kernels.update(dict.fromkeys(self.runs, self))

    def resident(self, tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> int:
        """A constant in the machine's memory, laid out so."""
        tensor = torch.empty_strided(shape, strides, dtype=tensor.dtype).copy_(tensor)
        size = _span(shape, strides)
        place = _Resident(_driver.allocate(self.machine.number, size * tensor.element_size()))
        if size:
            self.machine.target.write(_driver.places[place][1], tensor.as_strided((size,), (1,)))
        return place


class Machine:
    """One target of this process. device: its name in programs, "simchip:3"."""

    def __init__(self, target: Target) -> None:
        self.target, self.number = target, next(_driver.numbers)
        self.device = f"{target.name}:{self.number}"
        _driver.machines[self.number] = self

    def texts(self, schedule: Schedule, config: Config) -> list[str]:
        """Texts of the kernels of a schedule that are not library calls.

        Raises:
            Refused: the target's tables lack something.
        """
        mine = [k for k in schedule.kernels if k.device == self.target.name and not isinstance(k.body, _Called)]
        return self.target.source(replace(schedule, kernels=tuple(mine)), config) if mine else []

    def load(self, schedule: Schedule, config: Config) -> Loaded:
        """The kernels of a schedule."""
        target, texts = self.target, self.texts(schedule, config)
        kernels = [k for k in schedule.kernels if k.device == target.name]
        written = [k.name for k in kernels if not isinstance(k.body, _Called)]
        loaded = target.load(texts, written, config) if texts else {}
        runs = {name: partial(target.launch, kernel) for name, kernel in loaded.items()}
        return Loaded(self, runs | {k.name: self._caller(k.body) for k in kernels if k.name not in written})

    def _caller(self, body: _Called) -> Callable[..., None]:
        """What runs a library call or a copy."""
        target = self.target

        def value(arg: Any, memory: list[Any], sizes: dict[str, int]) -> Any:
            if isinstance(arg, Ref):
                shape, strides = ([e.evaluate(sizes) for e in part] for part in (arg.shape, arg.strides))
                at = as_expr(arg.offset).evaluate(sizes)
                return View(memory[int(arg.buffer[1:])], str(arg.dtype), tuple(shape), tuple(strides), at)
            if isinstance(arg, tuple):
                return [value(a, memory, sizes) for a in arg]
            if isinstance(arg, Enum):
                return enum_value(arg.kind, arg.value)
            return arg.evaluate(sizes) if isinstance(arg, Expr) else arg

        def run(memory: list[Any], sizes: list[int], grid: list[int]) -> None:
            del grid
            numbers = dict(zip(body.symbols, sizes, strict=True))
            outs = value(body.outs, memory, numbers)
            if body.inward is None:
                kwargs = {k: value(v, memory, numbers) for k, v in body.kwargs}
                target.call(body.op, outs, value(body.args, memory, numbers), kwargs)
                return
            here, there = memory if body.inward else reversed(memory)
            flat = _host_memory(here, outs[0])
            if flat.numel():
                (target.write if body.inward else target.read)(there, flat)

        return run


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def _host_memory(address: int, view: View) -> torch.Tensor:
    """The host's memory behind an address, as a view's elements from the first to the last."""
    row, size = DTYPES[view.dtype], _span(view.shape, view.strides)
    if not size:
        return torch.empty(0, dtype=row.torch)
    return torch.frombuffer((ctypes.c_char * (size * row.nbytes)).from_address(address), dtype=row.torch)
