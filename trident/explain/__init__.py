"""Describes a topology before it runs: as text, as a drawing, and state by state.

Begin with `text.py` (`explain`, and `describe` of the states and their guarantees); `drawing.py` draws.
All read the plan that would run.
"""

from trident.explain.drawing import to_dot, to_mermaid
from trident.explain.text import Explanation, describe, explain

__all__ = ["Explanation", "describe", "explain", "to_dot", "to_mermaid"]
