"""A graph break in a block that switches `__torch_function__` off left it on, so that it called itself for ever."""

import torch

import firebrick


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            firebrick.graph_break()
            result = func(*args, **(kwargs or {}))
        return result, "tagged"


def test_break_where_it_is_off():
    x = torch.tensor([1.0, 2.0])
    compiled = firebrick.compile(lambda x: torch.sin(x))
    for _ in range(2):
        result, tag = compiled(x.as_subclass(Tagged))
        assert tag == "tagged"
        torch.testing.assert_close(result, torch.sin(x))
