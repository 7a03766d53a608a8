"""What an operation is called where people read it."""

from __future__ import annotations

from typing import Any

from trident.operations.combined_values import MergedCombiner

__all__ = ["operation_name"]


def operation_name(operation: Any) -> str:
    """Return the name of an operation's class, or of the plain function that it is."""
    if isinstance(operation, MergedCombiner):
        return operation_name(operation.combiner)
    function = getattr(operation, "function", None)
    named = function if callable(function) else operation
    return str(getattr(named, "__name__", type(named).__name__))
