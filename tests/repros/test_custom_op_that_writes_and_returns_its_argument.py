"""A custom operator that writes into an argument and returns it stays in the graph when nothing uses its result: it was
taken for a function that gives its argument back, as `contiguous` does, so that nothing was written."""

import pytest
import torch

import firebrick

LIBRARY = torch.library.Library("firebrick_repro_writes", "DEF")
LIBRARY.define("core(Tensor a, Tensor(a!) out) -> Tensor(a!)")
LIBRARY.impl("core", lambda a, out: out.add_(a), "CPU")
LIBRARY.impl("core", lambda a, out: out, "Meta")  # a fake kernel need not write
PACKET = torch.ops.firebrick_repro_writes.core


def by_packet(x):
    out = torch.zeros(4)
    PACKET(x, out)
    return out[1:] * 2


def by_overload(x):
    out = torch.zeros(4)
    PACKET.default(a=x, out=out)
    return out[1:] * 2


@pytest.mark.parametrize("fn", [by_packet, by_overload])
def test_what_an_operator_of_others_writes_is_written(fn):
    graphs = []

    def backend(gm, inputs):
        graphs.append([n for n in gm.graph.nodes if n.op == "call_function"])
        return gm.forward

    with torch.no_grad():
        assert firebrick.compile(fn, backend=backend, fullgraph=True)(torch.ones(4)).tolist() == [2, 2, 2]
    assert len(graphs) == 1
    assert any(n.target in (PACKET, PACKET.default) for n in graphs[0])


@pytest.mark.parametrize("fn", [by_packet, by_overload])
def test_what_has_no_functional_form_is_given_one(fn):
    with torch.no_grad():
        assert firebrick.compile(fn, options={"strict": True})(torch.ones(4)).tolist() == [2, 2, 2]
