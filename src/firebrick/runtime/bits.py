"""Negative and conjugate bits: memory that holds the negatives or conjugates of a tensor's numbers.

Graphs are about memory as it is. An executable gets arguments and constants without the bits, and results that have
them in eager mode get them when all is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from firebrick.errors import FirebrickError

Bits = tuple[bool, bool]
"""Whether a tensor has the conjugate and the negative bit."""


class ConstantsChanged(FirebrickError, RuntimeError):
    """A captured tensor has another dtype, device, shape or strides than its graph was compiled for."""


def bits_of(tensor: torch.Tensor) -> Bits:
    """The bits of a tensor."""
    return tensor.is_conj(), tensor.is_neg()


def toggled(tensor: torch.Tensor, bits: Iterable[bool]) -> torch.Tensor:
    """The same memory seen with these bits the other way round."""
    conjugate, negative = bits
    with torch.no_grad():
        if conjugate:
            tensor = torch._conj(tensor)
        return torch._neg_view(tensor) if negative else tensor


@dataclass(frozen=True, slots=True)
class WithBits:
    """An executable some of whose arguments, constants or results have such bits.

    inputs, outputs: position -> bits. constants: those that have bits, with what the executable has in their place.
    """

    run: Callable[..., tuple[Any, ...]]
    inputs: Mapping[int, Bits]
    outputs: Mapping[int, Bits]
    constants: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run it."""
        if any(constant.data_ptr() != plain.data_ptr() for constant, plain in self.constants):
            raise ConstantsChanged("a captured tensor lies in other memory")
        results = self.run(*[toggled(t, self.inputs.get(i, (False, False))) for i, t in enumerate(inputs)])
        return tuple([toggled(t, self.outputs.get(i, (False, False))) for i, t in enumerate(results)])
