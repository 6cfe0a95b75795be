"""Sizes that data decide are symbols: one graph, whose results are eager's whatever the data are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import firebrick
from firebrick.report import recorder


def rows(n: int) -> torch.Tensor:
    return torch.randn(n, 8, generator=torch.Generator().manual_seed(n))


def numbers(*values: int) -> list[torch.Tensor]:
    return [torch.tensor(v) for v in values]


def connected(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    src, dst = edges
    keep = src != dst
    src, dst = src[keep], dst[keep]
    out = torch.zeros_like(x).index_add(0, dst, torch.relu(x[src]))
    return out / torch.bincount(dst, minlength=x.shape[0]).clamp(min=1)[:, None]


def pooled(x: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
    graphs, inverse, counts = torch.unique(batch, return_inverse=True, return_counts=True)
    mean = torch.zeros(graphs.numel(), x.shape[1]).index_add(0, inverse, x) / counts[:, None]
    return torch.softmax(mean, -1).repeat_interleave(counts, 0) * x.sum(), graphs.shape[0]


def routed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out, chosen = torch.zeros_like(x), (x @ w).argmax(-1)
    for e in range(3):
        (idx,) = (chosen == e).nonzero(as_tuple=True)
        out = out.index_add(0, idx, torch.tanh(x[idx] * (e + 1)))
    return out


def detected(boxes: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    for keep in (0.3, 0.1):
        chosen = scores * (boxes[:, 2:] - boxes[:, :2]).prod(1).abs().sqrt() > keep
        boxes, scores = boxes[chosen], scores[chosen]
    scores, order = scores.sort(descending=True)
    return boxes[order][:4] * 2, scores[:4]


def checked(x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, int]:
    n = int(t)
    torch._check(n >= 0)
    torch._check(n <= x.shape[0])
    return x[:n].sum(0), n + 1


def written(x: torch.Tensor) -> torch.Tensor:
    mask, y = x > 0, x * 1.5
    y[mask] = y[mask] * 2 + 1
    return y


def chosen(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return torch.cond(t.item() > 2, lambda x: x + 1, lambda x: x - 1, (x,))  # type: ignore[no-any-return]


MASKED = [(rows(n),) for n in (5, 5, 7)] + [(-torch.ones(4, 8),), (torch.ones(4, 8),), (torch.eye(8)[:1],)]
COUNTS = numbers(3, 0, 1, 5, 9, 20, -2, -20)
EDGES = [(rows(n), torch.randint(0, n, (2, e))) for n, e in ((5, 9), (5, 9), (8, 20), (1, 3))]

CASES: dict[str, tuple[Any, list[tuple[Any, ...]]]] = {
    "mask": (lambda x: (x[x > 0].exp() * 2).sum(), MASKED),
    "rows by a mask": (lambda x: (x[x[:, 0] > 0] + 1).relu(), MASKED),
    "masked_select": (lambda x: torch.masked_select(x, x > 0).exp().mean(), MASKED),
    "maximum": (lambda x: x[x > -100].max(), MASKED),
    "nonzero": (lambda x: (x.nonzero() + 1, (x > 0).nonzero(as_tuple=True)[0] * 3), MASKED),
    "slice to item": (lambda x, t: x[: t.item()] * 2 + 1, [(rows(9), n) for n in COUNTS]),
    "slice from item": (lambda x, t: (x * x)[t.item() :].sin(), [(rows(9), n) for n in COUNTS]),
    "slice to tensor": (lambda x, t: x[: t + 1] * 2, [(rows(9), n) for n in COUNTS]),
    "slice between tensors": (lambda x, t: x[t : t + 3, t - 1 : 6] * 2 + 1, [(rows(9), n) for n in COUNTS]),
    "slice to where the largest is": (lambda x: x[x[:, 0].argmax() :].sum(0), [(rows(n),) for n in (9, 9, 12, 5)]),
    "row of item": (lambda x, t: x[t.item()] * 2, [(rows(9), n) for n in numbers(0, 3, -1, 8)]),
    "item as a number": (lambda x, t: (x * t.item() + 1, t.item() - 1), [(rows(9), n) for n in COUNTS]),
    "item of small integers": (lambda x, t: x[: t.item()] + 1, [(rows(9), n.to(torch.uint8)) for n in COUNTS[:5]]),
    "zeros": (lambda t: torch.zeros(t.item(), 4) + 1, [(n,) for n in COUNTS[:6]]),
    "arange": (lambda t: torch.arange(t.item()) * 2, [(n,) for n in COUNTS[:6]]),
    "lengths": (
        lambda x, n: [part.sum(0) for part in x.split(n.tolist())],
        [(rows(9), torch.tensor(n)) for n in ([2, 3, 4], [0, 0, 9], [1, 1, 7])],
    ),
    "repeat_interleave": (
        lambda x, n: torch.relu(x.repeat_interleave(n, 0)),
        [(rows(4), torch.tensor(n)) for n in ([1, 2, 3, 4], [0] * 4, [1, 0, 0, 0], [5] * 4)],
    ),
    "unique columns": (
        lambda x: [t + 1 for t in torch.unique((x > 0).int(), dim=1, return_inverse=True, return_counts=True)],
        MASKED,
    ),
    "unique_consecutive": (lambda x: torch.unique_consecutive(x.flatten() > 0).sum(), MASKED),
    "checked": (checked, [(rows(9), n) for n in numbers(2, 0, 1, 9)]),
    "cond": (chosen, [(rows(9), n) for n in COUNTS]),
    "graphs": (connected, EDGES),
    "pooling": (pooled, [(rows(n), torch.randint(0, 4, (n,))) for n in (6, 6, 10, 1)]),
    "experts": (routed, [(rows(n), torch.randn(8, 3)) for n in (6, 6, 10, 1)]),
    "boxes": (detected, [(torch.rand(n, 4), torch.rand(n)) for n in (20, 20, 30, 1, 2)]),
    "written by a mask": (written, MASKED),
    "written in place": (lambda x: x[x[:, 0] > -9].mul_(2)[1:].add_(1), MASKED),
}


def outcome(function: Any, args: tuple[Any, ...], grad: bool) -> Any:
    own = [a.clone().requires_grad_(grad and a.is_floating_point()) for a in args]
    results = function(*own)
    flat = [results] if isinstance(results, torch.Tensor) else list(results)
    summed = [r.sum() for r in flat if isinstance(r, torch.Tensor) and r.requires_grad]
    if summed:
        sum(summed).backward()  # type: ignore[union-attr]
    layouts = [(r.stride() if r.numel() > 1 else None) for r in flat if isinstance(r, torch.Tensor)]
    return [r.detach() if isinstance(r, torch.Tensor) else r for r in flat], [a.grad for a in own], layouts


WITH_GRADIENTS = ("mask", "slice from item", "graphs", "experts", "boxes")


@pytest.mark.parametrize(
    ("name", "grad"), [(name, False) for name in CASES] + [(name, True) for name in WITH_GRADIENTS]
)
def test_one_graph_gives_what_eager_does_for_all_data(name: str, grad: bool) -> None:
    function, calls = CASES[name]
    compiled = firebrick.compile(function, fullgraph=True)
    for args in calls:
        torch.testing.assert_close(
            outcome(compiled, args, grad), outcome(function, args, grad), rtol=1e-5, atol=1e-5, equal_nan=True
        )


def test_new_data_compile_nothing() -> None:
    compiled = firebrick.compile(lambda x, t: x[: t.item()].exp().sum() + x[x > 0].sum())
    compiled(rows(9), torch.tensor(3))
    before = recorder.counts["frames"]
    for n in (0, 1, 5, 9, 100):
        compiled(rows(9) - n, torch.tensor(n))
    assert recorder.counts["frames"] == before


def test_what_torch_check_refuses_raises_as_in_eager() -> None:
    compiled = firebrick.compile(checked, fullgraph=True)
    compiled(rows(9), torch.tensor(3))
    for n in (-1, 10):
        with pytest.raises(RuntimeError, match="Expected cond to be True"):
            compiled(rows(9), torch.tensor(n))


def test_a_row_that_is_not_there_raises_as_in_eager() -> None:
    compiled = firebrick.compile(lambda x, t: x[t.item()] * 2, fullgraph=True)
    compiled(rows(9), torch.tensor(3))
    with pytest.raises(IndexError):
        compiled(rows(9), torch.tensor(9))


def test_a_maximum_of_nothing_raises_as_in_eager() -> None:
    compiled = firebrick.compile(lambda x: x[x > 0].max(), fullgraph=True)
    compiled(torch.ones(3))
    with pytest.raises(RuntimeError):
        compiled(-torch.ones(3))


def test_a_branch_on_an_item_breaks_and_says_what_to_add() -> None:
    def branched(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        n = int(t.item())
        return x[:n] if n > 3 else x + n

    compiled = firebrick.compile(branched)
    for n in (2.0, 3.0, 4.0, 0.0, 1.0, 9.0):
        torch.testing.assert_close(compiled(rows(9), torch.tensor(n)), branched(rows(9), torch.tensor(n)))
    with pytest.raises(firebrick.errors.Unsupported, match=r"torch\._check"):
        firebrick.compile(branched, fullgraph=True)(rows(9), torch.tensor(2.0))


def test_large_and_small_integers_stay_exact() -> None:
    compiled = firebrick.compile(lambda x, t: (x + 1, t.item() - 1))
    for n in (3, 1 << 53, (1 << 61) + 5, (1 << 63) - 1, -(1 << 63) + 1):
        assert compiled(torch.ones(2), torch.tensor(n))[1] == n - 1


def experts_that_were_hit(x: torch.Tensor, gate: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    mask = torch.nn.functional.one_hot((x @ gate).topk(2).indices, len(weights)).permute(2, 1, 0)
    result = torch.zeros_like(x)
    for expert in mask.sum((-1, -2)).gt(0).nonzero():
        expert = expert[0]
        if expert == len(weights):
            continue
        place, row = torch.where(mask[expert])
        result.index_add_(0, row, x[row] @ {"expert 0": weights[0]}.get(f"expert {expert}", weights[expert]))
    return result


def test_a_loop_over_all_experts_is_one_graph_and_over_some_runs_as_plain_python() -> None:
    gate, weights = torch.eye(4), torch.randn(4, 4, 4)
    compiled = firebrick.compile(experts_that_were_hit)
    before = firebrick.stats()["counts"].get("graphs", 0)
    calls = [torch.randn(32, 4), torch.randn(48, 4), *(torch.tensor([[3.0, 2, 1, 0]]).repeat(n, 1) for n in (3, 5, 1))]
    for k, x in enumerate([*calls, *calls]):
        torch.testing.assert_close(compiled(x, gate, weights), experts_that_were_hit(x, gate, weights))
        assert k or firebrick.stats()["counts"]["graphs"] == before + 1
