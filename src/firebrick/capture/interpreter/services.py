"""What any place in the symbolic interpreter can ask for: calls, iteration, folding, user exceptions."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import methodcaller
from typing import Any, NoReturn

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.interpreter import operators
from firebrick.capture.interpreter.function_modes import call_under_modes, seen, surely
from firebrick.capture.library import arity, known_callables
from firebrick.capture.values.base import Args, Interpreter, Kwargs, NotConstant, Raised, Tracer, Value
from firebrick.capture.values.computed import applied
from firebrick.capture.values.constant import LITERAL_TYPES, NONE, ConstantValue, is_none
from firebrick.capture.values.exception import ExceptionValue
from firebrick.capture.values.function import FunctionValue
from firebrick.capture.values.iterator import GeneratorValue, IteratorValue, of_list
from firebrick.capture.values.method import MethodValue
from firebrick.capture.values.object import CACHED, MISSING, ObjectValue, class_lookup, converted, overriding
from firebrick.capture.values.scalar import is_open, of_python, read, shown, text_of
from firebrick.capture.values.sequence import ListValue
from firebrick.capture.values.size import SizeValue
from firebrick.capture.values.subclass import SubclassValue
from firebrick.capture.values.tensor import TensorValue


class Operations:
    """Operations on values; the interpreter of each frame is one."""

    tracer: Tracer

    # -- exceptions of the user's program ---------------------------------------

    def raise_real(self, error: BaseException) -> NoReturn:
        """Raise, in the user's program, an exception that a host operation raised."""
        raise Raised(ExceptionValue.of(error, [self.tracer.known(arg) for arg in error.args])) from error

    @contextmanager
    def raising(self, *classes: type[Exception]) -> Iterator[None]:
        """Raise, in the user's program, what host code raises inside."""
        try:
            yield
        except (Break, NotConstant, Raised):
            raise
        except classes as error:
            self.raise_real(error)

    def attempt(self, cls: type[Exception], function: Callable[..., Value], *args: Any) -> Value | None:
        """What a function gives, or None: it raises an exception of that class in the user's program."""
        try:
            return function(*args)
        except Raised as raised:
            if self.is_instance(raised.value, cls):
                return None
            raise

    def raise_new(self, cls: type[BaseException], *args: Any) -> NoReturn:
        """Raise a new exception in the user's program."""
        self.raise_value(cls, [self.tracer.known(arg) for arg in args])

    def raise_value(self, cls: type[BaseException], args: list[Value]) -> NoReturn:
        """Raise a new exception with values as arguments."""
        raise Raised(ExceptionValue(cls, args))

    def lookup(self, cls: type, name: str) -> tuple[Any, type | None]:
        """What a class finds under a name, as it is, and which class of its bases holds it; guarded."""
        return self.tracer.lookup(cls, name)

    # -- constants ----------------------------------------------------------------

    def fold(self, function: Callable[..., Any], args: Args, kwargs: Kwargs, *, copied: bool = False) -> Value:
        """Evaluate a function of constants now; one that only looks at its arguments is given `copied` containers;
        raises Break: an argument is not constant."""

        what = f"{getattr(getattr(function, 'func', function), '__qualname__', function)}() is called"
        host, named = self.hosts(args, kwargs, "unsupported-call", what, copied=copied)
        with self.raising(Exception):
            return self.tracer.fresh(function(*host, **named))

    def hosts(
        self, args: Args, kwargs: Kwargs, kind: str, what: str, *, copied: bool = True
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call as real objects; raises Break, of a kind: one is not constant."""
        host_of: Any = partial(operators.host_copy, self.interpreter) if copied else methodcaller("as_constant")
        try:
            return [host_of(arg.realize()) for arg in args], {n: host_of(arg.realize()) for n, arg in kwargs.items()}
        except NotConstant as error:
            raise Break(kind, f"{what} with {error} that is not constant") from None

    def index_of(self, value: Value) -> int:
        """`operator.index`."""
        value = value.realize()
        if isinstance(value, TensorValue):
            number = self.tracer.early.read(value)
            if not isinstance(number, int):
                raise Break("data-dependent-value", "a tensor is used as an index")
            return number
        if (
            isinstance(value, ObjectValue)
            and not issubclass(value.cls, int)
            and overriding(self.interpreter, value, "__index__")
        ):
            if self.lookup(value.cls, "__index__")[0] is MISSING:
                value.call_method(self.interpreter, "__index__", [], {})
            value = converted(self.interpreter, value, "__index__", operator.index)
        if isinstance(value, ObjectValue) and value.storage is not None:
            value = value.storage
        try:
            constant = value.as_constant()
        except NotConstant:
            self.raise_new(TypeError, f"{value.python_type().__name__!r} object cannot be interpreted as an integer")
        if isinstance(constant, int):
            return int(constant)
        self.raise_new(TypeError, f"{type(constant).__name__!r} object cannot be interpreted as an integer")

    def flag(self, value: Value | None, default: bool) -> bool:
        """The truth of an optional argument."""
        return default if value is None else value.realize().truth(self.interpreter)

    @property
    def interpreter(self) -> Interpreter:
        """This object, as what it is."""
        return self  # type: ignore[return-value]

    # -- calls ------------------------------------------------------------------

    def call(self, function: Value, *args: Value) -> Value:
        """`function(*args)`."""
        return function.realize().call(self.interpreter, args, {})

    def operate(self, function: Callable[..., Any], *operands: Value) -> Value:
        """An operator of the program, one of whose operands is a tensor."""
        if self.tracer.function_modes:
            return surely(function, seen(self.interpreter, function, operands, {}))
        return self.tracer.graph.call(self.interpreter, "call_function", function, operands, {})

    def call_known(self, obj: Any, value: Value, args: Args, kwargs: Kwargs) -> Value:
        """Call an object that is known by identity: by its rule, in the graph, inlined or evaluated."""
        interp = self.interpreter
        if self.tracer.function_modes and (result := call_under_modes(interp, obj, args, kwargs)) is not None:
            return result
        handler = known_callables.find(obj)
        if handler is not None:
            return handler(interp, *arity.fit(obj, args, kwargs))
        if known_callables.is_graph_function(obj):
            return self.tracer.graph.call(interp, "call_function", obj, args, kwargs)
        if isinstance(obj, types.FunctionType):
            replacement = known_callables.polyfill(obj)
            if replacement is not None:
                return interp.inline(self.tracer.function(replacement), args, kwargs)
            rule = known_callables.rule_of(obj)
            if rule is not None:
                return rule(interp, obj, args, kwargs)  # type: ignore[no-any-return]
            assert isinstance(value, FunctionValue)
            return interp.inline(value, args, kwargs)
        if isinstance(obj, CACHED):
            if all(arg.realize().is_constant() for arg in (*args, *kwargs.values())):
                return self.fold(obj, args, kwargs)  # what is cached may be asked for now
            before = self.tracer.effects.count
            result = self.tracer.known(obj.__wrapped__).call(interp, args, kwargs)
            if self.tracer.effects.count != before:  # which it has once for equal arguments
                raise Break("unsupported-call", f"a cached function with side effects, {obj.__name__}(), is called")
            return result
        if isinstance(obj, (types.MethodDescriptorType, types.WrapperDescriptorType)) and args:
            return self._call_descriptor(obj, args, kwargs)
        if isinstance(obj, types.MethodWrapperType) and isinstance(obj.__self__, types.GetSetDescriptorType) and args:
            return args[0].realize().get_attr(interp, obj.__self__.__name__)
        replacement = known_callables.polyfill(obj)
        if replacement is not None:
            returned = interp.inline(self.tracer.function(replacement), *arity.fit(obj, args, kwargs)).realize()
            if isinstance(obj, type) and isinstance(returned, (FunctionValue, GeneratorValue)):
                returned.cls = obj
            return returned
        if known_callables.is_foldable(obj):
            number = of_python(interp, obj, args) or applied(interp, obj, args)
            return number or self.fold(obj, args, kwargs, copied=True)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, type) and owner in LITERAL_TYPES:  # int.from_bytes
            return self.fold(obj, args, kwargs, copied=True)
        if isinstance(obj, types.BuiltinFunctionType) and hasattr(type(owner), obj.__name__):  # pybind's owners lack it
            return self.tracer.known(owner).call_method(interp, obj.__name__, args, kwargs)
        raise Break("unsupported-call", f"{value.describe()}() is called")

    def _call_descriptor(self, obj: Any, args: Args, kwargs: Kwargs) -> Value:
        """`dict.update(x, ...)`: the built-in method, even where x's class overrides it."""
        receiver = args[0].realize()
        rest, kwargs = arity.fit_method(obj.__objclass__, obj.__name__, args[1:], kwargs)
        if isinstance(receiver, SubclassValue):
            return receiver.tensor_method(self.interpreter, obj.__name__, rest, kwargs)
        if isinstance(receiver, ObjectValue):
            if receiver.storage is not None:
                return receiver.storage.call_method(self.interpreter, obj.__name__, rest, kwargs)
            if obj.__objclass__ is not object and receiver.obj is not None and known_callables.is_foldable(obj):
                return self.fold(obj, args, kwargs)
            raise Break("unsupported-call", f"{obj.__qualname__}() is called on {receiver.describe()}")
        return receiver.call_method(self.interpreter, obj.__name__, rest, kwargs)

    def fallback_method(self, value: Value, name: str, args: Args, kwargs: Kwargs) -> Value:
        """A method of a built-in kind that has no rule: an operator, a polyfill, or evaluated if all is constant."""
        interp = self.interpreter
        operator_result = operators.special_method(interp, value, name, args)
        if operator_result is not None:
            return operator_result
        if name == "__iter__":
            return self.iterator(value)
        if name in ("__init__", "__class_getitem__"):
            return NONE
        method = getattr(value.python_type(), name, None)
        if method is None:
            self.raise_new(AttributeError, f"{value.python_type().__name__!r} object has no attribute {name!r}")
        replacement = known_callables.polyfill(method)
        if replacement is not None:
            return interp.inline(self.tracer.function(replacement), [value, *args], kwargs)
        if isinstance(method, types.FunctionType):
            return interp.inline(self.tracer.function(method), [value, *args], kwargs)
        return self.fold(method, [value, *args], kwargs)

    def decorate_with(self, context: Value, function: Value) -> Value:
        """`context(function)`: the function run inside the context manager."""
        return self.interpreter.inline(self.stand_in("decorate_with"), [context, function], {})

    def stand_in(self, name: str) -> FunctionValue:
        """A Python stand-in that has a name of its own."""
        return self.tracer.function(known_callables.polyfill(name))

    def method(self, value: Value, name: str) -> Value:
        """An attribute of a built-in kind: a method, bound, or a constant; AttributeError if its class has none."""
        kind = value.python_type()
        if name == "__class__":
            return self.tracer.known(kind)
        entry, _ = class_lookup(kind, name)  # not getattr: what only `type` has is none of an instance's
        if entry is MISSING:
            self.raise_new(AttributeError, f"{kind.__name__!r} object has no attribute {name!r}")
        if entry is None or isinstance(entry, str):
            return ConstantValue(entry)
        if not callable(entry) and not isinstance(entry, (classmethod, staticmethod)):
            raise Break("unsupported-attribute", f"{name} of {value.describe()} is read")
        return MethodValue(value, name)

    # -- attributes and kinds -----------------------------------------------------

    def has_attr(self, value: Value, name: str) -> bool:
        """`hasattr(value, name)`."""
        return self.attempt(AttributeError, value.realize().get_attr, self.interpreter, name) is not None

    def is_instance(self, value: Value, classes: Any) -> bool:
        """`isinstance(value, classes)` for real classes."""
        return issubclass(value.realize().python_type(), classes)

    def same_or_equal(self, first: Value, second: Value) -> bool:
        """What `in` and `index` test: identity, then equality."""
        first, second = first.realize(), second.realize()
        if not isinstance(first, SizeValue) and not isinstance(second, SizeValue):  # whose identity is its number
            literals = isinstance(first, ConstantValue) and isinstance(second, ConstantValue)
            same = literals and first.identity() == second.identity()
            if same or operators.identical(self.interpreter, first, second):
                return True
        return operators.compare(self.interpreter, "==", first, second).realize().truth(self.interpreter)

    # -- iteration ----------------------------------------------------------------

    def iterate(self, value: Value) -> Iterator[Value]:
        """Elements as `for` sees them."""
        return value.realize().iterate(self.interpreter)

    def iterator(self, value: Value) -> Value:
        """`iter(value)`."""
        value = value.realize()
        if isinstance(value, (IteratorValue, GeneratorValue)):
            return value
        if isinstance(value, ObjectValue):
            entry, _ = self.lookup(value.cls, "__iter__")
            if isinstance(entry, types.FunctionType):
                result = self.tracer.function(entry).call(self.interpreter, [value], {}).realize()
                if not hasattr(result.python_type(), "__next__"):
                    self.raise_new(TypeError, f"iter() returned non-iterator of type {result.python_type().__name__!r}")
                return result
        if type(value) is ListValue:
            return of_list(value)
        return IteratorValue(value.iterate(self.interpreter), type(iter(())))

    def next_of(self, value: Value) -> Value:
        """`next(value)`; raises the user's StopIteration at the end."""
        value = value.realize()
        if isinstance(value, IteratorValue):
            try:
                return next(value.items)
            except StopIteration:
                self.raise_new(StopIteration)
            except RuntimeError as error:
                self.raise_real(error)
        return value.call_method(self.interpreter, "__next__", [], {})

    def next_or_none(self, value: Value) -> Value | None:
        """The same; None at the end."""
        return self.attempt(StopIteration, self.next_of, value)

    def iterate_next(self, value: Value) -> Iterator[Value]:
        """Elements by `__next__`."""
        while (item := self.next_or_none(value)) is not None:
            yield item

    def sorted_items(self, items: Sequence[Value], key: Value | None, reverse: Value | None) -> list[Value]:
        """A stable sort by the user's order."""
        interp, plain = self.interpreter, key is None or is_none(key)

        class Key:
            def __init__(self, item: Value) -> None:
                self.value = item if plain or key is None else interp.call(key, item)

            def __lt__(self, other: Key) -> bool:
                return operators.compare(interp, "<", self.value, other.value).realize().truth(interp)

        return sorted(items, key=Key, reverse=self.flag(reverse, False))

    # -- text ---------------------------------------------------------------------

    def formatted(self, value: Value, conversion: str, spec: str) -> Value:
        """`f"{value!conversion:spec}"`."""
        value = value.realize()
        if isinstance(value, TensorValue) and not conversion and not value.fake.dim():
            value = read(self.interpreter, value) or value
        if is_open(value):
            return text_of(self.interpreter, value, conversion, spec)
        if isinstance(value, ObjectValue) and value.is_constant():
            text: Any = value.as_constant()
        elif isinstance(value, ObjectValue):
            return self._formatted_object(value, conversion, spec)
        else:
            text = value.as_constant() if value.is_constant() else operators.host_text(self.interpreter, value)
        with self.raising(TypeError, ValueError):
            return ConstantValue(shown(text, conversion, spec))

    def _formatted_object(self, value: ObjectValue, conversion: str, spec: str) -> Value:
        names: dict[str, tuple[str, ...]] = {
            "r": ("__repr__",), "s": ("__str__", "__repr__"), "a": ("__repr__",),
            "": ("__format__", "__str__", "__repr__"),
        }  # fmt: skip
        for name in names[conversion]:
            entry, _ = self.lookup(value.cls, name)
            if entry is not MISSING and isinstance(entry, types.FunctionType):
                args = [ConstantValue(spec)] if name == "__format__" else []
                use = partial(shown, conversion=conversion, spec=spec)
                text = converted(self.interpreter, value, name, use, args)
                return text if text.is_constant() else self.formatted(text, "", spec)
        if value.storage is not None:
            return self.formatted(value.storage, conversion, spec)
        if isinstance(value, ExceptionValue):
            base = next(cls for cls in value.cls.__mro__ if cls.__module__ == "builtins")
            parts = [operators.host_text(self.interpreter, arg) for arg in value.args]
            words = str(base(*parts))
            if conversion == "r":
                words = repr(base(*parts)).replace(base.__name__, value.cls.__name__, 1)
            return ConstantValue(format(words, spec))
        raise Break("unsupported-operation", f"text of {value.describe()}")
