"""Rules for functions that transform functions (`torch.func`, checkpoint) and for control flow in a graph.

The function is captured in a graph of its own, by what the transform hands it: the transform itself is run on a
stand-in that looks at its arguments and goes no further.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.func
import torch.utils.checkpoint
from torch import fx
from torch._higher_order_ops import flex_attention
from torch._higher_order_ops.while_loop import while_loop
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.graph import GraphBuilder
from firebrick.capture.guards.sources import Attr
from firebrick.capture.guards.torch_state import Switch, open_contexts
from firebrick.capture.library.known_callables import CODE_HANDLERS, TRANSPARENT_MODULES, handles, handles_each
from firebrick.capture.library.polyfills import scan_loop
from firebrick.capture.replay import new_in_reach
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value, ValueEmitter
from firebrick.capture.values.constant import NONE, ConstantValue, is_literal
from firebrick.capture.values.mapping import DictValue
from firebrick.capture.values.module import ModuleValue
from firebrick.capture.values.new_class import twin
from firebrick.capture.values.opaque import Opaque, OpaqueValue, Pullback
from firebrick.capture.values.sequence import ListValue, TupleValue
from firebrick.capture.values.size import HeldValue
from firebrick.capture.values.tensor import TensorValue
from firebrick.fakes.segments import stands_apart
from firebrick.ir.graph.calls import tensors_in
from firebrick.ir.graph.nested import CHECKPOINT, Body, Branch, Loop, Nested, Transform

_MAKERS: tuple[Callable[..., Any], ...] = (
    *(torch.func.vmap, torch.func.grad, torch.func.grad_and_value),
    *(torch.func.jacrev, torch.func.jacfwd, torch.func.hessian),
)
"""Functions that return a transformed function."""


class TransformValue(Value):
    """`maker(function, **options)`, made in captured code."""

    __slots__ = ("function", "maker", "options")
    held = ("function", "options")
    cls = types.FunctionType

    def __init__(self, maker: Callable[..., Any], function: Value, options: Mapping[str, Value]) -> None:
        self.maker, self.function, self.options = maker, function, dict(options)

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """A node that transforms the function's graph."""
        options = {name: option.realize().as_argument() for name, option in self.options.items()}
        return _transformed(interp, self.maker, self.function, options, args, kwargs)

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """What `functools.wraps` copies."""
        return self.function.realize().get_attr(interp, name)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Transform the function."""
        emitter.load_call(self.maker, *self.children(), keywords=tuple(self.options))


@handles_each(*_MAKERS)
def _makes(maker: Callable[..., Any], interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    parameters = list(inspect.signature(maker).parameters)[1:]
    options = {**dict(zip(parameters, args[1:], strict=False)), **kwargs}
    function = options.pop("func", None) or args[0]
    return TransformValue(maker, function, options)


def _made(maker: Callable[..., Any], interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    """The rule of functions that `maker` returned to code that is not captured."""
    cells = inspect.getclosurevars(function).nonlocals
    options = {name: cells[name] for name in [*inspect.signature(maker).parameters][1:] if name in cells}
    return _transformed(interp, maker, interp.tracer.known(cells["func"]), options, args, kwargs)


for _maker in _MAKERS[:-1]:  # hessian returns what jacfwd makes
    CODE_HANDLERS[_maker(torch.sin).__code__] = functools.partial(_made, _maker)


class _Seen(Exception):
    """The transform has called its function; nothing more is wanted."""


class Sub:
    """Captures calls into a graph nested in the present one."""

    def __init__(self, interp: Interpreter) -> None:
        self.interp, self.tracer = interp, interp.tracer
        self.outer = self.tracer.graph
        self.graph = NestedBuilder(self.outer)

    def argument(self, tensor: torch.Tensor) -> TensorValue:
        """A tensor that the body is handed, like the one that the transform makes."""
        fake = _fake_like(self.graph, tensor)
        return self.graph.argument(fake)

    def capture(self, function: Value, args: Args, kwargs: Kwargs, *, grad: bool) -> tuple[Body, list[TensorValue]]:
        """Run a function symbolically; its body, and the tensors that it returns."""
        before, saving = torch.is_grad_enabled(), self.tracer.saving
        self.tracer.graph, self.tracer.saving = self.graph, []
        torch._C._set_grad_enabled(grad)
        self.graph.grad_at_start = grad
        try:
            result = function.realize().call(self.interp, args, kwargs).realize()
            self.graph.close(self.interp)
        finally:
            torch._C._set_grad_enabled(before)
            self.tracer.graph, self.tracer.saving = self.outer, saving
        leaves, spec = pytree.tree_flatten(result.as_argument())
        tensors: list[Any] = []
        nodes: list[fx.Node] = []
        for leaf in leaves:
            if isinstance(leaf, fx.Node):
                tensors.append(len(nodes))
                nodes.append(self.graph.lift(leaf))
            else:
                tensors.append([leaf])
        self.graph.graph.output(tuple(nodes))
        module = fx.GraphModule(torch.nn.Module(), self.graph.graph)
        module.meta["fake_mode"] = self.graph.mode
        return Body(module, tensors, spec), _values(self.graph, nodes)

    def lifted(self) -> Value:
        """The tensors from outside that the body uses."""
        return TupleValue([*_values(self.outer, list(self.graph.lifted))])


def _values(graph: GraphBuilder, nodes: Sequence[fx.Node]) -> list[Any]:
    """The tensors, or functions that transforms gave, which nodes compute."""
    values = [OpaqueValue(n) if isinstance(v := n.meta.get("val"), Opaque) else graph.known(v) for n in nodes]
    assert None not in values
    return values


class NestedBuilder(GraphBuilder):
    """Builds a graph whose leaves are arguments: tensors from outside are lifted into it."""

    def __init__(self, outer: GraphBuilder) -> None:
        super().__init__(outer)
        self.lifted: dict[fx.Node, fx.Node] = {}
        self._by_fake = outer._by_fake
        self.open_modes, self.switches = outer.open_modes, outer.switches
        self.modes_at_start = len(outer.open_modes)

    def input(self, tensor: torch.Tensor, source: Any) -> TensorValue:
        """Inputs are those of the outermost graph."""
        assert self.outer is not None
        return self.outer.input(tensor, source)

    def attribute(self, tensor: torch.Tensor, path: str, source: Any) -> TensorValue:
        """Parameters are those of the outermost graph."""
        assert self.outer is not None
        return self.outer.attribute(tensor, path, source)

    def argument(self, fake: torch.Tensor) -> TensorValue:
        """A new argument of the body."""
        value = self._by_fake[id(fake)] = TensorValue(self.placeholder("argument", fake), fake)
        self.watch(fake)
        return value

    def changes_arguments(self) -> bool:
        """Whether a call in the body changes the data of what the body does not make."""
        return any(fake._version != version for fake, version in self._versions)

    def lift(self, node: fx.Node) -> fx.Node:
        """The argument that stands for a node of a graph around this one."""
        if node.graph is self.graph:
            return node
        assert self.outer is not None
        node = self.outer.lift(node)
        argument = self.lifted.get(node)
        if argument is None:
            fake = node.meta["val"]
            argument = self.lifted[node] = self.placeholder(node.name, fake)
            self.watch(fake)
        return argument


def _transformed(
    interp: Interpreter,
    api: Callable[..., Any],
    function: Value,
    options: Mapping[str, Any],
    args: Args,
    kwargs: Kwargs,
    *,
    direct: bool = False,
    kind: type[Transform] = Transform,
    alone: bool = False,
) -> Value:
    """The node that runs `api` on a function's graph; `alone`: leaves that this reads must have no hooks."""
    sub = Sub(interp)
    sub.graph.in_transform |= api is not CHECKPOINT
    arguments = TupleValue(list(args)), DictValue.of(dict(kwargs))
    handed = tuple(value.as_argument() for value in arguments)
    body_call: list[Any] = []

    def look(*inner: Any, **named: Any) -> Any:
        body_call.extend((inner, named, torch.is_grad_enabled()))
        raise _Seen

    probe = kind(api, None, options, handed, direct=direct)  # type: ignore[arg-type]
    fakes = fx.map_arg(handed, lambda node: node.meta["val"])
    try:
        with sub.graph.mode:
            probe.apply(look, *fakes)
    except _Seen:
        pass
    except Exception as error:
        text = str(error).split("\n", 1)[0]
        raise Break("fake-tensor-failed", f"{api.__name__}: {type(error).__name__}: {text}") from error
    if not body_call:
        raise Break("unsupported-call", f"{api.__name__}() does not call its function")
    inner, named, grad = body_call
    values = [_value_like(interp, sub, item) for item in inner]
    effects = interp.tracer.effects.count
    body, _ = sub.capture(
        function, values, {name: _value_like(interp, sub, item) for name, item in named.items()}, grad=grad
    )
    for value in _values(sub.outer, list(sub.graph.lifted)) if alone else ():
        if value.fake.is_leaf:
            without_hooks(interp, value, "checkpoint(use_reentrant=True) around")
    if options.get("chunk_size") is not None and interp.tracer.effects.count != effects:
        raise Break("unsupported-call", f"{api.__name__}() in chunks of a function with side effects")
    node = kind(api, body, options, handed, direct=direct)
    return interp.tracer.graph.call(interp, "call_function", node, (*arguments, sub.lifted()), {})


def without_hooks(interp: Interpreter, tensor: TensorValue, what: str) -> None:
    """Guard that a tensor has no hooks, which would see what comes from inside of the graph alone."""
    if tensor.obj is not None and tensor.source is not None and tensor.fake.requires_grad:
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            if hooks := getattr(tensor.obj, name):
                raise Break("unsupported-call", f"{what} a tensor that has hooks")
            guards, source = interp.tracer.guards, Attr(tensor.source, name)
            guards.equals(source, None) if hooks is None else guards.length(source, 0)


def _value_like(interp: Interpreter, sub: Sub, item: Any) -> Value:
    """What stands for an argument that a transform made; its tensors in the order of pytree leaves."""
    if isinstance(item, torch.Tensor):
        return sub.argument(item)
    if isinstance(item, (tuple, list)):
        parts = [_value_like(interp, sub, part) for part in item]
        return TupleValue(parts, cls=type(item)) if isinstance(item, tuple) else ListValue(parts)
    if isinstance(item, dict):
        return DictValue.of({name: _value_like(interp, sub, part) for name, part in item.items()})
    if is_literal(item):
        return ConstantValue(item)
    raise Break("unsupported-call", f"a {type(item).__name__} is passed to a transformed function")


@handles(torch.func.jvp)
def _jvp(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    named = dict(zip(("func", "primals", "tangents"), args, strict=False)) | dict(kwargs)
    function, primals, tangents = named.pop("func"), named.pop("primals"), named.pop("tangents")
    options = {name: option.realize().as_constant() for name, option in named.items()}
    return _transformed(interp, torch.func.jvp, function, options, [primals, tangents], {}, direct=True)


@handles(torch.func.vjp)
def _vjp(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    options = {name: option.realize().as_constant() for name, option in kwargs.items()}
    return _transformed(interp, torch.func.vjp, args[0], options, args[1:], {}, direct=True, kind=Pullback)


_CHECKPOINT: Any = torch.utils.checkpoint.checkpoint
_CHECKPOINT_OPTIONS = ("use_reentrant", "determinism_check", "debug", "early_stop", "preserve_rng_state")


@handles(_CHECKPOINT, CHECKPOINT)
def _checkpoint(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    named = dict(kwargs)
    contexts = named.pop("context_fn", None)
    options = {name: named.pop(name).realize().as_constant() for name in _CHECKPOINT_OPTIONS if name in named}
    if not torch.is_grad_enabled():
        return args[0].realize().call(interp, args[1:], named)
    alone = options.get("use_reentrant") is not False
    gathers = any(isinstance(v := a.realize(), TensorValue) and v.fake.requires_grad for a in args[1:])
    if alone and (interp.tracer.saving or not (options.get("use_reentrant") and gathers)):
        raise Break("unsupported-call", "checkpoint(use_reentrant=True) of what gathers no gradients, or with hooks")
    options["use_reentrant"] = False  # which gives the same gradients, without a backward of its own
    if contexts is not None:
        options["context_fn"] = twin(contexts, settled=False)
    return _transformed(interp, CHECKPOINT, args[0], options, args[1:], named, direct=True, alone=alone)


# -- hooks on saved tensors ---------------------------------------------------------------------------

TRANSPARENT_MODULES.add("torch.autograd.graph")
_END = Switch("leave_saved_tensors_hooks", None, "")


class Packing(Nested):
    """Hooks for what the call behind it saves: bodies that pack each of the tensors in turn, then those that unpack."""

    saves = True

    def __init__(self, bodies: tuple[Body, ...], like: list[Any]) -> None:
        super().__init__("saved_tensors_hooks", bodies, repr(like))
        self.like = like

    def __call__(self, lifted: Sequence[Any], keep: Callable[[Any], Any] = id) -> None:
        """Set them; `keep` is given what is packed."""
        places = itertools.count()

        def pack(tensor: torch.Tensor) -> tuple[int, Any]:
            at = next(places)
            if [(tensor.dtype, tensor.ndim)] != self.like[at : at + 1]:
                raise RuntimeError("firebrick: a call saves other tensors than when hooks on them were captured")
            packed = self.bodies[at]((tensor,), lifted[at])
            keep(packed)
            return at + len(self.like), packed

        def unpack(saved: tuple[int, Any]) -> Any:
            at, packed = saved
            return self.bodies[at]([*tensors_in(packed)], lifted[at])

        switch: Callable[[bool], bool] = torch._C._autograd._saved_tensors_hooks_set_tracing  # type: ignore[attr-defined]
        context = contextlib.ExitStack()
        context.callback(switch, switch(False))  # torch's own tracers have switched hooks off
        context.enter_context(saved_tensors_hooks(pack, unpack))
        open_contexts().append(context)


class _HookSub(Sub):
    """Captures a hook, which is given the very tensors that the graph has, or others."""

    def argument(self, tensor: torch.Tensor) -> TensorValue:
        """One that stands for what is handed in, unless the graph has that already."""
        with self.graph.mode, torch.enable_grad():
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            value = self.graph.argument(fake.requires_grad_().view_as(fake) if tensor.requires_grad else fake)
        outer_value = self.outer.known(tensor)
        return outer_value if outer_value is not None and outer_value.node.graph is self.outer.graph else value


class Hooks:
    """A pair of them. last: what was packed last, and how it unpacks."""

    def __init__(self, interp: Interpreter, pack: Value, unpack: Value) -> None:
        self.pack, self.unpack, self.step = pack, unpack, interp.root().steps
        self.last: tuple[Any, ...] = ()

    @contextlib.contextmanager
    def around(self, interp: Interpreter, saved: Sequence[torch.Tensor]) -> Iterator[None]:
        """Set them for a call that is added inside and saves such tensors; raises Break: no graph does the same."""
        graph, packs, unpacks = interp.tracer.graph, list[Any](), list[Any]()
        for tensor in saved:
            if type(tensor) is not FakeTensor or graph.inference.seen:
                raise Break("unsupported-call", "hooks on saved tensors of other classes, or where inference mode is")
            packs.append(_captured(interp, self.pack, tensor, alone=graph.outer is not None))
            unpacks.append(self._unpacking(interp, packs[-1][2]))
        if packs:
            bodies, nodes, _ = zip(*packs, *unpacks, strict=True)
            begun = graph.statement(interp, Packing(bodies, [(t.dtype, t.ndim) for t in saved]), ([*nodes],))
        yield
        if packs and any(map(stands_apart, graph.since(begun))):
            raise Break("unsupported-call", "hooks on saved tensors where the graph is cut")
        if packs:
            graph.statement(interp, _END, ())

    def _unpacking(self, interp: Interpreter, packed: Any) -> tuple[Body, list[fx.Node], Any]:
        body, nodes, result = _captured(interp, self.unpack, packed, alone=True)
        if not isinstance(result, torch.Tensor):
            raise Break("unsupported-call", f"a hook that unpacks saved tensors returns a {type(result).__name__}")
        self.last = packed, f"{body.graph.graph}", nodes
        return body, nodes, result

    def check(self, interp: Interpreter) -> None:
        """Look at the graph's end whether unpacking is what it was; raises Break: it reads what has changed."""
        if (last := self.last) and self._unpacking(interp, last[0]) and self.last[1:] != last[1:]:
            error = Break(
                "unsupported-call", "what a hook that unpacks saved tensors reads changes before the backward"
            )
            error.step = self.step
            raise error


def _captured(interp: Interpreter, hook: Value, operand: Any, *, alone: bool) -> tuple[Body, list[fx.Node], Any]:
    """What a hook does: its body, what this reads from outside, and what is like the result; `alone`: and no more."""
    sub, effects = _HookSub(interp), interp.tracer.effects.count
    body, results = sub.capture(hook, [_value_like(interp, sub, operand)], {}, grad=False)
    if sub.graph.changes_arguments() or (alone and interp.tracer.effects.count != effects):
        raise Break("unsupported-call", "a hook on saved tensors that does more than to return what it makes")
    leaves = [results[leaf].fake if isinstance(leaf, int) else leaf[0] for leaf in body.leaves]
    return body, [*sub.graph.lifted], pytree.tree_unflatten(leaves, body.spec)


@handles(torch._C._autograd._push_saved_tensors_default_hooks)  # type: ignore[attr-defined]
def _push(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    hooks: Any = Hooks(interp, *args)
    with interp.raising(RuntimeError), saved_tensors_hooks(hooks.check, hooks.check):  # raises where hooks are disabled
        interp.tracer.hooks.append(hooks)
    interp.tracer.saving = [*interp.tracer.saving, hooks]
    interp.tracer.effects.outside += 1  # a call of a module that does so is not replayed
    return NONE


@handles(torch._C._autograd._pop_saved_tensors_default_hooks)  # type: ignore[attr-defined]
def _pop(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if not interp.tracer.saving:
        raise Break("unsupported-call", "hooks on saved tensors that were set elsewhere are taken away")
    interp.tracer.saving = interp.tracer.saving[:-1]
    return NONE


# -- control flow ---------------------------------------------------------------------------------


def _like(one: torch.Tensor, other: torch.Tensor) -> bool:
    metas = [(t.shape, t.stride(), t.dtype, t.device, t.requires_grad) for t in (one, other)]
    return metas[0] == metas[1]


def _pure_body(
    sub: Sub, name: str, function: Value, args: Args, *, fresh: bool = True
) -> tuple[Sub, Body, list[TensorValue]]:
    """A body that may run or not: without effects, its results new tensors if `fresh`."""
    effects = sub.tracer.effects
    reached = new_in_reach([function.realize(), *args])
    before, outer_count, touched = effects.count, effects.outside, len(effects.touched)
    body, results = sub.capture(function, args, {}, grad=torch.is_grad_enabled())
    changed = effects.count != before
    if reached is not None:  # what the body makes itself, it may change
        changed = effects.outside != outer_count or not {*map(id, reached)}.isdisjoint(effects.touched[touched:])
    if sub.graph.changes_arguments() or changed:
        raise Break("unsupported-call", f"{name}() with a function that has side effects")
    storages = {value.fake.untyped_storage()._cdata for value in results}
    outside = {node.meta["val"].untyped_storage()._cdata for node in sub.graph.graph.nodes if node.op == "placeholder"}
    if fresh and (len(storages) < len(results) or storages & outside):
        raise Break("unsupported-call", f"{name}() with a function that returns a tensor of its arguments")
    return sub, body, results


def _control(interp: Interpreter, target: Nested, args: list[Value], like: list[TensorValue], body: Body) -> Value:
    """A node whose results are as those of a body."""
    graph = interp.tracer.graph
    fakes: list[Any] = [_fake_like(graph, value.fake) for value in like]
    leaves = [fakes[leaf] if isinstance(leaf, int) else leaf[0] for leaf in body.leaves]
    return graph.add(interp, target, args, pytree.tree_unflatten(leaves, body.spec))


def _fake_like(graph: GraphBuilder, like: torch.Tensor) -> torch.Tensor:
    with graph.mode, torch.no_grad():
        fake = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    return fake.requires_grad_() if like.requires_grad else fake


@handles(torch.cond)
def _cond(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    named = dict(zip(("pred", "true_fn", "false_fn", "operands"), args, strict=False)) | dict(kwargs)
    condition = named["pred"].realize()
    if isinstance(condition, HeldValue):
        condition = condition.tensor(interp).realize()
    operands = list(interp.iterate(named["operands"])) if "operands" in named else []
    branches = [named["true_fn"], named["false_fn"]]
    if not isinstance(condition, TensorValue):
        return branches[0 if condition.truth(interp) else 1].realize().call(interp, operands, {})
    one, other = (_pure_body(Sub(interp), "cond", branch, operands) for branch in branches)
    if one[1].spec != other[1].spec or not all(_like(a.fake, b.fake) for a, b in zip(one[2], other[2], strict=True)):
        raise Break("unsupported-call", "the functions of cond() return tensors of different kinds")
    if any(a != b or type(a) is not type(b) for a, b in zip(one[1].leaves, other[1].leaves, strict=True)):
        raise Break("unsupported-call", "the functions of cond() return different numbers")
    lifted = TupleValue([one[0].lifted(), other[0].lifted()])
    return _control(interp, Branch((one[1], other[1])), [condition, lifted], one[2], one[1])


@handles(while_loop)
def _while_loop(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    named = dict(zip(("cond_fn", "body_fn", "carried_inputs"), args, strict=False)) | dict(kwargs)
    carried = [value.realize() for value in interp.iterate(named["carried_inputs"])]
    subs = []
    for name in ("cond_fn", "body_fn"):
        inner: list[Value] = []
        sub = Sub(interp)
        for value in carried:
            if not isinstance(value, TensorValue):
                raise Break("unsupported-call", "while_loop() carries what is no tensor")
            inner.append(sub.argument(value.fake))
        subs.append(_pure_body(sub, "while_loop", named[name], inner))
    (test, test_body, _), (step, step_body, results) = subs
    if len(results) != len(carried) or len(step_body.leaves) != len(results):
        raise Break("unsupported-call", "the function of while_loop() does not return what is carried")
    for value, result in zip(carried, results, strict=True):
        assert isinstance(value, TensorValue)
        if not _like(value.fake, result.fake):
            raise Break("unsupported-call", "while_loop() carries tensors of changing kinds")
    lifted = TupleValue([test.lifted(), step.lifted()])
    return _control(interp, Loop((test_body, step_body)), [TupleValue(carried), lifted], results, step_body)


class Scan(Nested):
    """A loop over the rows of tensors: the body makes the next of what is carried, and rows that are stacked."""

    splits = True

    def __init__(self, body: Body, carried: int) -> None:
        super().__init__("scan", (body,), str(carried))
        self.carried = carried

    def __call__(self, carried: Sequence[Any], columns: Sequence[Any], lifted: Sequence[Any]) -> Any:
        """Run the loop."""
        (body,), count = self.bodies, self.carried
        stacked: list[Any] = []
        for rows in zip(*[column.unbind(0) for column in columns], strict=True):
            results = body.run(*carried, *rows, *lifted)
            carried = results[:count]
            stacked.append(results[count:])
        ends = [tensor.clone() for tensor in carried]  # they may be rows
        return pytree.tree_unflatten([*ends, *map(torch.stack, zip(*stacked, strict=True))], body.spec)


@handles(scan_loop)
def _scan_loop(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """The loop over rows of tensors, more than are unrolled."""
    graph, sub = interp.tracer.graph, Sub(interp)
    nodes = [arg.realize().as_argument() for arg in args[1:]]
    handed = fx.map_arg(nodes, lambda node: node.meta["val"])
    carried, columns = (pytree.tree_leaves(tree) for tree in handed)
    with sub.graph.mode:
        rows = pytree.tree_map(lambda column: column[0], handed[1])
    inner = [_value_like(interp, sub, handed[0]), _value_like(interp, sub, rows)]
    sub, body, results = _pure_body(sub, "scan", args[0], inner, fresh=False)
    fakes = [_fake_like(graph, value.fake) for value in results]
    if not all(map(_like, carried, fakes)) or any(isinstance(leaf, list) for leaf in body.leaves):
        raise Break("unsupported-call", "scan() carries tensors of changing kinds, or what is no tensor")
    with graph.mode:
        fakes[len(carried) :] = [torch.stack([fake] * len(columns[0])) for fake in fakes[len(carried) :]]
    inputs: list[Value] = [*[TupleValue([*_values(graph, pytree.tree_leaves(part))]) for part in nodes], sub.lifted()]
    return graph.add(interp, Scan(body, len(carried)), inputs, pytree.tree_unflatten(fakes, body.spec))


handles(flex_attention)(lambda interp, args, kwargs: interp.inline(interp.stand_in("flex_attention"), args, kwargs))


# -- modules with other tensors ---------------------------------------------------------------------


@handles(torch.func.functional_call)
def _functional_call(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    names = ("module", "parameter_and_buffer_dicts", "args", "kwargs")
    named = {name: value.realize() for name, value in (*zip(names, args, strict=False), *kwargs.items())}
    module, tensors = named["module"], named["parameter_and_buffer_dicts"]
    if not isinstance(module, ModuleValue):
        raise Break("unsupported-call", f"functional_call() of {module.describe()}")
    interp.tracer.guards.pin(module)
    dicts = [tensors] if isinstance(tensors, DictValue) else [item.realize() for item in interp.iterate(tensors)]
    if interp.flag(named.get("strict"), False):
        paths = {key.realize().as_constant() for mapping in dicts for key in interp.iterate(mapping)}
        if paths != {name for name, _ in (*module.obj.named_parameters(), *module.obj.named_buffers())}:
            raise Break("unsupported-call", "functional_call() with strict=True and other names than the module has")
    tied = _tied(module.obj) if interp.flag(named.get("tie_weights"), True) else {}
    replaced: list[tuple[Any, str, Any]] = []
    try:
        for mapping in dicts:
            for key in list(interp.iterate(mapping)):
                path = key.realize().as_constant()
                for same in tied.get(path, (path,)):
                    _replace(interp, module, same, mapping.get_item(interp, key), replaced)
        positional = named.get("args", TupleValue([]))
        if positional.python_type() is type(None):
            positional = TupleValue([])
        items = list(interp.iterate(positional)) if isinstance(positional, TupleValue) else [positional]
        extra = named.get("kwargs", ConstantValue(None))
        keywords = {} if not isinstance(extra, DictValue) else extra.whole(interp)
        return module.call(interp, items, {str(k.realize().as_constant()): v for k, v in keywords.values()})
    finally:
        for table, name, before in reversed(replaced):
            table[name] = before


def _tied(module: torch.nn.Module) -> dict[str, list[str]]:
    """Names of one tensor, by each of them."""
    groups: dict[int, list[str]] = {}
    every = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    for name, tensor in every:
        groups.setdefault(id(tensor), []).append(name)
    return {name: names for names in groups.values() for name in names}


def _replace(interp: Interpreter, module: Any, path: str, value: Value, replaced: list[tuple[Any, str, Any]]) -> None:
    *parts, name = path.split(".")
    owner: Value = functools.reduce(lambda one, part: one.get_attr(interp, part).realize(), parts, module)
    if not isinstance(owner, ModuleValue) or (name not in owner.obj._parameters and name not in owner.obj._buffers):
        raise Break("unsupported-call", f"functional_call() with {path}, which is no parameter or buffer")
    before = owner.own(interp, name).realize()
    for kind in ("_parameters", "_buffers"):  # also where the module's own code looks into these
        table = owner.own(interp, kind).realize()
        if name in getattr(table, "entries", ()):
            replaced.append((table.entries, name, table.entries[name]))
            table.entries[name] = (table.entries[name][0], value)
    replaced.append((owner.fields, name, before))
    owner.fields[name] = value
