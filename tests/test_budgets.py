"""Budgets: the package stays small. Raising one takes its own commit with the reason."""

import ast
from dataclasses import fields
from pathlib import Path

from firebrick.config import Config

PACKAGE = Path(__file__).parent.parent / "src" / "firebrick"
PYTHON = sorted(PACKAGE.rglob("*.py"))
NATIVE = sorted(PACKAGE.rglob("*.[ch]"))

# Above the 30,000 of the design: it was set for the compiler, and the package also holds the plug-in layer (rules,
# partitioner, TorchScript, 7,000 lines), five opcode dialects of three Pythons, and a native runtime in C (5,000).
# The commands that look into a compile (profile, graph, report, minify) are another 2,000, and
# kernels for machines other than CPUs (targets, texts by template, programs in their memory) 800.
# Training (joint graph, partition, autograd node) is 1,300, function transforms and control flow in graphs 1,200,
# objects that take part in calls of torch, marks of other compilers and numpy scalars 400.
# Code of numpy is 900: tables of its functions, arrays as values, and their rules.
# Reads and writes at places from data, scans and windows as loops are 1,200.
# Kernels of dense and depthwise convolutions are 700.
# The table of what built-in callables take, by which wrong calls raise as in plain Python, and kinds of functions: 210.
# That continuations own what they are given, so that objects die where they would have, is 130.
# Windows of any size and padding by a tensor's own elements are 300.
# Matmuls that read weights where they are, in two forms, are 130 more than those on packed copies.
# Steps of optimizers, graphs under no_grad and functions of libraries by name are 270.
# Assignments to `.data`, versions that writes through it leave alone, and generators are 150; attributes and
# comparisons of built-in kinds as in plain Python 60, residuals in matmuls 100.
# Choosing among forms of matmuls by measurement is 240.
# Convolutions of rows and volumes, samples of grids, bags of embeddings and elements a few places apart are 550.
# Recurrent layers are 450.
# Scatters by masks, and samples of grids in all types, are 200 more.
# Bags of embeddings, places of maxima in windows, and transposed convolutions in parts are 500.
# Parts of loops around graph breaks as functions are 620.
# Inference mode that captured code enters is 250, what is made before a graph 750.
# Panels of convolutions' weights that are made on the way, with no packed copy, are 130.
# Memory that results take from dropped ones is 30, layouts of results where PyTorch's meta kernels differ 155.
# Smaller panels of matmuls for machines with vectors of 32 bytes, and results in the memory of dropped ones, 65;
# functions of fewer lanes than SLEEF has 10, columns of matmuls in pieces 18, the bench's ratios of rounds 16,
# the order of several late stores 4, copies of numbers 2, results of equal calls 12.
PACKAGE_LINES = 67_360
# A machine has a ceiling of its own: for its folder, and what the extension and builders have for it alone.
CUDA = [
    *(PACKAGE / "targets" / "cuda").rglob("*.py"),
    *PACKAGE.glob("native/cuda.*"),
    *PACKAGE.glob("runtime/triton_*"),
]
CUDA_LINES = 4_500
FILE_LINES = 800
FUNCTION_LINES = 80
CLASS_METHODS = 30
SETTINGS = 40


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_package_lines():
    cuda = sum(map(lines, CUDA))
    assert cuda <= CUDA_LINES
    assert sum(map(lines, [*PYTHON, *NATIVE])) - cuda <= PACKAGE_LINES


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
