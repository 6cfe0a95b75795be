"""A loop with a graph break inside goes round in Python; the parts of its body are captured once, for all rounds."""

import contextlib
import warnings
import weakref
from typing import Any

import pytest
import torch
from compiling import Compiled, assert_same, check, outcome

from firebrick.capture.breaks.regions import last_on_numbers, names_touched
from firebrick.capture.bytecode.control_flow import flow
from firebrick.capture.bytecode.instructions import decode

X = torch.tensor([1.0, -2.0, 0.5, 3.0])
LOG: list[Any] = []
ROUNDS = 3


def graphs_of(compiled: Compiled) -> list[str]:
    """The calls of every graph, in the order in which they were captured."""
    calls = ([node for node in gm.graph.nodes if node.op.startswith("call")] for gm in compiled.graphs)
    return [" ".join(getattr(node.target, "__name__", str(node.target)) for node in nodes) for nodes in calls]


def captured(function: Any, *args: Any, breaks: int | None = None) -> list[str]:
    """Graphs of three calls that do what plain Python does, warn of nothing, and of which two capture nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = check(function, *args, graphs=None, breaks=breaks, calls=1)
        again = check(function, *args, graphs=None, breaks=breaks, calls=3)
    assert graphs_of(first) == graphs_of(again)
    return graphs_of(first)


def test_the_first_round_of_a_while_loop_behind_a_break_is_none_of_its_own():
    def settles(x, k):
        old, x = -x, x * 2
        while ((old - x).abs() > 0.5).any():
            old, x = x.clone(), x * k
        return x + 1

    def by_number(x, k):
        n = 0
        while x.sum().item() > 1:
            n += 1
            x = x * k
        return x + 1, n

    def with_else(x, k):
        while x.abs().max() > 1:
            x = x * k
            if x.sum() < -5:
                break
        else:
            x = x - 1
        return x * 2

    def nested(x, k):
        while x.sum() > 1:
            while x.max() > 0.6:
                x = x * k
            x = x * k
        return x + 1

    def in_try(x, k):
        try:
            while x.sum() > 1:
                x = x * k
        finally:
            x = x + 1
        return x

    def in_a_for(x, k):
        for n in range(2):
            while x.sum() > 1:
                x = x * k
            x = x + n
        return x

    k = torch.tensor(0.5)
    assert captured(settles, X, k) == [
        "neg mul sub abs gt any", "clone mul sub abs gt any", "add",
    ]  # fmt: skip
    for function in (by_number, with_else, nested, in_try, in_a_for):
        captured(function, X, k)
        captured(function, -X.abs(), k)
        captured(function, X * 0, k)


def test_body_is_captured_once_for_all_rounds():
    def f(x):
        for _ in range(9):
            x = x.sin()
            if x.sum() > 100:
                return x
            x = x.cos()
        return x.tanh()

    assert captured(f, X) == ["sin sum gt", "cos", "sin sum gt", "tanh"]


def test_round_of_a_while_loop_is_one_graph():
    def f(x):
        while True:
            if x.sum() > 1000:
                return x.cos()
            x = x.abs() + 1

    assert captured(f, X) == ["sum gt", "abs add sum gt", "cos"]


def test_number_from_the_iterator_is_no_constant():
    def f(x):
        for i in range(12):
            if x.sum() > 1e9:
                break
            x = x.sin() * i + 1
        return x

    assert captured(f, X) == ["sum gt", "sin", "add", "sum gt"]


def test_arithmetic_on_numbers_breaks_where_it_meets_tensors():
    def f(x):
        for i in range(12):
            if x.sum() > 1e9:
                break
            t = 1 - i / 12
            x = x.sin() + x.cos()
            x = x * (2 * t - i) + 1
        return x

    compiled = check(f, X, graphs=None, breaks=None, calls=2)
    assert graphs_of(compiled) == ["sum gt", "sin cos add", "add", "sum gt"]
    assert compiled.breaks.count("changing-value") == 3


def test_last_instruction_on_numbers():
    def f(x, n):
        m = n * 2 + ROUNDS
        k = -m
        return x * k

    graph = flow(f.__code__)
    start = next(i.index for i in graph.instructions if i.opname == "RESUME") + 1
    last, changing = last_on_numbers(graph, start, [], ["n"], {"ROUNDS": 3})
    assert changing == {"m", "k"}
    assert graph.instructions[last].line == f.__code__.co_firstlineno + 2
    assert last_on_numbers(graph, start, [], [], {"ROUNDS": 3}) == (-1, frozenset())
    last, changing = last_on_numbers(graph, start, [False], ["n"], {"ROUNDS": X})
    assert changing == {"__stack1"}
    assert graph.instructions[last].opname == "BINARY_OP"
    assert graph.instructions[last].argval == "*"


def test_number_that_a_round_changes_is_no_constant():
    def f(x):
        n = 0
        while True:
            if x.sum() > 1000:
                return x * n
            x = x.abs() + 1
            n += 1

    assert captured(f, X) == ["sum gt", "abs add", "sum gt", "mul"]


def test_number_that_is_another_in_the_second_round_is_no_constant_from_then_on():
    class Steps:
        count = 0

        def run(self, x):
            for _ in range(12):
                self.count += 1
                x = (x + 1) * self.count
                if x.sum() > 1e90:
                    break
            return x

    def f(x):
        return Steps().run(x)

    found = captured(f, X)
    assert len(found) < 8
    assert found[-2:] == ["add", "sum gt"]


def test_class_that_each_round_makes_is_no_constant():
    def f(x):
        for i in range(12):

            class Local:
                value = i

            x = x.sin() + Local.value
        return x

    assert len(captured(f, X)) <= 4


def test_list_that_grows_is_one_graph():
    def f(x):
        rows = []
        for _ in range(12):
            x = x.sin() + 1
            rows.append(x)
            if x.sum() > 1e9:
                break
        return torch.stack(rows)

    assert captured(f, X) == ["sin add sum gt", "sin add sum gt", "stack"]


def test_modules_that_rounds_take_in_turn_are_graphs_of_their_own():
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(12))

    def f(x):
        for i, layer in enumerate(layers):
            x = layer(x).relu()
            if x.sum() > 1e9:
                return i
        return x

    assert captured(f, X) == ["linear relu sum gt"] * 12


def test_inner_loop_without_a_break_is_part_of_a_round():
    def f(x):
        for _ in range(5):
            for k in range(3):
                x = x + k
            if x.sum() > 1e9:
                break
        return x

    assert captured(f, X) == ["add add add sum gt", "add add add sum gt"]


def test_both_loops_around_a_break_go_round_in_python():
    def f(x):
        for _ in range(4):
            x = x.sin()
            for _ in range(3):
                x = x.cos()
                if x.sum() > 1e9:
                    break
            x = x.tanh()
        return x

    assert captured(f, X) == ["sin cos sum gt", "cos sum gt", "tanh", "sin"]


def test_what_nobody_reads_is_no_result_of_a_graph():
    def f(x):
        for _ in range(3):
            y = x.sin()
            z = y.cos()
            x = z + 1
            if x.sum() > 1e9:
                break
        return x

    compiled = check(f, X, graphs=2, breaks=None)
    results = [list(gm.graph.nodes)[-1].args[0] for gm in compiled.graphs]
    assert [len(result) for result in results] == [2, 2]  # x and the condition


def test_loop_over_an_iterator_that_cannot_be_captured():
    class Rows:
        def __iter__(self):
            return iter([X, X + 1, X + 2])

    def f(x):
        for row in Rows():
            x = (x * row).sin()
            if x.sum() > 1e9:
                break
            x = x + row
        return x

    assert len(captured(f, X)) <= 4


def test_body_of_a_loop_over_a_generator():
    def rows(n):
        try:
            for i in range(n):
                yield X + i
        finally:
            LOG.append("closed")

    def f(x):
        LOG.clear()
        total = x.sum().item()
        for row in rows(4):
            x = (x * row).sin() + total
        LOG.append("behind")
        return x, list(LOG)

    captured(f, X)


PROGRAMS = []


def program(function):
    PROGRAMS.append(function)
    return function


@program
def exceptions_and_continue(x):
    found = []
    for i in range(5):
        try:
            y = x.sin()
            if i == 3:
                raise ValueError(i)
            if y.sum() > 1e9:
                break
            z = y.reshape(2, 2 + (i == 1))
        except RuntimeError:
            found.append("shape")
            continue
        except ValueError as error:
            found.append(str(error))
        finally:
            found.append(y + 1)
        found.append(z)
    return found


@program
def exception_leaves(x):
    for i in range(4):
        x = x.sin()
        if x.sum() > 1e9:
            break
        LOG.append(i)
        x = x.reshape(4 - (i == 2))
    return x


@program
def exception_is_caught_behind(x):
    y, i = x, -1
    try:
        for i in range(4):
            y = y.sin()
            if y.sum() > 1e9:
                break
            y = y.reshape(4 - (i == 2))
    except RuntimeError:
        return y, i
    return x, y


@program
def modes(x):
    rows = []
    for _ in range(3):
        with torch.no_grad():
            y = x * 2
            if y.sum() > 1e9:
                break
            z = y.cos()
        rows.append((x.sin() * z).sum())
    return torch.stack(rows).sum(), torch.is_grad_enabled()


@program
def lower_precision(x):
    x = x.outer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            x = (x @ x).sin()
            if x.sum() > 1e9:
                break
            x = x @ x
    return x


@program
def managers(x):
    with contextlib.suppress(RuntimeError):
        for i in range(5):
            with contextlib.suppress(ValueError):
                x = x.sin() + 1
                if x.sum() > 1e9:
                    break
                if i % 2:
                    raise ValueError
                x = x * 2
            x = x.reshape(4 - (i == 3))
    return x


@program
def local_that_may_be_unbound(x):
    for i in range(4):
        x = x.sin()
        if i == 2:
            late = x.cos()
        if x.sum() > 1e9:
            break
        x = x + 1
        if i == 3:
            del i
    return x + late


@program
def cells(x):
    made = []
    for i in range(4):
        y = x.sin() * (i + 1)

        def scaled(by):
            nonlocal y
            y = y * by
            return y + i

        if y.sum() > 1e9:
            break
        made.append(scaled(2))
        made.append(scaled)
    return [item if isinstance(item, torch.Tensor) else item(3) for item in made], y


@program
def comprehension(x):
    return [(row.sin() + 1).item() + i for i, row in enumerate(x)], {i: (row * 2).item() for i, row in enumerate(x)}


@program
def patterns(x):
    for kind in (1, "a", (1, 2), 2, "b", None):
        match kind:
            case int():
                x = x * kind
            case str():
                x = x.sin()
            case (a, b):
                x = a * x - b
            case _:
                continue
        if x.sum() > 1e9:
            break
    else:
        x = x.cos()
    return x


@program
def writes_in_place(x):
    parts = list(x.split(2))
    for i in range(4):
        parts[i % 2].mul_(2)
        if x.sum() > 1e9:
            break
        x.add_(1)
        parts.append(parts.pop(0))
    return x, parts


@program
def training(x):
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = ((weight * x).sin().sum() - 1) ** 2
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, weight


class Base(torch.nn.Module):
    def forward(self, x):
        return x + 1


class Derived(Base):
    def forward(self, x):
        for _ in range(3):
            x = super().forward(x).sin()
            if x.sum() > 1e9:
                break
            x = super().forward(x)
        return x


@program
def calls_of_super(x):
    return Derived()(x)


@pytest.mark.parametrize("function", PROGRAMS, ids=[function.__name__ for function in PROGRAMS])
@pytest.mark.parametrize("wants_gradients", [False, True])
def test_programs(function, wants_gradients):
    wanted, compiled = None, Compiled(function)
    for _ in range(3):
        LOG.clear()
        x = X.clone()
        if wants_gradients:
            x = (x.requires_grad_() * 1) if function is writes_in_place else x.requires_grad_()
        wanted, log = outcome(function, (x,)), LOG[:]
        LOG.clear()
        x = X.clone()
        if wants_gradients:
            x = (x.requires_grad_() * 1) if function is writes_in_place else x.requires_grad_()
        got = outcome(compiled, (x,))
        assert got[0] == wanted[0], (got, wanted)
        assert_same(got[1], wanted[1])
        assert log == LOG


def test_objects_die_in_the_round_that_lets_go_of_them():
    class Held:
        pass

    def f(x):
        seen, last = [], None
        for i in range(4):
            made = held(Held())
            seen.append(last is not None and last() is None)
            last = weakref.ref(made)
            x = x.sin()
            if x.sum() > 1e9:
                break
            seen.append(last() is None)
        return x, seen

    held = torch.compiler.disable(lambda made: made)
    check(f, X, graphs=None, breaks=None, calls=3)


def test_recursion_is_no_deeper_than_in_plain_python():
    def f(x):
        for _ in range(3000):
            x = x + 1
            if x.sum() > 1e9:
                break
            x = x.sin()
        return x

    captured(f, X)


def test_shapes_of_regions_are_shared_between_versions():
    def f(x):
        for _ in range(3):
            x = x.sin()
            if x.sum() > 100:
                break
            x = x.cos()
        return x

    compiled = Compiled(f)
    for size in (2, 3, 2, 3):
        compiled(torch.ones(size))
    parts = {frame.code.co_name for frame in compiled.frames}
    assert len(compiled.graphs) == 2 * len(parts)


def test_locals_that_instructions_touch():
    def f(a, b):
        c = a + b
        del a
        return b, c

    used, written = names_touched(decode(f.__code__))
    assert used == {"a", "b", "c"}
    assert written == {"a", "c"}
