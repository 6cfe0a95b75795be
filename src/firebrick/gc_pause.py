"""Python's garbage collector, kept still while a compile makes many objects that live.

Walking them again and again would take a tenth of a compile's time.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

BUILDER = "firebrick builder"
"""What the names of threads that build kernels begin with."""
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
"""Gives what the C library keeps of freed memory back to the system; glibc alone has it."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collect nothing inside; afterwards as before, and what a compile leaves behind is given back.

    Without that, it would stay on top of what the program itself needs from then on. The collector is the whole
    process's: where other threads of Python run, who may rely on it, it is left alone; those that build are ours.
    """
    was_on = gc.isenabled() and sum(not thread.name.startswith(BUILDER) for thread in threading.enumerate()) == 1
    if was_on:
        gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
            gc.collect(0)  # the next object would start it anyway: all that was made since is young
            if _TRIM is not None:
                _TRIM(0)
