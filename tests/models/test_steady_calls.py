"""Models that set themselves up in their first call are one graph from the second on."""

import copy
import itertools

import pytest
import torch

import firebrick

models = pytest.importorskip("transformers")


def segformer():
    sizes = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]}
    return models.SegformerForSemanticSegmentation(models.SegformerConfig(**sizes, decoder_hidden_size=16))


def test_segformer_calls_one_graph():
    """As `bench/gpu.py` calls it: a copy of the model has run before, and two inputs take turns."""
    torch.manual_seed(0)
    model, x, ran = segformer().eval(), torch.randn(1, 3, 64, 64), []

    def noting(gm, inputs):
        def run(*args):
            ran.append(gm)
            return gm.forward(*args)

        return run

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=False):
        want = copy.deepcopy(model)(x)[0]
        compiled, inputs = firebrick.compile(model, backend=noting), itertools.cycle((x, x.clone()))
        for call in range(6):
            ran.clear()
            torch.testing.assert_close(compiled(next(inputs))[0], want)
            if call == 1:
                told, whole = firebrick.stats(), ran[-1]
            assert call == 0 or ran == [whole]
    assert firebrick.stats() == told
