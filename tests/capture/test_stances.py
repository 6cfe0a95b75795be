"""Stances, Firebrick's and torch's: what compiled functions do at calls that fit, and at calls that do not."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch._dynamo

import firebrick
from firebrick.errors import ConfigError, RecompileError

SETTERS = pytest.mark.parametrize("set_stance", [firebrick.set_stance, torch.compiler.set_stance])
X = torch.ones(4)


def seen(x: Any) -> Any:
    return x + torch.compiler.is_compiling()


class Backend:
    """Counts graphs."""

    graphs = 0

    def __call__(self, gm: Any, example_inputs: Any) -> Any:
        self.graphs += 1
        return gm.forward


def is_compiled(fn: Any, x: Any = X) -> bool:
    return bool(fn(x)[0] == 2)


@SETTERS
def test_force_eager_passes_by_what_was_compiled(set_stance: Any) -> None:
    fn = firebrick.compile(seen, backend="eager")
    assert is_compiled(fn)
    with set_stance("force_eager"):
        assert not is_compiled(fn)
    set_stance("force_eager")
    assert not is_compiled(fn)
    set_stance("default")
    assert is_compiled(fn)


@SETTERS
def test_a_decorated_function_has_its_stance_while_it_runs(set_stance: Any) -> None:
    fn = firebrick.compile(seen, backend="eager")

    @set_stance("force_eager")
    def plain(x: Any) -> Any:
        return fn(x)

    assert is_compiled(fn) and not is_compiled(plain) and is_compiled(fn)


@SETTERS
def test_eager_on_recompile_compiles_nothing(set_stance: Any) -> None:
    fn = firebrick.compile(seen, backend="eager")
    with set_stance("eager_on_recompile"):
        assert not is_compiled(fn)
    assert is_compiled(fn)
    with set_stance("eager_on_recompile"):
        assert is_compiled(fn) and not is_compiled(fn, torch.ones(5))
    assert is_compiled(fn, torch.ones(5))


@SETTERS
def test_fail_on_recompile_says_what_did_not_fit(set_stance: Any) -> None:
    fn = firebrick.compile(seen, backend="eager")
    assert is_compiled(fn)
    with set_stance("fail_on_recompile"):
        assert is_compiled(fn)
        with pytest.raises(RecompileError, match=r"seen .*x.shape\[0\] was 4, now 5"):
            fn(torch.ones(5))
        with pytest.raises(RuntimeError, match="nothing was compiled"):
            firebrick.compile(torch.nn.Linear(4, 4))(X)


@SETTERS
@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_the_first_call_tells_what_varies(set_stance: Any, stance: str) -> None:
    fn = firebrick.compile(lambda x, n, k: (x * k).sum() * n, fullgraph=True)
    before = firebrick.graphs_compiled()
    with set_stance(stance):
        for i in (3, 5, 6, 7):
            assert firebrick.graphs_compiled() - before == (i > 5)
            assert torch.allclose(fn(torch.ones(i, 2), i, i * 1.5), torch.tensor(2.0 * i * i * i * 1.5))
    assert firebrick.graphs_compiled() - before == 1


@SETTERS
def test_a_forced_backend_compiles_beside_the_own_one(set_stance: Any) -> None:
    own, other = Backend(), Backend()
    for made in (seen, torch.nn.Linear(4, 4)):
        fn = firebrick.compile(made, backend=own)
        fn(X)
        with set_stance(force_backend=other):
            assert torch.equal(fn(X), fn(X))
        fn(X)
    assert (own.graphs, other.graphs) == (2, 2)


def test_modules_and_blocks_have_stances_too() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return seen(x)

    compiled = firebrick.compile(Net(), backend="eager")
    with torch.compiler.set_stance("force_eager"):
        assert not is_compiled(compiled) and not is_compiled(compiled.forward)
        with firebrick.optimize("eager"):
            assert not is_compiled(seen)
    assert is_compiled(compiled) and is_compiled(compiled.forward)
    with firebrick.optimize("eager"):
        assert is_compiled(seen)


def test_a_stance_holds_in_every_thread_and_a_block_goes_before_it() -> None:
    fn = firebrick.compile(seen, backend="eager")
    assert is_compiled(fn)
    results: list[bool] = []
    with firebrick.set_stance("force_eager"):
        thread = threading.Thread(target=lambda: results.append(is_compiled(fn)))
        thread.start()
        thread.join()
        with firebrick.run():
            assert is_compiled(fn)
    assert results == [False]


def test_a_stance_is_set_by_plain_python() -> None:
    def function(x: Any) -> Any:
        y = x + 1
        with torch.compiler.set_stance("force_eager"):
            y = y * 2
        return y - 1

    assert torch.equal(firebrick.compile(function)(X), function(X))
    with pytest.raises(firebrick.errors.Unsupported, match="says how functions are compiled"):
        firebrick.compile(function, fullgraph=True)(X)


def test_unknown_stances_are_refused() -> None:
    with pytest.raises(ConfigError, match="eager_on_recompile"):
        firebrick.set_stance("eagerly")
    with pytest.raises(ConfigError, match="takes no backend"):
        firebrick.set_stance("force_eager", force_backend="eager")
