"""Functions of Python and torch that capture knows by identity; importing the package fills the tables."""

from firebrick.capture.library import (
    builtin_functions,
    inspection,
    operator_functions,
    polyfills,
    torch_functions,
    user_marks,
)

__all__ = ["builtin_functions", "inspection", "operator_functions", "polyfills", "torch_functions", "user_marks"]
