"""Tables of small programs: a row is a function, its arguments, and what capture is expected to make of it."""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from compiling import Compiled, assert_same, outcome

from firebrick.report import FirebrickWarning

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Row", "Table", "check_row", "check_whole"]

X = torch.arange(6.0).reshape(2, 3)


@dataclass(frozen=True)
class Row:
    """One program. graphs, breaks: what the first call is captured as; None if that is not of interest."""

    name: str
    function: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    graphs: int | None
    breaks: int | None


@dataclass
class Table:
    """Rows under one heading of what is supported."""

    rows: list[Row] = field(default_factory=list)

    def row(self, *arguments: Any, graphs: int | None = 1, breaks: int | None = 0, make: Any = None) -> Any:
        """Add the decorated function; `make` gives its arguments where they can't be copied."""
        given = make or (lambda: copy.deepcopy(arguments or (X,)))

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            self.rows.append(Row(function.__name__, function, given, graphs, breaks))
            return function

        return add


def _watched(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    torch.manual_seed(0)
    written = io.StringIO()
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(written):
        warnings.simplefilter("always")
        kind, value = outcome(function, arguments)
    said = [str(w.message) for w in warned if not issubclass(w.category, FirebrickWarning)]
    said = [text for text in said if "get_attr Node" not in text]  # torch.fx of graphs that torch makes on its way
    return kind, value, written.getvalue(), said, torch.is_grad_enabled()


def check_row(row: Row, calls: int = 3) -> None:
    """Compiled as plain in results, exceptions, changed arguments, what is written, random numbers and modes."""
    compiled = Compiled(row.function)
    _watched(row.function, row.arguments())  # some warnings of torch come once in a process
    for call in range(calls):
        plain, ours = row.arguments(), row.arguments()
        want, got = _watched(row.function, plain), _watched(compiled, ours)
        assert got[0] == want[0], (got, want)
        assert_same(list(got[1:]), list(want[1:]))
        assert_same(list(ours), list(plain))
        if call == 0 and row.graphs is not None:
            assert len(compiled.graphs) == row.graphs, [str(gm.graph) for gm in compiled.graphs]
        if call == 0 and row.breaks is not None:
            # torch.package patches inspect for the whole process, which torch meets where it compiles by itself.
            found = [str(frame.break_) for frame in compiled.frames if frame.break_ is not None]
            breaks = [text for text in found if "_patched_getfile" not in text]
            assert len(breaks) == row.breaks, [str(frame.break_) for frame in compiled.frames]


def check_whole(row: Row, calls: int = 2) -> None:
    """The same under `fullgraph=True`: whole, or the program's own exception."""
    compiled = Compiled(row.function, fullgraph=True)
    _watched(row.function, row.arguments())
    for _ in range(calls):
        plain, ours = row.arguments(), row.arguments()
        want, got = _watched(row.function, plain), _watched(compiled, ours)
        assert got[0] == want[0], (got, want)
        assert_same(list(got[1:]), list(want[1:]))
        assert_same(list(ours), list(plain))
