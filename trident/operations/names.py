"""What an operation is called where people read it."""

from __future__ import annotations

import re
from typing import Any

from trident.operations.builtin import Last
from trident.operations.combined_values import MergedCombiner
from trident.operations.struct_queries import StructQuery
from trident.roles import has

__all__ = ["function_name", "operation_name", "step_label"]

_WORD = re.compile(r"[A-Za-z0-9_-]+")


def operation_name(operation: Any) -> str:
    """Return the name of an operation's class, with its order if it has one, or of the plain function that it is."""
    if isinstance(operation, MergedCombiner):
        return operation_name(operation.combiner)
    if isinstance(operation, StructQuery):
        return operation_name(operation.query)
    if isinstance(operation, Last) and operation.by is not None:
        return f"{type(operation).__name__}-by-{operation.by}"
    wrapped = operation.function if has(operation, "function") else None
    return function_name(wrapped if callable(wrapped) else operation)


def step_label(call: str, operation: Any, state: str | None = None) -> str:
    """Return what a step is called: its operation, and its state if it has one; the call where the operation has no name."""
    name = operation_name(operation)
    label = name if _WORD.fullmatch(name) else call  # `<lambda>`
    return label if state is None else f"{label}@{state}"


def function_name(function: Any) -> str:
    """Return a function's name; of a callable object without one, that of its class."""
    return str(getattr(function, "__name__", type(function).__name__))
