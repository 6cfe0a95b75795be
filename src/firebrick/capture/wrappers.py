"""Tensors of classes with a `__torch_dispatch__`, as the plain tensors in them and a layout.

A graph takes and gives plain tensors. Where it uses one of such a class, a `Wrap` node makes it of those, and an
`Unwrap` node takes it apart; between them calls run through the class's own dispatch. Both pass gradients on part by
part, as long as a gradient is laid out as its tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from firebrick.errors import WrapperRefused


def is_wrapper(tensor: Any) -> bool:
    """Whether a tensor's class can be taken apart and put together again."""
    return is_traceable_wrapper_subclass(tensor)


class Layout:
    """All that tells tensors of a class apart but the plain tensors in them.

    Attributes:
        inner: each attribute that is a tensor, with its layout; None for a plain one.
        objects: what other attributes hold.
    """

    __slots__ = ("cls", "context", "dtype", "inner", "leaf_metas", "objects", "requires_grad", "size", "stride")

    def __init__(self, tensor: Any) -> None:
        names, self.context = tensor.__tensor_flatten__()
        attributes = {name: getattr(tensor, name) for name in names}
        self.cls, self.dtype, self.requires_grad = type(tensor), tensor.dtype, tensor.requires_grad
        self.size, self.stride = tensor.size(), tensor.stride()
        parts = ((name, one) for name, one in attributes.items() if isinstance(one, torch.Tensor))
        self.inner = tuple((name, Layout(one) if is_wrapper(one) else None) for name, one in parts)
        plain = [one for one in attributes.values() if isinstance(one, torch.Tensor) and not is_wrapper(one)]
        self.leaf_metas = [(t.dtype, t.device, t.shape, t.stride() if t.layout is torch.strided else 0) for t in plain]
        self.objects = {name: one for name, one in attributes.items() if not isinstance(one, torch.Tensor)}

    def _key(self, strides: bool, context: bool) -> tuple[Any, ...]:
        numbers = tuple(n if type(n) is int else None for n in (*self.size, *(self.stride if strides else ())))
        inner = tuple((name, one and one._key(strides, context)) for name, one in self.inner)
        layout = (self.objects, self.context if context else None, self.leaf_metas if strides else None)
        return (self.cls, inner, layout, numbers, self.dtype, self.requires_grad)

    def equals(self, other: object, *, strides: bool = True, context: bool = True) -> bool:
        """Whether two say the same; ragged sizes are those of the plain tensors."""
        if not isinstance(other, Layout) or self.cls is not other.cls:
            return False
        try:
            return bool(self._key(strides, context) == other._key(strides, context))
        except Exception:  # noqa: BLE001  code of the user's compares; what can't be compared is not the same
            return False

    __eq__ = equals

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self.cls.__name__} {list(self.size)} {self.context}"

    def __call__(self, tensor: Any) -> bool:
        """Whether a tensor is laid out so."""
        return is_wrapper(tensor) and type(tensor) is self.cls and Layout(tensor) == self

    def build(self, leaves: Iterator[Any]) -> Any:
        """A tensor of the plain ones."""
        tensors = {name: next(leaves) if inner is None else inner.build(leaves) for name, inner in self.inner}
        return self.cls.__tensor_unflatten__({**tensors, **self.objects}, self.context, self.size, self.stride)  # type: ignore[attr-defined]

    def leaves(self, tensor: Any) -> Iterator[torch.Tensor]:
        """The plain tensors in one of this layout."""
        for name, inner in self.inner:
            part = getattr(tensor, name)
            yield from (part,) if inner is None else inner.leaves(part)


def leaves_of(tensor: Any) -> list[torch.Tensor]:
    """The plain tensors in one of such a class."""
    return list(Layout(tensor).leaves(tensor))


def refill(tensor: Any, leaves: Iterable[torch.Tensor | None]) -> None:
    """Put others in the place of plain tensors in one, where they are not None; called by compiled code."""
    rest = iter(leaves)
    for name, inner in Layout(tensor).inner:
        if inner is not None:
            refill(getattr(tensor, name), rest)
        elif (leaf := next(rest)) is not None:
            setattr(tensor, name, _apart(leaf))


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without a history, itself if it has none."""
    return tensor.detach() if tensor.requires_grad else tensor


def _like(gradient: Any, layout: Layout) -> list[torch.Tensor]:
    """The parts of a gradient of a tensor; raises WrapperRefused: it is laid out in another way."""
    own = Layout(gradient) if is_wrapper(gradient) else None
    if layout.equals(own, strides=False):
        return list(layout.leaves(gradient))
    if coerce := getattr(gradient, "__coerce_same_metadata_as_tangent__", None):
        gradient = coerce(layout.context)
        own = Layout(gradient) if is_wrapper(gradient) else None
    if not coerce or not layout.equals(own, strides=False, context=False):
        raise WrapperRefused(f"the gradient of a {layout.cls.__name__} is a {own or type(gradient).__name__}")
    return list(layout.leaves(gradient))


def _gradient_layout(tensor: Any) -> Layout:
    """How gradients of a tensor without a history are laid out."""
    coerce = getattr(tensor, "__coerce_tangent_metadata__", None)
    return Layout(tensor if coerce is None else coerce())


class _Wrapping(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layout: Layout, gradients: Layout | None, *leaves: torch.Tensor) -> Any:
        wrapper = layout.build(iter([_apart(leaf) for leaf in leaves]))
        if wrapper.requires_grad:
            wrapper.requires_grad_(False)
        ctx.layout = gradients or _gradient_layout(wrapper)
        ctx.set_materialize_grads(False)
        return wrapper

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        used = ctx.needs_input_grad[2:]
        parts = [None] * len(used) if gradient is None else _like(gradient, ctx.layout)
        return (None, None, *[part if wanted else None for part, wanted in zip(parts, used, strict=True)])


class _Unwrapping(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradients: Layout | None, tensor: Any) -> Any:
        layout = Layout(tensor)
        leaves = list(layout.leaves(tensor))
        ctx.layout = gradients or _gradient_layout(tensor.detach())
        ctx.set_materialize_grads(False)
        ctx.leaves = leaves
        return tuple([leaf.detach() for leaf in leaves])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if all(gradient is None for gradient in gradients):
            return None, None
        parts = [
            (torch.zeros_like(leaf) if leaf.is_floating_point() or leaf.is_complex() else leaf)
            if gradient is None
            else gradient.detach()
            for gradient, leaf in zip(gradients, ctx.leaves, strict=True)
        ]
        wrapper = ctx.layout.build(iter(parts))
        return None, wrapper.requires_grad_(False) if wrapper.requires_grad else wrapper


class Wrap:
    """A node's target that makes a tensor of the plain ones in it."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.__name__ = self.__qualname__ = f"wrap_{layout.cls.__name__}"

    def __call__(self, *leaves: Any) -> Any:
        """Make it."""
        return wrapped(self.layout, None, *leaves)

    def __repr__(self) -> str:
        return f"{self.__name__}({self.layout})"


class Unwrap:
    """A node's target that gives the plain tensors in one of such a class, the gradient of which is made of theirs."""

    def __init__(self, tensor: Any) -> None:
        with torch.no_grad():
            self.gradients = _gradient_layout(tensor.detach()) if tensor.requires_grad else None
        self.__name__ = self.__qualname__ = f"unwrap_{type(tensor).__name__}"

    def __call__(self, tensor: Any) -> tuple[torch.Tensor, ...]:
        """Take it apart."""
        with torch.set_grad_enabled(tensor.requires_grad):
            return _Unwrapping.apply(self.gradients, tensor)  # type: ignore[no-any-return]


def unwrap(tensor: Any) -> tuple[torch.Tensor, ...]:
    """The plain tensors in one of such a class, before a graph."""
    return Unwrap(tensor)(tensor)


def wrapped(layout: Layout, gradients: Layout | None, *leaves: torch.Tensor) -> Any:
    """A tensor of the plain ones, behind a graph; `gradients`: how its are laid out."""
    with torch.set_grad_enabled(any(leaf.requires_grad for leaf in leaves)):
        return _Wrapping.apply(layout, gradients, *leaves)


class Call:
    """A node's target that calls a function with objects that no graph can hold at the places of arguments.

    name: of a method of the first argument, if it is one.
    """

    def __init__(self, function: Any, objects: dict[int | str, Any]) -> None:
        self.function, self.objects = function, objects
        self.__name__ = self.__qualname__ = getattr(function, "__name__", str(function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        objects, rest = self.objects, list(args)
        places: Sequence[int] = sorted(place for place in objects if isinstance(place, int))
        for place in places:
            rest.insert(place, objects[place])
        named = {name: one for name, one in objects.items() if isinstance(name, str)}
        if isinstance(self.function, str):
            return getattr(rest[0], self.function)(*rest[1:], **kwargs, **named)
        return self.function(*rest, **kwargs, **named)
