"""What each instruction means to the symbolic interpreter; importing the package fills the dispatch table."""

from firebrick.capture.semantics import control, data, stack

__all__ = ["control", "data", "stack"]
