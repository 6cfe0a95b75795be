"""DistributedDataParallel with compiled modules, wrappers and steps gives what it gives in plain Python."""

import pytest
from data_parallel import compare, order_of_events

HOW = ("wrapper", "module", "step")


@pytest.mark.compiler
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("normed", {}),
        ("normed", {"gradient_as_bucket_view": True, "broadcast_buffers": False}),
        ("unused", {"find_unused_parameters": True}),
        ("deep", {"bucket_cap_mb": 0.04}),
        ("deep", {"static_graph": True}),
        ("tied", {"bucket_cap_mb": 0.001}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "plain",
)
def test_parameters_after_20_steps_are_those_of_plain_python(ranks, model, how, options):
    graphs = ranks.run(compare, model, how, options)
    assert all(graphs)


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.parametrize("model", ["normed", "deep"])
def test_four_processes(four_ranks, model):
    assert all(four_ranks.run(compare, model, "wrapper", {"bucket_cap_mb": 0.04}))


@pytest.mark.compiler
@pytest.mark.parametrize("how", HOW)
def test_gradients_that_gather_without_sync(ranks, how):
    assert all(ranks.run(compare, "normed", how, {}, 12, 3))


@pytest.mark.compiler
@pytest.mark.parametrize("how", HOW)
def test_buckets_are_sent_while_the_backward_goes_on(ranks, how):
    for events, graphs in ranks.run(order_of_events, how, 0.03):
        assert graphs > 2
        assert events.index("gradient") >= 2, "all gradients come at the end"
        assert events[-1] == "bucket"


@pytest.mark.compiler
def test_one_bucket_is_one_graph(ranks):
    assert [graphs for _, graphs in ranks.run(order_of_events, "wrapper", 25)] == [1, 1]
