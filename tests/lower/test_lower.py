"""What lowering makes of whole graphs: which nests and calls, where views look, what is written back."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from graphs import CONFIG, HOST, check, checks, compare, externs, lower_function, nests, single, trace
from tests.ir.interp import run

from firebrick.errors import LoweringError
from firebrick.ir.graph.aten import Alias
from firebrick.ir.loops.check import check as check_legal
from firebrick.ir.loops.program import Extern, Ref
from firebrick.ir.loops.show import show
from firebrick.lower import lower

if TYPE_CHECKING:
    from firebrick.ir.graph.aten import AtenGraph

aten = torch.ops.aten


def rand(*shape: int) -> torch.Tensor:
    """Random normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def test_gelu_of_addmm_prints() -> None:
    program = check(lambda x, w, b: F.gelu(torch.addmm(b, x, w)), rand(32, 64), rand(64, 128), rand(128), atol=1e-5)
    assert show(program) == (
        "loops graph\n"
        "  input  arg0_1: f32[32, 64], arg1_1: f32[64, 128], arg2_1: f32[128]\n"
        "  temp   %0: f32[32, 128]\n"
        "  output %1: f32[32, 128]\n"
        "  n0 extern %0 = aten::addmm.out(arg2_1, arg0_1, arg1_1) into\n"
        "  n1 for i0 in 32, i1 in 128\n"
        "    v0 = %0[128*i0 + i1]\n"
        "    %1[128*i0 + i1] = (v0 * 0.5) * (erf(v0 * 0.70710677) + 1.0)\n"
        "  out  %1\n"
    )


def test_softmax_is_four_nests_of_one_row() -> None:
    program = check(lambda x: torch.softmax(x, -1), rand(3, 5))
    assert show(program).split("\n", 3)[3] == (
        "  output %3: f32[3, 5]\n"
        "  n0 for i0 in 3\n"
        "    %0[i0] = max(arg0_1[5*i0 + r0] for r0 in 5)\n"
        "  n1 for i0 in 3, i1 in 5\n"
        "    %1[5*i0 + i1] = exp(arg0_1[5*i0 + i1] - %0[i0])\n"
        "  n2 for i0 in 3\n"
        "    %2[i0] = sum(%1[5*i0 + r0] for r0 in 5)\n"
        "  n3 for i0 in 3, i1 in 5\n"
        "    %3[5*i0 + i1] = %1[5*i0 + i1] / %2[i0]\n"
        "  out  %3\n"
    )


def test_single_use_chain_is_one_nest() -> None:
    assert nests(check(lambda x: ((x + 1) * 2).tanh().abs() - x, rand(4, 5))) == 1


def test_long_chain_of_squares_is_not_exponential() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(60):
            y = x + 1
            x = y * y * 0.5
        return x

    assert nests(check(fn, rand(3) * 0.01, rtol=1e-4)) < 40


def test_value_with_two_users_is_stored_once() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        s = torch.exp(x) + y
        return s * 2, s.sum(0)

    assert nests(check(fn, rand(4, 5), rand(4, 5))) == 3


def test_what_is_computed_again_is_computed_once() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        one = torch.softmax(x + 1, -1) @ y
        return one + torch.softmax(x + 1, -1) @ y

    program = check(fn, rand(3, 4), rand(4, 5), atol=1e-5)
    assert len(externs(program)) == 1
    assert nests(program) == 5


def test_equal_results_stay_apart() -> None:
    aten_graph = trace(lambda x: (x + 1, x + 1, x + 1.0, (x + 1) * 2), [rand(3)])
    results = run(lower(aten_graph, HOST, CONFIG), [rand(3)], {})
    assert len({t.data_ptr() for t in results}) == 4


def test_random_ops_are_not_merged() -> None:
    graph = trace(lambda x: torch.rand_like(x) - torch.rand_like(x), [rand(3)])
    assert len(externs(lower(graph, HOST, CONFIG))) == 2


def test_views_of_stored_tensors_are_refs() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.mm(x, w).view(4, 2, 3).transpose(0, 1)
        return torch.bmm(y, y.transpose(1, 2))

    program = check(fn, rand(4, 5), rand(5, 6), atol=1e-5)
    assert nests(program) == 0
    assert externs(program) == ["aten::mm.out", "aten::bmm.out"]


def test_formula_under_a_view_keeps_its_loops() -> None:
    program = check(lambda x, w: torch.mm(F.gelu(x).view(6, 4), w), rand(2, 3, 4), rand(4, 5), atol=1e-5)
    assert "for i0 in 2, i1 in 3, i2 in 4" in show(program)
    assert nests(program) == 1


def test_part_of_a_formula_computes_the_part() -> None:
    program = check(lambda x, w: torch.mm(F.gelu(x)[:, 0], w), rand(2, 300, 4), rand(4, 5), atol=1e-5)
    assert "300" not in show(program).split("n0", 1)[1]


def test_layer_norm_of_a_sum_stores_the_sum() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x + y, (8,), w, b)

    assert nests(check(fn, rand(3, 8), rand(3, 8), rand(8), rand(8))) == 7


def test_outputs_have_eager_strides() -> None:
    x = rand(2, 3, 4).permute(2, 0, 1)
    check(lambda x: (x + 1, x.transpose(0, 1) * 2, (x + 1).contiguous(), x.sum(1), x.sum(1, keepdim=True)), x)
    image = rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(lambda x: (x * 2, x.mean([2, 3], keepdim=True), torch.cat([x, x], 1), F.relu(x).flatten(1)), image)


def test_expanded_output() -> None:
    check(lambda x: ((x + 1).expand(3, 4), (x * 2)[None].expand(2, 4)), rand(4))


def test_numbers_and_none_among_outputs() -> None:
    aten_graph = trace(lambda x: (x + 1,), [rand(3)])
    node = aten_graph.gm.graph.output_node()
    node.args = ((node.args[0][0], 7, None),)
    aten_graph.outputs = [None] * 3
    assert lower(aten_graph, HOST, CONFIG).outputs[1:] == (7, None)


def test_op_without_a_rule_is_called() -> None:
    program = check(lambda x: torch.special.scaled_modified_bessel_k0(x * 2) + 1, rand(4, 3).abs() + 1)
    assert externs(program) == ["aten::special_scaled_modified_bessel_k0"]
    program = check(lambda x: torch.topk(x, 2), rand(4, 3))
    assert externs(program) == ["aten::topk"]
    program = check(lambda x: torch.sort(x * 2, dim=0, descending=True)[1], rand(4, 3))
    assert nests(program) == 1


def test_complex_is_the_library_s() -> None:
    x = torch.randn(3, 4, dtype=torch.complex64)
    program = check(lambda x: torch.exp(x) * 2, x, rtol=1e-5)
    assert nests(program) == 0


def test_integer_division_by_data_keeps_eager_s_check() -> None:
    a, b = torch.tensor([7, -7]), torch.tensor([2, 2])
    program = check(lambda a, b: (a // b, a % b), a, b)
    assert nests(program) == 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run(program, [a, b * 0], {})


def test_embedding_and_index_by_data_are_lowered_with_a_check() -> None:
    ids = torch.tensor([[1, 2], [0, 3]])
    program = check(lambda w, i: F.embedding(i, w) * 2, rand(5, 3), ids)
    assert (externs(program), checks(program)) == ([], 1)
    with pytest.raises(IndexError, match="index out of range in self"):
        run(program, [rand(5, 3), ids + 9], {})


def test_index_by_formulas_is_lowered() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = torch.arange(3)
        picked = x[rows[:, None], (rows + 1)[None, :]]
        return picked, F.embedding(rows * 2, w), x.gather(0, rows[:, None].expand(3, 4) // 2), x[-rows - 1]

    program = check(fn, rand(4, 5)[:, :4], rand(5, 3))
    assert (externs(program), checks(program)) == ([], 0)


# ---------------------------------------------------------------- mutation and aliasing


def mutating(fn: Any, inputs: list[torch.Tensor], mutated: int) -> AtenGraph:
    """A graph whose first outputs are the new values of its first inputs."""
    graph = trace(fn, inputs)
    names = [n.name for n in graph.gm.graph.nodes if n.op == "placeholder"]
    graph.mutated = names[:mutated]
    graph.outputs = graph.outputs[mutated:]
    return graph


def apply(graph: AtenGraph, inputs: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor], Any]:
    """Run on copies; returns the results, the inputs afterwards and the program."""
    program = lower(graph, HOST, CONFIG)
    check_legal(program)
    copies = [t.clone() for t in inputs]
    return run(program, copies, graph.constants), copies, program


def test_input_is_updated_in_place() -> None:
    x, y = rand(3, 4), rand(4)
    results, after, program = apply(mutating(lambda x, y: (x * 0.9 + y, y + 1), [x, y], 1), [x, y])
    compare(x * 0.9 + y, after[0])
    compare(y + 1, results[0])
    assert not [b for b in program.buffers if b.kind == "temp"]


def test_inputs_are_swapped() -> None:
    x, y = rand(3, 4), rand(3, 4) + 1
    _, after, _ = apply(mutating(lambda x, y: (y + 0, x + 0), [x, y], 2), [x, y])
    compare(y, after[0])
    compare(x, after[1])


def test_update_that_reads_elsewhere_goes_through_a_copy() -> None:
    x = rand(5)
    _, after, _ = apply(mutating(lambda x: (x.flip(0) + x,), [x], 1), [x])
    compare(x.flip(0) + x, after[0])


def test_old_value_is_returned_beside_the_update() -> None:
    x = rand(5)
    results, after, _ = apply(mutating(lambda x: (x + 1, x * 2, x.view(5, 1)), [x], 1), [x])
    compare(x + 1, after[0])
    compare(x * 2, results[0])
    compare(x.view(5, 1), results[1])


def test_aliases_are_views_of_their_base() -> None:
    x = rand(3, 4)
    graph = trace(lambda x: (x + 1, x[0], x * 2), [x])
    graph.outputs = [None, Alias("input", 0, (4,), (1,), 4), Alias("output", 0, (3,), (4,), 1)]
    program = lower(graph, HOST, CONFIG)
    check_legal(program)
    a, row, column = run(program, [x], {})
    assert row.data_ptr() == x[1].data_ptr()
    compare(x[1], row)
    compare((x + 1)[:, 1], column)
    assert column.untyped_storage().data_ptr() == a.untyped_storage().data_ptr()


def test_constants_keep_their_names() -> None:
    weight = rand(4)
    graph = trace(lambda x: x * weight, [rand(3, 4)])
    program = lower(graph, HOST, CONFIG)
    assert program.consts == tuple(graph.constants)


def test_what_is_no_operator_is_refused() -> None:
    graph, _ = single(aten.add.Tensor, (rand(3), rand(3)))
    node = next(n for n in graph.gm.graph.nodes if n.op == "call_function")
    node.target = operator.add
    with pytest.raises(LoweringError, match="not an operator"):
        lower(graph, HOST, CONFIG)


@pytest.mark.parametrize("args", [(2,), (3, 2, 1), ((3, 2), 1, (1, 0), 2), (3, 2, 1, 1, True)])
def test_max_pool(args: Any) -> None:
    image = rand(2, 3, 7, 6)
    image[0, 0, 3, 3] = float("nan")
    program = check(lambda x: F.max_pool2d(x, *args), image)
    assert not externs(program)
    assert not externs(check(lambda x: F.max_pool2d(x, *args), image.to(memory_format=torch.channels_last)))
    assert not externs(check(lambda x: F.max_pool2d(x, *args, return_indices=True), image))
    assert not externs(check(lambda x: F.max_pool3d(x, 2), rand(2, 3, 4, 6)))


def test_dead_extern_outputs_keep_their_place() -> None:
    program = lower_function(lambda x: torch.sort(x).values + 1, rand(2, 5))
    calls = [n for n in program.nodes if isinstance(n, Extern)]
    assert all(isinstance(o, Ref) for o in program.outputs)
    assert len(calls) == 1


def test_shared_mask_is_stored_not_repeated() -> None:
    def fn(scores: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(4, 4).tril() == 0
        return torch.softmax(scores.masked_fill(mask, float("-inf")), -1)

    check(fn, rand(2, 4, 4))
