"""Arguments, options and environment variables that changed nothing, or were misspelled, passed without a word."""

import warnings

import pytest
import torch

import firebrick
from firebrick.config import IDLE, LEVELS
from firebrick.errors import ConfigError
from firebrick.report import FirebrickWarning, recorder


@pytest.fixture(autouse=True)
def nothing_was_warned_of(monkeypatch):
    monkeypatch.setattr(recorder, "_warned", set())


def double(x):
    return x * 2


def warned(**arguments):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            firebrick.compile(double, **arguments)
    assert all(w.category is FirebrickWarning and w.filename == __file__ for w in seen)
    return [str(w.message) for w in seen]


@pytest.mark.parametrize(
    ("arguments", "asked", "setting"),
    [
        ({"options": {"fallback_random": True}}, "fallback_random=True", "fallback_random"),
    ],
    ids=str,
)
def test_what_has_no_effect_is_warned_of_once_where_it_is_asked_for(arguments, asked, setting):
    assert warned(**arguments) == [f"firebrick: {asked} has no effect: {IDLE[setting]}"]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"dynamic": False}, {"dynamic": None}, {"mode": "max-autotune"}, {"mode": "reduce-overhead"}],
    ids=str,
)
def test_what_is_done_anyway_is_not_warned_of(arguments):
    assert warned(**arguments) == []


@pytest.mark.parametrize("name", ["dynamic", "fullgraph", "disable", "isolate_recompiles"])
def test_a_flag_that_is_no_bool_is_an_error(name):
    with pytest.raises(ConfigError, match=f"{name} is True.* got 'yes'"):
        firebrick.compile(double, **{name: "yes"})


def test_all_arguments_of_torch_compile_are_taken():
    compiled = firebrick.compile(
        model=double,
        fullgraph=True,
        dynamic=False,
        backend=None,
        mode=None,
        options=None,
        name="doubled",
        disable=False,
        recompile_limit=2,
        isolate_recompiles=True,
        shapes_spec=None,
    )
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(ConfigError, match="recompile_limit needs a whole number"):
        firebrick.compile(double, recompile_limit="many")


def test_disabled_means_the_function_itself():
    model = torch.nn.Linear(2, 2)
    assert firebrick.compile(model, disable=True) is model
    assert firebrick.compile(disable=True)(double) is double


@pytest.mark.filterwarnings("ignore:.*was compiled 2 times")
def test_the_limit_of_recompiles_is_the_arguments():
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    compiled = firebrick.compile(lambda x: x + 1, backend=backend, recompile_limit=2)
    for size in range(2, 7):
        compiled(torch.ones(size))
    assert len(graphs) == 2


def test_a_graphs_name_is_the_arguments(caplog):
    firebrick.compile(lambda x: x + 1, name="mine", options={"debug": "graph", "cache": False})(torch.ones(3))
    assert caplog.messages[0].startswith("graph mine\n")


def test_the_option_fullgraph_holds():
    def broken(x):
        firebrick.graph_break()
        return x + 1

    with pytest.raises(firebrick.errors.Unsupported):
        firebrick.compile(broken, options={"fullgraph": True})(torch.ones(3))


def test_unknown_variables_of_the_environment_are_named(monkeypatch):
    monkeypatch.setenv("FIREBRICK_DEBUGG", "1")
    monkeypatch.setenv("FIREBRICK_ZZZ", "1")
    assert warned() == [
        "firebrick: the environment variable FIREBRICK_DEBUGG is no setting of Firebrick: did you mean FIREBRICK_DEBUG?",
        "firebrick: the environment variable FIREBRICK_ZZZ is no setting of Firebrick: `firebrick options` lists them",
    ]


def test_unknown_levels_are_named(monkeypatch):
    with pytest.raises(ConfigError, match=r"option debug has no level 'lops'\n  fix: levels are capture, guards"):
        firebrick.compile(double, options={"debug": "lops"})
    monkeypatch.setenv("FIREBRICK_DEBUG", "code,lops")
    with pytest.raises(ConfigError, match="FIREBRICK_DEBUG has no level 'lops'"):
        firebrick.compile(double)


@pytest.mark.compiler
@pytest.mark.parametrize("training", [False, True])
def test_levels_are_printed_on_warm_starts_too(caplog, tmp_path, training):
    x = torch.rand(4, 5, requires_grad=training)

    def heads():
        caplog.clear()
        firebrick.reset()
        options = {"debug": LEVELS, "cache_dir": tmp_path}
        made = firebrick.compile(lambda x: torch.sin(x).softmax(-1), options=options)(x)
        if training:
            made.sum().backward()
        return [message.split()[0] for message in caplog.messages]

    first = heads()
    assert heads() == first
    assert {"capture", "guards", "graph", "loops", "schedule"} <= set(first)
    assert first.count("schedule") == (2 if training else 1)
