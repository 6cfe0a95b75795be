"""Write docs/graph-breaks.md from the catalogue of graph breaks, each with a smallest example.

python tools/graph_breaks.py
"""

from __future__ import annotations

from pathlib import Path

from firebrick.capture.breaks.catalogue import CATALOGUE

PAGE = Path(__file__).resolve().parent.parent / "docs" / "graph-breaks.md"

HEAD = """# Graph breaks

Capture ends a graph where the program does something that can't go in one. The graph so far is compiled, Python runs
the instruction, and what follows is captured as a continuation: results are always those of plain Python. A break
costs a second graph, a few microseconds a call, and what the compiler could have fused across it.

A loop with a break inside goes round in Python; what its body does before and behind the break is captured once and
called in each round. A number, text or function that changes from round to round would be a constant of such a graph:
what uses it runs in Python (18).

`firebrick.explain(model)(*args)` lists the breaks of a call: the number below, the place in your code and the fix.
`fullgraph=True` raises `Unsupported` with the same text instead. This page is made by `python tools/graph_breaks.py`
from the catalogue in `src/firebrick/capture/breaks/catalogue.py`; a test runs every example, whose line marked `# here`
breaks.

"""

EXAMPLES = {
    "data-dependent-branch": """
def f(x):
    y = x + 1
    if y.sum() > 0:  # here
        return y * 2
    return y
""",
    "data-dependent-value": """
def f(x):
    n = x.sum().item()
    return x * n**0.5  # here
""",
    "data-dependent-shape": """
def f(x):
    return torch.nonzero(x) + 1  # here
""",
    "unsupported-call": """
import json

def f(x):
    y = x + 1
    json.dumps({"rows": len(y)})  # here
    return y * 2
""",
    "unsupported-attribute": """
class Counter:
    calls = 0

def f(x):
    y = x + 1
    Counter.calls = 1  # here
    return y * 2
""",
    "unsupported-operation": """
def f(x):
    y = x + 1
    text = f"{y}"  # here
    return y * len(text)
""",
    "unsupported-instruction": """
def f(x):
    y = x + 1
    class Local:  # here
        scale = 2
    return y * Local.scale
""",
    "requested": """
def f(x):
    y = x + 1
    firebrick.graph_break()  # here
    return y * 2
""",
    "disabled-function": """
@firebrick.disable
def slow(y):
    return y.tolist()

def f(x):
    y = x + 1
    return y * len(slow(y))  # here
""",
    "fake-tensor-failed": """
@torch.library.custom_op("graph_breaks::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

def f(x):
    return twice(x + 1) + 1  # here
""",
    "generator-escapes": """
def rows(x):
    for row in x:
        yield row * 2

def f(x):
    y = rows(x + 1)
    first = next(y)
    return first, y  # here
""",
    "exception-escapes": """
def f(x):
    y = x + 1
    if y.dim() == 1:
        raise ValueError("rows are needed")  # here
    return y
""",
    "changing-value": """
def f(x):
    for i in range(3):
        if x.sum() > 100:
            break
        x = x.sin() * i  # here
    return x
""",
    "no-reconstruction": """
class Base:
    pass

class Thing(Base):
    def f(self, x):
        return x + 1, super()  # here

f = Thing().f
""",
    "tensor-subclass": """
class Tagged(torch.Tensor):
    pass

def f(x):
    y = x.as_subclass(Tagged)
    return y.requires_grad_()  # here
""",
    "numpy": """
import numpy as np

def f(x):
    a = (x + 1).numpy()
    return np.percentile(a, 50)  # here
""",
    "random-generator": """
generator = torch.Generator()

def f(x):
    generator.manual_seed(3)
    y = x + torch.rand(3, generator=generator)
    return y * torch.bernoulli(y.sigmoid(), generator=generator)  # here
""",
    "recursion": """
def down(x, rest):
    return x if rest is None else down(x + 1, rest[0])  # here

nested = None
for _ in range(100):
    nested = (nested,)

def f(x):
    return down(x, nested)
""",
}


def page() -> str:
    """The text of the page."""
    parts = [HEAD]
    for kind in CATALOGUE.values():
        parts.append(f"## {kind.number} {kind.name}\n\n{kind.cause[0].upper()}{kind.cause[1:]}.\n\n")
        parts.append(f"- Cost: {kind.cost}.\n- Fix: {kind.fix}.\n\n```python\n{EXAMPLES[kind.name].strip()}\n```\n\n")
    return "".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
