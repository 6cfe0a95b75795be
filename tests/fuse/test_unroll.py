"""Equal layers of which four are scheduled: the steps of the others, and what stands in the way of having them."""

from dataclasses import replace

import pytest
from programs import plan

from firebrick.fuse.unroll import NotAlike, unroll
from firebrick.ir.graph.equal_layers import Repeat

COUNT = 7
REPEAT = Repeat(tuple([(2 * k, 2 * k + 1) for k in range(COUNT)]), tuple([(f"w{k}",) for k in range(COUNT)]))

LAYER = """\
  n{k}0 extern h{k} = aten::mm.out({x}, {w}) into
  n{k}1 for i in 64, j in 64
    {y}[64*i + j] = {scalar}(h{k}[64*i + j]) + {x}[64*i + j]
"""


def scheduled(**changes):
    """Layers 0, 1, 2 and the last; changes: of the third."""
    rows = [
        {"k": k, "x": x, "y": y, "w": f"w{k}", "scalar": "tanh"}
        for k, x, y in ((0, "x", "y0"), (1, "y0", "y1"), (2, "y1", "y2"), (6, "y2", "y6"))
    ]
    rows[2] |= changes
    names = [f"{n}{k}: f32[64, 64]" for k in (0, 1, 2, 6) for n in "hy" if f"{n}{k}" != "y6"]
    head = f"""loops f
  input  x: f32[64, 64]
  const  {", ".join(f"w{k}: f32[64, 64]" for k in (0, 1, 2, 6))}
  temp   {", ".join(names)}
  output y6: f32[64, 64]
"""
    result = plan(head + "".join(LAYER.format(**row) for row in rows) + "  out  y6\n")
    numbers = iter([number for k in (0, 1, 2, 6) for number in REPEAT.numbers[k]])
    steps = [replace(step, parts=(next(numbers),)) for step in result.steps]
    return result.program, steps, result.kernels


def used(step):
    """The buffers of a step: read, then written."""
    if hasattr(step, "op"):
        return [*(a.buffer for a in step.args), *step.outs]
    return list(step.args)


def test_layers_that_were_left_out_read_the_one_before_and_their_own_weights():
    program, steps, kernels = scheduled()
    whole, all_steps = unroll(program, steps, kernels, REPEAT)
    assert len(kernels) == 1
    assert len(all_steps) == 2 * COUNT
    calls, launches = all_steps[::2], all_steps[1::2]
    assert [used(call)[1] for call in calls] == [f"w{k}" for k in range(COUNT)]
    assert [used(call)[0] for call in calls] == ["x", "y0", "y1", "y2", "y2_3", "y2_4", "y2_5"]
    assert [used(call)[2] for call in calls] == ["h0", "h1", "h2", "h2_3", "h2_4", "h2_5", "h6"]
    for call, launch in zip(calls, launches, strict=True):
        x, _, h = used(call)
        assert {x, h} < set(used(launch))
    assert [n for step in all_steps for n in step.parts] == list(range(2 * COUNT))
    shapes = {b.name: b.shape for b in whole.buffers}
    assert {"w3", "h2_4", "y2_5"} <= set(shapes) and set(shapes.values()) == {shapes["x"]}
    assert set(whole.consts) == {f"w{k}" for k in range(COUNT)}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"scalar": "exp"}, "differs between stretches"),
        ({"w": "w1"}, "w1 is used by two stretches"),
    ],
)
def test_a_third_layer_that_is_not_the_second_is_refused(changes, why):
    with pytest.raises(NotAlike, match=why):
        unroll(*scheduled(**changes), REPEAT)


def test_a_layer_whose_result_is_wanted_is_refused():
    program, steps, kernels = scheduled()
    buffers = tuple([replace(b, kind="output") if b.name == "y1" else b for b in program.buffers])
    with pytest.raises(NotAlike, match="makes an output"):
        unroll(replace(program, buffers=buffers), steps, kernels, REPEAT)


def test_a_kernel_of_three_layers_is_refused():
    program, steps, kernels = scheduled()
    steps[3] = replace(steps[3], parts=(3, 5, 2 * COUNT - 1))  # what comes before the layers may share with the first
    with pytest.raises(NotAlike, match="spans three stretches"):
        unroll(program, steps, kernels, REPEAT)
