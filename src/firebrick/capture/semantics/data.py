"""Instructions that compute: operators, subscripts, containers, unpacking, text, `match`, functions, calls."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Callable
from typing import Any

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.breaks.continuation import MISSING
from firebrick.capture.bytecode.cpython import HAS_FUNCTION_ATTRIBUTES
from firebrick.capture.bytecode.instructions import Instruction
from firebrick.capture.bytecode.opcodes import INTRINSICS_1, INTRINSICS_2
from firebrick.capture.interpreter import operators
from firebrick.capture.semantics.control import reraise_star
from firebrick.capture.semantics.dispatch import HANDLERS, Handler, executes
from firebrick.capture.values.base import NULL, Interpreter, LazyValue, Value
from firebrick.capture.values.constant import NONE, ConstantValue
from firebrick.capture.values.function import FunctionValue
from firebrick.capture.values.mapping import DictValue, SetValue, key_of
from firebrick.capture.values.scalar import is_open, joined, negated, truth_of
from firebrick.capture.values.sequence import ListValue, SliceValue, TupleValue
from firebrick.capture.values.tensor import TensorValue, TruthValue

# -- operators ------------------------------------------------------------------------


def _truth(interp: Interpreter, value: Value) -> Value:
    return TruthValue(value) if isinstance(value, TensorValue) else truth_of(interp, value)


@executes("COMPARE_OP")
def _compare_op(interp: Interpreter, at: Instruction) -> None:
    left, right = interp.pop_two()
    result = operators.compare(interp, at.argval, left, right)
    interp.push(_truth(interp, result.realize()) if at.flag else result)


@executes("IS_OP")
def _is_op(interp: Interpreter, at: Instruction) -> None:
    left = interp.stack[-2]
    if isinstance(left, LazyValue) and getattr(interp.stack[-1], "obj", None) is MISSING:
        assert left.source is not None
        interp.tracer.guards.type(left.source, type(left.obj))  # a bound local may have any value of its class
        del interp.stack[-2:]
        interp.push(ConstantValue((left.obj is MISSING) is not bool(at.arg)))
        return
    left, right = interp.pop_two()
    interp.push(ConstantValue(operators.identical(interp, left, right) is not bool(at.arg)))


# -- containers --------------------------------------------------------------------------


@executes("BUILD_MAP", "BUILD_CONST_KEY_MAP")
def _build_map(interp: Interpreter, at: Instruction) -> None:
    keys = [*map(interp.tracer.known, interp.pop().as_constant())] if at.opname != "BUILD_MAP" else []
    items = interp.pop_many(at.arg if keys else 2 * at.arg)
    mapping = DictValue({})
    for key, item in zip(keys, items, strict=True) if keys else zip(items[::2], items[1::2], strict=True):
        mapping.put(interp, mapping.entries, key, item)
    interp.push(mapping)


def _put(interp: Interpreter, at: Instruction, method: str, item: Value) -> None:
    """Hand an item that was popped to a method of the container that is `at.arg` items deep."""
    interp.stack[-at.arg].realize().call_method(interp, method, [item], {})


@executes("DICT_UPDATE")
def _dict_update(interp: Interpreter, at: Instruction) -> None:
    items = interp.pop()
    if not interp.has_attr(items, "keys"):
        interp.raise_new(TypeError, f"{items.realize().python_type().__name__!r} object is not a mapping")
    _put(interp, at, "update", items)


@executes("DICT_MERGE")
def _dict_merge(interp: Interpreter, at: Instruction) -> None:
    items = interp.pop()
    target = interp.stack[-at.arg].realize()
    assert isinstance(target, DictValue)
    for key in list(interp.iterate(items)):
        if target.entries.get(key_of(key, interp)) is not None:
            interp.raise_new(TypeError, f"got multiple values for keyword argument {key.realize().as_constant()!r}")
        target.set_item(interp, key, items.get_item(interp, key))


# -- unpacking -----------------------------------------------------------------------------


@executes("UNPACK_SEQUENCE")
def _unpack_sequence(interp: Interpreter, at: Instruction) -> None:
    items = _take(interp, interp.pop(), at.arg + 1)
    if len(items) < at.arg:
        interp.raise_new(ValueError, f"not enough values to unpack (expected {at.arg}, got {len(items)})")
    if len(items) > at.arg:
        interp.raise_new(ValueError, f"too many values to unpack (expected {at.arg})")
    interp.stack.extend(reversed(items))


def _take(interp: Interpreter, value: Value, count: int) -> list[Value]:
    if value.python_type() in (int, float, bool, type(None)):
        interp.raise_new(TypeError, f"cannot unpack non-iterable {value.python_type().__name__} object")
    return list(itertools.islice(interp.iterate(value), count))


@executes("UNPACK_EX")
def _unpack_ex(interp: Interpreter, at: Instruction) -> None:
    before, after = at.arg & 0xFF, at.arg >> 8
    items = list(interp.iterate(interp.pop()))
    if len(items) < before + after:
        text = f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        interp.raise_new(ValueError, text)
    middle = len(items) - after
    interp.stack.extend([*items[:before], ListValue(items[before:middle]), *items[middle:]][::-1])


# -- text ------------------------------------------------------------------------------------

_CONVERSIONS = ("", "s", "r", "a")


def _format(interp: Interpreter, conversion: str, *, has_spec: bool = False) -> None:
    spec = interp.pop().as_constant() if has_spec else ""
    interp.push(interp.formatted(interp.pop(), conversion, spec))


# -- functions and calls ---------------------------------------------------------------------


@executes("MAKE_FUNCTION")
def _make_function(interp: Interpreter, at: Instruction) -> None:
    code = interp.pop().as_constant()
    flags = 0 if HAS_FUNCTION_ATTRIBUTES else at.arg
    parts = {bit: interp.pop() for bit in (8, 4, 2, 1) if flags & bit}
    function = FunctionValue(code, interp.globals)
    for bit, part in parts.items():
        _function_part(interp, function, bit, part)
    interp.push(function)


@executes("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(interp: Interpreter, at: Instruction) -> None:
    function = interp.pop()
    assert isinstance(function, FunctionValue)
    _function_part(interp, function, at.arg, interp.pop())
    interp.push(function)


def _function_part(interp: Interpreter, function: FunctionValue, bit: int, part: Value) -> None:
    if bit == 1:
        function.defaults = list(interp.iterate(part))
    elif bit == 2:
        function.kwdefaults = {key.realize().as_constant(): part.get_item(interp, key) for key in interp.iterate(part)}
    elif bit == 8:
        function.closure = list(interp.iterate(part))  # type: ignore[arg-type]
    else:
        function.annotations = part


@executes("KW_NAMES")
def _kw_names(interp: Interpreter, at: Instruction) -> None:
    interp.keywords = at.argval if isinstance(at.argval, tuple) else interp.code.co_consts[at.arg]


@executes("CALL_KW")
def _call_kw(interp: Interpreter, at: Instruction) -> None:
    interp.keywords = interp.pop().as_constant()
    interp.call_on_stack(at.arg)


@executes("CALL_FUNCTION_EX")
def _call_function_ex(interp: Interpreter, at: Instruction) -> None:
    kwargs: dict[str, Value] = {}
    if at.arg & 1:
        mapping = interp.pop()
        for key in list(interp.iterate(mapping)):
            name: Any = key.realize().as_constant()
            if not isinstance(name, str):
                interp.raise_new(TypeError, "keywords must be strings")
            kwargs[name] = mapping.get_item(interp, key)
    args = list(interp.iterate(interp.pop()))
    first, second = interp.stack.pop(), interp.stack.pop()
    interp.called = interp.current, (second if first is NULL else first).realize()
    interp.push(interp.called[1].call(interp, args, kwargs))


@executes("CALL_INTRINSIC_1")
def _intrinsic(interp: Interpreter, at: Instruction) -> None:
    name = INTRINSICS_1[at.arg].removeprefix("INTRINSIC_")
    if name in ("LIST_TO_TUPLE", "UNARY_POSITIVE"):  # instructions of their own, once
        HANDLERS[name](interp, at)
    elif name != "STOPITERATION_ERROR":
        raise Break("unsupported-instruction", f"{name} of CALL_INTRINSIC_1")


@executes("CALL_INTRINSIC_2")
def _intrinsic_2(interp: Interpreter, at: Instruction) -> None:
    name = INTRINSICS_2[at.arg].removeprefix("INTRINSIC_")
    if name != "PREP_RERAISE_STAR":
        raise Break("unsupported-instruction", f"{name} of CALL_INTRINSIC_2")
    reraise_star(interp)


# -- match -------------------------------------------------------------------------------------


@executes("MATCH_KEYS")
def _match_keys(interp: Interpreter, at: Instruction) -> None:
    keys, subject = interp.stack[-1].realize(), interp.stack[-2].realize()
    items: list[Value] = []
    for key in interp.iterate(keys):
        if not operators.contains(interp, subject, key):
            interp.push(NONE)
            return
        items.append(subject.get_item(interp, key))
    interp.push(TupleValue(items))


@executes("MATCH_CLASS")
def _match_class(interp: Interpreter, at: Instruction) -> None:
    names, cls, subject = interp.pop().as_constant(), interp.pop().as_constant(), interp.pop()
    if not interp.is_instance(subject, cls):
        interp.push(NONE)
        return
    attributes: list[Value] = []
    positional = at.arg
    if positional:
        fields = getattr(cls, "__match_args__", None)
        if fields is None and positional == 1:
            attributes.append(subject)
            fields, positional = (), 0
        names = (*(fields or ())[:positional], *names)
    for name in names:
        if not interp.has_attr(subject, name):
            interp.push(NONE)
            return
        attributes.append(subject.get_attr(interp, name))
    interp.push(TupleValue(attributes))


def _string(interp: Interpreter, parts: list[Value]) -> Value:
    if any(is_open(part.realize()) for part in parts):
        return joined(parts)
    return interp.fold(lambda *texts: "".join(texts), parts, {})


def _has_flag(interp: Interpreter, bit: int) -> Value:
    """What Py_TPFLAGS_SEQUENCE or Py_TPFLAGS_MAPPING is of the class of the value on top."""
    return ConstantValue(bool(interp.stack[-1].realize().python_type().__flags__ & (1 << bit)))


def _on(count: int, use: Callable[..., Value | None], raw: int = 0) -> Handler:
    """A handler that takes operands, looks at all but the first `raw`, and pushes what `use` gives."""

    def handler(interp: Interpreter, at: Instruction) -> None:
        operands = interp.pop_many(count)
        result = use(interp, at, *operands[:raw], *[operand.realize() for operand in operands[raw:]])
        if result is not None:
            interp.push(result)

    return handler


HANDLERS.update(
    {
        "BINARY_SUBSCR": _on(2, lambda interp, at, owner, key: owner.get_item(interp, key)),
        "STORE_SUBSCR": _on(3, lambda interp, at, value, owner, key: owner.set_item(interp, key, value), 1),
        "DELETE_SUBSCR": _on(2, lambda interp, at, owner, key: owner.del_item(interp, key)),
        "BINARY_SLICE": _on(3, lambda interp, at, owner, *span: owner.get_item(interp, SliceValue(*span))),
        "STORE_SLICE": _on(4, lambda interp, at, item, to, *span: to.set_item(interp, SliceValue(*span), item), 1),
        "CONTAINS_OP": _on(
            2,
            lambda interp, at, item, held: ConstantValue(operators.contains(interp, held, item) is not bool(at.arg)),
        ),
        "BUILD_SLICE": lambda interp, at: interp.push(SliceValue(*interp.pop_many(at.arg))),  # type: ignore[arg-type]
        "MAP_ADD": _on(2, lambda interp, at, key, item: interp.stack[-at.arg].set_item(interp, key, item), 2),
        "UNARY_NEGATIVE": lambda interp, at: interp.push(operators.unary(interp, "-", interp.pop())),
        "UNARY_POSITIVE": lambda interp, at: interp.push(operators.unary(interp, "+", interp.pop())),
        "UNARY_INVERT": lambda interp, at: interp.push(operators.unary(interp, "~", interp.pop())),
        "UNARY_NOT": lambda interp, at: interp.push(negated(interp, interp.pop())),
        "TO_BOOL": lambda interp, at: interp.push(_truth(interp, interp.pop())),
        "BUILD_TUPLE": lambda interp, at: interp.push(TupleValue(interp.pop_many(at.arg))),
        "BUILD_LIST": lambda interp, at: interp.push(ListValue(interp.pop_many(at.arg))),
        "BUILD_SET": lambda interp, at: interp.push(SetValue.of(interp, iter(interp.pop_many(at.arg)))),
        "LIST_TO_TUPLE": lambda interp, at: interp.push(TupleValue(list(interp.iterate(interp.pop())))),
        "FORMAT_SIMPLE": lambda interp, at: _format(interp, ""),
        "CONVERT_VALUE": lambda interp, at: _format(interp, _CONVERSIONS[at.arg]),
        "BUILD_STRING": lambda interp, at: interp.push(_string(interp, interp.pop_many(at.arg))),
        "CALL": lambda interp, at: interp.call_on_stack(at.arg),
        "GET_LEN": lambda interp, at: interp.push(ConstantValue(interp.stack[-1].realize().length(interp))),
        "BINARY_OP": lambda interp, at: interp.push(operators.binary(interp, at.argval, *interp.pop_two())),
        "LOAD_BUILD_CLASS": lambda interp, at: interp.push(interp.tracer.known(builtins.__build_class__)),
        "FORMAT_VALUE": lambda interp, at: _format(interp, _CONVERSIONS[at.arg & 3], has_spec=bool(at.arg & 4)),
        "FORMAT_WITH_SPEC": lambda interp, at: _format(interp, "", has_spec=True),
        "LIST_APPEND": lambda interp, at: _put(interp, at, "append", interp.stack.pop()),
        "SET_ADD": lambda interp, at: _put(interp, at, "add", interp.stack.pop()),
        "LIST_EXTEND": lambda interp, at: _put(interp, at, "extend", interp.pop()),
        "SET_UPDATE": lambda interp, at: _put(interp, at, "update", interp.pop()),
        "MATCH_SEQUENCE": lambda interp, at: interp.push(_has_flag(interp, 5)),
        "MATCH_MAPPING": lambda interp, at: interp.push(_has_flag(interp, 6)),
    }
)
