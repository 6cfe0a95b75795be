"""Rules of iterators, those of itertools among them: the real ones, over values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.interpreter import operators
from firebrick.capture.library.known_callables import handles
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value, ValueEmitter
from firebrick.capture.values.constant import NONE, ConstantValue, is_none
from firebrick.capture.values.iterator import IteratorValue
from firebrick.capture.values.sequence import TupleValue


class _Key:
    """A key of `groupby`, compared as the program does."""

    def __init__(self, interp: Interpreter, value: Value) -> None:
        self.interp, self.value = interp, value

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.interp.same_or_equal(self.value, other.value)


def _items(interp: Interpreter, over: Value) -> Iterator[Value]:
    return interp.iterate_next(interp.iterator(over))


def _called(interp: Interpreter, function: Value) -> Callable[..., Value]:
    return lambda *args: interp.call(function, *args).realize()


def _truth(interp: Interpreter, test: Value) -> Callable[[Value], bool]:
    called = (lambda item: item.realize()) if is_none(test) else _called(interp, test)
    return lambda item: called(item).truth(interp)


def _joined(interp: Interpreter, overs: Any) -> Iterator[Value]:
    for over in overs:
        yield from _items(interp, over)


def _accumulate(interp: Interpreter, over: Value, function: Value = NONE, *, initial: Value = NONE) -> Any:
    add = partial(operators.binary, interp, "+") if is_none(function) else _called(interp, function)
    return itertools.accumulate(_items(interp, over), add, initial=None if is_none(initial) else initial)


def _groups(interp: Interpreter, over: Value, key: Value = NONE) -> Iterator[Any]:
    called = (lambda item: item) if is_none(key) else _called(interp, key)
    for mark, group in itertools.groupby(_items(interp, over), lambda item: _Key(interp, called(item))):
        yield mark.value, IteratorValue(group, itertools._grouper, _refuse)  # type: ignore[attr-defined]


def _selected(function: Any, interp: Interpreter, over: Value, r: Value = NONE) -> Any:
    count = [] if is_none(r) else [interp.index_of(r)]
    return function(list(_items(interp, over)), *count)


_ONE, _FALSE = ConstantValue(1), ConstantValue(False)
_MADE: Mapping[Any, Callable[..., Any]] = {
    itertools.accumulate: _accumulate,
    itertools.chain: lambda interp, *overs: _joined(interp, overs),
    itertools.chain.from_iterable: lambda interp, overs: _joined(interp, _items(interp, overs)),
    itertools.compress: lambda interp, data, selectors: itertools.compress(
        _items(interp, data), map(_truth(interp, NONE), _items(interp, selectors))
    ),
    itertools.cycle: lambda interp, over: itertools.cycle(_items(interp, over)),
    itertools.dropwhile: lambda interp, test, over: itertools.dropwhile(_truth(interp, test), _items(interp, over)),
    itertools.filterfalse: lambda interp, test, over: itertools.filterfalse(_truth(interp, test), _items(interp, over)),
    itertools.groupby: _groups,
    itertools.islice: lambda interp, over, *span: itertools.islice(
        _items(interp, over), *(None if is_none(place) else interp.index_of(place) for place in span)
    ),
    itertools.pairwise: lambda interp, over: itertools.pairwise(_items(interp, over)),
    itertools.product: lambda interp, *overs, repeat=_ONE: itertools.product(
        *(list(_items(interp, over)) for over in overs), repeat=interp.index_of(repeat)
    ),
    itertools.repeat: lambda interp, item, *times: itertools.repeat(item, *map(interp.index_of, times)),
    itertools.starmap: lambda interp, function, over: itertools.starmap(
        _called(interp, function), (tuple(_items(interp, row)) for row in _items(interp, over))
    ),
    itertools.takewhile: lambda interp, test, over: itertools.takewhile(_truth(interp, test), _items(interp, over)),
    itertools.zip_longest: lambda interp, *overs, fillvalue=NONE: itertools.zip_longest(
        *(_items(interp, over) for over in overs), fillvalue=fillvalue
    ),
    **{
        one: partial(_selected, one)
        for one in (itertools.combinations, itertools.combinations_with_replacement, itertools.permutations)
    },
}
"""What is called -> what makes a host iterator over values, or over tuples of them."""
if hasattr(itertools, "batched"):
    _BATCHED: Any = itertools.batched
    _MADE[_BATCHED] = lambda interp, over, n, *, strict=_FALSE: (  # type: ignore[index]
        _BATCHED(_items(interp, over), interp.index_of(n), **({"strict": True} if strict.truth(interp) else {}))
    )


def _zipped(interp: Interpreter, rows: Iterator[Any]) -> Iterator[Any]:
    with interp.raising(ValueError):  # one was shorter
        yield from rows


def _refuse(emitter: ValueEmitter) -> NoReturn:
    raise Break("generator-escapes", "an iterator of itertools")


def _value(item: Any) -> Value:
    return item if isinstance(item, Value) else TupleValue(list(item))


def _make(function: Any, make: Callable[..., Any], interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    kind = function if isinstance(function, type) else itertools.chain
    with interp.raising(TypeError, ValueError):
        return IteratorValue(map(_value, make(interp, *args, **kwargs)), kind, _refuse)


for _function, _maker in _MADE.items():
    handles(_function)(partial(_make, _function, _maker))


@handles(itertools.tee)
def _tee(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    count = interp.index_of(args[1]) if len(args) > 1 else 2
    branches = itertools.tee(_items(interp, args[0]), count)
    return TupleValue([IteratorValue(branch, type(branch), _refuse) for branch in branches])


# -- those that can be made again ---------------------------------------------------------------


def _remade(function: Any, taken: int, make: Callable[..., Any]) -> None:
    """A rule for what takes iterables behind its first `taken` arguments, and goes on with their iterators."""

    @handles(function)
    def rule(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        iterators = [interp.iterator(arg) for arg in args[taken:]]
        items = make(interp, *args[:taken], *map(interp.iterate_next, iterators), **kwargs)
        again = (*args[:taken], *iterators, *kwargs.values())
        remake: Any = lambda emitter: emitter.load_call(function, *again, keywords=tuple(kwargs))  # noqa: E731
        return IteratorValue(map(_value, items), function, remake)


_remade(
    zip, 0, lambda interp, *overs, strict=_FALSE: _zipped(interp, zip(*overs, strict=strict.realize().truth(interp)))
)
_remade(map, 1, lambda interp, function, *overs: map(_called(interp, function), *overs))
_remade(filter, 1, lambda interp, test, over: filter(_truth(interp, test), over))


@handles(enumerate)
def _enumerate(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    source = interp.iterator(args[0] if args else kwargs["iterable"])
    start = args[1] if len(args) > 1 else kwargs.get("start")
    index = 0 if start is None else interp.index_of(start)

    def items() -> Iterator[Value]:
        nonlocal index
        for item in interp.iterate_next(source):
            index += 1
            yield TupleValue([ConstantValue(index - 1), item])

    return IteratorValue(items(), enumerate, lambda emitter: emitter.load_call(enumerate, source, index))


@handles(itertools.count)
def _count(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0] if args else kwargs.get("start", ConstantValue(0))
    step = args[1] if len(args) > 1 else kwargs.get("step", ConstantValue(1))

    def items() -> Iterator[Value]:
        nonlocal value
        while True:
            before, value = value, operators.binary(interp, "+", value, step)
            yield before

    return IteratorValue(items(), itertools.count, lambda emitter: emitter.load_call(itertools.count, value, step))
