"""A user's passes and compilers of subgraphs on CUDA tensors: step by step and in programs that are recorded."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick
from firebrick.extend import SubgraphCompiler, call_of, graph_pass, rule
from firebrick.report import FirebrickWarning

DEVICE = "cuda"
GRAPHS = pytest.mark.parametrize("graphs", [False, True])
aten = torch.ops.aten


def rand(*shape):
    return torch.randn(*shape, device=DEVICE)


@pytest.fixture(autouse=True)
def _fresh():
    firebrick.reset()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(64, 128), nn.Linear(128, 64), nn.LayerNorm(64)

    def forward(self, x):
        return self.norm(x + self.down(F.gelu(self.up(x)) / 2.0)).softmax(-1)


def agree(fn, run, make, calls=8):
    """Results of several calls, with other tensors each."""
    for _ in range(calls):
        x = make()
        with torch.no_grad():
            torch.testing.assert_close(run(x), fn(x), rtol=1e-4, atol=1e-5)


def gelu_over(x, c: float):
    return F.gelu(x) / c


def gelu_times(x, c: float):
    return F.gelu(x) * (1 / c)


@GRAPHS
def test_a_rule_and_a_pass(graphs):
    seen = []

    @graph_pass(name="count_devices", level="aten")
    def count_devices(gm):
        seen.extend(n.meta["val"].device.type for n in gm.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor))
        return False

    @graph_pass(name="add_one", level="torch")
    def add_one(gm):
        output = gm.graph.output_node()
        (result,) = output.all_input_nodes
        with gm.graph.inserting_before(output):
            output.replace_input_with(result, gm.graph.call_function(torch.add, (result, 1.0)))
        return True

    net = Net().to(DEVICE).eval()
    step = rule(gelu_over, gelu_times, name="gelu_times")
    options = {"graphs": graphs, "verify_passes": True, "cache": False}
    agree(net, firebrick.compile(net, passes=[step, count_devices], options=options), lambda: rand(32, 64))
    assert set(seen) == {DEVICE}
    run = firebrick.compile(net, passes=[add_one], options={"graphs": graphs})
    agree(lambda x: net(x) + 1, run, lambda: rand(32, 64))


def test_a_wrong_rule_is_noticed_and_skipped():
    step = rule(gelu_over, lambda x, c: F.gelu(x) * c, name="wrong_gelu")
    net, x = Net().to(DEVICE).eval(), rand(32, 64)
    run = firebrick.compile(net, passes=[step], options={"verify_passes": True, "strict": False})
    with pytest.warns(FirebrickWarning, match="wrong_gelu"), torch.no_grad():
        torch.testing.assert_close(run(x), net(x), rtol=1e-4, atol=1e-5)


class Matmuls(SubgraphCompiler):
    """Matmuls, and divisions by numbers behind them."""

    def __init__(self, name, **attributes):
        self.name, self.groups, self.calls = name, [], 0
        for key, value in attributes.items():
            setattr(self, key, value)

    def supports(self, node):
        call = call_of(node)
        by_number = call.name == "div" and isinstance(call.arguments["other"], (int, float))
        return call.name in ("mm", "addmm", "t", "permute", "transpose") or by_number

    def compile(self, graph, example_inputs):
        self.groups.append([t.device.type for t in example_inputs])

        def run(*inputs):
            self.calls += 1
            assert all(t.device.type == DEVICE for t in inputs)
            return graph.forward(*inputs)

        return run


@GRAPHS
@pytest.mark.parametrize("attributes", [{}, {"contiguous": True}], ids=str)
def test_a_claimed_subgraph(graphs, attributes):
    net, mine = Net().to(DEVICE).eval(), Matmuls("matmuls", **attributes)
    run = firebrick.compile(net, passes=[mine], options={"graphs": graphs})
    agree(net, run, lambda: rand(32, 64))
    assert mine.groups
    assert all(kind == DEVICE for group in mine.groups for kind in group)
    assert mine.calls >= 8, "an engine's calls are never replayed"
    agree(net, run, lambda: rand(48, 64))
    agree(net, run, lambda: rand(64, 32).t())


def test_an_engine_for_cpus_is_not_given_a_gpus_tensors():
    net, mine = Net().to(DEVICE).eval(), Matmuls("for_cpus", devices=frozenset({"cpu"}))
    agree(net, firebrick.compile(net, passes=[mine]), lambda: rand(32, 64))
    assert not mine.groups


def test_an_engine_that_raises_is_replaced():
    class Broken(Matmuls):
        def compile(self, graph, example_inputs):
            raise RuntimeError("no such kernel")

    net, x = Net().to(DEVICE).eval(), rand(32, 64)
    run = firebrick.compile(net, passes=[Broken("broken_engine")], options={"strict": False})
    with pytest.warns(FirebrickWarning, match="broken_engine"), torch.no_grad():
        torch.testing.assert_close(run(x), net(x), rtol=1e-4, atol=1e-5)


def test_an_engine_in_training():
    losses = []
    for engine in (None, Matmuls("matmuls_trained")):
        torch.manual_seed(1)
        net = Net().to(DEVICE)
        run = net if engine is None else firebrick.compile(net, passes=[engine])
        optimizer, seen = torch.optim.SGD(net.parameters(), lr=0.1), []
        for _ in range(6):
            loss = (run(rand(32, 64)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        losses.append(seen)
        assert engine is None or engine.groups
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_an_engine_on_a_stream_of_the_users():
    net, mine = Net().to(DEVICE).eval(), Matmuls("matmuls_on_a_stream")
    run, stream = firebrick.compile(net, passes=[mine]), torch.cuda.Stream()
    with torch.no_grad():
        for _ in range(6):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                x = rand(512, 64)
                made, want = run(x), net(x)
            stream.synchronize()
            torch.testing.assert_close(made, want, rtol=1e-4, atol=1e-5)


@GRAPHS
def test_an_engine_of_ones_own_triton_kernels(graphs):
    triton_kernels = pytest.importorskip("own_triton_kernels", reason="no triton")

    class Kernels(SubgraphCompiler):
        """`x * x + 1` of each element, in a kernel of the user's."""

        name, calls = "own_triton", 0

        def supports(self, node):
            return call_of(node).name in ("mul", "add")

        def compile(self, graph, example_inputs):
            assert [call_of(n).name for n in graph.graph.nodes if n.op == "call_function"] == ["mul", "add"]

            def run(x):
                Kernels.calls += 1
                return triton_kernels.square_plus_one(x)

            return run

    def program(x):
        y = (x @ x.t()).sigmoid()
        return (y * y + 1).softmax(-1)

    run = firebrick.compile(program, passes=[Kernels()], options={"graphs": graphs})
    agree(program, run, lambda: rand(32, 64) / 8)
    assert Kernels.calls >= 8
