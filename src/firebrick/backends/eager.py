"""The backend that compiles nothing: captured graphs run on eager kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx


def eager(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the graph as it was captured."""
    return gm.forward
