"""`check` verifies the loop program between lowering and scheduling."""

import pytest
import torch

import firebrick
from firebrick import pipeline


@pytest.mark.compiler
def test_programs_are_checked_where_asked_for(monkeypatch):
    seen = []
    plain = pipeline.check_loops
    monkeypatch.setattr(pipeline, "check_loops", lambda program: (seen.append(program.name), plain(program)))
    x = torch.randn(3, 4)
    with torch.no_grad():
        for check in (False, True):
            firebrick.reset()
            fn = firebrick.compile(lambda x: (x + 1).softmax(-1), options={"check": check, "cache": False})
            torch.testing.assert_close(fn(x), (x + 1).softmax(-1))
            assert len(seen) == check
