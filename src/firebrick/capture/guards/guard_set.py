"""The guards of one capture, collected as sources are read."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from firebrick import _native
from firebrick.capture.guards.guard_kinds import Guard, Ref, id_guard, state_guard, tensor_guard
from firebrick.capture.guards.sources import Const, FunctionPart, InstanceDict, Variables
from firebrick.capture.guards.torch_state import default_device
from firebrick.capture.values.base import Source, Value
from firebrick.capture.values.constant import LITERAL_TYPES
from firebrick.capture.values.object import ObjectValue

_STATES = ("GRAD_MODE", "INFERENCE_MODE", "AUTOCAST", "DETERMINISTIC", "DEFAULT_DTYPE", "TORCH_FUNCTION", "TRANSFORMS")


def _fact(
    kind: str, key: Callable[[Any], Any] = lambda payload: None, made: Callable[[Any], Any] = lambda told: told
) -> Callable[[Guards, Source, Any], None]:
    """A guard of one source; guards with the same `key` of what is told say the same of it; its payload is `made`."""

    def put(self: Guards, source: Source, told: Any) -> None:
        self.put((kind, source, key(told)), Guard(kind, source, made(told)))

    return put


def _exactly(key: Any) -> Any:
    return (type(key), key)


class Guards:
    """Guards in the order in which they were needed, each once."""

    equals = _fact("EQUALS")  # a constant of the same type and value
    length = _fact("LEN")  # a container of the same length
    keys = _fact("DICT_KEYS")  # a dict with the same keys in order
    has_key = _fact("HAS_KEY", _exactly)  # a member of a set, or a key of a dict
    lacks_key = _fact("LACKS_KEY", _exactly)
    lacks_entry = _fact("LACKS_ENTRY", str)  # a class holds nothing under a name
    lacks_attribute = _fact("LACKS_ATTR", str)
    identity = _fact("ID", made=Ref)  # the same object
    code = _fact("CODE", made=lambda function: Ref(function.__code__))  # a function with the same code
    same = _fact("SAME")  # two sources give the same object, whichever it is

    def __init__(self) -> None:
        self._guards: dict[Any, Guard] = {}
        self._asked: list[Any] = []
        self._listeners = 0
        self._states = [Guard(kind, None, _native.state_read(_native.STATES[kind])) for kind in _STATES]
        if default_device() is not None:
            self._states.append(state_guard("DEFAULT_DEVICE"))

    def all(self) -> list[Guard]:
        """User guards, then torch's global state."""
        return [*self._guards.values(), *self._states]

    def absent_attributes(self) -> list[tuple[Any, Guard]]:
        """With their keys, those that say that an object has no attribute of a name."""
        where = {"LACKS_ATTR": object, "LACKS_KEY": InstanceDict}
        return [(key, g) for key, g in self._guards.items() if g.kind in where and isinstance(g.source, where[g.kind])]

    def user(self) -> list[Guard]:
        """Guards of sources."""
        return list(self._guards.values())

    def put(self, key: Any, guard: Guard) -> None:
        """Add a guard, unless there is one with its key."""
        self._guards.setdefault(key, guard)
        if self._listeners:
            self._asked.append(key)

    def repeat(self, like: Any, guard: Guard) -> None:
        """A guard that was made for another source of one that `end` gave with the key `like`."""
        self.put((guard.kind, guard.source, *like[2:]), guard)

    def begin(self) -> int:
        """Take down which guards are asked for from here on, new or not."""
        self._listeners += 1
        return len(self._asked)

    def end(self, start: int) -> list[tuple[Any, Guard]]:
        """The guards that were asked for since `begin` gave `start`, each once, with their keys."""
        self._listeners -= 1
        guards = [(key, self._guards[key]) for key in dict.fromkeys(self._asked[start:])]
        if not self._listeners:
            self._asked.clear()
        return guards

    def pin(self, value: Value) -> None:
        """An object of the user's is this one: captured code knows its address."""
        source = value.source
        if isinstance(value, ObjectValue) and value.obj is not None and not isinstance(source, (Const, types.NoneType)):
            self.identity(source, value.obj)

    def type(self, source: Source, cls: type) -> None:
        """The same class; nothing for objects that the code refers to itself."""
        if not isinstance(source, Const):
            self.put(("TYPE", source, None), id_guard(source, cls, "TYPE"))

    def defaults(self, source: Source, function: types.FunctionType) -> None:
        """A function with as many defaults, and the same names of those for keyword-only arguments."""
        positional, keyword = FunctionPart(source, "__defaults__"), FunctionPart(source, "__kwdefaults__")
        for part, values in ((positional, function.__defaults__), (keyword, function.__kwdefaults__)):
            if values is None:
                self.equals(part, None)
            else:
                self.type(part, type(values))
        if function.__defaults__:
            self.length(positional, len(function.__defaults__))
        if function.__kwdefaults__:
            self.keys(keyword, tuple(function.__kwdefaults__))

    def state(self, kind: str) -> None:
        """A state that few programs ask for stays as it is now."""
        self.put((kind, Variables(), None), state_guard(kind))

    def fixed(self, source: Source, obj: Any) -> None:
        """The same constant, or the same object, which is then taken as it is."""
        if type(obj) in LITERAL_TYPES:
            self.equals(source, obj)
        else:
            self.identity(source, obj)

    def tensor(self, source: Source, tensor: torch.Tensor, dynamic: Iterable[int] = ()) -> None:
        """A tensor with the same metadata, but for the sizes of some dimensions."""
        self.put(("TENSOR", source, None), tensor_guard(source, tensor, dynamic))

    def distinct(self, sources: list[Source]) -> None:
        """Different objects."""
        payload = tuple(sorted(set(sources), key=str))
        if len(payload) > 1:
            self.put(("DISTINCT", payload), Guard("DISTINCT", None, payload))

    def no_overlap(self, sources: list[Source]) -> None:
        """Tensors that share no memory."""
        payload = tuple(dict.fromkeys(sources))
        if len(payload) > 1:
            self.put(("NO_OVERLAP", payload), Guard("NO_OVERLAP", None, payload))

    def requires_grad(self, source: Source, tensor: torch.Tensor) -> None:
        """Whether a parameter needs a gradient; matters where gradients are recorded."""
        if torch.is_grad_enabled():
            self.put(("REQUIRES_GRAD", source, None), Guard("REQUIRES_GRAD", source, tensor.requires_grad))

    def alias(self, source: Source, original: Value, obj: Any, *, pinned: bool) -> None:
        """Two sources give the same object."""
        if pinned or original.source is None or original.source == source or isinstance(source, Const):
            return
        by_identity = (type, types.ModuleType, types.BuiltinFunctionType, torch.nn.Module)
        if isinstance(original.source, Const) or isinstance(obj, by_identity):
            self.identity(source, obj)
            self.pin(original)  # a number may decide which module it is
        else:
            self.same(source, original.source)
