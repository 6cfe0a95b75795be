"""Recompiles say what changed in the user's terms; their limit ends in a warning with the varying value and a fix."""

import re
import warnings

import pytest
import torch
from compiling import Compiled

import firebrick
from firebrick.capture.guards.guard_kinds import KINDS
from firebrick.report import FirebrickWarning

X = torch.ones(4)


class Box:
    def __init__(self, scale):
        self.scale = scale


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.scale = 2

    def forward(self, x):
        return self.linear(x) * self.scale


def reasons(before):
    now = firebrick.stats()["reasons"].get("recompile", {})
    return {why for why, count in now.items() if count != before.get(why, 0)}


# what changes -> function, arguments of the calls, what the recompile says
CHANGES = {
    "size": (lambda x: x * 2, [(X,), (torch.ones(5),)], "x.shape[0] was 4, now 5"),
    "rank": (lambda x: x * 2, [(X,), (torch.ones(4, 1),)], "x.dim() was 1, now 2"),
    "stride": (lambda x: x * 2, [(torch.ones(4, 4),), (torch.ones(4, 4).t(),)], "x.stride()[0] was 4, now 1"),
    "dtype": (lambda x: x * 2, [(X,), (X.double(),)], "x.dtype was torch.float32, now torch.float64"),
    "gradient": (
        lambda x: x * 2,
        [(X,), (torch.ones(4, requires_grad=True),)],
        "x.requires_grad was False, now True",
    ),
    "number": (lambda x, n: x * n, [(X, 1.5), (X, 2.5)], "n was 1.5, now 2.5"),
    "text": (lambda x, mode: x * len(mode), [(X, "add"), (X, "multiply")], "mode was 'add', now 'multiply'"),
    "class": (lambda x, n: x * n, [(X, 2), (X, 2.0)], "n was 2, now 2.0"),
    "none": (lambda x, n: x + 1 if n is None else x * n, [(X, None), (X, X)], "n was None, now f32[4] cpu"),
    "length": (lambda x, items: x * len(items), [(X, [1]), (X, [1, 2])], "len(items) was 1, now 2"),
    "item": (lambda x, items: x * items[1], [(X, [1, 2]), (X, [1, 3])], "items[1] was 2, now 3"),
    "key": (lambda x, table: x * table["a"], [(X, {"a": 1}), (X, {"a": 2})], "table['a'] was 1, now 2"),
    "attribute": (lambda x, box: x * box.scale, [(X, Box(1)), (X, Box(2))], "box.scale was 1, now 2"),
    "aliasing": (lambda a, b: a.add_(1) + b, [(X, X + 1), (X[:3], X[1:])], "a.shape[0] was 4, now 3"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_reason_of_a_recompile(name):
    function, calls, text = CHANGES[name]
    compiled = Compiled(function)
    before = dict(firebrick.stats()["reasons"].get("recompile", {}))
    for args in calls:
        assert torch.equal(compiled(*args), function(*args)) or name == "aliasing"
    assert reasons(before) == {text}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda net: setattr(net, "scale", 3), "self.scale was 2, now 3"),
        (lambda net: net.linear.requires_grad_(False), "self.linear.weight.requires_grad was True, now False"),
        (lambda net: net.double().float().linear.bfloat16().float(), None),
        (lambda net: net.linear.register_forward_hook(lambda *_: None), "len(self.linear._forward_hooks) was 0, now 1"),
        (lambda net: torch.set_grad_enabled(False), "grad_mode was on, now off"),
    ],
)
def test_reason_in_a_module(change, text):
    net = Net()
    compiled = Compiled(net)
    compiled(X)
    before = dict(firebrick.stats()["reasons"].get("recompile", {}))
    try:
        change(net)
        assert torch.equal(compiled(X), net(X))
    finally:
        torch.set_grad_enabled(True)
    assert reasons(before) == ({text} if text else set())


LIMITS = {
    "size": (lambda x: x * 2, lambda i: (torch.ones(i + 2),), "x.shape[0] was 9, now 10", "pad it"),
    "number": (lambda x, n: x * n, lambda i: (X, i), "n was 7, now 8", "pass n as a tensor"),
    "length": (lambda x, s: x * len(s), lambda i: (X, [0] * i), "len(s) was 7, now 8", "the length of s the same"),
    "object": (
        lambda x, kind: x + kind.scale,
        lambda i: (X, type("Kind", (), {"scale": i})),
        "kind was ",
        "pass the same object as kind",
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limit_names_the_value_and_a_fix(name):
    function, make, text, fix = LIMITS[name]
    compiled, keep = Compiled(function), []
    for i in range(8):
        keep.append(make(i))
        assert torch.equal(compiled(*keep[-1]), function(*keep[-1]))
    with pytest.warns(FirebrickWarning) as caught:
        keep.append(make(8))
        assert torch.equal(compiled(*keep[-1]), function(*keep[-1]))
    (said,) = [str(warning.message) for warning in caught]
    assert "was compiled 8 times" in said and "test_recompiles.py:" in said
    assert text in said
    assert "Fix: " in said and fix in said and "recompile_limit" in said
    assert "0x" not in said
    for args in keep:  # what was compiled still runs, and the rest runs plain, without another warning
        assert torch.equal(compiled(*args), function(*args))
    assert len(compiled.graphs) == 8


def test_limit_of_one_compiled_function_is_none_of_another():
    def function(x, n):
        return x * n

    first, second = Compiled(function, recompile_limit=2), Compiled(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(4):
            first(X, n)
    second(X, 2)
    assert (len(first.graphs), len(second.graphs)) == (2, 1)


def test_frames_below_one_that_gave_up_get_few_tries():
    class Inner(torch.nn.Module):
        def forward(self, x):
            return x * 2

    inner = Inner()

    def outer(x):
        return inner(x) + 1

    compiled = Compiled(outer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(2, 30):
            assert torch.equal(compiled(torch.ones(n)), outer(torch.ones(n)))
    assert len(compiled.graphs) == 8 + 8


def test_modules_of_one_class_do_not_count_for_each_other():
    class Layer(torch.nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale = scale

        def forward(self, x):
            y = x * self.scale
            firebrick.graph_break()
            return y + self.scale

    layers = torch.nn.ModuleList(Layer(scale) for scale in range(20))

    def run(x):
        for layer in layers:
            x = layer(x)
        return x

    compiled = Compiled(run)
    for _ in range(2):
        assert torch.equal(compiled(X), run(X))
    assert len(compiled.graphs) == 40


def test_every_kind_of_guard_says_what_to_do():
    assert all(kind.remedy for kind in KINDS.values())


def test_a_recompile_says_which_line_needs_the_number():
    def looped(x):
        for _ in range(x.shape[0]):
            x = x * 2
        return x

    def branched(x):
        return x + 1 if x.shape[0] > 4 else x - 1

    def indexed(x, n):
        return x + [1, 2, 3, 4, 5, 6, 7][n]

    rows = [(torch.randn(n),) for n in (2, 3, 4, 5)]
    for function, calls, text in (
        (looped, rows, r"x.shape\[0\] was 3, now 4, which is decided at test_recompiles.py:{}:"),
        (branched, rows, r"x.shape\[0\] was 2, now 5, which is decided at test_recompiles.py:{}:"),
        (
            indexed,
            [(torch.randn(3), n) for n in (3, 4, 5)],
            "n was 4, now 5, which is decided at test_recompiles.py:{}:",
        ),
    ):
        firebrick.reset()
        compiled = firebrick.compile(function)
        for args in calls:
            compiled(*args)
        pattern = text.format(function.__code__.co_firstlineno + 1)
        assert any(re.match(pattern, reason) for reason in firebrick.stats()["reasons"]["recompile"])
