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

A number or truth that integers of the inputs decide (a mask, lengths, a step, a buffer) by a few calls is no break: each
call computes it first, as a guard, and a graph is made for what it is, up to two numbers or four truths a function;
with `fullgraph=True` as many as `recompile_limit` allows. `if`, `range`, keys, indices of lists and sizes may depend on
it. What activations decide is a break.

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
    return x * [1.0, 2.0][n > 0]  # here
""",
    "data-dependent-shape": """
def f(x):
    return torch.nonzero(x) + 1  # here
""",
    "unsupported-call": """
import time

def f(x):
    y = x + 1
    time.time()  # here
    return y * 2
""",
    "unsupported-attribute": """
class Counter:
    def step(self, y):
        return y

def f(x):
    y = x + 1
    Counter.step = lambda self, y: y + 1  # here
    return y * 2
""",
    "unsupported-operation": """
def f(x):
    y = x + 1
    text = f"{y}"  # here
    return y * len(text)
""",
    "unsupported-instruction": """
import enum

class Meta(enum.EnumMeta):
    def __new__(cls, *args):
        return super().__new__(cls, *args)

def f(x):
    y = x + 1
    class Local(enum.Enum, metaclass=Meta):  # here
        SCALE = 2
    return y * Local.SCALE.value
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

KINDS_HEAD = """## What still ends a graph

One row for each kind of code that is known to break, and why. A test runs the program of each row.

| code | break | why |
|---|---|---|
"""

HELD = "which object comes out depends on data"
RUN = "Python runs it: it reads or changes what is no tensor"

# ruff: noqa: E501
KINDS: list[tuple[str, str, str, str]] = [
    ("`if` on a tensor, or on a number of one", "data-dependent-branch", "which way is taken depends on data", "y = x + 1 if x.sum() > 0 else x"),
    ("`min`, `max` of tensors that want gradients, or with a `key`", "data-dependent-branch", HELD, "y = max(x[0], x[1], key=abs)"),
    ("what `min` or `max` of a tensor and a number gave, but in arithmetic and where it leaves", "data-dependent-branch", HELD, "y = torch.sin(max(x[0], 0.5))"),
    ("`is` on the tensor that `min` or `max` gave", "data-dependent-branch", HELD, "a, b = x[0], x[1]\ny = max(a, b) is a"),
    ("`n in tensor`", "data-dependent-branch", "the answer is a truth that Python asks at once", "y = 1.0 in x"),
    ("a tensor that activations decide as index of a list or of modules", "data-dependent-value", HELD, "y = [x, x + 1][x.argmax()]"),
    ("`range(t.item())` of activations", "data-dependent-value", "how often a loop runs is part of the graph", "y = [x for _ in range(x.argmax().item())]"),
    ("a number of data as key", "data-dependent-value", HELD, "y = x * {0: 1.0, 2: 2.0}[x.argmax().item()]"),
    ("`**`, `//`, `%` of an integer of data and a float of data, where it may be too large for one", "data-dependent-value", "Python raises where a tensor does not", "y = x * x.argmax().item() ** 2.5"),
    ("text of a tensor", "unsupported-operation", "torch prints numbers that are not there yet", "y = str(x + 1)"),
    ("`requires_grad_()` on what was given and read before, or on a part of its memory whose gradients leave the graph", "unsupported-call", "the object has to be a leaf of autograd while the function runs", "y = x.requires_grad_()"),
    ("`retain_grad()`, `backward()`", "unsupported-call", "they act on nodes of autograd that one compiled node stands for", "y = (x + 1).retain_grad()"),
    ("`detect_anomaly`", "unsupported-call", "it acts on nodes of autograd that one compiled node stands for", "with torch.autograd.detect_anomaly(check_nan=False):\n    y = x + 1"),
    ("`torch.autograd.functional`; `torch.autograd.grad` of what was made before the graph, with `is_grads_batched` or for tensors with hooks", "unsupported-call", "the history of gradients lies partly outside of the graph; `torch.func.grad` and its kin need none", "y = torch.autograd.functional.jacobian(torch.sin, x)"),
    ("`saved_tensors_hooks` entered inside, whose functions keep what is saved, change what they are given, or unpack it by what changes later", "unsupported-call", "what they do with a tensor is a part of the graph, which is run where and when the compiled code wants it", "w = x.clone().requires_grad_()\nkept = []\nwith torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: kept[0]):\n    y = w.exp()"),
    ("backward hooks of modules", "unsupported-call", "nodes of autograd call them that one compiled node stands for", "layer = torch.nn.ReLU()\nlayer.register_full_backward_hook(print)\ny = layer(x)"),
    ("`torch.func.functionalize`, `stack_module_state`", "unsupported-call", "torch's own Python behind it works on real tensors", "y = torch.func.functionalize(torch.sin)(x)"),
    ("arithmetic or text with `id()` or `hash()` of new objects and tensors", "unsupported-call", "each call makes another object", "y = x + 1\nz = id(y) % 16"),
    ("classes whose metaclass has an `mro` of its own, enumerations with a `__new__`, `__init__` or `__prepare__` of the metaclass or an `__init_subclass__` of the base, classes with type parameters", "unsupported-instruction", "Python calls them while it makes the class", "class Meta(type):\n    def mro(cls):\n        return type.mro(cls)\nclass Local(metaclass=Meta):\n    pass\ny = x"),
    ("a class made inside that leaves the function and holds itself in what its body made", "no-reconstruction", "it would have to be there before it is made", "class Local:\n    held = []\nLocal.held.append(Local)\ny = Local"),
    ("`dataclass` of a class made inside, with a descriptor of the program's as default", "unsupported-call", "`dataclass` is not looked into, and reads it", "import dataclasses\nclass Default:\n    def __get__(self, instance, owner):\n        return 1\n@dataclasses.dataclass\nclass Local:\n    n: int = Default()\ny = x"),
    ("`torch.autograd.Function` classes made inside, where gradients are recorded, that read tensors, lists or variables that change", "unsupported-call", "the class is called behind the captured code, with what these are then", "scale = x * 2\nclass Local(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, value):\n        return value * scale\ny = Local.apply((x * 1).requires_grad_())"),
    ("`copy.deepcopy` of tensors and modules", "unsupported-call", "they are made of parts that no graph has", "import copy\ny = copy.deepcopy(x)"),
    ("`tolist()` of many floats, `data_ptr()`", "data-dependent-value", "the numbers are not there yet", "y = x.data_ptr() % 16"),
    ("`async` functions", "unsupported-call", "a loop of events runs them", "async def later():\n    return 1\ny = later()"),
    ("`except*` that lets a part of a group pass", "unsupported-instruction", "what is left of the group is raised by the statement itself", "try:\n    raise ExceptionGroup('two', [ValueError(), TypeError()])\nexcept* ValueError:\n    y = x"),
    ("`set_stance`", "unsupported-call", "it says how functions are compiled", "torch.compiler.set_stance('default')\ny = x"),
    ("`exec`, `globals()`", "unsupported-call", RUN, "y = globals()"),
    ("`sys._getframe`, `inspect.stack` of what calls the compiled function, or calls through C code", "unsupported-call", "the compiled code has other frames", "import sys\ny = sys._getframe(1).f_code.co_name"),
    ("locals and globals of a frame", "unsupported-attribute", "the compiled code has other frames", "import sys\ny = sys._getframe().f_locals"),
    ("locks", "unsupported-call", RUN, "import threading\nlock = threading.Lock()\ny = lock.acquire()"),
    ("clocks", "unsupported-call", RUN, "import time\ny = time.time()"),
    ("files, `json.loads`, `uuid`", "unsupported-call", RUN, "y = open('a')"),
    ("`bytearray`, `Decimal`", "unsupported-call", "objects of C code that no rule describes", "y = bytearray(b'a')"),
    ("`warnings.catch_warnings(record=True)` where filters from outside, what was said before (`default`, `once`) or operations of torch decide what is recorded", "unsupported-call", "what is said is said behind the graph", "import warnings\nwith warnings.catch_warnings(record=True):\n    warnings.warn('a')\n    y = x"),
    ("a method or property of a class that is set", "unsupported-attribute", "it changes what captured code has called", "torch.nn.Module.firebrick_mark = lambda self: 1\ny = x"),
    ("under a TorchFunctionMode: tensors of other classes, arrays, contexts but those of gradients, and what reads data", "unsupported-call", "what such a mode sees of it is not known", "from torch.overrides import BaseTorchFunctionMode\nwith BaseTorchFunctionMode():\n    y = x.numpy() + 1"),
    ("a TorchDispatchMode that is entered inside", "unsupported-call", "it sees operators, which the graph has not yet", "from torch.utils._python_dispatch import TorchDispatchMode\nwith TorchDispatchMode():\n    y = x + 1"),
]  # fmt: skip
"""Kinds of code that end a graph: the code, the break, why, and statements that do so, given a tensor x of 3."""


def kinds() -> str:
    """The table of them."""
    numbers = {kind.name: kind.number for kind in CATALOGUE.values()}
    return KINDS_HEAD + "".join(f"| {code} | {numbers[name]} {name} | {why} |\n" for code, name, why, _ in KINDS)


def page() -> str:
    """The text of the page."""
    parts = [HEAD]
    for kind in CATALOGUE.values():
        parts.append(f"## {kind.number} {kind.name}\n\n{kind.cause[0].upper()}{kind.cause[1:]}.\n\n")
        parts.append(f"- Cost: {kind.cost}.\n- Fix: {kind.fix}.\n\n```python\n{EXAMPLES[kind.name].strip()}\n```\n\n")
    return "".join([*parts, kinds()]).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
