"""one_hot of no indices into 0 classes gave an empty tensor, where eager mode raises."""

import pytest
import torch
from torch.nn import functional as F

import firebrick


def test_no_classes_are_refused_as_in_eager(monkeypatch):
    monkeypatch.setenv("FIREBRICK_STRICT", "0")
    indices = torch.zeros(0, dtype=torch.int64)
    compiled = firebrick.compile(F.one_hot)
    for count in (3, 4, 0):
        if count:
            assert torch.equal(compiled(indices, count), F.one_hot(indices, count))
        else:
            with pytest.raises(RuntimeError, match="Can not infer"):
                compiled(indices, count)
