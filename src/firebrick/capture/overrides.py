"""Calls of torch with objects that are no tensors but have a `__torch_function__`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from firebrick.capture.breaks import Break
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.mapping import DictValue
from firebrick.capture.values.object import MISSING, ObjectValue, class_lookup
from firebrick.capture.values.sequence import ListValue, TupleValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from firebrick.capture.interpreter import Interpreter
    from firebrick.capture.values.base import Value

__all__ = ["overridden", "overrides_calls"]


def overrides_calls(value: Value) -> bool:
    """Whether a value decides itself what calls of torch with it do."""
    value = value.realize()
    return isinstance(value, ObjectValue) and class_lookup(value.cls, "__torch_function__")[0] is not MISSING


def _overriding(args: Sequence[Value]) -> Iterator[ObjectValue]:
    for arg in args:
        value = arg.realize()
        if isinstance(value, (TupleValue, ListValue)):
            yield from _overriding(value.items)
        elif isinstance(value, ObjectValue) and overrides_calls(value):
            yield value


def overridden(
    interp: Interpreter,
    target: Callable[..., Any] | str,
    args: Sequence[Value],
    kwargs: Mapping[str, Value],
) -> Value:
    """`cls.__torch_function__(function, types, args, kwargs)` of the arguments, until one answers.

    Raises:
        Break: the call is an operator, whose function torch names otherwise.
    """
    function: Any = getattr(torch.Tensor, target) if isinstance(target, str) else target
    if getattr(function, "__module__", None) == "_operator" or function is getattr:
        raise Break("tensor-subclass", f"{function.__name__} of an object with a __torch_function__")
    found: list[ObjectValue] = []
    for value in _overriding((*args, *kwargs.values())):
        if all(value.cls is not other.cls for other in found):
            before = [place for place, other in enumerate(found) if issubclass(value.cls, other.cls)]
            found.insert(before[0] if before else len(found), value)
    classes = TupleValue([interp.tracer.known(value.cls) for value in found])
    given = [interp.tracer.known(function), classes, TupleValue(list(args)), DictValue.of(dict(kwargs))]
    for value in found:
        result = value.get_attr(interp, "__torch_function__").realize().call(interp, given, {}).realize()
        if not (isinstance(result, ConstantValue) and result.value is NotImplemented):
            return result
    raise Break("tensor-subclass", f"{function.__name__}() that no __torch_function__ implements")
