"""`del obj.__dict__["name"]` in captured code left the attribute where it was."""

import torch

import firebrick


class Thing:
    def __init__(self):
        self.name = 1


def test_attributes_are_gone():
    def program(x, thing):
        own = Thing()
        del own.__dict__["name"], vars(thing)["name"]
        try:
            del vars(thing)["name"]
        except KeyError:
            x = x + 1
        return x * 2, hasattr(own, "name"), hasattr(thing, "name"), own

    compiled = firebrick.compile(program, fullgraph=True)
    for function in (program, compiled):
        thing = Thing()
        made, *has, own = function(torch.ones(2), thing)
        assert made.tolist() == [4.0, 4.0]
        assert has == [False, False]
        assert not vars(thing)
        assert not vars(own)
