"""`explain` of a program whose own functions are compiled: their ops count as captured.

They went to their own compile instead, so that nothing was told of them and their ops counted as missed.
"""

import torch

import firebrick


def test_functions_that_are_compiled_already_are_explained() -> None:
    inner = firebrick.compile(lambda x: x.sin() + 1)
    x, before = torch.ones(3), firebrick.graphs_compiled()

    def program() -> None:
        exec("inner(x)", {"inner": inner, "x": x})

    explanation = firebrick.explain(program)()
    assert (explanation.ops, explanation.captured_ops, len(explanation.graphs)) == (2, 2, 1)
    assert firebrick.graphs_compiled() == before
