"""A module that is imported by captured code was captured itself, and classes of it were asked for attributes too early."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "capture"))
from compiling import Compiled

MODULE = """
class Registry:
    __slots__ = ()

    def __getattr__(self, name):
        return self.table[name]  # endless while there is no table

    def __init__(self):
        helper([1])


def helper(items):
    return len(items)


registry = Registry()
"""


def test_import_in_a_compiled_function(tmp_path, monkeypatch):
    (tmp_path / "imported_late.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def f(x):
        y = x + 1
        import imported_late

        return y * imported_late.helper([1, 2])

    compiled = Compiled(f)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 4.0))
    assert not [frame.name for frame in compiled.frames if frame.name.startswith(("Registry", "_"))]


def test_class_whose_attributes_lead_to_attributes():
    class Registry:
        __slots__ = ()

        def __getattr__(self, name):
            return self.table[name]

        def size(self, x):
            print(x.sum().item(), end="")
            return len(type(self).__name__)

    def f(x):
        return x + Registry().size(x)

    assert torch.equal(Compiled(f)(torch.ones(3)), torch.full((3,), 9.0))
