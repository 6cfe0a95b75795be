"""GCC converted vectors of bytes to floats one lane at a time, 60 instructions for 16: quantized models spent more time
there than in their products. Through 32-bit integers it takes two instructions, for all values exactly."""

import re

import pytest
import torch

import firebrick
from firebrick.config import Config
from firebrick.targets.cpu.cpu_target import detect
from firebrick.targets.cpu.units import kernel_units
from firebrick.tools.subject import Target, capture

pytestmark = pytest.mark.compiler


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_by_way_of_integers(dtype, wide):
    limits = torch.iinfo(dtype)
    x = torch.arange(limits.min, limits.max + 1).to(dtype)

    def function(x):
        return x.to(wide) * 0.5

    assert torch.equal(firebrick.compile(function, options={"cache": False})(x), function(x))
    (graph,) = capture(Target("function", function, (x,))).graphs
    text = "".join(kernel_units(graph.stages.schedule, detect(Config()), Config()))
    for name in re.findall(r"const [iu](?:8|16)x\d+ (\w+) = ", text):
        assert not re.search(rf"__builtin_convertvector\({name}, f", text)
