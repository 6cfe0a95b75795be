"""What feature rows write with: a program in four parts, and the tensors that are in scope.

The program of a seed reads

    <top>                          modules, classes, constants
    def main(a1, a2, ...):         captured code: the only part that is compiled
        <body>
        return <results>
    def drive(main, call):         plain Python around each call of `main`
        <before>
        out = main(<arguments>)
        <after>
        return out, ...

`drive` is called a few times with main as it is and with main compiled. All that it returns, the globals in capital
letters (modules with their gradients, `SEEN`), the type of what was raised and whether the objects behind `WATCHED`
are dead must be the same.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

__all__ = ["LAYOUTS", "Feature", "Tensor", "Writer", "layout"]

PRELUDE = """
import contextlib, copy, functools, gc, math, types, warnings, weakref
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import forward_ad as fwAD

BACKEND = "{backend}"
SEEN = []
WATCHED = []


def given(seed, *shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator) > 0
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(-4, 5, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator, dtype=dtype)


def names(error):
    return [kind.__name__ for kind in type(error).__mro__ if kind.__module__ in ("builtins", "torch")]
"""


@dataclass(frozen=True)
class Feature:
    """A row of the table: what it is called, how often it is chosen, what writes it, and the backend that it needs.

    `backend="eager"` is capture alone: fast, and compared bit by bit. It counts only where all rows of a program ask
    for it.
    """

    name: str
    weight: int
    writer: Callable[[Writer], None]
    backend: str = "firebrick"


@dataclass(frozen=True)
class Tensor:
    """A name in captured code that holds a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    grad: bool = False

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether it can have gradients and be given to a module."""
        return self.dtype in ("float32", "float64")


# -- layouts ------------------------------------------------------------------------


def _numbers(values: object) -> str:
    return ", ".join(map(str, values))


def _plain(given: str, shape: tuple[int, ...], random: random.Random) -> str:
    return given.format(_numbers(shape))


def _permuted(given: str, shape: tuple[int, ...], random: random.Random) -> str:
    order = list(range(len(shape)))
    random.shuffle(order)
    back = [order.index(dim) for dim in range(len(shape))]
    return given.format(_numbers(shape[dim] for dim in order)) + f".permute({_numbers(back)})"


def _transposed(given: str, shape: tuple[int, ...], random: random.Random) -> str:
    if len(shape) < 2:
        return _plain(given, shape, random)
    a, b = random.sample(range(len(shape)), 2)
    inner = list(shape)
    inner[a], inner[b] = inner[b], inner[a]
    return given.format(_numbers(inner)) + f".transpose({a}, {b})"


def _expanded(given: str, shape: tuple[int, ...], random: random.Random) -> str:
    kept = [size if random.random() < 0.5 else 1 for size in shape]
    kept = kept[random.choice([0, 0, 1]) if kept[0] == 1 and len(shape) > 1 else 0 :]
    return given.format(_numbers(kept)) + f".expand({_numbers(shape)})"


def _channels_last(given: str, shape: tuple[int, ...], random: random.Random) -> str:
    names = {4: "channels_last", 5: "channels_last_3d"}
    if len(shape) not in names:
        return _transposed(given, shape, random)
    return _plain(given, shape, random) + f".contiguous(memory_format=torch.{names[len(shape)]})"


def _offset(given: str, shape: tuple[int, ...], random: random.Random) -> str:
    first = random.choice([1, 2, 3])
    return given.format(_numbers((shape[0] + first, *shape[1:]))) + f"[{first}:]"


def _unaligned(given: str, shape: tuple[int, ...], random: random.Random) -> str:
    size = 1
    for s in shape:
        size *= s
    return given.format(size + 1) + f"[1:].view({_numbers(shape)})"


def _gaps(given: str, shape: tuple[int, ...], random: random.Random) -> str:
    dim = random.randrange(len(shape))
    inner = [size * 2 if d == dim else size for d, size in enumerate(shape)]
    index = ", ".join("::2" if d == dim else ":" for d in range(len(shape)))
    return given.format(_numbers(inner)) + f"[{index}]"


def _narrowed(given: str, shape: tuple[int, ...], random: random.Random) -> str:
    inner = (*shape[:-1], shape[-1] + 3)
    return given.format(_numbers(inner)) + f"[..., 1:{1 + shape[-1]}]"


def _selected(given: str, shape: tuple[int, ...], random: random.Random) -> str:
    dim = random.randrange(len(shape) + 1)
    inner = (*shape[:dim], 2, *shape[dim:])
    return given.format(_numbers(inner)) + f".select({dim}, 1)"


def _negative(given: str, shape: tuple[int, ...], random: random.Random) -> str:
    inner = random.choice(LAYOUT_ROWS)[1](given, shape, random)
    return f"torch._neg_view({inner})"


def _imaginary(given: str, shape: tuple[int, ...], random: random.Random) -> str:
    if "dtype=" in given:
        return _plain(given, shape, random)
    inner = _transposed(given[:-1] + ", dtype=torch.complex64)", shape, random)
    return inner + random.choice([".conj().imag", ".imag", ".real", ".conj().imag", ".mH.mT.imag"])


LAYOUT_ROWS = (
    ("plain", _plain), ("permuted", _permuted), ("transposed", _transposed), ("expanded", _expanded), ("gaps", _gaps),
    ("channels_last", _channels_last), ("offset", _offset), ("unaligned", _unaligned), ("narrowed", _narrowed), ("selected", _selected),
)  # fmt: skip
LAYOUTS = {**dict(LAYOUT_ROWS), "negative": _negative, "imaginary": _imaginary}
"""Name of a layout -> (text of `given(seed, {})`, shape, random) -> text of a tensor of that shape."""

SIZES = {1: ((8,), (5,), (3,)), 2: ((3, 8), (6, 5), (1, 8), (4, 4)), 3: ((2, 6, 8), (2, 3, 5), (1, 4, 8), (3, 1, 4)),
         4: ((2, 3, 6, 6), (1, 4, 5, 8), (2, 2, 3, 4)), 5: ((1, 2, 3, 4, 4), (2, 3, 2, 3, 3))}  # fmt: skip


def layout(random: random.Random, seed: int | str, shape: tuple[int, ...], dtype: str, names: tuple[str, ...]) -> str:
    """Text of a tensor of a shape in one of the layouts."""
    kind = "" if dtype == "float32" else f", dtype=torch.{dtype}"
    given = f"given({seed}, {{}}{kind})"
    if not shape:
        return given.format("").replace(", )", ")").replace(", ,", ",")
    name = random.choice(names or tuple(LAYOUTS))
    if name in ("negative", "imaginary") and dtype not in ("float32", "float64"):
        name = "permuted"
    return LAYOUTS[name](given, shape, random)


class Writer:
    """A program as it is written; each row of the table adds to its parts."""

    def __init__(self, random: random.Random) -> None:
        self.random = random
        self.parts: dict[str, list[str]] = {"top": [], "body": [], "before": [], "after": [], "last": []}
        self.tensors: list[Tensor] = []
        self.arguments: list[str] = []
        self.results: list[str] = []
        self.observed: list[str] = []
        self.mode = random.choice(
            ("", "", "with torch.no_grad():", "with torch.no_grad():", "with torch.inference_mode():")
        )
        """What `main` is called under; rows that need gradients set it to ""."""
        self._indents = dict.fromkeys(self.parts, 0)
        self._indents.update(body=1, before=1, after=1, last=1)
        self._counter = 0

    # -- the parts ------------------------------------------------------------------

    def _put(self, part: str, *lines: str) -> None:
        for text in lines:
            for line in text.split("\n"):
                self.parts[part].append("    " * self._indents[part] + line)

    def top(self, *lines: str) -> None:
        """Write at the top level."""
        self._put("top", *lines)

    def put(self, *lines: str) -> None:
        """Write captured code."""
        self._put("body", *lines)

    def before(self, *lines: str) -> None:
        """Write plain Python before the call."""
        self._put("before", *lines)

    def after(self, *lines: str) -> None:
        """Write plain Python behind the call; `out` is its result, a tuple."""
        self._put("after", *lines)

    def last(self, *lines: str) -> None:
        """Write plain Python behind that: what changes results, so that later backwards may refuse."""
        self._put("last", *lines)

    @contextlib.contextmanager
    def block(self, head: str, part: str = "body") -> Iterator[None]:
        """What is written inside goes under `head`; names bound there may stay unbound, so they leave scope."""
        self._put(part, head)
        self._indents[part] += 1
        names, count = list(self.tensors), len(self.parts[part])
        yield
        if len(self.parts[part]) == count:
            self._put(part, "pass")
        self._indents[part] -= 1
        self.tensors = names

    def fresh(self, prefix: str = "v") -> str:
        """A name that is not in use."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    # -- tensors --------------------------------------------------------------------

    def argument(self, shape: tuple[int, ...] | int | None = None, dtype: str = "float32", grad: bool | None = None,
                 layouts: tuple[str, ...] = ()) -> Tensor:  # fmt: skip
        """A new argument of `main`; `shape` may be a rank, and is free where it is None."""
        random = self.random
        if not isinstance(shape, tuple):
            shape = random.choice(SIZES[shape or random.choice([1, 2, 2, 3, 3, 3, 4])])
        grad = (random.random() < 0.3 if grad is None else grad) and dtype in ("float32", "float64", "complex64")
        name = self.fresh("a")
        text = layout(random, f"{self._counter} + 100 * call", shape, dtype, layouts)
        if grad:
            text += random.choice([".requires_grad_()", ".requires_grad_()", ".detach().clone().requires_grad_()"])
        self.before(f"{name} = {text}")
        self.arguments.append(name)
        tensor = Tensor(name, shape, dtype, grad)
        self.tensors.append(tensor)
        if grad:
            self.observed.append(f"{name}.grad")
        return tensor

    def tensor(self, rank: int | None = None, shape: tuple[int, ...] | None = None, dtype: str | None = "float32",
               grad: bool | None = None) -> Tensor:  # fmt: skip
        """A tensor in scope that fits, or a new argument."""
        fitting = [
            t for t in self.tensors
            if rank in (None, t.rank) and shape in (None, t.shape) and dtype in (None, t.dtype) and grad in (None, t.grad)
        ]  # fmt: skip
        if fitting and self.random.random() < 0.85:
            return self.random.choice(fitting[-4:])
        return self.argument(shape if shape is not None else rank, dtype or "float32", grad)

    def bind(self, text: str, like: Tensor, shape: tuple[int, ...] | None = None, **changes: object) -> Tensor:
        """A new name in captured code for the value of `text`; its kind is that of `like` but for what is told."""
        name = self.fresh()
        self.put(f"{name} = {text}")
        tensor = replace(like, name=name, **({} if shape is None else {"shape": shape}), **changes)
        self.tensors.append(tensor)
        return tensor

    def returns(self, *texts: str) -> None:
        """Let `main` return these too."""
        self.results += texts

    def observes(self, *texts: str) -> None:
        """Let `drive` return these too."""
        self.observed += texts

    # -- the whole ------------------------------------------------------------------

    def text(self, backend: str) -> str:
        """The program."""
        made = [t.name for t in self.tensors if t.name not in self.arguments]
        results = [*self.results, *(name for name in made[:-1] if self.random.random() < 0.25), *made[-1:]]
        call = [f"    out = main({', '.join(self.arguments)})"]
        if self.mode:
            call = [f"    {self.mode}", f"    {call[0]}"]
        lines = [
            PRELUDE.format(backend=backend), *self.parts["top"], "", "",
            f"def main({', '.join(self.arguments)}):", *self.parts["body"], f"    return ({''.join(r + ', ' for r in results)})", "", "",
            "def drive(main, call):", *self.parts["before"], *call, *self.parts["after"], *self.parts["last"],
            f"    return out, {''.join(o + ', ' for o in self.observed)}",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"
