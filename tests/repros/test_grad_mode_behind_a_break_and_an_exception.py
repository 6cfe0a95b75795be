"""A block entered behind a graph break put back the grad mode that its continuation began with, not the one before it."""

import pytest
import torch

import firebrick


def two_blocks(x):
    with torch.no_grad():
        firebrick.graph_break()
    with torch.no_grad():
        raise NameError


def break_in_both(x):
    with torch.no_grad():
        firebrick.graph_break()
    with torch.no_grad():
        x = x * 2
        firebrick.graph_break()
    raise NameError


def switched_between(x):
    torch.set_grad_enabled(False)
    firebrick.graph_break()
    with torch.enable_grad():
        torch.set_grad_enabled(False)
        with torch.enable_grad():
            x = x * 2
            firebrick.graph_break()
        if torch.is_grad_enabled():
            raise ValueError
    raise NameError


def other_modes_around(x):
    torch.set_grad_enabled(False)
    firebrick.graph_break()
    torch.set_grad_enabled(True)
    with torch.autocast("cpu"), torch.no_grad():
        x = x * 2
        raise NameError


def switch_as_block(x):
    with torch.set_grad_enabled(False):
        with torch.set_grad_enabled(True):
            firebrick.graph_break()
            x = x * 2
        with torch.set_grad_enabled(True):
            raise NameError


def switch_made_before(x):
    switch = torch.set_grad_enabled(False)
    torch.set_grad_enabled(True)
    with switch:
        if torch.is_grad_enabled():
            raise ValueError
        raise NameError


PROGRAMS = [two_blocks, break_in_both, switched_between, other_modes_around, switch_as_block, switch_made_before]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_grad_mode_is_that_of_plain_python(program):
    modes = []
    with torch.enable_grad():
        for function in (program, firebrick.compile(program, backend="eager")):
            torch.set_grad_enabled(True)
            with pytest.raises(NameError):
                function(torch.ones(2))
            modes.append(torch.is_grad_enabled())
    assert modes[0] == modes[1]
