"""Functions of Python and torch that capture knows by identity; importing the package fills the tables."""

from firebrick.capture.library import (
    autograd_functions,
    builtin_functions,
    inspection,
    operator_functions,
    polyfills,
    torch_functions,
    user_marks,
)

__all__ = [
    "autograd_functions",
    "builtin_functions",
    "inspection",
    "operator_functions",
    "polyfills",
    "torch_functions",
    "user_marks",
]
