"""The rules of the source tree that no linter knows: forbidden imports and lazy imports."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "firebrick"
FILES = sorted(PACKAGE.rglob("*.py"))
FORBIDDEN = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "torch.export")


def imported_names(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_file_imports_no_peer(path):
    if path.parent.name == "backends":
        return
    tree = ast.parse(path.read_text())
    found = [f"{path.name}:{line} imports {name}" for name, line in imported_names(tree) if name.startswith(FORBIDDEN)]
    assert not found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_file_has_no_import_inside_a_function(path):
    tree = ast.parse(path.read_text())
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = (n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom))
            found += [f"{path.name}:{n.lineno}" for n in inner]
    assert not found, "optional extras are imported with importlib.import_module in one named place"


def test_only_config_reads_the_environment():
    readers = {p.name for p in FILES if "os.environ" in p.read_text() or "os.getenv" in p.read_text()}
    # All but the first pass the environment on to child processes.
    allowed = {"config.py", "bench.py", "build.py", "triton_build.py"}
    assert readers <= allowed


def loaded_with(graph, start):
    """What importing a module runs: the modules that it imports, and the packages around them."""
    loaded, todo = set(), [start]
    while todo:
        module = todo.pop()
        names = [found.split(".") for found in graph.find_modules_directly_imported_by(module)]
        around = {".".join(parts[:end]) for parts in names for end in range(2, len(parts) + 1)}
        running = (f"{start}.", f"{module}.")
        new = {name for name in around - loaded if not any(inner.startswith(f"{name}.") for inner in running)}
        loaded |= new
        todo += new
    return loaded


def test_imports_for_types_alone_are_of_modules_that_load_this_one():
    graph = grimp.build_graph("firebrick", exclude_type_checking_imports=True)
    needless = []
    for path in FILES:
        own = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        blocks = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
        for name, line in (row for block in blocks for row in imported_names(block)):
            module = name if name in graph.modules else name.rpartition(".")[0]
            folders = own.split(".")[1], module.split(".")[1]
            if module == "firebrick._native" or folders == ("runtime", "ir"):
                continue  # types of the extension, which has none, and of what runs without the compiler
            if own not in loaded_with(graph, module):
                needless.append(f"{path.name}:{line} imports {name}")
    assert not needless, "what is imported anyway needs no TYPE_CHECKING"


def test_no_import_cycles():
    graph = grimp.build_graph("firebrick", exclude_type_checking_imports=True)
    modules = TopologicalSorter()
    for module in graph.modules:
        # The extension is no Python module, so `from firebrick import _native` reads as the package itself.
        found = graph.find_modules_directly_imported_by(module) - {"firebrick"}
        modules.add(module, *found)
    modules.prepare()  # raises and names a cycle
