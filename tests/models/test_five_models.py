"""The five models of the foundation: one graph, no breaks, error against float64 within 1.1 times eager's."""

import pytest
import torch

import firebrick
from firebrick.passes.modules import output_error, tensors_of
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
        return tensors_of(model.double()(**inputs))


@pytest.mark.parametrize("name", SIZES)
def test_model_is_one_graph_and_as_exact_as_eager(name):
    firebrick.reset()
    model, inputs = build_model(name, **SIZES[name])
    exact = reference(name)
    compiled = firebrick.compile(model, fullgraph=True)
    before = firebrick.graphs_compiled()
    with torch.no_grad():
        eager = tensors_of(model(**inputs))
        result = compiled(**inputs)
        again = compiled(**inputs)
    assert firebrick.graphs_compiled() - before == 1
    assert type(result) is type(model(**inputs))
    ours, theirs = (output_error([exact], [[t.double() for t in side]]) for side in (tensors_of(result), eager))
    assert ours <= 1.1 * theirs + 1e-6
    for a, b in zip(tensors_of(result), tensors_of(again), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_changed_weights_give_changed_results():
    firebrick.reset()
    model, inputs = build_model("bert", layers=1)
    compiled = firebrick.compile(model)
    with torch.no_grad():
        compiled(**inputs)
        model.encoder.layer[0].output.dense.weight.mul_(1.5)
        torch.testing.assert_close(
            tensors_of(compiled(**inputs))[0], tensors_of(model(**inputs))[0], rtol=1e-4, atol=1e-5
        )
        model.encoder.layer[0].output.dense.weight = torch.nn.Parameter(torch.randn(768, 3072) * 0.02)
        torch.testing.assert_close(
            tensors_of(compiled(**inputs))[0], tensors_of(model(**inputs))[0], rtol=1e-4, atol=1e-5
        )
        state = {k: v * 0.9 for k, v in model.state_dict().items()}
        model.load_state_dict(state)
        torch.testing.assert_close(
            tensors_of(compiled(**inputs))[0], tensors_of(model(**inputs))[0], rtol=1e-4, atol=1e-5
        )


def test_kernels_do_not_grow_with_depth():
    counts = []
    for layers in (2, 4):
        model, inputs = build_model("bert", layers=layers)
        before = firebrick.stats()["counts"].get("kernels", 0)
        with torch.no_grad():
            firebrick.compile(model, options={"cache": False})(**inputs)
        counts.append(firebrick.stats()["counts"]["kernels"] - before)
    assert counts[0] == counts[1] > 0
