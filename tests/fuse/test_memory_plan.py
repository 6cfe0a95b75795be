"""The memory plan: lifetimes never overlap in place, results have their own tensors, memory is used again."""

import random

from programs import TARGET, plan

from firebrick.config import Config
from firebrick.fuse import schedule
from firebrick.fuse.dependencies import extern_reads, extern_writes
from firebrick.ir.kernels.schedule import Launch
from firebrick.ir.loops.parse import parse
from firebrick.targets.base import FusionFacts
from firebrick.targets.cpu.cpu_target import CpuTarget


def touched(step):
    return list(step.args) if isinstance(step, Launch) else [*extern_reads(step), *extern_writes(step)]


def random_program(seed):
    """A chain and web of nests and calls over buffers of a few sizes."""
    r = random.Random(seed)
    known, lines, temps = ["x"], [], []
    for k in range(r.randrange(2, 25)):
        a, b = r.choice(known), r.choice(known)
        name = f"t{k}"
        temps.append(f"{name}: f32[64, 64]")
        if r.random() < 0.4:
            lines.append(f"  n{k} extern {name} = aten::mm.out({a}, {b}) into")
        elif r.random() < 0.2:
            lines.append(f"  n{k} extern {name} = aten::mm({a}, {b})")
        else:
            lines.append(f"  n{k} for i in 64, j in 64\n    {name}[64*i + j] = exp({a}[64*i + j]) + {b}[64*j + i]")
        known = (known + [name])[-5:]
    outs = r.sample(known[1:] or ["t0"], r.randrange(1, len(known[1:]) + 1))
    head = f"loops f\n  input  x: f32[64, 64]\n  temp   {', '.join(temps)}\n"
    return head + "\n".join(lines) + f"\n  out  {', '.join(outs)}\n", outs


def test_no_two_living_buffers_overlap():
    for seed in range(150):
        text, outs = random_program(seed)
        result = plan(text)
        places = {p.buffer: p for p in result.places}
        first, last = {}, {}
        for k, step in enumerate(result.steps):
            for name in touched(step):
                first.setdefault(name, k)
                last[name] = k
        for name in outs:
            assert places[name].where in ("fresh", "call"), (seed, name)
        arena = [p for p in result.places if p.where == "arena"]
        reuse = {k.name: k.reuse for k in result.kernels}
        for p in arena:
            assert p.offset % 64 == 0
            assert p.offset + p.nbytes <= result.arena_bytes
            for q in arena:
                apart = p.offset + p.nbytes <= q.offset or q.offset + q.nbytes <= p.offset
                if p is q or apart or last[p.buffer] < first[q.buffer] or last[q.buffer] < first[p.buffer]:
                    continue
                old, new = (p, q) if first[p.buffer] <= first[q.buffer] else (q, p)
                step = result.steps[first[new.buffer]]
                assert last[old.buffer] == first[new.buffer], (seed, p, q)
                pairs = [(step.args[a], step.args[b]) for a, b in reuse[step.kernel]]
                assert (new.buffer, old.buffer) in pairs, (seed, p, q)
                assert old.offset == new.offset
        freed = [name for names in result.free_after for name in names]
        made = [p.buffer for p in result.places if p.where in ("call", "fresh") and p.buffer not in outs]
        assert sorted(freed) == sorted(made), seed


def test_memory_is_used_again():
    lines = [f"  n{k} extern t{k + 1} = aten::mm.out(t{k}, t{k}) into" for k in range(20)]
    temps = ", ".join(f"t{k}: f32[64, 64]" for k in range(21))
    first = "  n99 for i in 64, j in 64\n    t0[64*i + j] = x[64*i + j] + 1.0\n"
    result = plan(f"loops f\n  input  x: f32[64, 64]\n  temp   {temps}\n{first}" + "\n".join(lines) + "\n  out  t20\n")
    assert result.arena_bytes == 2 * 64 * 64 * 4


def test_what_results_are_made_of_dies_with_each():
    """Gradients of weights: lowering leaves what they are made of, matmuls in 16 bits, to the end of the graph."""
    calls = "".join(f"  n{k} extern t{k} = aten::mm.out(x, x) into\n" for k in range(8))
    nests = "".join(f"  m{k} for i in 64, j in 64\n    g{k}[64*i + j] = exp(t{k}[64*i + j])\n" for k in range(8))
    temps, outs = (", ".join(f"{letter}{k}" for k in range(8)) for letter in "tg")
    named = ", ".join(f"{n}: f32[64, 64]" for n in f"{temps}, {outs}".split(", "))
    result = plan(f"loops f\n  input  x: f32[64, 64]\n  temp   {named}\n{calls}{nests}  out  {outs}\n")
    assert result.arena_bytes == 64 * 64 * 4


def test_results_may_lie_in_place_of_inputs():
    result = plan("""
loops f
  input  x: f32[64, 64]
  temp   t: f32[64, 64], u: f32[64, 64]
  output y: f32[64, 64]
  n0 extern t = aten::mm.out(x, x) into
  n1 for i in 64, j in 64
    u[64*i + j] = exp(t[64*i + j])
  n2 extern y = aten::mm.out(u, x) into
  out  y
""")
    places = {p.buffer: p.offset for p in result.places if p.where == "arena"}
    assert places["t"] == places["u"]
    assert result.arena_bytes == 64 * 64 * 4


LARGE_AND_SMALL = """
loops f
  input  x: f32[64, 64], z: f32[3]
  temp   t: f32[64, 64], s: f32[3], u: f32[3]
  output y: f32[64, 64], w: f32[3]
  n0 extern t = aten::mm.out(x, x) into
  n1 extern s = aten::sin.out(z) into
  n2 extern u = aten::cos.out(s) into
  n3 extern w = aten::sin.out(u) into
  n4 extern y = aten::mm.out(t, x) into
  out  y, w
"""


def test_temporaries_begin_where_the_machine_wants_them():
    class Pages(CpuTarget):
        def fusion(self):
            return FusionFacts(alignment=4096)

    for target, size in ((TARGET, 64), (Pages("scalar", 0, 1), 4096)):
        result = schedule(parse(LARGE_AND_SMALL), {"cpu": target}, Config())
        places = {p.buffer: p.offset for p in result.places if p.where == "arena"}
        assert places == {"t": 0, "s": 64 * 64 * 4, "u": 64 * 64 * 4 + size}
        assert result.arena_bytes == 64 * 64 * 4 + 2 * size


def test_what_depends_on_a_symbolic_size_is_allocated_and_freed_by_itself():
    text = LARGE_AND_SMALL.replace("z: f32[3]", "z: f32[n]").replace("s: f32[3], u: f32[3]", "s: f32[n], u: f32[n]")
    text = text.replace("w: f32[3]", "w: f32[n]").replace("loops f\n", "loops f\n  size n in 2..inf\n")
    result = plan(text)
    where = {p.buffer: p.where for p in result.places}
    assert (where["t"], where["s"], where["u"]) == ("arena", "fresh", "fresh")
    assert result.free_after == ((), (), ("s",), ("u",), ())


def test_memory_without_addresses_has_no_arena():
    class Chip(CpuTarget):
        shares_memory = False

    text = LARGE_AND_SMALL.replace("f32[3]", "f32[3] on chip:0")
    for name in ("(z) into", "(s) into", "(u) into"):
        text = text.replace(name, f"{name} on chip:0")
    result = schedule(parse(text), {"cpu": TARGET, "chip": Chip("scalar", 0, 1)}, Config())
    where = {p.buffer: p.where for p in result.places}
    assert (where["t"], where["s"], where["u"]) == ("arena", "fresh", "fresh")
    assert result.arena_bytes == 64 * 64 * 4
    assert result.free_after == ((), (), ("s",), ("u",), ())
