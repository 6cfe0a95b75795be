"""Functions of Python and torch that capture knows by identity; importing the package fills the tables."""

from firebrick.capture.library import (  # noqa: F401
    autograd_functions,
    builtin_functions,
    class_statements,
    copies,
    gradients,
    inspection,
    iterators,
    numpy_functions,
    optimizers,
    polyfills,
    random_functions,
    references,
    tensor_hooks,
    torch_functions,
    torch_script,
    torch_settings,
    transforms,
    user_marks,
    wrapper_functions,
)
