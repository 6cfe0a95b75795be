"""`multilabel_margin_loss` counted targets behind a -1."""

import torch
import torch.nn.functional as F

import firebrick


def test_loss():
    x, target = torch.linspace(-1, 1, 12).reshape(3, 4), torch.tensor([[0, 1, -1, 2], [3, -1, 0, 0], [-1, 1, 2, 3]])
    found = []
    for call in (F.multilabel_margin_loss, firebrick.compile(lambda *args: F.multilabel_margin_loss(*args))):
        given = x.clone().requires_grad_()
        loss = call(given, target)
        loss.backward()
        found.append((loss.detach(), given.grad))
    torch.testing.assert_close(found[1], found[0])
