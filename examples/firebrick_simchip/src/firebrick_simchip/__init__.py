"""A simulated accelerator behind Firebrick; `firebrick.compile(model, backend="simchip")` finds it by entry point."""

from firebrick.backends.engines import engine_backend
from firebrick_simchip.chip import Chip, Command, Operand
from firebrick_simchip.compiler import SimChip, SimTarget
from firebrick_simchip.kernels import ChipError, assemble

__all__ = ["Chip", "ChipError", "Command", "Operand", "SimChip", "SimTarget", "assemble", "backend", "chip"]

_compiler = SimChip(Chip())


def chip():
    """The device that the backend runs on."""
    return _compiler.chip


backend = engine_backend(_compiler)
