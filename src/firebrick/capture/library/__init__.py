"""Functions of Python and torch that capture knows by identity; importing the package fills the tables."""

from firebrick.capture.library import (  # noqa: F401
    autograd_functions,
    builtin_functions,
    class_statements,
    gradients,
    inspection,
    iterators,
    numpy_functions,
    optimizers,
    polyfills,
    quantized_ops,
    references,
    torch_functions,
    torch_settings,
    transforms,
    user_marks,
)
