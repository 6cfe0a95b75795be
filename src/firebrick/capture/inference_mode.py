"""Inference mode in captured code: where it is on, which tensors were made there, and what becomes of them.

A graph runs outside of inference mode: for backends, what the program does inside it is done without recording
gradients. Of each fake tensor it is known how eager mode would have made it, and the results of the graph become such
tensors behind it. What eager mode refuses to do with them breaks.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch.autograd.graph import saved_tensors_hooks

from firebrick.capture.breaks.catalogue import Break

if TYPE_CHECKING:
    from firebrick.capture.graph import GraphBuilder
    from firebrick.capture.values.tensor import TensorValue

_MADE = "_firebrick_made"


class MadeAs(enum.Enum):
    """How inference mode shows in a tensor."""

    INFERENCE = "an inference tensor"
    DETACHED = "an inference tensor, detached outside inference mode"
    VIEW = "a view, made in inference mode, of an ordinary tensor"


def made_of(fake: torch.Tensor) -> MadeAs | None:
    """How a fake tensor's original was made; None for ordinary tensors."""
    return fake.__dict__.get(_MADE)


def is_inference(fake: torch.Tensor) -> bool:
    """Whether a fake tensor's original is an inference tensor."""
    return made_of(fake) in (MadeAs.INFERENCE, MadeAs.DETACHED)


def storage_of(fake: torch.Tensor) -> int:
    """What tells memory apart; 0 where there is none that a strided tensor could share."""
    return fake.untyped_storage()._cdata if fake.layout is torch.strided else 0


class InferenceMode:
    """The mode in one capture, nested graphs included.

    on: whether it is, where the capture has got to.
    around: whether it is on where the graph runs; then eager mode's rules hold by themselves.
    """

    def __init__(self) -> None:
        self.on = self.around = torch.is_inference_mode_enabled()
        self.seen = self.on  # whether it was on, or a tensor made there was met

    @property
    def in_region(self) -> bool:
        """Whether captured code has switched it on, so that the graph runs in another mode."""
        return self.on and not self.around

    def switch(self, on: bool) -> None:
        """Go on in inference mode, or outside; raises Break: what the graph makes would be inference tensors."""
        if self.around and not on:
            raise Break("unsupported-call", "torch.inference_mode(False) is entered in inference mode")
        self.on, self.seen = on, True

    def met(self, tensor: torch.Tensor, fake: torch.Tensor) -> None:
        """Keep how a tensor from outside was made."""
        if tensor.is_inference():
            self.seen = True
            self._mark(fake, MadeAs.INFERENCE)

    def give(self, like: torch.Tensor, fake: torch.Tensor) -> None:
        """Let one fake tensor be made as another one was."""
        self._mark(fake, made_of(like))

    def note(self, node: fx.Node, fake: torch.Tensor) -> None:
        """Keep how a result of a call is made: in new memory, or as a view of an argument."""
        if not self.seen:
            return
        while isinstance(node.args[0] if node.args else None, type(node)) and not isinstance(
            node.args[0].meta["val"],  # type: ignore[union-attr]
            torch.Tensor,
        ):
            node = node.args[0]  # type: ignore[assignment]  # an item of what a call returns
        place = storage_of(fake)
        kind = MadeAs.INFERENCE if self.on else None
        for operand in (used.meta["val"] for used in node.all_input_nodes):
            if isinstance(operand, torch.Tensor) and place and storage_of(operand) == place and _is_view(operand, fake):
                kind = MadeAs.VIEW if self.on else made_of(operand)
                if is_inference(operand):
                    kind = MadeAs.INFERENCE if self.on or fake._is_view() else MadeAs.DETACHED
                break
        self._mark(fake, kind)

    def check_used(self, fakes: Sequence[torch.Tensor]) -> None:
        """Refuse gradients through a view made in inference mode: they lead nowhere; raises Break: it is used."""
        if not self.seen or self.on or not torch.is_grad_enabled():
            return
        if any(made_of(fake) is MadeAs.VIEW and fake.requires_grad for fake in fakes):
            raise Break("unsupported-operation", "a view that was made in inference mode is used where gradients are")

    def check_nested(self, fakes: Sequence[torch.Tensor]) -> None:
        """Refuse what runs a function on tensors; raises Break: it is in a region, or given inference tensors."""
        if self.in_region or (not self.around and any(made_of(fake) for fake in fakes)):
            raise Break("unsupported-call", "a transform or a branch meets inference mode or a tensor made there")

    def check_written(self, written: Sequence[torch.Tensor], inference_memory: set[int]) -> None:
        """Refuse writes to inference tensors outside of inference mode.

        inference_memory: memory of such tensors that were there before the graph, which runs outside in any case.

        Raises:
            Break: it is one.
        """
        if self.around:
            return
        if any(storage_of(fake) in inference_memory or (is_inference(fake) and not self.on) for fake in written):
            raise Break("unsupported-operation", "an inference tensor is written to outside inference mode")

    def check_array(self, fake: torch.Tensor) -> None:
        """Refuse a new tensor on the memory of an array, which stands for the tensor that the array is on; raises
        Break: it would be made otherwise than that one."""
        if not self.around and self.on is not is_inference(fake):
            raise Break("numpy", "a tensor on an array is made, one of them in inference mode")

    def check_result(self, fake: torch.Tensor) -> None:
        """Refuse results that can't be made outside of the graph; raises Break: it is one."""
        kind = None if self.around else made_of(fake)
        if kind is not None and (fake.layout is not torch.strided or fake.is_conj() or fake.is_neg()):
            raise Break("unsupported-operation", f"{kind.value} that is conjugated, negated or sparse leaves the graph")
        if kind is MadeAs.VIEW:
            try:
                _ = fake.grad_fn
            except RuntimeError as error:
                raise Break(
                    "unsupported-operation", f"{kind.value} that was written to since leaves the graph"
                ) from error

    @contextlib.contextmanager
    def noting(self, fakes: Sequence[torch.Tensor], on: bool) -> Iterator[list[torch.Tensor]]:
        """What a call with these tensors saves for its backward, if `on`; raises Break: inference tensors are saved."""
        saved, places = list[torch.Tensor](), {storage_of(fake) for fake in fakes if is_inference(fake)}
        note: Any = lambda tensor: saved.append(tensor) or tensor  # type: ignore[func-returns-value]  # noqa: E731
        with saved_tensors_hooks(note, note) if on or places else contextlib.nullcontext():
            yield saved
        if not places.isdisjoint(map(storage_of, saved)):
            raise Break("unsupported-operation", "an inference tensor is saved for a backward")

    def base_of(self, fake: torch.Tensor) -> torch.Tensor | None:
        """What such a view of a tensor with gradients is made of anew; it requires them as its base does."""
        base = fake._base if made_of(fake) is MadeAs.VIEW and not self.around else None
        return base if base is not None and base.requires_grad else None

    def as_made(
        self, graph: GraphBuilder, arguments: Sequence[TensorValue], compiled: Callable[..., Any]
    ) -> Callable[..., Any]:
        """What was compiled of a graph, with the results that its program makes, on the same memory."""
        origins = [None if self.around else made_of(value.fake) for value in graph.outputs]
        if not any(origins):
            return compiled
        if all(one is MadeAs.INFERENCE for one in origins) and _can_run_inside(graph, arguments):
            return _inside(compiled)
        remade: dict[int, Remade] = {}
        for place, (one, value) in enumerate(zip(origins, graph.outputs, strict=True)):
            if one is MadeAs.VIEW and value.fake._is_view():
                base = graph.known(value.fake._base)
                if base is None:  # an argument may be a view itself
                    base = next((given for given in arguments if given.fake._base is value.fake._base), None)
                given = arguments.index(base) if base in arguments else None
                result = graph.outputs.index(base) if base in graph.outputs else None
                remade[place] = Remade(one, given, result, None if base is None else base.obj)
            elif one is not None and one is not MadeAs.VIEW:
                remade[place] = Remade(one)
        return _behind(compiled, remade) if remade else compiled

    def _mark(self, fake: torch.Tensor, kind: MadeAs | None) -> None:
        if kind is not None:
            fake.__dict__[_MADE] = kind


class Remade(NamedTuple):
    """How a result is made anew; of a view, the place of its base among inputs or results, or the base itself."""

    made: MadeAs
    given: int | None = None
    result: int | None = None
    base: torch.Tensor | None = None

    def of(self, tensor: torch.Tensor, inputs: Sequence[Any], results: Sequence[Any]) -> torch.Tensor:
        """The result, for one on the same memory; inference mode is on."""
        if self.made is MadeAs.INFERENCE:  # one that was detached may have a version, which a view of it has not
            return tensor.view_as(tensor) if tensor.is_inference() else _on_memory_of(tensor)
        if self.made is MadeAs.DETACHED:
            tensor = _on_memory_of(tensor)
            with _mode(False):
                return tensor.detach()
        base = tensor._base if self.base is None else self.base
        if self.given is not None or self.result is not None:
            base = inputs[self.given] if self.given is not None else results[self.result]  # type: ignore[index]
        return tensor if base is None else base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


_mode = torch._C._InferenceMode


def _on_memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, as an inference tensor; inference mode is on."""
    if tensor.is_inference():
        return tensor
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor)  # type: ignore[call-overload,no-any-return]


def _behind(compiled: Callable[..., Any], results: Mapping[int, Remade]) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        outputs = list(compiled(*inputs))
        with _mode(True):
            for place, how in results.items():
                outputs[place] = how.of(outputs[place], inputs, outputs)
        return tuple(outputs)

    return call


def _inside(compiled: Callable[..., Any]) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        with _mode(True):
            return tuple([_on_memory_of(tensor) for tensor in compiled(*inputs)])

    return call


def _can_run_inside(graph: GraphBuilder, arguments: Sequence[TensorValue]) -> bool:
    """Whether a graph only makes tensors with memory of their own, which are inference tensors if the mode is on."""
    given = {storage_of(fake) for fake in (*(value.fake for value in arguments), *(c[2] for c in graph.constants()))}
    made = {storage_of(value.fake) for value in graph.outputs}
    return (
        len(made) == len(graph.outputs) and made.isdisjoint(given) and not graph.changed() and not graph.changed_blindly
    )


def _is_view(base: torch.Tensor, fake: torch.Tensor) -> bool:
    """Whether a tensor on another one's memory is a view for autograd; one that reads it as another type is none."""
    return base.dtype == fake.dtype or base.is_complex() != fake.is_complex()
