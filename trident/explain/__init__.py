"""Describes a topology before it runs: as text, as a drawing, and state by state."""

from trident.explain.descriptions import describe
from trident.explain.drawing import to_dot, to_mermaid
from trident.explain.text import explain

__all__ = ["describe", "explain", "to_dot", "to_mermaid"]
