"""Lowering: ATen graphs to loop programs."""

from __future__ import annotations

from firebrick.lower.graph_lowering import RULES, lower

__all__ = ["RULES", "lower"]
