"""Captured graphs as programs of `torch.export`: its file format, and ONNX by its exporter.

The only file of the package that imports `torch.export`; it is imported when a program is exported or loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.export
import torch.onnx
from torch import fx

from firebrick.errors import BackendError, Unsupported
from firebrick.fakes.node_values import plain_copy

ABOUT = "firebrick.json"
"""What a program's file holds beside it."""


def exported(gm: fx.GraphModule, inputs: Sequence[torch.Tensor], varying: Sequence[Sequence[int]]) -> Any:
    """The ExportedProgram of a graph; `varying`: of each input, the dimensions whose sizes are symbols.

    Raises:
        Unsupported: torch.export can't take the graph.
    """
    module = plain_copy(gm)
    shapes = tuple([dict.fromkeys(dims, torch.export.Dim.DYNAMIC) for dims in varying])
    try:
        with torch.no_grad():
            return torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)
    except Exception as error:
        raise Unsupported(f"torch.export can't take the graph: {error}") from error


def write(program: Any, path: Path, about: str) -> None:
    """Write a program, and a text with it."""
    torch.export.save(program, path, extra_files={ABOUT: about})


def read(path: Path) -> tuple[Any, str]:
    """Read what `write` wrote."""
    files = {ABOUT: ""}
    program = torch.export.load(path, extra_files=files)
    return program, files[ABOUT]


def to_onnx(program: Any, path: Path) -> None:
    """Write a program as an ONNX model.

    Raises:
        BackendError: onnx or onnxscript is not installed, or an operator has no ONNX form.
    """
    try:
        torch.onnx.export(program, (), str(path), dynamo=True, verbose=False)
    except Exception as error:
        fix = "pip install firebrick[onnx]" if isinstance(error, ImportError) else ""
        raise BackendError(f"the program can't be written as ONNX: {error}", fix=fix) from error
