"""A caught error of a lookup escaped, if writes behind it could neither be undone nor told by versions."""

import pytest
import torch
import torch.nn.functional as F

import firebrick


def _data_first(x, m, t, i):
    try:
        F.embedding(i, m)
    except IndexError:
        pass
    x.data.add_(1)
    t += x


def _data_last(x, m, t, i):
    try:
        F.embedding(i, m)
    except IndexError:
        pass
    t += x
    x.data.add_(1)


@pytest.mark.parametrize("program", [_data_first, _data_last])
@pytest.mark.parametrize("index", [1, 9])
def test_writes_are_eagers(program, index):
    seen = []
    for run in (program, firebrick.compile(program)):
        x, t = torch.ones(3, requires_grad=True), torch.zeros(3)
        run(x, torch.ones(4, 2), t, torch.tensor(index))
        seen.append((x.detach().clone(), t.detach().clone(), t.requires_grad))
    torch.testing.assert_close(seen[1], seen[0])
