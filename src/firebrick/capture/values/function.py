"""Functions, closures' cells, bound methods, partial objects, and callables known by identity."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.guards.sources import Attr, BuiltinItem, FunctionPart, Item
from firebrick.capture.values.base import Args, Interpreter, KnownValue, Kwargs, Source, Tracer, Value, ValueEmitter
from firebrick.capture.values.constant import LITERAL_TYPES, NONE, ConstantValue, is_literal
from firebrick.capture.values.mapping import DictValue
from firebrick.capture.values.sequence import TupleValue

_VARARGS, _VARKEYWORDS = 0x04, 0x08
_LOCALS: Any = lambda: locals()  # noqa: E731  only its code is wanted
_SLOTS = vars(types.FunctionType)
"""What a function keeps beside its `__dict__`."""


class CellValue(Value):
    """A closure's cell; `content` is None while it is empty."""

    __slots__ = ("code", "content", "name", "obj")
    held = ("content",)
    cls = types.CellType

    def __init__(
        self, content: Value | None, name: str, source: Source | None = None, obj: Any = None, code: Any = None
    ) -> None:
        self.source, self.content, self.name, self.obj = source, content, name, obj
        self.code: types.CodeType | None = code  # whose variable it is, of a new one

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """`cell_contents`."""
        if name == "cell_contents":
            if self.content is None:
                interp.raise_new(ValueError, "cell is empty")
            return self.content
        return super().get_attr(interp, name)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """A frame's own cell, or a new one that is filled once it is known."""
        emitter.load_call(types.CellType)
        emitter.remember(self)
        waiting = getattr(self.content, "waiting", None)  # of a class in the making
        if waiting is not None:
            waiting.append(self)
        elif self.content is not None:
            emitter.set_attributes({"cell_contents": self.content})

    def replay(self, emitter: ValueEmitter) -> Callable[[], None]:
        """Load the new content; the function returned stores it."""
        temp = emitter.load_to_temp(self.content) if self.content is not None else None

        def store() -> None:
            if temp is not None:
                emitter.load_fast(temp)
            emitter.load(self)
            if temp is None:
                emitter.delete_attr("cell_contents")
            else:
                emitter.store_attr("cell_contents")

        return store


class CallableValue(KnownValue):
    """A callable object that is known by identity: a built-in function, a torch operator, a descriptor."""

    __slots__ = ()

    def describe(self) -> str:
        """Its name."""
        return f"{getattr(self.obj, '__module__', '') or ''}.{getattr(self.obj, '__qualname__', self.obj)}".strip(".")

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """By the tables of known functions."""
        return interp.call_known(self.obj, self, args, kwargs)

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """Attributes are known too."""
        with interp.raising(AttributeError):
            attribute = getattr(self.obj, name)
        return interp.tracer.known(attribute)


class FunctionValue(Value):
    """A Python function; `obj` is the real one, None if captured code made it."""

    __slots__ = "annotations attributes closure cls code defaults globals kwdefaults name obj own pin pinned".split()

    def __init__(
        self,
        code: types.CodeType,
        namespace: dict[str, Any],
        *,
        obj: types.FunctionType | None = None,
        source: Source | None = None,
        defaults: Sequence[Value] = (),
        kwdefaults: Mapping[str, Value] | None = None,
        closure: Sequence[CellValue] = (),
        pinned: bool = True,
    ) -> None:
        self.source = source
        self.code, self.globals, self.obj, self.name, self.pinned = code, namespace, obj, code.co_name, pinned
        self.defaults, self.kwdefaults, self.closure = defaults, dict(kwdefaults or {}), closure
        self.cls: type = types.FunctionType
        self.attributes: dict[str, Value] = {}  # those beside its `__dict__`
        self.own = DictValue({})  # its `__dict__`, of one that captured code made
        self.annotations: Value | None = None
        self.pin: Callable[[], None] | None = None  # guards which function it is, where only its code is guarded

    @classmethod
    def of(cls, tracer: Tracer, fn: types.FunctionType, source: Source | None, *, pinned: bool = True) -> FunctionValue:
        """A real function; defaults and cells are read lazily. `pinned` says that no other one may stand for it."""
        base = source if source is not None else tracer.const_source(fn)
        if not pinned:
            tracer.guards.defaults(base, fn)
        defaults = [
            tracer.read(item, Item(FunctionPart(base, "__defaults__"), index), pinned=pinned)
            for index, item in enumerate(fn.__defaults__ or ())
        ]
        kwdefaults = {
            name: tracer.read(item, BuiltinItem(FunctionPart(base, "__kwdefaults__"), name))
            for name, item in (fn.__kwdefaults__ or {}).items()
        }
        closure = [
            tracer.cell(cell, name, Item(FunctionPart(base, "__closure__"), index))
            for index, (cell, name) in enumerate(zip(fn.__closure__ or (), fn.__code__.co_freevars, strict=True))
        ]
        return cls(
            fn.__code__,
            fn.__globals__,
            obj=fn,
            source=source,
            defaults=defaults,
            kwdefaults=kwdefaults,
            closure=closure,
            pinned=pinned,
        )

    def identity(self) -> object:
        """The real function, or this value."""
        if self.pin is not None:
            self.pin()
        return self if self.obj is None else self.obj

    def as_constant(self) -> Any:
        """The real function."""
        if self.pin is not None:
            self.pin()
        return super().as_constant() if self.obj is None else self.obj

    def describe(self) -> str:
        """Its name."""
        return f"function {self.code.co_qualname}"

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """By the tables of known functions, else inlined."""
        if self.obj is not None:
            return interp.call_known(self.obj, self, args, kwargs)
        return interp.inline(self, args, kwargs)

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """Function attributes."""
        if name in self.attributes:
            return self.attributes[name]
        if name in self.own.entries:
            return self.own.entries[name][1]
        if self.cls is not types.FunctionType:
            return interp.method(self, name)
        if name == "__get__":
            return BoundMethodValue(interp.stand_in("get_of_function"), self)
        if self.obj is not None:
            base = self.source if self.source is not None else interp.tracer.const_source(self.obj)
            try:
                attribute = getattr(self.obj, name)
            except AttributeError as error:
                interp.tracer.guards.lacks_attribute(base, name)
                interp.raise_real(error)
            if self.pin is not None and not is_literal(attribute):
                self.pin()
            return interp.tracer.read(
                attribute, Attr(base, name), pinned=name.startswith("__") and not is_literal(attribute)
            )
        match name:
            case "__defaults__":
                return TupleValue(list(self.defaults)) if self.defaults else NONE
            case "__kwdefaults__":
                return DictValue.of(self.kwdefaults) if self.kwdefaults else NONE
            case "__closure__":
                return TupleValue(list(self.closure)) if self.closure else NONE
            case "__annotations__":
                self.attributes[name] = self.annotated()
                return self.attributes[name]
            case "__dict__":
                return self.own
        with interp.raising(AttributeError):
            attribute = getattr(self.host(), name)
        if not isinstance(attribute, (*LITERAL_TYPES, tuple, types.CodeType, type)):
            raise Break("unsupported-attribute", f"{name} of a function made in captured code is read")
        return interp.tracer.known(attribute)

    def host(self, code: types.CodeType | None = None) -> types.FunctionType:
        """A real function like one that captured code made, with empty cells and no defaults."""
        cells = tuple(types.CellType() for _ in self.code.co_freevars)
        names = {"__name__": self.globals.get("__name__", "builtins")}
        return types.FunctionType(code or self.code, names, self.name, None, cells)

    def annotated(self) -> DictValue:
        """The annotations that the function was made with: names and values in turn."""
        parts = [] if self.annotations is None else self.annotations.realize().children()
        return DictValue.of(
            {key.realize().as_constant(): item for key, item in zip(parts[::2], parts[1::2], strict=True)}
        )

    def set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """Attributes of functions that captured code made."""
        if self.obj is not None or name in ("__code__", "__defaults__", "__kwdefaults__", "__dict__"):
            raise Break("unsupported-attribute", f"{name} of {self.describe()} is set")
        if name == "__name__" and isinstance(value.realize(), ConstantValue):
            self.name = value.realize().as_constant()
        if name in _SLOTS:
            self.attributes[name] = value
        else:
            self.own.set_item(interp, ConstantValue(name), value)

    def children(self) -> Sequence[Value]:
        """Defaults and cells of new functions."""
        if self.obj is not None:
            return ()
        parts = (*self.defaults, *self.kwdefaults.values(), *self.closure, *self.attributes.values(), self.own)
        return parts if self.annotations is None else (*parts, self.annotations)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """`FunctionType(code, globals, name, defaults, closure)`, then the rest as attributes."""
        if self.obj is not None:
            emitter.load_const(self.obj)
            return
        emitter.load_callable(types.FunctionType)
        emitter.load_const(self.code)
        emitter.load_const(self.globals)
        emitter.load_const(self.name)
        emitter.load(TupleValue(list(self.defaults)) if self.defaults else NONE)
        if self.closure:
            emitter.load_tuple(self.closure)
        else:
            emitter.load(NONE)
        emitter.call(5)
        emitter.remember(self)
        attributes = dict(self.attributes)
        if self.annotations is not None:
            attributes.setdefault("__annotations__", self.annotated())
        if self.kwdefaults:
            attributes["__kwdefaults__"] = DictValue.of(self.kwdefaults)
        if self.own.entries:
            attributes["__dict__"] = self.own
        emitter.set_attributes(attributes)


_OF_METHODS = frozenset(vars(types.MethodType)) - {"__doc__"}
"""Attributes of a bound method that are not its function's."""


class BoundMethodValue(Value):
    """A function bound to the value that it gets as first argument."""

    __slots__ = ("function", "owner")
    cls = types.MethodType
    held = ("function", "owner")

    def __init__(self, function: Value, owner: Value, source: Source | None = None) -> None:
        self.source, self.function, self.owner = source, function, owner

    def describe(self) -> str:
        """Its function's name."""
        return self.function.describe()

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """Call the function with the owner first."""
        return self.function.realize().call(interp, [self.owner, *args], kwargs)

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """`__self__`, `__func__`, then the function's."""
        if name == "__self__":
            return self.owner
        if name == "__func__":
            return self.function
        if name == "__class__":
            return interp.tracer.known(types.MethodType)
        if name == "__call__":
            return self
        if name in _OF_METHODS:
            raise Break("unsupported-attribute", f"{name} of a bound method is read")
        return self.function.realize().get_attr(interp, name)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """`MethodType(function, owner)`."""
        emitter.load_call(types.MethodType, self.function, self.owner)


class RawMethod(Value):
    """A built-in method of an object whose class overrides it: what it does."""

    __slots__ = ("run",)
    cls = types.MethodWrapperType

    def __init__(self, run: Callable[[Interpreter, Args, Kwargs], Value | None]) -> None:
        self.run = run

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """Do it."""
        return self.run(interp, args, kwargs) or NONE


class PartialValue(Value):
    """A functools.partial."""

    __slots__ = ("args", "attributes", "function", "kwargs", "obj")
    held = ("function", "args", "kwargs", "attributes")
    cls = functools.partial

    def __init__(
        self, function: Value, args: Args, kwargs: Kwargs, source: Source | None = None, obj: Any = None
    ) -> None:
        self.source, self.function, self.args, self.kwargs, self.obj = source, function, list(args), dict(kwargs), obj
        self.attributes: dict[str, Value] = {}

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """Call the function with the arguments joined."""
        return self.function.realize().call(interp, [*self.args, *args], {**self.kwargs, **kwargs})

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """`func`, `args`, `keywords`."""
        if name == "func":
            return self.function
        if name == "args":
            return TupleValue(list(self.args))
        if name == "keywords":
            return DictValue.of(self.kwargs)
        return self.attributes[name] if name in self.attributes else super().get_attr(interp, name)

    def set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """Attributes of one that captured code made."""
        if self.source is not None:
            super().set_attr(interp, name, value)
        self.attributes[name] = value

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """`partial(function, *args, **kwargs)`."""
        emitter.load_call(
            functools.partial, self.function, *self.args, *self.kwargs.values(), keywords=tuple(self.kwargs)
        )
        emitter.set_attributes(self.attributes)


def bind_arguments(interp: Interpreter, function: FunctionValue, args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Parameters of a call by name, as CPython binds them; raises the user's TypeError."""
    code = function.code
    like = types.FunctionType(_binding(code), {}, code.co_name, (*function.defaults,))
    like.__kwdefaults__ = function.kwdefaults
    like.__qualname__ = code.co_qualname if function.obj is None else function.obj.__qualname__
    with interp.raising(TypeError):
        bound: dict[str, Value] = like(*args, **kwargs)
    place = code.co_argcount + code.co_kwonlyargcount
    if code.co_flags & _VARARGS:
        bound[code.co_varnames[place]] = TupleValue([*bound[code.co_varnames[place]]])  # type: ignore[misc]
        place += 1
    if code.co_flags & _VARKEYWORDS:
        bound[code.co_varnames[place]] = DictValue.of(bound[code.co_varnames[place]])  # type: ignore[arg-type]
    return bound


@functools.lru_cache(4096)
def _binding(code: types.CodeType) -> types.CodeType:
    """Code with the parameters of another that gives its arguments by name."""
    flags = code.co_flags & (_VARARGS | _VARKEYWORDS)
    length = code.co_argcount + code.co_kwonlyargcount + flags.bit_count()
    return _LOCALS.__code__.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_nlocals=length,
        co_varnames=code.co_varnames[:length],
        co_flags=_LOCALS.__code__.co_flags | flags,
    )
