"""The five models of the foundation: one graph, no breaks, error against float64 within 1.1 times eager's."""

import pytest
import torch

import firebrick
from firebrick.tools.contender import flatten, relative_error
from firebrick.tools.models import build_model

pytestmark = [pytest.mark.models, pytest.mark.compiler]

SIZES = {
    "bert": {"layers": 2},
    "minilm": {},
    "gpt2": {"layers": 2},
    "vit": {"layers": 2},
    "resnet50": {},
}


def reference(name):
    model, inputs = build_model(name, **SIZES[name])
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    with torch.no_grad():
        return flatten(model.double()(**inputs))


@pytest.mark.parametrize("name", SIZES)
def test_model_is_one_graph_and_as_exact_as_eager(name):
    firebrick.reset()
    model, inputs = build_model(name, **SIZES[name])
    exact = reference(name)
    compiled = firebrick.compile(model, fullgraph=True)
    before = firebrick.graphs_compiled()
    with torch.no_grad():
        eager = flatten(model(**inputs))
        result = compiled(**inputs)
        again = compiled(**inputs)
    assert firebrick.graphs_compiled() - before == 1
    assert type(result) is type(model(**inputs))
    assert relative_error(flatten(result), exact) <= 1.1 * relative_error(eager, exact) + 1e-6
    for a, b in zip(flatten(result), flatten(again), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_changed_weights_give_changed_results():
    firebrick.reset()
    model, inputs = build_model("bert", layers=1)
    compiled = firebrick.compile(model)
    with torch.no_grad():
        compiled(**inputs)
        model.encoder.layer[0].output.dense.weight.mul_(1.5)
        torch.testing.assert_close(flatten(compiled(**inputs))[0], flatten(model(**inputs))[0], rtol=1e-4, atol=1e-5)
        model.encoder.layer[0].output.dense.weight = torch.nn.Parameter(torch.randn(768, 3072) * 0.02)
        torch.testing.assert_close(flatten(compiled(**inputs))[0], flatten(model(**inputs))[0], rtol=1e-4, atol=1e-5)
        state = {k: v * 0.9 for k, v in model.state_dict().items()}
        model.load_state_dict(state)
        torch.testing.assert_close(flatten(compiled(**inputs))[0], flatten(model(**inputs))[0], rtol=1e-4, atol=1e-5)


def test_kernels_do_not_grow_with_depth():
    counts = []
    for layers in (2, 4):
        model, inputs = build_model("bert", layers=layers)
        before = firebrick.stats()["counts"].get("kernels", 0)
        with torch.no_grad():
            firebrick.compile(model, options={"cache": False})(**inputs)
        counts.append(firebrick.stats()["counts"]["kernels"] - before)
    assert counts[0] == counts[1] > 0
