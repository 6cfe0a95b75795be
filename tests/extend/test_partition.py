"""Partitions are convex, acyclic and give the same results, for any graph and any `supports`."""

import graphlib
import random
import sys
import threading
import time

import pytest
import torch
from torch import fx

from firebrick.config import Config
from firebrick.errors import BackendError, PassError, VerificationError
from firebrick.extend import SubgraphCompiler, partition, set_fake_values
from firebrick.extend.partition import grow_clusters
from firebrick.report import FirebrickWarning, recorder

OPS = [torch.add, torch.mul, torch.sub, torch.relu, torch.neg, torch.sigmoid, torch.maximum]
X = torch.randn(3, 4)


class Fixed(SubgraphCompiler):
    """Claims nodes by a function and runs the group's own graph."""

    def __init__(self, name, chosen, **attributes):
        self.name, self.chosen = name, chosen
        for key, value in attributes.items():
            setattr(self, key, value)

    def supports(self, node):
        return self.chosen(node)

    def compile(self, graph, example_inputs):
        return graph.forward


def random_graph(r):
    graph = fx.Graph()
    values = [graph.placeholder(f"x{i}") for i in range(2)]
    for _ in range(r.randint(1, 30)):
        op = r.choice(OPS)
        count = 1 if op in (torch.relu, torch.neg, torch.sigmoid) else 2
        near = values[-6:] if r.random() < 0.7 else values
        if r.random() < 0.05:
            pair = graph.call_function(torch.max, (r.choice(near), 1, True))
            values.append(graph.call_function(torch.add, (r.choice(near), graph.call_function(_first, (pair, 0)))))
            continue
        values.append(graph.call_function(op, tuple(r.choice(near) for _ in range(count))))
    graph.output(tuple(r.sample(values[2:], min(3, len(values) - 2))))
    gm = fx.GraphModule({}, graph)
    gm.graph.eliminate_dead_code()
    return set_fake_values(gm, [X, X + 1])


_first = __import__("operator").getitem


def groups_of(result):
    return [set(c.nodes) for c in result.claims]


def assert_convex(gm, groups):
    """No path leaves a group and returns, and the groups together make no cycle."""
    owner = {n: i for i, group in enumerate(groups) for n in group}
    edges = {}
    for node in gm.graph.nodes:
        mine = owner.get(node.name, node.name)
        edges.setdefault(mine, set()).update(
            owner.get(s.name, s.name) for s in node.all_input_nodes if owner.get(s.name, s.name) != mine
        )
    list(graphlib.TopologicalSorter(edges).static_order())


@pytest.mark.parametrize("chunk", range(10))
def test_a_thousand_random_graphs(chunk):
    for seed in range(chunk * 100, chunk * 100 + 100):
        r = random.Random(seed)
        gm = random_graph(r)
        wanted = gm(X, X + 1)
        whole = fx.GraphModule(gm, fx.Graph())
        whole.graph = _copy(gm.graph)
        share = r.random()
        picks = {n.name: r.random() < share for n in gm.graph.nodes}
        others = {n.name: r.random() < share for n in gm.graph.nodes}
        size = r.randint(1, 3)
        compilers = [
            Fixed("one", lambda n: picks[n.name], min_size=size, priority=1),
            Fixed("two", lambda n: others[n.name]),
        ]
        result = partition(gm, compilers)
        parts = [
            {n.name for n in whole.graph.nodes if n.name in g or (n.target is _first and n.args[0].name in g)}
            for g in groups_of(result)
        ]
        assert_convex(whole, parts)
        for claim in result.claims:
            assert claim.compiler == "two" or len(claim.nodes) >= size
        gm.graph.lint()
        for a, b in zip(gm(X, X + 1), wanted, strict=True):
            assert torch.equal(a, b)


def _copy(graph):
    made = fx.Graph()
    made.output(made.graph_copy(graph, {}))
    return made


def test_groups_are_maximal():
    """Claiming everything gives one group; a chain around one refused op gives two."""
    gm = set_fake_values(fx.symbolic_trace(lambda x: torch.relu(torch.neg(x + 1)) * 2), [X])
    result = partition(gm, [Fixed("all", lambda n: True)])
    assert len(result.claims) == 1
    assert result.percent == 100
    gm = set_fake_values(fx.symbolic_trace(lambda x: torch.relu(torch.neg(x + 1)) * 2), [X])
    result = partition(gm, [Fixed("most", lambda n: n.target is not torch.neg or "no neg here")])
    assert len(result.claims) == 2
    assert "most refused 1: no neg here (neg)" in str(result)


def test_a_side_branch_joins_the_later_group():
    """a -> c and u -> b -> c with u refused: a, b and c are one group, though u comes between a and c in order."""
    owner = [0, 1, 2, 3]
    groups = grow_clusters([[], [], [1], [0, 2]], owner, [True, False, True, True])
    assert groups == [[0, 2, 3]]


def test_large_graphs_are_quick():
    r = random.Random(1)
    inputs = [r.sample(range(max(0, i - 10), i), min(i, 2)) for i in range(5000)]
    calls = []
    sys.setprofile(lambda *event: calls.append(None))
    try:
        grow_clusters(inputs, list(range(5000)), [r.random() < 0.8 for _ in range(5000)])
    finally:
        sys.setprofile(None)
    assert len(calls) < 100 * len(inputs)


def test_facts_and_cost_refuse_with_reasons():
    gm = set_fake_values(fx.symbolic_trace(lambda x: torch.relu(x).double() + 1), [X])
    compiler = Fixed("f32", lambda n: True, dtypes=frozenset({torch.float32}))
    result = partition(gm, [compiler])
    assert ("f32", "dtype float64") in result.refused
    assert result.claimed == 1
    gm = set_fake_values(fx.symbolic_trace(lambda x: torch.relu(x) + 1), [X])
    compiler = Fixed("costly", lambda n: True)
    compiler.cost = lambda nodes: -1.0
    assert "costs more" in str(partition(gm, [compiler]))


def test_nothing_moves_across_a_write():
    def program(x):
        y = x * 2
        z = torch.relu(x)
        x.add_(1)
        return y + z + torch.neg(x)

    gm = set_fake_values(fx.symbolic_trace(program), [X.clone()])
    wanted = program(X.clone())
    result = partition(gm, [Fixed("all", lambda n: True)])
    assert len(result.claims) == 3
    assert torch.equal(gm(X.clone()), wanted)


def test_weights_are_constants_of_the_group_and_stay_current():

    class Program(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return torch.relu(x @ self.w)

    module = Program()
    gm = set_fake_values(fx.symbolic_trace(module), [X])

    class Baked(Fixed):
        def compile(self, graph, example_inputs):
            weight = graph.w.detach().clone()
            return lambda x: torch.relu(x @ weight)

    result = partition(gm, [Baked("baked", lambda n: True)])
    with torch.no_grad():
        torch.testing.assert_close(gm(X), module(X))
        module.w.mul_(2)
        torch.testing.assert_close(gm(X), module(X))
    assert result.claims[0].group.compiles == 2
    (gm(X).sum()).backward()
    assert module.w.grad is not None


def claimed(compiler, config=None):
    gm = set_fake_values(fx.symbolic_trace(lambda x: torch.relu(x) + 1), [X])
    result = partition(gm, [compiler], config=config or Config(strict=False, cache=False))
    return gm, result.claims[0].group


def test_compiled_once_for_each_shape():
    gm, group = claimed(Fixed("all", lambda n: True))
    for rows in (3, 3, 5, 3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(gm(x), torch.relu(x) + 1)
    assert (group.compiles, group.calls) == (2, 5)


BAD = {
    "raises": (lambda g, i: 1 / 0, "ZeroDivisionError"),
    "returns nothing": (lambda g, i: None, "can't be called"),
    "wrong shape": (lambda g, i: lambda x: x.sum(), "output 0 is torch.float32"),
    "wrong dtype": (lambda g, i: lambda x: g(x)[0].half(), "output 0 is torch.float16"),
    "wrong count": (lambda g, i: lambda x: (x, x), "2 outputs instead of 1"),
    "raises at run time": (lambda g, i: lambda x: 1 / 0, "ZeroDivisionError"),
    "hangs": (lambda g, i: time.sleep(30), "took longer than"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_compilers_fall_back_with_one_warning(kind):
    compile_, text = BAD[kind]

    class Bad(Fixed):
        def compile(self, graph, example_inputs):
            return compile_(graph, example_inputs)

    recorder.reset()
    limit = {"timeout": 0.2} if kind == "hangs" else {}
    gm, group = claimed(Bad(kind, lambda n: True, **limit))
    with pytest.warns(FirebrickWarning, match=f"subgraph compiler {kind} failed.*{text}") as caught:
        for _ in range(3):
            torch.testing.assert_close(gm(X), torch.relu(X) + 1)
    assert len(caught) == 1
    gm, _ = claimed(Bad(kind, lambda n: True, **limit), Config(strict=True, cache=False))
    with pytest.raises(BackendError, match=text):
        gm(X)


def test_wrong_values_are_caught_by_verify():
    class Wrong(Fixed):
        def compile(self, graph, example_inputs):
            return lambda x: -graph(x)[0]

    gm, _ = claimed(Wrong("wrong", lambda n: True), Config(strict=True, cache=False, verify_passes=True))
    with pytest.raises(VerificationError, match="computes group_0 wrong"):
        gm(X)


class Saved(Fixed):
    """Its compiled form is a text that is evaluated again."""

    def compile(self, graph, example_inputs):
        return self.deserialize(b"lambda x: (x.relu() + 1,)", graph, example_inputs)

    def serialize(self, compiled):
        return compiled.text

    def deserialize(self, data, graph, example_inputs):
        call = eval(data)
        run = lambda *args: call(*args)
        run.text = data
        return run


def test_disk_cache(tmp_path):
    config = Config(cache_dir=tmp_path)
    for expected in ((1, 0), (0, 1)):
        gm, group = claimed(Saved("saved", lambda n: True), config)
        torch.testing.assert_close(gm(X), torch.relu(X) + 1)
        assert (group.compiles, group.loads) == expected
    (entry,) = (tmp_path / "groups").iterdir()
    entry.write_bytes(entry.read_bytes()[:-1])
    gm, group = claimed(Saved("saved", lambda n: True), config)
    torch.testing.assert_close(gm(X), torch.relu(X) + 1)
    assert (group.compiles, group.loads) == (1, 0)


def test_threads_compile_once():
    started = threading.Barrier(4)

    class Slow(Fixed):
        def compile(self, graph, example_inputs):
            time.sleep(0.05)
            return graph.forward

    gm, group = claimed(Slow("slow", lambda n: True))

    def work():
        started.wait()
        assert torch.equal(gm(X), torch.relu(X) + 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert group.compiles == 1


def test_names_must_differ():
    gm = set_fake_values(fx.symbolic_trace(lambda x: torch.relu(x)), [X])
    with pytest.raises(PassError, match="names of their own"):
        partition(gm, [Fixed("a", lambda n: True), Fixed("a", lambda n: True)])


def test_groups_as_operators():
    gm = set_fake_values(fx.symbolic_trace(lambda x: torch.relu(x) + 1), [X])
    partition(gm, [Fixed("op", lambda n: True)], as_op=True)
    assert [str(n.target) for n in gm.graph.nodes if n.op == "call_function"][0] == "firebrick.group.default"
    assert torch.equal(gm(X), torch.relu(X) + 1)
