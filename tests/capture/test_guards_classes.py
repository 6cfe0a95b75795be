"""Classes that change after a compile: every lookup in a class is guarded, what it finds and what it does not."""

import abc
import functools
import types

import pytest
import torch
from compiling import Compiled, check_change

X = torch.arange(1.0, 5.0)


def make_class():
    class Thing:
        factor = 2

        def __init__(self, size=1.0):
            self.size = size

        def method(self, x):
            return x * 2

        @property
        def computed(self):
            return 3

        @staticmethod
        def static(x):
            return x + 1

        @classmethod
        def of_class(cls, x):
            return x + cls.factor

        def __call__(self, x):
            return x - 1

        def __len__(self):
            return 3

        def __eq__(self, other):
            return True

        __hash__ = None

        def __getitem__(self, index):
            return index + 5

        def __iter__(self):
            return iter([1, 2])

        def __contains__(self, item):
            return True

        def __enter__(self):
            return 7

        def __exit__(self, *error):
            return False

        def __add__(self, other):
            return other + 1

    return Thing


def entered(thing, x):
    with thing as number:
        return x * number


def stored(thing, x):
    thing.size = 5.0
    return x * vars(thing)["size"]


def caught(use):
    def run(thing, x, cls):
        try:
            return use(thing, x)
        except TypeError:
            return x - 100

    return run


# name -> (what uses it, what it becomes)
CHANGES = {
    "method": (lambda t, x, c: t.method(x), lambda self, x: x * 5),
    "factor": (lambda t, x, c: x * t.factor, 7),
    "new": (lambda t, x, c: x * getattr(t, "new", 1), 7),
    "computed": (lambda t, x, c: x * t.computed, property(lambda self: 9)),
    "static": (lambda t, x, c: t.static(x), staticmethod(lambda x: x * 5)),
    "of_class": (lambda t, x, c: t.of_class(x), classmethod(lambda cls, x: x * 5)),
    "size": (lambda t, x, c: x * t.size, property(lambda self: 9)),
    "__call__": (lambda t, x, c: t(x), lambda self, x: x * 5),
    "__len__": (lambda t, x, c: x * len(t), lambda self: 9),
    "__bool__": (lambda t, x, c: x * 3 if t else x, lambda self: False),
    "__eq__": (lambda t, x, c: x * 3 if t == 3 else x, lambda self, other: False),
    "__getitem__": (lambda t, x, c: x * t[2], lambda self, index: 100),
    "__iter__": (lambda t, x, c: x * sum(t), lambda self: iter([7])),
    "__contains__": (lambda t, x, c: x * 3 if 3 in t else x, lambda self, item: False),
    "__enter__": (lambda t, x, c: entered(t, x), lambda self: 100),
    "__add__": (lambda t, x, c: t + x, lambda self, other: other * 9),
    "__init__": (lambda t, x, c: x * c(3.0).size, lambda self, size: setattr(self, "size", 11.0)),
    "__new__": (lambda t, x, c: x * c(3.0).size, staticmethod(lambda cls, size: types.SimpleNamespace(size=4.0))),
    "__getattr__": (lambda t, x, c: x * (t.absent if hasattr(t, "absent") else 1), lambda self, name: 5),
    "__getattribute__": (lambda t, x, c: x * t.size, lambda self, name: 5),
    "__setattr__": (lambda t, x, c: stored(t, x), lambda self, name, value: vars(self).update(size=9.0)),
    "__mul__": (caught(lambda t, x: x + t * 3), lambda self, other: 9),
    "__lt__": (caught(lambda t, x: x if t < 3 else x + 1), lambda self, other: True),
    "__hash__": (caught(lambda t, x: x + hash(t)), lambda self: 9),
    "__name__": (lambda t, x, c: x * len(type(t).__name__), "AnotherName"),
    "__doc__": (lambda t, x, c: x * 2 if c.__doc__ else x, "a text"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_of_a_class(name):
    use, new = CHANGES[name]
    cls = make_class()
    thing = cls()
    check_change(lambda x: use(thing, x, cls), lambda: setattr(cls, name, new), X)


@pytest.mark.parametrize("name", ["method", "static", "of_class", "factor"])
def test_change_of_what_is_read_from_the_class_itself(name):
    cls = make_class()
    thing = cls()
    use = {"method": lambda x: cls.method(thing, x), "factor": lambda x: x * cls.factor}
    check_change(use.get(name, lambda x: getattr(cls, name)(x)), lambda: setattr(cls, name, CHANGES[name][1]), X)


def test_other_attributes_of_a_class_may_change_without_a_recompile():
    cls = make_class()
    thing = cls()
    compiled = Compiled(lambda x: thing.method(x) * thing.factor)
    for count in range(4):
        cls.made = count
        assert torch.equal(compiled(X), X * 4)
    assert len(compiled.graphs) == 1


# ---- inheritance ---------------------------------------------------------------------------------


def family():
    class Root:
        def method(self, x):
            return x + 1

    class Middle(Root):
        pass

    class Leaf(Middle):
        def method(self, x):
            return super().method(x) * 2

    return Root, Middle, Leaf


@pytest.mark.parametrize("place", [0, 1, 2])
def test_method_behind_super(place):
    classes = family()
    leaf = classes[2]()
    check_change(lambda x: leaf.method(x), lambda: setattr(classes[place], "method", lambda self, x: x * 7), X)


def test_method_that_begins_to_hide_an_inherited_one():
    root, middle, _ = family()
    thing = middle()
    check_change(lambda x: thing.method(x), lambda: setattr(middle, "method", lambda self, x: x * 7), X)
    assert root().method(1) == 2


def test_bases_that_are_replaced():
    class One:
        def number(self):
            return 1

    class Two:
        def number(self):
            return 2

    class Thing(One):
        pass

    thing = Thing()
    check_change(lambda x: x * thing.number(), lambda: setattr(Thing, "__bases__", (Two,)), X)


# ---- metaclasses, descriptors, abstract classes --------------------------------------------------------


def test_metaclass():
    class Meta(type):
        number = property(lambda cls: 2)

        def __call__(cls):
            return 3

        def __instancecheck__(cls, instance):
            return True

    class Thing(metaclass=Meta):
        pass

    check_change(lambda x: x * Thing.number, lambda: setattr(Meta, "number", property(lambda cls: 5)), X)
    check_change(lambda x: x * Thing(), lambda: setattr(Meta, "__call__", lambda cls: 5), X)
    never = lambda cls, instance: False  # noqa: E731
    check_change(lambda x: x * isinstance(3, Thing), lambda: setattr(Meta, "__instancecheck__", never), X)


def test_descriptor():
    class Descriptor:
        def __get__(self, owner, cls):
            return 2

    class Thing:
        part = Descriptor()

    thing = Thing()
    check_change(lambda x: x * thing.part, lambda: setattr(Descriptor, "__get__", lambda self, owner, cls: 5), X)


def test_class_that_is_registered_with_an_abstract_one():
    class Abstract(abc.ABC):  # noqa: B024  nothing is asked of its members
        pass

    class Thing:
        pass

    thing = Thing()
    check_change(lambda x: x * isinstance(thing, Abstract), lambda: Abstract.register(Thing), X)


def test_implementations_of_a_single_dispatch():
    @functools.singledispatch
    def number(value):
        return 1

    check_change(lambda x: x * number(3), lambda: number.register(int, lambda value: 5), X)
    check_change(lambda x: x * number(3), lambda: number.register(int, lambda value: 6), X)


def test_autograd_function():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    check_change(lambda x: Twice.apply(x), lambda: setattr(Twice, "forward", staticmethod(lambda ctx, x: x * 50)), X)


# ---- modules ------------------------------------------------------------------------------------------


class Inner(torch.nn.Module):
    def forward(self, x):
        return self.work(x)

    def work(self, x):
        return x + 1


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()

        class Own(Inner):
            pass

        self.kind = Own
        self.inner = Own()

    def forward(self, x):
        return self.inner(x)


class Other(Inner):
    def work(self, x):
        return x * 5


MODULE_CHANGES = {
    "forward of the class": lambda net: setattr(net.kind, "forward", lambda self, x: x * 7),
    "call of the class": lambda net: setattr(net.kind, "__call__", lambda self, x: x * 7),
    "method of the class": lambda net: setattr(net.kind, "work", lambda self, x: x * 7),
    "forward of the instance": lambda net: setattr(net.inner, "forward", lambda x: x * 7),
    "method of the instance": lambda net: setattr(net.inner, "work", lambda x: x * 7),
    "class of the instance": lambda net: setattr(net.inner, "__class__", Other),
}


@pytest.mark.parametrize("name", MODULE_CHANGES)
def test_module(name):
    net = Outer()
    check_change(net, lambda: MODULE_CHANGES[name](net), X)
    net = Outer()
    check_change(net.inner, lambda: MODULE_CHANGES[name](net), X)


@pytest.mark.parametrize("name", ["forward", "__call__"])
def test_class_of_torch(name, monkeypatch):
    layer = torch.nn.Linear(4, 4)
    check_change(lambda x: layer(x), lambda: monkeypatch.setattr(torch.nn.Linear, name, lambda self, x: x * 7), X)


def test_containers_that_grow_or_turn():
    def total(x):
        for layer in layers:
            x = layer(x)
        return x * len(layers)

    layers = torch.nn.ModuleList([torch.nn.ReLU()])
    check_change(total, lambda: layers.append(torch.nn.Softmax(0)), X)
    check_change(lambda x: x * len(layers), lambda: layers.append(torch.nn.Softmax(0)), X)
    net = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Softmax(0))
    check_change(lambda x: net(x - 3), lambda: net._modules.__setitem__("0", net._modules.pop("0")), X)


@pytest.mark.parametrize("recording", [True, False])
def test_requires_grad_that_the_program_asks_for(recording):
    net = torch.nn.Linear(2, 2)

    def run(x):
        with torch.set_grad_enabled(recording):
            return x * (2 if net.weight.requires_grad else 3)

    check_change(run, lambda: net.weight.requires_grad_(False), X)
