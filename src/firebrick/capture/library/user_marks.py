"""Rules of what users and libraries say to a compiler: functions that break, that are left alone, that are constant.

Both Firebrick's own marks and those of `torch.compiler` and `torch._dynamo` are honoured; the latter are known by
their names and attributes, since the module that defines them is not imported for it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch._compile

from firebrick._native import Wrapped
from firebrick.capture import marks
from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.library.known_callables import CODE_HANDLERS, MARKED, NAMED, handles
from firebrick.capture.values.base import NotConstant
from firebrick.capture.values.constant import NONE, ConstantValue
from firebrick.capture.values.module import ModuleValue

if TYPE_CHECKING:
    from firebrick.capture.interpreter.interpreter import Interpreter
    from firebrick.capture.values.base import Args, Kwargs, Value


@handles(marks.is_compiling)
def _is_compiling(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return ConstantValue(True)


@handles(marks.graph_break)
def _graph_break(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    raise Break("requested", "firebrick.graph_break()")


# -- functions with a mark ----------------------------------------------------------------------


def _disabled(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    original = getattr(function, "_torchdynamo_orig_callable", None)
    if marks.is_of_torch(original):
        return interp.tracer.known(original).call(interp, args, kwargs)
    raise Break("disabled-function", f"{function.__qualname__}() is called")


def _host(value: Value) -> Any:
    value = value.realize()
    try:
        return value.as_constant()
    except NotConstant:
        real = getattr(value, "obj", None)
        if real is None or getattr(value, "changed", None):
            raise Break("unsupported-call", f"a constant function of {value.describe()} is called") from None
        return real


def _constant(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    try:
        found = function(*map(_host, args), **{name: _host(value) for name, value in kwargs.items()})
    except Break:
        raise
    except Exception as error:  # noqa: BLE001  the user's program gets whatever it raises
        interp.raise_real(error)
    return interp.tracer.known(found)


def _in_graph(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    return interp.tracer.graph.call(interp, "call_function", function, args, kwargs)


def _compiled(mark: str) -> Any:
    """A function that was compiled on its own, by Firebrick or by torch.compile: its original is looked into."""

    def rule(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
        return interp.tracer.known(function.__dict__[mark]).call(interp, args, kwargs)

    return rule


MARKED.update(
    {
        marks.DISABLED: _disabled,
        "_torchdynamo_disable": _disabled,
        marks.CONSTANT: _constant,
        "_dynamo_marked_constant": _constant,
        marks.IN_GRAPH: _in_graph,
        **{mark: _compiled(mark) for mark in (marks.ORIGINAL, "_torchdynamo_inline")},
    }
)


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


def _unwrapped(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    return interp.tracer.known(function.__wrapped__).call(interp, args, kwargs)


_wrapper: Any = torch._compile._disable_dynamo(time.time)
CODE_HANDLERS[_wrapper.__code__] = _unwrapped  # torch's own functions: what is wrapped is looked into


# -- functions of torch._dynamo, by name -----------------------------------------------------------


def _torch_break(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    if str(interp.globals.get("__name__")).startswith("torch.optim"):
        return NONE  # asked for by how torch's own compiler treats gradients being off
    raise Break("requested", "torch._dynamo.graph_break()")


def _nothing(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    return NONE


def _true(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    return ConstantValue(True)


def _first(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    return args[0]


def _patched(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return interp.tracer.known(cells["init"].cell_contents).call(interp, args, kwargs)


_DECORATORS = "torch._dynamo.decorators"
NAMED.update(
    {
        (_DECORATORS, "graph_break"): _torch_break,
        **{
            (_DECORATORS, name): _nothing
            for name in ("mark_dynamic", "maybe_mark_dynamic", "mark_static", "mark_static_address", "mark_unbacked")
        },
        ("torch._dynamo.external_utils", "is_compiling"): _true,
        ("torch._dynamo.mutation_guard", "install_generation_tagging_init.<locals>.patched_init"): _patched,
        ("torch._dynamo.eval_frame", "OptimizedModule.__call__"): _optimized_module,
        ("torch.compiler", "cudagraph_mark_step_begin"): _nothing,
        ("torch.compiler", "nested_compile_region"): _first,
    }
)
