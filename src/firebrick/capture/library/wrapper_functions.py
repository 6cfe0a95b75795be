"""Functions around tensors of classes with a `__torch_dispatch__`: distributed tensors, nested ones, the user's own."""

from __future__ import annotations

from typing import Any

import torch

from firebrick.capture.library.known_callables import FOLDABLE_MODULES, GRAPH_FUNCTIONS, NAMED, TRANSPARENT_MODULES
from firebrick.capture.values.wrapper import call_with_objects

_DISTRIBUTED = "torch.distributed.tensor"


NAMED.update(
    {
        (f"{_DISTRIBUTED}._api", f"DTensor.{name}"): call_with_objects
        for name in ("from_local", "to_local", "full_tensor", "redistribute")
    }
)
FOLDABLE_MODULES.add(f"{_DISTRIBUTED}.placement_types")
TRANSPARENT_MODULES.update({f"{_DISTRIBUTED}._api", f"{_DISTRIBUTED}.parallel.style"})
_to_padded: Any = torch._C._nested.nested_to_padded_tensor  # type: ignore[attr-defined]
GRAPH_FUNCTIONS[id(_to_padded)] = _to_padded
