"""Budgets: the package stays small. Raising one takes its own commit with the reason."""

import ast
from dataclasses import fields
from pathlib import Path

from firebrick.config import Config

PACKAGE = Path(__file__).parent.parent / "src" / "firebrick"
PYTHON = sorted(PACKAGE.rglob("*.py"))
NATIVE = sorted(PACKAGE.rglob("*.[ch]"))

# Ceilings only fall. One folder may fill its room, all of them together may not.
PACKAGE_LINES = 74_968
FOLDER_LINES = {
    "": 1_708,
    "api": 2_813,
    "backends": 1_353,
    "capture": 23_371,
    "extend": 2_629,
    "fakes": 3_208,
    "fuse": 1_867,
    "host": 459,
    "ir": 5_259,
    "lower": 3_820,
    "native": 6_036,
    "passes": 3_090,
    "runtime": 2_181,
    "targets": 7_469,
    "tools": 3_780,
    "torchscript": 1_174,
    "trace": 4_770,
}
"""Folder of the package -> its ceiling; "" is what lies in none."""
# A machine has a ceiling of its own: for its folder, and what the extension and builders have for it alone.
CUDA = [
    *(PACKAGE / "targets" / "cuda").rglob("*.py"),
    *PACKAGE.glob("native/cuda*"),
    *PACKAGE.glob("runtime/triton_*"),
    *PACKAGE.glob("runtime/cuda_*"),
    *PACKAGE.glob("passes/cuda_*"),
    *PACKAGE.glob("lower/cuda_*"),
]
CUDA_LINES = 5_356
FILE_LINES = 800
FUNCTION_LINES = 80
CLASS_METHODS = 30
SETTINGS = 40


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def lines_by_folder() -> dict[str, int]:
    sizes = dict.fromkeys(FOLDER_LINES, 0)
    for path in {*PYTHON, *NATIVE} - set(CUDA):
        folder = "/".join(path.relative_to(PACKAGE).parts[:-1][:1])
        sizes[folder] = sizes.get(folder, 0) + lines(path)
    return sizes


def test_package_lines():
    assert sum(map(lines, CUDA)) <= CUDA_LINES
    assert sum(lines_by_folder().values()) <= PACKAGE_LINES


def test_each_folder_keeps_its_ceiling():
    over = {folder: size for folder, size in lines_by_folder().items() if size > FOLDER_LINES.get(folder, 0)}
    assert not over, "a new folder gets a ceiling with the commit that makes it"
    assert not [folder for folder, size in lines_by_folder().items() if not size], "a folder is gone"


def test_file_lines():
    assert not [f"{p.name}: {lines(p)}" for p in [*PYTHON, *NATIVE] if lines(p) > FILE_LINES]


def test_function_lines():
    long = []
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = node.end_lineno - node.lineno + 1
                if size > FUNCTION_LINES:
                    long.append(f"{path.name}:{node.lineno} {node.name}: {size}")
    assert not long


def test_class_methods():
    big = []
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                count = sum(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for n in node.body)
                if count > CLASS_METHODS:
                    big.append(f"{path.name}:{node.lineno} {node.name}: {count}")
    assert not big


def test_settings():
    assert len(fields(Config)) <= SETTINGS


def test_names_of_test_files_are_unique():
    # pytest imports them by their bare name, so the second of two would not be collected
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)
