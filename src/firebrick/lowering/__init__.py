"""Lowering: ATen graphs to loop programs."""

from __future__ import annotations

from firebrick.lowering.lower import RULES, lower

__all__ = ["RULES", "lower"]
