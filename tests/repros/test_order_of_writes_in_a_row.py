"""Kernels that do several loops for each row of outer ones.

- an argument was written before the last of the loops that read it, so that results were computed from what it became;
- of two results that later loops of the kernel read, one was an argument, and the loop of the other read it afterwards;
- a value that doesn't change along an inner loop, kept for a later loop, was read where that loop's variable is unknown,
  and g++ refused the kernel.
"""

import torch
import torch.nn.functional as F

import firebrick


def test_an_argument_is_written_after_all_loops_have_read_it():
    def call(x, y):
        torch.add(y, x, out=x)
        return x.max(-3)[0], F.one_hot(x.abs() % 4, 4)

    generator = torch.Generator().manual_seed(0)
    memory, y = torch.randint(-9, 9, (7 * 19,), generator=generator), torch.randint(-9, 9, (9,), generator=generator)
    plain, ours = (memory.clone().as_strided((7, 1, 9), (19, 19, 2)) for _ in range(2))
    wanted, found = call(plain, y), firebrick.compile(call, options={"cache": False})(ours, y)
    for a, b in zip((*found, ours), (*wanted, plain), strict=True):
        assert torch.equal(a, b)


def test_an_argument_is_written_after_a_result_that_is_read_again():
    def call(x, y):
        torch._foreach_mul_([y, y], 2)
        shown = torch.broadcast_to(y, (3, *y.shape)).sqrt()
        return torch.logaddexp(x.sum(), y.log2()), shown, shown.sgn()

    generator = torch.Generator().manual_seed(0)
    x, plain = (torch.rand(7, 1, generator=generator) for _ in range(2))
    ours = plain.clone()
    wanted, found = call(x, plain), firebrick.compile(call, options={"cache": False})(x, ours)
    torch.testing.assert_close((*found, ours), (*wanted, plain))


def test_of_two_written_arguments_the_larger_one_reads_the_smaller_one_before():
    def call(x, small, large):
        small.mul_(x.sum().exp())
        large.add_(small.log())
        return small.sin().sum()

    generator = torch.Generator().manual_seed(0)
    x, small, large = (torch.rand(*shape, generator=generator) for shape in ((7,), (7,), (3, 7)))
    plain, ours = ((small.clone(), large.clone()) for _ in range(2))
    wanted, found = call(x, *plain), firebrick.compile(call, options={"cache": False})(x, *ours)
    torch.testing.assert_close((found, *ours), (wanted, *plain))


def test_what_does_not_change_along_an_inner_loop_is_kept():
    def call(x):
        return x.expand(2, *x.shape).repeat_interleave(2, 2).log1p().std([0, 2])

    for dtype in (torch.bfloat16, torch.float32):
        x = torch.rand(3, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
        compiled = firebrick.compile(call, options={"cache": False, "strict": True})
        torch.testing.assert_close(compiled(x), call(x), rtol=1e-2, atol=1e-3)
