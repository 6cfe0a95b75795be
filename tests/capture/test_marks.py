"""What users and other libraries tell a compiler: Firebrick's marks and those of torch.compiler."""

from __future__ import annotations

from typing import Any

import compiling
import pytest
import torch
import torch._dynamo

import firebrick
from firebrick.errors import ConfigError, Unsupported

X = torch.tensor([1.0, -2.0, 0.5])


class Frames:
    """Which functions are captured."""

    def __init__(self, fn: Any) -> None:
        self.compiled = compiling.Compiled(fn)
        self.result = self.compiled(X)

    @property
    def names(self) -> set[str]:
        return {frame.name.rpartition(".")[2] for frame in self.compiled.frames}


def below(x: Any) -> Any:
    return x * 2


def plain(x: Any) -> Any:
    return below(x) + 1


@pytest.mark.parametrize("disable", [firebrick.disable, torch.compiler.disable])
def test_disabled_function_runs_plain_with_all_that_it_calls(disable: Any) -> None:
    disabled = disable(plain)

    def function(x: Any) -> Any:
        return disabled(x + 1) * 3

    frames = Frames(function)
    assert torch.equal(frames.result, function(X))
    assert not {"plain", "below"} & frames.names
    assert "disabled-function" in frames.compiled.breaks


def test_disabled_without_its_callees() -> None:
    @torch.compiler.disable(recursive=False)
    def disabled(x: Any) -> Any:
        return below(x) + 1

    def function(x: Any) -> Any:
        return disabled(x + 1) * 3

    frames = Frames(function)
    assert torch.equal(frames.result, function(X))
    assert "disabled" not in frames.names
    assert "below" in frames.names


@pytest.mark.parametrize("graph_break", [firebrick.graph_break, torch._dynamo.graph_break])
def test_graph_break(graph_break: Any) -> None:
    def function(x: Any) -> Any:
        y = x + 1
        graph_break()
        return y * 2

    assert compiling.check(function, X, graphs=2, breaks=None).breaks[0] == "requested"


def test_compiling_is_seen() -> None:
    def function(x: Any) -> Any:
        asked = [torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling(), firebrick.is_compiling()]
        return x + 1, asked, torch._dynamo.is_compiling()

    _, asked, dynamo = compiling.Compiled(function, fullgraph=True)(X)
    assert asked == [True, True, True]
    assert dynamo


@pytest.mark.parametrize("mark", [firebrick.assume_constant_result, torch.compiler.assume_constant_result])
def test_constant_function_is_called_at_capture(mark: Any) -> None:
    calls = []

    @mark
    def setting(name: str) -> int:
        calls.append(name)
        return len(name)

    def function(x: Any) -> Any:
        return x * setting("four")

    compiled = compiling.Compiled(function, fullgraph=True)
    assert torch.equal(compiled(X), X * 4)
    assert torch.equal(compiled(X + 1), (X + 1) * 4)
    assert calls == ["four"]


@pytest.mark.parametrize("allow", [firebrick.allow_in_graph, torch.compiler.allow_in_graph])
def test_allowed_function_is_one_node(allow: Any) -> None:
    @allow
    def opaque(x: Any, k: Any) -> Any:
        return x * k + x.detach().numpy().size

    def function(x: Any) -> Any:
        return opaque(x + 1, 2)

    compiled = compiling.Compiled(function, fullgraph=True)
    with pytest.raises(Unsupported, match="numpy"):  # it is run on fake tensors, as a trace would
        compiled(X)

    @allow
    def traced(x: Any, k: Any) -> Any:
        return (x * k).sin() + 1

    def other(x: Any) -> Any:
        return traced(x + 1, 2)

    compiled = compiling.check(other, X)
    assert compiled.ops == 2


def test_marks_are_for_functions() -> None:
    with pytest.raises(ConfigError, match="Python function"):
        firebrick.allow_in_graph(3)


def test_a_size_that_is_marked_and_has_to_be_known_is_an_error_that_names_the_line() -> None:
    def function(x):
        x = x + 1
        for _ in range(x.shape[0]):
            x = x * 2
        return x

    x = torch.ones(3)
    firebrick.mark_dynamic(x, 0, min=2, max=8)
    line = function.__code__.co_firstlineno + 2
    with pytest.raises(ConfigError, match=rf"x.shape\[0\] is marked.*has to be 3 at .*:{line}"):
        firebrick.compile(function)(x)
    assert torch.equal(firebrick.compile(function)(torch.ones(3)), function(torch.ones(3)))


def test_marks_on_sizes_inside_are_passed_over() -> None:
    def function(x: Any) -> Any:
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_static(x)
        torch.compiler.cudagraph_mark_step_begin()
        torch._check(x.shape[0] == 3)
        torch._check_value(x.shape[0] == 3)
        torch._check_index(x.ndim == 1, lambda: "one dimension")
        return x + 1

    compiling.check(function, X, graphs=1, breaks=0)


def test_failed_checks_raise_as_plain_python() -> None:
    for check in (torch._check, torch._check_value, torch._check_index, torch._check_type):

        def function(x: Any, check: Any = check) -> Any:
            check(x.shape[0] == 4, lambda: "four")
            return x + 1

        compiling.check(function, X, graphs=None, breaks=None)


def test_torchs_own_disabled_functions_are_looked_into() -> None:
    @torch._compile._disable_dynamo
    def inner(x: Any) -> Any:
        return x.cos()

    inner.__wrapped__.__module__ = "torch.nn.init"

    def function(x: Any) -> Any:
        return inner(x) + 1

    compiling.check(function, X)


@pytest.mark.parametrize("mark", [torch._dynamo.mark_dynamic, torch._dynamo.decorators.mark_unbacked])
def test_torchs_own_marks_name_the_line_that_contradicts_them(mark: Any) -> None:
    def function(x: Any) -> Any:
        return x + 1 if x.shape[0] == 3 else x - [0.0, 1.0, 2.0, 3.0, 4.0][x.shape[0]]

    for n in (3, 4):
        x = torch.ones(n)
        mark(x, 0)
        line = function.__code__.co_firstlineno + 1
        with pytest.raises(ConfigError, match=rf"x.shape\[0\] is marked.*has to be {n} at .*:{line}"):
            firebrick.compile(function)(x)
        x = torch.ones(n)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        assert torch.equal(firebrick.compile(function)(x), function(x))


def test_torchs_own_marks_have_bounds() -> None:
    def function(x: Any) -> Any:
        return x + 1 if x.shape[0] < 10 else x - 1

    compiled, before = firebrick.compile(function), firebrick.graphs_compiled()
    for n in (3, 7, 8, 1):
        x = torch.ones(n)
        torch._dynamo.mark_dynamic(x, 0, min=1, max=8)
        assert torch.equal(compiled(x), function(x))
    assert firebrick.graphs_compiled() - before == 1
    assert torch.equal(compiled(torch.ones(20)), torch.ones(20) - 1)
