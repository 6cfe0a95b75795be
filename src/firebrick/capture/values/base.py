"""The protocol of symbolic values.

A `Value` stands for one Python object while a frame is executed symbolically. What it was read from
is its `source`; a value without one was made by the captured code. Values that were read but not yet
looked at are `LazyValue`s: they cost no guard until `realize()` is called, so arguments that nothing
uses are never guarded. Operations raise `Raised` for exceptions of the user's program and
`breaks.Break` for what can't be captured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.guards.sources import Source as Source

if TYPE_CHECKING:
    from firebrick.capture.emit.materialize import ValueEmitter as ValueEmitter
    from firebrick.capture.interpreter.frame_tracer import Tracer as Tracer
    from firebrick.capture.interpreter.interpreter import Interpreter as Interpreter
else:
    Interpreter = Tracer = ValueEmitter = Any  # names in annotations alone

# With these, the names that the signatures of values and rules are made of.
Args = Sequence["Value"]
Kwargs = Mapping[str, "Value"]


class NotConstant(Exception):
    """`as_constant` was asked of a value that has parts unknown until the program runs."""


class Raised(Exception):
    """An exception of the user's program, travelling through the symbolic interpreter."""

    def __init__(self, value: Value) -> None:
        self.value = value
        super().__init__(value)


class Value:
    """One Python object of the captured program."""

    __slots__ = ("compared", "source")

    source: Source | None
    """Where it was read."""
    compared: bool
    """Whether its identity was looked at, if values of this kind keep that in mind."""
    cls: type
    """Its class, if values of this kind are of one, or each knows its own."""
    held: ClassVar[tuple[str, ...]] = ()
    """Attributes that are values, or sequences or mappings of them, which it holds."""

    def __new__(cls, /, *_: Any, **__: Any) -> Any:
        """Of what captured code made, unless its class says otherwise."""
        value = object.__new__(cls)
        value.source, value.compared = None, False
        return value

    # -- what it is -----------------------------------------------------------

    def realize(self) -> Value:
        """The value itself, its guards installed."""
        return self

    def python_type(self) -> type:
        """The class that `type(x)` gives."""
        return self.cls

    def is_constant(self) -> bool:
        """Whether `as_constant` will succeed."""
        try:
            self.as_constant()
        except NotConstant:
            return False
        return True

    def as_constant(self) -> Any:
        """The real object, if it is known now and can't change; raises NotConstant: it holds tensors, or may."""
        raise NotConstant(type(self).__name__)

    def as_argument(self) -> Any:
        """What stands for the value among the arguments of a graph node; raises Break: nothing can."""
        try:
            return self.as_constant()
        except NotConstant:
            raise Break("unsupported-operation", f"{self.describe()} can't be passed to a torch function") from None

    def describe(self) -> str:
        """Name for messages, in the user's terms."""
        name = self.python_type().__name__
        return f"{self.source} ({name})" if self.source is not None else f"a value of type {name}"

    def identity(self) -> object:
        """An object that is the same for two values exactly if `is` holds between them."""
        return self

    def compare(self) -> None:
        """Note that its identity is looked at: by `is`, `id()` or as a key."""

    # -- what can be done with it ---------------------------------------------

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """`self(*args, **kwargs)`."""
        raise Break("unsupported-call", f"{self.describe()} is called")

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """`self.name`; raises an AttributeError of the user's program if there is none."""
        raise Break("unsupported-attribute", f"{name} of {self.describe()} is read")

    def set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """`self.name = value`."""
        raise Break("unsupported-attribute", f"{name} of {self.describe()} is set")

    def del_attr(self, interp: Interpreter, name: str) -> None:
        """`del self.name`."""
        raise Break("unsupported-attribute", f"{name} of {self.describe()} is deleted")

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """`self.name(*args, **kwargs)`."""
        return self.get_attr(interp, name).realize().call(interp, args, kwargs)

    def get_item(self, interp: Interpreter, key: Value) -> Value:
        """`self[key]`."""
        return self.call_method(interp, "__getitem__", [key], {})

    def set_item(self, interp: Interpreter, key: Value, value: Value) -> None:
        """`self[key] = value`."""
        self.call_method(interp, "__setitem__", [key, value], {})

    def del_item(self, interp: Interpreter, key: Value) -> None:
        """`del self[key]`."""
        self.call_method(interp, "__delitem__", [key], {})

    def iterate(self, interp: Interpreter) -> Iterator[Value]:
        """The elements, as `for` would see them; a host-side iterator that may be lazy."""
        raise Break("unsupported-operation", f"iteration over {self.describe()}")

    def length(self, interp: Interpreter) -> int:
        """`len(self)`."""
        if not hasattr(self.python_type(), "__len__"):
            interp.raise_new(TypeError, f"object of type {self.python_type().__name__!r} has no len()")
        raise Break("unsupported-operation", f"len() of {self.describe()}")

    def truth(self, interp: Interpreter) -> bool:
        """`bool(self)`."""
        return True

    # -- leaving the captured region ------------------------------------------

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Emit what pushes the object, which no source gives; raises Break: it can't be made again."""
        raise Break("no-reconstruction", f"{self.describe()} leaves the captured code")

    def children(self) -> Sequence[Value]:
        """Values that this one holds, for reachability."""
        parts: list[Value] = []
        for name in self.held:
            part = getattr(self, name)
            if isinstance(part, Value):
                parts.append(part)
            elif part is not None:
                parts += part.values() if isinstance(part, dict) else part
        return parts

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source or ''})"


class UnknownValue(Value):
    """What nobody knows before the program runs; what must know it breaks."""

    __slots__ = ()

    def is_constant(self) -> bool:
        """No."""
        return False

    def _unknown(self) -> NoReturn:
        raise NotImplementedError

    def _ask(self, *args: Any, **kwargs: Any) -> Any:
        self._unknown()

    as_constant = as_argument = truth = get_attr = call_method = iterate = length = _ask


class LazyValue(Value):
    """An object that was read from a source and not yet looked at; no guard so far."""

    __slots__ = ("_real", "obj", "pinned", "tracer")

    def __init__(self, tracer: Tracer, obj: object, source: Source, *, pinned: bool = False) -> None:
        self.source, self.tracer, self.obj, self.pinned = source, tracer, obj, pinned
        self._real: Value | None = None

    def realize(self) -> Value:
        """The real value; installs the guard of what was read."""
        real = self._real
        if real is None:
            assert self.source is not None
            real = self._real = self.tracer.wrap(self.obj, self.source, pinned=self.pinned)
        return real

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Load from the source."""
        assert self.source is not None
        emitter.load_source(self.source)


for _name in ("identity", "python_type", "is_constant", "as_constant", "as_argument"):
    setattr(LazyValue, _name, lambda self, _name=_name: getattr(self.realize(), _name)())


class KnownValue(Value):
    """An object that is known by identity and stays as it is."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any, source: Source | None = None) -> None:
        self.source, self.obj = source, obj

    def python_type(self) -> type:
        """Class of the object."""
        return type(self.obj)

    def identity(self) -> object:
        """The object."""
        return self.obj

    def as_constant(self) -> Any:
        """The object."""
        return self.obj

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Load the object."""
        emitter.load_const(self.obj)


class ComparedValue(Value):
    """A value that keeps in mind whether its identity was looked at."""

    __slots__ = ()

    def compare(self) -> None:
        """Keep in mind."""
        self.compared = True


class BuiltinValue(Value):
    """An object of a built-in kind whose methods are rows of a table."""

    __slots__ = ()

    methods: ClassVar[Mapping[str, Any]] = {}
    """Method name -> function of interpreter, value, arguments and keywords."""

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """Bound methods."""
        return interp.method(self, name)

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """By the table."""
        method = self.methods.get(name)
        if method is None:
            return interp.fallback_method(self, name, args, kwargs)
        return method(interp, self, args, kwargs)

    def truth(self, interp: Interpreter) -> bool:
        """Whether it is empty, if it has a length."""
        return not hasattr(self.python_type(), "__len__") or self.length(interp) > 0


class NullValue(Value):
    """The NULL that CPython pushes beside callables."""

    __slots__ = ()
    cls = type(None)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Push a NULL."""
        emitter.push_null()


NULL = NullValue()
"""The one NULL."""
