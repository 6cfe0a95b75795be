"""Two views of one memory that a graph only reads kept it from writing to a third tensor: captured in vain each time."""

from typing import Any

import torch

import firebrick


def add_rows(total: Any, rows: Any, places: Any, values: Any) -> Any:
    total.index_add_(0, rows, values[places])
    return total * 2


def both(function: Any, total: Any, *rest: Any) -> bool:
    one, other = total.clone(), total.clone()
    wanted, got = add_rows(one, *rest), function(other, *rest)
    return torch.equal(wanted, got) and torch.equal(one, other)


def test_they_may_share_memory() -> None:
    places = torch.tensor([[0, 1], [2, 0]])
    rows, columns = places.unbind()
    total, values = torch.zeros(4, 3), torch.randn(3, 3)
    compiled = firebrick.compile(add_rows, backend="eager")
    before = firebrick.stats()["counts"].get("graphs", 0)
    assert all(both(compiled, total, rows, columns, values) for _ in range(3))
    assert firebrick.stats()["counts"]["graphs"] == before + 1


def test_what_is_written_to_may_not() -> None:
    compiled = firebrick.compile(add_rows, backend="eager")
    rows, columns = torch.tensor([[0, 1], [2, 0]]).unbind()
    memory = torch.randn(6, 3)
    assert both(compiled, torch.zeros(3, 3), rows, columns, memory[:3])
    wanted, got = memory.clone(), memory.clone()
    expected = add_rows(wanted[:4], rows, columns, wanted[2:5])
    assert torch.equal(compiled(got[:4], rows, columns, got[2:5]), expected)
    assert torch.equal(wanted, got)
