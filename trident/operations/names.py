"""What an operation is called where people read it."""

from __future__ import annotations

from typing import Any

from trident.operations.builtin import Last
from trident.operations.combined_values import MergedCombiner
from trident.operations.operation_methods import WrapsFunction
from trident.operations.struct_queries import StructQuery

__all__ = ["function_name", "operation_name"]


def operation_name(operation: Any) -> str:
    """Return the name of an operation's class, with its order if it has one, or of the plain function that it is."""
    if isinstance(operation, MergedCombiner):
        return operation_name(operation.combiner)
    if isinstance(operation, StructQuery):
        return operation_name(operation.query)
    if isinstance(operation, Last) and operation.by is not None:
        return f"{type(operation).__name__}-by-{operation.by}"
    wrapped = operation.function if isinstance(operation, WrapsFunction) else None
    return function_name(wrapped if callable(wrapped) else operation)


def function_name(function: Any) -> str:
    """Return a function's name; of a callable object without one, that of its class."""
    return str(getattr(function, "__name__", type(function).__name__))
