"""The catalogue of graph breaks: one numbered row a cause, with its fix, and the exception that carries one.

A break is raised wherever the interpreter meets something that can't go in a graph. It never reaches
the user unless `fullgraph=True`, where it becomes `errors.Unsupported`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from firebrick.errors import Unsupported, UserLocation


@dataclass(frozen=True, slots=True)
class BreakKind:
    """One row of the catalogue."""

    number: int
    name: str
    cause: str
    fix: str
    cost: str = "one more graph, and Python runs this instruction"


_ROWS: Mapping[str, tuple[str, ...]] = {
    "data-dependent-branch": (
        "control flow depends on the values of a tensor",
        "use torch.where, torch.cond or a mask, or move the test out of the compiled function",
        "one more graph for each way that is taken, and the program waits for the value",
    ),
    "data-dependent-value": (
        "a number that data decide is used where Python must know it, or a tensor is turned into such a list",
        "keep the value in a tensor, or read it after the compiled region",
        "one more graph, and the program waits for the value",
    ),
    "data-dependent-shape": (
        "the shape of a result depends on the values of a tensor",
        "use an operation whose result has a fixed size, such as torch.where with three arguments",
        "one more graph, and a compile for each new size of the result",
    ),
    "unsupported-call": (
        "a call goes to code that can't be captured",
        "move the call out of the compiled function, or write it with torch functions",
        "one more graph, and the function called is captured on its own where it can be",
    ),
    "unsupported-attribute": (
        "an attribute is read or written in a way that can't be followed",
        "read the attribute before the compiled region",
    ),
    "unsupported-operation": (
        "an operation on these kinds of values can't be followed",
        "do the operation outside the compiled function",
    ),
    "unsupported-instruction": (
        "this Python statement can't be captured",
        "move the statement out of the compiled function",
    ),
    "requested": ("graph_break() was called", "remove the call"),
    "disabled-function": (
        "a function marked with disable() was called",
        "remove the mark, or call the function outside the compiled region",
        "one more graph, and the function runs as plain Python",
    ),
    "fake-tensor-failed": (
        "torch could not run the operation on fake tensors",
        "register a fake implementation for the operator, or check the arguments",
    ),
    "generator-escapes": (
        "a generator that was started in the captured code is still running where it leaves",
        "consume the generator in the function that makes it",
        "the loop over the generator runs as plain Python",
    ),
    "exception-escapes": (
        "an exception leaves the compiled function",
        "none is needed: the statement that raises runs as plain Python, under fullgraph=True too",
        "the statement that raises runs as plain Python, once more",
    ),
    "no-reconstruction": (
        "a value made in the captured code can't be made again outside of it",
        "keep the value inside the compiled function",
        "what makes the value runs as plain Python",
    ),
    "tensor-subclass": (
        "a tensor of a derived class is used where only the class or the original tensor knows what happens",
        "pass plain tensors",
        "operations on the tensor run as plain Python",
    ),
    "recursion": (
        "calls are nested too deeply to be inlined",
        "make the recursion shallower",
        "a graph for each sixty calls",
    ),
    "numpy": (
        "numpy code has no equal among torch's operations",
        "write it with torch functions, or move it out of the compiled function",
        "one more graph, and numpy runs the call",
    ),
    "random-generator": (
        "a random generator is asked for its state, or for numbers that depend on tensors of the graph",
        "draw tensors of random numbers from it, by torch.rand and the like, or use the default generator",
        "one more graph, and Python runs the operation that draws",
    ),
    "changing-value": (
        "a number that differs from call to call, or anything that does from round to round of a loop with a graph "
        "break in it, is used where a graph needs to know it",
        "use the number in arithmetic with tensors, keep it in a tensor, or move what breaks the loop out of it",
        "one more graph, and Python runs what uses the value",
    ),
}
"""Break name -> its cause, its fix, and what it costs if that is more than any break does; numbered from 1."""

CATALOGUE: Mapping[str, BreakKind] = {
    name: BreakKind(number, name, *row) for number, (name, row) in enumerate(_ROWS.items(), 1)
}
"""Break name -> its row."""


class Break(Exception):
    """Capture can't go on at this place; the graph so far is compiled and Python runs the instruction."""

    def __init__(self, name: str, detail: str, *, fix: str = "", raises: Callable[[], Any] | None = None) -> None:
        self.kind = CATALOGUE[name]
        self.detail = detail
        self.fix = fix or self.kind.fix
        self.stack: tuple[UserLocation, ...] = ()
        self.step: int | None = None  # a step of the root frame before which the graph had better end
        self.raises: Callable[[], Any] = raises or (
            lambda: name == "exception-escapes"
        )  # whether it is the program that raises
        super().__init__(f"break {self.kind.number} {name}: {detail}")

    def is_of_data(self) -> bool:
        """Whether the data of tensors would have to be known."""
        return self.kind.name.startswith("data-dependent")

    def unsupported(self) -> Unsupported:
        """The error that `fullgraph=True` raises instead of breaking."""
        what = f"graph break {self.kind.number} ({self.kind.name}): {self.detail}; {self.kind.cause}"
        error = Unsupported(what, where=self.stack[-1] if self.stack else None, fix=self.fix)
        for place in self.stack[:-1]:
            error.add_note(f"called from {place}")
        return error


def breaks(name: str, detail: str) -> Callable[..., Any]:
    """The rule of what always breaks."""

    def rule(*_: Any, **__: Any) -> NoReturn:
        raise Break(name, detail)

    return rule


class SkipFrame(Exception):
    """The frame runs as plain Python; `always` says that it need not be looked at again."""

    def __init__(self, why: str, *, always: bool = False) -> None:
        self.why, self.always = why, always
        super().__init__(why)
