"""What a program makes on the CPU of nothing and copies to a GPU is made once, so that the program can be recorded."""

import importlib

import pytest
import torch
from torch._subclasses import FakeTensorMode

from firebrick import host, pipeline
from firebrick.config import Config
from firebrick.runtime.cuda_graphs import recorder_of
from firebrick.runtime.load import resolve
from firebrick.targets.by_device import TARGETS
from firebrick.targets.cuda.cuda_target import CudaTarget
from firebrick.targets.cuda.facts import CARDS

load = importlib.import_module("firebrick.runtime.load")


def mask(like):
    places = torch.arange(len(like))
    return (places[:, None] > places).float().masked_fill(places[:, None] == places, -100.0)


def draw(like):
    return torch.rand(len(like))


def unset(like):
    return torch.empty(len(like))


torch.fx.wrap("mask")
torch.fx.wrap("draw")
torch.fx.wrap("unset")


@pytest.fixture
def table_of(monkeypatch):
    target = CudaTarget(CARDS[90], draws=8)
    monkeypatch.setitem(TARGETS, "cuda", lambda config: target)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)

    def table(fn, *shapes, **settings):
        with FakeTensorMode():
            fakes = [torch.empty(shape, device="cuda") for shape in shapes]
        config = Config(**settings)
        gm = fn if isinstance(fn, torch.fx.GraphModule) else torch.fx.symbolic_trace(fn)
        made = pipeline.inspect_graph(gm, fakes, config)
        return host.generate(made.schedule, {"cuda": target, "cpu": TARGETS["cpu"](config)}, config).table

    return table


def crossings(table):
    return [step for step in table["steps"] if step[0] == "call" and step[1] == "aten::_to_copy"]


def derived(table, monkeypatch, *constants):
    """What the recipe makes, with the CPU in place of the card."""

    def here(kind, name):
        return torch.device("cpu") if kind == "device" else resolve(kind, name)

    monkeypatch.setattr(load, "resolve", here)
    return load._Refresh(table, {})(list(constants))


def three_layers(x, w):
    for _ in range(3):
        x = torch.relu(x @ w + mask(x).to("cuda:0"))
    return x


def test_a_mask_is_made_once_for_all_layers(table_of, monkeypatch):
    table = table_of(three_layers, (16, 16), (16, 16))
    assert not crossings(table)
    (made,) = derived(table, monkeypatch)
    assert torch.equal(made, mask(torch.empty(16)))
    assert recorder_of("g", table, resolve, True) is not None


def test_what_is_returned_is_a_copy(table_of, monkeypatch):
    """The caller may write to it."""
    table = table_of(lambda x: (x + mask(x).to("cuda:0"), mask(x).to("cuda:0", torch.float16)), (16, 16))
    kinds = [table["slots"][table["views"][out[1]][0]][0] for out in table["outputs"]]
    assert not crossings(table)
    assert kinds == ["fresh", "fresh"]
    whole, half = derived(table, monkeypatch)
    assert torch.equal(whole, mask(torch.empty(16)))
    assert torch.equal(half, mask(torch.empty(16)).half())


@pytest.mark.parametrize("make", [lambda x: draw(x), lambda x: unset(x)], ids=["random", "unset"])
def test_what_differs_from_call_to_call_is_not(make, table_of):
    table = table_of(lambda x: x + (make(x) * 2).to("cuda:0"), (16, 16))
    assert len(crossings(table)) == 1
    assert recorder_of("g", table, resolve, True) is None


def test_what_an_argument_decides_is_not(table_of):
    table = table_of(lambda x, y: x + (y.to("cpu") + 1).to("cuda:0"), (16, 16), (16, 16))
    assert len(crossings(table)) == 2


def test_with_folding_off(table_of):
    assert crossings(table_of(lambda x: x + mask(x).to("cuda:0"), (16, 16), fold=False))


def test_a_tensor_of_a_module_that_stayed_on_the_cpu(table_of, monkeypatch):
    kept, graph = torch.ones(16, 16).tril(), torch.fx.Graph()
    x, there = graph.placeholder("x"), graph.call_method("to", (graph.get_attr("kept"), "cuda:0"))
    graph.output((graph.call_function(torch.mul, (x, there)),))
    module = torch.nn.Module()
    module.kept = kept
    table = table_of(torch.fx.GraphModule(module, graph), (16, 16))
    assert not crossings(table)
    assert [row[5] for row in table["slots"] if row[0] == "const"] == ["cpu"]
    (made,) = derived(table, monkeypatch, kept)
    assert torch.equal(made, kept)
    assert recorder_of("g", table, resolve, True) is not None
