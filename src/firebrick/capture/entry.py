"""A frame for functions of libraries that a user compiles by name, such as an optimizer's `step`.

Frames of libraries are not captured by themselves, only inlined into the frames that call them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any

from firebrick.capture.interpreter.frame_tracer import is_library


def _calling(library_function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return library_function(*args, **kwargs)

    return call


_CODE: CodeType = _calling(len).__code__


def is_entry(code: CodeType) -> bool:
    """Whether code is that of such a frame."""
    return code.co_code == _CODE.co_code and code.co_freevars == _CODE.co_freevars


def entry_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `fn` from a frame that can be captured; `fn` itself if its own can be."""
    inner = fn.__func__ if isinstance(fn, MethodType) else fn
    if not isinstance(inner, FunctionType) or not is_library(inner.__globals__.get("__name__")):
        return fn
    code = inner.__code__
    call: Any = _calling(fn)
    names = ("co_name", "co_qualname", "co_filename", "co_firstlineno")
    call.__code__ = call.__code__.replace(**{name: getattr(code, name) for name in names})
    return call
