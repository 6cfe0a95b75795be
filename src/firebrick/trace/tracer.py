"""Runs torch-level calls on fake tensors and puts the functional ATen ops that they make on a tape.

A `TorchDispatchMode` sees each ATen call below autograd. Views extend the chain of their storage,
writes go through `aliasing.write`, ops in the decomposition table run their decomposition under the
same mode, and what is left is recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from firebrick.errors import LoweringError
from firebrick.fakes.foreach import calls_of, op_of
from firebrick.fakes.mode import dispatches_itself, fake_of
from firebrick.fakes.mutation import functional_of, written_arguments
from firebrick.fakes.segments import COLLECTIVES
from firebrick.fakes.strides import by_stride
from firebrick.fakes.view_rules import part_sizes
from firebrick.ir.graph.calls import tensors_in
from firebrick.ir.index.sizes import expressions, size_of
from firebrick.ir.operators.collective_op import COLLECTIVE_OPS
from firebrick.ir.operators.recurrent_op import recorded_lstm
from firebrick.runtime.bits import Bits, bits_of, toggled
from firebrick.runtime.cuda_attention import SEEDED
from firebrick.runtime.written import written_form
from firebrick.trace.aliasing import BIT_OPS, Origin, Storage, Value, ViewStep, read, replay, steps_of, switched, write
from firebrick.trace.decompositions import EXACT, decompositions
from firebrick.trace.quantized_recipes import QUANTIZED
from firebrick.trace.tape import Record, Tape

aten = torch.ops.aten


def fake_like(mode: FakeTensorMode, like: torch.Tensor, grad: bool = False) -> FakeTensor:
    """Make a new fake tensor with the metadata of `like`; `grad`: a leaf that requires a gradient if `like` does."""
    if like.layout != torch.strided or like.is_quantized or like.is_nested:
        return mode.from_tensor(like, static_shapes=True)
    return fake_of(mode, like, grad)


class Tracer(TorchDispatchMode):
    """The dispatch mode of one trace. exact: what is taken apart computes the bits of the whole."""

    def __init__(self, mode: FakeTensorMode, exact: bool = False) -> None:
        super().__init__()
        self.fake_mode = mode
        self._rules = _EXACT_RULES if exact else _RULES
        self._exact = exact
        self.tape = Tape()
        self.constants: dict[str, torch.Tensor] = {}
        self.literals: set[str] = set()  # constants that no attribute of the traced module holds
        self.bits: dict[str | int, Bits] = {}  # of inputs and constants that have any
        self.seen_by_bits: set[int] = set()  # the fakes of those
        self.turned: dict[int, tuple[FakeTensor, int]] = {}  # views with gradients, reshaped in place: their versions
        self.locate: Callable[[], None] | None = None  # tells the tape where in the program the next call is from
        self._values: dict[int, Value] = {}
        self._keep: list[Any] = []
        self._constant_values: dict[int, Value] = {}
        self._decompositions = decompositions()

    # ------------------------------------------------------------ values

    def bind(self, value: Value) -> FakeTensor:
        """Make `value.fake` stand for `value` in the calls that follow, and return it."""
        bound = self._values.get(id(value.fake))
        if bound is not value:
            value.fake = value.fake if bound is None else fake_like(self.fake_mode, value.fake)
            self._register(value)
        return value.fake

    def fresh(self, record: Record, fake: FakeTensor, origin: Origin | None = None) -> Value:
        """Return a value that covers a storage of its own."""
        return self._register(Value(fake, Storage(record, fake, origin), (), record))

    def value_from(self, op: str, fake: FakeTensor, origin: Origin) -> Value:
        """Return the value of an input or a constant; one with a negative or conjugate bit is a view of its memory."""
        bits = bits_of(fake)
        if not any(bits):
            return self.fresh(self.tape.add(op, (origin.name,), {}, fake), fake, origin)
        self.bits[origin.name] = bits
        self.seen_by_bits.add(id(fake))
        base = fake_like(self.fake_mode, toggled(fake, bits))
        storage = Storage(self.tape.add(op, (origin.name,), {}, base), base, origin)
        value = Value(fake, storage, steps_of(bits), storage.record)
        value.version = -1
        return self._register(value)

    def _register(self, value: Value) -> Value:
        self._values[id(value.fake)] = value
        self._keep.append(value.fake)
        return value

    def value_of(self, tensor: torch.Tensor) -> Value:
        """Return the value that `tensor` stands for; an unknown real tensor becomes a constant."""
        value = self._values.get(id(tensor))
        if value is not None:
            return value
        if dispatches_itself(type(tensor)):
            raise LoweringError(f"a {type(tensor).__name__} takes the place of a plain tensor")
        if isinstance(tensor, FakeTensor):
            raise LoweringError("a fake tensor from outside of the graph reached the trace")
        return self.constant(tensor, f"_literal{len(self.literals)}", literal=True)

    def constant(self, tensor: torch.Tensor, name: str, fake: FakeTensor | None = None, literal: bool = False) -> Value:
        """Return the value of a captured tensor; one tensor is one value under all its names."""
        value = self._constant_values.get(id(tensor))
        if value is None:
            if fake is None or id(fake) in self._values:
                fake = fake_like(self.fake_mode, tensor, grad=True)
            value = self.value_from("get_attr", fake, Origin("const", name, -1))
            self._constant_values[id(tensor)] = value
            self.constants[name] = tensor
            if literal:
                self.literals.add(name)
        return value

    def read(self, value: Value) -> Record:
        """Return the record of `value`'s present content."""
        return read(value, self.emit)

    def emit(self, op: OpOverload, *args: Any, **kwargs: Any) -> Record:
        """Record a call on records, finding its metadata with fake kernels."""
        fake_args = [a.val if isinstance(a, Record) else a for a in args]
        val = self.fake_mode.__torch_dispatch__(op, (), tuple(fake_args), kwargs)
        return self.tape.add(op, args, kwargs, val)

    # ------------------------------------------------------------ dispatch

    _should_skip_dynamo = classmethod(lambda cls: False)  # True: the first `__torch_dispatch__` imports torch._dynamo

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record, decompose or make functional one ATen call."""
        if types and any(map(dispatches_itself, types)):
            return NotImplemented
        kwargs = kwargs or {}
        if self.locate is not None:
            self.locate()
        rule = self._rules.get(func) or self._rules.setdefault(func, _classify(func, self._exact))
        return rule(self, func, args, kwargs)

    def lower(self, arg: Any) -> tuple[Any, Any]:
        """Return (argument in terms of records, argument with every tensor fake)."""
        if isinstance(arg, torch.Tensor):
            value = self.value_of(arg)
            record = self.read(value)
            # What was written may be laid out otherwise than the memory that the program sees.
            return record, value.fake if _same_layout(record.val, value.fake) else record.val
        if isinstance(arg, (list, tuple)) and any(isinstance(a, torch.Tensor) for a in arg):
            pairs = [self.lower(a) for a in arg]
            return [p[0] for p in pairs], [p[1] for p in pairs]
        return arg, arg

    def fakes(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `func` on fake tensors only."""
        return self.fake_mode.__torch_dispatch__(func, (), args, kwargs)

    def record_call(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], draws: bool = True) -> Any:
        """Record `func` as it is; every tensor that it returns is a new value. draws: as its tags say."""
        pairs = [self.lower(a) for a in args]
        named = {k: self.lower(v) for k, v in kwargs.items()}
        result = self.fakes(func, tuple(p[1] for p in pairs), {k: v[1] for k, v in named.items()})
        arguments = tuple(p[0] for p in pairs), {k: v[0] for k, v in named.items()}
        record = self.tape.add(func, *arguments, result, draws=draws)
        if isinstance(result, (tuple, list)):
            for i, item in enumerate(result):
                if isinstance(item, FakeTensor):
                    self.fresh(self.tape.add(operator.getitem, (record, i), {}, item), item)
        elif isinstance(result, FakeTensor):
            self.fresh(record, result)
        return result

    def view(self, source: Value, fake: FakeTensor, steps: tuple[ViewStep, ...], record: Record) -> FakeTensor:
        """Register `fake` as a view of `source`."""
        value = Value(fake, source.storage, source.chain + steps, record)
        self._register(value)
        return fake

    def overwrite(self, tensor: torch.Tensor, record: Record) -> None:
        """Make `record` the content of `tensor`'s memory."""
        write(self.value_of(tensor), record, self.emit)


# ---------------------------------------------------------------- rules


_OF_PYTHON = frozenset({"quantized_decomposed"})
"""Libraries whose kernels are calls of torch's ops, made in Python."""


def _classify(func: OpOverload, exact: bool) -> Callable[..., Any]:
    """Choose the rule of an op that has none in `_RULES`."""
    if func.namespace in COLLECTIVES:
        return _collective
    if op_of(func) is not None:
        return _each
    if (func in decompositions() and (func in EXACT or not exact)) or func.namespace in _OF_PYTHON:
        return _decompose
    schema = func._schema
    if schema.is_mutable:
        return _inplace_view if torch.Tag.inplace_view in func.tags else _mutate
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        # First, since `to` and `reshape` look where they can and copy where not: what they are made of is one or other.
        return partial(_made_of, "decompose")
    if any(r.alias_info is not None for r in schema.returns):
        return _view_rule
    return partial(_made_of, "prim_impl") if func.namespace == "prims" and hasattr(func, "prim_impl") else _record


_GIVES_ITS_ARGUMENT = ("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd")


def _collective(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One that a tensor's dispatch calls in the middle of an op; those that a program calls stand apart."""
    namespace, _, name = func.name().partition("::")
    if func.name() in _GIVES_ITS_ARGUMENT:
        return args[0]
    if namespace != "_c10d_functional" or name not in COLLECTIVE_OPS:
        raise LoweringError(f"{func} is called by the dispatch of a tensor")
    return tracer.record_call(COLLECTIVE_OPS[name], args, kwargs)


_record = Tracer.record_call


def _attention(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """By kernels of a GPU. The tag of a backward says that it draws: what the forward did, again. Without dropout it
    reads no seeds, which lie on the CPU or the GPU as the forward ran step by step or as a recorded graph."""
    place = {argument.name: i for i, argument in enumerate(func._schema.arguments)}
    seeds = [place[name] for name in ("philox_seed", "philox_offset") if name in place]
    arguments, named = list(args), dict(zip(place, args, strict=False)) | kwargs
    if named.get("dropout_p"):
        func = SEEDED[func] if named.get("compute_log_sumexp", func in SEEDED) else func
    elif seeds:
        with tracer:
            seed = torch.zeros((), dtype=torch.int64, device=args[0].device)
        arguments[seeds[0]] = arguments[seeds[1]] = seed
    return tracer.record_call(func, tuple(arguments), kwargs, draws=not seeds)


def _each(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    calls = calls_of(func, args, kwargs)
    if calls is None:
        return (_mutate if func._schema.is_mutable else _record)(tracer, func, args, kwargs)
    results = [tracer.__torch_dispatch__(op, (), positional, named) for op, positional, named in calls]
    return results if func._schema.returns else None


def _made_of(method: str, tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a method of the op calls."""
    with tracer:
        return getattr(func, method)(*args, **kwargs)


def _decompose(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        with tracer:
            own = decompositions().get(func) or QUANTIZED.get(func.name())
            own = own or partial(func._op_dk, torch._C.DispatchKey.CompositeExplicitAutograd)
            result = own(*args, **kwargs)
    except (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError):
        # Some refuse what eager takes; where eager refuses too, its own check says so now.
        result = NotImplemented
    if result is NotImplemented:
        return tracer.record_call(func, args, kwargs)
    if isinstance(result, FakeTensor) and not any(r.alias_info is not None for r in func._schema.returns):
        # A functional op returns memory of its own, even where its decomposition returns an argument or a view.
        value = tracer.value_of(result)
        arguments = (*args, *kwargs.values())
        if any(tracer.value_of(t).storage is value.storage for a in arguments for t in tensors_in(a)):
            result = fake_like(tracer.fake_mode, result)
            tracer.fresh(tracer.read(value), result)
    return result


def _batch_norm(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """With the batch's statistics it writes the running ones."""
    return (_decompose if args[5] else _record)(tracer, func, args, kwargs)


def _rnn_layer(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Its kernel looks at grad mode, which is off where a graph runs."""
    return tracer.record_call(recorded_lstm if torch.is_grad_enabled() else func, args, kwargs)


def _view_rule(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not args or not isinstance(args[0], torch.Tensor):
        return tracer.record_call(func, args, kwargs)
    source = tracer.value_of(args[0])
    fake = tracer.fakes(func, (source.fake, *args[1:]), kwargs)
    if not isinstance(fake, FakeTensor):
        raise LoweringError(f"{func} returns several views")
    record = tracer.read(source)
    if _same_layout(fake, source.fake):
        return tracer.view(source, fake, (), record)
    step = ViewStep(func, args[1:], tuple(kwargs.items()))
    if _same_layout(record.val, source.fake):
        record = tracer.tape.add(func, (record, *args[1:]), kwargs, fake)
    else:
        record = replay(step, record, source.storage, tracer.emit)
    return tracer.view(source, fake, (step,), record)


def _bit(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`_conj` and `_neg_view`: views for the program, calls that compute for the graph; a second undoes the first."""
    if not isinstance(args[0], torch.Tensor):  # a Python number, which autograd saves as a tensor of double precision
        number = args[0].conjugate() if func is aten._conj.default else -args[0]
        options = {"dtype": torch.complex128, "layout": torch.strided, "device": torch.device("cpu")}
        number_tensor = tracer.fakes(aten.full.default, ([], number), options)
        tracer.fresh(tracer.tape.add(aten.full.default, ([], number), options, number_tensor), number_tensor)
        return number_tensor
    source = tracer.value_of(args[0])
    fake = tracer.fakes(func, (source.fake,), {})
    step = ViewStep(func, ())
    chain = source.chain[:-1] if source.chain[-1:] == (step,) else (*source.chain, step)
    value = Value(fake, source.storage, chain, source.record)
    value.version = -1
    tracer._register(value)
    return fake


def _same_layout(a: FakeTensor, b: FakeTensor) -> bool:
    return a is b or (
        expressions(a.shape) == expressions(b.shape)
        and expressions(a.stride()) == expressions(b.stride())
        and a.dtype == b.dtype
        and size_of(a.storage_offset()) == size_of(b.storage_offset())
        and a.is_conj() == b.is_conj()
        and a.is_neg() == b.is_neg()
    )


def _identity(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source = tracer.value_of(args[0])
    return tracer.view(source, fake_like(tracer.fake_mode, source.fake), (), tracer.read(source))


def _as_view(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _view_rule(tracer, aten.view.default, (args[0], args[1]), {})


def _fresh_view(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`_unsafe_view`: a view by memory, a tensor of its own for whoever writes to it."""
    source = tracer.value_of(args[0])
    if any(bits_of(source.fake)):
        return _as_view(tracer, func, args, kwargs)
    # Of the view: of `_unsafe_view` the fake result is dense, whatever strides it has.
    fake = tracer.fakes(aten.view.default, (source.fake, args[1]), {})
    record = tracer.read(source)
    if not _same_layout(record.val, source.fake):
        record = replay(ViewStep(aten.view.default, (args[1],)), record, source.storage, tracer.emit)
    elif not _same_layout(fake, source.fake):
        record = tracer.tape.add(aten.view.default, (record, args[1]), {}, fake)
    tracer.fresh(record, fake)
    return fake


def _reach(shape: Iterable[int], strides: Iterable[int]) -> int:
    """How far behind the first element the last one lies."""
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def _as_strided(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source = tracer.value_of(args[0])
    size, stride = args[1], args[2]
    offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    if offset is None:
        offset = source.fake.storage_offset()
    storage = source.storage
    if source.fake.dtype != storage.base.dtype:
        raise LoweringError("as_strided counts in numbers of another type than the memory that it looks at was made of")
    fake = tracer.fakes(func, (source.fake, size, stride, offset), {})
    base = storage.record
    inside = offset - storage.base.storage_offset()
    if base.val.stride() != storage.base.stride():
        raise LoweringError("as_strided of memory whose layout changed")
    reach, end = _reach(size, stride), _reach(storage.base.shape, storage.base.stride())
    if isinstance(reach, int) and isinstance(end, int) and 0 not in size and not 0 <= inside <= end - reach:
        raise LoweringError("as_strided reads memory outside of the tensor that the graph knows")
    bits = bits_of(fake)
    # What was written lies elsewhere than the argument, in whose storage the user counts.
    record = switched(tracer.emit(func, base, size, stride, inside + base.val.storage_offset()), bits, tracer.emit)
    value = Value(fake, storage, (ViewStep(func, (size, stride, inside)), *steps_of(bits)), record)
    tracer._register(value)
    return fake


def _split(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Several views at once: one slice each, so that unused parts vanish."""
    tensor, sizes = args[0], args[1]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    extent = tensor.shape[dim]
    if isinstance(sizes, (int, torch.SymInt)):
        if type(sizes) is int and sizes == 0:
            return [_identity(tracer, func, args, kwargs)]
        sizes = part_sizes(extent, sizes)
    parts, start = [], 0
    for size in sizes:
        parts.append(_view_rule(tracer, aten.slice.Tensor, (tensor, dim, start, start + size), {}))
        start += size
    return parts


def _unbind(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    return [_view_rule(tracer, aten.select.int, (tensor, dim, i), {}) for i in range(tensor.shape[dim])]


def _lift(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A tensor made from a Python literal: a constant, or `full` when it is one number."""
    literal = args[0]
    if isinstance(literal, FakeTensor):
        return _identity(tracer, func, args, kwargs)
    fake = tracer.fakes(func, args, kwargs)
    if literal.numel() == 1 and literal.device.type == "cpu" and literal.layout == torch.strided:
        options = {"dtype": literal.dtype, "layout": torch.strided, "device": literal.device}
        record = tracer.tape.add(aten.full.default, (list(literal.shape), literal.item()), options, fake)
    else:
        record = tracer.read(tracer.value_of(literal))
    tracer.fresh(record, fake)
    return fake


def _check_errors(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A factorization's status is looked at by an op without a result; the factorization itself can raise as well.

    linalg_cholesky_ex(a, check_errors=False); _linalg_check_errors(info) -> linalg_cholesky_ex(a, check_errors=True)
    """
    maker = tracer.read(tracer.value_of(args[0]))
    while maker.op is operator.getitem or (isinstance(maker.op, torch._ops.OpOverload) and maker.op.is_view):
        maker = maker.args[0]
    names = [a.name for a in maker.op._schema.arguments] if isinstance(maker.op, torch._ops.OpOverload) else []
    if "check_errors" not in names:
        raise LoweringError(f"{func} looks at the status of {maker.op}, which can't raise itself")
    place = names.index("check_errors")
    if place < len(maker.args):
        maker.args = (*maker.args[:place], True, *maker.args[place + 1 :])
    else:
        maker.kwargs = {**maker.kwargs, "check_errors": True}


def _device(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


# ---------------------------------------------------------------- writes


def _fill(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`zero_`, and `fill_` and `copy_`, each with a tensor or a number."""
    target, source = (*args, 0)[:2]
    if isinstance(source, torch.Tensor):
        record = tracer.read(tracer.value_of(source))
    else:
        fake = tracer.value_of(target).fake
        options = {"dtype": fake.dtype, "layout": torch.strided, "device": fake.fake_device, "pin_memory": False}
        record = tracer.emit(aten.full.default, list(fake.shape), source, **options)
    tracer.overwrite(target, record)
    return target


def _mutate(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    functional = functional_of(func) or written_form(func)
    if functional is None:
        raise LoweringError(f"{func} writes its arguments and has no functional form")
    copies = functional.namespace != func.namespace
    written = written_arguments(func)
    arguments = func._schema.arguments
    targets = [args[i] if i < len(args) else kwargs[name] for i, name in written]
    if copies or any(isinstance(target, (tuple, list)) for target in targets):
        storages = [tracer.value_of(t).storage for a in (*args, *kwargs.values()) for t in tensors_in(a)]
        if any(storages.count(tracer.value_of(t).storage) > 1 for t in tensors_in(targets)):
            raise LoweringError(f"{func} writes memory that several of its tensors share")
    if arguments[written[0][0]].kwarg_only and not copies:
        names = {name for _, name in written}
        kwargs = {k: v for k, v in kwargs.items() if k not in names}
    kwargs = {**_defaults(func, len(args), kwargs), **kwargs}
    with tracer:
        results = functional(*args, **kwargs)
    flat_targets = list(tensors_in(targets))
    flat_results = list(tensors_in(results))
    extra = len(flat_results) - len(flat_targets)
    if extra < 0:
        raise LoweringError(f"{func} and {functional} return different numbers of tensors")
    for target, result in zip(flat_targets, flat_results[extra:], strict=True):
        tracer.overwrite(target, tracer.read(tracer.value_of(_resize_empty(tracer, target, result))))
    returned = (flat_results[:extra] + flat_targets)[: len(func._schema.returns)]
    if not returned:
        return None
    return returned[0] if len(returned) == 1 else tuple(returned)


def _bernoulli(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The functional form draws numbers in the order of the dimensions, this one in that of memory."""
    fake = tracer.value_of(args[0]).fake
    order = by_stride(tuple(fake.shape), fake.stride())[::-1]
    if order == sorted(order):
        return _mutate(tracer, func, args, kwargs)
    rate = args[1] if len(args) > 1 else kwargs.pop("p", 0.5)
    with tracer:
        rate = rate.expand(fake.shape).permute(order) if isinstance(rate, torch.Tensor) else rate
        drawn = functional_of(func)(args[0].permute(order), rate, **kwargs)  # type: ignore[misc]
        drawn = drawn.permute([order.index(d) for d in range(len(order))])
    tracer.overwrite(args[0], tracer.read(tracer.value_of(drawn)))
    return args[0]


def _defaults(func: OpOverload, count: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of arguments that the call leaves out: the functional form may have none for them."""
    missing = func._schema.arguments[count:]
    return {a.name: a.default_value for a in missing if a.name not in kwargs and a.has_default_value()}


def _resize_empty(tracer: Tracer, target: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """An empty out= tensor takes the result's size; what is written to it then has its dtype."""
    value = tracer.value_of(target)
    if tuple(value.fake.shape) != tuple(result.shape):
        if result.dtype != target.dtype:
            with tracer:
                result = result.to(target.dtype)
        if value.storage.origin is not None or value.chain or value.fake.numel():
            raise LoweringError("an out= argument of the graph would be resized")
        value.fake = tracer.value_of(result).fake
        value.storage.base = value.fake
    return result


def _inplace_view(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`t_`, `squeeze_` and the like: the same tensor object sees its memory in another way."""
    functional = functional_of(func)
    if functional is None or functional.is_view is False:
        raise LoweringError(f"{func} changes the memory that its argument uses")
    value = tracer.value_of(args[0])
    origin = value.storage.origin
    plain = not value.chain and value.fake is value.storage.base
    if origin is not None and (plain or id(value.fake) in tracer.seen_by_bits):
        raise LoweringError(f"{func} makes {origin.name} another view of its memory, which is the caller's to see")
    with tracer:
        viewed = tracer.value_of(functional(*args, **kwargs))
    # The object that the program holds takes the new metadata; the tape keeps a copy of the old.
    fake, before = value.fake, fake_like(tracer.fake_mode, value.fake)
    for record in (*tracer.tape.records, value.record, value.storage.record):
        if record.val is fake:
            record.val = before
        elif isinstance(record.val, (tuple, list)) and any(v is fake for v in record.val):
            record.val = type(record.val)(before if v is fake else v for v in record.val)
    if value.storage.base is fake:
        value.storage.base = before
    tracer.fakes(func, (fake, *args[1:]), kwargs)
    if fake.requires_grad and fake._is_view():
        tracer.turned[id(fake)] = fake, fake._version + 1  # autograd counts it when this returns
    value.chain, value.record, value.version = viewed.chain, viewed.record, viewed.version
    return args[0]


def _same_storage_size(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Asked of tangents before they are made views: of the tensors that the program holds, not of what they became."""
    one, other = (t.untyped_storage().nbytes() // t.element_size() for t in args)
    return one == other


_RULES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((aten.detach.default, aten.alias.default, aten.lift.default), _identity),
    aten.lift_fresh.default: _lift,
    aten._reshape_alias.default: _as_view,
    aten._unsafe_view.default: _fresh_view,
    **dict.fromkeys(BIT_OPS, _bit),
    aten.as_strided.default: _as_strided,
    **dict.fromkeys((aten.split.Tensor, aten.split_with_sizes.default), _split),
    aten.unbind.int: _unbind,
    aten.mkldnn_rnn_layer.default: _rnn_layer,
    **dict.fromkeys((aten._scaled_dot_product_cudnn_attention_backward.default, *SEEDED), _attention),
    **dict.fromkeys((aten.bernoulli_.float, aten.bernoulli_.Tensor), _bernoulli),
    **dict.fromkeys((aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default), _fill),
    torch.ops.prim.device.default: _device,
    **dict.fromkeys(
        (aten.size.default, aten.stride.default, aten.storage_offset.default), Tracer.fakes
    ),  # asked in C++
    aten._has_same_storage_numel.default: _same_storage_size,
    aten._linalg_check_errors.default: _check_errors,
}
"""Op -> rule; `_classify` adds the others as they are met."""

_EXACT_RULES = {**_RULES, aten.native_batch_norm.default: _batch_norm}
"""The same for a trace whose parts must compute the bits of the whole."""
