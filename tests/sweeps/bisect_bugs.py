"""Fifty-one bugs, planted from outside, and whether bisect, minify and `check=accuracy` name them.

    python -m tests.sweeps.bisect_bugs [NAMES] [--minify | --accuracy] [--markdown FILE]

Each bug is a few lines that change Firebrick in memory: a `sitecustomize` module on the path of the processes runs them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HEAD = "import torch, firebrick\nfrom torch import nn\nimport torch.nn.functional as F\ntorch.manual_seed(0)\n"
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)
    def forward(self, x):
        y = F.gelu(self.first(x))
        return self.norm(self.second(torch.tanh(y) * 2) + x)
"""
INFER = (
    "model = firebrick.compile(Net().eval())\nwith torch.no_grad():\n    print(model(torch.randn(8, 16)).abs().sum())\n"
)
TRAIN = """
net = Net()
model, optimizer = firebrick.compile(net), torch.optim.SGD(net.parameters(), 0.1)
for _ in range(2):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item())
"""
CONV = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 4)
    def forward(self, x):
        y = F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return torch.softmax(self.head(y.mean((2, 3))), -1)
model = firebrick.compile(Net().eval())
with torch.no_grad():
    print(model(torch.randn(2, 3, 8, 8)).sort(-1).values)
"""


def calls(body: str, *arguments: str) -> str:
    """A program that calls a compiled function `f` with each of the arguments and prints what comes back."""
    lines = "".join(f"print(f({argument}))\n" for argument in arguments)
    return f"@firebrick.compile\ndef f({body}\n{lines}"


def op(expression: str) -> str:
    """A program of one expression of x and y among others."""
    return calls(f"x, y):\n    x = x * 1.5\n    z = {expression}\n    return z.float() + y.sum()", "torch.rand(6, 8) + 0.1, torch.rand(6, 8) + 0.2")  # fmt: skip


RULES = "import torch; from firebrick.lower.graph_lowering import RULES as R; a = torch.ops.aten\n"


def swap(one: str, other: str) -> str:
    """The lowering rule of one op is another's."""
    return f"{RULES}R[a.{one}] = R[a.{other}]"


def replaced(module: str, name: str, code: str) -> str:
    """A function of a module is wrapped: `old` is what it was."""
    return f"import firebrick, functools, {module} as m; old = m.{name}\n{code}\nm.{name} = functools.wraps(old)(new)"


def in_pass(name: str, change: str) -> str:
    """A pass also does `change` to the nodes `n` of the graph `g`."""
    return f"""
import torch, functools, firebrick.passes as m
a = torch.ops.aten
def wrong(old):
    @functools.wraps(old)
    def new(aten, *rest):
        aten = old(aten, *rest)
        g = aten.gm.graph
        for n in list(g.nodes):
            {change}
        return aten
    return new
m.PASSES = tuple(wrong(p) if p.__name__ == {name!r} else p for p in m.PASSES)
m.TUNED = frozenset(p for p in m.PASSES if p.__name__ in ("computed_products", "prepack_linear"))
"""


def in_registered(name: str, change: str) -> str:
    """A registered pass also does `change` to the nodes `n` of its graph."""
    return f"""
import operator, torch
from firebrick.extend import registry
import firebrick.passes
a = torch.ops.aten
step = registry.get({name!r})
old = type(step).apply
def new(self, gm, context):
    changed = old(self, gm, context)
    if self is step:
        for n in list(gm.graph.nodes):
            {change}
    return True if self is step else changed
type(step).apply = new
"""


def no_guard(condition: str) -> str:
    """Guards `g` of which a condition holds are left out."""
    return f"from firebrick.capture.guards.guard_set import Guards\nold = Guards.put\nGuards.put = lambda self, key, g: None if {condition} else old(self, key, g)"  # fmt: skip


def in_text(old: str, new: str) -> str:
    """C++ text is changed before it is compiled."""
    return f"""
import dataclasses, firebrick.host as m
made = m.generate
def new(*args, **kwargs):
    artifact = made(*args, **kwargs)
    units = tuple(dataclasses.replace(u, text=u.text.replace({old!r}, {new!r})) for u in artifact.units)
    return dataclasses.replace(artifact, units=units)
m.generate = new
"""


def in_loops(change: str, only: str = "config.fuse") -> str:
    """The loops `text` that are scheduled are others, where fusion takes part."""
    return f"""
import firebrick.fuse as m
from firebrick.ir.loops.parse import parse
from firebrick.ir.loops.show import show
old = m.schedule
def new(program, targets, config, repeat=None):
    if {only}:
        text = show(program)
        program = parse({change})
    return old(program, targets, config, repeat)
m.schedule = new
"""


def in_joint(change: str) -> str:
    """`change` is done to the nodes `n` of every joint graph; `behind`: those that depend on tangents."""
    return f"""
import torch, firebrick.trace as m
a, old = torch.ops.aten, m.trace_joint
def new(*args, **kwargs):
    joint = old(*args, **kwargs)
    behind = set()
    for n in joint.gm.graph.nodes:
        if 'tangent' in n.name or not behind.isdisjoint(n.all_input_nodes): behind.add(n)
    for n in list(joint.gm.graph.nodes):
        {change}
    return joint
m.trace_joint = new
"""


@dataclass(frozen=True)
class Bug:
    """What is planted in which program, the stages that may be named, and words that must be in the report."""

    plant: str
    program: str
    stages: tuple[str, ...]
    words: tuple[str, ...] = ()
    minify: str = ""


KERNEL = ("lowering or kernel", "vector code", "fusion", "functions of its own numerics")
GUARD, CAPTURE = ("guards", "guards of sizes"), ("capture",)
_LIST = "from firebrick.capture.library import builtin_functions as b"
BUILTIN = "from firebrick.capture.values.constant import ConstantValue as C\n"
SWAPS = {
    "tanh": ("tanh.default", "sigmoid.default", NET + INFER),
    "gelu": ("gelu.default", "relu.default", op("F.gelu(x)")),
    "sin": ("sin.default", "cos.default", op("torch.sin(x)")),
    "exp": ("exp.default", "exp2.default", op("torch.exp(x)")),
    "rsqrt": ("rsqrt.default", "sqrt.default", op("torch.rsqrt(x)")),
    "maximum": ("maximum.default", "minimum.default", op("torch.maximum(x, y)")),
    "amax": ("amax.default", "amin.default", op("x.amax(-1, keepdim=True)")),
    "gt": ("gt.Tensor", "lt.Tensor", op("(x > y)")),
    "cumsum": ("cumsum.default", "cumprod.default", op("x.cumsum(-1)")),
    "floor": ("floor.default", "ceil.default", op("torch.floor(x * 3)")),
    "abs": ("abs.default", "neg.default", op("torch.abs(x)")),
    "log1p": ("log1p.default", "log.default", op("torch.log1p(x)")),
}
BUGS: dict[str, Bug] = {
    **{f"lowering of {name}": Bug(swap(a, b), text, KERNEL, (name,), name) for name, (a, b, text) in SWAPS.items()},
    "lowering of flip": Bug(f"{RULES}r = R[a.flip.default]\nR[a.flip.default] = lambda lw, x, dims: x", op("x.flip(-1)"), KERNEL, ("flip",), "flip"),
    "lowering of where": Bug(f"{RULES}r = R[a.where.self]\nR[a.where.self] = lambda lw, c, x, y: r(lw, c, y, x)", op("torch.where(x > y, x, y * 2)"), KERNEL, ("where",), "where"),
    "lowering of cat": Bug(f"{RULES}r = R[a.cat.default]\nR[a.cat.default] = lambda lw, t, d=0: r(lw, t[::-1], d)", op("torch.cat([x, y * 2], -1)"), KERNEL, ("cat",), "cat"),
    "lowering that raises": Bug(f"{RULES}R[a.atan.default] = lambda lw, x: 1 / 0", op("torch.atan(x)"), KERNEL, ("atan", "division by zero"), "atan"),
    "lowering of slice": Bug(f"{RULES}r = R[a.slice.Tensor]\nR[a.slice.Tensor] = lambda lw, x, d=0, s=None, e=None, t=1: r(lw, x, d, (s or 0) - 1 if s else s, (e - 1) if s else e, t)", op("x[:, 2:5].sum(-1, keepdim=True)"), KERNEL, ("getitem",), "getitem"),
    "backward of a product": Bug(in_joint("if n.target is a.mul.Tensor and n in behind: n.target = a.add.Tensor; break"), NET + TRAIN, ("trace", "lowering or kernel"), ("gradient",)),
    "backward of relu": Bug(in_joint("if n.target is a.where.self: n.args = (n.args[0], n.args[2], n.args[1])"), NET.replace("F.gelu", "torch.relu") + TRAIN, ("trace", "lowering or kernel"), ("gradient",)),
    "backward of sin": Bug(in_joint("if n.target is a.cos.default: n.target = a.sin.default"), calls("x, y):\n    return (x.sin() * y).sum()", "torch.rand(4, requires_grad=True), torch.rand(4)"), ("trace", "lowering or kernel"), ("gradient",)),
    "vectors of erf": Bug(in_text("tail : 2.0f - tail", "tail : tail"), op("F.gelu(x)"), KERNEL, ("gelu",)),
    "text of a kernel": Bug(in_text("1.5", "1.25"), op("x.sqrt()"), KERNEL, ("mul",)),
    "a kernel that crashes": Bug(in_text("1.5f", "(*(volatile float*)16)"), op("x.sqrt()"), KERNEL, ("dies",)),
    "fusion of products": Bug(in_loops("text.replace('1.5', '1.25')"), op("x.sqrt()"), ("fusion",), ("mul",)),
    "fusion of a shift": Bug(in_loops("text.replace('0.25', '0.75')"), op("x.sqrt() + 0.25"), ("fusion",), ("add",)),
    "vector code": Bug(in_loops("text.replace('1.5', '1.25')", "config.simd != 'scalar'"), op("x.sqrt()"), ("vector code",), ("mul",)),
    "pass fold_constants": Bug(in_pass("fold_constants", "if n.target is a.mul.Tensor: n.args = (n.args[0], 3.0)"), NET + INFER, ("pass",), ("fold_constants",)),
    "pass prepack_linear": Bug(in_pass("prepack_linear", "if n.target is a.tanh.default: n.target = a.sin.default"), NET + INFER, ("pass",), ("prepack_linear",)),
    "pass computed_products": Bug(in_pass("computed_products", "if n.target is a.add.Tensor: n.target = a.sub.Tensor"), NET + INFER, ("pass",), ("computed_products",)),
    "pass prepack_convolution": Bug(in_pass("prepack_convolution", "if n.target is a.relu.default: n.target = a.abs.default"), CONV, ("pass",), ("prepack_convolution",)),
    "pass remove_noops": Bug(in_registered("remove_noops", "if n.target is a.mul.Tensor: n.target = a.add.Tensor"), op("x.sqrt()"), ("pass",), ("remove_noops",)),
    "pass remove_inactive_dropout": Bug(in_registered("remove_inactive_dropout", "if n.target is torch.tanh: n.target = torch.sin"), NET + INFER, ("pass",), ("remove_inactive_dropout",)),
    "trace of a function": Bug(replaced("firebrick.trace", "trace_inference", "def new(gm, *args, **kwargs):\n    aten = old(gm, *args, **kwargs)\n    for n in aten.gm.graph.nodes:\n        if str(n.target) == 'aten.mul.Tensor': n.args = (n.args[0], 2.5)\n    return aten"), op("x.sqrt()"), ("trace", *KERNEL), ("mul",)),
    "decomposition of a triangle": Bug(replaced("firebrick.trace.decompositions", "decompositions", "def new():\n    import torch\n    table = dict(old()); a = torch.ops.aten\n    table[a.tril.default] = table[a.triu.default]\n    return table") + "\nimport firebrick.trace.tracer as t; t.decompositions = m.decompositions", op("x.tril()"), ("trace", *KERNEL), ("tril",), "tril"),
    "a place that is taken while it is read": Bug(replaced("firebrick.fuse.memory_plan", "_lifetimes", "def new(steps, buffers):\n    first, last, calls = old(steps, buffers)\n    return first, {n: max(first[n], k - 2) for n, k in last.items()}, calls"), calls("x, y):\n    a = x.sin() @ y\n    b = a.softmax(-1)\n    c = (b @ y).softmax(-1)\n    return (c @ y).softmax(-1) + a", "torch.rand(16, 16), torch.rand(16, 16)"), KERNEL, ("program.py",)),
    "written argument is lost": Bug(replaced("firebrick.trace", "trace_inference", "def new(gm, *args, **kwargs):\n    aten = old(gm, *args, **kwargs)\n    out = aten.gm.graph.output_node(); flat = list(out.args[0]); k = len(aten.mutated)\n    names = {n.name: n for n in aten.gm.graph.nodes}\n    out.args = ((*[names[m] for m in aten.mutated], *flat[k:]),)\n    return aten"), calls("x):\n    x.add_(1)\n    return x.sum()", "torch.ones(3)") + "x = torch.ones(3)\nf(x)\nprint(x)\n", ("trace", *KERNEL), ("argument 0",)),
    "a view that is a copy": Bug(replaced("firebrick.pipeline", "compile_graph", "def new(gm, *args):\n    run = old(gm, *args)\n    return lambda *i: tuple(t.clone() for t in run(*i))"), calls("x):\n    return x.view(-1), x * 2", "torch.ones(2, 3)"), ("trace", *KERNEL), ("shares memory",)),
    "results in another order": Bug(replaced("firebrick.pipeline", "compile_graph", "def new(gm, *args):\n    run = old(gm, *args)\n    return lambda *i: tuple(run(*i))[::-1]"), calls("x):\n    return x.sin(), x * 2", "torch.ones(2, 3)"), KERNEL, ("result 0",)),
    "cache without numbers": Bug(replaced("firebrick.trace.graph_key", "graph_text", "import re\ndef new(gm):\n    text = old(gm)\n    return text and re.sub(r'0x[0-9a-f.]+p[+-][0-9]+', '#', text)"), "a = firebrick.compile(lambda x: x * 2.5)\nb = firebrick.compile(lambda x: x * 3.5)\nx = torch.ones(3)\nprint(a(x), b(x))\n", ("cache",), ("mul",)),
    "guard of a global": Bug(no_guard("g.kind == 'EQUALS'"), "k = 3\n" + calls("x):\n    return x * k", "torch.ones(2)") + "k = 4\nprint(f(torch.ones(2)))\n", GUARD, ("f",)),
    "guard of a flag": Bug(no_guard("g.kind == 'EQUALS'"), calls("x, double):\n    return x * 2 if double else x", "torch.ones(2), True", "torch.ones(2), False"), GUARD, ("f",)),
    "guard of a length": Bug(no_guard("g.kind == 'LEN'"), calls("xs):\n    return sum(xs)", "[torch.ones(2)] * 2", "[torch.ones(2)] * 3"), GUARD, ("xs[2]",)),
    "guard of keys": Bug(no_guard("g.kind in ('DICT_KEYS', 'LACKS_KEY', 'HAS_KEY')"), calls("d):\n    return d['x'] * (2 if 'two' in d else 1)", "{'x': torch.ones(2)}", "{'x': torch.ones(2), 'two': 1}"), GUARD, ("d['two']",)),
    "guard of a type": Bug(no_guard("g.kind in ('TYPE', 'EQUALS')"), calls("x, k):\n    return x * 2 if isinstance(k, str) else x", "torch.ones(2), 'a'", "torch.ones(2), 1"), GUARD, ("f",)),
    "guard of a tensor": Bug("from firebrick.capture.guards import guard_plan as m\nold = m.build_plan\nm.build_plan = lambda guards, code: old([g for g in guards if g.kind != 'TENSOR'], code)\nimport firebrick.capture.frame as c; c.build_plan = m.build_plan", calls("x, y):\n    return y * x.shape[0]", "torch.ones(2, 3), torch.ones(2)", "torch.ones(3, 3), torch.ones(2)"), GUARD, ("f",)),
    "guard of a module": Bug(no_guard("g.kind in ('EQUALS', 'ID', 'LACKS_KEY')"), "class Net(nn.Module):\n    scale = 2.0\n    def forward(self, x):\n        return x * self.scale\nnet = Net()\nmodel = firebrick.compile(net)\nprint(model(torch.ones(2)))\nnet.scale = 5.0\nprint(model(torch.ones(2)))\n", GUARD, ("Net.forward",)),
    "guard of grad mode": Bug("from firebrick.capture.guards import guard_set as m\nm._STATES = tuple(s for s in m._STATES if s != 'GRAD_MODE')", calls("x):\n    return x * 2 if torch.is_grad_enabled() else x", "torch.ones(2)") + "with torch.no_grad():\n    print(f(torch.ones(2)))\n", GUARD, ("f",)),
    "guard of a closure": Bug(no_guard("g.kind == 'EQUALS'"), "def make():\n    n = 1\n    def step():\n        nonlocal n\n        n += 1\n    def g(x):\n        return x * n\n    return step, firebrick.compile(g)\nstep, g = make()\nprint(g(torch.ones(2)))\nstep()\nprint(g(torch.ones(2)))\n", GUARD, ("g",)),
    "capture of sorted": Bug("import operator; from firebrick.capture.library import builtin_functions as m, known_callables as k\nfrom firebrick.capture import library\nfor t in [v for mod in (m, k) for v in vars(mod).values() if isinstance(v, dict)]:\n    if sorted in t and max in t: t[sorted] = t[list]\n    if id(sorted) in t: t[id(sorted)] = t[id(list)]", calls("x):\n    for k in sorted([3, 1, 2]):\n        x = x * k + 1\n    return x", "torch.ones(2)"), CAPTURE, ("f",)),
    "capture of a subtraction": Bug("import dataclasses, operator, firebrick.capture.interpreter.operators as m\nrow = m.BINARY['-']\nm.BINARY['-'] = dataclasses.replace(row, **{dataclasses.fields(row)[1].name: operator.add})", "def helper(x):\n    return x - 1\n" + calls("x):\n    return helper(x) * 2", "torch.ones(2)"), CAPTURE, ("f",)),
    "capture of a written attribute": Bug("from firebrick.capture.emit.effects import Effects\nEffects.mutated = lambda *a, **k: None", "class Box: n = 0\nbox = Box()\n" + calls("x):\n    box.n = 5\n    return x * 2", "torch.ones(2)") + "print(box.n)\n", CAPTURE, ("f",)),
}  # fmt: skip


PLANT = "import os, sys\ncode = os.environ.get('PLANTED_BUG')\nif code and 'bench' not in sys.argv[0] and '-c' not in sys.argv[0][:0]:\n    exec(code, {})\n"


def run(bug: Bug, folder: Path, *command: str, timeout: float = 900) -> tuple[str, float, float]:
    """Plant a bug, run a command of firebrick on the program; output, wall seconds, processor seconds."""
    (folder / "program.py").write_text(HEAD + bug.program)
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = python(bug, folder, "-m", "firebrick.tools.cli", *command, timeout=timeout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout or done.stderr[-500:], time.monotonic() - start, spent


def python(bug: Bug, folder: Path, *line: str, timeout: float = 900, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder with a bug planted. more: the environment's."""
    (folder / "sitecustomize.py").write_text(PLANT)
    paths = [str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PLANTED_BUG": bug.plant, **more}
    env |= {"FIREBRICK_CACHE_DIR": str(folder / "cache"), "FIREBRICK_STRICT": "0"}
    command = [sys.executable, *line]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False, cwd=folder)


def minified(bug: Bug, folder: Path) -> tuple[bool, str, float, float]:
    """Whether the script that minify writes is small, has the op, and shows the bug by itself, and only with the bug."""
    output, wall, cpu = run(bug, folder, "minify", "program.py", "-o", "repro.py", "--json")
    script = folder / "repro.py"
    hit = script.exists() and bug.minify in script.read_text() and json.loads(output)["after"] <= 3
    ends = [python(b, folder, str(script)).returncode for b in (bug, Bug("", "", ()))] if hit else []
    return hit and ends == [1, 0], f"{' '.join(output.split())[:160]} ends {ends}", wall, cpu


def checked(bug: Bug, folder: Path) -> tuple[bool, str, float, float]:
    """Whether `check=accuracy` names the graph, and its place in the program, as the program runs."""
    (folder / "program.py").write_text(HEAD + bug.program)
    start = time.monotonic()
    told = python(bug, folder, "program.py", FIREBRICK_CHECK="accuracy").stderr
    at = re.search(r"firebrick: (graph \d+ (?:differs|raises).*)\n  at .*program.py:\d+", told)
    dead = re.search(r"firebrick: (graph.*runs on eager kernels.*)", told)
    return bool(at or dead), (at or dead or [None, told[-200:]])[1], time.monotonic() - start, 0.0


def named(bug: Bug, output: str) -> tuple[bool, str]:
    """Whether a report of `bisect --json` names the bug, and what it says in short."""
    try:
        found = json.loads(output)
    except ValueError:
        return False, output[-200:]
    if found is None:
        return False, "nothing"
    text = json.dumps(found).lower()
    hit = found["stage"] in bug.stages and (not bug.words or any(word.lower() in text for word in bug.words))
    details = found["details"]
    short = {k: details[k] for k in ("pass", "ops", "guard", "frame", "right with") if details.get(k)}
    return hit, f"{found['stage']}: {found['text'][:90]} {short}"


def in_graphs(bug: Bug) -> bool:
    """Whether a bug makes a graph wrong, and lets the process live."""
    return not {*bug.stages} & {*GUARD, *CAPTURE, "cache"} and "dies" not in bug.words


def main() -> None:
    """Run the bugs and print, and write, a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--minify", action="store_true")
    parser.add_argument("--accuracy", action="store_true")
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    rows = []
    for name in given.names or BUGS:
        bug = BUGS[name]
        if (given.minify and not bug.minify) or (given.accuracy and not in_graphs(bug)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            if given.minify or given.accuracy:
                hit, told, wall, cpu = (minified if given.minify else checked)(bug, Path(folder))
            else:
                output, wall, cpu = run(bug, Path(folder), "bisect", "program.py", "--json")
                hit, told = named(bug, output)
        rows.append((name, hit, told, wall, cpu))
        print(f"{'named ' if hit else 'MISSED'} {name}: {told} ({wall:.0f} s, {cpu:.0f} s of processors)", flush=True)
    print(f"{sum(row[1] for row in rows)} of {len(rows)} named")
    if given.markdown:
        lines = [
            f"| {n} | {'yes' if h else 'no'} | {t.replace('|', '/')} | {w:.0f} | {c:.0f} |" for n, h, t, w, c in rows
        ]
        head = "| bug | named | what bisect says | s | s of processors |\n|---|---|---|---|---|\n"
        given.markdown.write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
