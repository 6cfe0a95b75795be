"""Few rows whose length is a symbol are split over programs too: one alone would take seconds where they are long.

The host table is walked here; kernels run through Triton's interpreter.
"""

import numpy as np
import pytest
import torch
from ahead import Compiles
from interpreted import AVAILABLE, flat, interpreting, load

import firebrick
from firebrick.targets import by_device
from firebrick.targets.cuda.cuda_target import CudaTarget
from firebrick.targets.cuda.facts import CARDS

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no triton")


@pytest.fixture
def artifact_of(monkeypatch):
    monkeypatch.setattr(by_device, "TARGETS", {"cpu": lambda config: CudaTarget(CARDS[90])})

    def compiled(fn, x):
        firebrick.reset()
        backend = Compiles()
        firebrick.compile(fn, backend=backend, dynamic=True)(x)
        return backend.artifact

    return compiled


def run(artifact, x):
    """The results of an artifact of one input, and the number of launches."""
    table, registers = artifact.table, []

    def number(n):
        return registers[n[0]] if isinstance(n, list) else n

    for op, a, b in table["registers"]:
        registers.append(
            x.shape[b]
            if op == "s"
            else {"*": int.__mul__, "+": int.__add__, "/": int.__floordiv__, "%": int.__mod__}[op](number(a), number(b))
        )
    kinds = {"f32": torch.float32, "i64": torch.int64, "b8": torch.bool}
    slots = [
        x
        if kind == "input"
        else torch.full([sum(map(number, shape)) and int(np.prod([*map(number, shape)])) or 1], 77).to(kinds[dtype])
        for kind, dtype, shape, *_ in table["slots"]
    ]
    # To the interpreter what a loop counts is an int.
    modules = {
        unit.kernels[0]: (getattr(load(unit.text.replace("_start.to(tl.int64)", "_start")), unit.flags[2]))
        for unit in artifact.units
    }
    launches = 0
    for step in table["steps"]:
        assert step[0] in ("alloc", "free", "kernel"), step
        if step[0] == "kernel":
            _, name, args, sizes, _, (programs,) = step
            launches += 1
            with np.errstate(all="ignore"), interpreting():
                modules[name][(number(programs),)](*[flat(slots[a]) for a in args], *map(number, sizes))
    made = []
    for kind, at in table["outputs"]:
        slot, shape, strides, offset, _ = table["views"][at]
        assert kind == "t"
        made.append(slots[slot].as_strided([*map(number, shape)], [*map(number, strides)], number(offset)))
    return made, launches


def places(x):
    return x.argmax(), x.max(0).values, x.argmin()


CASES = {
    "sum": lambda x: (x.sum(),),
    "mean of squares": lambda x: ((x * 2).square().mean(),),
    "places": places,
    "norms": lambda x: ((x - x.mean()).square().sum().sqrt(), x.amin()),
    "softmax": lambda x: (x.softmax(0),),
    "what is stored on the way": lambda x: (x.exp(), x.exp().sum()),
}


@pytest.mark.parametrize("name", CASES)
def test_a_length_that_is_a_symbol(name, artifact_of):
    fn = CASES[name]
    artifact = artifact_of(fn, torch.randn(1000))
    for n in (5, 1024, 90_001):
        x = torch.randn(n)
        made, launches = run(artifact, x)
        assert launches > 1
        for a, b in zip(made, fn(x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    x = torch.full((3000,), -torch.inf)  # as what slices without elements have
    if name == "places":
        assert [t.item() for t in run(artifact, x)[0]] == [t.item() for t in fn(x)]


def test_rows_and_columns(artifact_of):
    for fn in (lambda x: (x.sum(1), x.argmax(1)), lambda x: (x.sum(),), lambda x: (x.t().sum(0),)):
        artifact = artifact_of(fn, torch.randn(2, 1000))
        for n in (7, 60_000):
            x = torch.randn(2, n)
            for a, b in zip(run(artifact, x)[0], fn(x), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_many_rows_of_unknown_length_are_a_program_each(artifact_of):
    artifact = artifact_of(lambda x: (x.softmax(1),), torch.randn(64, 100))
    assert sum(step[0] == "kernel" for step in artifact.table["steps"]) == 1
