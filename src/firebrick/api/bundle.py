"""`save` and `load`: a compiled module or function as one file that runs without a compiler and without its source.

The file is a zip archive: machine code and host tables of each call that was compiled, the weights in the safetensors
format, and what results are made of. Nothing in it is pickled, and checksums of all of it are looked at first. What
is loaded is machine code all the same: load only files that you trust.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
import json
import platform
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from firebrick import _native, backends, runtime
from firebrick.api import argument_tree
from firebrick.api.ahead import Program, SizesTaken, ahead, serves
from firebrick.api.compiling import compiled_calls, compiled_settings, original_callable
from firebrick.api.exporting import Program as Exported
from firebrick.api.exporting import load_program
from firebrick.api.recorded_calls import Call
from firebrick.artifact import checksum, decode, encode
from firebrick.config import Config
from firebrick.errors import CacheError, ConfigError, FirebrickError
from firebrick.runtime.source import whole_file
from firebrick.targets.by_device import find_targets
from firebrick.trace import graph_key, literals
from firebrick.version import VERSION

_FORMAT = 6
_WEIGHTS = "weights.safetensors"


def save(compiled: Any, path: str | Path) -> None:
    """Write what was compiled, for the calls that it was compiled for, to a file that `load` reads.

    The program is saved as it is now: its weights, attributes and globals; gradients are not.

    Raises:
        ConfigError: `compiled` was not compiled by Firebrick or never called, or something of it can't be saved.
        Unsupported: a call is not one graph; the message names the break.
    """
    settings = compiled_settings(compiled)
    if settings is None:
        raise ConfigError("save takes a compiled module or function, as firebrick.compile returns it")
    if settings.backend != backends.FIREBRICK or settings.passes:
        raise ConfigError("only what firebrick itself compiled without passes of one's own can be saved")
    calls = compiled_calls(compiled)
    if calls is None or calls.signature is None or not calls.noted:
        raise ConfigError("nothing was compiled yet", fix="call it once for each shape that the file is to run")
    config = replace(settings.config, measure=settings.config.measure is True)
    timed = config.measure or config.autotune
    programs = [ahead(original_callable(compiled), calls.signature, call, config) for call in calls.noted]
    for call in (one.among(calls.noted) for one in calls.noted[::-1] if config.dynamic is not False):
        if (config.dynamic or call.varying) and not any(
            serves(p.call, p.sizes, call, call.examples()) for p in programs if p.sizes
        ):
            with contextlib.suppress(FirebrickError):  # each size that was compiled has a program of its own
                programs.append(ahead(original_callable(compiled), calls.signature, call, config, many=True))
    weights, rows = _weights(programs)
    devices = sorted({row[5] for p in programs for row in p.artifact.table["slots"]})
    targets = find_targets({device.partition(":")[0] for device in devices}, config)
    manifest = {
        "format": _FORMAT,
        "firebrick": VERSION,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "devices": devices,
        "levels": {n: [t.level(), t.model() if timed else ""] for n, t in targets.items()},
        "state": graph_key.state_text("cuda" in targets),
        "signature": argument_tree.write_signature(calls.signature),
        "programs": [
            {
                "call": p.call.tree,
                "tensors": p.call.tensors,
                "inputs": p.inputs,
                "result": p.result,
                "constants": row,
                "sizes": p.sizes,
            }
            for p, row in zip(programs, rows, strict=True)
        ],
    }
    path = Path(path)
    with whole_file(path, path.parent) as file:
        _write(file, manifest, programs, weights)
        Path(file.name).chmod(0o644)


def _weights(programs: list[Program]) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Tensors to write, each memory once, and for each program: constant -> [name, shape, strides, device]."""
    tensors: dict[str, torch.Tensor] = {}
    names: dict[Any, str] = {}
    rows = []
    for program in programs:
        row = {}
        for constant, t in program.constants.items():
            flat = t.detach()
            if not flat.is_contiguous():  # all memory between its first and its last element
                span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
                flat = flat.as_strided((span,), (1,))
            key = (t.data_ptr(), flat.nbytes, t.dtype) if t.numel() else (constant, t.shape, t.dtype)
            if key not in names:
                name = names[key] = constant if constant not in tensors else f"{constant}_{len(tensors)}"
                tensors[name] = flat
            row[constant] = [names[key], list(t.shape), list(t.stride()), str(t.device)]
        rows.append(row)
    spans = sorted((*_native.tensor_span(t), name) for name, t in tensors.items() if t.numel())
    for (_, end, _, one), (start, _, _, other) in itertools.pairwise(spans):
        if start < end:
            raise ConfigError(f"the tensors {one} and {other} share a part of their memory, which can't be saved")
    return tensors, rows


def _write(file: Any, manifest: dict[str, Any], programs: list[Program], weights: Mapping[str, torch.Tensor]) -> None:
    sums: dict[str, str] = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for i, program in enumerate(programs):
            data = encode(program.artifact)
            sums[f"program{i}.fb"] = checksum(data)
            archive.writestr(f"program{i}.fb", data)
        hasher = hashlib.blake2b(digest_size=20)
        with archive.open(_WEIGHTS, "w", force_zip64=True) as member:

            def keep(data: bytes | memoryview) -> None:
                hasher.update(data)
                member.write(data)

            write_tensors(weights, keep)
        sums[_WEIGHTS] = hasher.hexdigest()
        text = json.dumps({**manifest, "checksums": sums})
        archive.writestr("manifest.json", text)
        archive.comment = f"firebrick {checksum(text.encode())}".encode()


def load(path: str | Path) -> Bundle | Exported:
    """Read what `save` or `export` wrote: an object to call as what was saved.

    No compiler is needed, nor the program's source.

    Raises:
        CacheError: the file is not such a file, is corrupt, or was saved for another torch, machine or level of it.
    """
    if (program := load_program(path)) is not None:
        return program
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _manifest(archive, path)
            sums = manifest["checksums"]
            artifacts = []
            for i in range(len(manifest["programs"])):
                data = archive.read(f"program{i}.fb")
                if checksum(data) != sums[f"program{i}.fb"]:
                    raise CacheError(f"program {i} of {path} is corrupt")
                artifacts.append(decode(data))
            hasher = hashlib.blake2b(digest_size=20)

            def fill(buffer: memoryview) -> int:
                count: int = member.readinto(buffer)  # type: ignore[attr-defined]
                hasher.update(buffer[:count])
                return count

            with archive.open(_WEIGHTS) as member:
                weights = read_tensors(fill)
            if hasher.hexdigest() != sums[_WEIGHTS]:
                raise CacheError(f"the weights of {path} are corrupt")
    except (OSError, KeyError, zipfile.BadZipFile, ValueError, RuntimeError, EOFError) as error:
        raise CacheError(f"{path} is not a file that firebrick.save wrote, or is corrupt: {error}") from error
    return Bundle(manifest, artifacts, weights)


def _manifest(archive: zipfile.ZipFile, path: str | Path) -> dict[str, Any]:
    """Read what the file says of itself, and check that it can run here."""
    text = archive.read("manifest.json")
    if archive.comment != f"firebrick {checksum(text)}".encode():
        raise CacheError(f"{path} is corrupt, or firebrick.save did not write it")
    manifest: dict[str, Any] = json.loads(text)
    again = "save it again with the versions and on a machine like those that are to run it"
    if manifest["format"] != _FORMAT:
        raise CacheError(f"{path} has format {manifest['format']}, this version reads {_FORMAT}", fix=again)
    if manifest["torch"] != torch.__version__:
        raise CacheError(f"{path} was saved with torch {manifest['torch']}, this is {torch.__version__}", fix=again)
    for index in (int(device.partition(":")[2]) for device in manifest["devices"] if device.startswith("cuda:")):
        if index >= torch.cuda.device_count():
            raise CacheError(f"{path} needs GPU {index}, this machine has {torch.cuda.device_count()}", fix=again)
    here = find_targets(manifest["levels"], Config())
    for device, (level, model) in manifest["levels"].items():
        mine = f"{here[device].level()} ({here[device].model()})" if device in here else f"no {device}"
        runs = device in here and here[device].runs_level(level) and model in ("", here[device].model())
        if manifest["machine"] != platform.machine() or not runs:
            raise CacheError(
                f"{path} is for {manifest['machine']} with {level} {model}, this is {platform.machine()} with {mine}",
                fix=here[device].portable if device in here else again,
            )
    return manifest


class Bundle(nn.Module):
    """A loaded file. Called as what was saved, for calls like those that it was saved with; it has no gradients."""

    def __init__(self, manifest: dict[str, Any], artifacts: list[Any], weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._signature = argument_tree.read_signature(manifest["signature"])
        self._state, self._on_gpu = manifest["state"], "cuda" in manifest["levels"]
        self._programs = []
        views: dict[Any, torch.Tensor] = {}
        for row, artifact in zip(manifest["programs"], artifacts, strict=True):
            constants = literals.read(artifact.extra.get("literals", {}))
            for name, (weight, shape, strides, device) in row["constants"].items():
                key = (weight, tuple(shape), tuple(strides))
                if key not in views:
                    weights[weight] = weights[weight].to(device)
                    views[key] = weights[weight].as_strided(shape, strides)
                constants[name] = views[key]
            call = Call(row["call"], row["tensors"])
            run = runtime.load(artifact, constants, graphs=None)
            sizes = None if row["sizes"] is None else SizesTaken(*row["sizes"])
            self._programs.append((call, row["inputs"], row["result"], sizes, run))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program that was saved for a call like this one.

        Raises:
            ConfigError: there is none, or gradients are needed.
        """
        call, tensors = Call.of(self._signature, args, kwargs)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise ConfigError("a saved program has no gradients", fix="call it under torch.no_grad()")
        for recorded, inputs, result, sizes, run in self._programs:
            if serves(recorded, sizes, call, tensors):
                self._check(tensors)
                arguments = [tensors[i] for i in inputs]
                results = run(*arguments)
                return argument_tree.read(result, lambda i, r=results: r[i] if i >= 0 else tensors[-1 - i])  # type: ignore[misc]
        what = call.problem or call.show()
        known_calls = "\n    ".join(
            recorded.show() + ("" if sizes is None else f", sizes {sizes.shapes}")
            for recorded, _, _, sizes, _ in self._programs
        )
        raise ConfigError(
            f"no program was saved for a call with {what}; there are programs for\n    {known_calls}",
            fix="call the compiled module like this before it is saved",
        )

    def _check(self, tensors: list[torch.Tensor]) -> None:
        if len(tensors) > 1 and len({t.untyped_storage()._cdata for t in tensors}) < len(tensors):
            raise ConfigError("arguments share memory", fix="clone one of them")
        state = graph_key.state_text(self._on_gpu)
        if state != self._state:
            raise ConfigError(
                f"torch's state is not as it was when the program was saved:\n{self._state}\nbut\n{state}"
            )

    @property
    def __signature__(self) -> inspect.Signature:
        return self._signature


_NAMES: Mapping[torch.dtype, str] = {
    **{getattr(torch, f"float{bits}"): f"F{bits}" for bits in (64, 32, 16)},
    **{getattr(torch, f"int{bits}"): f"I{bits}" for bits in (64, 32, 16, 8)}, torch.complex64: "C64",
    torch.uint8: "U8", torch.bool: "BOOL", torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def write_tensors(tensors: Mapping[str, torch.Tensor], write: Callable[[bytes | memoryview], Any]) -> None:
    """Write contiguous tensors; wide types come first, which keeps all of them aligned.

    Raises:
        ConfigError: the format has no name for a dtype.
    """
    header: dict[str, Any] = {}
    place = 0
    rows = sorted(tensors.items(), key=lambda row: -row[1].element_size())
    for name, tensor in rows:
        if tensor.dtype not in _NAMES:
            raise ConfigError(f"{name} is {tensor.dtype}, which can't be saved")
        offsets = [place, place := place + tensor.nbytes]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write(len(text).to_bytes(8, "little") + text)
    for _, tensor in rows:
        if tensor.nbytes:
            write(_bytes_of(tensor))


def read_tensors(read: Callable[[memoryview], Any]) -> dict[str, torch.Tensor]:
    """Read tensors, each into memory of its own; `read` fills a buffer.

    Raises:
        CacheError: the file is truncated or not of this format.
    """
    try:
        header: dict[str, Any] = json.loads(_filled(int.from_bytes(_filled(8, read), "little"), read))
        rows = sorted(header.items(), key=lambda row: row[1]["data_offsets"])
        tensors, place = {}, 0
        for name, row in rows:
            tensor = torch.empty(row["shape"], dtype=_DTYPES[row["dtype"]])
            if row["data_offsets"] != [place, place := place + tensor.nbytes]:
                raise CacheError(f"the weights are corrupt: {name} has another size than its place")
            if tensor.nbytes:
                _fill(_bytes_of(tensor), read)
            tensors[name] = tensor
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError) as error:
        if isinstance(error, CacheError):
            raise
        raise CacheError(f"the weights are corrupt: {error}") from error
    return tensors


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat: Any = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def _filled(size: int, read: Callable[[memoryview], Any]) -> bytes:
    if size > 1 << 30:
        raise CacheError("the weights are corrupt: their header has no end")
    data = bytearray(size)
    _fill(memoryview(data), read)
    return bytes(data)


def _fill(buffer: memoryview, read: Callable[[memoryview], Any]) -> None:
    while buffer:
        count = read(buffer)
        if not count:
            raise CacheError("the weights are truncated")
        buffer = buffer[count:]
