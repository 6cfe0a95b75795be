"""Sources: how they print, evaluate and load."""

import collections
import math
import types

import pytest
import torch

from firebrick.capture import hook
from firebrick.capture.guards import sources as s
from firebrick.capture.guards.guard_kinds import Guard, id_guard
from firebrick.capture.guards.guard_plan import build_plan


class Box:
    shared = [7]

    def __init__(self):
        self.x = 3

    def method(self):
        return self.x


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
        self.register_buffer("count", torch.zeros(1))
        self.size = 4


def make(free=5):
    def function(a, *args, b=2, **kwargs):
        return free

    return function


NET, BOX = Net(), Box()
FUNCTION = make()
FRAME = hook.bind(FUNCTION, BOX, (1, [2, 3]), NET, b={"k": 1, 2: "two", 2.5: None}, key=BOX.method, more=FUNCTION)
A, ARGS, B = s.Local("a"), s.Local("args"), s.Local("b")
SELF = s.Item(ARGS, 1)
KEY = s.BuiltinItem(s.Local("kwargs"), "key")
MORE = s.Item(s.Local("kwargs"), "more")
NAMESPACE = s.Namespace("math", vars(math))

ROWS = [
    (A, "a", lambda: BOX),
    (s.Cell("free"), "free", lambda: 5),
    (s.Global("FUNCTION"), "FUNCTION", lambda: FUNCTION),
    (s.Global("pi", NAMESPACE), "math.pi", lambda: math.pi),
    (s.Variables(NAMESPACE), "vars(math)", lambda: vars(math)),
    (s.Builtin("len"), "len", lambda: len),
    (s.Const(BOX, "box"), "box", lambda: BOX),
    (s.Attr(A, "x"), "a.x", lambda: 3),
    (s.InstanceDict(A), "a.__dict__", lambda: BOX.__dict__),
    (s.InstanceAttr(A, "x"), "a.x", lambda: 3),
    (s.Item(s.Item(ARGS, 0), 1), "args[0][1]", lambda: FRAME.locals["args"][0][1]),
    (s.Item(B, "k"), "b['k']", lambda: 1),
    (s.BuiltinItem(B, 2), "b[2]", lambda: "two"),
    (s.DictKey(B, 2), "list(b)[2]", lambda: 2.5),
    (s.Applied(A, s.tensor_of), "a", lambda: None),  # is none
    (s.Applied(A, type, "a number of {0.base}"), "a number of a", lambda: Box),
    (s.TypeOf(A), "type(a)", lambda: Box),
    (s.ClassAttr(s.TypeOf(A), "shared"), "type(a).shared", lambda: Box.shared),
    (
        s.ModuleItem(s.ModuleItem(SELF, "_modules", "layers"), "_modules", "1"),
        "args[1].layers[1]",
        lambda: NET.layers[1],
    ),
    (s.ModuleItem(SELF, "_buffers", "count"), "args[1].count", lambda: NET.count),
    (s.MethodPart(KEY, "__self__"), "kwargs['key'].__self__", lambda: BOX),
    (s.MethodPart(KEY, "__func__"), "kwargs['key'].__func__", lambda: Box.method),
    (s.FunctionPart(MORE, "__code__"), "kwargs['more'].__code__", lambda: FUNCTION.__code__),
    (s.FunctionPart(MORE, "__kwdefaults__"), "kwargs['more'].__kwdefaults__", lambda: FUNCTION.__kwdefaults__),
    (s.FunctionPart(MORE, "__defaults__"), "kwargs['more'].__defaults__", lambda: None),
    (
        s.CellContents(s.Item(s.FunctionPart(MORE, "__closure__"), 0)),
        "kwargs['more'].__closure__[0].cell_contents",
        lambda: 5,
    ),
]
IDS = [text for _, text, _ in ROWS]


def load(source):
    """Follow the steps as bytecode would."""
    value = None
    for kind, argument in source.steps():
        if kind == "fast":
            value = FRAME.locals[argument]
        elif kind == "cell":
            value = FRAME.closure[FRAME.code.co_freevars.index(argument)].cell_contents
        elif kind == "global":
            value = FRAME.globals[argument] if argument in FRAME.globals else FRAME.builtins[argument]
        elif kind == "const":
            value = argument
        elif kind == "attr":
            value = getattr(value, argument)
        elif kind == "item":
            value = value[argument]
        else:
            assert kind == "apply"
            value = argument(value)
    return value


@pytest.mark.parametrize(("source", "text", "value"), ROWS, ids=IDS)
def test_source(source, text, value):
    assert str(source) == text
    assert source.evaluate(FRAME) is value()
    assert load(source) is value()


@pytest.mark.parametrize(("source", "text", "value"), ROWS, ids=IDS)
def test_native_plan_reaches_the_same_value(source, text, value):
    guards = [id_guard(source, value())] if value() is not None else [Guard("EQUALS", source, None)]
    for _ in range(3):
        plan = build_plan(guards, FRAME.code)
        for _ in range(3):
            assert plan.check(FRAME), plan.explain_failure(FRAME)
    other = build_plan([Guard("EQUALS", source, "something else")], FRAME.code)
    assert not other.check(FRAME)
    assert text in other.explain_failure(FRAME)


def test_every_kind_of_source_is_covered():
    kinds = {cls for cls in vars(s).values() if isinstance(cls, type) and issubclass(cls, s.Source)} - {s.Source}
    assert {type(source) for source, _, _ in ROWS} == kinds


def test_equality_and_hash():
    assert s.Item(s.Local("a"), 1) == s.Item(s.Local("a"), 1)
    assert hash(s.Item(s.Local("a"), 1)) == hash(s.Item(s.Local("a"), 1))
    different = [
        s.Item(A, 1),
        s.Item(A, True),
        s.Item(A, 1.0),
        s.BuiltinItem(A, 1),
        s.Item(B, 1),
        s.Attr(A, "x"),
        s.InstanceAttr(A, "x"),
    ]
    assert len(set(different)) == len(different)
    one, two = [1], [1]
    assert s.Const(one, "a") == s.Const(one, "b")
    assert s.Const(one, "a") != s.Const(two, "a")
    assert s.Global("x", s.Namespace("m", {})) != s.Global("x", s.Namespace("m", {}))
    assert s.Global("x", NAMESPACE) == s.Global("x", s.Namespace("other name", vars(math)))


def test_deep_sources_are_cheap_to_hash():
    source = A
    for _ in range(20000):
        source = s.Attr(source, "x")
    assert len({source, s.Attr(source.base, "x")}) == 1
    assert source.root() is A


@pytest.mark.parametrize(
    "source",
    [
        s.Local("nothing"),
        s.Cell("nothing"),
        s.Global("nothing"),
        s.Builtin("nothing"),
        s.Attr(A, "nothing"),
        s.InstanceAttr(A, "shared"),
        s.ClassAttr(s.TypeOf(A), "nothing"),
        s.BuiltinItem(B, "nothing"),
        s.FunctionPart(A, "__code__"),
        s.MethodPart(A, "__self__"),
    ],
    ids=str,
)
def test_what_is_not_there(source):
    with pytest.raises((LookupError, AttributeError)):
        source.evaluate(FRAME)


def test_builtin_that_a_global_hides():
    function = types.FunctionType(make().__code__, {"len": 3}, closure=make().__closure__)
    with pytest.raises(LookupError, match="hides"):
        s.Builtin("len").evaluate(hook.bind(function, 1, b=2))


def test_empty_cells():
    def outer():
        def inner():
            return late

        frame = hook.bind(inner)
        cell = s.Const(inner.__closure__[0], "cell")
        with pytest.raises(LookupError):
            s.Cell("late").evaluate(frame)
        with pytest.raises(LookupError):
            s.CellContents(cell).evaluate(frame)
        late = 1
        return s.Cell("late").evaluate(frame), s.CellContents(cell).evaluate(frame)

    assert outer() == (1, 1)


def test_dict_item_of_a_subclass_ignores_its_own_getitem():
    class Loud(dict):
        def __getitem__(self, key):
            raise AssertionError

    frame = hook.bind(make(), Loud(k=1))
    assert s.BuiltinItem(A, "k").evaluate(frame) == 1
    counts = collections.defaultdict(int, k=2)
    assert s.BuiltinItem(A, "k").evaluate(hook.bind(make(), counts)) == 2
