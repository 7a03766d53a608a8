"""Turns Spark's own errors into one line each, with what to do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from trident.errors import EnvironmentProblem, describe
from trident.runtime.engine.executor_problems import executor_problem
from trident.runtime.engine.job_bounds import bound_reached, way_out
from trident.runtime.steps.failures import Failure, failure_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.errors import PySparkException

__all__ = ["JobFailed", "job_failure", "jvm_gone"]


# A stack frame, also inside a text of Spark: java.base/java.lang.Thread.run(Thread.java:840)
_STACK = re.compile(r"\s+(at|\.\.\.) |Driver stacktrace|[\w.$/<>]+\((Native Method|Unknown Source|\w+\.\w+:\d+)\)$")


class JobFailed(Exception):
    """Spark ended a job. The text is Spark's message without stack traces."""

    @staticmethod
    def of(said: str) -> JobFailed:
        """Make one from the text of an exception of the JVM."""
        lines = said.splitlines()
        told = " ".join(line.strip() for line in lines if line.strip() and not _STACK.match(line))
        return JobFailed(told + way_out(said))


def job_failure(error: Py4JJavaError | PySparkException, context: SparkContext) -> Failure:
    """Return why a job failed. What an executor lacks it lacks at the next try as well."""
    said = _said(error)
    problem = bound_reached(said) or executor_problem(said, lambda: _failing_hosts(context))
    return failure_of("spark", JobFailed.of(said)) if problem is None else failure_of("spark", problem, retry=False)


def _failing_hosts(context: SparkContext) -> list[str]:
    executors = context._jsc.sc().statusStore().executorList(True)  # noqa: SLF001 - PySpark has no public question
    found = [executors.apply(at) for at in range(executors.size())]
    return [str(one.hostPort()).rpartition(":")[0] for one in found if one.failedTasks()]


def _said(error: Py4JJavaError | PySparkException) -> str:
    if not isinstance(error, Py4JJavaError):
        return str(error)  # PySpark 4.2 raises what the worker raised in its place
    return str(error.java_exception)


def jvm_gone(error: Exception) -> EnvironmentProblem:
    """Return the error for a JVM that does not answer."""
    return EnvironmentProblem.of_now(
        f"Spark's JVM does not answer any more ({describe(error)}). Most often it ran out of memory, which on a local master "
        "is spark.driver.memory (1g unless spark_conf says more)"
    )
