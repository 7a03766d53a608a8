"""What an operation is called where people read it."""

from __future__ import annotations

from typing import Any

from trident.operations.combined_values import MergedCombiner
from trident.operations.operation_methods import WrapsFunction

__all__ = ["function_name", "operation_name"]


def operation_name(operation: Any) -> str:
    """Return the name of an operation's class, or of the plain function that it is."""
    if isinstance(operation, MergedCombiner):
        return operation_name(operation.combiner)
    wrapped = operation.function if isinstance(operation, WrapsFunction) else None
    return function_name(wrapped if callable(wrapped) else operation)


def function_name(function: Any) -> str:
    """Return a function's name; of a callable object without one, that of its class."""
    return str(getattr(function, "__name__", type(function).__name__))
