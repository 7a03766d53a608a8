"""What Spark says when something fails, in one line."""

from __future__ import annotations

import sys

from trident.errors import SpoutError, describe

__all__ = ["said_by_spark"]

_LONGEST = 500


def said_by_spark(error: BaseException) -> str:
    """Return the line of an error that says what happened; Spark's texts hold whole stack traces."""
    from py4j.protocol import Py4JJavaError

    if isinstance(error, SpoutError):
        return str(error)
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else describe(error)
    _, failed, cause = text.partition("terminated with exception: ")  # the end of a streaming query, and what it was
    text = cause.partition("=== Streaming Query ===")[0] if failed else text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # An error of a Python worker: its traceback, the error itself at the end.
    raised = [line for line in lines if "Traceback" in line]
    line = lines[-1] if raised else lines[0]
    if line.startswith("ModuleNotFoundError"):
        return (
            f"{line[:_LONGEST]}. Is {sys.executable} the Python of Spark's workers? "
            "If not, set PYSPARK_PYTHON to it before Spark starts"
        )
    return line[:_LONGEST]
