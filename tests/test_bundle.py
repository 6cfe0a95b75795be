"""`save` and `load`: compiled programs in a file, run elsewhere without compiler, source or pickle."""

import json
import os
import random
import subprocess
import sys
import zipfile
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import firebrick
from firebrick import errors
from firebrick.api.bundle import read_tensors, write_tensors

pytestmark = pytest.mark.compiler

Pair = namedtuple("Pair", "first second")


@dataclass
class Result:
    logits: torch.Tensor
    scale: float


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))


RUN = """
import sys, torch, firebrick
from torch.serialization import load as _
loaded = firebrick.load(sys.argv[1])
inputs, wanted = torch.load(sys.argv[2])
def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
with torch.no_grad():
    for _ in range(3):
        result = loaded(*inputs[0], **inputs[1])
values = list(result.values()) if isinstance(result, dict) else [result]
for a, b in zip(values, wanted, strict=True):
    same(a, b)
counts = firebrick.stats()["counts"]
print(type(result).__name__, counts.get("units built", 0), counts.get("frames", 0), "own_model" in sys.modules)
"""


def run_elsewhere(tmp_path, bundle, args, kwargs, wanted):
    """In a process that finds no compiler and has an empty cache; returns what it printed."""
    torch.save([(args, kwargs), wanted], tmp_path / "data.pt")
    empty = tmp_path / "empty"
    empty.mkdir()
    env = {k: v for k, v in os.environ.items() if k not in ("CXX", "PATH", "FIREBRICK_COMPILER")}
    env |= {"PATH": str(empty), "FIREBRICK_CACHE_DIR": str(empty), "FIREBRICK_STRICT": "1"}
    command = [sys.executable, "-c", RUN, str(bundle), str(tmp_path / "data.pt")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert list(empty.iterdir()) == []
    return done.stdout.split()


def saved(tmp_path, model, *inputs, **options):
    firebrick.reset()
    compiled = firebrick.compile(model, options=options or None)
    with torch.no_grad():
        compiled(*inputs)
    firebrick.save(compiled, tmp_path / "program.fb")
    return tmp_path / "program.fb"


def test_cnn_runs_in_a_fresh_process_without_compiler(tmp_path):
    torch.manual_seed(0)
    net, x = Cnn().eval(), torch.randn(2, 3, 9, 9)
    net.layers[1].running_mean.uniform_()
    with torch.no_grad():
        wanted = net(x)
    assert run_elsewhere(tmp_path, saved(tmp_path, net, x), (x,), {}, [wanted]) == ["Tensor", "0", "0", "False"]


@pytest.mark.models
def test_bert_runs_in_a_fresh_process_without_compiler(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=99
    )
    model = transformers.BertModel(config).eval()
    inputs = {"input_ids": torch.randint(0, 99, (2, 12)), "attention_mask": torch.ones(2, 12, dtype=torch.long)}
    firebrick.reset()
    compiled = firebrick.compile(model)
    with torch.no_grad():
        wanted = list(model(**inputs).values())
        compiled(**inputs)
    firebrick.save(compiled, tmp_path / "bert.fb")
    name, *rest = run_elsewhere(tmp_path, tmp_path / "bert.fb", (), inputs, wanted)
    assert name == "BaseModelOutputWithPoolingAndCrossAttentions" and rest == ["0", "0", "False"]


def test_file_holds_no_pickle_and_weights_that_safetensors_reads(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    net = Cnn().eval()
    with zipfile.ZipFile(saved(tmp_path, net, torch.randn(1, 3, 9, 9))) as archive:
        assert sorted(archive.namelist()) == ["manifest.json", "program0.fb", "weights.safetensors"]
        found = safetensors.load(archive.read("weights.safetensors"))
    assert any(torch.equal(t, net.head.weight) for t in found.values())
    assert sum(t.numel() for t in found.values()) <= sum(t.numel() for t in net.state_dict().values())


def test_arguments_may_be_nested_and_passed_by_name_and_results_keep_their_classes(tmp_path):
    def program(x, pair, *more, scale=2, flag=None, **named):
        total = x + pair[0] * scale + more[0] + named["bias"]
        return {"pair": Pair(total, x), "all": [Result(total * 2, 0.5), (None, "text", 3)]}

    a, b, c, d = (torch.randn(3, 4) for _ in range(4))
    firebrick.reset()
    compiled = firebrick.compile(program)
    with torch.no_grad():
        wanted = compiled(a, (b, 7), c, bias=d)
        firebrick.save(compiled, tmp_path / "p.fb")
        loaded = firebrick.load(tmp_path / "p.fb")
        for got in (loaded(a, (b, 7), c, bias=d), loaded(a, (b, 7), c, bias=d, scale=2, flag=None)):
            assert isinstance(got["pair"], Pair) and isinstance(got["all"][0], Result) and got["pair"].second is a
            torch.testing.assert_close(got["pair"].first, wanted["pair"].first)
            torch.testing.assert_close(got["all"][0].logits, wanted["all"][0].logits)
            assert got["all"][1] == (None, "text", 3) and got["all"][0].scale == 0.5
        with pytest.raises(errors.ConfigError, match="scale=3"):
            loaded(a, (b, 7), c, bias=d, scale=3)


def test_each_shape_that_was_compiled_is_saved_and_others_are_named(tmp_path):
    net = nn.Linear(4, 2).eval()
    firebrick.reset()
    compiled = firebrick.compile(net)
    with torch.no_grad():
        for n in (2, 3):
            compiled(torch.randn(n, 4))
        firebrick.save(compiled, tmp_path / "p.fb")
        loaded = firebrick.load(tmp_path / "p.fb")
        for n in (2, 3):
            x = torch.randn(n, 4)
            torch.testing.assert_close(loaded(x), net(x))
        with pytest.raises(
            errors.ConfigError, match=r"float64\[5, 4\]; there are programs for\n    input=float32\[2, 4\]"
        ):
            loaded(torch.randn(5, 4).double())
        with pytest.raises(errors.ConfigError, match="strides"):
            loaded(torch.randn(4, 3).t())
        with pytest.raises(errors.ConfigError, match="missing a required argument"):
            loaded()
    with pytest.raises(errors.ConfigError, match="no gradients"):
        loaded(torch.randn(2, 4, requires_grad=True))


MANY = {
    "rows": (lambda x: (x.sin() @ x.t()).softmax(-1), [(3, 4), (5, 4)], [(9, 4), (1, 4), (17, 4)], [(0, 4), (3, 5)]),
    "pairs": (lambda x: x.view(x.shape[0], -1, 2).sum(1), [(3, 4), (5, 6)], [(7, 8), (2, 2)], [(3, 5)]),
    "branches": (lambda x: x + 1 if x.shape[0] > 4 else x - 1, [(3, 4), (5, 4), (2, 4)], [(9, 4), (4, 4)], []),
}


@pytest.mark.parametrize("name", MANY)
def test_a_program_of_symbols_serves_all_sizes(tmp_path, name):
    function, calls, more, refused = MANY[name]
    firebrick.reset()
    compiled = firebrick.compile(function)
    for shape in calls:
        compiled(torch.randn(shape))
    firebrick.save(compiled, tmp_path / "p.fb")
    loaded = firebrick.load(tmp_path / "p.fb")
    for shape in [*calls, *more]:
        x = torch.randn(shape)
        torch.testing.assert_close(loaded(x), function(x))
    for shape in refused:
        with pytest.raises(errors.ConfigError, match="no program was saved"):
            loaded(torch.randn(shape))


@pytest.mark.parametrize("how", ["option", "mark"])
def test_one_call_with_symbols_saves_a_program_for_all_sizes(tmp_path, how):
    net = nn.Linear(4, 2).eval()
    firebrick.reset()
    compiled = firebrick.compile(net, dynamic=True if how == "option" else None)
    x = torch.randn(3, 4)
    if how == "mark":
        firebrick.mark_dynamic(x, 0)
    with torch.no_grad():
        compiled(x)
        firebrick.save(compiled, tmp_path / "p.fb")
        for n in (3, 8, 1):
            x = torch.randn(n, 4)
            torch.testing.assert_close(firebrick.load(tmp_path / "p.fb")(x), net(x))


def test_a_size_that_is_a_result_is_saved_for_its_calls_only(tmp_path):
    firebrick.reset()
    compiled = firebrick.compile(lambda x: (x * 2, x.shape[0]))
    for n in (3, 5):
        compiled(torch.randn(n))
    firebrick.save(compiled, tmp_path / "p.fb")
    loaded = firebrick.load(tmp_path / "p.fb")
    assert [loaded(torch.randn(n))[1] for n in (3, 5)] == [3, 5]
    with pytest.raises(errors.ConfigError, match="no program was saved"):
        loaded(torch.randn(7))
    with pytest.raises(errors.ConfigError, match="a size that varies is a result"):
        firebrick.export(lambda x: (x * 2, x.shape[0]), (torch.randn(3),), dynamic=True)


def test_weights_of_any_layout_and_shared_ones_are_kept(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.randn(6, 4))
            self.b = self.a
            self.register_buffer("t", torch.randn(4, 6).t())
            self.register_buffer("wide", torch.randn(1, 4).expand(6, 4))
            self.register_buffer("short", torch.randn(6, 4).bfloat16())
            self.register_buffer("which", torch.tensor([True, False, True, True]))

        def forward(self, x):
            return (x * self.a + self.b * self.t + self.wide + self.short) * self.which

    net, x = Tied().eval(), torch.randn(6, 4)
    loaded = firebrick.load(saved(tmp_path, net, x))
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), net(x))
    with zipfile.ZipFile(tmp_path / "program.fb") as archive:
        size = archive.getinfo("weights.safetensors").file_size
    assert size < 4 * 24 * 2 + 4 * 4 + 2 * 24 + 4 + 600


def test_weights_are_as_they_were_when_saved(tmp_path):
    net, x = nn.Linear(4, 2).eval(), torch.randn(2, 4)
    path = saved(tmp_path, net, x)
    with torch.no_grad():
        wanted = net(x)
        net.weight.zero_()
        torch.testing.assert_close(firebrick.load(path)(x), wanted)


def test_tensors_that_the_program_writes_are_written(tmp_path):
    def program(x, out):
        out.add_(x)
        return out.sum()

    path = saved(tmp_path, program, torch.ones(3), torch.zeros(3))
    out = torch.zeros(3)
    with torch.no_grad():
        loaded = firebrick.load(path)
        assert [float(loaded(torch.ones(3), out)) for _ in range(2)] == [3.0, 6.0]
        assert out.tolist() == [2, 2, 2]
        with pytest.raises(errors.ConfigError, match="share memory"):
            loaded(out[:], out)


def test_what_cannot_be_saved_says_why(tmp_path):
    class Counter(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls = self.calls + 1
            return x + 1

    class Strange:
        pass

    def broken(x):
        if x.sum() > 0:
            x = x * 2
        return x + 1

    def strange(x, how):
        return x + 1

    def talks(x):
        print("hello")
        return x + 1

    def gives(x):
        return x + 1, Strange

    with pytest.raises(errors.ConfigError, match="takes a compiled"):
        firebrick.save(nn.Linear(2, 2), tmp_path / "x")
    with pytest.raises(errors.ConfigError, match="nothing was compiled yet"):
        firebrick.save(firebrick.compile(nn.Linear(2, 2)), tmp_path / "x")
    counter = Counter()
    with pytest.raises(errors.ConfigError, match=r"changes self \(Counter\)"):
        saved(tmp_path, counter, torch.ones(2))
    assert counter.calls == 1  # by the call before
    with pytest.raises(errors.Unsupported, match="branch|depends"):
        saved(tmp_path, broken, torch.ones(2))
    with pytest.raises(errors.ConfigError, match=r"what print\(\) changes"):
        saved(tmp_path, talks, torch.ones(2))
    with pytest.raises(errors.ConfigError, match="Strange"):
        saved(tmp_path, strange, torch.ones(2), Strange())
    with pytest.raises(errors.ConfigError, match="returns what can't be saved"):
        saved(tmp_path, gives, torch.ones(2))
    with pytest.raises(errors.ConfigError, match="firebrick itself"):
        compiled = firebrick.compile(gives, backend="eager")
        compiled(torch.ones(2))
        firebrick.save(compiled, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("used", [True, False])
def test_random_numbers_are_refused(tmp_path, used):
    def program(x):
        number = random.random()
        return (x * number, 1) if used else (x * 2, number)

    compiled = firebrick.compile(program)
    with torch.no_grad():
        compiled(torch.ones(3))
    with pytest.raises(errors.ConfigError, match=r"what random\(\) gives"):
        firebrick.save(compiled, tmp_path / "program.fb")


def changed(path, change):
    """Rewrite the manifest, with checksums that are right again."""
    from firebrick.artifact import checksum

    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["manifest.json"] = json.dumps({**json.loads(members["manifest.json"]), **change}).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.comment = f"firebrick {checksum(members['manifest.json'])}".encode()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"torch": "1.0"}, "saved with torch 1.0"),
        ({"levels": {"cpu": ["avx4096", ""]}}, "is for .* with avx4096 , this is .* with"),
        ({"machine": "vax"}, "is for vax with"),
        ({"format": 99}, "format 99"),
        ({"devices": ["cpu", "cuda:99"]}, "needs GPU 99, this machine has"),
    ],
)
def test_file_for_another_torch_or_machine_is_refused(tmp_path, change, text):
    path = saved(tmp_path, nn.Linear(4, 2).eval(), torch.randn(2, 4))
    changed(path, change)
    with pytest.raises(errors.CacheError, match=text):
        firebrick.load(path)


def test_every_changed_byte_is_noticed(tmp_path):
    net, x = nn.Linear(4, 2).eval(), torch.randn(2, 4)
    path = saved(tmp_path, net, x)
    data = path.read_bytes()
    with torch.no_grad():
        wanted = net(x)
    for place in range(0, len(data), 97):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x15]) + data[place + 1 :])
        try:
            loaded = firebrick.load(path)
        except errors.CacheError:
            continue
        with torch.no_grad():  # a byte of the archive's own that means nothing
            torch.testing.assert_close(loaded(x), wanted)
    for length in (0, 10, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(errors.CacheError, match="firebrick.save"):
            firebrick.load(path)


def test_torch_state_must_be_as_it_was(tmp_path):
    path = saved(tmp_path, nn.Linear(4, 2).eval(), torch.randn(2, 4))
    loaded = firebrick.load(path)
    with torch.no_grad(), torch.autocast("cpu"), pytest.raises(errors.ConfigError, match="autocast cpu"):
        loaded(torch.randn(2, 4))


def test_safetensors_headers_that_lie_are_refused():
    import io

    buffer = io.BytesIO()
    write_tensors({"a": torch.randn(3), "b": torch.ones(2, dtype=torch.bool)}, buffer.write)
    data = buffer.getvalue()
    assert read_tensors(io.BytesIO(data).readinto)["b"].tolist() == [True, True]
    for old, new in ((b"F32", b"F64"), (b"[0,12]", b"[0,13]"), (b"[3]", b"[9]"), (b'"F32"', b'"F99"')):
        with pytest.raises(errors.CacheError, match="corrupt|truncated"):
            read_tensors(io.BytesIO(data.replace(old, new)).readinto)
