"""Turns Spark's own errors into one line each, with what to do."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError

from trident.errors import EnvironmentProblem, describe

__all__ = ["JobFailed", "jvm_gone"]


# A stack frame, also inside a text of Spark: java.base/java.lang.Thread.run(Thread.java:840)
_STACK = re.compile(r"\s+(at|\.\.\.) |Driver stacktrace|[\w.$/<>]+\((Native Method|Unknown Source|\w+\.\w+:\d+)\)$")


class JobFailed(Exception):
    """Spark ended a job. The text is Spark's message without stack traces."""

    @staticmethod
    def of(error: Py4JJavaError) -> JobFailed:
        """Make one from an exception of the JVM."""
        lines = str(error.java_exception).splitlines()
        return JobFailed(" ".join(line.strip() for line in lines if line.strip() and not _STACK.match(line)))


def jvm_gone(error: Exception) -> EnvironmentProblem:
    """Return the error for a JVM that does not answer."""
    return EnvironmentProblem(
        f"Spark's JVM does not answer any more ({describe(error)}). Most often it ran out of memory, which on a local master "
        "is spark.driver.memory (1g unless spark_conf says more)"
    )
