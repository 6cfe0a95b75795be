"""From an artifact and the tensors that it captured to something that can be called."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from firebrick import _native
from firebrick.artifact import Artifact
from firebrick.errors import CompileError, LoweringError
from firebrick.report import recorder
from firebrick.runtime.bits import Bits, ConstantsChanged, WithBits, bits_of, toggled
from firebrick.runtime.cuda_graphs import recorder_of
from firebrick.runtime.training import Training
from firebrick.runtime.triton_build import open_cubin
from firebrick.runtime.unwatched import as_written
from firebrick.runtime.written import overload_of

Executable = _native.Executable
"""A compiled graph: called with the graph's tensor inputs, it returns the tuple of its outputs."""


@dataclass(frozen=True, slots=True)
class TorchViews:
    """An executable some of whose results are views that torch alone can make: of tensors of another inference mode
    than the call's, of tensors that want gradients where none are recorded, which want them too, and of other results.

    apart: (position, position of its base) of results that may be one tensor here and are two in eager mode.
    """

    run: Callable[..., tuple[Any, ...]]
    base_of: Mapping[int, tuple[int | torch.Tensor, bool]]
    apart: Sequence[tuple[int, int]]

    @classmethod
    def of(
        cls,
        run: Callable[..., tuple[Any, ...]],
        artifact: Artifact,
        inputs: Sequence[Any],
        constants: Mapping[str, torch.Tensor],
        leaves: Collection[int],
        apart: Sequence[tuple[int, int]],
    ) -> Callable[..., tuple[Any, ...]]:
        """The executable of such `inputs`, within this if need be; leaves: positions of results that want gradients."""
        table, mode = artifact.table, torch.is_inference_mode_enabled()
        tensors: list[Any] = [*inputs, *(constants[name] for name in table["consts"])]  # they have the first slots
        base_of: dict[int, tuple[int | torch.Tensor, bool]] = {}
        for i, value in enumerate(table["outputs"]):
            slot, *_, dtype = table["views"][value[1]] if value[0] == "t" else (len(tensors), None)
            # Bytes read as another type are no view, in eager mode as here.
            if slot < len(tensors) and dtype is None and (tensors[slot].is_inference() != mode or i in leaves):
                base_of[i] = (slot if slot < len(inputs) else tensors[slot]), i in leaves
        return cls(run, base_of, apart) if base_of or apart else run

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run it."""
        results = list(self.run(*inputs))
        with torch.no_grad():
            for i, (place, is_leaf) in self.base_of.items():
                like, base = results[i], inputs[place] if isinstance(place, int) else place
                results[i] = _as(like, base if is_leaf else base.detach())
        for i, base in self.apart:
            if results[i] is results[base]:
                results[i] = results[base].view_as(results[base])
        return tuple(results)


def _as(like: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """A view of `base` that shows what `like` does."""
    view = base.as_strided(like.shape, like.stride(), like.storage_offset())
    return toggled(view, [a != b for a, b in zip(bits_of(view), bits_of(like), strict=True)])


class ViewRow(NamedTuple):
    """A result that autograd takes for a view of an input or of a result; `creation` says how it was made."""

    at: int
    kind: str
    base: int
    creation: Any


@dataclass(frozen=True, slots=True)
class AutogradViews:
    """A compiled graph whose views know what they are views of, so that writing to one is an error where it must be,
    and gives its base a history where it may."""

    run: Callable[..., tuple[Any, ...]]
    rows: Sequence[ViewRow]

    def __post_init__(self) -> None:
        if isinstance(self.run, Training):  # what is made of a view has to be made of the tensor that is seen
            plan, entered = self.run.plan, {p.at for row in self.run.entered for p in row}
            self.run.views = {plan.outputs[row.at][0].at for row in self.rows} & entered

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run it."""
        results = list(self.run(*inputs))
        autograd: Any = torch._C._autograd
        for at, kind, place, creation in self.rows:
            like, base = results[at], (inputs if kind == "input" else results)[place]
            if not like._is_view():
                one, other = like.untyped_storage(), base.untyped_storage()
                if like.dtype != base.dtype or one.data_ptr() != other.data_ptr():
                    continue
                like = results[at] = _as(like, base)
            if creation != autograd.CreationMeta.DEFAULT and like._is_view():
                autograd._set_creation_meta(like, creation)
        return tuple(results)


def load(
    artifact: Artifact,
    constants: Mapping[str, torch.Tensor],
    labels: Sequence[str] | None = None,
    uncounted: Collection[int | str] = (),
    kept: Collection[object] = (),
    keep_memory: bool = False,
    driven: Mapping[str, Any] | None = None,
    graphs: bool | None = False,
    frees: bool = False,
) -> Callable[..., tuple[Any, ...]]:
    """Return the executable of a built artifact; `constants` binds captured tensors by name.

    labels: what profilers show of each kernel and library call, in order.
    uncounted: inputs by position, and constants by name, that are written to without their versions saying so, as
      through `.data`.
    kept: what lives as long as the executable.
    keep_memory: the C library is told to keep what calls free.
    driven: kernels that are loaded already (`targets.driven.Loaded`), by the device that they run on.
    graphs: whether calls on a GPU are recorded and replayed; None: where that is faster.
    frees: inputs that are given in a list are freed behind their last use.

    Derived constants (folded, prepacked) are computed at the first call.

    Raises:
        CompileError: the artifact has units without machine code, or it can't be loaded here.
    """
    with recorder.timed("load"):
        cards, driven = _cards(artifact), driven or {}
        libraries, kernels = [*driven.values()], dict[str, int]()
        for loaded in driven.values():
            kernels.update(loaded.numbers)
        for unit in artifact.units:
            if unit.name not in artifact.code:
                raise CompileError(f"unit {unit.name} of {artifact.name} was not built")
            try:
                code = artifact.code[unit.name]
                if unit.builder == "triton":
                    for card in cards:
                        module = cuda_module(code, int(card.partition(":")[2]))
                        kernels[f"{unit.kernels[0]} {card}"] = module.kernel()
                        libraries.append(module)
                    continue
                library = _native.Library(code, f"firebrick:{artifact.name}:{unit.name}")
                kernels.update((name, library.symbol(name)) for name in unit.kernels)
            except (OSError, KeyError) as error:
                raise CompileError(f"unit {unit.name} of {artifact.name} can't be loaded: {error}") from None
            libraries.append(library)
        named: Any = lambda step: ["kernel", f"{step[1]} {step[4]}", *step[2:]]  # noqa: E731  by the card's module
        steps = [named(s) if s[0] == "kernel" and s[4] in cards else s for s in artifact.table["steps"]]
        table = {**artifact.table, "steps": _with_frees(artifact.table, steps) if frees else steps}
        if uncounted:
            slots = dict(enumerate([*range(len(table["inputs"])), *table["consts"]]))
            table["mutated"] = [slot for slot in table["mutated"] if slots[slot] not in uncounted]
        bits: Mapping[str, Mapping[str, Bits]] = artifact.extra.get("bits", {})
        odd = {name: (constants[name], toggled(constants[name], pair)) for name, pair in bits.get("consts", {}).items()}
        if any(any(bits_of(plain)) for _, plain in odd.values()):
            raise CompileError(f"{artifact.name} is about tensors with negative or conjugate bits, these have none")
        tensors = [odd[name][1] if name in odd else constants[name] for name in table["consts"]]
        run = _native.Executable(
            table=table,
            kernels=kernels,
            resolve=resolve,
            constants=tensors,
            sources=table["sources"],
            refresh=_native.Wrapped(_Refresh(table, driven), None),
            changed=ConstantsChanged,
            libraries=libraries,
            keep_memory=keep_memory,
            recorder=None
            if graphs is False
            else recorder_of(artifact.name, table, resolve, graphs is True, artifact.extra.get("branches", ())),
            forced=graphs is True,
            **({"labels": list(labels)} if labels is not None else {}),
        )
        if not bits:
            return run
        inputs, outputs = ({int(i): pair for i, pair in bits[kind].items()} for kind in ("inputs", "outputs"))
        return WithBits(run, inputs, outputs, list(odd.values()))


def _with_frees(table: Mapping[str, Any], steps: Sequence[list[Any]]) -> list[list[Any]]:
    """The steps, with each input that is no result freed behind the last step that reads it."""
    views, rows = table["views"], list[list[Any]]()
    live = {*range(len(table["inputs"]))}.difference(_slots_of(table["outputs"], views))
    for kind, *row in () if table["mutated"] else reversed(steps):  # where some are written, steps are counted
        read = row[1] if kind == "kernel" else _slots_of(row[1], views) if kind == "call" else row[:1]
        dead = live.intersection(read) if kind in ("kernel", "call", "check") else ()
        rows += [["free", [*dead]], [kind, *row]] if dead else [[kind, *row]]
        live.difference_update(dead)
    return [["free", [*live]], *reversed(rows)] if rows else [*steps]


def _slots_of(args: Sequence[Any], views: Sequence[Any]) -> Iterator[int]:
    for arg in args:
        if arg[0] == "t":
            yield views[arg[1]][0]
        elif arg[0] == "l":
            yield from _slots_of(arg[1], views)


_modules: weakref.WeakValueDictionary[tuple[bytes, int], Any] = weakref.WeakValueDictionary()
_open_driver = lru_cache(maxsize=1)(lambda: _native.cuda_is_open() or _native.cuda_open("libcuda.so.1"))


def _cards(artifact: Artifact) -> list[str]:
    """The GPUs that an artifact uses; their driver is open then, also for a program that only calls torch."""
    cards = sorted({row[5] for row in artifact.table["slots"] if row[5].startswith("cuda")})
    try:
        if cards:
            _open_driver()
    except OSError as error:
        raise CompileError(f"{artifact.name} needs a GPU: {error}") from None
    return cards


def cuda_module(code: bytes, device: int) -> Any:
    """A cubin on a device, loaded once for all that use it; raises OSError: no driver, or it refuses the code."""
    module = _modules.get((code, device))
    if module is None:
        _open_driver()
        head, cubin = open_cubin(code)
        flags = head["dependent"], head.get("maps", False)
        module = _native.CudaModule(cubin, head["name"], device, head["threads"], head["shared"], *flags)
        _modules[code, device] = module
    return module


def resolve(kind: str, name: str) -> Any:
    """What the table names: an op, dtype, device, layout, memory format or number; raises LoweringError: none such."""
    try:
        if kind == "op":
            return overload_of(name)
        if kind == "complex":
            return complex(name)
        return torch.device(name) if kind == "device" else getattr(torch, name)
    except AttributeError:
        raise LoweringError(f"this torch has no {kind} {name}") from None


class _Refresh:
    """Runs a table's recipe: constants -> derived constants, in the order of their slots.

    All of it is done before the first call goes on: libraries round otherwise on weights that are not packed, and two
    calls with equal inputs give equal bits.
    """

    def __init__(self, table: Mapping[str, Any], driven: Mapping[str, Any]) -> None:
        self.driven, self.slots, self.views = driven, table["slots"], table["views"]
        self.calls = [self._call(row) for row in table["recipe"]]
        self.const_slots = [i for i, row in enumerate(self.slots) if row[0] == "const"]
        self.derived_slots = [i for i, row in enumerate(self.slots) if row[0] == "derived"]
        self.dead = self._last_reads()

    def __call__(self, constants: list[torch.Tensor]) -> list[torch.Tensor]:
        values = dict(zip(self.const_slots, constants, strict=True))
        # Derived constants live as long as the executable, so they must not become inference tensors of one call.
        with recorder.timed("derived"), as_written():
            for number, (function, args, _, positional, keywords, outs, *_) in enumerate(self.calls):
                arguments = [self._value(arg, values) for arg in args]
                results = function(*arguments[:positional], **dict(zip(keywords, arguments[positional:], strict=True)))
                results = results if isinstance(results, (tuple, list)) else (results,)
                for slot, result in zip(outs, results, strict=False):
                    if slot is not None:
                        values[slot] = result
                del arguments, results
                for slot in self.dead[number]:
                    values.pop(slot, None)
        recorder.count("recipes run")
        return [values[slot] for slot in self.derived_slots]

    def _call(self, row: list[Any]) -> tuple[Any, ...]:
        """A call of the recipe with its function; a copy to memory of a plug-in's machine takes the constant alone."""
        _, op, args, types, positional, keywords, outs, *rest = row
        slot = self.slots[outs[0]]
        if slot[5] in self.driven:
            function = partial(self.driven[slot[5]].resident, shape=slot[2], strides=slot[3])
            return function, args[:1], types, 1, [], outs, *rest
        return resolve("op", op), args, types, positional, keywords, outs, *rest

    def _last_reads(self) -> list[list[int]]:
        """For each call the slots that are of no use after it: a weight that is only a step to another is dropped."""
        lasting = {*self.derived_slots}
        dead: list[list[int]] = []
        for _, args, _, _, _, outs, *_ in reversed(self.calls):
            gone = {slot for slot in (*_slots_of(args, self.views), *outs) if slot is not None and slot not in lasting}
            lasting |= gone
            dead.append(sorted(gone))
        return dead[::-1]

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
