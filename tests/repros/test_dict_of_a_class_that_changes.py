"""`vars(cls)["name"]` was taken as it was at capture in every later call."""

import torch
from compiling import Compiled


def test_dict_of_a_class_that_changes():
    class State:
        scale = 2.0

    compiled = Compiled(lambda x: x * vars(State)["scale"])
    x = torch.ones(2)
    assert compiled(x).tolist() == [2.0, 2.0]
    State.scale = 3.0
    assert compiled(x).tolist() == [3.0, 3.0]
