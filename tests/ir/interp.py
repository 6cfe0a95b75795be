"""The reference interpreter: runs a LoopProgram slowly and plainly. It is the oracle of scheduling and code generation.

Each nest is computed for all its iterations at once with torch functions on CPU tensors of 1 element or more; every
scalar function is the reference of its row in `loops.ops`.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

import torch

from firebrick.errors import InternalError
from firebrick.ir.index.expr import Expr, Var, as_int
from firebrick.ir.loops.bounds import CHECK
from firebrick.ir.loops.dtypes import DTYPES, enum_value
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
    Op,
    Reduce,
    Ref,
    Scan,
    Store,
    Value,
)
from firebrick.ir.loops.scalar_ops import REDUCTIONS, SCALAR_OPS, SCANS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

__all__ = ["find_op", "run"]


@torch.no_grad()
def run(program: LoopProgram, inputs: Sequence[Tensor], constants: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """Execute `program`; writes into `inputs` and `constants` where the program does.

    Raises:
        InternalError: a load or store is out of its buffer, or a value is used before it is computed.
    """
    given = dict(zip(program.inputs, inputs, strict=True))
    given.update((name, constants[name]) for name in program.consts)
    machine = _Machine(program, given)
    for call in program.recipe.calls:
        machine.call(call)
    for node in program.nodes:
        if isinstance(node, Nest):
            machine.nest(node)
        else:
            machine.call(node)
    return tuple(machine.argument(out) for out in program.outputs)


def check_index(extremes: Tensor, low: int, high: int, error: str, text: str) -> tuple[()]:
    """Raise `error` unless the greatest and the least index are in low..high; `text` has a place for the index.

    Raises:
        IndexError, RuntimeError: as `error` says.
    """
    greatest, least = extremes.tolist()
    if greatest > high or least < low:
        raise getattr(builtins, error)(text.format(greatest if greatest > high else least))
    return ()


def find_op(name: str) -> Any:
    """The OpOverload called "namespace::name.overload", or the function that checks indices."""
    if name == CHECK:
        return check_index
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


class _Machine:
    """Tensors by buffer name, and how nodes act on them."""

    def __init__(self, program: LoopProgram, given: Mapping[str, Tensor]) -> None:
        self.buffers: dict[str, Buffer] = {b.name: b for b in program.buffers}
        self.tensors: dict[str, Tensor] = dict(given)
        self.filled: set[str] = set(given)

    # ------------------------------------------------------------ buffers

    def tensor(self, name: str) -> Tensor:
        """The tensor of a buffer, allocated when it is first needed and filled with what nobody should read."""
        found = self.tensors.get(name)
        if found is None:
            b = self.buffers[name]
            found = torch.empty_strided(_ints(b.shape), _ints(b.strides), dtype=DTYPES[b.dtype].torch)
            flat = _flat(found)
            flat.view(torch.uint8).fill_(0xFF if b.dtype != "b8" else 1)
            self.tensors[name] = found
        return found

    def argument(self, value: object) -> Any:
        """An argument of a library call, or an output."""
        if isinstance(value, Ref):
            if value.buffer not in self.filled and 0 not in _ints(value.shape):
                raise InternalError(f"{value.buffer} is used before it is computed")
            base = self.tensor(value.buffer)
            if value.dtype is not None:
                base = _flat(base).view(DTYPES[value.dtype].torch)
            start = base.storage_offset() + as_int(value.offset)
            return base.as_strided(_ints(value.shape), _ints(value.strides), start)
        if isinstance(value, Enum):
            return enum_value(value.kind, value.value)
        if isinstance(value, Expr):
            return as_int(value)
        if isinstance(value, tuple):
            return [self.argument(v) for v in value]
        return value

    # ------------------------------------------------------------ nodes

    def call(self, node: Extern) -> None:
        """Call the library."""
        fn = find_op(node.op)
        args = [self.argument(a) for a in node.args]
        kwargs = {k: self.argument(v) for k, v in node.kwargs}
        if node.into:
            names = [a.name for a in fn._schema.arguments if a.is_out]
            targets = [self.tensor(out) for out in node.outs if out is not None]
            shapes = [t.shape for t in targets]
            fn(*args, **kwargs, **dict(zip(names, targets, strict=True)))
            if shapes != [t.shape for t in targets]:
                raise InternalError(f"{node.name} resized its out argument")
        else:
            result = fn(*args, **kwargs)
            results = list(result) if isinstance(result, (tuple, list)) else [result]
            for name, made in zip(node.outs, results, strict=True):
                if name is not None:
                    self._receive(node, name, made)
        self.filled.update(out for out in node.outs if out is not None)

    def _receive(self, node: Extern, name: str, made: Tensor) -> None:
        b = self.buffers[name]
        if made.dtype != DTYPES[b.dtype].torch or tuple(made.shape) != _ints(b.shape):
            raise InternalError(f"{node.name} {node.op} gave {made.dtype} {tuple(made.shape)} for {b}")
        # Fake kernels are wrong about some strides; the host program copies then too.
        fits = made.numel() == 0 or _same_strides(made, _ints(b.strides))
        self.tensors[name] = made if fits else self.tensor(name).copy_(made)

    def nest(self, node: Nest) -> None:
        """Run a loop nest: every store for all iterations."""
        sizes = [as_int(a.size) for a in node.axes]
        if 0 in sizes:
            self.filled.update(s.buffer for s in node.stores)
            return
        scope = _Scope(self, node.axes, sizes)
        results = [(s, scope.index(s.index, s.binds), scope.value(s.value)) for s in node.stores]
        for store, index, value in results:
            self._store(store, torch.broadcast_to(index, sizes), torch.broadcast_to(value, sizes))
            self.filled.add(store.buffer)

    def _store(self, store: Store, index: Tensor, value: Tensor) -> None:
        flat = _flat(self.tensor(store.buffer))
        if value.dtype != flat.dtype:
            raise InternalError(f"store of {value.dtype} in {store.buffer}, which is {flat.dtype}")
        _check_bounds(index, flat, store.buffer)
        at, source = index.reshape(-1), value.reshape(-1)
        if store.mode == "set":
            flat[at] = source
        elif store.mode == "add":
            flat.index_add_(0, at, source)
        else:
            flat.index_reduce_(0, at, source, {"max": "amax", "min": "amin"}[store.mode])


class _Scope:
    """The iterations of a nest: variables as tensors that broadcast against each other."""

    def __init__(self, machine: _Machine, axes: Sequence[Axis], sizes: list[int]) -> None:
        self.machine = machine
        self.env: dict[str, Any] = {"min": _least, "max": _greatest}
        self.rank = len(sizes)
        for d, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
            self.env[axis.var.name] = torch.arange(size).view([size] + [1] * (self.rank - d - 1))
        self.memo: dict[Value, Tensor] = {}

    def inner(self, axes: Sequence[Axis]) -> tuple[_Scope, list[int]]:
        """The scope inside of a reduction, whose axes are trailing dimensions."""
        sizes = [as_int(a.size) for a in axes]
        scope = _Scope(self.machine, (), [])
        scope.rank = self.rank + len(sizes)
        for name, value in self.env.items():
            scope.env[name] = value.view(value.shape + (1,) * len(sizes)) if isinstance(value, torch.Tensor) else value
        for d, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
            scope.env[axis.var.name] = torch.arange(size).view([size] + [1] * (len(sizes) - d - 1))
        return scope, sizes

    def index(self, expr: Expr, binds: tuple[tuple[Var, Value], ...] = (), mask: Tensor | None = None) -> Tensor:
        """Values of an index expression."""
        env = self.env
        if binds:
            env = {**env, **{v.name: self.value(b, mask) for v, b in binds}}
        result = eval(compile(expr.show(), "<index>", "eval"), {"__builtins__": {}}, env)
        return result if isinstance(result, torch.Tensor) else torch.tensor(result)

    def value(self, v: Value, mask: Tensor | None = None) -> Tensor:
        """Values of a scalar expression; where `mask` is False nothing is loaded."""
        if mask is not None:
            return self._compute(v, mask)
        found = self.memo.get(v)
        if found is None:
            found = self.memo[v] = self._compute(v, None)
        return found

    def _compute(self, v: Value, mask: Tensor | None) -> Tensor:
        match v:
            case Const():
                return torch.tensor(v.value, dtype=DTYPES[v.dtype].torch)
            case Index():
                return self.index(v.expr).to(DTYPES[v.dtype].torch)
            case Load():
                return self._load(v, mask)
            case Op(name="to"):
                return self.value(v.args[0], mask).to(DTYPES[v.dtype].torch)
            case Op():
                return SCALAR_OPS[v.name].reference(*[self.value(a, mask) for a in v.args])
            case Masked():
                cond = self.value(v.cond, mask)
                deeper = cond if mask is None else cond & mask
                return torch.where(cond, self.value(v.body, deeper), self.value(v.other))
            case Reduce():
                return self._reduce(v, mask)
            case Scan():
                along = self.env[v.var.name]
                body = self.value(v.body, mask)
                return SCANS[v.name](torch.broadcast_tensors(body, along)[0], -along.dim())

    def _load(self, v: Load, mask: Tensor | None) -> Tensor:
        if v.buffer not in self.machine.filled:
            raise InternalError(f"{v.buffer} is read before it is computed")
        flat = _flat(self.machine.tensor(v.buffer))
        index = self.index(v.index, v.binds, mask)
        if mask is not None:
            index = torch.where(mask, index, 0)
        _check_bounds(index, flat, v.buffer)
        return flat.take(index)

    def _reduce(self, v: Reduce, mask: Tensor | None) -> Tensor:
        scope, sizes = self.inner(v.axes)
        if mask is not None:
            mask = mask.view(mask.shape + (1,) * len(sizes))
        body = scope.value(v.body, mask)
        lead = body.shape[: max(0, body.dim() - len(sizes))]
        flat = torch.broadcast_to(body, (*lead, *sizes)).reshape(*lead, -1)
        return REDUCTIONS[v.name].reference(flat)


def _ints(values: Sequence[Expr]) -> tuple[int, ...]:
    return tuple(as_int(v) for v in values)


def _flat(t: Tensor) -> Tensor:
    """All elements of memory from the first element of `t` to its last, as one dimension."""
    if t.numel() == 0:
        return t.new_empty(0)
    extent = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return t.as_strided((extent,), (1,))


def _check_bounds(index: Tensor, flat: Tensor, name: str) -> None:
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= flat.numel()):
        raise InternalError(f"index {int(index.min())}..{int(index.max())} of {name} with {flat.numel()} elements")


def _same_strides(t: Tensor, strides: tuple[int, ...]) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(t.shape, t.stride(), strides, strict=True))


def _least(*args: Any) -> Any:
    return _extreme(torch.minimum, min, args)


def _greatest(*args: Any) -> Any:
    return _extreme(torch.maximum, max, args)


def _extreme(of_tensors: Any, of_numbers: Any, args: tuple[Any, ...]) -> Any:
    if not any(isinstance(a, torch.Tensor) for a in args):
        return of_numbers(args)
    result = torch.as_tensor(args[0])
    for a in args[1:]:
        result = of_tensors(result, torch.as_tensor(a))
    return result
