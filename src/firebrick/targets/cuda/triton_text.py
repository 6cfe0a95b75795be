"""Writes kernels as Triton text: one function a kernel, constants in the text, masks where sizes need them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from firebrick.ir.index.expr import ZERO, Expr
from firebrick.ir.kernels.schedule import Param
from firebrick.targets.cuda.part_text import PartWriter
from firebrick.targets.cuda.scopes import INDENT
from firebrick.targets.cuda.tile import Body
from firebrick.targets.cuda.triton_functions import helpers_of

HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice
"""

CHECK_TEXT = """@triton.jit
def check(a0, s0, s1):
    tl.device_assert((tl.load(a0) <= s1) & (tl.load(a0 + 1) >= s0), "index out of bounds")"""
"""A kernel that stops the device unless the greatest and the least of some indices are in range."""

_LOAD = re.compile(r"tl\.load\((\w+) \+ ")
DEPENDENT = (
    "tl.extra.cuda.gdc_launch_dependents()  # the next kernel may start once all programs of this one have",
    "tl.extra.cuda.gdc_wait()  # for what earlier kernels write",
)


def unit_text(kernels: Sequence[str]) -> str:
    """A module of kernels' texts, with the helpers that they call."""
    text = "\n\n\n".join(kernels)
    helpers = [f"@triton.jit\n{h}\n" for h in helpers_of(text)]
    return "\n\n".join([HEADER, *helpers, text + "\n"])


def kernel_text(
    name: str,
    body: Body,
    params: Sequence[Param],
    sizes: Sequence[str] = (),
    dependent: bool = False,
    steady: frozenset[str] = frozenset(),
) -> str:
    """The text of one kernel.

    Args:
        name: of the function.
        body: what it does.
        params: its buffers, in order; symbolic sizes follow.
        sizes: names of those.
        dependent: it is launched while the kernel before it still runs, and waits for it itself.
        steady: parameters that no step of the program writes, so that they may be read before.
    """
    parameters, numbers = [*(p.name for p in params), *sizes], [p.name for p in params if p.number]
    before: list[str] = []
    if len(body.parts) == 1:
        lines = PartWriter(body.parts[0], body.wide, numbers).lines("tl.program_id(0)")
        lines = _waiting(lines, steady) if dependent else lines
    else:
        before, lines = _parts(name, body, parameters, numbers)
        lines = [*DEPENDENT, *lines] if dependent else lines
    return "\n".join([*before, "@triton.jit", f"def {name}({', '.join(parameters)}):", *(INDENT + s for s in lines)])


def _waiting(lines: list[str], steady: frozenset[str]) -> list[str]:
    """The lines and the wait for earlier kernels, behind the loads that need not wait and what their addresses are
    made of."""
    ahead: list[str] = []
    rest: list[str] = []
    late: set[str] = set()
    plain, loads = True, False
    for line in lines:
        name, _, text = line.partition(" = ")
        plain = plain and name.isidentifier()
        load = _LOAD.match(text)
        may = load is not None and load[1] in steady if "tl.load(" in text else True
        if plain and may and late.isdisjoint(re.findall(r"\w+", text)):
            ahead.append(line)
            loads = loads or load is not None
            late |= {name} if load else set()
        else:
            rest.append(line)
            late.add(name)
    return [DEPENDENT[0], *ahead, DEPENDENT[1], *rest] if loads else [*DEPENDENT, *lines]


def _parts(name: str, body: Body, parameters: list[str], numbers: list[str]) -> tuple[list[str], list[str]]:
    """Parts as functions, equal ones as one, and the lines by which a program picks its own."""
    texts: dict[str, str] = {}
    lines = ["pid = tl.program_id(0)"]
    start: Expr = ZERO
    for k, part in enumerate(body.parts):
        text = "\n".join(INDENT + s for s in PartWriter(part, body.wide, numbers).lines("pid"))
        used = [p for p in parameters if re.search(rf"\b{p}\b", text)]
        formal = {p: f"p{n}" for n, p in enumerate(used)}
        text = re.sub(r"\b[as]\d+\b", lambda m, formal=formal: formal.get(m[0], m[0]), text)  # type: ignore[misc]
        text = f"({', '.join(['pid', *formal.values()])}):\n{text}"
        function = texts.setdefault(text, f"{name}_part{len(texts)}")
        place = "pid" if start is ZERO else f"pid - ({start.show()})"
        end = start + part.programs
        if k == len(body.parts) - 1:
            lines.append("else:")
        else:
            lines.append(f"{'elif' if k else 'if'} pid < {end.show()}:")
        lines.append(f"{INDENT}{function}({', '.join([place, *used])})")
        start = end
    return [f"@triton.jit\ndef {function}{text}\n\n" for text, function in texts.items()], lines
