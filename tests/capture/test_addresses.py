"""Addresses of tensors and objects, by `id()` and `hash()`, and weak references: compared, as keys, and leaving."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from compiling import Compiled, assert_same, outcome

import firebrick

X, Y = torch.arange(3.0), torch.ones(3)
LAYERS = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
LAYERS[1].weight = LAYERS[0].weight
KNOWN = {id(parameter) for parameter in LAYERS.parameters()}
BY_ADDRESS = {id(X): 3.0}


class Thing:
    def __init__(self, scale):
        self.scale = scale


def compared(a, b):
    return a + 1 if id(a) == id(b) else a - b


def seen(a, b):
    addresses = set()
    for value in (a, b, a):
        if id(value) in addresses:
            continue
        addresses.add(id(value))
        a = a + value
    return a


def parameters(a, b):
    addresses = {id(parameter) for parameter in LAYERS.parameters()}
    uses = {}
    for layer in LAYERS:
        for parameter in (layer.weight, layer.bias):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return a * len(addresses), b * sum(uses.values()) * len(uses), id(a) in addresses, id(LAYERS[0].weight) in uses


def known_outside(a, b):
    return a * 2 if id(LAYERS[0].weight) in KNOWN and id(a) not in KNOWN else a


def keys_from_outside(a, b):
    return a * BY_ADDRESS.get(id(a), 1.0)


def memo(a, b):
    made = {id(a): a * 2}
    made[id(b)] = b * 3
    return made[id(a)] + made[id(b)], len(made)


def new_tensors(a, b):
    c = a + 1
    d = c
    return c * 2 if id(c) == id(d) and id(c) != id(a) else c


def hashes(a, b):
    c = a * 2
    return a if hash(a) == hash(b) else b * len({hash(c), hash(a), hash(c)})


def mixed(a, b):
    return a * 2 if {id(a)} & KNOWN else a


def temporary(a, b):
    return a * 2 if id(a + 1) == id(a + 2) else a


def in_text(a, b):
    return f"{id(a)}", a + 1


def lists(a, b):
    items = [a]
    same = items
    return a * 2 if id(items) == id(same) and id(items) != id([b]) else a


def objects(a, b):
    thing = Thing(2.0)
    uses = {id(thing): 1}
    return a * uses[id(thing)] * thing.scale


@pytest.mark.parametrize(
    "function",
    [
        compared, seen, parameters, known_outside, keys_from_outside, memo, new_tensors, hashes, mixed, temporary,
        in_text, lists, objects,
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["eager", "firebrick"])
def test_like_plain(function, backend):
    whole = function not in (mixed,)
    compiled = firebrick.compile(function, fullgraph=whole, backend=backend)
    for args in ((X, Y), (X, X), (Y, X), (X.clone(), X), (X.clone(), Y.clone())):
        assert_same(outcome(compiled, args), outcome(function, args))


def test_other_tensors_need_no_other_graph():
    compiled = Compiled(seen, fullgraph=True)
    for _ in range(4):
        args = (torch.randn(3), torch.randn(3))
        assert_same(compiled(*args), seen(*args))
    assert len(compiled.graphs) == 1


def test_addresses_leave():
    def f(a):
        made = a + 1
        return made, id(made), {id(a): 1}, hash(a)

    compiled = Compiled(f, fullgraph=True)
    for x in (X, X.clone()):
        made, address, by_address, hashed = compiled(x)
        assert (id(made), [id(x)], hash(x)) == (address, list(by_address), hashed)


# -- weak references ----------------------------------------------------------------------------


class Equal(Thing):
    def __hash__(self):
        return hash(self.scale)

    def __eq__(self, other):
        return isinstance(other, Equal) and self.scale == other.scale


FIRST, SECOND, EQUAL = Thing(3.0), Thing(4.0), Equal(5.0)
KEYS = weakref.WeakKeyDictionary()
VALUES = weakref.WeakValueDictionary({"first": FIRST})
MEMBERS = weakref.WeakSet()
REFERENCE = weakref.ref(FIRST)


def item(x):
    return x * KEYS[FIRST]


def equal_key(x):
    return x * KEYS[EQUAL] * KEYS[Equal(5.0)]


def looked_for(x):
    return x * 2 if FIRST in KEYS and SECOND not in KEYS else x


def with_default(x):
    return x * KEYS.get(FIRST, 1.0) * KEYS.get(SECOND, 10.0)


def set_again(x):
    KEYS[FIRST] = KEYS[FIRST] + 1
    return x * KEYS[FIRST]


def new_key(x):
    KEYS[SECOND] = 5.0
    return x * KEYS[SECOND] + len(KEYS)


def deleted(x):
    if EQUAL in KEYS:
        del KEYS[EQUAL]
    return x + len(KEYS)


def popped(x):
    return x * KEYS.setdefault(SECOND, 3.0), KEYS.pop(SECOND)


def walked(x):
    for key, scale in KEYS.items():
        x = x * scale + key.scale
    return x


def weak_value(x):
    return x * VALUES["first"].scale if "second" not in VALUES else x


def member(x):
    return x * 2 if FIRST in MEMBERS and SECOND not in MEMBERS else x


def new_member(x):
    MEMBERS.add(SECOND)
    return x * len(MEMBERS)


def references(x):
    other = weakref.ref(FIRST)
    same = REFERENCE == other and REFERENCE is other and REFERENCE != weakref.ref(SECOND)
    return x * REFERENCE().scale if same else x


@pytest.mark.parametrize(
    "function",
    [
        item, equal_key, looked_for, with_default, set_again, new_key, deleted, popped, walked, weak_value, member,
        new_member, references,
    ],
)  # fmt: skip
def test_weak_references(function):
    compiled = firebrick.compile(function, fullgraph=True, backend="eager")
    results = []
    for run in (function, compiled):
        KEYS.clear()
        KEYS.update({FIRST: 2.0, EQUAL: 7.0})
        MEMBERS.clear()
        MEMBERS.add(FIRST)
        steps = [outcome(run, (X,)) for _ in range(3)]
        kept = [(key.scale, scale) for key, scale in KEYS.items()], sorted(thing.scale for thing in MEMBERS)
        results.append([steps, kept, len(KEYS.data)])
    assert_same(results[1], results[0])


def test_what_is_gone():
    thing = Thing(2.0)
    reference, keys = weakref.ref(thing), weakref.WeakKeyDictionary({thing: 3.0})

    def f(x):
        held = reference()
        return x - 1 if held is None else x * held.scale * keys[held]

    compiled = firebrick.compile(f, fullgraph=True, backend="eager")
    assert_same(compiled(X), X * 6)
    del thing
    gc.collect()
    assert reference() is None  # nothing of the compiled code holds it
    assert_same(compiled(X), X - 1)


def _net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))


def hook_for_a_call(net, x):
    handle = net[0].register_forward_hook(lambda module, args, out: out * 2)
    y = net(x)
    handle.remove()
    return y + net(x), len(net[0]._forward_hooks)


def hook_that_stays(net, x):
    handle = net[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return net(x), handle


@pytest.mark.parametrize("function", [hook_for_a_call, hook_that_stays])
@pytest.mark.parametrize("backend", ["eager", "firebrick"])
def test_hooks_are_registered(function, backend):
    plain, ours = _net(), _net()
    compiled = firebrick.compile(function, fullgraph=function is hook_for_a_call, backend=backend)
    for call in range(4):
        x = torch.ones(2, 3) * call
        want, got = function(plain, x), compiled(ours, x)
        torch.testing.assert_close(got[0], want[0])
        if function is hook_that_stays and call % 2:
            want[1].remove()
            got[1].remove()
        assert [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in ours] == [
            len(m._forward_pre_hooks) + len(m._forward_hooks) for m in plain
        ]
