"""What a program for a GPU does on the CPU alone is a graph of its own, since a recording has no place for it."""

from __future__ import annotations

import re

from torch import fx

from firebrick.config import Config
from firebrick.fakes.segments import is_cut
from firebrick.ir.graph.calls import tensors_in
from firebrick.ir.graph.nested import Nested

_DRAWS = re.compile("rand|normal|bernoulli|dropout|multinomial|uniform|exponential|poisson")


def part_on_cpu(gm: fx.GraphModule, config: Config) -> frozenset[fx.Node]:
    """Where the GPU's part begins, behind the CPU's, which is moved to the front; nothing where that would not do.

        a = x * 2; b = lengths + 1; c = a + b.to("cuda")   ->   b = lengths + 1; d = b.to("cuda") | a = x * 2; c = a + d

    Neither part has memory of the other but what is copied to the GPU. What is made of nothing is folded instead.
    """
    sizes = getattr(gm.meta.get("fake_mode"), "sizes", None)
    if config.graphs is False or is_cut(gm) or (sizes is not None and sizes.symbols):
        return frozenset()
    own = {n: {t.device.type for t in tensors_in(n.meta.get("val"))} for n in gm.graph.nodes if n.op != "output"}
    calls = [n for n in own if n.op not in ("placeholder", "get_attr")]
    cpus = [n for n in calls if any("cpu" in own[m] for m in (n, *n.all_input_nodes))]
    rest = [n for n in calls if n not in {*cpus}]
    # What gives nothing may switch modes, and a nested function may draw numbers.
    moves = all(n.meta.get("val") is not None and not isinstance(n.target, Nested) for n in calls)
    if not moves or not cpus or not any("cuda" in own[n] for n in rest):
        return frozenset()
    read = dict.fromkeys(m for n in cpus for m in n.all_input_nodes)
    varies = any(m.op == "placeholder" for m in read) or any(_DRAWS.search(str(n.target)) for n in cpus)
    if not varies or any(own[m] != {"cpu"} for m in read):
        return frozenset()
    for node in (*[m for m in read if m.op == "get_attr"], *cpus):
        rest[0].prepend(node)
    return frozenset(rest[:1])
