"""The toy function of the post that introduced TorchDynamo: exactly its two graphs and its two guards."""

import operator

import torch

import firebrick


def fn(a, b):
    x = a + b
    x = x / 2.0
    if x.sum() < 0:
        return x * -1.0
    return x


def collecting():
    graphs = []

    def compiler(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    return graphs, compiler


def rows(gm):
    return [(node.op, node.target) for node in gm.graph.nodes]


def test_toy_function_gives_the_posts_two_graphs():
    firebrick.reset()
    graphs, compiler = collecting()
    with firebrick.optimize(compiler):
        negative = fn(-torch.ones(10), -torch.ones(10))
        positive = fn(torch.ones(10), torch.ones(10))
    assert torch.equal(negative, torch.ones(10))
    assert torch.equal(positive, torch.ones(10))
    assert len(graphs) == 2
    first, second = graphs
    assert [op for op, _ in rows(first)] == ["placeholder"] * 2 + [
        "call_function",
        "call_function",
        "call_method",
        "call_function",
        "output",
    ]
    assert [target for op, target in rows(first) if op.startswith("call")] == [
        operator.add,
        operator.truediv,
        "sum",
        operator.lt,
    ]
    assert [len(node.args[0]) for node in first.graph.nodes if node.op == "output"] == [2]
    assert [target for op, target in rows(second) if op == "call_function"] == [operator.mul]
    assert [op for op, _ in rows(second)] == ["placeholder", "call_function", "output"]


def test_toy_function_is_guarded_by_its_two_tensors():
    firebrick.reset()
    explanation = firebrick.explain(fn)(torch.ones(10), torch.ones(10)).to_dict()
    assert explanation["frames"][0]["guards"] == ["a: f32[10] cpu", "b: f32[10] cpu"]


def test_run_compiles_nothing_new():
    firebrick.reset()
    graphs, compiler = collecting()
    with firebrick.optimize(compiler):
        fn(torch.ones(10), torch.ones(10))
    count = len(graphs)
    with firebrick.run():
        assert torch.equal(fn(torch.ones(10), torch.ones(10)), torch.ones(10))
        assert torch.equal(fn(-torch.ones(4), -torch.ones(4)), torch.ones(4))
    assert len(graphs) == count
