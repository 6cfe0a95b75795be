"""Each kind of thing that a program depends on: a change of it, and of nothing else, compiles again and says why.

What has no influence on the program changes without a recompile.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from compiling import Compiled, assert_same
from torch import nn

import firebrick

if TYPE_CHECKING:
    from collections.abc import Callable

X = torch.arange(6.0).reshape(2, 3)
NUMBER = 2
OTHER = 1
SETTINGS = types.SimpleNamespace(scale=2, unused=1)


class Box:
    scale = 2
    other = 1

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def times(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.register_buffer("shift", torch.ones(3))
        self.scale = 2
        self.unused = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * self.scale + self.shift if self.training else x


def module_with(number: int) -> tuple[Callable[..., Any], Callable[[int], None]]:
    """A function with a cell, and what sets it."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * number

    def change(to: int) -> None:
        nonlocal number
        number = to

    return f, change


@dataclass(frozen=True)
class Row:
    """A program, its arguments, and what changes or replaces them, or the `mode` in which it is called again.

    text: in the reason of the recompile; empty if there must be none.
    """

    program: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    change: Callable[..., Any] | None
    text: str
    mode: Callable[[], Any] = contextlib.nullcontext


def given(*values: Any) -> Callable[..., Any]:
    """A change: x and these arguments instead."""
    return lambda *before: (before[0], *values)


def tensor(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """A change: another tensor instead of x."""
    return lambda x, *rest: (make(x), *rest)


def does(act: Callable[..., Any]) -> Callable[..., Any]:
    """A change of the arguments in place."""

    def change(*args: Any) -> tuple[Any, ...]:
        act(*args)
        return args

    return change


def item(x: torch.Tensor, items: Any) -> torch.Tensor:
    return x * items[0]


def length(x: torch.Tensor, items: Any) -> torch.Tensor:
    return x * len(items)


def times(x: torch.Tensor, number: Any) -> torch.Tensor:
    return x * number


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def scaled(x: torch.Tensor, box: Any) -> torch.Tensor:
    return x * box.scale


def keys(x: torch.Tensor, table: Any) -> torch.Tensor:
    for key in table:
        x = x * len(key) + table[key]
    return x


def write(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.add_(1) + b


def whole(x: torch.Tensor, net: nn.Module) -> torch.Tensor:
    return net(x)


def of_global(x: torch.Tensor) -> torch.Tensor:
    return x * NUMBER + SETTINGS.scale


def calls(x: torch.Tensor, function: Any) -> torch.Tensor:
    return function(x)


def set_global(name: str, value: Any) -> Callable[..., Any]:
    return does(lambda *_: globals().__setitem__(name, value))


one, two = (lambda x: x + 1), (lambda x: x + 2)
FIRST, SECOND = module_with(2)
XS = lambda: (X.clone(),)  # noqa: E731

ROWS: dict[str, Row] = {
    "type of a number": Row(times, lambda: (X, 2), given(2.0), "number was 2, now 2.0"),
    "type of a container": Row(item, lambda: (X, [2]), given((2,)), "type(items) was list, now tuple"),
    "type of a mapping": Row(
        keys,
        lambda: (X, {"a": 1}),
        given(collections.OrderedDict(a=1)),
        "type(table) was dict, now collections.OrderedDict",
    ),
    "type of an object": Row(
        scaled, lambda: (X, Box(scale=2)), given(types.SimpleNamespace(scale=2)), "type(box) was test_guard_table.Box"
    ),
    "an equal object": Row(scaled, lambda: (X, Box(scale=2)), given(Box(scale=2)), ""),
    "identity of a function": Row(calls, lambda: (X, one), given(two), "function was"),
    "constant": Row(times, lambda: (X, 2), given(3), "number was 2, now 3"),
    "an equal constant": Row(times, lambda: (X, 2.5), given(float("2.5")), ""),
    "text": Row(lambda x, name: x * len(name), lambda: (X, "a"), given("bc"), "name was 'a', now 'bc'"),
    "dtype as a value": Row(
        lambda x, dtype: x.to(dtype),
        lambda: (X, torch.float64),
        given(torch.float16),
        "dtype was torch.float64, now torch.float16",
    ),
    "keys of a dict": Row(
        keys, lambda: (X, {"a": 1}), does(lambda x, t: t.update(bc=2)), "list(table) was ['a'], now ['a', 'bc']"
    ),
    "order of a dict": Row(
        keys, lambda: (X, {"a": 1, "bc": 2}), given({"bc": 2, "a": 1}), "list(table) was ['a', 'bc'], now ['bc', 'a']"
    ),
    "value in a dict": Row(keys, lambda: (X, {"a": 1}), does(lambda x, t: t.update(a=2)), "table['a'] was 1, now 2"),
    "a key that is not read": Row(
        lambda x, table: x * table["a"], lambda: (X, {"a": 1}), does(lambda x, t: t.update(b=2)), ""
    ),
    "a key that appears": Row(
        lambda x, table: x * table.get("b", 1),
        lambda: (X, {}),
        does(lambda x, t: t.update(b=2)),
        "'b' was not in table",
    ),
    "length of a list": Row(
        length, lambda: (X, [1]), does(lambda x, items: items.append(1)), "len(items) was 1, now 2"
    ),
    "item of a list": Row(
        item, lambda: (X, [1, 5]), does(lambda x, items: items.__setitem__(0, 2)), "items[0] was 1, now 2"
    ),
    "an item that is not read": Row(item, lambda: (X, [1, 5]), does(lambda x, items: items.__setitem__(1, 2)), ""),
    "dtype": Row(double, XS, tensor(torch.Tensor.double), "x.dtype was torch.float32, now torch.float64"),
    "device": Row(double, XS, tensor(lambda x: x.to("meta")), "x.device was cpu, now meta"),
    "layout": Row(double, XS, tensor(torch.Tensor.to_sparse), "x.layout was torch.strided, now torch.sparse_coo"),
    "requires_grad": Row(
        double, XS, tensor(lambda x: x.clone().requires_grad_()), "x.requires_grad was False, now True"
    ),
    "size": Row(double, XS, tensor(lambda x: torch.ones(4, 3)), "x.shape[0] was 2, now 4"),
    "rank": Row(double, XS, tensor(lambda x: x[0]), "x.dim() was 2, now 1"),
    "stride": Row(double, XS, tensor(lambda x: torch.ones(3, 2).t()), "x.stride()"),
    "dispatch keys": Row(
        double,
        lambda: (torch.ones(2, dtype=torch.complex64),),
        tensor(torch.conj),
        "dispatch keys of x was (), now (Conjugate)",
    ),
    "class of a tensor": Row(
        double, XS, tensor(lambda x: x.as_subclass(type("Own", (torch.Tensor,), {}))), "type(x) was torch.Tensor"
    ),
    "other data": Row(double, XS, tensor(torch.ones_like), ""),
    "offset of a view": Row(double, XS, tensor(lambda x: torch.ones(3, 3)[1:]), ""),
    "aliasing": Row(write, lambda: (X.clone(), X.clone()), lambda a, b: (a, a), "a and b"),
    "overlap": Row(write, lambda: (X[0].clone(), X[0].clone()), lambda a, b: (torch.ones(4)[:3], torch.ones(3)), ""),
    "attribute": Row(scaled, lambda: (X, Box(scale=2)), does(lambda x, b: setattr(b, "scale", 3)), "box.scale was 2"),
    "an attribute that is not read": Row(scaled, lambda: (X, Box(scale=2)), does(lambda x, b: setattr(b, "a", 3)), ""),
    "attribute of a class": Row(
        scaled, lambda: (X, Box()), does(lambda x, b: setattr(Box, "scale", 3)), "Box.scale was 2, now 3"
    ),
    "another attribute of a class": Row(scaled, lambda: (X, Box()), does(lambda x, b: setattr(Box, "other", 3)), ""),
    "method of a class": Row(
        lambda x, box: box.times(x),
        lambda: (X, Box()),
        does(lambda x, b: setattr(Box, "times", lambda self, x: x * 3)),
        "Box.times",
    ),
    "global": Row(of_global, XS, set_global("NUMBER", 3), "NUMBER was 2, now 3"),
    "attribute of a global": Row(of_global, XS, does(lambda x: setattr(SETTINGS, "scale", 3)), "SETTINGS.scale was 2"),
    "another global": Row(of_global, XS, set_global("OTHER", 3), ""),
    "closure": Row(FIRST, XS, does(lambda x: SECOND(3)), "number was 2, now 3"),
    "defaults": Row(
        calls, lambda: (X, lambda x, n=2: x * n), does(lambda x, f: setattr(f, "__defaults__", (3,))), "__defaults__"
    ),
    "code": Row(
        calls, lambda: (X, lambda x: x * 2), does(lambda x, f: setattr(f, "__code__", two.__code__)), "__code__"
    ),
    "attribute of a module": Row(
        whole, lambda: (X, Net()), does(lambda x, net: setattr(net, "scale", 3)), "net.scale was 2, now 3"
    ),
    "an attribute of a module that is not read": Row(
        whole, lambda: (X, Net()), does(lambda x, net: setattr(net, "unused", 3)), ""
    ),
    "mode of a module": Row(
        whole, lambda: (X, Net()), does(lambda x, net: net.eval()), "net.training was True, now False"
    ),
    "submodule": Row(
        whole,
        lambda: (X, Net()),
        does(lambda x, net: net.layers._modules.update(zip("10", list(net.layers), strict=True))),
        "net.layers[0] was",
    ),
    "number of submodules": Row(
        whole, lambda: (X, Net()), does(lambda x, net: net.layers.append(nn.Identity())), "net.layers"
    ),
    "hook of a module": Row(
        whole,
        lambda: (X, Net()),
        does(lambda x, net: net.layers[0].register_forward_hook(lambda *_: None)),
        "len(net.layers[0]._forward_hooks) was 0, now 1",
    ),
    "parameter": Row(
        whole,
        lambda: (X, Net()),
        does(lambda x, net: setattr(net.layers[0], "weight", nn.Parameter(torch.ones(3, 3)))),
        "net.layers[0].weight was",
    ),
    "parameter's requires_grad": Row(
        whole,
        lambda: (X, Net()),
        does(lambda x, net: net.layers[0].requires_grad_(False)),
        "net.layers[0].weight.requires_grad was True, now False",
    ),
    "data of a parameter": Row(whole, lambda: (X, Net()), does(lambda x, net: net.layers[0].weight.data.zero_()), ""),
    "buffer": Row(
        whole, lambda: (X, Net()), does(lambda x, net: setattr(net, "shift", torch.zeros(3))), "net.shift was"
    ),
    "grad mode": Row(double, XS, None, "grad_mode was on, now off", mode=torch.no_grad),
    "inference mode": Row(double, XS, None, "now", mode=torch.inference_mode),
    "autocast": Row(
        double, XS, None, "autocast was off, now cpu torch.bfloat16", mode=lambda: torch.autocast("cpu", torch.bfloat16)
    ),
    "deterministic algorithms": Row(
        double,
        XS,
        None,
        "deterministic algorithms was off",
        mode=lambda: switched(torch.use_deterministic_algorithms, True, False),
    ),
    "default dtype": Row(
        double,
        XS,
        None,
        "default dtype was",
        mode=lambda: switched(torch.set_default_dtype, torch.float64, torch.float32),
    ),
    "torch function state": Row(double, XS, None, "torch function was on, now off", mode=torch._C.DisableTorchFunction),
    "default device": Row(
        double, XS, None, "torch function was on, now on, 1 function modes", mode=lambda: torch.device("cpu")
    ),
}


@contextlib.contextmanager
def switched(switch: Callable[[Any], Any], value: Any, back: Any) -> Any:
    switch(value)
    try:
        yield
    finally:
        switch(back)


@pytest.fixture(autouse=True)
def _unchanged() -> Any:
    """What rows change of this module and its classes."""
    variables, fields, settings = dict(globals()), dict(vars(Box)), dict(vars(SETTINGS))
    yield
    globals().update({name: variables[name] for name in ("NUMBER", "OTHER")})
    for name in ("scale", "other", "times"):
        setattr(Box, name, fields[name])
    vars(SETTINGS).update(settings)
    SECOND(2)


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    row = ROWS[name]
    torch.manual_seed(0)
    args = row.arguments()
    compiled = Compiled(row.program)
    for _ in range(2):
        compiled(*(copied(args) if row.program is write else args))
    assert len(compiled.graphs) == 1
    before = dict(firebrick.stats()["reasons"].get("recompile", {}))
    changed = args if row.change is None else row.change(*args)
    with row.mode():
        want = row.program(*(copied(changed) if row.program is write else changed))
        for _ in range(2):
            got = compiled(*(copied(changed) if row.program is write else changed))
            assert (got.device, got.layout, got.is_conj()) == (want.device, want.layout, want.is_conj())
            if got.is_cpu and got.layout is torch.strided:
                assert_same(got, want)
    now = firebrick.stats()["reasons"].get("recompile", {})
    said = [why for why, count in now.items() if count != before.get(why, 0)]
    assert len(compiled.graphs) == (2 if row.text else 1), said
    assert len(said) == (1 if row.text else 0)
    assert all(row.text in why and "0x" not in why for why in said), said


def copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies of tensors that the program writes to; those that were one are one."""
    memo: dict[int, Any] = {}
    return tuple(copy.deepcopy(one, memo) for one in args)
