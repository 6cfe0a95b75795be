"""Every setting changes something that can be seen, or says that it has no effect."""

import warnings
from dataclasses import fields

import pytest
import torch
from torch import nn

import firebrick
from firebrick import pipeline, runtime
from firebrick.config import IDLE, LEVELS, Config
from firebrick.errors import BackendError, CompileError, Unsupported
from firebrick.extend import graph_pass
from firebrick.report import FirebrickWarning, recorder
from firebrick.runtime import remote
from firebrick.runtime.build import workers
from firebrick.trace import joint_split

pytestmark = pytest.mark.compiler


@pytest.fixture(autouse=True)
def nothing_was_warned_of(monkeypatch):
    monkeypatch.setattr(recorder, "_warned", set())
    firebrick.reset()


def program(x):
    return torch.softmax(torch.nn.functional.relu(x * 2 + 1), -1) + torch.sin(x).sum(-1, keepdim=True)


class Multiplied(nn.Module):
    """Has a number that can be folded, and weights that can be prepacked."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(256, 512), nn.Linear(512, 256)

    def forward(self, x):
        return self.second(self.first(x).relu()) * self.second.bias.exp()


@graph_pass
def flip_signs(gm):
    """A wrong pass: sums become differences."""
    nodes = [node for node in gm.graph.nodes if node.op == "call_function" and "add" in str(node.target)]
    for node in nodes:
        node.target = torch.ops.aten.sub.Tensor
    return bool(nodes)


def code(model, x, **options):
    """What the compiler makes of a program, as text."""
    firebrick.reset()
    seen = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recorder, "show", lambda config, level, name, text: seen.append(f"{level}\n{text}"))
        with torch.no_grad():
            options = {"cache": False, "debug": "aten,schedule,code", **options}
            firebrick.compile(model, options=options)(x)
    return "\n".join(seen)


CHANGES_CODE = {
    "numerics": (program, "eager"),
    "fuse": (program, False),
    "simd": (program, "scalar"),
    "fold": (Multiplied(), False),
    "prepack": (Multiplied(), False),
    "threads": (Multiplied(), 7),
    "disable_passes": (Multiplied(), "prepack_linear"),
}


@pytest.mark.parametrize("name", CHANGES_CODE)
def test_code_is_another(name):
    model, value = CHANGES_CODE[name]
    x = torch.rand(256, 256)
    if isinstance(model, nn.Module):
        model.eval().requires_grad_(False)
    assert code(model, x) == code(model, x)
    assert code(model, x) != code(model, x, **{name: value})


def run(fn=program, x=None, **arguments):
    with torch.no_grad():
        return firebrick.compile(fn, **arguments)(torch.rand(4, 8) if x is None else x)


def strict(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(pipeline.lower, "lower", lambda *args, **kwargs: 1 / 0)
    x = torch.rand(4, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(run(x=x, options={"strict": False, "cache": False}), program(x))
    firebrick.reset()
    with pytest.raises(BackendError, match="division by zero"):
        run(options={"strict": True, "cache": False})


def check(monkeypatch, tmp_path, caplog):
    checked = []
    monkeypatch.setattr(pipeline, "check_loops", checked.append)
    run(options={"check": False, "cache": False})
    assert not checked
    firebrick.reset()
    run(options={"check": True, "cache": False})
    assert checked


def debug(monkeypatch, tmp_path, caplog):
    run(options={"cache": False})
    assert not caplog.messages
    firebrick.reset()
    run(options={"debug": "schedule", "cache": False})
    assert caplog.messages


def dump(monkeypatch, tmp_path, caplog):
    run(options={"dump": tmp_path / "levels", "cache": False})
    assert list((tmp_path / "levels").glob("*.loops.txt"))


def recompile_limit(monkeypatch, tmp_path, caplog):
    compiled = firebrick.compile(lambda x: x + 1, options={"recompile_limit": 2, "cache": False})
    before = firebrick.graphs_compiled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for size in range(2, 7):
            compiled(torch.ones(size))
    assert firebrick.graphs_compiled() - before == 2


def fullgraph(monkeypatch, tmp_path, caplog):
    def broken(x):
        firebrick.graph_break()
        return x + 1

    run(broken, options={"fullgraph": False})
    firebrick.reset()
    with pytest.raises(Unsupported):
        run(broken, options={"fullgraph": True})


def autotune(monkeypatch, tmp_path, caplog):
    asked = []
    tuner = pipeline._Compile.tuner
    monkeypatch.setattr(pipeline._Compile, "tuner", lambda self, *graphs: asked.append(self) or tuner(self, *graphs))
    run(options={"cache": False})
    assert not asked
    firebrick.reset()
    run(options={"autotune": True, "cache": False})
    assert asked


def measures(monkeypatch, **options):
    asked = []
    monkeypatch.setattr(
        pipeline._Compile, "tuner", lambda self, *_: asked.append(self) or (lambda _, forms: next(iter(forms)))
    )
    firebrick.reset()
    run(options={"cache": False, **options})
    return bool(asked)


def measure(monkeypatch, tmp_path, caplog):
    assert [measures(monkeypatch, measure=value) for value in (None, True, False)] == [True, True, False]


def deterministic(monkeypatch, tmp_path, caplog):
    assert not measures(monkeypatch, measure=True, deterministic=True)
    assert not measures(monkeypatch, autotune=True, deterministic=True)


def verify_passes(monkeypatch, tmp_path, caplog):
    x = torch.rand(4, 8)
    wrong = run(lambda x: x + 1, x, passes=[flip_signs], options={"cache": False})
    torch.testing.assert_close(wrong, x - 1)
    firebrick.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"verify_passes": True, "strict": False, "cache": False}
        torch.testing.assert_close(run(lambda x: x + 1, x, passes=[flip_signs], options=options), x + 1)


def compiler(monkeypatch, tmp_path, caplog):
    with pytest.raises(CompileError, match="no-such-compiler"):
        run(options={"compiler": "no-such-compiler", "cache": False})


def cache(monkeypatch, tmp_path, caplog):
    run(options={"cache": False, "cache_dir": tmp_path})
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def cache_dir(monkeypatch, tmp_path, caplog):
    run(options={"cache_dir": tmp_path})
    assert runtime.cache_entries(Config(cache_dir=tmp_path))


def cache_size_mb(monkeypatch, tmp_path, caplog):
    for size, kept in ((0, 0), (64, 1)):
        firebrick.reset()
        monkeypatch.setattr(runtime.DiskCache, "_stores", 0)  # a store that looks for what to remove
        run(options={"cache_dir": tmp_path / str(size), "cache_size_mb": size})
        assert len(runtime.cache_entries(Config(cache_dir=tmp_path / str(size)))) == kept


def build_workers(monkeypatch, tmp_path, caplog):
    assert [workers(Config(build_workers=count)) for count in (1, 3)] == [1, 3]


def build_timeout(monkeypatch, tmp_path, caplog):
    slow = tmp_path / "slow"
    slow.write_text('#!/bin/sh\ncase "$*" in *--version*) exec g++ "$@";; esac\nsleep 20\n')
    slow.chmod(0o755)
    with pytest.raises(CompileError, match="1 s"):
        run(options={"compiler": str(slow), "build_timeout": 1, "cache": False})


def remote_cache(monkeypatch, tmp_path, caplog):
    asked = []
    monkeypatch.setattr(remote, "_connect", lambda address, secret: asked.append((address, secret)))
    assert remote.connect(Config(remote_cache_key="s")) is None and not asked
    remote.connect(Config(remote_cache="redis://h", remote_cache_key="s"))
    assert asked == [("redis://h", "s")]


def remote_cache_key(monkeypatch, tmp_path, caplog):
    with pytest.warns(FirebrickWarning, match="needs a secret"):
        assert remote.connect(Config(remote_cache="redis://h")) is None


def keep_memory(monkeypatch, tmp_path, caplog):
    told, load = [], runtime.load
    monkeypatch.setattr(runtime, "load", lambda *args, **kwargs: told.append(args[5]) or load(*args, **kwargs))
    run(options={"keep_memory": True}), run()
    assert told == [True, False]


def graphs(monkeypatch, tmp_path, caplog):
    told, load = [], runtime.load
    monkeypatch.setattr(runtime, "load", lambda *args, **kwargs: told.append(args[7]) or load(*args, **kwargs))
    run(), run(mode="reduce-overhead"), run(mode="max-autotune-no-cudagraphs"), run(options={"graphs": True})
    assert told == [None, True, False, True]


def dynamic(monkeypatch, tmp_path, caplog):
    def graphs(dynamic):
        before, compiled = firebrick.graphs_compiled(), firebrick.compile(lambda x: x * 2 + 1, dynamic=dynamic)
        with torch.no_grad():
            compiled(torch.ones(3, 4)), compiled(torch.ones(5, 4))
        return firebrick.graphs_compiled() - before

    assert (graphs(True), graphs(False)) == (1, 2)


def stages(monkeypatch, tmp_path, caplog):
    def graphs(name):
        before, counted = firebrick.graphs_compiled(), recorder.counts["graphs"]
        torch.testing.assert_close(run(x=torch.ones(4, 8), options={"stages": name}), program(torch.ones(4, 8)))
        firebrick.reset()
        return firebrick.graphs_compiled() - before, recorder.counts["graphs"] - counted

    assert [graphs(name) for name in ("none", "capture", "trace", "all")] == [(0, 0), (0, 1), (0, 1), (1, 1)]


def skip_frames(monkeypatch, tmp_path, caplog):
    before = firebrick.graphs_compiled()
    run(lambda x: x * 2 + 1, options={"skip_frames": "skip_frames.<locals>.<lambda>"})
    assert firebrick.graphs_compiled() == before


def memory_budget(monkeypatch, tmp_path, caplog):
    def kept(**options):
        before = recorder.counts["bytes saved for backward"]
        compiled = firebrick.compile(lambda x: x @ x @ x, options={"cache": False, **options})
        compiled(torch.rand(8, 8, requires_grad=True))
        return recorder.counts["bytes saved for backward"] - before

    assert kept() > kept(memory_budget=0.0)


def offload(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(joint_split, "NEAR", ())  # the CPU as if it were a GPU

    def moved(**options):
        before = recorder.counts["bytes offloaded"]
        compiled = firebrick.compile(lambda x: (x @ x).sin().sum(), options={"cache": False, **options})
        compiled(torch.rand(8, 8, requires_grad=True)).backward()
        return recorder.counts["bytes offloaded"] - before

    assert (moved(), moved(offload=1), moved(offload=256), moved(offload=257), moved(offload=True)) == (
        0,
        256,
        256,
        0,
        0,
    )


def compiled_backward(monkeypatch, tmp_path, caplog):
    def graphs(**options):
        before = recorder.counts["graphs of compiled backwards"]
        loss = firebrick.compile(lambda x: x.square().sum().backward(), options={"cache": False, **options})
        loss(torch.rand(4, 8, requires_grad=True))
        return recorder.counts["graphs of compiled backwards"] - before

    assert (graphs(), graphs(compiled_backward=True)) == (0, 1)


def background(monkeypatch, tmp_path, caplog):
    deferred = []
    monkeypatch.setattr(runtime, "Deferred", lambda eager, compile: deferred.append(compile) or eager)
    run(options={"cache": False}), run(options={"background": True, "cache": False})
    assert len(deferred) == 1


SEEN = (
    background,
    compiled_backward,
    *(stages, skip_frames),
    *(keep_memory, dynamic, graphs, memory_budget, offload),
    *(
        strict,
        check,
        debug,
        dump,
        recompile_limit,
        fullgraph,
        autotune,
        measure,
        deterministic,
        verify_passes,
        compiler,
    ),
    *(cache, cache_dir, cache_size_mb, build_workers, build_timeout, remote_cache, remote_cache_key),
)


@pytest.mark.parametrize("observe", SEEN, ids=lambda observe: observe.__name__)
def test_the_effect_is_seen(observe, monkeypatch, tmp_path, caplog):
    observe(monkeypatch, tmp_path, caplog)


@pytest.mark.parametrize("name", IDLE)
def test_what_has_no_effect_says_so(name):
    with pytest.warns(FirebrickWarning, match=f"{name}=True has no effect"):
        firebrick.compile(program, options={name: True})


def test_each_level_has_its_text(tmp_path):
    compiled = firebrick.compile(program, options={"dump": tmp_path, "cache": False})
    compiled(torch.rand(4, 8)), compiled(torch.rand(4, 8, requires_grad=True)).sum().backward()
    assert {path.name.split(".")[-2] for path in tmp_path.iterdir()} == {*LEVELS}


def test_no_setting_is_left_out():
    shown = {*CHANGES_CODE, *(observe.__name__ for observe in SEEN), *IDLE}
    assert shown == {field.name for field in fields(Config)}
