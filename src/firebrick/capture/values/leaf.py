"""Leaves that gather gradients and are made inside captured code: made before the graph, which fills them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.inference_mode import made_of, storage_of
from firebrick.capture.values.base import Args, Interpreter, Kwargs
from firebrick.capture.values.made import MadeTensor
from firebrick.capture.values.tensor import TensorValue, new_leaf


def can_be_leaf(data: TensorValue) -> bool:
    """Whether a tensor of its dtype can require gradients."""
    return bool(data.fake.dtype.is_floating_point or data.fake.dtype.is_complex)


def is_fresh(interp: Interpreter, data: TensorValue, others: Sequence[TensorValue] = ()) -> bool:
    """Whether a tensor was made by the graph and nothing else of the graph but some `others` shows its memory."""
    graph = interp.tracer.graph
    return (
        graph.outer is None
        and not graph.inference.on
        and made_of(data.fake) is None
        and data.obj is None
        and data.source is None
        and data.owner is None
        and not isinstance(data, MadeTensor)
        and data.fake.layout is torch.strided
        and all(one is data or one in others for one in graph.sharing(data.fake))
    )


def make_leaf(interp: Interpreter, cls: type[torch.Tensor], data: TensorValue) -> TensorValue:
    """A leaf of the class `cls` with the memory of `data`, which shows it from here on."""
    fake, graph = data.fake, interp.tracer.graph
    make = _leaf(cls, tuple(fake.shape), fake.stride(), {"dtype": fake.dtype, "device": fake.device})
    leaf = graph.made("leaf", interp.tracer.prelude.add(make), make())
    with _unrecorded(interp):
        if (
            data.node.target is not torch.empty or data.node.users
        ):  # through `data`, which counts no write: the leaf is made with these values
            leaf.get_attr(interp, "data").realize().call_method(interp, "copy_", [data], {})
        data.become(leaf.call_method(interp, "detach", [], {}))
    return leaf


def become_leaf(interp: Interpreter, value: TensorValue) -> TensorValue:
    """Let a tensor that the graph has made be a leaf from here on; raises Break: it shows memory that was there before,
    but not as `x.detach()` shows that of `x`."""
    graph, fake, plain = interp.tracer.graph, value.fake, TensorValue(value.node, value.fake)
    sharing = [one for one in graph.sharing(fake) if one is not value]
    outside = next((one for one in sharing if one.obj is not None), None)
    if outside is None and is_fresh(interp, value, sharing):
        value.leaf = make_leaf(interp, torch.Tensor, plain)
        if sharing:  # they are apart in the graph, so nobody may see that they are
            graph.read_only |= {storage_of(fake), storage_of(value.leaf.fake)}
            graph.copied.add(storage_of(fake))
    elif outside is not None and value.node.args == (outside.node,) and value.node.target == "detach":
        if not is_untouched(interp, outside):
            raise Break("unsupported-call", "requires_grad_() for the memory of what was given, and was changed")
        value.leaf = leaf_of(interp, outside, new_leaf)
    else:
        raise Break("unsupported-call", "requires_grad_() for a view of memory that was there before")
    value.become(value.leaf)
    graph._by_fake[id(value.fake)] = value
    return value


def is_untouched(interp: Interpreter, data: TensorValue) -> bool:
    """Whether a tensor from outside, of known sizes, is as it was before the graph."""
    graph, outer = interp.tracer.graph, data.obj is not None and data.source is not None and data.data_version is None
    fixed = all(type(size) is int for size in data.fake.shape) and graph.outer is None and not graph.inference.on
    return outer and fixed and storage_of(data.fake) not in {storage_of(fake) for fake in graph.written}


def leaf_of(interp: Interpreter, data: TensorValue, make: Any = torch.nn.Parameter) -> TensorValue:
    """A leaf on the memory of a tensor from outside, made before the graph, which may not write to it from here on."""
    graph = interp.tracer.graph
    leaf = graph.made("leaf", interp.tracer.prelude.add(make, [data.source]), make(data.obj))
    graph.read_only |= {storage_of(data.fake), storage_of(leaf.fake)}
    return leaf


def leaf_by_option(interp: Interpreter, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> TensorValue:
    """`torch.zeros(3, requires_grad=True)`; raises Break: what the function gives has memory that was there before, or
    can't require gradients."""
    options = {name: value for name, value in kwargs.items() if name != "requires_grad"}
    data = interp.tracer.graph.call(interp, "call_function", function, args, options)
    if isinstance(data, TensorValue) and is_fresh(interp, data) and can_be_leaf(data):
        return make_leaf(interp, torch.Tensor, data)
    raise Break("unsupported-call", f"{function.__name__}() makes a tensor that gathers gradients")


@contextlib.contextmanager
def _unrecorded(interp: Interpreter) -> Iterator[None]:
    """What is called inside is not recorded."""
    if not torch.is_grad_enabled():
        yield
        return
    for recorded in (False, True):
        torch._C._set_grad_enabled(recorded)
        interp.tracer.graph.statement(interp, torch._C._set_grad_enabled, (recorded,))
        if not recorded:
            yield


def _leaf(cls: type[torch.Tensor], shape: tuple[int, ...], stride: tuple[int, ...], options: dict[str, Any]) -> Any:
    """Makes a leaf without data."""

    def make() -> Any:
        leaf = torch.empty_strided(shape, stride, **options)
        return leaf.requires_grad_() if cls is torch.Tensor else cls(leaf)

    make.__name__ = cls.__name__
    return make
