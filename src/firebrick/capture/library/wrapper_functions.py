"""Functions around tensors of classes with a `__torch_dispatch__`: distributed tensors, nested ones, the user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from firebrick.capture.library.known_callables import (
    FOLDABLE_MODULES,
    GRAPH_FUNCTIONS,
    NAMED,
    TRANSPARENT_MODULES,
    handles,
)
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.object import MISSING
from firebrick.capture.values.sequence import SequenceValue
from firebrick.capture.values.wrapper import WrapperValue, call_with_objects, object_of

if TYPE_CHECKING:
    from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value

_DISTRIBUTED = "torch.distributed.tensor"
_C10D = "torch.distributed.distributed_c10d"
_FUNCTIONAL = "torch.distributed._functional_collectives"


_SHAPES = "torch.fx.experimental.symbolic_shapes"
NAMED.update(
    {
        (f"{_DISTRIBUTED}._api", f"DTensor.{name}"): call_with_objects
        for name in ("from_local", "to_local", "full_tensor", "redistribute")
    }
)
FOLDABLE_MODULES.add(f"{_DISTRIBUTED}.placement_types")
TRANSPARENT_MODULES.update({f"{_DISTRIBUTED}._api", f"{_DISTRIBUTED}.parallel.style", _FUNCTIONAL})


def _held(interp: Interpreter, value: Value) -> Any:
    """The object of a value: what nodes take, or one known by identity."""
    value = value.realize()
    if isinstance(value, SequenceValue):
        return value.python_type()([_held(interp, item) for item in value.items])
    obj = object_of(interp, value)
    return interp.fold(lambda constant: constant, [value], {}).as_constant() if obj is MISSING else obj


def _group_name(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    """A process group, mesh or list of ranks, known by identity, as the name by which ops know the group."""
    return _fixed_call(interp, function.__globals__["_resolve_group_name"], args, kwargs)


def _fixed_call(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    host = [_held(interp, arg) for arg in args]
    named = {name: _held(interp, arg) for name, arg in kwargs.items()}
    try:
        return ConstantValue(function(*host, **named))
    except Exception as error:  # noqa: BLE001  the user's program gets whatever it raises
        interp.raise_real(error)


def _world(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    """`dist.group.WORLD`, which another group may become."""
    world = function.__globals__["_world"]
    return interp.tracer.known(world).realize().get_attr(interp, "_default_pg")


def _truth(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    return interp.tracer.known(bool).call(interp, args, kwargs)


NAMED.update(
    {
        **{(_SHAPES, name): _truth for name in ("guard_or_false", "guard_or_true", "statically_known_true")},
        (_SHAPES, "has_free_unbacked_symbols"): lambda *_: ConstantValue(False),
        (_FUNCTIONAL, "_resolve_group"): _group_name,
        (_FUNCTIONAL, "_resolve_group_name"): _group_name,
        (_C10D, "_get_group_size_by_name"): _fixed_call,
        (_C10D, "_WorldMeta.WORLD"): _world,
    }
)


@handles(torch.unbind)
def _unbind(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if args and isinstance(nested := args[0].realize(), WrapperValue):
        return nested.call_method(interp, "unbind", args[1:], kwargs)
    return interp.tracer.graph.call(interp, "call_function", torch.unbind, args, kwargs)


_to_padded: Any = torch._C._nested.nested_to_padded_tensor  # type: ignore[attr-defined]
GRAPH_FUNCTIONS[id(_to_padded)] = _to_padded
