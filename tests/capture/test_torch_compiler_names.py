"""Every public name of `torch.compiler`: what it does in captured code, and that it stays what it is outside."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from torch import compiler, nn

import firebrick
from firebrick.api.compiling import compiled_settings
from firebrick.errors import Unsupported

X = torch.tensor([1.0, -2.0, 0.5])
LINEAR = nn.Linear(3, 3)


@compiler.assume_constant_result
def constant() -> int:
    return 5


@compiler.disable(reason="it is only for tests")
def disabled(x: Any) -> Any:
    return x * 2


@compiler.allow_in_graph
def allowed(x: Any) -> Any:
    return x.sin()


@compiler.nested_compile_region
def region(x: Any) -> Any:
    return x.sin() + 1


@compiler.wrap_numpy
def arrays(a: Any, *, pair: Any) -> Any:
    return np.sin(a) * 2, {"b": pair[0] + pair[1]}


@compiler.substitute_in_graph(operator.length_hint)
def length_hint(obj: Any, default: int = 0, /) -> int:
    return len(obj)


def by_compile(x: Any) -> Any:
    @torch.compile(backend="eager")
    def twice(t: Any) -> Any:
        return t * 2

    once = firebrick.compile(lambda t: t + 1)
    return compiler.compile(lambda t: t - 1)(twice(x)) + once(x)


GUARDS: Any = [name for name in compiler.__all__ if name.startswith(("skip_", "keep_")) and name.endswith("_unsafe")]
WHOLE: dict[str, Any] = {
    "is_compiling": lambda x: x + compiler.is_exporting(),
    "is_dynamo_compiling": lambda x: (x, compiler.is_dynamo_compiling() or not compiler.is_compiling()),
    "is_exporting": lambda x: (x + 1, compiler.is_exporting()),
    "assume_constant_result": lambda x: x * constant(),
    "allow_in_graph": lambda x: allowed(x) + 1,
    "nested_compile_region": lambda x: region(region(x)),
    "wrap_numpy": lambda x: arrays(x, pair=[x, x + 1]),
    "cudagraph_mark_step_begin": lambda x: (compiler.cudagraph_mark_step_begin(), x + 1)[1],
    "substitute_in_graph": lambda x: x * length_hint([1, 2]) + operator.length_hint([1, 2, 3]),
    "config": lambda x: (x + 1, compiler.config.job_id, compiler.config.force_disable_caches),
    "compile": by_compile,
    **{name: lambda x, name=name: (x + 1, getattr(compiler, name)([])) for name in GUARDS},
}
"""Name -> a program with it that is one graph."""
BREAKS: dict[str, Any] = {
    "disable": (lambda x: disabled(x + 1) * 2, "disabled-function.*disabled.*: it is only for tests"),
    "set_stance": (lambda x: (compiler.set_stance("default"), x + 1)[1], "says how functions are compiled"),
    "set_enable_guard_collectives": (
        lambda x: (compiler.set_enable_guard_collectives(False), x + 1)[1],
        "says how functions are compiled",
    ),
    "reset": (lambda x: (compiler.reset(), x + 1)[1], "reset"),
    "list_backends": (lambda x: (x + 1, compiler.list_backends()), "list_backends"),
    "get_default_backend": (lambda x: (x + 1, compiler.get_default_backend()), "get_default_backend"),
    "set_default_backend": (lambda x: (compiler.set_default_backend(None), x + 1)[1], "set_default_backend"),
}
"""Name -> a program with it whose graph ends there, for it is about the compiler itself, and the reason told."""
FILES = {"load_compiled_function", "save_cache_artifacts", "load_cache_artifacts"}
"""Names about torch.compile's own files; `firebrick.save` and the cache are ours."""


@pytest.mark.parametrize("name", WHOLE)
def test_in_one_graph(name: str) -> None:
    function = WHOLE[name]
    got, want = firebrick.compile(function, backend="eager", fullgraph=True)(X), function(X)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", BREAKS)
def test_ends_the_graph(name: str) -> None:
    if name.endswith("default_backend") and not hasattr(compiler, name):
        pytest.skip("this torch has no such name")
    function, reason = BREAKS[name]
    got, want = firebrick.compile(function, backend="eager")(X), function(X)
    if isinstance(want, tuple):
        assert got[1] == want[1]
        got, want = got[0], want[0]
    assert torch.equal(got, want)
    with pytest.raises(Unsupported, match=reason):
        firebrick.compile(function, backend="eager", fullgraph=True)(X)


def test_every_public_name_has_a_row() -> None:
    assert {*WHOLE, *BREAKS} | FILES >= {*compiler.__all__}


def test_capture_is_not_seen_outside() -> None:
    firebrick.compile(lambda x: x + 1)(X)
    assert not compiler.is_compiling() and not compiler.is_exporting()
    assert torch.equal(disabled(X), X * 2) and torch.equal(allowed(X), X.sin()) and constant() == 5
    assert torch.equal(region(X), X.sin() + 1) and length_hint([1]) == 1


@torch._dynamo.nonstrict_trace
def untraced(net: Any, x: Any, k: int, *, more: Any) -> Any:
    torch._dynamo.graph_break()  # of no effect: the function is not captured
    return {"a": net(x) * k, "b": [more["y"] + 1, k]}


def test_a_nonstrict_function_is_a_node_with_gradients_of_its_modules() -> None:
    def function(x: Any) -> Any:
        result = untraced(LINEAR, x + 1, 3, more={"y": x})
        return (result["a"] + result["b"][0]).sum() * result["b"][1]

    def gradients(fn: Any) -> Any:
        x = X.clone().requires_grad_()
        return torch.autograd.grad(fn(x), [x, *LINEAR.parameters()])

    for backend in ("eager", "aot_eager", "firebrick"):
        fn = firebrick.compile(function, fullgraph=True, backend=backend)
        torch.testing.assert_close(fn(X), function(X))
        torch.testing.assert_close(gradients(fn), gradients(function))


def test_a_nonstrict_function_writes_to_a_modules_buffers() -> None:
    norm, same = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    trace = torch._dynamo.nonstrict_trace(lambda net, x: net(x) * 2)

    def function(net: Any, x: Any) -> Any:
        return trace(net, x) + 1

    fn, rows = firebrick.compile(function, fullgraph=True), torch.randn(4, 3)
    for _ in range(2):
        torch.testing.assert_close(fn(norm, rows), function(same, rows))
    torch.testing.assert_close(norm.state_dict(), same.state_dict())


def test_a_tensor_at_a_static_address_may_be_another() -> None:
    fn = firebrick.compile(lambda x: x * 2)
    for value in (1.0, 2.0):
        x = torch.full((3,), value)
        torch._dynamo.mark_static_address(x)
        assert torch.equal(fn(x), x * 2)


def test_settings_of_torch_are_ours() -> None:
    with torch._dynamo.config.patch(recompile_limit=2, automatic_dynamic_shapes=False):
        fn = firebrick.compile(lambda x: x + compiler.is_compiling(), backend="eager")
    assert all([fn(torch.zeros(n))[0] for n in (2, 3)])
    with pytest.warns(firebrick.report.FirebrickWarning, match="compiled 2 times"):
        assert not fn(torch.zeros(4))[0]
    with compiler.config.patch(force_disable_caches=True):
        settings = compiled_settings(firebrick.compile(lambda x: x + 1))
    assert settings is not None and not settings.config.cache
