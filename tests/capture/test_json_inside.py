"""`json.dumps` of what is constant is evaluated as code is captured."""

from __future__ import annotations

import json
from typing import Any

import torch
from compiling import check


def dumped(x: Any, sizes: Any) -> Any:
    text = json.dumps({"rows": len(x), "sizes": sizes, "none": None, "flag": True}, sort_keys=True, indent=1)
    try:
        json.dumps({1, 2})
    except TypeError as error:
        return x * len(text), text, str(error), json.dumps([1.5, "é"], ensure_ascii=False)
    return x


def by_the_program(x: Any) -> Any:
    return x + 1, json.dumps({"a": {1}}, default=sorted)


def test_constants() -> None:
    check(dumped, torch.ones(3), [1, {"a": (2, 3)}])


def test_code_of_the_program_runs_in_python() -> None:
    check(by_the_program, torch.ones(3), graphs=None, breaks=None)
