"""Under max-autotune matmuls have several forms on a GPU: all of them give what eager gives, and the fastest is taken."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from interpreted import AVAILABLE

from firebrick import fuse, host
from firebrick.config import Config
from firebrick.passes import cuda_search
from firebrick.runtime.triton_build import build_cubins, open_cubin
from firebrick.targets.cuda import search

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no triton")

if AVAILABLE:
    from groups import CARDS, CudaTarget
    from interpreted import Runner
    from test_products import kinds
    from tile_agree import decompositions, lower, trace

TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5}


def forms_of(fn, *inputs, pick=0):
    """The graph, the schedule with form number `pick` of each matmul, and what there was to choose from."""
    target, seen = CudaTarget(CARDS[90]), []

    def choose(subjects):
        seen.extend(subjects)
        return [list(s.forms)[pick % len(s.forms)] for s in subjects]

    graph = trace(fn, inputs, decompositions())
    made = fuse.schedule(lower(graph, {"cpu": target}, Config()), {"cpu": target}, Config(), None, choose)
    return graph, made, seen, target


def every_form_agrees(fn, *inputs):
    """The kinds of steps by the name of the form."""
    want, steps = fn(*inputs), {}
    want = want if isinstance(want, tuple) else (want,)
    *_, subjects, _ = forms_of(fn, *inputs)
    names = list(subjects[0].forms)
    for k, name in enumerate(names):
        graph, made, _, target = forms_of(fn, *inputs, pick=k)
        steps[name] = kinds(made)
        results = Runner(made, [target.kernel(kernel) for kernel in made.kernels])(inputs, graph.constants)
        for a, b in zip(want, results, strict=True):
            tolerance = TOLERANCE[inputs[0].dtype]
            torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance * a.abs().max().item(), msg=name)
    return steps


@pytest.fixture(autouse=True)
def few_forms(monkeypatch):
    """Three tiles, one of which parts the depth."""
    tiles = [search.Tile(16, 32, 32, 2, 4), search.Tile(32, 64, 32, 2, 4, 4), search.Tile(64, 32, 64, 3, 4, 2)]
    monkeypatch.setattr(search, "tiles_of", lambda mm, card: tiles)


def tensors(rows, depth, columns, dtype=torch.float16):
    torch.manual_seed(rows)
    x, w, bias = torch.randn(rows, depth), torch.randn(columns, depth) / depth**0.5, torch.randn(columns)
    return x.to(dtype), w.to(dtype), bias.to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_linear_layer_and_its_activation_are_one_kernel(dtype):
    x, w, bias = tensors(40, 136, 104, dtype)
    steps = every_form_agrees(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, bias)
    assert steps == {
        "library": ["aten::addmm.out", "map"],
        "16x32x32": ["matmul"],
        "32x64x32 in 4": ["matmul", "map"],
        "64x32x64 in 2": ["matmul", "map"],
    }


def test_tiles_that_programs_take_in_turn(monkeypatch):
    tiles = [search.Tile(64, 128, 64, 3, 4, programs=5)]
    monkeypatch.setattr(search, "tiles_of", lambda mm, card: tiles)
    x, w, bias = tensors(200, 136, 304)
    for fn, inputs in (
        (lambda x, w, b: F.gelu(F.linear(x, w, b)), (x, w, bias)),
        (lambda x, w, b: F.relu(torch.addmm(b, x, w)) + 1, (x, w.t().contiguous(), bias)),
        (lambda x, w, r: x.t() @ w + r, (x.t().contiguous(), w.t().contiguous(), torch.randn(200, 304).half())),
    ):
        assert every_form_agrees(fn, *inputs)["64x128x64 in turn"] == ["matmul"]


def test_a_result_that_is_used_again_is_stored_too():
    x, w, bias = tensors(17, 64, 40)
    steps = every_form_agrees(lambda x, w, b: (y := F.linear(x, w, b), y.relu() * 3, y.t().contiguous()), x, w, bias)
    assert steps["16x32x32"][0] == "matmul"


def test_residuals_are_added_and_other_orders_are_read():
    x, w, _ = tensors(24, 96, 48)
    rest, other = torch.randn(2, 12, 1, 12).half(), torch.randn(2, 4, 12, 12).half()
    steps = every_form_agrees(lambda x, w, r: F.linear(x, w).view(2, 12, 4, 12) * 0.5 + r, x, w, rest)
    assert steps["16x32x32"] == ["matmul"]
    every_form_agrees(lambda x, w, r: F.linear(x, w).view(2, 12, 4, 12).transpose(1, 2) + r, x, w, other)


def test_kernels_that_fold_rows_read_sums_of_parts():
    x, w, bias = tensors(5, 256, 64)
    steps = every_form_agrees(
        lambda x, w, b, y: F.layer_norm(F.linear(x, w, b) + y, (64,)), x, w, bias, torch.randn(5, 64).half()
    )
    assert steps["16x32x32"] == ["matmul", "rows"]
    assert steps["32x64x32 in 4"] == ["matmul", "rows"]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_batches_of_matrices(dtype):
    torch.manual_seed(0)
    x, y = torch.randn(3, 20, 72).to(dtype), torch.randn(3, 72, 33).to(dtype)
    steps = every_form_agrees(lambda x, y: torch.bmm(x, y).relu(), x, y)
    assert steps["16x32x32"] == ["matmul"]
    every_form_agrees(lambda x, y: torch.bmm(x.transpose(1, 2), y.transpose(1, 2)), y, x)


def test_products_of_two_matrices_and_one():
    x, w, _ = tensors(24, 64, 48)
    steps = every_form_agrees(lambda x, g, u: F.silu(x @ g.t()) * (x @ u.t()), x, w, w.flip(0).contiguous())
    assert sorted(steps["16x32x32"]) == ["matmul", "matmul"]
    every_form_agrees(lambda x: x @ x.t(), x)


def test_a_matrix_is_added():
    x, w, _ = tensors(24, 64, 48)
    every_form_agrees(lambda b, x, w: torch.addmm(b, x, w.t()), torch.randn(24, 48).half(), x, w)
    every_form_agrees(lambda b, x, w: torch.addmm(b, x, w.t()), torch.randn(24, 1).half(), x, w)


def test_the_fastest_form_is_taken_and_kept_unless_it_is_wrong(monkeypatch):
    x, w, bias = tensors(40, 64, 48)
    *_, subjects, target = forms_of(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, bias)
    store, timed = {}, []

    def fetch(key, make):
        name = tuple(key.values())
        if name not in store:
            store[name] = make()
        return store[name]

    def load(artifact, constants):
        wrong = [step[0] for step in artifact.table["steps"]].count("call") + len(artifact.units) == 1
        return lambda *inputs: (torch.full((40, 48), 2.0 if wrong else 1.0),)

    def seconds(runs, inputs):
        timed.append(list(runs))
        return {form: 1.0 / (k + 1) for k, form in enumerate(runs)}

    def built(units, *rest):
        return {u.name: b"code" for u in units}

    monkeypatch.setattr(cuda_search, "seconds_of", seconds)
    monkeypatch.setattr(cuda_search, "build_cubins", built)
    monkeypatch.setattr(cuda_search, "chosen", {})
    tuner = SimpleNamespace(ground="", fetch=fetch, load=load)
    choose = cuda_search.StepSearch(tuner, host.generate, {"cpu": target}, Config())
    assert choose(subjects * 2) == ["64x32x64 in 2"] * 2
    assert timed == [["library", "32x64x32 in 4", "64x32x64 in 2"]]
    monkeypatch.setattr(cuda_search, "chosen", {})
    assert choose(subjects) == ["64x32x64 in 2"]
    assert len(timed) == 1
    monkeypatch.setattr(cuda_search, "chosen", {})
    monkeypatch.setattr(cuda_search, "_MEASURING", -1.0)  # there was no time
    store.clear()
    assert choose(subjects) == ["library"]


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_tiles_are_built(arch, dtype, tmp_path, monkeypatch):
    monkeypatch.undo()
    x, w, bias = tensors(40, 512, 768, dtype)
    *_, subjects, _ = forms_of(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, bias)
    target = CudaTarget(CARDS[arch])
    for form in list(subjects[0].forms)[1:]:
        units = target.units(subjects[0].program(form), Config())
        code = build_cubins(units, tmp_path, 1, 120)
        assert all(open_cubin(c)[0]["shared"] <= CARDS[arch].shared_bytes for c in code.values())
