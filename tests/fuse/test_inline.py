"""What is computed where it is read, and what is stored: costs, loads, writes in between."""

from firebrick.fuse.copy_elimination import forward_copies, update_in_place
from firebrick.fuse.inline import drop_dead, inline
from firebrick.ir.loops.parse import parse
from firebrick.ir.loops.program import Load
from firebrick.ir.loops.values import Table, walk

HEAD = """loops f
  input  x: f32[8, 16]
  temp   t: f32[8, 16], u: f32[8, 16]
  output y: f32[8, 16], z: f32[8, 16]
"""


def cleaned(text):
    program = parse(HEAD + text)
    return drop_dead(program, inline(program, drop_dead(program, list(program.nodes)), Table()))


def reads(node):
    return {v.buffer for s in node.stores for v in walk([s.value]) if isinstance(v, Load)}


def names(nodes):
    return [n.name for n in nodes]


def test_what_one_nest_reads_is_computed_there_at_its_own_index():
    (node,) = cleaned("""\
  n0 for i in 8, j in 16
    t[16*i + j] = exp(x[16*i + j])
  n1 for j in 16, i in 8
    y[8*j + i] = t[16*i + j] + 1.0
  out  y
""")
    assert node.name == "n1"
    assert [str(v.index) for s in node.stores for v in walk([s.value]) if isinstance(v, Load)] == ["16*i + j"]
    assert reads(node) == {"x"}


def test_what_is_dear_is_not_computed_twice():
    text = """\
  n0 for i in 8, j in 16
    t[16*i + j] = {}
  n1 for i in 8, j in 16
    y[16*i + j] = t[16*i + j] + 1.0
  n2 for i in 8, j in 16
    z[16*i + j] = t[16*i + j] * x[16*i + j]
  out  y, z
"""
    assert names(cleaned(text.format("exp(x[16*i + j])"))) == ["n0", "n1", "n2"]
    assert names(cleaned(text.format("x[16*i + j] * 2.0"))) == ["n1", "n2"]


def test_a_broadcast_value_is_not_computed_for_each_element():
    assert names(
        cleaned("""\
  n0 for j in 16
    t[j] = exp(x[j])
  n1 for i in 8, j in 16
    y[16*i + j] = t[j] + x[16*i + j]
  out  y
""")
    ) == ["n0", "n1"]


def test_what_is_overwritten_in_between_is_read_before():
    assert names(
        cleaned("""\
  n0 for i in 8, j in 16
    t[16*i + j] = x[16*i + j] * 2.0
  n1 for i in 8, j in 16
    x[16*i + j] = f32(0.0)
  n2 for i in 8, j in 16
    y[16*i + j] = t[16*i + j] + 1.0
  out  y
""")
    ) == ["n0", "n1", "n2"]


def test_reductions_and_arguments_of_calls_are_stored():
    assert names(
        cleaned("""\
  n0 for i in 8
    t[i] = sum(x[16*i + r] for r in 16)
  n1 for i in 8
    y[i] = t[i] + 1.0
  n2 for i in 8, j in 16
    u[16*i + j] = x[16*i + j] * 2.0
  n3 extern z = aten::sin.out(u) into
  out  y, z
""")
    ) == ["n0", "n1", "n2", "n3"]


def test_what_nobody_reads_is_dropped_and_what_has_effects_is_not():
    assert names(
        cleaned("""\
  n0 for i in 8, j in 16
    t[16*i + j] = exp(x[16*i + j])
  n1 extern u = aten::bernoulli(x)
  n2 extern t = aten::sin(x)
  n3 for i in 8, j in 16
    y[16*i + j] = x[16*i + j] + 1.0
  out  y
""")
    ) == ["n1", "n3"], "random numbers that are drawn later depend on n1"


def test_a_whole_copy_of_a_temporary_is_the_temporary_and_a_part_is_not():
    text = """\
  n0 extern t = aten::sin(x)
  n1 for i in 8, j in 16
    u[16*i + j] = {}
  n2 extern y = aten::cos(u)
  out  y
"""
    assert names(forward_copies(parse(HEAD + text.format("t[16*i + j]"))).nodes) == ["n0", "n2"]
    assert names(forward_copies(parse(HEAD + text.format("t[16*i - j + 15]"))).nodes) == ["n0", "n1", "n2"]
    assert names(forward_copies(parse(HEAD + text.format("x[16*i + j]"))).nodes) == ["n0", "n1", "n2"]


def test_two_results_do_not_become_one():
    program = forward_copies(
        parse(
            HEAD
            + """\
  n0 extern y = aten::sin(x)
  n1 for i in 8, j in 16
    z[16*i + j] = y[16*i + j]
  out  y, z
"""
        )
    )
    assert len({out.buffer for out in program.outputs}) == 2


def test_a_copy_that_is_written_back_is_updated_in_place():
    text = """\
loops f
  input  x: f32[64], i: i64[4], v: f32[4]
  temp   t: f32[64]
  n0 for k in 64
    t[k] = x[k]
  n1 for k in 4
    t[d, d := below(i[k], 64)] = v[k]
  n2 for k in 64
    x[k] = t[k]
  out  x
"""
    assert names(update_in_place(parse(text)).nodes) == ["n1"]
    kept = text.replace("  out  x", "  n3 for k in 64\n    i[k] = i64(0)\n  out  t, x")
    assert "n0" in names(update_in_place(parse(kept)).nodes)


LOOKED_UP = """loops f
  input  x: f32[8, 16], k: i64[8]
  temp   t: f32[8, 16]
  output y: f32[{rows}]
  n0 for i in 8, j in 16
    t[16*i + j] = exp(x[16*i + j])
  n1 for i in {rows}
    y[i] = t[{place}x0, x0 := below(max(min(k[0], 15), 0), 16)]
  out  y
"""


def test_what_is_looked_up_is_computed_for_what_is_looked_up():
    program = parse(LOOKED_UP.format(rows=8, place="16*i + "))
    (node,) = drop_dead(program, inline(program, list(program.nodes), Table()))
    assert reads(node) == {"x", "k"}
    (load,) = {v for v in walk([node.stores[0].value]) if isinstance(v, Load) and v.buffer == "x"}
    assert [v.name for v, _ in load.binds] == ["x0"]
    often = parse(LOOKED_UP.format(rows=512, place=""))
    assert names(inline(often, list(often.nodes), Table())) == ["n0", "n1"]
    assert "t" in reads(inline(often, list(often.nodes), Table())[1])
