"""What knows a machine stands behind its target: words of machines, and where in the package they may stand.

Comments and docstrings count: a fact of a processor in a stage's comment is a decision that the stage took for it.
"""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "firebrick"
FILES = {
    p.relative_to(PACKAGE).as_posix(): p.read_text()
    for p in sorted(PACKAGE.rglob("*.[pch]*"))
    if p.suffix in (".py", ".c", ".h")
}
CPU = ("targets/cpu/", "native/cpu")

WORDS = {
    "vector instructions": (
        r"(?i)\bsimd|\bavx|\bneon\b|\bsse\d|_mm\d*_|vectori[sz]|vector (lanes?|regist\w+|instr\w+|width)",
        CPU,
    ),
    "lanes": (r"(?i)\blanes?\b", (*CPU, "targets/", "native/")),  # native: of guard plans
    "OpenMP": (r"(?i)openmp|\bomp_|\bgomp_|pragma omp", CPU),
    "thread counts": (
        r"num_threads|thread_num|max_threads|cpu_count|getaffinity|\.threads\b|num-cores|\bcores\b",
        (*CPU, "targets/cuda/", "native/cuda"),
    ),
    "caches": (r"(?i)\bl[123](d|i)?(_\w+)?\b(?!\()|-level cache|cache.?lines?\b|prefetch\(", (*CPU, "targets/cuda/")),
    "settings of a machine": (r"config\.(simd|threads)\b", CPU),
    "addresses": (r"from_address|memmove|c_void_p|void ?\*", ("native/", "targets/")),
}
"""What is looked for -> its pattern, and the folders and files that may have it."""

ALLOWED = {
    ("config.py", "vector instructions"): "the names of settings, which users write; the target reads them",
    ("config.py", "OpenMP"): "the same",
    ("config.py", "thread counts"): "the same",
    ("backends/tvm", "vector instructions"): "how another compiler's loops are to run on the CPU is told to it",
    ("backends/tvm", "lanes"): "the same",
    ("backends/", "thread counts"): "another engine is to use as many threads as torch does",
    ("capture/", "thread counts"): "a program may ask torch for its threads; the answer is guarded",
    ("tools/", "vector instructions"): "a setting that is switched off to find a culprit",
    ("tools/", "thread counts"): "reports say how many threads torch had",
    ("runtime/build.py", "thread counts"): "how many compilers run at once",
}
"""(file or folder, what it has) -> why it may. A row that nothing needs any more is an error."""


def hits(what):
    pattern, places = WORDS[what]
    for path, text in FILES.items():
        if not path.startswith(places):
            for number, line in enumerate(text.splitlines(), 1):
                if re.search(pattern, line):
                    yield path, f"{path}:{number}: {line.strip()}"


@pytest.mark.parametrize("what", WORDS)
def test_words_of_machines_stand_behind_targets(what):
    excused = tuple(place for place, row in ALLOWED if row == what)
    found = list(hits(what))
    assert not [line for path, line in found if not path.startswith(excused)]
    assert not [place for place in excused if not any(path.startswith(place) for path, _ in found)], "rows of no use"


def test_the_words_are_found_where_they_may_stand():
    for what, (pattern, places) in WORDS.items():
        assert any(re.search(pattern, text) for path, text in FILES.items() if path.startswith(places)), what


def computed_with(tree):
    """Lines of a module that compute with an address: that of a tensor, or what a function keeps of one."""
    for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)] or [tree]:
        kept = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and has_address(node.value, set())
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.BinOp | ast.AugAssign):
                sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
                if any(has_address(side, kept) for side in sides):
                    yield node.lineno


def has_address(node, kept):
    """Whether a value is an address itself; one that is an argument of a call is not."""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return name in ("data_ptr", "_cdata", "tensor_span", "addressof")
    if isinstance(node, ast.Name):
        return node.id in kept
    if isinstance(node, ast.Attribute):
        return node.attr == "_cdata"
    return isinstance(node, ast.BinOp) and (has_address(node.left, kept) or has_address(node.right, kept))


def test_no_arithmetic_on_addresses_outside_of_targets():
    found = [
        f"{path}:{line}"
        for path, text in FILES.items()
        if path.endswith(".py") and not path.startswith("targets/")
        for line in computed_with(ast.parse(text))
    ]
    assert not found


def test_arithmetic_on_addresses_is_noticed():
    for text in ("x.data_ptr() + 4", "def f(x):\n    a = x.data_ptr()\n    return 8 * n + a", "p = t._cdata - 1"):
        assert list(computed_with(ast.parse(text))), text
    assert not list(computed_with(ast.parse("same = x.data_ptr() == y.data_ptr()\nn = size(x.data_ptr()) + 1")))
