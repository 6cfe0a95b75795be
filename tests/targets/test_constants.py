"""Each number that CPU kernels are made by is in the table of docs/architecture.md, which says what it is."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATHS = (*(ROOT / "src" / "firebrick" / "targets" / "cpu").glob("*.py"), ROOT / "src/firebrick/passes/tuning.py")


def is_number(node):
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(map(is_number, node.elts))
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return (
        is_number(node.operand) if isinstance(node, ast.UnaryOp) else type(getattr(node, "value", "")) in (int, float)
    )


def numbers():
    """File and name of the numbers at the top of the modules."""
    for path in PATHS:
        for node in ast.parse(path.read_text()).body:
            for target in node.targets if isinstance(node, ast.Assign) else ():
                several = isinstance(target, ast.Tuple)
                values = node.value.elts if several and isinstance(node.value, ast.Tuple) else [node.value]
                for name, value in zip(target.elts if several else [target], values):
                    if isinstance(name, ast.Name) and is_number(value):
                        yield path.stem, name.id


def test_all_numbers_are_in_the_table():
    text = (ROOT / "docs" / "architecture.md").read_text().partition("### Numbers in the sources")[2]
    table, seen = text.partition("\n\n|")[2].partition("\n\n")[0], []
    for part in re.findall(r"`([a-z_]+)`: ((?:(?:, | and )?`[A-Z_]+`)+)", table):
        seen += [(part[0], name) for name in re.findall(r"`([A-Z_]+)`", part[1])]
    assert len(seen) == len(set(seen))
    assert not set(numbers()) - set(seen)
