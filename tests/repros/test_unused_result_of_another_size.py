"""`embedding_bag` makes results for its backward pass whose sizes the fake kernel has wrong; they were checked."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.ops.cases import cases, operators  # noqa: E402
from tests.ops.compare import check  # noqa: E402


@pytest.mark.compiler
def test_weighted_embedding_bag():
    found = check("embedding_bag", list(cases(operators()["nn.functional.embedding_bag"], torch.float32, 0, 1)))
    assert found.called
    assert not (found.left or found.failed or found.wrong)
