"""`mode="max-autotune"`: matmuls by constant weights take the form that is fastest here."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick
from firebrick.config import Config
from firebrick.passes import tuning
from firebrick.report import recorder
from firebrick.tools.report_page import make_report
from firebrick.tools.subject import Target

pytestmark = pytest.mark.compiler


class Layer(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(48, 96, dtype=dtype), nn.Linear(96, 48, dtype=dtype)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Deep(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def preferred(monkeypatch):
    """Makes one form the fastest, and notes which were measured."""
    measured = []

    def prefer(*names):
        def seconds(runs, inputs):
            for every in runs.values():
                for run in every:
                    run(*inputs)
            measured.append(tuple(runs))
            return {form: 1.0 if form in names else 2.0 for form in runs}

        monkeypatch.setattr(tuning, "_seconds", seconds)
        return measured

    return prefer


def tuned(model, x, tmp_path, **options):
    recorder.reset()
    with torch.no_grad():
        given = {"cache_dir": tmp_path, **options}
        run = firebrick.compile(model.eval(), mode="max-autotune", options=given, fullgraph=True)
        torch.testing.assert_close(run(x), model(x), atol=2e-2 if x.dtype is torch.bfloat16 else 1e-5, rtol=1e-5)
    return list(firebrick.stats()["reasons"].get("tuned", {}))


@pytest.mark.parametrize("form", ["own", "dots", "packed", "call"])
def test_the_fastest_form_is_taken(form, preferred, tmp_path):
    preferred(form)
    lines = tuned(Layer(), torch.randn(40, 48), tmp_path, simd="avx2")
    assert len(lines) == 2
    assert all(f": {form} (" in line for line in lines)


@pytest.mark.parametrize(
    ("form", "op"), [("own", "firebrick.linear"), ("packed", "mkldnn._linear_pointwise"), ("call", "addmm")]
)
def test_the_graph_calls_what_was_chosen(form, op, preferred, tmp_path, caplog):
    preferred(form)
    tuned(Layer(), torch.randn(40, 48), tmp_path, debug="aten", simd="avx2")
    assert caplog.text.count(op) >= 2


def test_bfloat16_has_our_forms_and_onednns(preferred, tmp_path):
    measured = preferred("call")
    tuned(Layer(torch.bfloat16), torch.randn(40, 48, dtype=torch.bfloat16), tmp_path, simd="avx2")
    assert measured
    assert all(
        {"own", "call"} <= set(forms) <= {"own", "wide", "dots", "panels", "packed", "call"} for forms in measured
    )


def test_batches_of_small_matrices_are_measured(preferred, tmp_path):
    measured = preferred("call")
    x = torch.randn(6, 40, 48)
    with torch.no_grad():
        run = firebrick.compile(
            lambda a: a @ a.mT, mode="max-autotune", options={"cache_dir": str(tmp_path), "simd": "avx2"}
        )
        torch.testing.assert_close(run(x), x @ x.mT)
    assert [set(forms) for forms in measured] == [{"own", "call"}]


def test_forms_with_the_same_code_are_measured_once(preferred, tmp_path):
    measured = preferred("own")
    tuned(Layer(), torch.randn(40, 48), tmp_path, simd="avx2")
    assert measured
    assert all("own" in forms and not {"dots", "panels"} <= set(forms) for forms in measured)


def test_equal_parts_are_measured_once(preferred, tmp_path):
    measured = preferred("own")
    tuned(Deep(3), torch.randn(40, 48), tmp_path, simd="avx2")
    assert len(measured) == 2


def test_choices_are_kept_for_other_graphs(preferred, tmp_path):
    measured = preferred("dots")
    tuned(Layer(), torch.randn(40, 48), tmp_path, simd="avx2")
    before = len(measured)
    lines = tuned(Deep(2), torch.randn(40, 48), tmp_path, simd="avx2")
    assert len(measured) == before
    assert len(lines) == 2


def test_another_layout_is_another_choice(preferred, tmp_path):
    measured = preferred("own")
    tuned(Layer(), torch.randn(40, 48), tmp_path, simd="avx2")
    tuned(Layer(), torch.randn(48, 40).t(), tmp_path, simd="avx2")
    assert len(measured) == 4


def test_what_is_hardly_faster_is_not_taken(monkeypatch, tmp_path):
    monkeypatch.setattr(tuning, "_seconds", lambda runs, _: {f: 1.0 if f == "ahead" else 0.99 for f in runs})
    assert all(": ahead (" in line for line in tuned(Layer(), torch.randn(40, 48), tmp_path, simd="avx2"))


def test_without_the_mode_nothing_is_measured(tmp_path):
    recorder.reset()
    with torch.no_grad():
        firebrick.compile(Layer().eval(), options={"cache_dir": tmp_path})(torch.randn(40, 48))
    assert "tuned" not in firebrick.stats()["reasons"]


def test_times_of_real_calls_are_told(tmp_path):
    lines = tuned(Layer(), torch.randn(40, 48), tmp_path)
    assert len(lines) == 2
    assert all(line.startswith("addmm ") and " ms" in line for line in lines)


def test_a_form_that_cannot_be_built_is_left_out(preferred, monkeypatch, tmp_path):
    measured = preferred("own")
    real = tuning.Tuner._run

    def run(self, part, rewrite, constants):
        code, runs = real(self, part, rewrite, constants)
        if "_reorder_linear_weight" in str(code):
            raise RuntimeError("no such kernel")
        return code, runs

    monkeypatch.setattr(tuning.Tuner, "_run", run)
    tuned(Layer(), torch.randn(40, 48), tmp_path, simd="avx2")
    assert all("packed" not in forms and "call" in forms for forms in measured)
    assert any("packed" in text and "no such kernel" in text for text in firebrick.stats()["reasons"]["not tuned"])


def test_explain_and_the_report_tell_what_was_measured(preferred, tmp_path, monkeypatch):
    preferred("library")
    tuned(Layer(), torch.randn(4, 48), tmp_path)
    seen = firebrick.explain(Layer())(torch.randn(4, 48))
    assert seen.choices == list(recorder.stats()["reasons"]["tuned"])
    assert any(line.startswith("measured ") and " ms" in line for line in str(seen).splitlines())
    assert seen.to_dict()["choices"] == seen.choices
    monkeypatch.setenv("FIREBRICK_AUTOTUNE", "1")
    tuning.chosen.clear()
    page = make_report(Target("layer", Layer().eval(), (torch.randn(4, 48),)), Config.from_env())
    (section,) = [s for s in page.sections if s.title == "Measured"]
    assert section.head == ("part", "choice and times") and all(" ms" in row[1] for row in section.rows)
