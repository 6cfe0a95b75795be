"""The table of every way to bring an optimization of one's own."""

import importlib.util
import io
import math

import pytest
from rich.console import Console

from bench.byo import Row, byo, markdown, tables

pytestmark = [pytest.mark.models, pytest.mark.slow]


@pytest.fixture(scope="module")
def rows():
    return byo(["bert"], layers=1, seconds=0.01, methods=("swaps", "rewrites", "subgraphs"))


def test_every_method_matches_and_is_right(rows):
    found = {row.method: row for row in rows if row.model == "bert"}
    assert not [row.failed for row in found.values() if row.failed]
    exact = [m for m in found if not m.startswith("swap: ") or "QKV" in m]
    assert all(found[m].error < 1e-5 for m in exact), {m: found[m].error for m in exact}
    assert found["FX rule: attention -> SDPA"].matched == "1 places"
    assert found["FX rule: constants into matmul"].matched == "1 places"
    assert found["FX rule: three linears -> one"].matched == "1 places"
    assert found["swap: fused QKV"].matched == "3 modules"
    assert " % in " in found["FX subgraphs: matmul + div"].matched


def test_wrong_passes_are_caught(rows):
    wrong = [row for row in rows if row.model == "wrong passes"]
    assert [row.method for row in wrong] == ["verify: sign flipped", "verify: dtype changed", "verify: aliasing broken"]
    assert all(row.matched.startswith("skipped: ") and row.error == 0 for row in wrong)


def test_speech_probabilities_are_equal(rows):
    (row,) = [row for row in rows if row.model == "silero-vad"]
    if importlib.util.find_spec("silero_vad") is None:
        pytest.skip("silero-vad is not installed")
    assert not row.failed
    assert row.error < 1e-5
    assert row.before > 0 and row.after > 0


def test_tables_fit_eighty_columns(rows):
    text = io.StringIO()
    wide = Row("bert", "engine: ONNX Runtime", "100 % in 12 groups", 1e-7, 12345.0, 1234.0)
    missing = Row("bert", "engine: Eigen", failed="no C++ compiler is installed" * 3)
    for table in tables([*rows, wide, missing]):
        Console(file=text, width=80).print(table)
    assert max(map(len, text.getvalue().splitlines())) <= 80
    assert "attention -> SDPA" in text.getvalue()
    page = markdown([*rows, wide], "python -m bench.byo bert")
    assert "Made by `python -m bench.byo bert`" in page
    assert "| engine: ONNX Runtime | 100 % in 12 groups | 1.0e-07 | 12345 | 1234 | 10.00 |" in page
    assert math.isnan(missing.after)
