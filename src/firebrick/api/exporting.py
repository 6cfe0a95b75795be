"""`export`: one call of a program as one graph, to be saved, run without its code, and given to torch.export and ONNX.

The graph is captured as `compile(fullgraph=True)` does it, so that what can't be is an error with its place. It is
kept as an ExportedProgram of flat tensors; beside it stand the signature and the trees of arguments and results.
"""

from __future__ import annotations

import importlib
import inspect
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from firebrick.api import argument_tree
from firebrick.api.ahead import OneGraph, SizesTaken, one_graph
from firebrick.api.compiling import original_callable
from firebrick.api.recorded_calls import Call, signature_of
from firebrick.api.settings import Settings
from firebrick.capture.marks import mark_dynamic
from firebrick.errors import CacheError, ConfigError

Dims = bool | int | Iterable[int] | Mapping[int, tuple[int | None, int | None] | str | None]

_FORMAT, _ABOUT = 1, "firebrick.json"


def _torch_export() -> Any:
    return importlib.import_module("firebrick.backends.torch_export")


def export(
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: bool | Mapping[str, Dims] | None = None,
) -> Program:
    """Capture a call as one graph that can be saved, loaded without the program's code, and converted.

    Args:
        model: a function or module; its parameters and buffers are in the program.
        args, kwargs: an example of the call. Tensors may differ in later ones, all else is a constant.
        dynamic: sizes that vary: of all tensors (True), or by argument: True, dimensions, or dimension -> (smallest,
            largest), name or `torch.export.Dim`.

    Raises:
        Unsupported: the call is not one graph; the message names the place.
        ConfigError: the call, its result or its effects can't be a program's, or a size can't vary.
    """
    original = original_callable(model)
    signature = signature_of(original)
    call, tensors = Call.of(signature, args, kwargs or {})
    if call.problem:
        raise ConfigError(f"the call can't be exported: {call.problem}")
    mine = [tensor.detach().clone() for tensor in tensors]
    if isinstance(dynamic, dict):
        _mark(call, mine, dynamic)
    graph = _Graph()
    settings = Settings.make(graph, fullgraph=True, dynamic=True if dynamic is True else None if dynamic else False)
    inputs, result = one_graph(original, signature, call, mine, graph, settings)
    return graph.program(signature, call, inputs, result)


def _mark(call: Call, tensors: list[torch.Tensor], dynamic: Mapping[str, Dims]) -> None:
    values = dict(call.tree[1])
    for name, dims in dynamic.items():
        if name not in values:
            raise ConfigError(f"dynamic names {name}, which the call has not", fix=f"name one of {', '.join(values)}")
        numbers: list[int] = []
        argument_tree.read(values[name], lambda i, found=numbers: found.append(i))  # type: ignore[misc]
        for tensor in (tensors[i] for i in numbers):
            axes: Any = range(tensor.dim()) if dims is True else [dims] if type(dims) is int else dims or ()
            for dim, spec in (axes if isinstance(axes, dict) else dict.fromkeys(axes)).items():
                pair = spec if isinstance(spec, tuple) else (getattr(spec, "min", None), getattr(spec, "max", None))
                mark_dynamic(tensor, dim, *(n or None if type(n) is int else None for n in pair))


class _Graph(OneGraph):
    """Keeps the graph."""

    takes_symbols = keeps_sizes = True

    def take(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        self.gm, self.examples = gm, example_inputs

    def program(self, signature: inspect.Signature, call: Call, inputs: list[int], result: list[Any]) -> Program:
        """What was captured."""
        sizes = self.sizes_taken(call, inputs)
        varying = [[d for d, n in enumerate(shape) if type(n) is str] for shape in sizes.shapes]
        about = {
            "format": _FORMAT, "signature": argument_tree.write_signature(signature), "call": call.tree,
            **sizes._asdict(), "result": result,
        }  # fmt: skip
        return Program(_torch_export().exported(self.gm, self.examples, varying), about)


class Program(nn.Module):
    """One graph, to be called as what it was made of. `firebrick.compile` makes it fast."""

    def __init__(self, exported: Any, about: dict[str, Any]) -> None:
        super().__init__()
        self.exported, self.about = exported, about
        self.sizes = SizesTaken(*(about[name] for name in SizesTaken._fields))
        self.graph_module = exported.module()
        self._signature = argument_tree.read_signature(about["signature"])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph.

        Raises:
            ConfigError: it is not for this call.
        """
        call, tensors = Call.of(self._signature, args, kwargs)
        if call.problem or call.tree != self.about["call"]:
            made_for = Call(self.about["call"], self.about["tensors"]).show()
            raise ConfigError(f"the program is for ({made_for}), and the call has ({call.problem or call.show()})")
        if why := self.sizes.problem(tensors):
            raise ConfigError(why)
        results = self.graph_module(*[tensors[i] for i in self.about["inputs"]])
        return argument_tree.read(self.about["result"], lambda i: results[i] if i >= 0 else tensors[-1 - i], dicts=True)

    def save(self, path: str | Path) -> None:
        """Write a file that `firebrick.load` reads, and `torch.export.load` too. Ends in .pt2 by custom."""
        _torch_export().write(self.exported, Path(path), json.dumps(self.about))

    def to_torch(self) -> Any:
        """The `torch.export.ExportedProgram` of the graph, from its tensors to a flat tuple."""
        return self.exported

    def to_onnx(self, path: str | Path) -> None:
        """Write the graph as an ONNX model; needs the extra `onnx`.

        Raises:
            BackendError: the extra is missing, or an operator has no ONNX form.
        """
        _torch_export().to_onnx(self.exported, Path(path))


def load_program(path: str | Path) -> Program | None:
    """Read what `Program.save` wrote; None if the file is another one.

    Raises:
        CacheError: it is corrupt, or of another version.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if not any(name.endswith(_ABOUT) for name in archive.namelist()):
                return None
    except (OSError, zipfile.BadZipFile):
        return None
    try:
        exported, text = _torch_export().read(Path(path))
        about = json.loads(text)
    except Exception as error:
        raise CacheError(f"{path} can't be read: {error}") from error
    if about["format"] != _FORMAT:
        raise CacheError(f"{path} has format {about['format']}, this version reads {_FORMAT}", fix="export it again")
    return Program(exported, about)
