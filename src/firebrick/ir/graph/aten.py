"""The ATen-level graph that autodiff makes, passes rewrite and lowering reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from firebrick.runtime.bits import Bits

BY_LIBRARY = "by library"
"""Key in the meta of nodes that loops must not compute."""


@dataclass(frozen=True, slots=True)
class Alias:
    """An output that shares storage with an input, a constant or another output: the base seen through as_strided.

    dtype: set where the bytes are read as another type of the same size.
    """

    base: str  # "input" or "output" or "const"
    index: int | str
    shape: tuple[Any, ...]  # numbers, or expressions where sizes are symbols
    strides: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype | None = None


@dataclass(slots=True)
class AtenGraph:
    """A functional, decomposed graph.

    gm: placeholders in call order (tensors only), get_attr nodes for constants, call_function nodes whose targets
      are OpOverloads (ATen, prims or custom), one output node with a flat tuple. Every node has meta["val"]
      (FakeTensor, or a list of them, or a number) and meta["stack"] (UserLocations, innermost last; may be empty).
      No op mutates its arguments. Output tuple: first the new values of `mutated`, then the user's outputs.
    mutated: placeholder names (or constant names) whose final value is output[i]; the caller's tensor gets it by copy.
    outputs: one entry a user output: None (value of the graph's output as it is) or Alias (rebuild it).
    constants: attribute name on gm -> the real tensor (parameters, buffers and other captured tensors).
    frozen: names of constants that may be folded and prepacked (parameters and buffers in inference that the graph
      does not mutate).
    recipe: how derived constants are computed from frozen ones: get_attr nodes of constants and calls of OpOverloads,
      each with meta["val"]. Where `gm` uses a derived constant it has a get_attr node whose target is the name of
      the recipe's node. No output node. None: nothing is derived.
    bits: of inputs and constants by name, and of user outputs by position, that the program sees with the conjugate or
      negative bit; the graph is about their memory as it is.
    """

    gm: fx.GraphModule
    constants: dict[str, torch.Tensor]
    mutated: list[str] = field(default_factory=list)
    outputs: list[Alias | None] = field(default_factory=list)
    frozen: frozenset[str] = frozenset()
    name: str = "graph"
    recipe: fx.Graph | None = None
    bits: dict[str | int, Bits] = field(default_factory=dict)

    def bits_by_place(self) -> dict[str, dict[str, Bits]]:
        """The bits as an artifact keeps them: of inputs and outputs by position, of constants by name."""
        names = [n.name for n in self.gm.graph.nodes if n.op == "placeholder"]
        return {
            "inputs": {str(names.index(n)): bits for n, bits in self.bits.items() if n in names},
            "consts": {str(n): bits for n, bits in self.bits.items() if n in self.constants},
            "outputs": {str(n): bits for n, bits in self.bits.items() if isinstance(n, int)},
        }

    def derived(self) -> frozenset[str]:
        """Names of derived constants: the recipe's calls."""
        if self.recipe is None:
            return frozenset()
        return frozenset(n.name for n in self.recipe.nodes if n.op == "call_function")
