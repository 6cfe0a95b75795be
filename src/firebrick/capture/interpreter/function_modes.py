"""Modes with a `__torch_function__` that captured code has entered: they see each call of torch that the program makes.

Which function torch hands to a mode, and with which arguments, is asked of torch itself: the call is made on stand-ins
under a mode that tells. What rules of the capture do in place of a call is no call of the program.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.library.known_callables import is_graph_function
from firebrick.capture.values.base import Args, Interpreter, Kwargs, NotConstant, Value
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.mapping import DictValue
from firebrick.capture.values.object import ObjectValue
from firebrick.capture.values.sequence import ListValue, SliceValue, TupleValue

_HANDLE = "handle_torch_function"
_SEEN = frozenset((torch.tensor, torch.as_tensor, torch.asarray, torch.device, torch._C._set_grad_enabled))
_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)


def overrides_calls(value: Value) -> bool:
    """Whether a value decides itself what calls of torch with it do."""
    value = value.realize()
    return isinstance(value, ObjectValue) and value.overrides()


class _Told(BaseException):
    """Carries what a mode is given."""


class _Telling(TorchFunctionMode):
    def __torch_function__(self, *told: Any) -> Any:  # type: ignore[override]
        raise _Told(*told)


class _StandIns:
    """Host objects for values, and back."""

    def __init__(self) -> None:
        self.values: dict[int, Value] = {}
        self.kept: list[Any] = []

    def host_of(self, value: Value) -> Any:
        """An object of the value's kind, which is that of no other value."""
        value = value.realize()
        kind = value.python_type()
        if isinstance(value, (TupleValue, ListValue)):
            host: Any = value.build([self.host_of(item) for item in value.items])
        elif kind in (torch.Tensor, torch.nn.Parameter) or overrides_calls(value):
            host = torch.ones(())
        else:
            host = slice(None) if isinstance(value, SliceValue) else value.as_constant()
        self.values[id(host)] = value
        self.kept.append(host)
        return host

    def value_of(self, interp: Interpreter, host: Any) -> Value:
        """The value that an object stands for."""
        if id(host) in self.values:
            return self.values[id(host)]
        if isinstance(host, tuple):
            return TupleValue([self.value_of(interp, item) for item in host], cls=type(host))
        if isinstance(host, dict):
            return DictValue.of({name: self.value_of(interp, item) for name, item in host.items()})
        return interp.tracer.known(host)


def told_of(interp: Interpreter, call: Callable[..., Any], args: Args, kwargs: Kwargs) -> list[Value] | None:
    """What torch hands to who overrides its functions for a call; None if it does not for such calls; raises Break:
    torch does not say it for such arguments."""
    stand_ins = _StandIns()
    try:
        hosts = [stand_ins.host_of(arg) for arg in args]
        named = {name: stand_ins.host_of(arg) for name, arg in kwargs.items()}
        with torch._C._EnableTorchFunction(), _Telling():
            call(*hosts, **named) if named else call(*hosts)  # a mode is told of no keywords, or of none
    except _Told as told:
        return [stand_ins.value_of(interp, part) for part in told.args]
    except AttributeError:  # the program gets it from the value itself
        return None
    except (NotConstant, TypeError, RuntimeError, IndexError, ValueError) as error:
        raise Break("unsupported-call", f"a call under a mode of functions: {error}") from None
    return None


def seen(interp: Interpreter, call: Callable[..., Any], args: Args, kwargs: Kwargs) -> Value | None:
    """What the innermost mode makes of a call; None if it does not see such calls."""
    told = told_of(interp, call, args, kwargs)
    return None if told is None else under_mode(interp, told)


def under_mode(interp: Interpreter, told: list[Value]) -> Value:
    """Call the innermost mode; meanwhile those around it are active."""
    tracer = interp.tracer
    modes = tracer.function_modes
    *tracer.function_modes, mode = modes
    try:
        result = mode.call_method(interp, "__torch_function__", told, {}).realize()
    finally:
        tracer.function_modes = modes
    if result.is_constant() and result.as_constant() is NotImplemented:
        raise Break("unsupported-call", "a mode of functions does not implement a call")
    return result


def call_under_modes(interp: Interpreter, obj: Any, args: Args, kwargs: Kwargs) -> Value | None:
    """Call a known object where modes are active; None if it is called as anywhere else."""
    if isinstance(obj, types.FunctionType):
        if _HANDLE in obj.__code__.co_names or is_graph_function(obj):
            return interp.inline(interp.tracer.function(obj), args, kwargs)
        return None
    of_tensor = isinstance(obj, _DESCRIPTORS) and issubclass(torch.Tensor, obj.__objclass__)
    of_descriptor = isinstance(obj, types.MethodWrapperType) and isinstance(obj.__self__, types.GetSetDescriptorType)
    if of_tensor or of_descriptor or is_graph_function(obj) or obj in _SEEN:
        return seen(interp, obj, args, kwargs)
    return None


def method_under_modes(interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
    """Call a method of a tensor, which is the first argument."""
    method = getattr(torch.Tensor, name, None)
    if isinstance(method, types.FunctionType):
        return interp.inline(interp.tracer.function(method), args, kwargs)
    return surely(name, seen(interp, method or operator.methodcaller(name), args, kwargs))


def surely(target: Any, result: Value | None) -> Value:
    """What a mode makes of a call that it sees; raises Break: it does not see such calls."""
    if result is None:
        raise Break("unsupported-call", f"{getattr(target, '__name__', target)}() under a mode of functions")
    return result


def _overriding(args: Args) -> Iterator[ObjectValue]:
    for arg in args:
        value = arg.realize()
        if isinstance(value, (TupleValue, ListValue)):
            yield from _overriding(value.items)
        elif isinstance(value, ObjectValue) and overrides_calls(value):
            yield value


def _function_of(
    interp: Interpreter, target: Callable[..., Any] | str, args: Args, found: Sequence[ObjectValue]
) -> tuple[Any, Sequence[Value]]:
    if isinstance(target, str):
        return getattr(torch.Tensor, target), args
    name = getattr(target, "__name__", str(target))
    if getattr(target, "__module__", None) != "_operator" and target is not getattr:
        return target, args
    if not all(issubclass(value.cls, torch.Tensor) for value in found):
        raise Break("tensor-subclass", f"{name} of an object with a __torch_function__")
    values = [arg.realize() for arg in args]
    if target is getattr:
        return getattr(torch.Tensor, values[1].as_constant()).__get__, args[:1]
    told = told_of(interp, target, values, {})
    if told is None:
        raise Break("tensor-subclass", f"{name} of a tensor of another class")
    return told[0].as_constant(), told[2].children()


def overridden(interp: Interpreter, target: Callable[..., Any] | str, args: Args, kwargs: Kwargs) -> Value:
    """`cls.__torch_function__(function, types, args, kwargs)` of the arguments, until one answers; raises Break: the
    call is an operator, whose function torch names otherwise."""
    if interp.tracer.function_modes:
        raise Break("tensor-subclass", "a tensor of another class under a mode of functions")
    owners: list[ObjectValue] = []
    for value in _overriding((*args, *kwargs.values())):
        if all(value.cls is not other.cls for other in owners):
            before = [place for place, other in enumerate(owners) if issubclass(value.cls, other.cls)]
            owners.insert(before[0] if before else len(owners), value)
    function, args = _function_of(interp, target, args, owners)
    classes = TupleValue([interp.tracer.known(value.cls) for value in owners])
    arguments = [interp.tracer.known(function), classes, TupleValue(list(args)), DictValue.of(dict(kwargs))]
    for value in owners:
        result = value.get_attr(interp, "__torch_function__").realize().call(interp, arguments, {}).realize()
        if not (isinstance(result, ConstantValue) and result.value is NotImplemented):
            return result
    raise Break("tensor-subclass", f"{function.__name__}() that no __torch_function__ implements")
