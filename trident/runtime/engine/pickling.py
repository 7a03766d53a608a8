"""A program as bytes for Spark's workers; what cannot be pickled is named."""

from __future__ import annotations

from typing import Any

import cloudpickle

from trident.errors import TopologyError, describe
from trident.operations.names import operation_name
from trident.runtime.engine.worker import Program, operations_of

__all__ = ["pickled"]


def pickled(program: Program) -> bytes:
    """Pickle the program for the workers; the error names an operation that cannot be pickled."""
    try:
        return bytes(cloudpickle.dumps(program))
    except Exception as error:
        raise TopologyError(_blame(program, error)) from error


def _has(node: Any, operation: Any) -> bool:
    return any(own is operation for own in [*vars(node).values(), *node.operations])


def _blame(program: Program, error: Exception) -> str:
    for fragment in program.fragments.values():
        for operation in operations_of(program, fragment.entry):
            step = next((s.id for s in fragment.steps if _has(s.node, operation)), fragment.entry)
            try:
                cloudpickle.dumps(operation)
            except Exception as own:  # noqa: BLE001  pickling runs user code
                name = operation_name(operation)
                return (
                    f"step {step!r}: {name} cannot be sent to Spark workers ({describe(own)}). It or something it closes "
                    "over holds a lock, a connection or an open file: open such things in prepare(conf, context)"
                )
    for name, emitter in program.emitters.items():
        try:
            cloudpickle.dumps(emitter)
        except Exception as own:  # noqa: BLE001  pickling runs user code
            return f"the spout of stream {name!r} cannot be sent to Spark workers ({describe(own)})"
    return f"the topology cannot be sent to Spark workers: {describe(error)}"
