"""The host program: a schedule turned into a compact table that `_native.Executable` runs.

The table is JSON-able data:

    slots      [kind, dtype, sizes, strides, arena offset, device] for each buffer; kind is input, const, derived,
               scratch (of the recipe), arena, fresh (allocated by the program) or call (made by a library call)
    registers  [op, a, b]: numbers computed at each call from the inputs' sizes, for symbolic shapes
    views      [slot, sizes, strides, offset, dtype or null]: what library calls and outputs see of a slot
    steps      ["kernel", name, slots, sizes, device, grid] | ["alloc", slots] | ["free", slots]
               | ["call", op, args, types, positional, keywords, outs, into, plain]
               | ["check", slot, low, high, error, text before, text after];
               a kernel may end with the positions of slots that it takes by value
    outputs    arguments as below
    arena      [bytes, device]
    recipe     call steps that compute derived slots from const slots
    sources    positions of constants that the recipe reads
    mutated    slots of inputs and constants that the steps write
    undo       the first step that writes them and those slots, if a step from there on may raise

A number is an int, or [r] for register r. An argument is ["n"] for None, ["t", view], ["i", number], ["b", bool],
["f", float], ["s", text], ["e", kind, name] or ["l", [arguments]].
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import torch

from firebrick.errors import LoweringError
from firebrick.ir.index.expr import Expr, Var, as_expr
from firebrick.ir.index.operation import operation
from firebrick.ir.kernels.schedule import Launch, Schedule, args_in
from firebrick.ir.loops.bounds import CHECK
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Buffer, Enum, Extern, Ref, device_type
from firebrick.runtime.written import overload_of

RELEASE_BYTES = 1 << 20
"""A program that touches more than this lets other Python threads run meanwhile; taking the GIL back costs more than
smaller programs take."""

_SIGNS = {"//": "/", "min": "<", "max": ">"}
"""How the table has operators, where not as Python does."""

_KINDS = {"input": "input", "const": "const", "derived": "derived"}


def host_program(schedule: Schedule) -> dict[str, Any]:
    """Return the table of a schedule.

    Raises:
        LoweringError: a symbolic size can't be found from the inputs' sizes.
    """
    return _Writer(schedule).table()


class _Writer:
    """Numbers what a schedule names."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.program = schedule.program
        self.kernels = {k.name: k.device for k in schedule.kernels}
        self.numbers = {k.name: [i for i, p in enumerate(k.params) if p.number] for k in schedule.kernels}
        self.buffers = {b.name: b for b in self.program.buffers}
        self.places = {p.buffer: p for p in schedule.places}
        self.slots: dict[str, int] = {}
        self.slot_rows: list[list[Any]] = []
        self.registers: list[list[Any]] = []
        self.register_of: dict[Any, list[int]] = {}
        self.lists: dict[tuple[Any, ...], list[Any]] = {}
        self.rows: list[int] = []  # where the steps of the schedule are among those of the table
        self.views: list[list[Any]] = []
        self.view_of: dict[str, int] = {}
        self._bind_symbols()

    def table(self) -> dict[str, Any]:
        program = self.program
        steps = self._steps()
        outputs = [self._argument(value) for value in program.outputs]
        read = {view[0] for view in self.views} | {slot for step in steps if step[0] == "kernel" for slot in step[2]}
        for slot, row in enumerate(self.slot_rows):
            if row[0] == "derived" and slot not in read:
                row[0] = "scratch"
        recipe = [self._call(call) for call in program.recipe.calls]
        table: dict[str, Any] = {
            "inputs": list(program.inputs),
            "consts": list(program.consts),
            "slots": self.slot_rows,
            "registers": self.registers,
            "views": self.views,
            "steps": steps,
            "outputs": outputs,
            "arena": [self.schedule.arena_bytes, self._arena_device()],
            "recipe": recipe,
            "sources": self._sources(),
            "mutated": list(mutated := self._mutated()),
            "undo": self._undo(steps, mutated),
            "release_gil": self._work() > RELEASE_BYTES,
        }
        return table

    # ---- numbers

    def _bind_symbols(self) -> None:
        """Give each symbolic size a register, read from the first input axis that has it."""
        self._slot_order()
        wanted: list[tuple[int, int, Expr]] = []
        for position, name in enumerate(self.program.inputs):
            for axis, size in enumerate(self.buffers[name].shape):
                size = as_expr(size)
                if isinstance(size, Var):
                    self._register(size, "s", position, axis)
                elif not size.is_const:
                    wanted.append((position, axis, size))
        for position, axis, size in wanted:
            self._solve(position, axis, size)

    def _solve(self, position: int, axis: int, size: Expr) -> None:
        """Bind the one free variable of an axis whose size is `factor*variable + rest`."""
        free = [v for v in size.vars() if v not in self.register_of]
        if len(free) != 1:
            return
        factor = size.coeff(free[0])
        if factor is None or not factor.is_const or factor.const == 0:
            return
        rest = size - factor * free[0]
        if any(v not in self.register_of for v in rest.vars()):
            return
        seen = self._register(("size", position, axis), "s", position, axis)
        left = self._operation("+", seen, self._number(-rest))
        self.register_of[free[0]] = self._operation("/", left, factor.const)

    def _register(self, key: Any, op: str, a: Any, b: Any) -> list[int]:
        register = self.register_of.get(key)
        if register is None:
            self.registers.append([op, a, b])
            register = self.register_of[key] = [len(self.registers) - 1]
        return register

    def _operation(self, op: str, a: Any, b: Any) -> Any:
        return self._register((op, str(a), str(b)), op, a, b)

    def _number(self, value: Any) -> Any:
        """An int, or the register that computes an expression."""
        if isinstance(value, bool) or not isinstance(value, Expr):
            return int(value)
        if value.is_const:
            return value.const
        register = self.register_of.get(value)
        if register is None:
            register = self.register_of[value] = self._compute(value)
        return register

    def _compute(self, value: Expr) -> Any:
        if isinstance(value, Var):
            raise LoweringError(f"no input has the size {value.name}")
        sign, parts = operation(value)
        first, *rest = map(self._number, parts)
        return reduce(lambda a, b: self._operation(_SIGNS.get(sign, sign), a, b), rest, first)

    def _numbers(self, values: Iterable[Any]) -> list[Any]:
        """Numbers of the table for expressions; equal ones are one list, as most tensors have the shape of others."""
        sizes = tuple(values)
        registers = self.lists.get(sizes)
        if registers is None:
            registers = self.lists[sizes] = [self._number(v) for v in sizes]
        return registers

    # ---- slots and views

    def _slot_order(self) -> None:
        """Number the slots: inputs and constants in the order of the caller, then the rest."""
        first = [*self.program.inputs, *self.program.consts]
        rest = [b.name for b in self.program.buffers]
        for name in dict.fromkeys([*first, *rest]):
            self.slots[name] = len(self.slots)

    def _slot_row(self, buffer: Buffer) -> list[Any]:
        place = self.places.get(buffer.name)
        kind = _KINDS.get(buffer.kind) or (place.where if place is not None else "call")
        offset = self._number(place.offset) if place is not None and kind == "arena" else 0
        return [kind, buffer.dtype, self._numbers(buffer.shape), self._numbers(buffer.strides), offset, buffer.device]

    def _view(self, ref: Ref) -> int:
        buffer = self.buffers[ref.buffer]
        dtype = ref.dtype if ref.dtype not in (None, buffer.dtype) else None
        row = [
            self.slots[ref.buffer], self._numbers(ref.shape), self._numbers(ref.strides), self._number(ref.offset),
            dtype,
        ]  # fmt: skip
        key = repr(row)
        number = self.view_of.get(key)
        if number is None:
            number = self.view_of[key] = len(self.views)
            self.views.append(row)
        return number

    def _whole(self, name: str) -> Ref:
        buffer = self.buffers[name]
        return Ref(name, buffer.shape, buffer.strides, as_expr(0))

    # ---- steps

    def _steps(self) -> list[list[Any]]:
        self.slot_rows = [self._slot_row(self.buffers[name]) for name in self.slots]
        pending = {name for name, slot in self.slots.items() if self.slot_rows[slot][0] == "fresh"}
        steps: list[list[Any]] = []
        for position, step in enumerate(self.schedule.steps):
            needed = [name for name in dict.fromkeys(_touched(step)) if name in pending]
            if needed:
                steps.append(["alloc", [self.slots[name] for name in needed]])
                pending.difference_update(needed)
            self.rows.append(len(steps))
            if isinstance(step, Launch):
                places, mine = [self.buffers[name].device for name in step.args], self.kernels.get(step.kernel, "")
                device = next((d for d in places if mine in ("", device_type(d))), "cpu")
                slots = [self.slots[name] for name in step.args]
                sizes, grid = self._numbers(step.sizes), self._numbers(step.grid)
                row = ["kernel", step.kernel, slots, sizes, device, grid]
                steps.append([*row, self.numbers[step.kernel]] if self.numbers.get(step.kernel) else row)
            else:
                steps.append(self._call(step))
            dead = self.schedule.free_after[position] if position < len(self.schedule.free_after) else ()
            if dead:
                steps.append(["free", [self.slots[name] for name in dead]])
        if pending:  # outputs without elements that no kernel writes
            steps.append(["alloc", sorted(self.slots[name] for name in pending)])
        return steps

    def _arena_device(self) -> str:
        return next((self.buffers[p.buffer].device for p in self.schedule.places if p.where == "arena"), "cpu")

    def _check(self, call: Extern) -> list[Any]:
        """A slot that holds a greatest and a least index, what they may be, and the error to raise otherwise."""
        extremes, low, high, error, text = call.args
        assert isinstance(extremes, Ref)
        before, number, after = str(text).partition("{}")
        slot = self.slots[extremes.buffer]
        return ["check", slot, self._number(low), self._number(high), error, before, after if number else None]

    def _call(self, call: Extern) -> list[Any]:
        if call.op == CHECK:
            return self._check(call)
        schema = find_overload(call.op)._schema
        named = dict(call.kwargs)
        args: list[Any] = []
        types: list[str] = []
        results = iter(call.outs) if call.into else iter(())
        for position, declared in enumerate(schema.arguments):
            if position < len(call.args):
                value = call.args[position]
            elif declared.name in named:
                value = named.pop(declared.name)
            elif call.into and declared.is_out:
                name = next(results, None)
                if name is None:
                    raise LoweringError(f"{call.op} writes more results than it was given buffers")
                value = self._whole(name)
            elif declared.has_default_value():
                value = declared.default_value
            else:
                raise LoweringError(f"{call.op} misses its argument {declared.name}")
            args.append(self._argument(value))
            types.append(_type_code(str(declared.real_type)))
        if named:
            raise LoweringError(f"{call.op} has no argument {next(iter(named))}")
        keywords = [a.name for a in schema.arguments if a.kwarg_only]
        outs = [self.slots[name] if name is not None and not call.into else None for name in call.outs]
        plain = all(str(r.real_type) == "Tensor" for r in schema.returns)
        if plain:
            outs = [*outs, *[None] * len(schema.returns)][: len(schema.returns)]
        return ["call", call.op, args, types, len(args) - len(keywords), keywords, outs, call.into, plain]

    def _argument(self, value: Any) -> list[Any]:
        if value is None:
            return ["n"]
        if isinstance(value, Ref):
            return ["t", self._view(value)]
        if isinstance(value, Enum):
            name = DTYPES[value.value].torch if value.kind == "dtype" else value.value
            return ["e", value.kind, str(name).removeprefix("torch.")]
        if isinstance(value, bool):
            return ["b", value]
        if isinstance(value, (int, Expr)):
            return ["i", self._number(value)]
        if isinstance(value, float):
            return ["f", value]
        if isinstance(value, complex):
            return ["e", "complex", str(value)]
        if isinstance(value, str):
            return ["s", value]
        if isinstance(value, (tuple, list)):
            return ["l", [self._argument(v) for v in value]]
        if isinstance(value, torch.dtype):
            return ["e", "dtype", str(value).removeprefix("torch.")]
        raise LoweringError(f"a library call can't take {value!r}")

    # ---- facts about the whole

    def _sources(self) -> list[int]:
        read = {name for call in self.program.recipe.calls for name in _touched(call)}
        return [i for i, name in enumerate(self.program.consts) if name in read]

    def _mutated(self) -> dict[int, int]:
        """Slots of inputs and constants that steps write; the place in the schedule of the first step that does."""
        kernels = {k.name: k for k in self.schedule.kernels}
        first: dict[int, int] = {}
        outside = {*self.program.inputs, *self.program.consts}
        for position, step in enumerate(self.schedule.steps):
            if isinstance(step, Launch):
                params = kernels[step.kernel].params if step.kernel in kernels else ()
                written = [name for name, param in zip(step.args, params, strict=False) if param.written]
            else:
                written = [*step.writes, *((n for n in step.outs if n is not None) if step.into else ())]
            for name in outside.intersection(written):
                first.setdefault(self.slots[name], position)
        return first

    def _undo(self, steps: list[list[Any]], mutated: dict[int, int]) -> list[int]:
        begins = self.rows[min(mutated.values())] if mutated else len(steps)
        return [begins, *mutated] if any(step[0] in ("call", "check") for step in steps[begins:]) else []

    def _work(self) -> int:
        """Bytes that the program touches, symbolic sizes taken as large."""
        total = 0
        for buffer in self.program.buffers:
            size = DTYPES[buffer.dtype].nbytes
            for extent in buffer.shape:
                extent = as_expr(extent)
                size *= extent.const if extent.is_const else 64
            total += size
        return total


def _touched(step: Launch | Extern) -> Iterable[str]:
    """Names of the buffers that a step reads or writes; results that a call makes itself are left out."""
    written = [name for name in step.outs if name is not None] if isinstance(step, Extern) and step.into else []
    return [*args_in(step), *written]


def find_overload(op: str) -> Any:
    """The OpOverload of "namespace::name.overload".

    Raises:
        LoweringError: this torch has no such op.
    """
    try:
        return overload_of(op)
    except AttributeError:
        raise LoweringError(f"this torch has no op {op}") from None


_TYPE_LETTERS = {
    "Tensor": "T", "int": "i", "SymInt": "i", "float": "d", "bool": "b", "str": "s", "ScalarType": "y", "Layout": "l",
    "MemoryFormat": "m",
}  # fmt: skip


def _type_code(text: str) -> str:
    """A declared type as the extension reads it: "Optional[List[int]]" -> "i[]?", what it can't carry -> "?"."""
    whole = text.startswith("Optional[") and text.endswith("]")
    if whole:
        text = text[len("Optional[") : -1]
    if text.startswith("List[") and text.endswith("]"):
        item = text[len("List[") : -1]
        maybe = item.startswith("Optional[")
        if maybe:
            item = item[len("Optional[") : -1]
        return _TYPE_LETTERS.get(item, "?") + ("?" if maybe else "") + "[]" + ("?" if whole else "")
    return _TYPE_LETTERS.get(text, "?") + ("?" if whole else "")


# ---------------------------------------------------------------- print


def show_table(table: dict[str, Any]) -> str:
    """The host program as text, one step a line."""
    names = _slot_names(table)

    def number(n: Any) -> str:
        return f"r{n[0]}" if isinstance(n, list) else str(n)

    def argument(arg: list[Any]) -> str:
        tag = arg[0]
        if tag == "n":
            return "None"
        if tag == "t":
            slot, sizes, strides, offset, dtype = table["views"][arg[1]]
            row = table["slots"][slot]
            if [sizes, strides, offset, dtype] == [row[2], row[3], 0, None]:
                return names[slot]
            at = "" if offset == 0 else f"+{number(offset)}"
            kind = "" if dtype is None else f" as {dtype}"
            shape = ", ".join(map(number, sizes))
            return f"{names[slot]}{at}[{shape} : {', '.join(map(number, strides))}]{kind}"
        if tag == "l":
            return "[" + ", ".join(argument(a) for a in arg[1]) + "]"
        if tag == "e":
            return str(arg[2])
        return number(arg[1]) if tag == "i" else repr(arg[1])

    def line(step: list[Any]) -> str:
        kind = step[0]
        if kind in ("alloc", "free"):
            return f"{kind} {', '.join(names[s] for s in step[1])}"
        if kind == "kernel":
            sizes = "".join(f", {number(n)}" for n in step[3])
            grid = f"[{', '.join(map(number, step[5]))}]" if step[5] else ""
            return f"{step[1]}{grid}({', '.join(names[s] for s in step[2])}{sizes})"
        if kind == "check":
            return f"check {names[step[1]]} in {number(step[2])}..{number(step[3])} or {step[4]}"
        _, op, args, _, positional, keywords, outs, _, _ = step
        words = ["", *(f"{k}=" for k in keywords)]
        texts = [words[max(0, i - positional + 1)] + argument(a) for i, a in enumerate(args)]
        results = ", ".join("_" if s is None else names[s] for s in outs)
        return f"{results + ' = ' if results.strip('_, ') else ''}{op}({', '.join(texts)})"

    lines = [f"arena {number(table['arena'][0])} bytes"]
    lines += [f"r{i} = {op} {number(a)} {number(b)}" for i, (op, a, b) in enumerate(table["registers"])]
    lines += [f"recipe {line(step)}" for step in table["recipe"]]
    lines += [line(step) for step in table["steps"]]
    lines.append(f"return {', '.join(argument(a) for a in table['outputs'])}")
    return "\n".join(lines)


def _slot_names(table: dict[str, Any]) -> list[str]:
    names = [*table["inputs"], *table["consts"]]
    return [names[i] if i < len(names) else f"%{i - len(names)}" for i in range(len(table["slots"]))]
