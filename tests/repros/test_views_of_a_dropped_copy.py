"""`a + 0` stood for `a`, whose memory begins elsewhere; views of it kept the offsets that they had in the copy."""

import torch

from firebrick import pipeline
from firebrick.config import Config
from firebrick.passes.layout import check_layouts


def test_offsets_of_views_are_those_of_what_they_view():
    def function(x):
        return (x + 0).narrow(0, 6, 2)

    x = torch.arange(10)[2:]
    stages = pipeline.inspect_graph(torch.fx.symbolic_trace(function), [x], Config.from_env())
    check_layouts(stages.aten.gm)
