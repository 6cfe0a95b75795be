"""`y, l = compiled(x, w)` where other values than `y` lead to `l` too: `grad(l, y)` said that `y` was not used, and
`grad(l + y.sum(), y)` was the part of `y.sum()` alone, without an error."""

import gc
import threading

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import firebrick


def past(x, w):
    h = (x @ w).sin()
    y = h.exp()
    return y, (y * h).sum()


def in_a_row(x, w):
    """Each result is made of the one before, and of what leads to all."""
    h = w @ w * 0.3
    a = h @ x
    b = h * a
    return b, (w @ h * b), a


def many(x, w):
    """More than have histories of their own."""
    states = [x @ w]
    for _ in range(10):
        states.append(states[-1].sin() + states[0])
    return *states, torch.stack(states).sum()


def attention(x, w):
    q, k, v = (x @ w).sin(), (x @ w.t()).cos(), x @ w
    scores = (q @ k.t()).softmax(-1)
    attended = scores @ v + x
    return attended, scores, attended.square().sum() + (scores * scores.log()).sum()


def nothing_saved(x, w):
    h = x + w
    y = h * 2
    return y, (y + h).sum()


def random(x, w):
    h = F.dropout((x @ w).sin(), 0.5)
    y = h.exp()
    return y, F.dropout(y * h, 0.5).sum()


def written(x, w):
    h = (x @ w).sin()
    y = h * 2
    y[1] = h[0]
    return y, (y * h.cos()).sum(), y.detach()


def read_by_its_own_backward(x, w):
    h = x @ w
    y = h.tanh()
    return y, (y * h).exp()


FUNCTIONS = [past, in_a_row, many, attention, nothing_saved, random, written, read_by_its_own_backward]


def leaves(size=4):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, size, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]


def total(results):
    return sum((r.square() * (i + 1)).sum() for i, r in enumerate(results))


def backward(results, x, w):
    total(results).backward()
    return []


def of_results(results, x, w):
    return torch.autograd.grad(total(results), results)


def of_each(results, x, w):
    rows = [*results, x, w]
    return [g for r in results for g in torch.autograd.grad(r.sum(), rows, retain_graph=True, allow_unused=True)]


def of_leaves(results, x, w):
    return torch.autograd.grad(total(results), [x, w])


def backward_to_some(results, x, w):
    total(results).backward(inputs=[results[0], w])
    return [results[0].grad]


def retained(results, x, w):
    results[0].retain_grad()
    total(results).backward()
    return [results[0].grad]


def hooked(results, x, w):
    found = []
    for i in range(len(results)):
        results[i].register_hook(lambda g, i=i: found.append((i, g.clone())) or g * (i + 2))
    total(results).backward()
    return [g for _, g in sorted(found, key=lambda row: row[0])]


def one_hooked(results, x, w):
    found = []
    results[-1].register_hook(lambda g: found.append(g) or g * 2)
    total(results).backward()
    return found


def hooked_and_dropped(results, x, w):
    found, loss = [], total(results)
    results[0].register_hook(lambda g: found.append(g) or g * 2)
    results.clear()
    gc.collect()
    loss.backward()
    return found


def node_hooked(results, x, w):
    found = []
    results[0].grad_fn.register_prehook(lambda given: found.append(given[0]))
    total(results).backward()
    return found


def again(results, x, w):
    rows = [*results, x, w]
    first = torch.autograd.grad(total(results), rows, create_graph=True)
    scalar = sum((g.sin() * (i + 1)).sum() for i, g in enumerate(first))
    second = torch.autograd.grad(scalar, rows, create_graph=True, allow_unused=True)
    third = torch.autograd.grad(sum(g.sum() for g in second if g is not None), rows, allow_unused=True)
    return [*first, *second, *third]


def several_times(results, x, w):
    total(results).backward(retain_graph=True)
    found = torch.autograd.grad(total(results), results[0], retain_graph=True)
    total(results).backward()
    return found


ASKS = [
    backward, of_results, of_each, of_leaves, backward_to_some, retained, hooked, one_hooked, hooked_and_dropped,
    node_hooked, again, several_times,
]  # fmt: skip


def outcome(function, ask, size=4):
    x, w = leaves(size)
    torch.manual_seed(0)
    results = [r for r in function(x, w) if r.requires_grad]
    return [*ask(results, x, w), x.grad, w.grad]


def agree(compiled, function, asks, *size):
    for ask in asks:
        for mine, plain in zip(outcome(compiled, ask, *size), outcome(function, ask, *size), strict=True):
            assert (mine is None) == (plain is None), ask
            torch.testing.assert_close(mine, plain)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_all_gradients_are_those_of_eager(function):
    asks = [ask for ask in ASKS if function is not nothing_saved or ask is not node_hooked]  # of another node in eager
    agree(firebrick.compile(function, backend="aot_eager"), function, asks)


@pytest.mark.compiler
@pytest.mark.parametrize("function", [past, in_a_row, attention, random])
def test_compiled(function):
    agree(firebrick.compile(function), function, ASKS)


@pytest.mark.compiler
def test_sizes_that_vary():
    compiled = firebrick.compile(attention, dynamic=True)
    for size in (4, 6):
        agree(compiled, attention, [of_results, hooked, again], size)


def test_ordinary_backward_computes_no_more():
    def count():
        return firebrick.stats()["counts"].get("gradients compiled to be differentiated", 0)

    compiled, before = firebrick.compile(attention, backend="firebrick"), count()
    agree(compiled, attention, [backward, backward])
    assert count() == before


@pytest.mark.filterwarnings("ignore::firebrick.report.FirebrickWarning")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("firebrick", marks=pytest.mark.compiler)])
def test_in_one_captured_backward(backend):
    def steps(run):
        x, w = leaves()
        found = []
        for change in (None, "hook", "retain", "grad", None):
            y, loss = run(x, w)
            if change == "hook":
                y.register_hook(lambda g: found.append(g) or g * 2)
            if change == "retain":
                y.retain_grad()
            if change == "grad":
                found += torch.autograd.grad(loss + y.sum(), [y, w])
                continue
            (loss + y.sum()).backward()
            found += [y.grad] if change == "retain" else []
        return [*found, x.grad, w.grad]

    with firebrick.compiled_backward():
        mine = steps(firebrick.compile(past, backend=backend))
    for one, other in zip(mine, steps(past), strict=True):
        torch.testing.assert_close(one, other)


def checkpointed(run, x, w):
    found = []

    def inner(x, w):
        y, loss = run(x, w)
        y.register_hook(lambda g: found.append(g.clone()))
        return y * 2 + loss

    checkpoint(inner, x, w, use_reentrant=False).sum().backward()
    return [*found, x.grad, w.grad]


def packed(run, x, w):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        y, loss = run(x, w)
    first = torch.autograd.grad(loss + y.sum(), [y, w], create_graph=True)
    return [*first, *torch.autograd.grad(sum(g.sin().sum() for g in first), [x, y, w])]


def batched(run, x, w):
    y, loss = run(x, w)
    rows = torch.eye(3, dtype=torch.float64)
    return torch.autograd.grad((loss + y.sum()).expand(3) * 1, [y, w], rows, is_grads_batched=True)


def by_edge(run, x, w):
    y, loss = run(x, w)
    edge = torch.autograd.graph.get_gradient_edge(y)
    del y
    return torch.autograd.grad(loss, [edge])


def between_functions(run, x, w):
    inner = x * 2
    inner.retain_grad()
    y, loss = run(inner, w)
    y.retain_grad()
    (loss + y.sum()).backward()
    return [inner.grad, y.grad, x.grad, w.grad]


def in_threads(run, x, w):
    found = [None] * 4

    def work(i):
        y, loss = run(*leaves())
        found[i] = torch.autograd.grad(loss + y.sum(), [y])[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def transformed(run, x, w):
    return [torch.func.grad(lambda x: sum(t.sum() for t in run(x, w.detach())))(x.detach())]


@pytest.mark.parametrize(
    "ask",
    [checkpointed, packed, batched, by_edge, between_functions, in_threads, transformed],
    ids=lambda a: a.__name__,
)
def test_in_other_places(ask):
    compiled = firebrick.compile(past, backend="aot_eager")
    for mine, plain in zip(ask(compiled, *leaves()), ask(past, *leaves()), strict=True):
        torch.testing.assert_close(mine, plain)


def test_checked_by_numbers():
    compiled = firebrick.compile(past, backend="aot_eager")
    assert torch.autograd.gradcheck(compiled, leaves(2)) and torch.autograd.gradgradcheck(compiled, leaves(2))


def test_what_was_written_to_since_is_an_error():
    compiled = firebrick.compile(past, backend="aot_eager")
    x, w = leaves()
    y, loss = compiled(x, w)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, y)


def test_a_second_time_is_an_error():
    compiled = firebrick.compile(past, backend="aot_eager")
    y, loss = compiled(*leaves())
    torch.autograd.grad(loss, y)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, y)


def test_nothing_stays():
    gc.collect()
    gc.disable()
    try:
        y, loss = firebrick.compile(past, backend="aot_eager")(*leaves())
        death = []
        y.grad_fn.at_end = End(death)
        del y, loss
        assert death == ["gone"]
    finally:
        gc.enable()


class End:
    def __init__(self, death):
        self.death = death

    def __del__(self):
        self.death.append("gone")
