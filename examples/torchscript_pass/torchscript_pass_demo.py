"""C++ passes for TorchScript: built with a generated setup, switched on and off, and used from Python.

Run: python examples/torchscript_pass/torchscript_pass_demo.py
"""

import tempfile
import warnings
from pathlib import Path

import torch

from firebrick.torchscript import ScriptPass, nodes_of, optimize
from firebrick.torchscript.extension import build_extension

FOLDER = Path(__file__).parent
SOURCES = sorted((FOLDER / "csrc").glob("*.cpp"))
BUILD = Path(tempfile.gettempdir()) / "firebrick-torchscript-pass"


def load(build=BUILD):
    """Build the extension (minutes, once) and import it."""
    return build_extension("torchscript_pass", SOURCES, build, include_dirs=[str(FOLDER / "csrc")])


def program(x, y):
    """Holds one place for each pass."""
    scores = torch.matmul(x, y.transpose(-1, -2)) / 8.0
    return torch.relu(scores + scores) + scores / (scores.abs() + 1.0)


def main():
    """Show the graph before and after, through the interpreter and through `optimize`."""
    warnings.simplefilter("ignore", DeprecationWarning)
    extension = load()
    x, y = torch.randn(64, 64), torch.randn(64, 64)
    script = torch.jit.script(program)
    steps = [ScriptPass(n, getattr(extension, n)) for n in ("fuse_add_div", "fuse_add_relu", "make_groups")]
    made = optimize(script, steps, samples=[(x, y)], verify=True)
    for report in made.reports:
        print(report)
    print("operators:", ", ".join(n.kind() for n in nodes_of(made.graph) if n.kind() != "prim::Constant"))
    for _ in range(5):
        made(x, y)
    print(f"groups compiled {extension.compiles()} times, run {extension.runs()} times")


if __name__ == "__main__":
    main()
