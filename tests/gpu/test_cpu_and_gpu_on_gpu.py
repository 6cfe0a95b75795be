"""Programs for a GPU that make tensors on the CPU too, or of Python's numbers: compiled once, and recorded."""

import pytest
import torch
import torch.nn.functional as F

import firebrick


def masked(x):
    places = torch.arange(x.shape[-1])
    mask = (places[:, None] > places).float().masked_fill(places[:, None] == places, -100.0)
    return (x @ x + mask.to(x.device)).softmax(-1) @ x


def literals(x):
    sizes = torch.tensor([[3.0, 5.0], [7.0, 9.0]], device=x.device)
    return (x.view(-1, 2) @ sizes).relu() @ sizes, torch.as_tensor([1, 2, 3], device=x.device)


def drawing(x):
    torch.rand([])
    y = (x @ x).relu() @ x
    return y * torch.rand(x.shape[0]).to(x.device)


def points(x):
    image = (x @ x).view(1, 1, *x.shape)
    return F.grid_sample(image, x[:8, :8].reshape(1, 8, 4, 2).tanh(), align_corners=False).softmax(-1) @ x[:4, :4]


@pytest.mark.parametrize("fn", [masked, literals, drawing, points], ids=lambda fn: fn.__name__)
def test_compiled_once_and_recorded(fn):
    firebrick.reset()
    run, xs = firebrick.compile(fn, options={"graphs": True}), [torch.randn(64, 64, device="cuda") for _ in range(2)]
    compiled = None
    with torch.no_grad():
        for k in range(8):
            torch.manual_seed(k)
            want, state = fn(xs[k % 2]), torch.get_rng_state()
            torch.manual_seed(k)
            made = run(xs[k % 2])
            torch.testing.assert_close(made, want, atol=1e-3, rtol=1e-3)
            assert torch.equal(torch.get_rng_state(), state)
            compiled = compiled or firebrick.stats()["graphs_compiled"]
    told = firebrick.stats()
    assert told["graphs_compiled"] == compiled, told["reasons"]
    assert told["counts"].get("CUDA graphs: recorded"), told["reasons"]
