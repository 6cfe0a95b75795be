"""Writing to an inference tensor outside inference mode is an error, which is raised where the program does it."""

import pytest
import torch

import firebrick


def multiplied_into(x, t):
    torch.mul(x, x, out=t)


def added_to(x, t):
    t.add_(x)


def added_to_a_view(x, t):
    t.view(3)[:2].add_(1)


def made_before_a_break(x, t):
    with torch.inference_mode():
        t = x + 1
    t.add_(x)


@pytest.mark.parametrize("backend", ["eager", "firebrick"])
@pytest.mark.parametrize("write", [multiplied_into, added_to, added_to_a_view, made_before_a_break])
def test_the_error_can_be_caught_where_it_is_raised(write, backend):
    def f(x, t):
        try:
            write(x, t)
        except RuntimeError as error:
            return str(error)[:26]
        return "written"

    results = []
    for call in (f, firebrick.compile(f, backend=backend)):
        with torch.inference_mode():
            t = torch.ones(3)
        results.append((call(torch.ones(3), t), t.tolist()))  # eager writes, then raises
    assert results[0] == results[1]
    assert results[0][0] == "Inplace update to inferenc"


def test_views_of_inference_tensors_are_inference_tensors():
    with torch.inference_mode():
        t = torch.arange(6.0)

    def f(t):
        return t.view(2, 3).t(), t[2:].view(torch.int32), t * 2

    one, two, three = firebrick.compile(f)(t)
    assert (one.is_inference(), two.is_inference(), three.is_inference()) == tuple(r.is_inference() for r in f(t))
    assert torch.equal(one, t.view(2, 3).t()) and torch.equal(two, t[2:].view(torch.int32))
    assert one.data_ptr() == t.data_ptr() and two.data_ptr() == t[2:].data_ptr()


def test_inside_inference_mode_it_is_written():
    with torch.inference_mode():
        t = torch.ones(3)
        firebrick.compile(added_to, fullgraph=True)(torch.ones(3), t)
    assert t.tolist() == [2, 2, 2]
