"""Rules for random generators: Python's `random`, `torch.Generator`, seeds."""

from __future__ import annotations

import random
import types
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.library.known_callables import CODE_HANDLERS, handles
from firebrick.capture.values.random_state import (
    NUMBER_METHODS,
    RandomNumbers,
    make_generator,
    make_numbers,
    seed_default,
)

if TYPE_CHECKING:
    from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value


handles(torch.Generator)(make_generator)
handles(random.Random)(make_numbers)


handles(torch.manual_seed)(lambda interp, args, kwargs: seed_default(interp, torch.manual_seed, args, kwargs))


def _method_rule(name: str, interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    owner = args[0].realize() if args else None
    if not isinstance(owner, RandomNumbers):
        raise Break("random-generator", f"random.Random.{name}() is called")
    return owner.call_method(interp, name, args[1:], kwargs)


for _name in sorted(NUMBER_METHODS):
    _function = vars(random.Random).get(_name)
    if isinstance(_function, types.FunctionType):
        CODE_HANDLERS[_function.__code__] = partial(_method_rule, _name)
