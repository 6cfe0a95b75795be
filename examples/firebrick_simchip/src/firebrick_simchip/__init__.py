"""A simulated accelerator behind Firebrick; `firebrick.compile(model, backend="simchip")` finds it by entry point."""

from firebrick.backends.engines import engine_backend
from firebrick_simchip.chip import Chip, ChipError, Command
from firebrick_simchip.compiler import SimChip

__all__ = ["Chip", "ChipError", "Command", "SimChip", "backend", "chip"]

_compiler = SimChip(Chip())


def chip():
    """The device that the backend runs on."""
    return _compiler.chip


backend = engine_backend(_compiler)
