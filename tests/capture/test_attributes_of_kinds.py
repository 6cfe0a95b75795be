"""Attributes that objects of every kind have, and those that only their classes have, as plain Python sees them."""

import pytest
import torch

import firebrick

BEGINNING = """
import collections, contextlib, dataclasses, enum, functools, itertools, operator, types, weakref
import torch

class Plain:
    def __init__(self):
        self.b = 2
    def method(self):
        return self

class Slots:
    __slots__ = ("q",)

class Color(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Data:
    a: int = 1

Point = collections.namedtuple("Point", "u v")

def count(n):
    yield from range(n)

def named(a, b=2):
    return a

PLAIN = Plain()
"""
KINDS = """
(lambda q: q)|named|Plain()|PLAIN|Plain|PLAIN.method|(1, 2)|[1, 2]|{"a": 1}|{1, 2}|frozenset([1])|"s"|1|None|slice(1, 2)
range(3)|iter([1])|zip([1], [2])|map(named, [1])|enumerate([1])|reversed([1, 2])|count(3)|{"a": 1}.items()
collections.deque([1])|collections.OrderedDict(a=1)|collections.defaultdict(int)|collections.Counter("aab")|Point(1, 2)
Data()|Color.RED|functools.partial(named, 1)|itertools.chain([1], [2])|itertools.count()|x|x.shape|x.dtype|torch.relu
super(Plain, Plain())|types.SimpleNamespace(a=1)|Slots()|ValueError("e")|torch.no_grad()|contextlib.nullcontext()
property(named)|object()|operator.attrgetter("a")|operator.itemgetter(0)|(i for i in [1, 2])|torch.nn.Linear(2, 2)
weakref.ref(PLAIN)
""".strip().replace("\n", "|")
NAMES = (
    "__name__", "__class__", "__call__", "__dict__", "__len__", "__next__", "__mro__", "__bases__", "__self__",
    "__module__", "__code__", "mro", "keys", "send", "start", "nope",
)  # fmt: skip
PROGRAM = """
def read(x):
    made = {kind}
    try:
        found = made.{name}
    except AttributeError:
        return "none", hasattr(made, "{name}"), x + 1
    return found, type(made), x + 1
"""


def shown(value):
    return value if isinstance(value, (str, type, type(None))) else callable(value)


@pytest.mark.parametrize("kind", KINDS.split("|"))
def test_attributes_are_those_of_plain_python(kind):
    for name in NAMES:
        space = {"__name__": "kinds"}
        exec(BEGINNING + PROGRAM.format(kind=kind, name=name), space)
        plain, found = space["read"](torch.ones(2)), firebrick.compile(space["read"], backend="eager")(torch.ones(2))
        assert [shown(v) for v in plain[:2]] == [shown(v) for v in found[:2]], name


def test_stand_ins_are_of_the_class_that_they_stand_for():
    space = {}
    exec(BEGINNING, space)
    kinds = (
        "itertools.chain([1], [2])", "itertools.cycle([1])", "itertools.accumulate([1])", "itertools.islice([1], 1)",
        "itertools.product([1], [2])", "itertools.groupby([1])", "itertools.starmap(len, [])", "itertools.repeat(1)",
        "operator.attrgetter('a')", "operator.itemgetter(0)", "operator.methodcaller('sin')", "contextlib.nullcontext()",
    )  # fmt: skip
    for kind in kinds:
        exec(f"def same(x):\n    made = {kind}\n    return isinstance(made, {kind.partition('(')[0]}), x + 1", space)
        assert firebrick.compile(space["same"], fullgraph=True, backend="eager")(torch.ones(2))[0], kind


PAIRS = (
    "[1, 2] == collections.deque([1, 2])", "OrderedDict(a=1, b=2) == OrderedDict(b=2, a=1)",
    "OrderedDict(a=1, b=2) == {'b': 2, 'a': 1}", "{'a': 1}.values() == {'a': 1}.values()",
    "{'a': 1}.keys() == {'a'}", "PLAIN.method == PLAIN.method", "PLAIN.method == Plain().method",
    "LIST.append == LIST.append", "[].append == [].append", "collections.deque([1, 2], 2) * 2",
    "collections.deque([1, 2], 2) + collections.deque([3])", "collections.deque([1, 2])[0:1]",
    "frozenset([1]) & {1: 2}.keys()", "{1} | {'a': 1}.values()", "{1: 2}.keys() - frozenset([1])", "{**{1: 2}.items()}", "collections.deque([1], 1).insert(0, 5)",
    "PLAIN.method.__call__() is PLAIN", "operator.ior({1}, {2: 3}.keys())", "operator.imul(collections.deque([1], 1), 3)",
)  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
def test_operators_of_kinds_are_those_of_plain_python(pair):
    program = f"""
from collections import OrderedDict
LIST = []

def compute(x):
    try:
        return {pair}, x + 1
    except (IndexError, TypeError) as error:
        return str(error), x + 1
"""
    space = {"__name__": "kinds"}
    exec(BEGINNING + program, space)
    plain, found = space["compute"](torch.ones(2))[0], firebrick.compile(space["compute"])(torch.ones(2))[0]
    assert (type(plain), repr(plain)) == (type(found), repr(found))
