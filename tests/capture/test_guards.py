"""Guards of one value, of several and of torch's state: natively evaluated, exact, explained in the user's terms."""

import collections
import enum
import math
import types

import pytest
import torch
from plans import Plain, X, Y, agree, frame, plan, two
from torch._functorch import eager_transforms
from torch.autograd import forward_ad

from firebrick import _native
from firebrick.capture.guards import sources as s
from firebrick.capture.guards.guard_kinds import KINDS, Guard, id_guard, state_guard, tensor_guard
from firebrick.capture.guards.guard_plan import build_plan
from firebrick.capture.guards.size_conditions import program, shape_text
from firebrick.capture.guards.torch_state import STATE_KINDS, state_text, state_value


class Color(enum.Enum):
    RED = 1


# ---- constants -----------------------------------------------------------------

CONSTANTS = [
    0,
    1,
    2**80,
    True,
    False,
    None,
    0.0,
    -0.0,
    1.0,
    math.nan,
    math.inf,
    1j,
    complex(0.0, -0.0),
    "a",
    "b",
    "",
    b"a",
    ...,
    (),
    (1,),
    (1.0,),
    (True,),
    (1, (2, "a")),
    (1, (2, b"a")),
    slice(1),
    slice(1, 2, None),
    range(3),
    range(0, 3, 2),
    range(0),
    range(5, 5),
    frozenset(),
    frozenset({1}),
    frozenset({1.0}),
    frozenset({"a", 2}),
    Color.RED,
    torch.float32,
    torch.float64,
    torch.device("cpu"),
    torch.device("cuda", 1),
    torch.Size([2, 3]),
    (2, 3),
    torch.strided,
    int,
    len,
    NotImplemented,
]


@pytest.mark.parametrize("wanted", CONSTANTS, ids=repr)
def test_constants_equal_only_themselves(wanted):
    made = plan(Guard("EQUALS", X, wanted))
    for index, value in enumerate(CONSTANTS):
        assert made.check(frame(value)) is (wanted is CONSTANTS[index]), (wanted, value)


def test_equal_constants_that_are_other_objects():
    pairs = [
        (2**80, 2**79 * 2),
        ("a b", "a" + " b"),
        (math.nan, float("nan")),
        ((1, 2.5), tuple([1, 2.5])),
        (torch.Size([2]), torch.Size([2])),
    ]
    for one, other in pairs:
        assert plan(Guard("EQUALS", X, one)).check(frame(other))
    assert not plan(Guard("EQUALS", X, Plain())).check(frame(Plain()))


def test_guards_that_say_the_same_are_kept_once():
    made = plan(*(Guard("EQUALS", X, value) for value in (1, True, 1.0, 1, (1,), (True,), slice(1), slice(1))))
    assert [guard.payload for guard in made.guards] == [1, True, 1.0, (1,), (True,), slice(1)]
    assert made.show()[0] == "guard x == 1"


# ---- one row a kind --------------------------------------------------------------


def raising_property():
    class Holder:
        @property
        def value(self):
            raise ValueError

    return Holder()


NUMBERS, OTHERS = {"a": 1, "b": 2}, {"b": 2, "a": 1}
ROWS = {
    "TYPE": (id_guard(X, dict, "TYPE"), {}, [None, [], collections.OrderedDict()], "type(x) was dict, now"),
    "ID": (id_guard(X, NUMBERS), NUMBERS, [dict(NUMBERS), None], "x was dict of 2, now"),
    "EQUALS": (Guard("EQUALS", X, 3), 3, [4, 3.0, None], "x was 3, now"),
    "NOT_NONE": (Guard("NOT_NONE", X), 0, [None], "x was not None, now None"),
    "LEN": (Guard("LEN", X, 2), [1, 2], [[1], {1: 2}, "abc", range(3), {1}], "len(x) was 2, now"),
    "DICT_KEYS": (Guard("DICT_KEYS", X, ("a", "b")), NUMBERS, [OTHERS, {"a": 1}, {}], "list(x) was ['a', 'b'], now"),
    "HAS_KEY": (Guard("HAS_KEY", X, "a"), {"a": 0}, [{}, set(), {"A": 1}], "'a' was in x, now it is not"),
    "LACKS_KEY": (Guard("LACKS_KEY", X, "a"), {}, [{"a": 0}, {"a"}], "'a' was not in x, now it is"),
    "HAS_ATTR": (
        Guard("HAS_ATTR", X, "append"),
        [],
        [(), raising_property()],
        "x had an attribute append, now it has not",
    ),
    "LACKS_ATTR": (Guard("LACKS_ATTR", X, "append"), (), [[]], "x had no attribute append, now it has"),
    "TENSOR": (tensor_guard(X, torch.ones(2)), torch.zeros(2), [torch.ones(3), None, 1], "x"),
    "REQUIRES_GRAD": (
        Guard("REQUIRES_GRAD", X, True),
        torch.ones(1, requires_grad=True),
        [torch.ones(1), None],
        "x.requires_grad",
    ),
    "CODE": (
        id_guard(X, two.__code__, "CODE"),
        types.FunctionType(two.__code__, {}),
        [frame, len, None],
        "x.__code__ was",
    ),
    "LACKS_ENTRY": (
        Guard("LACKS_ENTRY", X, "append"),
        dict,
        [list, type("Sub", (list,), {}), 3],
        "x had no append, now",
    ),
    "PRESENT": (Guard("PRESENT", s.Item(X, 0)), [1], [[], (), 3, None], "x[0] is gone"),
    "SAME": (Guard("SAME", X, Y), None, [1], "x was y, now they differ"),
    "DISTINCT": (Guard("DISTINCT", None, (X, Y)), 1, [None], "x and y were two objects, now they are one"),
    "SHAPE": (Guard("SHAPE", None, ("<", ("int", X), 3)), 2, [3, "a", 2**70], "x"),
}


@pytest.mark.parametrize("kind", ROWS)
def test_kind(kind):
    guard, good, bad, text = ROWS[kind]
    assert guard.kind == kind
    made = plan(guard)
    assert agree(made, frame(good))
    for value in bad:
        view = frame(value)
        assert not made.check(view)
        assert text in made.explain_failure(view), made.explain_failure(view)
        assert made.check(frame(good))
    assert made.show() == [f"guard {guard}"]
    assert "0x" not in str(guard)


def test_prints_say_what_is_global():
    made = build_plan([id_guard(s.Global("len"), len), Guard("EQUALS", s.Attr(s.Global("m"), "x"), 1)], two.__code__)
    assert made.show() == ["guard global len is len", "guard global m.x == 1"]


def test_every_kind_has_a_row():
    assert set(KINDS) == set(ROWS) | set(STATE_KINDS) | {"NO_OVERLAP"}
    assert all(kind.doc.endswith(".") for kind in KINDS.values())


# ---- several values -------------------------------------------------------------------


def test_same_and_distinct():
    a, b = torch.ones(1), torch.ones(1)
    assert agree(plan(Guard("SAME", X, Y)), frame(a, a))
    assert not agree(plan(Guard("SAME", X, Y)), frame(a, b))
    assert not agree(plan(Guard("SAME", Y, X)), frame(a, b))
    items = [s.Item(X, i) for i in range(40)]
    made = plan(id_guard(X, list, "TYPE"), Guard("DISTINCT", None, tuple(items)))
    values = [torch.ones(1) for _ in range(40)]
    assert agree(made, frame(values))
    values[37] = values[2]
    assert not agree(made, frame(values))
    assert made.explain_failure(frame(values)) == "x[2] and x[37] were two objects, now they are one"


def test_same_between_items_of_unchanged_dicts():
    one, other = Plain(), Plain()
    x, y = {"k": one}, {"k": one}
    made = plan(Guard("SAME", s.BuiltinItem(X, "k"), s.BuiltinItem(Y, "k")))
    for _ in range(3):
        assert agree(made, frame(x, y))
        y["k"] = other
        assert not agree(made, frame(x, y))
        y["k"] = one


def test_no_overlap():
    base = torch.ones(4, 4)
    made = plan(Guard("NO_OVERLAP", None, (X, Y)))
    assert agree(made, frame(base[:2], base[2:]))
    assert not agree(made, frame(base[:3], base[2:]))
    assert made.explain_failure(frame(base, base.t())) == "x and y shared no memory, now they do"
    assert agree(made, frame(base[:0], base))
    assert not made.check(frame(1, 2))


def test_no_overlap_of_many():
    base = torch.ones(400)
    places = tuple(s.Item(X, k) for k in range(40))
    made, apart = plan(Guard("NO_OVERLAP", None, places)), [base[10 * k : 10 * k + 10] for k in range(40)]
    assert agree(made, frame(apart)) and agree(made, frame(apart[::-1]))
    assert agree(made, frame([*apart[:7], base[75:75], *apart[8:]]))
    for k, begin, end in ((0, 0, 11), (39, 389, 400), (20, 200, 211), (3, 0, 400)):
        assert not agree(made, frame([*apart[:k], base[begin:end], *apart[k + 1 :]]))


SHAPES = [
    (("==", ("size", X, 0), ("size", Y, 1)), "x.shape[0] == y.shape[1]"),
    (("==", ("%", ("size", X, 0), 8), 0), "x.shape[0] % 8 == 0"),
    (("<=", 2, ("*", ("+", ("size", X, 0), 1), ("stride", Y, 0))), "2 <= (x.shape[0] + 1) * y.stride(0)"),
    (
        ("and", ("<", ("offset", X), 5), ("not", ("!=", ("size", X, 1), 3))),
        "x.storage_offset() < 5 and not x.shape[1] != 3",
    ),
    (("==", ("//", ("-", 3, ("size", X, 0)), 2), -3), "(3 - x.shape[0]) // 2 == -3"),
    (("==", ("%", ("-", 3, ("size", X, 0)), -4), -1), "(3 - x.shape[0]) % -4 == -1"),
    (
        ("or", ("==", ("min", ("size", X, 0), 4), 4), ("==", ("max", ("size", Y, 0), 9), 9)),
        "min(x.shape[0], 4) == 4 or max(y.shape[0], 9) == 9",
    ),
    (
        ("==", ("//", ("size", X, 0), ("-", ("size", Y, 0), ("size", Y, 0))), 0),
        "x.shape[0] // (y.shape[0] - y.shape[0]) == 0",
    ),
]


@pytest.mark.parametrize(("shape", "text"), SHAPES, ids=[text for _, text in SHAPES])
def test_shapes(shape, text):
    made = plan(Guard("SHAPE", None, shape))
    assert shape_text(shape) == text == str(made.guards[0])
    outcomes = set()
    for x in ((8, 3), (16, 3), (3, 3), (2, 1), (8, 2), (0, 0)):
        for y in ((8, 8), (2, 16), (1, 3), (12, 1)):
            view = frame(torch.empty(x), torch.empty(y))
            try:
                expected = bool(eval(text, {"x": view.locals["x"], "y": view.locals["y"]}))
            except ZeroDivisionError:
                expected = False
            assert made.check(view) is expected
            outcomes.add(expected)
            if not expected and "//" not in text:
                assert made.explain_failure(view).startswith(f"{text} was true, now ")
    assert False in outcomes
    assert not made.check(frame(1, 2))


def test_shapes_of_integers_and_overflow():
    made = plan(Guard("SHAPE", None, ("==", ("*", ("int", X), ("int", X)), ("int", Y))))
    assert agree(made, frame(3, 9))
    assert not agree(made, frame(3, 10))
    assert not made.check(frame(2**40, 2**80))
    assert not made.check(frame(True, 1))
    assert program(("<", 1, 2)) == ([], (0, 1, 0, 0, 2, 0, _native.SHAPE_OPS["LT"], 0, 0))
    with pytest.raises(ValueError, match="malformed"):
        _native.GuardPlan([], [], [], [(_native.GROUPS["SHAPE"], (), (_native.SHAPE_OPS["ADD"], 0, 0))])


# ---- global state ------------------------------------------------------------------------


def modes():
    return {
        "GRAD_MODE": [torch.no_grad, lambda: torch.set_grad_enabled(False)],
        "INFERENCE_MODE": [torch.inference_mode],
        "AUTOCAST": [
            lambda: torch.autocast("cpu"),
            lambda: torch.autocast("cpu", dtype=torch.float16),
            lambda: torch.autocast("cpu", cache_enabled=False),
        ],
        "TORCH_FUNCTION": [
            torch._C.DisableTorchFunction,
            torch._C.DisableTorchFunctionSubclass,
            lambda: torch.device("meta"),
        ],
        "TRANSFORMS": [forward_ad.dual_level, eager_transforms.grad_increment_nesting],
    }


@pytest.mark.parametrize("kind", STATE_KINDS)
def test_state(kind):
    made = plan(state_guard(kind))
    number = _native.STATES[kind]
    texts = {made.show()[0]}
    seen = {state_value(kind)}
    assert agree(made, frame())
    for mode in modes().get(kind, []):
        with mode():
            assert _native.state_read(number, True) == _native.state_read(number, False)
            assert not made.check(frame())
            assert "now" in made.explain_failure(frame())
            inside = plan(state_guard(kind))
            assert agree(inside, frame())
            texts.add(inside.show()[0])
            seen.add(state_value(kind))
        assert made.check(frame())
        assert not inside.check(frame())
    assert len(texts) == len(seen)


def test_state_of_default_dtype_and_determinism():
    for kind, switch, back in (
        (
            "DEFAULT_DTYPE",
            lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_default_dtype(torch.float32),
        ),
        (
            "DETERMINISTIC",
            lambda: torch.use_deterministic_algorithms(True),
            lambda: torch.use_deterministic_algorithms(False),
        ),
        (
            "DETERMINISTIC",
            lambda: torch.use_deterministic_algorithms(True, warn_only=True),
            lambda: torch.use_deterministic_algorithms(False),
        ),
    ):
        made, number = plan(state_guard(kind)), _native.STATES[kind]
        switch()
        try:
            assert not made.check(frame())
            assert _native.state_read(number, True) == _native.state_read(number, False)
            text = made.explain_failure(frame())
        finally:
            back()
        assert made.check(frame())
        assert {"DEFAULT_DTYPE": "torch.float64", "DETERMINISTIC": "on"}[kind] in text
    assert state_text("AUTOCAST", 0) == "off"
