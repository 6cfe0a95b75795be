"""Calls of torch with objects that have a `__torch_function__`, tensors of other classes among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.interpreter.function_modes import overrides_calls, told_of
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.mapping import DictValue
from firebrick.capture.values.object import ObjectValue
from firebrick.capture.values.sequence import ListValue, TupleValue


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
