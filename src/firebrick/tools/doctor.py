"""`firebrick doctor`: what this machine offers and what is missing."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table

from firebrick import runtime
from firebrick.config import Config
from firebrick.errors import FirebrickError
from firebrick.targets.by_device import find_targets


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the report: ok is False for what stops or slows Firebrick; `fix` says what to do."""

    name: str
    value: str
    ok: bool = True
    fix: str = ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _torch_facts(config: Config) -> list[Fact]:
    facts = [Fact("torch", torch.__version__), Fact("threads", str(torch.get_num_threads()))]
    gpu = torch.cuda.is_available()
    if gpu:
        card = torch.cuda.get_device_properties()
        parts = (
            f"sm_{card.major}{card.minor}, {card.multi_processor_count} multiprocessors, {card.total_memory >> 30} GiB"
        )
        driven = "cuda" in find_targets(("cuda",), config)
        facts.append(Fact("GPU", f"{card.name}: {parts}", driven, "the loader must find libcuda.so.1"))
    else:
        facts.append(Fact("GPU", "none"))
    triton = _version("triton")
    facts.append(Fact("triton", triton or "not installed", bool(triton) or not gpu, "pip install triton"))
    return facts


def _compiler_fact(config: Config) -> Fact:
    try:
        compiler = runtime.find_compiler(config)
    except FirebrickError as error:
        return Fact("C++ compiler", "none: graphs run on eager kernels", False, error.fix)
    return Fact("C++ compiler", f"{compiler.name}: {compiler.path} ({compiler.version})")


def _cache_facts(config: Config) -> list[Fact]:
    state: dict[str, Any] = runtime.cache_state(config)
    free = shutil.disk_usage(state["existing_parent"]).free // 2**20
    return [
        Fact(
            "cache",
            f"{state['path']}: {state['entries']} entries, {state['bytes'] / 2**20:.1f} MiB of {config.cache_size_mb}",
        ),
        Fact(
            "cache writable",
            "yes" if state["writable"] else "no: every process compiles anew",
            state["writable"],
            "set FIREBRICK_CACHE_DIR",
        ),
        Fact("disk free", f"{free} MiB", free > 200, "free some space, or set FIREBRICK_CACHE_DIR"),
    ]


def examine(config: Config) -> list[Fact]:
    """Collect the facts; nothing is changed."""
    return [
        Fact("firebrick", _version("firebrick") or "source tree"),
        Fact("python", f"{platform.python_version()} ({sys.executable})"),
        *_torch_facts(config),
        *(Fact(f"{device} kernels", target.level()) for device, target in find_targets((), config).items()),
        _compiler_fact(config),
        *_cache_facts(config),
        *(Fact(name, _version(name) or "not installed") for name in ("transformers", "onnxruntime", "openvino")),
    ]


def show(facts: list[Fact]) -> Table:
    """Return the facts as a table, with the fix below what is wrong."""
    out = Table(show_header=False, box=None)
    for fact in facts:
        mark = "[green]ok[/]" if fact.ok else "[red]no[/]"
        out.add_row(mark, fact.name, fact.value)
        if not fact.ok and fact.fix:
            out.add_row("", "", f"[yellow]fix:[/] {fact.fix}")
    return out
