"""Builds TorchScript passes and kernels that are written in C++: the setup is generated, the result cached."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from firebrick.errors import CompileError

_SETUP = '''"""Generated: builds {name} against PyTorch."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name={name!r},
    version="0.1.0",
    ext_modules=[
        CppExtension(
            name={name!r},
            sources={sources!r},
            include_dirs={include_dirs!r},
            libraries={libraries!r},
            extra_compile_args=["-O2", "-g0"],
        )
    ],
    cmdclass={{"build_ext": BuildExtension}},
)
'''


def generate_setup(
    name: str, sources: Sequence[str], *, include_dirs: Sequence[str] = (), libraries: Sequence[str] = ()
) -> str:
    """The text of a setup.py that builds `sources` as the Python module `name`."""
    return _SETUP.format(name=name, sources=list(sources), include_dirs=list(include_dirs), libraries=list(libraries))


def build_extension(
    name: str,
    sources: Sequence[Path],
    folder: Path,
    *,
    include_dirs: Sequence[str] = (),
    libraries: Sequence[str] = (),
    timeout: float = 900,
) -> Any:
    """Build and import a C++ extension. What is in `folder` already for the same sources is taken from there.

    Against PyTorch's headers a file takes about a minute.

    Raises:
        CompileError: there is no compiler, or it failed; the message carries its first errors.
    """
    setup = generate_setup(name, [str(s) for s in sources], include_dirs=include_dirs, libraries=libraries)
    home = folder / _digest(setup, sources)
    built = _module_file(home, name)
    if built is None:
        home.mkdir(parents=True, exist_ok=True)
        (home / "setup.py").write_text(setup)
        _run(home, timeout)
        built = _module_file(home, name)
    if built is None:
        raise CompileError(f"the build of {name} left no module in {home.name}")
    spec = importlib.util.spec_from_file_location(name, built)
    if spec is None or spec.loader is None:
        raise CompileError(f"{name} can't be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_built(
    name: str, sources: Sequence[Path], folder: Path, *, include_dirs: Sequence[str] = (), libraries: Sequence[str] = ()
) -> bool:
    """Whether `build_extension` would find the module there."""
    setup = generate_setup(name, [str(s) for s in sources], include_dirs=include_dirs, libraries=libraries)
    return _module_file(folder / _digest(setup, sources), name) is not None


def _digest(setup: str, sources: Sequence[Path]) -> str:
    hasher = hashlib.blake2b(digest_size=10)
    parts = [*[s.read_text() for s in sources], setup.splitlines()[0], str(torch.__version__), sys.version]
    for part in parts:
        hasher.update(part.encode())
    return hasher.hexdigest()


def _module_file(home: Path, name: str) -> Path | None:
    path = home / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    return path if path.exists() else None


def _run(home: Path, timeout: float) -> None:
    if shutil.which("c++") is None and shutil.which("g++") is None:
        raise CompileError("no C++ compiler is installed", fix="Debian: apt-get install g++")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(home), "--build-temp", str(home / "o")]
    try:
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise CompileError(f"the build took longer than {timeout:.0f} s") from None
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
        raise CompileError("the extension did not build:\n" + "\n".join(lines[:12] or done.stderr.splitlines()[-12:]))
