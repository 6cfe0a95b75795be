"""Python stand-ins for functions written in C or too entangled to be looked into; they are inlined.

They run inside captured programs, so they are plain Python that the interpreter understands.
"""

# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, D103  these functions stand for untyped library code
# mypy: ignore-errors

from __future__ import annotations

import functools
import importlib.util
import math
import operator
import sys
import types
import unittest.mock

import numpy as np
import torch
from torch import _refs
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan as torch_scan
from torch.utils import _pytree as pytree

from firebrick.capture.library.known_callables import TRANSPARENT_MODULES, replaces


@replaces("decorate_with")
def decorate_with(context, function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        with context.clone():  # the function may call itself
            return function(*args, **kwargs)

    return wrapped


replaces("as_it_is")(lambda function: function)


@replaces(pytree.map_only)  # whose annotations are evaluated at each call
def map_only(kinds, /):
    is_one = (lambda leaf: isinstance(leaf, kinds)) if isinstance(kinds, (type, tuple, types.UnionType)) else kinds
    return lambda function: lambda leaf: function(leaf) if is_one(leaf) else leaf


@replaces("on_arrays")
def on_arrays(function, /, *args, **kwargs):
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.numpy(), (args, kwargs))
    return pytree.tree_map_only(np.ndarray, lambda array: torch.as_tensor(array), function(*args, **kwargs))


replaces("get_of_function")(
    lambda function, owner, cls=None: function if owner is None else types.MethodType(function, owner)
)


@replaces("unbind_jagged")
def unbind_jagged(nested, dim=0):
    if dim != 0:
        raise RuntimeError("unbind(): only supported for NestedTensor on dim=0")
    values, offsets, lengths, ragged = nested.values(), nested.offsets(), nested.lengths(), nested._ragged_idx - 1
    if lengths is None:
        return torch.split(values, offsets.diff().tolist(), dim=ragged)
    return tuple(torch.narrow(values, ragged, *row) for row in zip(offsets.tolist(), lengths.tolist(), strict=False))


@replaces("until")
def until(function, sentinel):
    while True:
        item = function()
        if item == sentinel:
            return
        yield item


@replaces("split_group")
def split_group(error, classes, inner=False):
    if isinstance(error, classes):
        return None, error if inner or isinstance(error, BaseExceptionGroup) else BaseExceptionGroup("", [error])
    if not isinstance(error, BaseExceptionGroup):
        return error, None
    parts = [split_group(one, classes, True) for one in error.exceptions]
    items = []
    for column in zip(*parts):  # noqa: B905  pairs
        chosen = [part for part in column if part is not None]
        group = BaseExceptionGroup(error.message, chosen) if chosen else None
        if group is not None:
            group.__cause__, group.__context__ = error.__cause__, error.__context__
            group.__suppress_context__ = error.__suppress_context__
            for note in getattr(error, "__notes__", ()):
                group.add_note(note)
        items.append(group)
    return tuple(items)


@replaces(torch.nn.Module.to)
def module_to(module, *args, **kwargs):
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    for tensor in (*module.parameters(), *module.buffers()):
        moves = device is not None and tensor.device != device
        if moves or (dtype is not None and tensor.is_floating_point() and tensor.dtype != dtype):
            return module._apply(lambda other: other.to(*args, **kwargs))  # breaks: data are set
    return module


replaces(torch.equal)(lambda input, other, /: input.shape == other.shape and bool((input == other).all()))


replaces(torch.allclose)(lambda input, other, *args, **kwargs: bool(torch.isclose(input, other, *args, **kwargs).all()))


@replaces(torch.istft)
def istft(input, n_fft, hop_length=None, win_length=None, window=None, center=True, *args, length=None, **kwargs):
    step, size, ones = hop_length or n_fft // 4, win_length or n_fft, torch.ones
    weight = ones(size, device=input.device) if window is None else window
    weight = torch.nn.functional.pad(weight, ((n_fft - size) // 2, n_fft - size - (n_fft - size) // 2)).pow(2)
    result = _refs.istft(input, n_fft, hop_length, win_length, window, center, *args, length=length, **kwargs)
    frames = input.size(-1)
    total = n_fft + step * (frames - 1)
    weights = torch.ops.aten.unfold_backward(weight.expand(frames, n_fft), (total,), 0, n_fft, step)
    start = n_fft // 2 if center else 0
    weights = weights[start : start + length if length is not None else total - start]
    torch._check((weights.abs().min() >= 1e-11).item())  # else the real one raises
    return result


def in_python(name, blocked):
    """A module of the standard library as it is without its part in C: Python that says what the latter does."""
    spec = importlib.util.spec_from_file_location(f"{__name__}.{name}", importlib.util.find_spec(name).origin)
    module = importlib.util.module_from_spec(spec)
    with unittest.mock.patch.dict(sys.modules, {blocked: None}):
        spec.loader.exec_module(module)
    TRANSPARENT_MODULES.add(module.__name__)
    return module


def called(kind):
    def make(*args, **kwargs):
        instance = kind(*args, **kwargs)
        return lambda *args, **kwargs: instance(*args, **kwargs)

    return make


_IN_C = {
    "operator": " ".join(name for name in operator.__all__ if name != "index"),
    "functools": "cmp_to_key reduce",
    "bisect": "bisect_left bisect_right insort_left insort_right",
    "heapq": "heapify heappop heappush heappushpop heapreplace _heapify_max _heappop_max _heapreplace_max",
    "collections": "_count_elements",
}
"""Module -> its functions that are written in C, and in Python beside it."""
for _name, _functions in _IN_C.items():
    _module = in_python(_name, f"_{_name}")
    for _function in _functions.split():
        _made = getattr(_module, _function)
        replaces(getattr(sys.modules[_name], _function))(called(_made) if isinstance(_made, type) else _made)


replaces(torch_map)(lambda f, xs, *args: scan(lambda carry, row: ((), f(row, *args)), (), xs)[1])


_MOST_STEPS = 256
"""Steps that are unrolled."""


def scan_loop(combine_fn, carried, columns):
    """A loop in the graph over rows of the tensors in `columns`; a rule knows it."""
    raise NotImplementedError


@replaces(torch_scan)
def scan(combine_fn, init, xs, *, dim=0, reverse=False):
    leaves, spec = pytree.tree_flatten(xs)
    dim = dim % leaves[0].ndim
    leaves = [torch.movedim(leaf, dim, 0) for leaf in leaves]
    if reverse:
        leaves = [leaf.flip(0) for leaf in leaves]
    steps = leaves[0].shape[0]
    unrolled = steps if steps <= _MOST_STEPS else 1
    carry, rows, shape = init, [], None
    for step in range(unrolled):
        carry, out = combine_fn(carry, pytree.tree_unflatten([leaf[step] for leaf in leaves], spec))
        row, shape = pytree.tree_flatten(out)
        rows.append(row)
    stacked = [torch.stack(column) for column in zip(*rows)]  # noqa: B905  rows are of one length
    if unrolled < steps:
        rest = pytree.tree_unflatten([leaf[1:] for leaf in leaves], spec)
        carry, rest = scan_loop(combine_fn, carry, rest)
        stacked = [torch.cat(pair) for pair in zip(stacked, pytree.tree_leaves(rest))]  # noqa: B905  one of each
    if reverse:
        stacked = [leaf.flip(0) for leaf in stacked]
    stacked = [torch.movedim(leaf, 0, dim) if dim < leaf.ndim else leaf for leaf in stacked]
    return carry, pytree.tree_unflatten(stacked, shape)


def index_by_tensors():
    """A context in which `x[i]` by a tensor of one element does not read the element; a rule knows it."""
    raise NotImplementedError


def over_all_places(function, scores):
    """A function of places in batch, head, row and column, and of a score there if `scores`, over all of them."""
    for place in (3, 2, 1, 0):
        dims = tuple(0 if place == other else None for other in range(4))
        function = torch.func.vmap(function, in_dims=(0, *dims) if scores else dims)
    return function


@replaces("flex_attention")
def flex_attention(
    query,
    key,
    value,
    score_mod,
    block_mask,
    scale,
    kernel_options,
    score_mod_other_buffers=(),
    mask_mod_other_buffers=(),
):
    groups = query.size(1) // key.size(1)
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(wide) @ key.to(wide).transpose(-2, -1) * scale
    places = [torch.arange(size, device=query.device) for size in scores.shape]
    with index_by_tensors():
        changed = over_all_places(score_mod, True)(scores, *places)
        visible = over_all_places(block_mask[-1], False)(*places)
    scores = torch.where(visible, changed, float("-inf"))
    total = scores.logsumexp(-1)
    weights = torch.ops.aten._safe_softmax(scores, -1)  # zeros in rows where nothing is kept
    out = weights.to(query.dtype) @ value.to(query.dtype)
    return out, total / math.log(2), scores.amax(-1) / math.log(2)  # as powers of two, as the kernels of a GPU count


replaces(torch.func.linearize)(
    lambda func, *primals: (func(*primals), lambda *tangents: torch.func.jvp(func, primals, tangents)[1])
)
