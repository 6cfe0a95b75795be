"""`firebrick profile`: ops, modules and kernels with their time, work and memory, eager beside compiled."""

import json

import pytest
import torch
from typer.testing import CliRunner

from firebrick.tools import costs
from firebrick.tools.cli import app
from firebrick.tools.profile import profile_target, tables
from firebrick.tools.subject import Target, capture

pytestmark = pytest.mark.compiler

MODEL = """
import torch
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)
    def forward(self, x):
        return self.norm(x + torch.nn.functional.gelu(self.up(x)))
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Block() for _ in range(3)])
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
def make():
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(32, 64),)
"""
SCRIPT = """
import torch
def f(x):
    return torch.sin(x) * 2.0 + x
for _ in range(3):
    f(torch.ones(1000))
print("done")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "profiled_model.py").write_text(MODEL)
    (tmp_path / "profiled_script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def found(here):
    return profile_target(Target.load("profiled_model:make"), runs=2)


def test_work_is_counted_the_same_way_eager_and_compiled(found):
    flops = [sum(r.gflops * r.ms for r in rows) for rows in (found.eager_ops, found.compiled_ops)]
    assert flops[0] == pytest.approx(3 * 2 * 32 * 64 * 64 / 1e6, rel=0.01)
    assert flops[1] == pytest.approx(flops[0], rel=0.01)


def test_compiled_rows_are_kernels_and_calls_with_the_users_line(found):
    norms = [row for row in found.compiled_ops if row.name.endswith("add_layer_norm")]
    assert sum(row.calls for row in norms) == 3
    assert all(row.where.endswith("profiled_model.py:8") and row.gbytes > 0 for row in norms)


def test_modules_stand_eager_beside_compiled(found):
    rows = {row.name: row for row in found.modules}
    assert rows["Block"].calls == 3
    assert set(rows) == {"Net", "Block", "Linear", "LayerNorm"}
    assert 0 < rows["LayerNorm"].compiled_ms < rows["Block"].compiled_ms <= rows["Net"].compiled_ms * 1.001


def test_the_tables_agree(found):
    for rows, whole in ((found.eager_ops, found.eager_profiled_ms), (found.compiled_ops, found.compiled_profiled_ms)):
        assert sum(row.ms for row in rows) == pytest.approx(whole)
        assert sum(row.share for row in rows) == pytest.approx(1)
    modules = {row.name: row for row in found.modules}
    kernels = sum(row.ms for row in found.compiled_ops if row.calls)
    assert 0.5 * found.eager_profiled_ms < modules["Net"].eager_ms <= found.eager_profiled_ms
    assert modules["Net"].compiled_ms == pytest.approx(kernels)
    parts = sum(modules[name].compiled_ms for name in ("Linear", "LayerNorm"))
    assert parts <= modules["Block"].compiled_ms == pytest.approx(modules["Net"].compiled_ms)


def test_the_last_line_of_a_table_is_the_sum_of_those_shown_and_left_out(found):
    table = tables(found, top=2)[0]
    cells = [column._cells for column in table.columns if column.header in ("name", "ms")]
    names, times = cells
    assert names[2:] == [f"{len(found.eager_ops) - 2} more", "all, under the profiler"]
    assert sum(map(float, times[:3])) == pytest.approx(float(times[3]), abs=0.002)


def test_fused_results_take_less_memory(found):
    assert 0 < found.compiled_mib <= found.eager_mib


def test_tables_and_json_print(here, tmp_path):
    result = CliRunner().invoke(app, ["profile", "profiled_model:make", "--json", "--trace", "t.json"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["ceilings"]["gflops"] > 0
    names = {e.get("name", "") for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"]}
    assert any(n.startswith("fused_") and "profiled_model.py:8" in n for n in names)
    assert (tmp_path / "t.eager.json").exists()


def test_a_script_is_profiled_whole_and_prints_to_stderr(here, capsys):
    found = profile_target(Target.load("profiled_script.py"))
    assert capsys.readouterr().out == ""
    rows = {r.name: r for r in found.compiled_ops}
    assert rows["fused_sin_mul_add"].calls == 3
    assert "aten::sin" not in rows, "what was compiled in a run before is met again"
    assert len(tables(found)) == 2


def test_lookups_do_not_count_the_whole_table():
    table = torch.randn(10_000, 8)
    with costs.CostMode() as mode:
        torch.nn.functional.embedding(torch.tensor([1, 2]), table)
    assert mode.costs["aten::embedding"].nbytes < 1000


def test_bytes_of_a_step_are_what_it_reads_and_writes():
    def f(x, y):
        return torch.sin(x) + y

    captured = capture(Target("f", f, (torch.ones(100), torch.ones(100))))
    assert costs.step_bytes(captured.graphs[0].stages.schedule) == [3 * 400]
    assert costs.peak_bytes(captured.graphs[0].stages.schedule) == 400


def test_peak_memory_counts_what_is_alive():
    with costs.CostMode() as mode:
        a = torch.ones(1024)
        for _ in range(5):
            a = a + 1.0
    assert mode.peak == 2 * 4096
