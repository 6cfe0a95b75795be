"""Executables: what a host table does when it is called."""

import gc
import math
import threading
import weakref

import pytest
import torch
from tests.runtime.programs import buffer, call, plus_one_artifact, program, run_calls, schedule, seen, whole

from firebrick.artifact import Artifact
from firebrick.config import Config
from firebrick.errors import LoweringError
from firebrick.host.table import host_program, show_table
from firebrick.ir.index.expr import as_expr, var
from firebrick.ir.loops.program import Enum
from firebrick.runtime import ConstantsChanged, build, load

X = buffer("x", (2, 3), "input")
W = buffer("w", (3, 4), "const")
M = buffer("m", (2, 4), "temp")
OUT = buffer("o", (2, 4), "output")


def product(constants, steps, outputs=None, arena=(M,)):
    return run_calls([X, W, M, OUT], outputs or [whole(OUT)], steps, constants, arena)


def mm():
    return call("aten::mm.out", [whole(X), whole(W)], [M], into=True)


def test_direct_and_dispatched_calls_give_eager_results():
    w, x = torch.randn(3, 4), torch.randn(2, 3)
    run = product({"w": w}, [mm(), call("aten::relu", [whole(M)], [OUT])])
    assert torch.equal(run(x)[0], torch.relu(x @ w))
    assert run.routes() == [("aten::mm", "direct"), ("aten::relu", "dispatch")]


def test_op_that_the_c_interface_can_not_carry_goes_through_python():
    w, x = torch.randn(3, 4), torch.randn(2, 3)
    run = product({"w": w}, [mm(), call("aten::leaky_relu", [whole(M), 0.5], [OUT])])
    assert torch.equal(run(x)[0], torch.nn.functional.leaky_relu(x @ w, 0.5))
    assert run.routes()[1] == ("aten::leaky_relu", "python")


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "expected"),
    [
        ("aten::sum.dim_IntList", [seen(M, (1, 2, 4), (8, 4, 1)), (0,)], {}, lambda m: m),
        ("aten::sum.dim_IntList", [seen(M, (1, 2, 4), (8, 4, 1)), (0,)], {"dtype": Enum("dtype", "f32")}, lambda m: m),
        ("aten::clamp", [whole(M), None, 0.0], {}, lambda m: m.clamp(max=0.0)),
        ("aten::gelu", [whole(M)], {"approximate": "tanh"}, lambda m: torch.nn.functional.gelu(m, approximate="tanh")),
        ("aten::roll", [whole(M), (1,), (1,)], {}, lambda m: m.roll(1, 1)),
        ("aten::clone", [whole(M)], {"memory_format": Enum("memory_format", "contiguous_format")}, lambda m: m),
        ("aten::cat", [(seen(M, (1, 4), (4, 1), 4), seen(M, (1, 4), (4, 1))), 0], {}, lambda m: m.flip(0)),
        ("aten::_to_copy", [whole(M)], {"device": Enum("device", "cpu")}, lambda m: m),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_arguments_of_every_kind(op, args, kwargs, expected):
    w, x = torch.randn(3, 4), torch.randn(2, 3)
    run = product({"w": w}, [mm(), call(op, args, [OUT], **kwargs)])
    for _ in range(2):
        torch.testing.assert_close(run(x)[0], expected(x @ w))


def test_results_of_another_layout_are_copied_to_the_planned_one():
    x = torch.randn(2, 3)
    out = buffer("o", (3, 2), "output")
    run = run_calls([X, out], [whole(out)], [call("aten::t_copy", [whole(X)], [out])])
    transposed = run_calls([X, out], [whole(out)], [call("aten::t", [whole(X)], [out])])
    for made in (run(x)[0], transposed(x)[0]):
        assert made.stride() == (2, 1) and torch.equal(made, x.t())


def test_several_results_and_dropped_ones():
    x = torch.randn(2, 3)
    values, places = buffer("v", (2, 2), "output"), buffer("p", (2, 2), "output", "i64")
    both = run_calls(
        [X, values, places], [whole(values), whole(places)], [call("aten::topk", [whole(X), 2], [values, places])]
    )
    one = run_calls([X, places], [whole(places)], [call("aten::topk", [whole(X), 2], [None, places])])
    expected = x.topk(2)
    assert torch.equal(both(x)[0], expected.values) and torch.equal(both(x)[1], expected.indices)
    assert torch.equal(one(x)[0], expected.indices)


def test_outputs_of_every_kind():
    w, x = torch.randn(3, 4), torch.randn(2, 3)
    outputs = [
        whole(OUT),
        whole(X),
        whole(W),
        seen(OUT, (4, 2), (1, 4)),
        whole(OUT),
        seen(X, (3,), (1,), 3),
        3,
        None,
        2.5,
        True,
    ]
    o, same, const, turned, again, row, *plain = product(
        {"w": w}, [mm(), call("aten::relu", [whole(M)], [OUT])], outputs
    )(x)
    assert again is o and plain == [3, None, 2.5, True]
    for one, given in ((same, x), (const, w)):  # on the memory that was given, but tensors of their own
        assert one is not given and one.data_ptr() == given.data_ptr() and torch.equal(one, given)
    assert torch.equal(turned, o.t()) and turned.data_ptr() == o.data_ptr()
    assert torch.equal(row, x[1]) and row.data_ptr() == x[1].data_ptr()
    views = [turned]
    del o, again, turned
    gc.collect()
    assert views[0].isfinite().all()


def test_view_of_another_dtype():
    pairs = buffer("x", (2, 3, 2), "input")
    run = run_calls([pairs], [seen(pairs, (2, 3), (3, 1), 0, "c64")], [])
    x = torch.randn(2, 3, 2)
    assert torch.equal(run(x)[0], torch.view_as_complex(x))


def test_inputs_are_checked():
    run = product({"w": torch.randn(3, 4)}, [mm(), call("aten::relu", [whole(M)], [OUT])])
    x = torch.randn(2, 3)
    for bad in (torch.randn(3, 2), torch.randn(2, 3, 1), x.double(), torch.randn(3, 2).t(), x.to("meta")):
        with pytest.raises(ValueError, match="input 0"):
            run(bad)
    with pytest.raises(TypeError, match="not a tensor"):
        run(1.0)
    with pytest.raises(TypeError, match="takes 1 tensors"):
        run(x, x)
    with pytest.raises(TypeError):
        run(x=x)


def test_strides_of_single_elements_do_not_count():
    row = buffer("x", (1, 3), "input")
    run = run_calls(
        [row, buffer("o", (1, 3), "output")],
        [whole(buffer("o", (1, 3), "output"))],
        [call("aten::relu", [whole(row)], [buffer("o", (1, 3), "output")])],
    )
    x = torch.randn(1, 3).as_strided((1, 3), (77, 1))
    assert torch.equal(run(x)[0], x.relu())


def test_constants_are_read_at_each_call():
    layer = torch.nn.Parameter(torch.randn(3, 4))
    run, x = product({"w": layer}, [mm(), call("aten::relu", [whole(M)], [OUT])]), torch.randn(2, 3)
    run(x)
    with torch.no_grad():
        layer.mul_(2)
    assert torch.equal(run(x)[0], torch.relu(x @ layer))
    layer.data = torch.randn(3, 4)
    assert torch.equal(run(x)[0], torch.relu(x @ layer))


@pytest.mark.parametrize("new", [torch.randn(4, 3), torch.randn(3, 4).double(), torch.randn(4, 3).t()])
def test_constant_of_other_metadata_is_an_error(new):
    layer = torch.nn.Parameter(torch.randn(3, 4))
    run, x = product({"w": layer}, [mm(), call("aten::relu", [whole(M)], [OUT])]), torch.randn(2, 3)
    run(x)
    layer.data = new
    with pytest.raises(ConstantsChanged, match="captured tensor 0"):
        run(x)


def test_errors_of_library_calls_are_those_of_eager():
    big = buffer("i", (2,), "input", "i64")
    out = buffer("o", (2, 4), "output")
    run = run_calls(
        [W, big, out],
        [whole(out)],
        [call("aten::index_select", [whole(W), 0, whole(big)], [out])],
        {"w": torch.randn(3, 4)},
    )
    assert run(torch.tensor([0, 2]))[0].shape == (2, 4)
    for _ in range(2):
        with pytest.raises(IndexError, match="out of range"):
            run(torch.tensor([0, 9]))
    assert run(torch.tensor([0, 2]))[0].shape == (2, 4)


def test_nothing_is_recorded_for_autograd():
    w, x = torch.nn.Parameter(torch.randn(3, 4)), torch.randn(2, 3, requires_grad=True)
    for steps in (
        [mm(), call("aten::relu", [whole(M)], [OUT])],
        [mm(), call("aten::leaky_relu", [whole(M), 0.5], [OUT])],
    ):
        assert not product({"w": w}, steps)(x)[0].requires_grad
        assert torch.is_grad_enabled()


def test_inference_mode():
    w, x = torch.randn(3, 4), torch.randn(2, 3)
    run = product({"w": w}, [mm(), call("aten::relu", [whole(M)], [OUT])])
    with torch.inference_mode():
        made = run(x)[0]
        assert made.is_inference() and torch.equal(made, torch.relu(x @ w))
    assert not run(x)[0].is_inference()


def test_symbolic_sizes():
    n = var("n", 1)
    x, o = buffer("x", (n, 4), "input"), buffer("o", (n, 4), "output")
    flat = seen(x, (n * 2, 2), (2, 1))
    made = buffer("m", (n * 2, 2), "temp")
    run = run_calls(
        [x, made, o],
        [whole(o), n * 3 + 1, n // 2, n % 2],
        [call("aten::relu", [flat], [made]), call("aten::neg", [seen(made, (n, 4), (4, 1))], [o])],
    )
    for size in (1, 2, 5):
        value = torch.randn(size, 4)
        out, *numbers = run(value)
        assert torch.equal(out, -value.relu()) and numbers == [3 * size + 1, size // 2, size % 2]
    with pytest.raises(ValueError, match="input 0"):
        run(torch.randn(4, 5))


def test_symbolic_size_behind_a_formula():
    n = var("n", 1)
    x, o = buffer("x", (n * 2 + 1,), "input"), buffer("o", (n,), "output")
    run = run_calls([x, o], [whole(o), n], [call("aten::relu", [seen(x, (n,), (2,), 1)], [o])])
    value = torch.randn(9)
    out, number = run(value)
    assert number == 4 and torch.equal(out, value[1::2].relu())
    with pytest.raises(ValueError, match="input 0"):
        run(torch.randn(8))


def test_symbol_without_an_input_is_an_error():
    n, o = var("n", 1), buffer("o", (var("n", 1),), "output")
    with pytest.raises(LoweringError, match="size n"):
        host_program(schedule(program([X, o], [n]), []))


def test_call_with_wrong_arguments_is_an_error():
    for bad in (
        call("aten::relu", [], [OUT]),
        call("aten::relu", [whole(X)], [OUT], nonsense=1),
        call("aten::no_such", [], [OUT]),
    ):
        with pytest.raises(LoweringError):
            host_program(schedule(program([X, OUT], [whole(OUT)]), [bad]))


def test_threads_may_call_at_once():
    w = torch.randn(3, 4)
    run = product({"w": w}, [mm(), call("aten::relu", [whole(M)], [OUT])])
    wrong = []

    def work(seed):
        x = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
        expected = torch.relu(x @ w)
        wrong.extend(1 for _ in range(300) if not torch.equal(run(x)[0], expected))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_recursion_through_a_python_op_gets_its_own_arena():
    depth = []

    @torch.library.custom_op("firebrick_test::again", mutates_args=())
    def again(m: torch.Tensor, slope: float) -> torch.Tensor:
        if len(depth) < 2:
            depth.append(1)
            run(torch.ones(2, 3))
        return m * slope

    w, x = torch.randn(3, 4), torch.randn(2, 3)
    run = product({"w": w}, [mm(), call("firebrick_test::again", [whole(M), 2.0], [OUT])])
    torch.testing.assert_close(run(x)[0], x @ w * 2)
    assert len(depth) == 2


def test_executable_frees_what_it_holds():
    w = torch.randn(3, 4)
    alive = weakref.ref(w)
    run = product({"w": w}, [mm(), call("aten::relu", [whole(M)], [OUT])])
    run(torch.randn(2, 3))
    del run, w
    gc.collect()
    assert alive() is None


def test_calls_do_not_leak_tensors():
    w, x = torch.randn(3, 4), torch.randn(2, 3)
    run = product({"w": w}, [mm(), call("aten::leaky_relu", [whole(M), 0.5], [OUT])])
    run(x)
    before = sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())
    for _ in range(50):
        run(x)
    gc.collect()
    assert sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()) <= before + 1


def test_broken_tables_are_refused():
    table = host_program(schedule(program([X, OUT], [whole(OUT)]), [call("aten::relu", [whole(X)], [OUT])]))
    for name in ("slots", "views", "steps", "outputs", "registers", "arena", "mutated", "release_gil"):
        with pytest.raises((ValueError, TypeError, KeyError)):
            load(Artifact("t", {k: v for k, v in table.items() if k != name}), {})
    for bad in ([["t", 99]], [["z", 1]], [["i", [5]]], [[]], 5):
        with pytest.raises((ValueError, TypeError)):
            load(Artifact("t", {**table, "outputs": bad}), {})
    with pytest.raises(ValueError, match="was not built"):
        load(Artifact("t", {**table, "steps": [["kernel", "missing", [0], [], "cpu", []]]}), {})


def test_table_prints_as_a_program():
    made = program([X, W, M, OUT], [whole(OUT)])
    text = show_table(host_program(schedule(made, [mm(), call("aten::relu", [whole(M)], [OUT])], arena=(M,))))
    assert text.splitlines() == [
        "arena 4096 bytes",
        "aten::mm.out(x, w, out=%0)",
        "%1 = aten::relu(%0)",
        "return %1",
    ]


@pytest.mark.compiler
def test_kernel_launch_with_a_size():
    for size in (1, 6):
        built = build(plus_one_artifact(size), Config())
        x = torch.arange(size, dtype=torch.float32)
        assert torch.equal(load(built, {})(x)[0], x + 1)


def test_infinite_float_arguments():
    x = torch.tensor([[1.0, math.inf, 2.0], [3.0, 4.0, 5.0]])
    o = buffer("o", (2, 3), "output")
    run = run_calls([X, o], [whole(o)], [call("aten::nan_to_num", [whole(X), 0.0, 7.0, -math.inf], [o])])
    assert torch.equal(run(x)[0], torch.nan_to_num(x, 0.0, 7.0, -math.inf))


def test_zero_sized_tensors():
    x, o = buffer("x", (0, 3), "input"), buffer("o", (0, 3), "output")
    run = run_calls([x, o], [whole(o)], [call("aten::relu", [whole(x)], [o])])
    assert run(torch.randn(0, 3))[0].shape == (0, 3)


def test_as_expr_of_numbers_is_the_identity_of_the_table():
    assert host_program(schedule(program([X], [as_expr(7)]), []))["outputs"] == [["i", 7]]


def test_tensors_in_a_list_are_freed_behind_their_last_use():
    seen, refs = [], {}

    @torch.library.custom_op("fbtest::alive", mutates_args=())
    def alive(x: torch.Tensor) -> torch.Tensor:
        seen.append({name for name, ref in refs.items() if ref() is not None})
        return x.clone()

    a, b, c = (buffer(n, (4,), "input") for n in "abc")
    u, v, y, z = (buffer(n, (4,), k) for n, k in zip("uvyz", ["temp", "temp", "output", "output"], strict=True))
    steps = [
        call("fbtest::alive", [whole(a)], [u]),
        call("aten::add.Tensor", [whole(u), whole(b)], [v]),
        call("fbtest::alive", [whole(v)], [y]),
        call("fbtest::alive", [whole(y)], [z]),
    ]
    made = program([a, b, c, u, v, y, z], [whole(z), whole(c)])
    run = load(Artifact("test", host_program(schedule(made, steps))), {}, frees=True)
    kept = torch.ones(4)
    for held in ([], [kept]):
        tensors = [torch.full((4,), float(k)) for k in range(2)] + [kept]
        refs.update(zip("ab", map(weakref.ref, tensors), strict=False))
        held += tensors[:1] if held else []
        seen.clear()
        results = run(tensors)
        assert tensors == [] and [t.tolist() for t in results] == [[1.0] * 4, [1.0] * 4]
        assert seen == [{"a", "b"}, {"a"}, {"a"}] if held else seen == [{"a", "b"}, set(), set()]
    assert results[1].data_ptr() == kept.data_ptr()
    run(torch.ones(4), torch.ones(4), kept)
    with pytest.raises(TypeError, match="takes 3 tensors"):
        run([kept])
