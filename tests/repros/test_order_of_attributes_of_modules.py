"""A module's attribute that was taken from `__dict__` and written again kept its place among the attributes."""

import torch

import firebrick


class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.value = torch.ones(2)


def test_an_attribute_that_is_taken_and_written_again_is_the_last():
    def step(holder, x):
        holder.__dict__["other"] = holder.__dict__.pop("value")
        vars(holder)["value"] = x + 1
        return x * 2

    plain, compiled = Holder(), Holder()
    step(plain, torch.ones(3))
    firebrick.compile(step)(compiled, torch.ones(3))
    assert list(vars(compiled)) == list(vars(plain))
    assert torch.equal(compiled.value, plain.value)
    assert torch.equal(compiled.other, plain.other)
