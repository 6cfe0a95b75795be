"""Compares a function with itself compiled: results, the arguments afterwards, and what shares memory with them."""

import warnings

import torch

import firebrick


def same(fn, *arguments, strict=True, fullgraph=False):
    """Fail unless `fn` does the same compiled; where `strict` is off, eager may do it."""
    plain, ours = [[t.clone(memory_format=torch.preserve_format) for t in arguments] for _ in range(2)]
    wanted = fn(*plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = firebrick.compile(fn, fullgraph=fullgraph, options={"strict": strict})(*ours)
    wanted, got = [r if isinstance(r, (tuple, list)) else (r,) for r in (wanted, got)]
    for a, b in zip([*wanted, *plain], [*got, *ours], strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        torch.testing.assert_close(b, a, equal_nan=True)
    assert _sharing(wanted, plain) == _sharing(got, ours)


def _sharing(results, arguments):
    memory = [t.untyped_storage().data_ptr() for t in arguments]
    return [r.numel() > 0 and r.untyped_storage().data_ptr() in memory for r in results]
