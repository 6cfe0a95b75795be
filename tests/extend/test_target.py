"""Targets: the texts that they write, and programs that run in their memory."""

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from python_target import PythonTarget
from tests.ir.interp import run

import firebrick
from firebrick.backends.engines import LoopCompiler, compile_placed, engine_backend
from firebrick.config import Config
from firebrick.extend import Refused, Templates
from firebrick.ir.loops.scalar_ops import SCALAR_OPS
from firebrick.lower import lower
from firebrick.targets.cpu.cpu_target import detect

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "targets"), str(TESTS / "lower")]
from graphs import HOST, trace  # noqa: E402
from random_graphs import make  # noqa: E402

TARGETS = {
    "python": PythonTarget,
    "python in blocks": lambda: PythonTarget(16),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("seed", range(8))
def test_random_programs_in_a_targets_memory(name, seed):
    fn, inputs = make(seed)
    aten = trace(fn, inputs)
    wanted = run(lower(aten, HOST, Config()), [x.clone() for x in inputs], aten.constants)
    target = TARGETS[name]()
    compiler = LoopCompiler(target)
    for node in aten.gm.graph.nodes:
        if node.op == "call_function":
            node.meta["device"] = compiler.device
    made = compile_placed(aten, [compiler], Config())
    for _ in range(2):
        for want, have in zip(wanted, made(*inputs), strict=True):
            tolerance = {torch.bfloat16: 2e-2, torch.float64: 1e-12}.get(want.dtype, 2e-5)
            torch.testing.assert_close(have, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert target.live <= len(aten.constants), "what a call allocates it gives back"
    del made
    assert target.live == 0


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x, index):
        y = self.norm(x + self.down(F.gelu(self.up(x))))
        return torch.softmax(y, -1)[index] * torch.where(x.sum(-1, keepdim=True) > 0, x, 0.5), y.cumsum(1)


@pytest.mark.parametrize("name", TARGETS)
def test_loops_behind_ops(name):
    torch.manual_seed(0)
    model, texts = Net().eval(), []
    compiled = firebrick.compile(model, backend=engine_backend(LoopCompiler(TARGETS[name]()), report=texts.append))
    with torch.no_grad():
        for rows in (3, 3, 4):
            given = torch.randn(rows, 5, 8), torch.randint(0, rows, (rows,))
            for have, want in zip(compiled(*given), model(*given), strict=True):
                torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)
    assert "ops claimed (100 %)" in texts[0]


class Poor(PythonTarget):
    """It has f32 and few functions, no masks and no library."""

    dtypes = {"f32": "dtypes['f32']"}

    def __init__(self):
        super().__init__()
        self.functions = {"float": {n: self.functions["float"][n] for n in ("add", "mul", "exp", "div")}}
        self.templates = Templates(
            kernel="def {name}(program, lane, {params}):\n{body}",
            number="number({value}, {t})",
            load="load({buffer}, {t}, {index}, None)",
            store="store({buffer}, {t}, {index}, {value}, None)",
        )

    def runs(self, op):
        return False


def test_what_a_target_lacks_is_refused_with_a_reason():
    def program(x):
        y = (torch.exp(x) * 2 + 1) @ x
        z = torch.cat([torch.tanh(y), y], 1) + y.sum(-1, keepdim=True)
        return z, torch.argmax(z, 1) + 1, x.double().exp()

    x = torch.randn(4, 4)
    texts = []
    compiled = firebrick.compile(program, backend=engine_backend(LoopCompiler(Poor()), report=texts.append))
    for have, want in zip(compiled(x), program(x), strict=True):
        torch.testing.assert_close(have, want)
    for reason in ("no kernel for aten::mm", "no tanh of f32", "dtype float64", "dtype int64"):
        assert reason in texts[0], texts[0]
    assert "python: " in texts[0]


class OnlyMatmuls(PythonTarget):
    def runs(self, op):
        return op.startswith(("aten::mm", "aten::bmm"))


@pytest.mark.parametrize("case", ["plain", "bool mask", "float mask", "causal", "scale", "turned"])
def test_attention_without_a_kernel_is_matmuls_and_a_softmax(case):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 9, 8)
    seen = torch.rand(2, 1, 9, 9) > 0.3
    seen[0, 0, 1] = False  # a query that sees nothing
    if case == "turned":
        q = q.transpose(1, 2).contiguous().transpose(1, 2)
    named = {
        "bool mask": {"attn_mask": seen},
        "float mask": {"attn_mask": torch.randn(9, 9)},
        "causal": {"is_causal": True},
        "scale": {"scale": 0.5},
    }.get(case, {})
    texts = []
    compiled = firebrick.compile(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **named),
        backend=engine_backend(OnlyMatmuls(), report=texts.append),
    )
    have, want = compiled(q, k, v), F.scaled_dot_product_attention(q, k, v, **named)
    torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-5)
    assert have.stride() == want.stride()
    assert "(100 %)" in texts[0]


def test_each_scalar_function_has_a_row_in_c():
    table = detect(Config()).functions
    for name, row in SCALAR_OPS.items():
        for kind in row.takes.split():
            assert name in ("where", "to", "drawn") or name in table[kind], (name, kind)


def test_numbers_and_types():
    target = PythonTarget()
    target.templates = Templates()
    assert [target.constant(v, "f32") for v in (1.0, float("inf"), float("-inf"), float("nan"))] == [
        "1.0",
        'float("inf")',
        '-float("inf")',
        'float("nan")',
    ]
    assert target.constant(3, "i64") == "3"
    assert target.constant(True, "b8") == "True"
    with pytest.raises(Refused, match="no lgamma of f32"):
        Poor().function("lgamma", "f32", ["x"])
    with pytest.raises(Refused, match="no f64"):
        Poor().type("f64")


def test_inputs_of_another_layout():
    target = PythonTarget()
    compiled = firebrick.compile(lambda x: x + 1, backend=engine_backend(LoopCompiler(target)))
    x = torch.randn(5, 9).t()[2:5, 1:]
    torch.testing.assert_close(compiled(x), x + 1)
    assert target.live == 0


def test_a_target_beside_the_compilers_own_kernels():
    """Through `passes=`, what the target lacks goes to Firebrick, in one compiled graph."""

    class Some(LoopCompiler):
        def supports(self, node):
            return "tanh" in str(node.target) or super().supports(node) is True and "mul" in str(node.target)

    before = firebrick.graphs_compiled()
    compiled = firebrick.compile(lambda x: torch.softmax(torch.tanh(x * 2) @ x, -1), passes=[Some(PythonTarget())])
    x = torch.randn(6, 6)
    torch.testing.assert_close(compiled(x), torch.softmax(torch.tanh(x * 2) @ x, -1))
    assert firebrick.graphs_compiled() == before + 1
    assert compiled is not None


def test_gradients_go_through_the_ops_themselves():
    compiled = firebrick.compile(lambda x: torch.tanh(x) * 2, passes=[LoopCompiler(PythonTarget())])
    x = torch.randn(3, requires_grad=True)
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * (1 - torch.tanh(x.detach()) ** 2))
