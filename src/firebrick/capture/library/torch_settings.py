"""Rules of torch's settings: context managers and functions that switch how operations are computed, and what asks.

A switch is made for real while the code is captured, so that operations behave there as they will, and a node makes
it again where the graph runs. What a function sets for good is undone at the end of the graph and set behind it.
"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn.attention import sdpa_kernel

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.guards.torch_state import Switch
from firebrick.capture.library.inspection import FrameValue
from firebrick.capture.library.known_callables import handles, handles_each
from firebrick.capture.library.references import read_now
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Raised, Value, ValueEmitter
from firebrick.capture.values.constant import NONE, ConstantValue, is_none
from firebrick.capture.values.context_manager import ContextValue
from firebrick.capture.values.exception import ExceptionValue
from firebrick.capture.values.object import MISSING, ObjectValue
from firebrick.capture.values.sequence import ListValue, SequenceValue
from firebrick.capture.values.wrapper import object_of


def _held(interp: Interpreter, value: Value) -> Any:
    value = value.realize()
    if isinstance(value, SequenceValue):
        return value.python_type()([_held(interp, item) for item in value.items])
    obj = object_of(interp, value)
    return interp.fold(lambda constant: constant, [value], {}).as_constant() if obj is MISSING else obj


def constants(interp: Interpreter, args: Args, kwargs: Kwargs) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call as objects that are constant, or known by identity; raises Break: they are neither."""
    return [_held(interp, arg) for arg in args], {name: _held(interp, arg) for name, arg in kwargs.items()}


def fixed_call(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    """What a function of such arguments gives, once and for all."""
    host, named = constants(interp, args, kwargs)
    with interp.raising(Exception):
        return interp.tracer.known(function(*host, **named))


class _WholeValue(ContextValue):
    """A context that is left in the same graph: what is done in it to warnings' filters waits for the graph's end."""

    __slots__ = ()

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """It is left in the same stretch of code."""
        raise Break("no-reconstruction", f"a graph ends inside of {self.make.__name__}")


@handles_each(
    *(torch.backends.cudnn.flags, torch.backends.mkldnn.flags, torch.backends.nnpack.flags),
    *(sdpa_kernel, torch.autograd.graph.disable_saved_tensors_hooks, forward_ad.dual_level),
)
def _entered(make: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    bound = inspect.signature(make).bind(*args, **kwargs)
    values, named = constants(interp, bound.args, bound.kwargs)
    context = lambda: make(*values, **named)  # noqa: E731
    with interp.raising(Exception):
        context()
    text = f"{values!r} {named!r}"

    def enter(at: Interpreter) -> Callable[[Interpreter], None]:
        entering, leaving = Switch(make.__name__, context, text), Switch(f"leave_{make.__name__}", None, text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            entering()
        at.tracer.graph.statement(at, entering, ())

        def leave(later: Interpreter) -> None:
            leaving()
            later.tracer.graph.statement(later, leaving, ())

        return leave

    kind = _WholeValue if make is forward_ad.dual_level else ContextValue  # a break would lose tangents
    return kind(context, [], enter)


class _SettingValue(ContextValue):
    """A setting that captured code has changed for good."""

    __slots__ = ()

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Set it."""
        emitter.load_call(self.make, *self.args)


def _sets(name: Any, read: Callable[..., tuple[Any, ...]], asked: int = 0, setter: Any = None) -> None:
    """A rule for a setter; `read` gives the arguments that set it back, for the first `asked` arguments."""
    setter = setter or name

    @handles(name)
    def rule(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        values, named = constants(interp, args, kwargs)
        values += named.values()  # they have the order of the parameters, where both are there
        before = read(*values[:asked])

        def put(at: Interpreter, now: Any) -> None:
            setter(*now)
            at.tracer.graph.statement(
                at, Switch(f"set_{name.__name__}", lambda: setter(*now), repr(now), once=True), ()
            )

        def enter(at: Interpreter) -> Callable[[Interpreter], None]:
            with at.raising(Exception):
                put(at, values)
            return lambda later: put(later, before)

        context = _SettingValue(setter, [ConstantValue(value) for value in values], enter)
        context.call_method(interp, "__enter__", [], {})
        return NONE


def _one(getter: Callable[[], Any]) -> Callable[[], tuple[Any, ...]]:
    return lambda: (getter(),)


_C: Any = torch._C
_sets(_C._set_default_dtype, _one(torch.get_default_dtype))
_sets(_C._set_float32_matmul_precision, _one(torch.get_float32_matmul_precision))
_sets(
    _C._set_deterministic_algorithms,
    lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
    setter=lambda mode, warn_only=False: _C._set_deterministic_algorithms(mode, warn_only=warn_only),
)
_sets(torch.set_autocast_enabled, lambda *device: (*device, torch.is_autocast_enabled(*device)), 1)
_sets(torch.set_autocast_dtype, lambda device: (device, torch.get_autocast_dtype(device)), 1)
_sets(torch.set_autocast_cache_enabled, _one(torch.is_autocast_cache_enabled))

_FLAGS = (
    ("_is_multithreading_enabled", "_set_multithreading_enabled"),
    *(
        (f"_get_{kernel}_sdp_enabled", f"_set_sdp_use_{kernel}")
        for kernel in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
    ),
    *(
        (f"_get_{flag}", f"_set_{flag}")
        for flag in (
            *("sdp_priority_order", "cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic", "cudnn_allow_tf32"),
            *("cublas_allow_tf32", "mkldnn_enabled", "nnpack_enabled"),
        )
    ),
)
"""Flags of kernels: what reads one, and what sets it."""


def _asks(flag: tuple[Any, Any], interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    getter, setter = flag
    changes = {switch.__name__ for switch in interp.tracer.graph.switches if isinstance(switch, Switch)}
    if f"set_{setter.__name__}" in changes:
        return interp.tracer.fresh(getter())
    if changes:
        raise Break("unsupported-call", f"{getter.__name__}() is called behind a change of such settings")
    return read_now(interp, interp.tracer.known(getter), getter, getter.__name__)


for _getter, _setter in _FLAGS:
    if hasattr(_C, _getter) and hasattr(_C, _setter):
        _pair = getattr(_C, _getter), getattr(_C, _setter)
        handles(_pair[0])(partial(_asks, _pair))
        _sets(_pair[1], _one(_pair[0]))


def told(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """What a function of constants gives; what it warns of is said when the program runs."""
    values, named = constants(interp, args, kwargs)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with interp.raising(Exception):
            result = function(*values, **named)
    for warning in said:
        say(interp, ConstantValue(str(warning.message)), interp.tracer.known(warning.category))
    return result


handles(torch.is_autocast_cpu_enabled)(
    lambda interp, args, kwargs: ConstantValue(told(interp, torch.is_autocast_cpu_enabled, args, kwargs))
)


# -- warnings -----------------------------------------------------------------------------------------

_OUTSIDE = ("of the program", None, Warning, None, 0)
"""Stands for the filters from before the captured code: its action is none that Python knows."""


class _Warnings(_WholeValue):
    """`warnings.catch_warnings`: the calls that set filters in it, and where warnings in it are recorded."""

    __slots__ = ("filters", "log", "options", "said")

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(warnings.catch_warnings, [], self._begin)
        self.options, self.filters = options, list[Any]()
        self.log: ListValue | None = None
        self.said: list[Any] | None = []  # by operations of torch

    def _begin(self, at: Interpreter) -> Callable[[Interpreter], None]:
        outer, options, later = _regions(at)[-1:], self.options, at.tracer.effects.later
        filtered = {name: options[name] for name in ("action", "category", "lineno", "append") if name in options}
        own = [partial(warnings.simplefilter, **filtered)] if "action" in filtered else []
        self.filters = [*(change for region in outer for change in region.filters), *own]
        self.log = ListValue([]) if options.get("record") else outer[0].log if outer else None
        later(Switch("catch_warnings", lambda: warnings.catch_warnings(**options), ""), [], {})
        real = warnings.catch_warnings(record=options.get("record", False))
        self.said = real.__enter__()
        if self.said is not None:
            warnings.simplefilter("always")

        def leave(_: Interpreter) -> None:
            real.__exit__(None, None, None)
            later(Switch("leave_catch_warnings", None, ""), [], {})

        return leave

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Entered, it gives the list of what is recorded, or None."""
        if name == "__exit__" and self.said:
            raise Break("unsupported-call", "an operation warns where warnings are recorded")
        result = super().call_method(interp, name, args, kwargs)
        return result if name != "__enter__" else (self.options.get("record") and self.log) or NONE


def _regions(interp: Interpreter) -> list[_Warnings]:
    return [mode for mode in interp.tracer.graph.open_modes if isinstance(mode, _Warnings)]


@handles(warnings.catch_warnings)
def _catch_warnings(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    _, named = constants(interp, args, kwargs)
    if named.get("module") is not None:
        raise Break("unsupported-call", "warnings.catch_warnings() of another module")
    return _Warnings(named)


@handles_each(warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings)
def _filters(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    values, named = constants(interp, args, kwargs)
    with warnings.catch_warnings(), interp.raising(Exception):
        function(*values, **named)
    for region in _regions(interp)[-1:]:
        region.filters.append(partial(function, *values, **named))
    interp.tracer.effects.later(function, args, dict(kwargs))
    return NONE


def say(interp: Interpreter, *args: Value) -> None:
    """Let what an operation of torch warns of be said behind the graph."""
    if any(region.log is not None for region in _regions(interp)):
        raise Break("unsupported-call", "an operation warns where warnings are recorded")
    interp.tracer.effects.later(warnings.warn, args, {})


def settle(interp: Interpreter, message: Value, category: Value = NONE, stacklevel: Any = None, **rest: Value) -> bool:
    """Record or raise a warning; False if it is to be said behind the graph. Raises Break: what is outside decides."""
    if not (regions := _regions(interp)):
        return False
    (*_, region), message = regions, message.realize()
    kind = message.cls if isinstance(message, ExceptionValue) else UserWarning
    if not isinstance(message, ExceptionValue) and not is_none(category):
        kind = category.realize().as_constant()
        if not isinstance(kind, type) or not issubclass(kind, Warning):
            interp.raise_new(TypeError, f"category must be a Warning subclass, not {type(kind).__name__!r}")
    shown = interp.formatted(message, "s", "")
    written = [interp.lookup(kind, name)[0] for name in ("__new__", "__init__", "__str__")]
    if not shown.is_constant() or any(isinstance(entry, types.FunctionType) for entry in written):
        raise Break("unsupported-call", f"a {kind.__name__} of what is not known, inside of catch_warnings()")
    error = message if isinstance(message, ExceptionValue) else ExceptionValue(kind, [message])
    level = 1 if stacklevel is None else interp.index_of(stacklevel)
    frame, registry = FrameValue(interp).back(max(level - 1, 0)).frame, dict[Any, Any]()
    place = (frame.code.co_filename, frame.current.line, frame.globals.get("__name__", "<string>"), registry)
    with warnings.catch_warnings(record=True) as said:
        filters: Any = warnings.filters
        filters[:] = [_OUTSIDE]
        for change in region.filters:
            change()
        try:
            warnings.warn_explicit(shown.as_constant(), kind, *place)
        except Warning:
            raise Raised(error) from None
        except RuntimeError:
            registry["outside"] = True
    if registry.keys() - {"version"} and region.log is not None:
        raise Break("unsupported-call", "what was said before decides whether a warning is recorded")
    if region.log is not None and said:
        record = ObjectValue(warnings.WarningMessage)
        record.fields.update({name: interp.tracer.known(value) for name, value in vars(said[0]).items()})
        record.fields.update({"message": error, "source": rest.get("source", NONE)})
        region.log.call_method(interp, "append", [record], {})
    return region.log is not None
