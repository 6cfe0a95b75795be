"""Functional forms of operators of others that write to arguments and have none, `firebrick_written::NAMESPACE__NAME`.

    other::core(Tensor a, Tensor(a!) out) -> Tensor
    firebrick_written::other__core(Tensor a, Tensor out) -> (Tensor, Tensor)

It writes to copies, which it returns behind the operator's own results.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

_NAMESPACE = "firebrick_written"
_library = torch.library.Library(_NAMESPACE, "DEF")


@cache
def written_form(op: OpOverload) -> OpOverload | None:
    """The functional form of an operator, defined when it is first asked for; None if it can't have one."""
    schema = op._schema
    names = [a.name for a in schema.arguments]
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    fresh = [r.alias_info is None for r in schema.returns]
    others = [a for a in (*schema.arguments, *schema.returns) if a.alias_info is not None and not a.alias_info.is_write]
    tensors = all(str(a.type) == "Tensor" for a in (*written, *schema.returns))
    if others or not written or not tensors or fresh != sorted(fresh, reverse=True) or "__" in op.namespace:
        return None
    own, results = sum(fresh), sum(fresh) + len(written)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        arguments_of = {**dict(zip(names, args, strict=False)), **kwargs}
        copies = {a.name: arguments_of[a.name].clone() for a in written}
        returned = op(**{**arguments_of, **copies})
        every = (*((returned if len(fresh) > 1 else (returned,))[:own]), *copies.values())
        return every if results > 1 else every[0]

    def meta(*args: Any, **kwargs: Any) -> Any:
        if own:
            return kernel(*args, **kwargs)
        arguments_of = {**dict(zip(names, args, strict=False)), **kwargs}
        every = tuple(torch.empty_like(arguments_of[a.name]) for a in written)
        return every if results > 1 else every[0]

    name = f"{op.namespace}__{op._opname}" + (f".{op._overloadname}" if op._overloadname != "default" else "")
    arguments = re.sub(r"Tensor\(\w+!\)", "Tensor", str(schema).partition("(")[2].rpartition(") -> ")[0])
    returns = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    _library.define(f"{name}({arguments}) -> {returns}", tags=tuple(op.tags))
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    _library.impl(name, meta, "Meta")
    packet = getattr(getattr(torch.ops, _NAMESPACE), f"{op.namespace}__{op._opname}")
    return getattr(packet, op._overloadname)


def overload_of(name: str) -> OpOverload:
    """The operator "namespace::name.overload"; raises AttributeError: this torch has no such operator."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    if namespace == _NAMESPACE:
        form = written_form(overload_of(rest.replace("__", "::", 1)))
        if form is None:
            raise AttributeError(name)
        return form
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
