"""From an artifact and the tensors that it captured to something that can be called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from firebrick import _native
from firebrick.errors import CompileError, FirebrickError, LoweringError
from firebrick.report import recorder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from firebrick.artifact import Artifact

__all__ = ["ConstantsChanged", "Executable", "load"]

Executable = _native.Executable
"""A compiled graph: called with the graph's tensor inputs, it returns the tuple of its outputs."""


class ConstantsChanged(FirebrickError, RuntimeError):
    """A captured tensor has another dtype, device, shape or strides than its graph was compiled for."""


def load(artifact: Artifact, constants: Mapping[str, torch.Tensor]) -> _native.Executable:
    """Return the executable of a built artifact; `constants` binds captured tensors by name.

    Derived constants (folded, prepacked) are computed at the first call.

    Raises:
        CompileError: the artifact has units without machine code, or it can't be loaded here.
    """
    with recorder.timed("load"):
        libraries: list[_native.Library] = []
        kernels: dict[str, int] = {}
        for unit in artifact.units:
            if unit.name not in artifact.code:
                raise CompileError(f"unit {unit.name} of {artifact.name} was not built")
            try:
                library = _native.Library(artifact.code[unit.name], f"firebrick:{artifact.name}:{unit.name}")
                kernels.update((name, library.symbol(name)) for name in unit.kernels)
            except (OSError, KeyError) as error:
                raise CompileError(f"unit {unit.name} of {artifact.name} can't be loaded: {error}") from None
            libraries.append(library)
        table = dict(artifact.table)
        tensors = [constants[name] for name in table["consts"]]
        return _native.Executable(
            table=table,
            kernels=kernels,
            resolve=resolve,
            constants=tensors,
            sources=table["sources"],
            refresh=_Refresh(table),
            changed=ConstantsChanged,
            libraries=libraries,
        )


def resolve(kind: str, name: str) -> Any:
    """What the table names, as Python's object: an op, dtype, device, layout or memory format.

    Raises:
        LoweringError: this torch has no such op or constant.
    """
    try:
        if kind == "op":
            namespace, _, rest = name.partition("::")
            base, _, overload = rest.partition(".")
            return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
        return torch.device(name) if kind == "device" else getattr(torch, name)
    except AttributeError:
        raise LoweringError(f"this torch has no {kind} {name}") from None


class _Refresh:
    """Runs a table's recipe: constants -> derived constants, in the order of their slots."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.slots = table["slots"]
        self.views = table["views"]
        self.calls = [(resolve("op", row[1]), *row[2:]) for row in table["recipe"]]
        self.const_slots = [i for i, row in enumerate(self.slots) if row[0] == "const"]
        self.derived_slots = [i for i, row in enumerate(self.slots) if row[0] == "derived"]

    def __call__(self, constants: list[torch.Tensor]) -> list[torch.Tensor]:
        values = dict(zip(self.const_slots, constants, strict=True))
        # Derived constants live as long as the executable, so they must not become inference tensors of one call.
        with recorder.timed("prepack"), torch.inference_mode(False), torch.no_grad():
            for function, args, _, positional, keywords, outs, *_ in self.calls:
                given = [self._value(arg, values) for arg in args]
                results = function(*given[:positional], **dict(zip(keywords, given[positional:], strict=True)))
                results = results if isinstance(results, (tuple, list)) else (results,)
                for slot, result in zip(outs, results, strict=False):
                    if slot is not None:
                        values[slot] = result
        recorder.count("recipes run")
        return [values[slot] for slot in self.derived_slots]

    def _value(self, arg: list[Any], values: Mapping[int, torch.Tensor]) -> Any:
        tag = arg[0]
        if tag == "n":
            return None
        if tag == "t":
            return self._view(arg[1], values)
        if tag == "l":
            return [self._value(item, values) for item in arg[1]]
        return resolve(arg[1], arg[2]) if tag == "e" else arg[1]

    def _view(self, index: int, values: Mapping[int, torch.Tensor]) -> torch.Tensor:
        slot, sizes, strides, offset, _ = self.views[index]
        base = values[slot].detach()
        if [sizes, strides, offset] == [self.slots[slot][2], self.slots[slot][3], 0]:
            return base
        return base.as_strided(sizes, strides, base.storage_offset() + offset)
