"""Classes that captured code makes, and what class bodies are made of: properties, static methods, fields.

While code is captured, a real class stands in, whose functions refuse to run and whose other values are known to the
tracer; so lookups, bases and metaclasses are Python's own. Where the class leaves, it is made anew, at each call.
"""

from __future__ import annotations

import contextlib
import dis
import enum
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.hook import Wrapped
from firebrick.capture.values.base import Args, Interpreter, KnownValue, Kwargs, Value, ValueEmitter
from firebrick.capture.values.classes import LIBRARIES, ClassValue
from firebrick.capture.values.constant import NONE, ConstantValue
from firebrick.capture.values.function import CellValue, FunctionValue, PartialValue
from firebrick.capture.values.mapping import DictValue
from firebrick.capture.values.method import MethodValue
from firebrick.capture.values.object import MISSING, ObjectValue, is_odd_method
from firebrick.capture.values.sequence import ListValue, TupleValue


class _Refused(Break):
    """Code of the program's would run on what stands in."""

    def __init__(self) -> None:
        super().__init__("unsupported-call", "a class made inside is given to code that calls its functions")


def _refuse(*_: Any) -> None:
    raise _Refused


_HOOKS = ("__set_name__", "__get__", "__set__", "__delete__")  # of descriptors


class _Bare:
    """The first base of a class in the making, so that no `__init_subclass__` of its bases is called."""

    __slots__ = ()

    def __init_subclass__(cls) -> None: ...


def make_class(
    maker: Any, meta: Any, name: str, bases: tuple[Any, ...], entries: dict[str, Any], options: Any, untold: bool
) -> Any:
    """A class as a metaclass's `__new__` makes it; `untold`: its bases are not told. Called by compiled code too."""
    prepare = vars(enum.EnumMeta)["__prepare__"].__func__ if issubclass(meta, enum.EnumMeta) else lambda *_, **__: {}
    namespace = prepare(meta, name, bases, **options)
    for key, entry in entries.items():
        namespace[key] = entry
    if not untold:
        return maker(meta, name, bases, namespace, **options)
    new_class = maker(meta, name, (_Bare, *bases), namespace)
    with contextlib.suppress(TypeError):
        type.__setattr__(new_class, "__bases__", bases)
        return new_class
    above = next(c.__base__ for b in bases for c in b.__mro__ if c.__dictoffset__ and not c.__base__.__dictoffset__)
    hook = {"__init_subclass__": vars(_Bare)["__init_subclass__"]}
    first = make_class(type.__new__, type(above), "_Laid", (above,), hook, {}, above is not object)  # has a `__dict__`
    new_class = maker(meta, name, (first, *bases), namespace)
    try:
        type.__setattr__(new_class, "__bases__", bases)
    except TypeError as error:
        raise RuntimeError(error) from error
    return new_class


def stand_in(interp: Interpreter, value: Value) -> Any:
    """A host object by which the tracer knows what a class holds; raises Break: it is a descriptor, or named."""
    value, tracer = value.realize(), interp.tracer
    if isinstance(value, FunctionValue) and value.obj is None:
        host: Any = _function(value)
    else:
        kind = value.python_type()
        entries = {} if isinstance(value, BuiltValue) else {name: interp.lookup(kind, name)[0] for name in _HOOKS}
        hooks = [name for name, entry in entries.items() if entry is not MISSING and kind is not types.FunctionType]
        if not all(isinstance(value, ObjectValue) and isinstance(entries[name], types.FunctionType) for name in hooks):
            raise Break("unsupported-instruction", f"a class is made that holds {value.describe()}")
        if not hooks and value.is_constant():
            return value.as_constant()
        host = type("_StandIn", (), {hook: _refuse for hook in hooks if hook != "__set_name__"})()
    tracer.stand_ins[id(host)] = value
    tracer.remember(host, value)
    return host


def _function(value: FunctionValue) -> types.FunctionType:
    parts = {name: getattr(_refuse.__code__, name) for name in ("co_code", "co_names", "co_stacksize")}
    host = value.host(value.code.replace(co_exceptiontable=b"", co_linetable=b"", **parts))
    host.__globals__[_Refused.__name__] = _Refused
    for name, (_, attribute) in value.own.entries.items():
        if attribute.is_constant():
            setattr(host, str(name), attribute.realize().as_constant())
    return host


class BuiltValue(KnownValue):
    """What a built-in function makes of functions and constants: a property, a static method, a field."""

    __slots__ = ("args", "function", "kwargs")
    held = ("args", "kwargs")

    def __init__(self, obj: Any, function: Any, args: Args, kwargs: Kwargs) -> None:
        super().__init__(obj)
        self.function, self.args, self.kwargs = function, args, kwargs

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """What it holds, or a method."""
        attribute = getattr(self.obj, name, None)
        if isinstance(attribute, types.BuiltinMethodType):
            return MethodValue(self, name)
        return super().get_attr(interp, name) if attribute is None else interp.tracer.known(attribute)

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """`property.setter` and its kin."""
        return build(getattr(type(self.obj), name), interp, [self, *args], kwargs)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Make it again."""
        emitter.load_call(self.function, *self.args, *self.kwargs.values(), keywords=tuple(self.kwargs))


def run(interp: Interpreter, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """What a function that makes or changes a class gives for stand-ins; raises Break: it would run the program."""
    try:
        hosts = [stand_in(interp, arg) for arg in args]
        return function(*hosts, **{name: stand_in(interp, arg) for name, arg in kwargs.items()})
    except (TypeError, ValueError, AttributeError) as error:
        interp.raise_real(error)
    except RuntimeError as error:
        raise Break("unsupported-instruction", f"a class is made: {error}") from None


def build(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """The rule of functions that make parts of classes."""
    host = run(interp, function, args, kwargs)
    value = BuiltValue(host, function, args, kwargs)
    interp.tracer.stand_ins[id(host)] = value
    interp.tracer.remember(host, value)
    return value


class NewClassValue(ClassValue):
    """A class that captured code has made, by `recipe`; `steps` are calls with it that have changed it since."""

    __slots__ = ("changes", "entries", "options", "recipe", "steps", "untold", "waiting")
    held = ("recipe", "options", "entries", "changes")

    def __init__(
        self, obj: type, recipe: Sequence[Value], entries: dict[str, Value], options: Kwargs, untold: bool
    ) -> None:
        super().__init__(obj)
        self.recipe = recipe  # what makes it, its metaclass, name and bases
        self.entries, self.options, self.untold = entries, options, untold
        self.waiting: list[CellValue] | None = None  # cells that are to hold it, while it is made
        self.steps: list[tuple[Any, Args, Kwargs]] = []
        self.changes: list[Value] = []  # arguments of these

    def identity(self) -> object:
        """This value: the class is another one at each call."""
        return self

    def set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """As Python does, now and where the class leaves."""
        hook = interp.lookup(type(self.obj), "__setattr__")[0]
        if name[:2] == "__" and name in vars(type):
            raise Break("unsupported-attribute", f"{name} of {self.describe()} is set")
        interp.tracer.known(hook).call(interp, [self, ConstantValue(name), value], {})

    def told(self, base: type, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """What the `__init_subclass__` of a library's base does."""
        behind = self.obj.__mro__[self.obj.__mro__.index(base) + 1 :]
        if any("__init_subclass__" in vars(cls) and cls.__module__ not in LIBRARIES for cls in behind):
            raise Break("unsupported-call", f"{base.__name__}.__init_subclass__() tells the program's of a class")
        self.change(interp, lambda cls, **to: vars(base)["__init_subclass__"].__get__(None, cls)(**to), [], kwargs)
        return NONE

    def change(self, interp: Interpreter, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> None:
        """Call a function that changes the class, with it and other arguments."""
        interp.tracer.effects.count += 1
        run(interp, partial(function, self.obj), args, kwargs)
        self.steps.append((function, args, kwargs))
        self.changes += [*args, *kwargs.values()]
        self.register(interp)

    def register(self, interp: Interpreter) -> None:
        """Let the tracer know what belongs to the class and has to be loaded from it."""
        new_objects, owned = interp.tracer.graph.new_objects, {id(v.obj) for v in self.children() if hasattr(v, "obj")}
        owned.update(interp.tracer.stand_ins)
        for name, entry in vars(self.obj).items():
            if is_odd_method(self.obj, name, entry):
                raise Break("unsupported-call", f"{name} of {self.obj.__name__} is a {type(entry).__name__}")
            if isinstance(entry, types.FunctionType) and id(entry) not in owned:
                new_objects.setdefault(id(entry), MethodValue(self, name))
        members: Mapping[str, Any] = self.obj.__members__ if isinstance(self.obj, enum.EnumMeta) else {}
        new_objects.update({id(member): MethodValue(self, name) for name, member in members.items()})

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Make it, then change it as it was; cells that hold it are filled behind it."""
        if self.waiting is not None:
            raise Break("no-reconstruction", f"{self.describe()}, which holds itself, leaves the captured code")
        self.waiting = []
        tables = DictValue.of(self.entries), DictValue.of(self.options)
        emitter.load_call(Wrapped(make_class, None), *self.recipe, *tables, self.untold)  # none of it is captured
        emitter.remember(self)
        cells, self.waiting = self.waiting, None
        for cell in cells:
            emitter.run_call(setattr, cell, "cell_contents", self)
        for function, args, kwargs in self.steps:
            emitter.load_call(Wrapped(function, None), self, *args, *kwargs.values(), keywords=tuple(kwargs))
            emitter.pop()


def _is_set_once(code: types.CodeType, name: str) -> bool:
    """Whether a variable that inner functions share has the same value from the first time on that they can read it."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType) and name in one.co_freevars]
    steps = [*dis.get_instructions(code)]
    stores = [one.offset for one in steps if one.opname in ("STORE_DEREF", "DELETE_DEREF") and one.argval == name]
    loops = [(one.argval, one.offset) for one in steps if one.opname.startswith("JUMP_BACKWARD")]
    if any(start <= offset < end for offset in stores for start, end in loops):
        return False
    is_argument = name in code.co_varnames or name in code.co_freevars
    return len(stores) + is_argument <= 1 and all(_is_set_once(one, name) for one in inner)


def twin(value: Value, *, settled: bool = True) -> Any:
    """A real object like one that captured code made of functions and constants; raises Break: it holds others, or,
    if it is to be `settled`, what may change before it is called."""
    cells: list[tuple[types.CellType, CellValue]] = []  # filled last, since they may lead back

    @functools.cache
    def of(value: Value) -> Any:
        value = value.realize()
        if isinstance(value, FunctionValue) and value.obj is None:
            parts = tuple(map(of, value.defaults)), tuple(map(of, value.closure))
            function = types.FunctionType(value.code, value.globals, value.name, *parts)
            function.__kwdefaults__ = all_of(value.kwdefaults)
            return function
        if isinstance(value, (BuiltValue, PartialValue)):
            make = value.function if isinstance(value, BuiltValue) else partial(partial, of(value.function))
            return make(*map(of, value.args), **all_of(value.kwargs))
        if isinstance(value, CellValue) and (not settled or value.code is None or _is_set_once(value.code, value.name)):
            cells.append((types.CellType(), value))
            return cells[-1][0]
        if isinstance(value, TupleValue) or (isinstance(value, ListValue) and not settled):
            return value.build(list(map(of, value.items)))
        if isinstance(value, NewClassValue):
            maker, meta, name, bases = map(of, value.recipe)
            made = make_class(maker, meta, name, bases, all_of(value.entries), all_of(value.options), value.untold)
            for step, args, kwargs in value.steps:
                step(made, *map(of, args), **all_of(kwargs))
            return made
        if value.is_constant():
            return value.as_constant()
        what = f"{value.name}, which changes" if isinstance(value, CellValue) else value.describe()
        raise Break("unsupported-call", f"a function made inside that reads {what} is called by torch")

    def all_of(values: Mapping[str, Value]) -> dict[str, Any]:
        return {name: of(value) for name, value in values.items()}

    made = of(value)
    for real, cell in cells:
        if cell.content is not None:
            real.cell_contents = of(cell.content)
    return made
