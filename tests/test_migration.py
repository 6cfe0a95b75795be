"""docs/migration.md: each row is run."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._dynamo
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

import firebrick
from firebrick.config import TORCH_LOGS, Config
from firebrick.errors import ConfigError, RecompileError, Unsupported
from firebrick.tools.cli import app

X = torch.randn(3, 4)
ROWS = re.findall(r"^\| (.+?) \|", (Path(__file__).parents[1] / "docs/migration.md").read_text(), re.MULTILINE)
pytestmark = pytest.mark.compiler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).relu()


NET = Net().eval()


def same(fn, *args, **options):
    """Whether a compiled function gives the same; its graphs."""
    before = firebrick.graphs_compiled()
    torch.testing.assert_close(firebrick.compile(fn, **options)(*args), fn(*args))
    return firebrick.graphs_compiled() - before


def breaks(fn):
    return [row["name"] for row in firebrick.explain(fn)(X).to_dict()["breaks"]]


def helps(command):
    return CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def keeps_its_class():
    compiled = firebrick.compile(Net())
    return isinstance(compiled, Net) and [*compiled.state_dict()] == ["linear.weight", "linear.bias"]


def a_class():
    kind = type("Kind", (Net,), {})
    return firebrick.compile(kind) is kind and kind()(X).shape == X.shape


def module_compile():
    net = Net()
    net.compile(backend="firebrick")
    return net(X).shape == X.shape


def raises(error, fn, *args, **options):
    with pytest.raises(error):
        firebrick.compile(fn, **options)(*args)
    return True


def sizes(**options):
    before, compiled = firebrick.graphs_compiled(), firebrick.compile(lambda x: x * 2, **options)
    for n in (3, 5, 7):
        compiled(torch.ones(n))
    return firebrick.graphs_compiled() - before


def marked(mark):
    x = torch.ones(3, 4)
    mark(x, 0)
    before, compiled = firebrick.graphs_compiled(), firebrick.compile(lambda x: x * 2)
    compiled(x), compiled(torch.ones(6, 4))
    return firebrick.graphs_compiled() - before


def backward_in_one():
    with firebrick.compiled_backward():
        net = firebrick.compile(Net())
        net(X).sum().backward()
    return net.linear.weight.grad is not None


def with_a_torch_break(x):
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2


def reuse():
    compiled, before = firebrick.compile(lambda x: x + 1), firebrick.graphs_compiled()
    firebrick.run(compiled)(X)
    return firebrick.graphs_compiled() == before


def stances():
    compiled = firebrick.compile(lambda x: x + 1)
    compiled(X)
    for stance in (firebrick.set_stance, torch.compiler.set_stance):
        with stance("fail_on_recompile"), pytest.raises(RecompileError):
            compiled(X.double()[None])
        with stance("force_eager"):
            assert same(lambda x: x - 3, X) == 0
    with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
        return torch.equal(compiled(X.double()), X.double() + 1)


def honoured_setting():
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        return sizes() == 3


class Cosine(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return (torch.cos if function is torch.sin else function)(*args, **(kwargs or {}))


def function_mode():
    def enters(x):
        with Cosine():
            return torch.sin(x) * 2

    compiled = firebrick.compile(lambda x: torch.sin(x) * 2)
    with Cosine():
        torch.testing.assert_close(compiled(X), X.cos() * 2)
    torch.testing.assert_close(firebrick.compile(enters, fullgraph=True)(X), X.cos() * 2)
    return breaks(enters) == []


def dispatch_mode():
    seen = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    before, compiled = firebrick.graphs_compiled(), firebrick.compile(lambda x: torch.sin(x) * 2)
    with Seeing():
        compiled(X)
    return seen == ["aten.sin.default", "aten.mul.Tensor"] and firebrick.graphs_compiled() == before


def exported(tmp_path):
    program = firebrick.export(NET, (X,))
    torch.testing.assert_close(program.to_torch().module()(X)[0], NET(X))
    return isinstance(program.to_torch(), torch.export.ExportedProgram)


def onnx(tmp_path):
    pytest.importorskip("onnxscript")
    firebrick.export(NET, (X,)).to_onnx(tmp_path / "net.onnx")
    return (tmp_path / "net.onnx").exists()


def saved(tmp_path):
    compiled = firebrick.compile(NET)
    with torch.no_grad():
        compiled(X)
        firebrick.save(compiled, tmp_path / "net.firebrick")
        torch.testing.assert_close(firebrick.load(tmp_path / "net.firebrick")(X), NET(X))
    return True


def heard():
    kinds = []
    with firebrick.extend.listening(lambda kind, data: kinds.append(kind)):
        compiled = firebrick.compile(lambda x: x * 2, options={"cache": False})
        compiled(X), compiled(torch.ones(9))
    return {"capture", "recompile", "pass"} <= {*kinds}


def profiled():
    with torch.profiler.profile() as profile:
        firebrick.compile(lambda x: x * 3, options={"cache": False})(X)
    return {"firebrick: capture", "firebrick: codegen"} <= {event.key for event in profile.key_averages()}


def page(tmp_path):
    firebrick.explain(with_a_torch_break)(X).to_html(tmp_path / "page.html")
    return "requested" in (tmp_path / "page.html").read_text()


torch_disabled = torch.compiler.disable(lambda x: x.sin())
own_disabled = firebrick.disable(lambda x: x.sin())
region = torch.compiler.nested_compile_region(lambda x: x.sin())
compiled_before, torch_compiled_before = firebrick.compile(lambda x: x.cos()), torch.compile(lambda x: x.tan())
constant = torch.compiler.assume_constant_result(lambda: 3)
allowed = torch.compiler.allow_in_graph(lambda x: x.sin())
on_arrays = torch.compiler.wrap_numpy(lambda a: np.sin(a) * 2)
CHECKS = {
    "torch.compile(fn)": keeps_its_class,
    "torch.compile of a class": a_class,
    "Module.compile()": module_compile,
    "fullgraph=True": lambda: raises(Unsupported, lambda x: x if x.sum() > 0 else -x, X, fullgraph=True),
    "dynamic=": lambda: sizes(dynamic=True) == 1 and sizes(dynamic=False) == 3,
    "mode=": lambda: all(
        same(NET, X, mode=mode) >= 0
        for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
    ),
    "backend=": lambda: "inductor" in firebrick.list_backends() and same(NET, X, backend="aot_eager") == 0,
    "options=": lambda: raises(ConfigError, NET, X, options={"epilogue_fusion": True}) and helps("options"),
    "torch._functorch.config.activation_memory_budget": lambda: same(Net(), X, options={"memory_budget": 0.5}) == 1,
    "torch._dynamo.compiled_autograd": backward_in_one,
    "nested_compile_region": lambda: same(lambda x: region(x) + region(x + 1), X, fullgraph=True) == 1,
    "functions that are compiled already, in compiled code": lambda: (
        same(lambda x: compiled_before(x) * torch_compiled_before(x), X, fullgraph=True, backend="eager") >= 0
    ),
    "torch._dynamo.reset": lambda: firebrick.reset() is None,
    "torch._dynamo.graph_break": lambda: breaks(with_a_torch_break) == ["requested"],
    "torch.compiler.disable": lambda: (
        breaks(lambda x: torch_disabled(x) + 1) == breaks(lambda x: own_disabled(x) + 1) == ["disabled-function"]
    ),
    "torch._dynamo.run": reuse,
    "torch.compiler.allow_in_graph": lambda: same(lambda x: allowed(x) + 1, X, fullgraph=True) == 1,
    "torch.compiler.assume_constant_result": lambda: same(lambda x: x * constant(), X, fullgraph=True) == 1,
    "torch.compiler.is_compiling": lambda: bool(
        firebrick.compile(lambda x: x * torch.compiler.is_compiling() * firebrick.is_compiling())(X).equal(X)
    ),
    "torch.compiler.cudagraph_mark_step_begin": lambda: (
        same(lambda x: (torch.compiler.cudagraph_mark_step_begin(), x + 1)[1], X, fullgraph=True) == 1
    ),
    "torch.compiler.set_stance": stances,
    "guard_filter_fn": lambda: raises(ConfigError, NET, X, options={"guard_filter_fn": list}),
    "torch.compiler.config and torch._dynamo.config": honoured_setting,
    "mark_dynamic, mark_static": lambda: marked(firebrick.mark_dynamic) == marked(torch._dynamo.mark_dynamic) == 1,
    "mark_static_address": lambda: same(lambda x: (torch._dynamo.mark_static_address(x), x + 1)[1], X) == 1,
    "nonstrict_trace, substitute_in_graph, wrap_numpy": lambda: same(lambda x: on_arrays(x), X, fullgraph=True) == 1,
    "tensor subclasses with __tensor_flatten__": None,  # tests/capture/test_subclasses and others
    "a user's TorchFunctionMode": function_mode,
    "a user's TorchDispatchMode": dispatch_mode,
    "torch.export.export": exported,
    "torch.onnx.export": onnx,
    "AOTInductor packages": saved,
    "TORCHINDUCTOR_CACHE_DIR": lambda: (
        str(Config.from_env({"FIREBRICK_CACHE_DIR": "/x"}).cache_dir) == "/x" and helps("cache")
    ),
    "torch._dynamo.explain": page,
    "TORCH_LOGS=graph_code,output_code,guards": lambda: (
        [TORCH_LOGS[name] for name in ("graph_code", "output_code", "guards")] == [("graph",), ("code",), ("guards",)]
    ),
    "TORCH_TRACE and tlparse": lambda: helps("report"),
    "hooks on guards and recompiles": heard,
    "torch._dynamo.utils.counters": lambda: {"counts", "reasons", "seconds"} <= {*firebrick.stats()},
    "profiler ranges of compiles": profiled,
    "TORCHDYNAMO_REPRO_AFTER": lambda: helps("minify"),
    "TORCHDYNAMO_REPRO_LEVEL=4": lambda: helps("bisect") and "accuracy" in Config.from_env({"FIREBRICK_CHECK": "accuracy"}).check,
}  # fmt: skip


def plain(row):
    return row.replace("`", "")


def test_every_row_is_run():
    assert {plain(row) for row in ROWS if row not in ("torch", "---")} == {*CHECKS}


@pytest.mark.parametrize("row", [row for row, check in CHECKS.items() if check])
def test_row(row, tmp_path):
    firebrick.reset()
    check = CHECKS[row]
    assert check(tmp_path) if "tmp_path" in check.__code__.co_varnames[: check.__code__.co_argcount] else check()
