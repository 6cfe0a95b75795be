"""Exchange modules of a model: by class, by name or by predicate, with a report and an undo."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import torch
from torch import nn

from firebrick.errors import PassError
from firebrick.extend.verify import relative_error

MatchFunction = Callable[[str, nn.Module], bool]
Sample = torch.Tensor | Sequence[Any] | Mapping[str, Any]
"""One call's inputs: a tensor, positional arguments, or keyword arguments."""


@dataclass(frozen=True, slots=True)
class Swap:
    """One exchanged module."""

    name: str
    old: nn.Module
    new: nn.Module
    note: str = ""

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.name}: {type(self.old).__name__} -> {type(self.new).__name__}{note}"


@dataclass(slots=True)
class SwapReport:
    """What was exchanged, what was left and why, and the largest relative output error on the samples."""

    model: nn.Module
    swaps: list[Swap] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    error: float | None = None
    exact: bool = True
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def undo(self) -> None:
        """Put everything back. May be called once or often."""
        for swap_ in reversed(self.swaps):
            set_module(self.model, swap_.name, swap_.old)
        for restore in reversed(self._undo):
            restore()
        self.swaps.clear()
        self._undo.clear()

    def on_undo(self, restore: Callable[[], None]) -> None:
        """Also do this when the swaps are undone."""
        self._undo.append(restore)

    def __str__(self) -> str:
        kind = "" if self.exact else "; changes the mathematics"
        error = "" if self.error is None else f"; output error {self.error:.1e}"
        lines = [f"{len(self.swaps)} modules swapped{kind}{error}"]
        lines += [f"  {s}" for s in self.swaps]
        lines += [f"  left {name}: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


def swap(
    model: nn.Module,
    match: type | tuple[type, ...] | str | MatchFunction,
    make: Callable[..., nn.Module],
    *,
    samples: Sequence[Sample] = (),
    exact: bool = True,
) -> SwapReport:
    """Replace every submodule that matches by `make(module)` or `make(name, module)`, in place.

    Args:
        match: a class or several, a pattern for the dotted name (`encoder.*.act`), or a function of name and module.
        make: returns the new module; the same one, or None, leaves the module as it is.
        samples: inputs on which the model's outputs are compared before and after.
        exact: whether the new module computes the same mathematics; only reported.

    Raises:
        PassError: the model itself matches, or `make` returns something that is no module.
    """
    report = SwapReport(model, exact=exact)
    before = [tensors_of(call_with(model, s)) for s in samples]
    chosen = _matcher(match)
    replacements: dict[nn.Module, nn.Module] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not chosen(name, module) or any(name.startswith(s.name + ".") for s in report.swaps):
            continue
        if not name:
            raise PassError("the model itself matches", fix="swap a module that holds it, or narrow `match`")
        if module not in replacements:
            replacements[module] = _make(make, name, module)
        new = replacements[module]
        if new is module:
            report.left[name] = "`make` left it"
            continue
        new.train(module.training)
        set_module(model, name, new)
        report.swaps.append(Swap(name, module, new))
    if samples:
        report.error = output_error(before, [tensors_of(call_with(model, s)) for s in samples])
    return report


def _matcher(match: Any) -> MatchFunction:
    if isinstance(match, str):
        return lambda name, module: bool(name) and fnmatch.fnmatchcase(name, match)
    if isinstance(match, (type, tuple)):
        return lambda name, module: isinstance(module, match)
    if callable(match):
        return match
    raise PassError(f"can't match modules by {match!r}", fix="give a class, a name pattern or a function")


def _make(make: Callable[..., Any], name: str, module: nn.Module) -> nn.Module:
    if isinstance(make, type):
        replacement = make()
    else:
        wanted = [p for p in inspect.signature(make).parameters.values() if p.default is p.empty]
        replacement = make(name, module) if len(wanted) == 2 else make(module)
    if replacement is None:
        return module
    if not isinstance(replacement, nn.Module):
        raise PassError(f"`make` returned a {type(replacement).__name__} for {name}, not a module")
    return replacement


def set_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put `module` at a dotted name."""
    parent, _, last = name.rpartition(".")
    holder = model.get_submodule(parent) if parent else model
    if last in holder._modules:
        holder._modules[last] = module
    else:
        setattr(holder, last, module)


def call_with(model: Callable[..., Any], sample: Sample) -> Any:
    """Call a model on one sample, without gradients."""
    with torch.no_grad():
        if isinstance(sample, torch.Tensor):
            return model(sample)
        if isinstance(sample, Mapping):
            return model(**sample)
        return model(*sample)


def tensors_of(output: Any) -> list[torch.Tensor]:
    """All tensors of a model's output, in order; copies, so that in-place modules can't change them."""
    if isinstance(output, torch.Tensor):
        return [output.detach().clone()]
    if is_dataclass(output) and not isinstance(output, (type, Mapping)):
        output = vars(output)
    if isinstance(output, Mapping):
        return [t for value in output.values() for t in tensors_of(value)]
    if isinstance(output, Iterable) and not isinstance(output, (str, bytes)):
        return [t for value in output for t in tensors_of(value)]
    return []


def output_error(before: Sequence[Sequence[torch.Tensor]], after: Sequence[Sequence[torch.Tensor]]) -> float:
    """Largest relative error over all samples and outputs."""
    pairs = [(a, b) for old, new in zip(before, after, strict=True) for a, b in zip(old, new, strict=True)]
    return max((relative_error(a, b) for a, b in pairs), default=0.0)
