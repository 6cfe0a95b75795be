"""Higher-order operators of torch, one program each: transforms, branches, loops, scans, checkpoints, attention."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from naming import Table, check_row, check_whole
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import firebrick

TABLE = Table()
row = TABLE.row
W = nn.Parameter(torch.ones(3))
LINEAR = nn.Linear(3, 3)
LONG = torch.arange(900.0).reshape(300, 3) / 900
Q = torch.sin(torch.arange(256.0)).reshape(1, 2, 16, 8)
KV = torch.cos(torch.arange(128.0)).reshape(1, 1, 16, 8)
BIAS = torch.tensor([0.5, 2.0])


def causal(b, h, i, j):
    return i >= j


MASK = create_block_mask(causal, None, None, 16, 16, device="cpu")


# -- transforms ------------------------------------------------------------------------------


@row()
def vjp(x):
    k = x * 3
    y, pull = torch.func.vjp(lambda a, b: a * b * k, x, x + 1)
    return y, pull(torch.ones_like(y)), pull(y)


@row()
def vjp_of_trees(x):
    y, pull, aux = torch.func.vjp(lambda d: ({"s": d["a"].sin()}, d["a"].cos()), {"a": x}, has_aux=True)
    return y, pull({"s": torch.ones_like(x)}), aux


@row()
def vjp_inside_of_grad(x):
    def inner(a):
        y, pull = torch.func.vjp(lambda b: b**3, a)
        return pull(torch.ones_like(y))[0].sum()

    return torch.func.grad(inner)(x)


@row()
def jacobians(x):
    jacobian = torch.func.jacrev(lambda a, b: a * b, argnums=(0, 1))(x, x + 1)
    return jacobian, torch.func.jacfwd(torch.sin)(x), torch.func.hessian(lambda a: (a**3).sum())(x)


@row()
def functional_call_in_strict(x):
    parameters = {name: parameter.detach() * 2 for name, parameter in LINEAR.named_parameters()}
    return torch.func.functional_call(LINEAR, parameters, (x,), strict=True)


# -- branches and loops ------------------------------------------------------------------------


@row()
def branches_with_numbers(x):
    return torch.cond(x.sum() > 0, lambda a: (a + 1, 1), lambda a: (a - 1, 1), (x,))


@row()
def branches_that_fill_lists(x):
    def one(a):
        rows = [a + k for k in range(2)]
        rows.append(a)
        return torch.stack(rows).sum(0)

    return torch.cond(x.sum() > 0, one, lambda a: a - 1, (x,))


@row(graphs=None, breaks=1)
def branches_that_change_what_was_there(x):
    seen = [1]

    def one(a):
        seen.append(2)
        return a * 2

    return torch.cond(x.sum() > 0, one, lambda a: a - 1, (x,)), seen


@row(LONG)
def scan_of_many_rows(x):
    carry, rows = scan(lambda c, r: (c * 0.5 + r, c + r), torch.zeros(3), x)
    return carry, rows, scan(lambda c, r: (c * 0.5 + r, c + r), torch.zeros(300), x, dim=1, reverse=True)


@row(LONG)
def map_of_many_rows(x):
    k = x[0] * 2
    return torch_map(lambda r, w: r * k + w, x, W.detach())


# -- checkpoints and attention ------------------------------------------------------------------


def policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


@row()
def selective_checkpoint(x):
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(lambda a: (LINEAR(a) * W).sin(), x, use_reentrant=False, context_fn=contexts)


@row(Q)
def flex_attention_plain(q):
    return flex_attention(q, q, q, scale=0.3)


@row(Q, KV)
def flex_attention_of_groups(q, kv):
    return flex_attention(q, kv, kv, enable_gqa=True)


@row(Q)
def flex_attention_with_scores_and_mask(q):
    slope = q.mean() * 0.1

    def score(s, b, h, i, j):
        return torch.tanh(s / 5) * 5 * BIAS[h] + (j - i) * slope

    return flex_attention(q, q, q, score_mod=score, block_mask=MASK)


@row(Q)
def flex_attention_with_rows_masked_whole(q):
    mask = create_block_mask(lambda b, h, i, j: (i > 3) & (j > h), 1, 2, 16, 16, device="cpu")
    return flex_attention(q, q, q, block_mask=mask)


@pytest.mark.parametrize("program", TABLE.rows, ids=lambda program: program.name)
@pytest.mark.filterwarnings("ignore")
def test_row(program: Any) -> None:
    check_row(program)
    if not program.breaks:
        check_whole(program)


@pytest.mark.parametrize("program", [one for one in TABLE.rows if not one.breaks], ids=lambda program: program.name)
@pytest.mark.filterwarnings("ignore")
def test_compiled(program: Any) -> None:
    torch.testing.assert_close(
        firebrick.compile(program.function, fullgraph=True)(*program.arguments()),
        program.function(*program.arguments()),
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_selective_checkpoint_trains() -> None:
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    gradients = []
    for function in (selective_checkpoint, firebrick.compile(selective_checkpoint, fullgraph=True)):
        LINEAR.zero_grad()
        function(x).sum().backward()
        gradients.append([p.grad.clone() for p in LINEAR.parameters() if p.grad is not None])
    torch.testing.assert_close(gradients[1], gradients[0])
