"""What an error said is told of a program that differs, also where only its type is compared."""

from tests.fuzz.__main__ import cause_of
from tests.fuzz.compare import compare

PROGRAM = """
import torch
BACKEND = "firebrick"
def main(x):
    return x + 1
def drive(main, call):
    if main is not globals()["main"]:
        raise RuntimeError("what nobody would know otherwise")
    return main(torch.ones(2))
"""


def test_message_and_place():
    found = compare(PROGRAM)
    assert found.kind == "error RuntimeError for -"
    assert "in drive" in found.compiled
    assert cause_of(found.compiled) == "RuntimeError: what nobody would know otherwise"
