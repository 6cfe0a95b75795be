"""Rules of what users and libraries say to a compiler: functions that break, that are left alone, that are constant.

Both Firebrick's own marks and those of `torch.compiler` and `torch._dynamo` are honoured; the latter are known by
their names and attributes, since the module that defines them is not imported for it.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import reduce
from typing import Any

import torch._compile
from torch import nn
from torch.nn.utils import stateless
from torch.utils import _pytree as pytree

from firebrick._native import Wrapped
from firebrick.capture import marks
from firebrick.capture.breaks.catalogue import Break, breaks
from firebrick.capture.library.known_callables import (
    CODE_HANDLERS,
    MARKED,
    NAMED,
    TRANSPARENT_MODULES,
    handles,
    unwrapped,
)
from firebrick.capture.library.torch_settings import fixed_call
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value
from firebrick.capture.values.constant import NONE, ConstantValue
from firebrick.capture.values.function import BoundMethodValue, CallableValue, FunctionValue, PartialValue
from firebrick.capture.values.mapping import DictValue
from firebrick.capture.values.method import MethodValue
from firebrick.capture.values.module import ModuleValue
from firebrick.capture.values.sequence import ListValue, TupleValue
from firebrick.capture.values.tensor import TensorValue

handles(marks.is_compiling, torch.compiler.is_dynamo_compiling)(lambda interp, args, kwargs: ConstantValue(True))


TRANSPARENT_MODULES.add("torch.fx._pytree")  # what the modules of exported programs take arguments apart with
handles(marks.graph_break)(breaks("requested", "firebrick.graph_break()"))


# -- nonstrict_trace: one node, whose containers are taken apart; a module's tensors are arguments beside others --


class _Input(int):
    """The place of an argument that is a tensor, among those of the node."""


class Opaque:
    """A node's target that calls `function` with the arguments it was called with.

    It has no text, so graphs that have such a node are not kept on disk.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: Any, states: Sequence[tuple[nn.Module, Sequence[str]]]
    ) -> None:
        self.function, self.arguments, self.states = function, arguments, states
        self.__name__ = str(getattr(function, "__name__", "function"))

    def __call__(self, *tensors: Any) -> Any:
        """Call it; the tensors of modules come last."""
        args, kwargs = pytree.tree_map(lambda leaf: tensors[leaf] if type(leaf) is _Input else leaf, self.arguments)
        rest = iter(tensors[len(tensors) - sum(len(names) for _, names in self.states) :])
        with ExitStack() as stack:
            for module, names in self.states:
                named = {name: next(rest) for name in names}
                stack.enter_context(stateless._reparametrize_module(module, named, tie_weights=True))
            return self.function(*args, **kwargs)


class _Arguments:
    """Takes values apart: tensors in order, and the modules met."""

    def __init__(self, interp: Interpreter) -> None:
        self.interp = interp
        self.tensors: list[Value] = []
        self.modules: dict[int, ModuleValue] = {}

    def of(self, value: Value) -> Any:
        """What the function gets for a value: a place for a tensor, else the object itself."""
        value = value.realize()
        if isinstance(value, TensorValue):
            self.tensors.append(value)
            return _Input(len(self.tensors) - 1)
        if isinstance(value, ModuleValue):
            self.interp.tracer.guards.pin(value)
            self.modules[id(value.obj)] = value
            return value.obj
        if type(value) in (TupleValue, ListValue):
            return value.python_type()([self.of(item) for item in self.interp.iterate(value)])
        if type(value) is DictValue and value.python_type() is dict:
            return {key.realize().as_constant(): self.of(item) for key, item in value.whole(self.interp).values()}
        if not value.is_constant():
            raise Break("unsupported-call", f"a function marked with nonstrict_trace takes {value.describe()}")
        return value.as_constant()


def call_nonstrict(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    """The call as one node."""
    parts = _Arguments(interp)
    arguments = tuple([parts.of(arg) for arg in args]), {name: parts.of(arg) for name, arg in kwargs.items()}
    states = [
        (value.obj, [name for name, _ in (*value.obj.named_parameters(), *value.obj.named_buffers())])
        for value in parts.modules.values()
    ]
    step: Any = lambda owner, part: owner.get_attr(interp, part).realize()  # noqa: E731
    owned = [reduce(step, name.split("."), parts.modules[id(module)]) for module, names in states for name in names]
    target = Opaque(getattr(function, "__wrapped__", function), arguments, states)
    return interp.tracer.graph.call(interp, "call_function", target, [*parts.tensors, *owned], {})


# -- functions with a mark ----------------------------------------------------------------------


def _disabled(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    original = getattr(function, "_torchdynamo_orig_callable", None)
    if marks.is_of_torch(original):
        return interp.tracer.known(original).call(interp, args, kwargs)
    reason = getattr(function, "_torchdynamo_disable_msg", None)
    raise Break("disabled-function", f"{function.__qualname__}() is called" + (f": {reason}" if reason else ""))


def _forbidden(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    rule = NAMED.get((function.__module__, function.__qualname__))
    if rule is not None:
        return rule(interp, function, args, kwargs)
    raise Break("unsupported-call", f"{function.__qualname__}() is called, which says how functions are compiled")


MARKED.update(
    {
        marks.DISABLED: _disabled,
        "_torchdynamo_disable": _disabled,
        marks.CONSTANT: fixed_call,
        "_dynamo_marked_constant": fixed_call,
        marks.IN_GRAPH: lambda interp, *call: interp.tracer.graph.call(interp, "call_function", *call),
        marks.NONSTRICT: call_nonstrict,
        "_dynamo_forbidden": _forbidden,
    }
)
_INSTEAD = (marks.ORIGINAL, "_torchdynamo_inline", "__torch_dynamo_polyfill__", "__marked_compile_region_fn__")
for _mark in _INSTEAD:  # what a function was before it was compiled, or what it stands for, is looked into
    MARKED[_mark] = lambda interp, function, args, kwargs, _mark=_mark: (  # type: ignore[misc]
        interp.tracer.known(function.__dict__[_mark]).call(interp, args, kwargs)
    )


_CALLED = (FunctionValue, MethodValue, BoundMethodValue, PartialValue, CallableValue, ModuleValue)


@handles(torch.compile)
def _compile_inside(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """What is compiled in captured code is captured with it."""
    model = (args[0] if args else kwargs.get("model", NONE)).realize()
    if model.is_constant() and model.as_constant() is None:
        return interp.stand_in("as_it_is")
    if not isinstance(model, _CALLED):
        raise Break("unsupported-call", f"torch.compile() of {model.describe()}")
    return model


@handles(Wrapped.__call__)
def _call_wrapped(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    wrapped = getattr(args[0].realize(), "obj", None)
    if not isinstance(wrapped, Wrapped) or args[0].source is None:
        raise Break("unsupported-call", "a compiled function that is not known is called")
    interp.tracer.guards.identity(args[0].source, wrapped)
    return interp.tracer.known(wrapped.function).call(interp, args[1:], kwargs)


def _optimized_module(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    module = args[0].realize()
    inner = module.own(interp, "_orig_mod") if isinstance(module, ModuleValue) else module.get_attr(interp, "_orig_mod")
    return inner.realize().call(interp, args[1:], kwargs)


def _compiled_module(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    """A call of a module that was compiled on its own: it is captured with the caller, whatever stance that has."""
    state = args[0].realize().get_attr(interp, "_firebrick").realize()
    original = state.get_attr(interp, "original").realize()
    if function.__code__.co_name == "forward":
        original = original.get_attr(interp, "forward").realize()
    return original.call(interp, args[1:], kwargs)


_wrapper: Any = torch._compile._disable_dynamo(time.time)
CODE_HANDLERS[_wrapper.__code__] = unwrapped  # torch's own functions: what is wrapped is looked into


# -- functions of torch._dynamo, by name -----------------------------------------------------------


def _torch_break(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    if str(interp.globals.get("__name__")).startswith("torch.optim"):
        return NONE  # asked for by how torch's own compiler treats gradients being off
    raise Break("requested", "torch._dynamo.graph_break()")


def _on_arrays(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    stand_in = interp.stand_in("on_arrays")
    inner = interp.tracer.known(inspect.getclosurevars(function).nonlocals["f"])
    return stand_in.call(interp, [inner, *args], kwargs)


def _wrapped_by(name: str) -> Any:
    """A rule of functions that call what lies in their closure by this name, with settings of torch's compiler."""
    return lambda interp, function, args, kwargs: interp.tracer.known(
        inspect.getclosurevars(function).nonlocals[name]
    ).call(interp, args, kwargs)


_DECORATORS = "torch._dynamo.decorators"
_nothing: Any = lambda interp, function, args, kwargs: NONE  # noqa: E731
NAMED.update(
    {
        (_DECORATORS, "graph_break"): _torch_break,
        **{
            (_DECORATORS, name): _nothing
            for name in ("mark_dynamic", "maybe_mark_dynamic", "mark_static", "mark_static_address", "mark_unbacked")
        },
        ("torch._dynamo.external_utils", "is_compiling"): lambda interp, function, args, kwargs: ConstantValue(True),
        ("torch._dynamo.external_utils", "wrap_numpy.<locals>.wrap"): _on_arrays,
        ("firebrick.api.compiling", "compile"): lambda interp, _, args, kwargs: _compile_inside(interp, args, kwargs),
        ("firebrick.api.compiled_module", "_call"): _compiled_module,
        ("firebrick.api.compiled_module", "_forward_like.<locals>.forward"): _compiled_module,
        ("torch._dynamo.external_utils", "wrap_dunder_call_ctx_manager.<locals>.inner"): _wrapped_by("func"),
        ("torch._dynamo.mutation_guard", "install_generation_tagging_init.<locals>.patched_init"): _wrapped_by("init"),
        ("torch._dynamo.eval_frame", "OptimizedModule.__call__"): _optimized_module,
        ("torch.compiler", "wrap_numpy"): lambda at, _, args, kw: PartialValue(at.stand_in("on_arrays"), args, kw),
        ("torch.compiler", "cudagraph_mark_step_begin"): _nothing,
        ("torch.compiler", "nested_compile_region"): lambda interp, function, args, kwargs: args[0],
    }
)
