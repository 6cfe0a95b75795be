"""How the operators of the `firebrick` namespace are defined."""

from __future__ import annotations

from typing import Any

import torch

LIBRARY = torch.library.Library("firebrick", "FRAGMENT")


def define(schema: str, kernel: Any, meta: Any = None, *, out: bool = False) -> Any:
    """An operator: what it computes and, by `meta`, of which shape; with `out`, also into a tensor that is given."""
    name, _, rest = schema.partition("(")
    LIBRARY.define(schema)
    LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    if meta is not None:
        LIBRARY.impl(name, meta, "Meta")
    if out:
        LIBRARY.define(f"{name}.out({rest.partition(') ->')[0]}, *, Tensor(a!) out) -> Tensor(a!)")
        LIBRARY.impl(f"{name}.out", lambda *args, out: out.copy_(kernel(*args)), "CompositeExplicitAutograd")
    return getattr(torch.ops.firebrick, name).default
