"""Attributes of classes that captured code sets: done behind the graph, read in it as they are by then."""

from __future__ import annotations

import pytest
import torch
from compiling import Compiled, assert_same, outcome

import firebrick

X = torch.arange(3.0)


def _data(cls):
    return {name: value for name, value in vars(cls).items() if name[:2] != "__" and not callable(value)}


def _counts():
    class Counter:
        count = 0

        def step(self, x):
            type(self).count += 1
            return x * 2

    return Counter().step, Counter


def _counts_and_reads():
    class Counter:
        count = 0

        @classmethod
        def made(cls, x):
            cls.count = cls.count + 1
            return x + cls.count

    return Counter.made, Counter


def _counts_below_a_base():
    class Base:
        count = 0

    class Counter(Base):
        def step(self, x):
            type(self).count += 1
            Base.count += 2
            return x * (self.count + super().count)

    return Counter().step, Counter


def _is_put_back():
    class State:
        flag = False

    def f(x):
        before = State.flag
        State.flag = True
        try:
            y = x * 2 if State.flag else x
        finally:
            State.flag = before
        return y if not State().flag else -y

    return f, State


def _toggles():
    class State:
        flag = False

    def f(x):
        State.flag = not State.flag
        return x + 1 if State.flag else x - 1

    return f, State


def _keeps_tensors():
    class State:
        last = None

    def f(x):
        y = x + 1 if State.last is None else x + State.last
        State.last = y
        setattr(State, "fresh", [y, 3])
        return y * getattr(State, "fresh")[1] + State().fresh[0]

    return f, State


def _raises():
    class State:
        count = 0

    def f(x):
        State.count += 1
        if State.count == 2:
            raise ValueError("second")
        return x + State.count

    return f, State


def _of_a_module():
    class Layer(torch.nn.Module):
        calls = 0

        def forward(self, x):
            Layer.calls += 1
            return x.sin() * self.calls

    return Layer(), Layer


MAKERS = [
    _counts,
    _counts_and_reads,
    _counts_below_a_base,
    _is_put_back,
    _toggles,
    _keeps_tensors,
    _raises,
    _of_a_module,
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("backend", ["eager", "firebrick"])
@pytest.mark.parametrize("grad", [False, True])
def test_set(make, backend, grad):
    plain, cls = make()
    ours, other = make()
    compiled = firebrick.compile(ours, fullgraph=True, backend=backend)
    for _ in range(6):
        x = X.clone().requires_grad_(grad)
        assert_same(outcome(compiled, (x,)), outcome(plain, (x,)))
        assert_same(_data(other), _data(cls))


def test_counts_are_symbols():
    step, cls = _counts()
    compiled, before = firebrick.compile(step, fullgraph=True), firebrick.graphs_compiled()
    for n in range(8):
        compiled(X)
        assert cls.count == n + 1
    assert firebrick.graphs_compiled() - before <= 3


def test_set_from_outside():
    class State:
        scale = 2.0

    class Child(State):
        pass

    compiled = Compiled(lambda x: x * Child.scale, fullgraph=True)
    assert_same(compiled(X), X * 2)
    State.scale = 3.0
    assert_same(compiled(X), X * 3)
    Child.scale = 5.0
    assert_same(compiled(X), X * 5)
    del Child.scale
    assert_same(compiled(X), X * 3)
    Child.scale = property(lambda self: 1)
    with pytest.raises(TypeError):
        compiled(X)


def test_dict_of_a_class():
    class State:
        scale = 2.0

    compiled = Compiled(lambda x: x * vars(State)["scale"])
    assert_same(compiled(X), X * 2)
    State.scale = 3.0
    assert_same(compiled(X), X * 3)
    State.other = 1
    assert_same(compiled(X), X * 3)

    def f(x):
        State.scale = 4.0
        return x * vars(State)["scale"]

    assert_same(Compiled(f)(X), X * 4)


def test_what_changes_a_class_breaks():
    class State:
        def step(self, x):
            return x

        @property
        def half(self):
            return 0.5

    def method(x):
        y = x + 1
        State.step = lambda self, x: x * 2
        return State().step(y)

    def shadowed(x):
        y = x + 1
        State.half = 2.0
        return y * State().half

    for f, want in ((method, (X + 1) * 2), (shadowed, (X + 1) * 2)):
        compiled = Compiled(f)
        assert_same(compiled(X), want)
        assert "unsupported-attribute" in compiled.breaks
