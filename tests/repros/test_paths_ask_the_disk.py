"""A path is a constant, but what it asks the disk is not: `exists()` was answered once, when the code was captured."""

from datetime import timedelta
from pathlib import Path

import torch

import firebrick


def test_exists(tmp_path):
    path = tmp_path / "file"

    def f(x):
        return x + path.exists()

    compiled = firebrick.compile(f)
    assert compiled(torch.zeros(1)) == 0
    path.touch()
    assert compiled(torch.zeros(1)) == 1


def test_names_are_constants():
    def f(x):
        x = x * timedelta(hours=1).total_seconds()
        path = Path("a") / "b" / "c.tar.gz"
        return (
            x * len(path.parts),
            path.with_suffix(".x"),
            path.parent.name,
            str(path),
            path.suffixes,
            path == Path("a/b/c.tar.gz"),
        )

    compiled, x = firebrick.compile(f, fullgraph=True), torch.ones(2)
    for _ in range(2):
        (got, *rest), (want, *others) = compiled(x), f(x)
        assert torch.equal(got, want)
        assert rest == others
