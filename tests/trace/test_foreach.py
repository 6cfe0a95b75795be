"""Ops on lists of tensors are taken apart: each gives eager's results, in place and not, and loops run them."""

import pytest
import torch
from torch._ops import OpOverload

import firebrick
from firebrick.fakes.foreach import calls_of, op_of

WHOLE = {"powsum", "max", "mm"}  # reductions and products: one library call a list
SKIPPED = {("addcmul", "Tensor"), ("addcdiv", "Tensor")}  # their numbers are read from a tensor


def _overloads():
    packets = {
        s.name.removeprefix("aten::") for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::_foreach_")
    }
    for name in sorted(packets):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            if "out" not in overload:
                yield getattr(packet, overload)


ALL = list(_overloads())


def _arguments(func: OpOverload):
    torch.manual_seed(0)
    shapes = [(3, 4), (5,), (1,)]
    values = []
    for argument in func._schema.arguments:
        kind = str(argument.real_type)
        if kind == "List[Tensor]":
            values.append([torch.rand(shape) * 0.8 + 0.1 for shape in shapes])
        elif kind.startswith("List["):
            values.append([0.5, 2.0, 1.5])
        elif kind == "Tensor":
            values.append(torch.tensor(0.5))
        elif argument.name == "ord":
            values.append(2)
        elif kind in ("number", "Scalar"):
            values.append(0.5)
    return values


def _name(func):
    return func._opname.removeprefix("_foreach_").rstrip("_")


@pytest.mark.parametrize("func", ALL, ids=str)
def test_each_op_on_lists_has_the_op_of_one_tensor_and_agrees_with_eager(func):
    if _name(func) in WHOLE or (_name(func), func._overloadname) in SKIPPED:
        assert op_of(func) is None
        return
    ours, theirs = _arguments(func), _arguments(func)
    calls = calls_of(func, ours, {})
    results = [op(*args, **kwargs) for op, args, kwargs in calls]
    keywords = {a.name: v for a, v in zip(func._schema.arguments, theirs, strict=False) if a.kwarg_only}
    expected = func(*theirs[: len(theirs) - len(keywords)], **keywords)
    for got, want in zip(results, expected if expected is not None else theirs[0], strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_lists_of_unequal_length_stay_whole_for_eagers_error():
    a = [torch.ones(2)]
    assert calls_of(torch.ops.aten._foreach_add.List, [a, a * 2], {}) is None
    assert calls_of(torch.ops.aten._foreach_add.Scalar, [[], 1.0], {}) is None


def adam(params, grads, firsts, seconds):
    """An optimizer's step in place, as torch.optim does it on lists."""
    torch._foreach_lerp_(firsts, grads, 0.1)
    torch._foreach_mul_(seconds, 0.999)
    torch._foreach_addcmul_(seconds, grads, grads, 0.001)
    root = torch._foreach_sqrt(seconds)
    torch._foreach_add_(root, 1e-8)
    torch._foreach_addcdiv_(params, firsts, root, -0.01)


def test_a_step_over_many_parameters_is_loops_in_place_and_agrees():
    def lists():
        torch.manual_seed(1)
        return [[torch.rand(8, 33) for _ in range(40)] for _ in range(4)]

    ours, theirs = lists(), lists()
    with torch.no_grad():
        step = firebrick.compile(adam, fullgraph=True)
        for _ in range(3):
            step(*ours)
            adam(*theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_memory_that_two_tensors_of_a_list_share_is_written_in_order():
    def twice(x):
        torch._foreach_mul_([x[:4], x[2:]], 2.0)
        return x + 1

    a, b = torch.arange(6.0), torch.arange(6.0)
    torch.testing.assert_close(firebrick.compile(twice)(a), twice(b), rtol=0, atol=0)
    torch.testing.assert_close(a, b, rtol=0, atol=0)
