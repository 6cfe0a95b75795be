"""Attention of a few queries over any number of keys is a kernel of ours, so that a graph of it serves all lengths."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ahead import Compiles
from interpreted import AVAILABLE, flat, interpreting, load

import firebrick
from firebrick.targets import by_device
from firebrick.targets.cuda.cuda_target import CudaTarget
from firebrick.targets.cuda.facts import CARDS

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no triton")
KINDS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64, "b8": torch.bool}


@pytest.fixture
def artifact_of(monkeypatch):
    monkeypatch.setattr(by_device, "TARGETS", {"cpu": lambda config: CudaTarget(CARDS[90])})

    def compiled(fn, *calls):
        firebrick.reset()
        backend = Compiles()
        run = firebrick.compile(fn, backend=backend)  # the second call makes symbols of what varies
        for tensors in calls:
            run(*tensors)
        return backend.artifact

    return compiled


def run(artifact, **inputs):
    """The results, and the kernels that were launched."""
    table, registers = artifact.table, []
    tensors = [inputs[name] for name in table["inputs"]]

    def number(n):
        return registers[n[0]] if isinstance(n, list) else n

    ops = {"*": int.__mul__, "+": int.__add__, "/": int.__floordiv__, "%": int.__mod__, "<": min, ">": max}
    for op, a, b in table["registers"]:
        registers.append(tensors[a].shape[b] if op == "s" else ops[op](number(a), number(b)))
    slots = []
    for k, (kind, dtype, shape, strides, *_) in enumerate(table["slots"]):
        room = 1 + sum((number(n) - 1) * number(s) for n, s in zip(shape, strides, strict=True))
        slots.append(tensors[k] if kind == "input" else torch.full([room], 7).to(KINDS[dtype]))
    modules = {
        unit.kernels[0]: getattr(load(unit.text.replace("_start.to(tl.int64)", "_start")), unit.flags[2])
        for unit in artifact.units
    }
    launched = []
    for step in table["steps"]:
        assert step[0] in ("alloc", "free", "kernel"), step
        if step[0] == "kernel":
            _, name, args, sizes, _, (programs,) = step
            launched.append(name.partition("_")[2])
            with np.errstate(all="ignore"), interpreting():
                modules[name][(number(programs),)](*[flat(slots[a]) for a in args], *map(number, sizes))
    made = []
    for _, at in table["outputs"]:
        slot, shape, strides, offset, _ = table["views"][at]
        made.append(slots[slot].as_strided([*map(number, shape)], [*map(number, strides)], number(offset)))
    return made, launched


def decode(q, k, v, new, mask):
    """A token's attention, with a cache that gets it; heads of queries share those of keys."""
    k, v = torch.cat([k, new], 2), torch.cat([v, new * 2], 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask), k, v


@pytest.mark.parametrize(
    ("batch", "heads", "queries", "width", "masked"), [(1, 4, 1, 64, False), (2, 3, 5, 24, True), (2, 2, 1, 16, True)]
)
def test_few_queries_and_any_number_of_keys(artifact_of, batch, heads, queries, width, masked):
    def inputs(n):
        torch.manual_seed(n)
        q, new = torch.randn(batch, heads, queries, width), torch.randn(batch, heads, 1, width)
        k, v = torch.randn(2, batch, heads, n, width)
        mask = torch.randn(batch, 1, queries, n + 1) if masked else None
        return [t if t is None else t.half() for t in (q, k, v, new, mask)]

    artifact = artifact_of(decode, inputs(9), inputs(10))
    for n in (1, 20, 127, 300):
        mine = inputs(n)
        made, launched = run(artifact, **dict(zip(("q", "k", "v", "new", "mask"), mine, strict=True)))
        assert launched.count("attention") == 1
        for a, b in zip(made, decode(*mine), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)


def test_many_queries_of_unknown_length_are_the_librarys(artifact_of):
    q = torch.randn(1, 2, 20, 16).half()
    wide = torch.randn(1, 33, 1, 64).half(), *[torch.randn(2, 1, 33, n, 64).half() for n in (5, 6)]
    artifact = artifact_of(lambda q, k: F.scaled_dot_product_attention(q, k[0], k[1]), wide[:2], (wide[0], wide[2]))
    assert any(step[0] == "call" for step in artifact.table["steps"])
    artifact = artifact_of(lambda q: F.scaled_dot_product_attention(q, q, q), (q,), (q[:, :, :9],))
    assert any(step[0] == "call" for step in artifact.table["steps"])
