"""Linear layers take the kernel that was measured to be fastest on this processor, without a compile of the others."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick
from firebrick.config import Config
from firebrick.errors import CacheError
from firebrick.ir.operators.convolution_op import pack_convolution_op
from firebrick.report import recorder
from firebrick.targets import by_device
from firebrick.targets.cpu import measured_runs, measuring
from firebrick.targets.cpu.choices import BROAD, COLUMNS
from firebrick.targets.cpu.convolution_probe import ConvolutionProbe
from firebrick.targets.cpu.cpu_target import CpuTarget, detect
from firebrick.targets.cpu.depthwise_kernel import lanes_of, results_of
from firebrick.targets.cpu.matmul_kernel import REGISTERS, vectors_ahead
from firebrick.targets.cpu.matmul_probe import MatmulProbe
from firebrick.targets.cpu.measured_runs import attended

pytestmark = pytest.mark.compiler
needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="MKL")
OPS = {
    "own": "firebrick.linear",
    "dots": "'dots'",
    "ahead": "'ahead'",
    "packed": "mkldnn._linear_pointwise",
    "mkl": "mkl._mkl_linear",
    "call": "addmm",
}
FORMS = [pytest.param(form, marks=needs_mkl if form == "mkl" else ()) for form in OPS]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(48, 96), nn.Linear(96, 48)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Turned(nn.Module):
    """Weights lie [inner, outer], as GPT-2 has them."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(48, 64)), nn.Parameter(torch.randn(64))

    def forward(self, x):
        return torch.relu(torch.addmm(self.bias, x, self.weight))


@pytest.fixture
def fastest(monkeypatch):
    """Makes one form the fastest; returns what was asked for."""
    asked = []
    monkeypatch.setattr(by_device, "REST", 0)

    def prefer(name):
        def measured(self, op, args, forms, config):
            asked.append((op, dict(forms)))
            return {form: 1.0 if form == name else 2.0 for form in forms}

        monkeypatch.setattr(CpuTarget, "measured", measured)
        return asked

    return prefer


def compiled(model, tmp_path, **options):
    recorder.reset()
    given = {"cache_dir": tmp_path, "simd": "avx2", "measure": True, **options}
    return firebrick.compile(model.eval(), options=given, fullgraph=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model", [Layer, Turned])
def test_the_fastest_form_is_taken_and_right(form, model, fastest, tmp_path, caplog):
    if (form, model) == ("dots", Turned):
        pytest.skip("its rows do not lie along the sum")
    fastest(form)
    x, layer = torch.randn(40, 48), model()
    with torch.no_grad():
        run = compiled(layer, tmp_path, debug="aten")
        results, again = run(x), run(x.clone())
        exact = layer.double()(x.double())
    assert OPS[form] in caplog.text
    torch.testing.assert_close(results, exact.float(), atol=2e-6, rtol=2e-6)
    assert torch.equal(results, again)
    assert all(f": {form} (" in line for line in firebrick.stats()["reasons"]["tuned"])


def test_what_a_form_leaves_to_loops_counts(fastest, tmp_path):
    asked = fastest("own")
    with torch.no_grad():
        compiled(Layer(), tmp_path)(torch.randn(40, 48))
    assert [op for op, _ in asked] == ["aten::mm"] * 2
    assert all(forms["own"] == 0 and forms["call"] == 1 for _, forms in asked)


def test_what_takes_a_small_part_of_the_time_is_not_measured(fastest, monkeypatch, tmp_path):
    asked, model = fastest("call"), nn.Sequential(Layer(), nn.Linear(48, 2))
    monkeypatch.setattr(by_device, "REST", 0.1)
    with torch.no_grad():
        compiled(model, tmp_path)(torch.randn(40, 48))
    assert [op for op, _ in asked] == ["aten::mm"] * 2


@pytest.mark.parametrize("cache", [True, False])
def test_the_first_compile_of_a_machine_builds_while_it_captures(cache, monkeypatch, tmp_path):
    begun = []
    monkeypatch.setattr(CpuTarget, "prepare", lambda self, calls, config: begun.append([op for op, _ in calls]))
    model, x = nn.Sequential(nn.Conv2d(8, 16, 3), nn.Flatten(), nn.Linear(64, 8)), torch.randn(2, 8, 4, 4)
    for turn in range(2):
        firebrick.reset()
        with torch.no_grad():
            compiled(model, tmp_path, measure=True, cache=cache, recompile_limit=8 + turn)(x)
    early, exact = ["aten::mm", "aten::convolution"], ["aten::convolution", "aten::mm"]
    assert begun == ([early, exact] if cache else [early, exact] * 2)


def test_a_choice_does_not_change_within_a_process(fastest, tmp_path):
    x, model = torch.randn(40, 48), Layer()
    results = []
    for form in ("packed", "call"):
        asked = fastest(form)
        firebrick.reset()
        with torch.no_grad():
            results.append(compiled(model, tmp_path, recompile_limit=8 + len(results), fold=not results)(x))
    assert len(asked) == 2
    assert torch.equal(*results)


def test_choices_are_kept_for_the_processor_and_its_threads(fastest, monkeypatch, tmp_path):
    asked = fastest("call")
    with torch.no_grad():
        for model in ("one", "one", "other"):
            monkeypatch.setattr(CpuTarget, "model", lambda _, model=model: model)
            firebrick.reset()
            compiled(Layer(), tmp_path)(torch.randn(40, 48))
    assert len(asked) == 4


@pytest.mark.parametrize("options", [{"deterministic": True}, {"numerics": "eager"}, {"measure": False}], ids=str)
def test_nothing_is_measured_where_kernels_are_to_be_the_same_everywhere(options, fastest, tmp_path):
    asked = fastest("call")
    with torch.no_grad():
        compiled(Layer(), tmp_path, **options)(torch.randn(40, 48))
    assert not asked


def test_files_have_measured_choices_only_where_asked_and_for_one_processor(fastest, monkeypatch, tmp_path):
    asked, x, model = fastest("call"), torch.randn(40, 48), Layer()
    with torch.no_grad():
        for measure in (None, True):
            firebrick.reset()
            run = compiled(model, tmp_path / str(measure), measure=measure)
            run(x)
            before = len(asked)
            firebrick.save(run, tmp_path / f"{measure}.fb")
            assert len(asked) == before
            torch.testing.assert_close(firebrick.load(tmp_path / f"{measure}.fb")(x), model(x))
        monkeypatch.setattr(CpuTarget, "model", lambda _: "another processor")
        firebrick.load(tmp_path / "None.fb")
        with pytest.raises(CacheError, match="another processor"):
            firebrick.load(tmp_path / "True.fb")


def race(**calls):
    """`measuring.race` of forms whose calls take these seconds, in turn, on a clock of the test's own."""
    now = [0.0]

    def form(seconds):
        left = itertools.cycle(seconds)
        return lambda: now.__setitem__(0, now[0] + next(left))

    return measuring.race({name: form(times) for name, times in calls.items()}, lambda: None, lambda: now[0])


def test_a_race_takes_the_least_of_calls_that_agree():
    times = race(own=[3e-4], packed=[2e-4, 9e-4, 2.01e-4], mkl=[20e-4])
    assert min(times, key=times.get) == "packed"
    assert times["packed"] == pytest.approx(2e-4)


def test_a_race_that_noise_decides_is_undecided():
    assert race(own=[4e-3], packed=[1e-3, *(8e-3 * 1.1**i for i in range(24))]) == {}


def test_a_race_is_decided_where_two_calls_beat_all_of_the_other():
    times = race(own=[3e-3 * 1.2 ** (30 - i) for i in range(25)], packed=[2e-3])
    assert min(times, key=times.get) == "packed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("turned", [True, False])
def test_kernels_are_measured_by_functions_of_any_shape(dtype, turned, monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(measuring, "race", lambda runs, evict: seen.update(runs) or dict.fromkeys(runs, 1.0))
    monkeypatch.setattr(measuring, "_OVERHEAD", 0)
    config = Config.from_env().with_options({"cache_dir": tmp_path})
    weight = torch.empty(500, 200, dtype=dtype).t() if turned else torch.empty(200, 500, dtype=dtype)
    for rows in (1, 5, 150):
        forms = {"own": 0, "dots": 0, "panels": 0, "call": 1} if turned else {"own": 0, "call": 1}
        target = detect(config)
        if not target.vector_bytes:
            pytest.skip("no vectors")
        times = measuring.measure(target, config, "aten::mm", (torch.empty(rows, 200, dtype=dtype), weight), forms)
        assert {"own", "call"} <= times.keys()
        assert len(times) == (3 if turned else 2)


@pytest.mark.parametrize("cache", [1 << 18, 1 << 21])
def test_functions_of_any_shape_compute_the_same_as_the_library(cache, tmp_path):
    config = Config.from_env().with_options({"cache_dir": tmp_path})
    target = replace(detect(config), cache=cache)
    if not target.vector_bytes:
        pytest.skip("no vectors")
    probe = MatmulProbe(target, config, False)
    for rows, inner, outer in ((1, 768, 320), (7, 96, 64), (130, 64, 2048), (33, 1024, 96)):
        for turned, form in ((True, "dots"), (True, "panels"), (False, "panels")):
            x, bias, out = torch.randn(rows, inner), torch.randn(outer), torch.empty(rows, outer)
            weight = torch.randn(outer, inner).t() if turned else torch.randn(inner, outer)
            probe.run(probe.plan(form, (rows, inner, outer), turned), (x, weight, bias), out)()
            torch.testing.assert_close(out, torch.addmm(bias, x, weight), atol=1e-4, rtol=1e-4)
        width = vectors_ahead(REGISTERS[target.vector_bytes]) * target.vector_bytes // 4
        packed = pack_convolution_op(weight.t()[:, :, None, None], width)
        probe.run(probe.plan("ahead", (rows, inner, outer), True), (x, packed, bias), out)()
        torch.testing.assert_close(out, torch.addmm(bias, x, weight), atol=1e-4, rtol=1e-4)


def test_batches_of_any_shape_are_the_librarys(tmp_path):
    config = Config.from_env().with_options({"cache_dir": tmp_path})
    target = detect(config)
    if not target.vector_bytes:
        pytest.skip("no vectors")
    probe = MatmulProbe(target, config, False)
    for batch, rows, inner, outer in ((12, 20, 64, 32), (3, 1, 32, 64), (5, 130, 32, 96)):
        for turned in (True, False):
            x, y = torch.randn(batch, rows, inner), torch.randn(batch, inner, outer)
            y = y.mT.contiguous().mT if turned else y
            out = torch.empty(batch, rows, outer)
            probe.run(probe.plan("own", (rows, inner, outer), turned, batch), (x, y, None), out)()
            torch.testing.assert_close(out, x @ y, atol=1e-4, rtol=1e-4)


ATTENTION = {"own": "firebrick.attention", "call": "_scaled_dot_product_flash_attention_for_cpu"}


def attention_mask(kind, rows, keys):
    masks = {"all": torch.zeros(rows, keys), "keys": torch.zeros(2, 1, 1, keys), "heads": torch.zeros(2, 3, rows, keys)}
    return masks[kind].masked_fill(torch.rand(masks[kind].shape) < 0.3, -math.inf) if kind in masks else None


@pytest.mark.parametrize("kind", ["full", "causal", "keys", "all"])
@pytest.mark.parametrize("form", ATTENTION)
def test_the_fastest_form_of_attention_is_taken_and_right(form, kind, fastest, tmp_path, caplog):
    asked, (q, k, v) = fastest(form), torch.randn(3, 2, 3, 40, 64).unbind()
    mask = attention_mask(kind, 40, 40)

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=kind == "causal")

    recorder.reset()
    options = {"cache_dir": tmp_path, "simd": "avx2", "measure": True, "debug": "aten"}
    with torch.no_grad():
        results = firebrick.compile(attend, options=options, fullgraph=True)(q, k, v)
    assert [op for op, _ in asked] == ["firebrick::attention"]
    assert ATTENTION[form] in caplog.text
    (told,) = firebrick.stats()["reasons"]["tuned"]
    assert told.startswith("_scaled_dot_product_flash_attention_for_cpu of 2x3x40x64")
    assert f": {form} (" in told
    torch.testing.assert_close(results, attend(q, k, v), atol=2e-6, rtol=1e-5)


def test_attention_of_sizes_that_vary_is_not_measured(fastest, tmp_path, caplog):
    asked, options = fastest("call"), {"cache_dir": tmp_path, "simd": "avx2", "measure": True, "debug": "aten"}

    def attend(x):
        q = x.view(x.shape[0], x.shape[1], 2, 64).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q)

    run, x = firebrick.compile(attend, options=options, dynamic=True), torch.randn(2, 40, 128)
    with torch.no_grad():
        torch.testing.assert_close(run(x), attend(x), atol=2e-6, rtol=1e-5)
    assert not asked
    assert ATTENTION["own"] in caplog.text


@pytest.mark.parametrize("kind", ["full", "causal", "keys", "all", "heads"])
def test_attention_of_any_shape_is_the_librarys(kind, tmp_path):
    config = Config.from_env().with_options({"cache_dir": tmp_path})
    target = detect(config)
    if not target.vector_bytes:
        pytest.skip("no vectors")
    for rows, keys in ((1, 70), (100, 100), (33, 300)):
        q, k, v = (torch.randn(2, n, 3, 64).transpose(1, 2) for n in (rows, keys, keys))
        mask = attention_mask(kind, rows, keys)
        out = attended(target, config, (q, k, v), mask, kind == "causal")()[1][-1]
        expected = F.scaled_dot_product_attention(q, k, v, mask, is_causal=kind == "causal", scale=0.125)
        torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["full", "causal", "keys", "all", "heads"])
def test_attention_is_measured_on_a_part_that_is_bounded(kind, monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(measuring, "race", lambda runs, evict: seen.update(runs) or dict.fromkeys(runs, 1.0))
    monkeypatch.setattr(measuring, "_OVERHEAD", 0)
    config = Config.from_env().with_options({"cache_dir": tmp_path})
    target = replace(detect(config), threads=1)
    if not target.vector_bytes:
        pytest.skip("no vectors")
    for batch, heads, rows, keys in ((2, 3, 20, 20), (2, 3, 1, 50), (2, 64, 2000, 1500)):
        q, k, v = (torch.empty(batch, n, heads, 64, device="meta").transpose(1, 2) for n in (rows, keys, keys))
        mask = attention_mask(kind, rows, keys) if heads == 3 or kind in ("keys", "all") else None
        args = q, k, v, mask, kind == "causal"
        assert len(measuring.measure(target, config, "firebrick::attention", args, {"own": 0, "call": 1})) == 2
        ours, eager = seen["own"]()[1][-1], seen["call"]()[0]
        torch.testing.assert_close(ours, eager)
        assert ours.shape == (q.shape if heads == 3 else (1, 4, 768, 64))


CONVOLUTIONS = {
    "images": ((2, 64, 14, 14), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1)),
    "strided": ((1, 32, 60, 60), (32, 32, 5, 5), (2, 2), (2, 1), (1, 1)),
    "dilated": ((1, 512, 9, 9), (256, 512, 3, 3), (1, 1), (0, 0), (2, 2)),
    "pixels": ((1, 96, 7, 7), (160, 96, 1, 1), (1, 1), (0, 0), (1, 1)),
}


@pytest.mark.parametrize("table", [COLUMNS, {size: BROAD[n] for size, n in COLUMNS.items() if n in BROAD}])
@pytest.mark.parametrize("shape", CONVOLUTIONS)
def test_convolutions_of_any_shape_are_the_librarys(shape, table, tmp_path):
    config = Config.from_env().with_options({"cache_dir": tmp_path})
    target = detect(config)
    if target.vector_bytes not in table:
        pytest.skip("no such panels")
    size, window, *how = CONVOLUTIONS[shape]
    probe = ConvolutionProbe(target, config, table[target.vector_bytes])
    x, weight = torch.randn(size).contiguous(memory_format=torch.channels_last), torch.randn(window)
    expected = F.conv2d(x, weight, bias := torch.randn(window[0]), *how)
    out = torch.empty_like(expected, memory_format=torch.channels_last)
    probe.run(x, weight, bias, out, how)()
    torch.testing.assert_close(out, expected, atol=2e-3, rtol=1e-4)


def raced(monkeypatch):
    """Form -> its result, of all that are raced from here on, each of which takes a second."""
    by_form = {}

    def times(runs, evict):
        by_form.update({form: run() for form, run in runs.items()})
        return dict.fromkeys(runs, 1.0)

    monkeypatch.setattr(measuring, "race", times)
    monkeypatch.setattr(measuring, "_OVERHEAD", 0)
    return by_form


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("size", [13, 60])
def test_all_forms_of_a_convolution_are_measured(window, padding, size, monkeypatch, tmp_path):
    by_form = raced(monkeypatch)
    config = Config.from_env().with_options({"cache_dir": tmp_path})
    target = detect(config)
    if not target.vector_bytes:
        pytest.skip("no vectors")
    x, weight = torch.empty(2, 24, size, size), torch.empty(40, 24, window, window)
    args = (x, weight, [1, 1], [padding] * 2, [1, 1], 1, F.conv2d(x, weight, padding=padding))
    forms = {c.name: 0 for c in target.choices("aten::convolution", args) if c.name != "call"}
    assert measuring.measure(target, config, "aten::convolution", args, forms).keys() == forms.keys()
    assert "packed" in by_form


DEPTHWISE = {
    "images": ((2, 96, 14, 13), (3, 3), (1, 1), (1, 1), (1, 1)),
    "strided": ((1, 20, 31, 30), (5, 5), (2, 2), (2, 2), (1, 1)),
    "dilated": ((3, 64, 9, 17), (3, 5), (1, 2), (2, 0), (2, 3)),
    "a wide window": ((1, 33, 1, 50), (1, 31), (1, 1), (0, 15), (1, 1)),
}


@pytest.mark.parametrize("more", [False, True], ids=["plain", "bias and sum"])
@pytest.mark.parametrize("shape", DEPTHWISE)
def test_channels_by_themselves_of_any_shape_are_the_librarys(shape, more, tmp_path):
    config = Config.from_env().with_options({"cache_dir": tmp_path})
    target = detect(config)
    if not target.vector_bytes:
        pytest.skip("no vectors")
    size, window, stride, padding, dilation = DEPTHWISE[shape]
    channels = size[1]
    x, weight = torch.randn(size).contiguous(memory_format=torch.channels_last), torch.randn(channels, 1, *window)
    bias = torch.randn(channels) if more else None
    expected = F.conv2d(x, weight, bias, stride, padding, dilation, channels)
    tile = window[1], stride[1], dilation[1], results_of(expected.shape[3])
    probe = ConvolutionProbe(target, config, (lanes_of(target.vector_bytes, channels), *tile))
    other = torch.randn_like(expected, memory_format=torch.channels_last) if more else None
    out = torch.empty_like(expected, memory_format=torch.channels_last)
    probe.run(x, weight, bias, out, (stride, padding, dilation), other=other)()
    torch.testing.assert_close(out, expected if other is None else expected + other, atol=1e-4, rtol=1e-4)


KINDS = {
    "rows": (F.conv1d, (2, 24, 90), (40, 24, 5), 1),
    "channels of rows": (F.conv1d, (2, 24, 90), (24, 1, 5), 24),
    "channels": (F.conv2d, (2, 24, 13, 40), (24, 1, 3, 3), 24),
    "volumes": (F.conv3d, (2, 24, 5, 13, 9), (32, 24, 3, 3, 3), 1),
    "single places": (F.conv3d, (1, 32, 5, 13, 9), (32, 32, 1, 1, 1), 1),
    "channels of volumes": (F.conv3d, (2, 24, 5, 13, 9), (24, 1, 3, 3, 3), 24),
}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("most", [1 << 27, 1 << 10], ids=["whole", "a part"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_volumes_and_channels_by_themselves_are_measured(kind, most, padding, stride, monkeypatch, tmp_path):
    by_form = raced(monkeypatch)
    monkeypatch.setattr(measured_runs, "_PRODUCTS", most)
    config = Config.from_env().with_options({"cache_dir": tmp_path})
    target = detect(config)
    if not target.vector_bytes:
        pytest.skip("no vectors")
    function, size, window, groups = KINDS[kind]
    x, weight = torch.empty(size), torch.empty(window)
    out, rank = function(x, weight, None, stride, padding, 1, groups), len(size) - 2
    args = (x, weight, [stride] * rank, [padding] * rank, [1] * rank, groups, out)
    forms = {c.name: 0 for c in target.choices("aten::convolution", args) if c.name != "call"}
    assert measuring.measure(target, config, "aten::convolution", args, forms).keys() == forms.keys()
    assert {"packed", "dense" if groups == 1 else "depthwise"} <= forms.keys()
    if padding == 0:  # all tensors hold ones; results are the last that a kernel of ours is given
        ours = {form: run[-1] if isinstance(run, list) else run for form, run in by_form.items() if form != "packed"}
        results = [run[1][-1] for run in ours.values()]
        assert len({t.numel() for t in (*results, by_form["packed"])}) == 1
        for t in results:
            torch.testing.assert_close(t.double().mean(), by_form["packed"].double().mean(), rtol=1e-6, atol=0)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.wide, self.narrow = nn.Conv2d(32, 64, 3), nn.Conv2d(64, 32, 1)

    def forward(self, x):
        return torch.relu(self.narrow(torch.relu(self.wide(x))))


@pytest.mark.parametrize("form", ["dense", "packed", "matmul"])
def test_convolutions_take_the_fastest_form(form, fastest, tmp_path, caplog):
    asked = fastest(form)
    size = 4 if form == "matmul" else 20  # which is a form of few pixels
    x, model = torch.randn(1, 32, size, size), Convolutions()
    with torch.no_grad():
        results = compiled(model, tmp_path, debug="aten")(x)
        exact = model.double()(x.double())
    torch.testing.assert_close(results, exact.float(), atol=1e-5, rtol=1e-5)
    assert [op for op, _ in asked] == ["aten::convolution"] * 2
    wide, narrow = (forms for _, forms in asked)
    assert ("matmul" in narrow) is (form == "matmul")
    assert wide["dense"] == 0
    assert wide["packed"] > 0, "the library's relu turns NaN into a number, so loops do it"
    assert {"packed": "mkldnn._convolution_pointwise", "matmul": "firebrick.linear"}.get(
        form, "firebrick.conv"
    ) in caplog.text


class Various(nn.Module):
    """Channels by themselves, groups, rows and volumes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.images = nn.Conv2d(24, 24, 3, 2, 1, groups=24)
        self.dilated = nn.Conv2d(24, 24, (3, 5), padding=(2, 4), dilation=2, groups=24, bias=False)
        self.groups = nn.Conv2d(24, 32, 3, padding=1, groups=4)
        self.padded = nn.Conv2d(24, 40, 3, padding=1)
        self.rows, self.channels = nn.Conv1d(24, 40, 5, 2, 2), nn.Conv1d(24, 24, 7, padding=3, groups=24)
        self.volumes = nn.Conv3d(24, 20, 3, (1, 2, 1), 1, (2, 1, 1))
        self.single, self.each = nn.Conv3d(24, 20, 1), nn.Conv3d(24, 24, 3, padding=1, groups=24)
        self.norm = nn.BatchNorm3d(20)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, image, row, volume):
        images = [torch.relu(f(image)) for f in (self.images, self.dilated, self.groups, self.padded)]
        rows = [F.silu(f(row)) for f in (self.rows, self.channels)]
        volumes = [F.hardswish(f(volume)) for f in (self.volumes, self.single, self.each)]
        return *images, *rows, *volumes, F.gelu(self.norm(self.volumes(volume)))


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("form", ["dense", "clipped", "padded", "depthwise", "packed"])
def test_all_kinds_of_convolutions_take_the_fastest_form(form, last, fastest, tmp_path):
    asked, model = fastest(form), Various().eval()
    given = torch.randn(2, 24, 11, 43), torch.randn(2, 24, 45), torch.randn(2, 24, 6, 9, 10)
    if last:
        formats = torch.channels_last, torch.contiguous_format, torch.channels_last_3d
        given = [x.contiguous(memory_format=f) for x, f in zip(given, formats)]
    with torch.no_grad():
        results, eager = compiled(model, tmp_path)(*given), model(*given)
        exact = model.double()(*[x.double() for x in given])
    for ours, theirs, right in zip(results, eager, exact, strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, right.float(), atol=2e-5, rtol=1e-4)
    assert any(form in forms for _, forms in asked)
    chosen = sum(f": {form} (" in line for line in firebrick.stats()["reasons"]["tuned"])
    assert chosen == sum(form in forms for _, forms in asked)


@pytest.mark.parametrize("form", ["own", "call"])
def test_batches_take_the_fastest_form(form, fastest, tmp_path, caplog):
    asked = fastest(form)
    x, y = torch.randn(6, 20, 16), torch.randn(6, 16, 24)
    options = {"cache_dir": tmp_path, "simd": "avx2", "measure": True, "debug": "aten"}
    run = firebrick.compile(lambda x, y: torch.bmm(x, y), options=options)
    torch.testing.assert_close(run(x, y), x @ y)
    assert [op for op, _ in asked] == ["aten::bmm"]
    assert ("firebrick.linear" in caplog.text) is (form == "own")


@pytest.mark.parametrize("form", ["own", "panels", "call"])
@pytest.mark.parametrize("model", [Layer, Turned])
def test_training_takes_the_fastest_form(form, model, fastest, tmp_path):
    asked = fastest(form)
    x, layer = torch.randn(40, 48, requires_grad=True), model()
    results = {}
    for dtype in (torch.float32, torch.float64):
        module, given = (layer, x) if dtype is torch.float32 else (layer.double(), x.double())
        run = compiled(module.train(), tmp_path) if dtype is torch.float32 else module
        out = run(given)
        results[dtype] = [out, *torch.autograd.grad(out.square().sum(), [given, *module.parameters()])]
    for ours, exact in zip(*results.values(), strict=True):
        torch.testing.assert_close(ours, exact.float(), atol=2e-4, rtol=1e-4)
    assert [next(iter(forms)) for _, forms in asked] == ["call"] * (6 if model is Layer else 3)
    assert {form} <= set.union(*(set(forms) for _, forms in asked))
    assert any(f": {form} (" in line for line in firebrick.stats()["reasons"]["tuned"])


@pytest.mark.parametrize("form", ["own", "call"])
def test_attention_takes_the_fastest_form(form, fastest, tmp_path, caplog):
    asked = fastest(form)
    q, k, v = (torch.randn(2, 3, n, 16) for n in (12, 20, 20))
    options = {"cache_dir": tmp_path, "simd": "avx2", "measure": True, "debug": "aten"}
    with torch.no_grad():
        results = firebrick.compile(lambda *x: F.scaled_dot_product_attention(*x), options=options)(q, k, v)
    torch.testing.assert_close(results, F.scaled_dot_product_attention(q, k, v))
    assert [op for op, _ in asked][0] == "firebrick::attention"
    assert ("firebrick.attention" in caplog.text) is (form == "own")


def test_attention_that_is_trained_stays_the_librarys(fastest, tmp_path):
    asked = fastest("own")
    x = torch.randn(1, 2, 8, 16, requires_grad=True)
    options = {"cache_dir": tmp_path, "simd": "avx2", "measure": True}

    def attend(x, causal):
        return F.scaled_dot_product_attention(x, x, x, is_causal=causal)

    torch.testing.assert_close(firebrick.compile(attend, options=options)(x, False), attend(x, False))
    assert not asked
