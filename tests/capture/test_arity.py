"""Calls whose arguments do not fit raise Python's own TypeError, from the same place, in captured code too."""

import builtins
import collections
import functools
import inspect
import itertools
import operator

import pytest
import torch
from compiling import check

from firebrick.capture.library import arity
from firebrick.capture.library import known_callables as registry

WRONG = """
    abs(); all([], []); any(); bool(1, 2); callable(); delattr(y); dict(1, 2); divmod(1); enumerate(); enumerate([], 1, 2)
    enumerate([1], foo=1); filter(None); frozenset(1, 2); getattr(y); getattr(y, "a", 1, 2); getattr(y, 3)
    getattr(y, name="shape"); hasattr(y); hasattr(y, 3); hash(); id(); int(1, 2, 3); isinstance(y); isinstance(y, "abc")
    isinstance(1, 2); issubclass(int); iter(); iter(3); len(); len([], []); len(obj=[1]); len(3); list(1, 2); map()
    map(len); max([1], foo=1); next(); object(1); print(1, foo=2); range(); reversed(); round(); set(1, 2); setattr(y, "a")
    setattr(y, 3, 4); slice(); sorted(); sorted([1], foo=2); sorted([1], len); sum(); super(1, 2, 3); tuple(1, 2)
    type(); vars(1, 2); zip(3); zip([1], foo=1); min(); collections.deque(1, 2, 3); collections.OrderedDict(1, 2)
    functools.partial(); functools.reduce(len); functools.wraps(); itertools.chain([1], foo=1); itertools.count(1, 2, 3)
    itertools.islice([1]); itertools.product([1], foo=2); itertools.repeat(); operator.add(1)
    [].append(); [].extend(); [1].index(); [1].insert(1); [1].pop(1, 2); [1].sort(1); list.append([]); (1,).count()
    {}.get(); {}.items(1); {}.pop(); {}.setdefault(); {}.update(1, 2); {}.keys(1); dict.fromkeys(); set().add()
    {1}.discard(); {1}.pop(1); {1}.union(3); {1}.isdisjoint(); collections.deque([1]).popleft(1); "".join()
    collections.deque().append(); collections.deque([1]).rotate(1, 2); (i for i in ()).send(); (i for i in ()).throw()
    torch.no_grad(1, 2, 3); torch.set_grad_enabled(); torch.is_tensor(); torch.add(y); y.add(); y.size(1, 2)
    y.dim(1); y.numel(1); y.__len__(1); y.element_size(dim=1); y.stride(0, 1); y.is_contiguous(q=1); y.size(9)
    y.__getitem__(); y.__getitem__(0, 1); y.__setitem__(0); y.__contains__(); y.item(1); y.tolist(1); y.__bool__(1)
    y.__float__(1); y.detach(1); y.detach_(1); y.t(1); y.__neg__(1); y.__add__(); y.__radd__(1, 2); y.view()
    y.sum(nope=1); y.requires_grad_(1, 2); y.is_inference(1); y.as_subclass(); y.item(q=1); torch.Tensor.dim(y, 1)
    torch.tensor(); torch.as_tensor(); torch.nn.Parameter(1)
    """
WRONG_CALLS = [call.strip() for call in WRONG.replace("\n", ";").split(";") if call.strip()]


@pytest.mark.parametrize("text", WRONG_CALLS)
def test_what_does_not_fit_raises_as_in_plain_python(text):
    wrong = eval(f"lambda y: {text}", globals())

    def f(x):
        y = x + 1
        try:
            wrong(y)
        except (TypeError, ValueError) as error:
            return y * 2, type(error), str(error)
        return y * 3

    check(f, torch.ones(3), graphs=None, breaks=None)


@pytest.mark.parametrize(
    "text", ["y.dim(1)", "y.item(1)", "y.__len__(1)", "y.detach_(1)", "y.t(1)", "y.__call__()", "y.mro()", "y.__name__"]
)
def test_wrong_uses_of_a_tensor_in_the_function_itself(text):
    scope = {}
    body = f"""def f(x):
        y = x + 1
        try:
            return {text}
        except (TypeError, AttributeError) as error:
            return y * 2, type(error), str(error)
    """
    exec(body, scope)
    check(scope["f"], torch.ones(3), graphs=None, breaks=None)


def test_nothing_that_fits_is_refused():
    def f(x):
        items = sorted([3, 1], key=lambda item: -item, reverse=True)
        rows = list(zip([1], "a", strict=True)) + [pair for pair in enumerate(iterable="ab", start=2)]
        table = dict([("a", 1)], b=2)
        table.update(c=3)
        found = table.pop("a", None), table.get("z", 4), max([], default=5), min(3, 2, key=lambda item: item)
        more = collections.deque([1], maxlen=2), collections.OrderedDict(a=1).pop(key="b", default=1), sum([1], start=2)
        last = functools.reduce(operator.add, [1, 2], 3), list(itertools.repeat(1, times=2)), list(map(max, [1], [2]))
        last += (round(number=2.5), pow(base=2, exp=3), "a b".split(maxsplit=1), list(enumerate([1], start=4)))
        return x * 2, items, rows, table, found, more, last, {1}.union([2], [3]), getattr(x, "missing", None)

    check(f, torch.ones(3))


def test_every_builtin_with_a_rule_says_what_it_takes():
    known = {registry.key_of(obj) for obj in arity.UNDESCRIBED}
    libraries = {"builtins", "collections", "functools", "_functools", "itertools", "math", "operator", "_operator"}
    for obj in registry._KEEP:
        if getattr(obj, "__module__", None) in libraries and registry.key_of(obj) not in known:
            if obj in (builtins.__build_class__, builtins.breakpoint, bytes, int, str, operator.attrgetter):
                continue  # not followed, or evaluated by Python itself
            if obj in (operator.itemgetter, operator.methodcaller):
                continue
            assert inspect.signature(obj), obj
