"""What stays in memory of what was compiled and dropped: weak references that live on, entries, and the process's size.

Run: python bench/leaks.py [--json] [--only NAME...] [--scale S]

    python bench/leaks.py --only modules shapes --scale 0.1

A tenth of the turns are made to fill caches that a process has one of, then all of them for the figures: `grown` is
what the process's memory gained meanwhile, `alive` how many of the objects that were dropped are not gone. The exit
status is 1 where one is alive or memory grew by more than allocators keep.
"""

import argparse
import gc
import json
import os
import sys
import weakref
from dataclasses import asdict, dataclass, field

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

import firebrick
from firebrick.capture import hook
from firebrick.extend import SubgraphCompiler
from firebrick.extend import claimed_group as groups

WIDTH = 512
ALLOWED = 24
"""MiB that a process may grow by: arenas of allocators, which are filled in other orders."""


class Own(SubgraphCompiler):
    """An engine that runs every op, by its graph."""

    name = "own"

    def supports(self, node):
        return True

    def compile(self, graph, example_inputs):
        return graph


class Net(nn.Module):
    """A matmul with a megabyte of weights."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.inner(x).relu()


def weights_of(module):
    return [weakref.ref(part) for part in (module, module.inner, module.inner.weight)]


def module_dropped(step):
    """A module compiled and dropped, in inference."""
    net = Net()
    with torch.no_grad():
        firebrick.compile(net)(torch.ones(4, WIDTH))
    return weights_of(net)


def module_trained(step):
    """A module compiled, trained for a step and dropped."""
    net = Net()
    firebrick.compile(net)(torch.ones(4, WIDTH)).sum().backward()
    return [*weights_of(net), weakref.ref(net.inner.weight.grad)]


def shaped():
    """One function that is given another shape at each call."""
    compiled = firebrick.compile(lambda x: (x * 2).relu().sum(), options={"recompile_limit": 1 << 20})

    def step(number):
        x = torch.ones(1 + number % 100, 1 + number // 100)
        compiled(x)
        return [weakref.ref(x)]

    return step


def closed(scale):
    module = nn.Linear(8, 8)
    return firebrick.compile(lambda x: module(x) * scale, backend="eager"), module


def closure(step):
    """A closure over a module, compiled and dropped."""
    call, module = closed(step)
    with torch.no_grad():
        call(torch.ones(2, 8))
    return [weakref.ref(call), weakref.ref(module), weakref.ref(module.weight)]


def replacing(part):
    net = Net()
    compiled = firebrick.compile(net)

    def step(number):
        old = net.inner if part == "module" else net.inner.weight
        with torch.no_grad():
            compiled(torch.ones(4, WIDTH))
            if part == "module":
                net.inner = nn.Linear(WIDTH, WIDTH)
            else:
                net.inner.weight = nn.Parameter(torch.ones(WIDTH, WIDTH))
            compiled(torch.ones(4, WIDTH))
        return [weakref.ref(old)]

    return step


def plug_in(step):
    """A module parts of which an engine has, compiled and dropped."""
    net = Net()
    with torch.no_grad():
        firebrick.compile(net, passes=[Own()])(torch.ones(4, WIDTH))
    return [*weights_of(net), *map(weakref.ref, groups._groups.values())]


def script_group(step):
    """A TorchScript program parts of which an engine has."""
    x = torch.ones(4, WIDTH)
    program, _ = firebrick.torchscript.compile_subgraphs(torch.jit.script(Net().eval()), [Own()], [x])
    with torch.no_grad():
        program(x)
    return [weakref.ref(program), *map(weakref.ref, groups._groups.values())]


WORKLOADS = {
    "modules": (200, lambda: module_dropped),
    "trained": (200, lambda: module_trained),
    "shapes": (1_000, shaped),
    "closures": (10_000, lambda: closure),
    "replaced modules": (50, lambda: replacing("module")),
    "replaced weights": (50, lambda: replacing("weight")),
    "plug-in groups": (50, lambda: plug_in),
    "script groups": (50, lambda: script_group),
}
"""Name -> times, and what makes the function of one turn, which gives weak references to what it dropped."""


@dataclass
class Row:
    """The figures of one workload; memory in MiB."""

    name: str
    times: int
    before: float = 0.0
    after: float = 0.0
    dropped: int = 0
    alive: int = 0
    entries: int = 0
    grown: float = field(default=0.0)

    @property
    def leaks(self):
        return self.alive > 0 or self.grown > ALLOWED


def resident():
    """The memory of this process that is in use, in MiB."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def measure(name, scale, advance):
    """Run one workload."""
    times, make = WORKLOADS[name]
    times = max(int(times * scale), 2)
    step = make()
    for number in range(max(times // 10, 2)):
        step(number)
    entries = len(hook.entries())
    row = Row(name, times, before=resident())
    references = []
    for number in range(times):
        references += step(number)
        advance()
    del step
    row.after = resident()
    row.dropped, row.alive = len(references), sum(reference() is not None for reference in references)
    row.entries = len(hook.entries()) - entries
    row.grown = row.after - row.before
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--only", nargs="*", choices=list(WORKLOADS), metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--scale", type=float, default=1.0, help="part of the turns that are made")
    options = parser.parse_args()
    rows = []
    with Progress(console=Console(stderr=True)) as progress:
        for name in options.only or WORKLOADS:
            task = progress.add_task(name, total=max(int(WORKLOADS[name][0] * options.scale), 2))
            rows.append(measure(name, options.scale, lambda task=task: progress.advance(task)))
            firebrick.reset()
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        table = Table("workload", "turns", "MiB before", "MiB after", "grown", "dropped", "alive", "entries", "")
        for row in rows:
            cells = [
                f"{row.before:,.1f}",
                f"{row.after:,.1f}",
                f"{row.grown:+,.1f}",
                f"{row.dropped:,}",
                f"{row.alive:,}",
            ]
            table.add_row(row.name, f"{row.times:,}", *cells, f"{row.entries:+,}", "leaks" if row.leaks else "")
        Console().print(table)
    return int(any(row.leaks for row in rows))


if __name__ == "__main__":
    sys.exit(main())
