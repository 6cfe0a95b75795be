"""What was compiled lived on after the last reference to it: modules with their weights and kernels, classes, code."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import firebrick
from firebrick.capture import hook
from firebrick.extend import SubgraphCompiler
from firebrick.extend import claimed_group as groups
from firebrick.ir.index import expr
from firebrick.ir.index.intern import RECENT

X = torch.randn(4, 8)


@pytest.fixture(autouse=True)
def _only_references_count() -> Any:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_compiled_module_dies_with_its_last_reference() -> None:
    before = {id(entry.plan) for entry in hook.entries(nn.Linear.forward.__code__)}  # of other tests' modules
    module = nn.Linear(8, 8)
    compiled = firebrick.compile(module)
    with torch.no_grad():
        compiled(X)
    plans = [entry.plan for entry in hook.entries(nn.Linear.forward.__code__) if id(entry.plan) not in before]
    entries = [weakref.ref(plan) for plan in plans]
    assert entries
    del plans
    dropped = [weakref.ref(module), weakref.ref(module.weight), *entries]
    del module, compiled
    assert [ref() for ref in dropped] == [None] * len(dropped)


def test_a_module_that_was_trained_dies_with_its_last_reference() -> None:
    module = nn.Linear(8, 8)
    compiled = firebrick.compile(module)
    compiled(X).sum().backward()
    weight = weakref.ref(module.weight)
    del module, compiled
    gc.collect()
    assert weight() is None


def test_a_compiled_closure_dies_with_what_it_closes_over() -> None:
    module: Any = nn.Linear(8, 8)
    through: Any

    @firebrick.compile
    def through(x: torch.Tensor) -> torch.Tensor:
        y = module(x)
        firebrick.graph_break()
        return module(y)

    through(X)
    dropped = [weakref.ref(module), weakref.ref(through), weakref.ref(through.__wrapped__)]  # type: ignore[attr-defined]
    module, through = None, None
    gc.collect()
    assert [ref() for ref in dropped] == [None] * 3


def test_a_module_dies_though_the_function_that_was_compiled_for_it_lives() -> None:
    @firebrick.compile
    def call(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return module(x)

    module = nn.Linear(8, 8)
    with torch.no_grad():
        call(module, X)
    dropped = [weakref.ref(module), weakref.ref(module.weight)]
    del module
    assert [ref() for ref in dropped] == [None] * 2


def test_classes_of_captured_objects_die() -> None:
    class Scale(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    firebrick.compile(Scale())(X)
    dropped = weakref.ref(Scale)
    del Scale
    gc.collect()
    assert dropped() is None


def test_code_that_was_broken_dies() -> None:
    names: dict[str, Any] = {"firebrick": firebrick}
    exec("def f(x):\n    for k in range(3):\n        firebrick.graph_break()\n        x = x * k\n    return x", names)
    firebrick.compile(names["f"])(X)
    dropped = weakref.ref(names.pop("f").__code__)
    gc.collect()
    assert dropped() is None


def test_expressions_of_sizes_that_nobody_uses_die() -> None:
    start = 1_000_000
    kept = expr.var("i", 0, start) + 1
    dropped = weakref.ref(expr.var("i", 0, start + 1))
    for n in range(start, start + 3 * RECENT):
        expr.var("i", 0, n)
    assert len(expr._interned) <= RECENT
    assert expr.var("i", 0, start) + 1 is kept
    gc.collect()
    assert dropped() is None


def test_a_module_at_the_place_of_a_dead_one_is_compiled_anew() -> None:
    @firebrick.compile
    def scaled(module: Any, x: torch.Tensor) -> torch.Tensor:
        return x * module.by + module.weight.sum()

    class Scale(nn.Module):
        def __init__(self, by: int) -> None:
            super().__init__()
            self.by, self.weight = by, nn.Parameter(torch.full((2,), float(by)))

    places = set()
    for n in range(50):
        module = Scale(n)
        places.add(id(module))
        with torch.no_grad():
            assert torch.allclose(scaled(module, X), X * n + 2 * n)
        del module
    assert len(places) < 50


@pytest.mark.parametrize("part", ["module", "weight"])
@pytest.mark.parametrize("trained", [False, True])
def test_what_was_replaced_in_a_living_module_dies(part: str, trained: bool) -> None:
    module: Any = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    compiled = firebrick.compile(module)
    dropped: list[weakref.ref[Any]] = []
    for _ in range(4):
        with torch.set_grad_enabled(trained):
            got = compiled(X)
        assert torch.allclose(got, module(X), atol=1e-6)
        if trained:
            got.sum().backward()
        dropped.append(weakref.ref(module[0] if part == "module" else module[0].weight))
        if part == "module":
            module[0] = nn.Linear(8, 8)
        else:
            module[0].weight = nn.Parameter(torch.randn(8, 8))
        got = None
    compiled(X)
    gc.collect()
    assert [ref() for ref in dropped] == [None] * 4
    assert len(hook.entries(nn.Sequential.forward.__code__)) <= 3


class Engine(SubgraphCompiler):
    name = "engine"

    def supports(self, node: Any) -> bool:
        return True

    def compile(self, graph: Any, example_inputs: Any) -> Any:
        return graph


def groups_since(others: list[Any]) -> list[Any]:
    # torch.jit keeps each class that was scripted in this process, and so the globals of its module
    return [ref for ref in groups._groups.valuerefs() if not any(ref() is other for other in (None, *others))]


def test_groups_of_plug_ins_die_with_what_calls_them() -> None:
    others = list(groups._groups.values())
    module = nn.Linear(8, 8)
    compiled = firebrick.compile(module, passes=[Engine()])
    with torch.no_grad():
        assert torch.equal(compiled(X), module(X))
    kept = groups_since(others)
    assert kept
    del module, compiled
    gc.collect()
    assert [ref() for ref in kept] == [None] * len(kept)


def test_groups_of_torchscript_die_with_their_program() -> None:
    others = list(groups._groups.values())
    module = torch.jit.trace(nn.Linear(8, 8).eval(), X)
    program, report = firebrick.torchscript.compile_subgraphs(module, [Engine()], [X])
    kept = groups_since(others)
    assert kept
    del report
    gc.collect()
    with torch.no_grad():
        assert torch.equal(program(X), module(X))
    del program
    gc.collect()
    assert [ref() for ref in kept] == [None] * len(kept)


def test_weights_of_a_script_that_was_rewritten_die_with_it() -> None:
    module = nn.Linear(8, 8).eval()
    program, _ = firebrick.torchscript.compile_subgraphs(torch.jit.script(module), [], [X])
    program(X)
    memory = module.weight.untyped_storage()._weak_ref()
    del module
    gc.collect()
    assert not torch.UntypedStorage._expired(memory)
    del program
    gc.collect()
    assert torch.UntypedStorage._expired(memory)
    torch.UntypedStorage._free_weak_ref(memory)
