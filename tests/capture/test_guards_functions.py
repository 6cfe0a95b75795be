"""Functions, globals and Python modules that change after a compile, torch's and the standard library's too."""

import builtins
import logging
import math
import os
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from compiling import Compiled, check_change

X = torch.arange(1.0, 5.0)


# ---- functions ---------------------------------------------------------------------------------------


def make_function():
    def function(x, k=3, *, z=1):
        return x * k + z

    return types.FunctionType(function.__code__, globals(), "function", (3,)), {"z": 1}


def other(x, k=3, *, z=1):
    return x - 1000


FUNCTION_CHANGES = {
    "__code__": lambda fn: setattr(fn, "__code__", other.__code__),
    "__defaults__": lambda fn: setattr(fn, "__defaults__", (9,)),
    "__kwdefaults__": lambda fn: setattr(fn, "__kwdefaults__", {"z": 100}),
    "__kwdefaults__ in place": lambda fn: fn.__kwdefaults__.__setitem__("z", 100),
}


@pytest.mark.parametrize("how", ["global", "method", "closure"])
@pytest.mark.parametrize("name", FUNCTION_CHANGES)
def test_change_of_a_function(name, how, monkeypatch):
    fn, fn.__kwdefaults__ = make_function()
    if how == "global":
        monkeypatch.setitem(globals(), "called", fn)
        use = lambda x: called(x)  # noqa: E731, F821
    elif how == "method":
        cls = type("Thing", (), {"method": staticmethod(fn)})
        use = lambda x: cls.method(x)  # noqa: E731
    else:
        use = lambda x: fn(x)  # noqa: E731
    check_change(use, lambda: FUNCTION_CHANGES[name](fn), X)


def test_functions_of_one_code_and_several_defaults():
    def make(k, **names):
        def positional(x, s=k):
            return x * s

        def keyword(x, *, s=k):
            return x * s

        return positional, keyword

    for index in range(2):
        box = [make(2)[index]]
        check_change(lambda x, box=box: box[0](x), lambda box=box, index=index: box.__setitem__(0, make(5)[index]), X)


def test_default_that_is_changed_in_place():
    def function(x, scale=[1, 2]):  # noqa: B006  that is the point
        return x * sum(scale)

    check_change(lambda x: function(x), lambda: function.__defaults__[0].append(5), X)


def test_attributes_of_functions():
    def function():
        return None

    check_change(lambda x: x * getattr(function, "scale", 1), lambda: setattr(function, "scale", 5), X)
    check_change(lambda x: x * function.scale, lambda: setattr(function, "scale", 6), X)
    check_change(lambda x: x * len(function.__name__), lambda: setattr(function, "__name__", "long name"), X)
    check_change(lambda x: x * 2 if function.__doc__ else x, lambda: setattr(function, "__doc__", "text"), X)


# ---- globals and modules -----------------------------------------------------------------------------------


def with_globals(text):
    space = {"__name__": "somewhere", "torch": torch}
    exec(f"def function(x):\n    {text}", space)
    return space["function"], space


CATCHING = "try: return x * late\n    except NameError: return x - 7"


@pytest.mark.parametrize("inlined", [False, True])
@pytest.mark.parametrize(("text", "name"), [("return x * len([1, 2])", "len"), (CATCHING, "late")])
def test_global_that_appears(text, name, inlined):
    function, space = with_globals(text)
    new = {"len": lambda items: 50, "late": 3}[name]
    check_change((lambda x: function(x)) if inlined else function, lambda: space.__setitem__(name, new), X)


def test_builtin_that_is_replaced(monkeypatch):
    check_change(lambda x: x * ord(chr(40)), lambda: monkeypatch.setattr(builtins, "chr", lambda number: "z"), X)


PATCHES = {
    "function of torch": (lambda x: torch.sin(x), torch, "sin", lambda x: x * 100),
    "function of torch.nn.functional": (lambda x: F.gelu(x), F, "gelu", lambda x: x * 100),
    "function that torch's own code calls": (torch.nn.GELU(), F, "gelu", lambda x, approximate: x * 100),
    "function of the standard library": (lambda x: x * math.floor(2.5), math, "floor", lambda number: 100),
    "constant of the standard library": (lambda x: x * math.pi, math, "pi", 100),
    "name that a module lacks": (lambda x: x * getattr(math, "tau2", 1), math, "tau2", 100),
    "name that torch lacks": (lambda x: x * (2 if hasattr(torch, "tau2") else 1), torch, "tau2", 100),
}


@pytest.mark.parametrize("name", PATCHES)
def test_library_that_is_patched(name, monkeypatch):
    use, module, attribute, new = PATCHES[name]
    check_change(use, lambda: monkeypatch.setattr(module, attribute, new, raising=False), X)


@pytest.mark.parametrize("text", ["import given\n    return x * given.k", "from given import k\n    return x * k"])
@pytest.mark.parametrize("swapped", [False, True])
def test_module_that_is_imported_inside(text, swapped, monkeypatch):
    first, second = types.ModuleType("given"), types.ModuleType("given")
    first.k, second.k = 2, 7
    monkeypatch.setitem(sys.modules, "given", first)
    function, _ = with_globals(text)
    change = (lambda: monkeypatch.setitem(sys.modules, "given", second)) if swapped else lambda: setattr(first, "k", 5)
    check_change(function, change, X)


# ---- torch's state, the environment, logging ------------------------------------------------------------------


def test_flags_and_settings_of_torch(monkeypatch):
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        check_change(lambda x: x * torch.get_num_threads(), lambda: torch.set_num_threads(threads + 1), X)
        check_change(
            lambda x: x * len(torch.get_float32_matmul_precision()),
            lambda: torch.set_float32_matmul_precision("high"),
            X,
        )
        check_change(
            lambda x: x * (2 if torch.backends.mkldnn.enabled else 3), lambda: torch._C._set_mkldnn_enabled(False), X
        )
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch._C._set_mkldnn_enabled(True)


def test_environment(monkeypatch):
    monkeypatch.setenv("GIVEN", "1")
    check_change(lambda x: x * int(os.environ.get("GIVEN", 0)), lambda: monkeypatch.setenv("GIVEN", "5"), X)


def test_level_of_a_logger():
    logger = logging.getLogger("firebrick.tests.level")
    logger.setLevel(logging.WARNING)
    check_change(lambda x: x + 1 if logger.isEnabledFor(logging.INFO) else x, lambda: logger.setLevel(logging.INFO), X)
    logger.setLevel(logging.NOTSET)


# ---- values that look as if they never changed ------------------------------------------------------------------


def test_arguments_of_an_exception():
    error = ValueError(2)
    check_change(lambda x: x * error.args[0], lambda: setattr(error, "args", (9,)), X)


def test_view_of_a_dict_that_changes():
    table = {"a": 1}
    view = types.MappingProxyType(table)
    check_change(lambda x: x * view["a"], lambda: table.__setitem__("a", 5), X)


def test_attribute_that_a_tensor_gets():
    given = X.clone()
    check_change(lambda x: x * getattr(x, "scale", 1), lambda: setattr(given, "scale", 5), given)


# ---- iterators and memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["list", "reversed", "zip", "generator"])
def test_iterator_goes_on_behind_a_break(kind):
    makers = {
        "list": iter,
        "reversed": reversed,
        "zip": lambda items: zip(items, items, strict=True),
        "generator": lambda items: (item for item in items),
    }

    def run(x, items):
        iterator = makers[kind](items)
        first = next(iterator)
        if x.sum() > 0:
            items.append(9)
        rest = list(iterator)
        return x * len(rest), first, rest, items

    compiled = Compiled(run)
    for _ in range(2):
        for sign in (1, -1):
            assert repr(compiled(X * sign, [1, 2, 3])) == repr(run(X * sign, [1, 2, 3]))


def test_tensors_that_share_memory_and_are_changed_run_plain():
    def run(a, b):
        a.add_(1)
        return b * 2

    def shared():
        base = torch.arange(6.0)
        return base[:4], base[2:]

    compiled = Compiled(run)
    for _ in range(2):
        assert torch.equal(compiled(*shared()), run(*shared()))
    assert not compiled.graphs
    apart = X.clone(), X.clone()
    assert torch.equal(compiled(*apart), X * 2)
    assert len(compiled.graphs) == 1
    assert torch.equal(compiled(*shared()), run(*shared()))
