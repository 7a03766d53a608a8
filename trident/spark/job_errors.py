"""Turns Spark's own errors, and what keeps an executor's Python from running, into one line each, with what to do."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError

from trident.errors import EnvironmentProblem, describe
from trident.spark.connect import connect_problem
from trident.spark.environment import executors_of
from trident.steps.failures import Failure, StepFailed, failure_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.errors import PySparkException

# A stack frame, also inside a text of Spark: java.base/java.lang.Thread.run(Thread.java:840)
_STACK = re.compile(r"\s+(at|\.\.\.) |Driver stacktrace|[\w.$/<>]+\((Native Method|Unknown Source|\w+\.\w+:\d+)\)$")
_CANCELLED = ("cancelled", "canceled", "InterruptedException", "interrupted by the user")


class JobFailed(Exception):
    """Spark ended a job. The text is Spark's message without stack traces."""

    @staticmethod
    def of(said: str) -> JobFailed:
        cause = " ".join(line.strip() for line in said.splitlines() if line.strip() and not _STACK.match(line))
        return JobFailed(cause + way_out(said))


class QueryStopped(BaseException):
    """The query was stopped while its batch was processed: not to be tried again. The cause is Spark's own error."""


@contextmanager
def said_as_failure(context: SparkContext | None = None) -> Iterator[None]:
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise StepFailed(job_failure(error, context)) from error
    except (Py4JError, OSError) as error:
        raise StepFailed(failure_of("spark", jvm_gone(error), retry=False)) from error


def job_failure(error: Py4JJavaError | PySparkException, context: SparkContext | None) -> Failure:
    """Return why a job, or a query over DataFrames (without `context`), failed; `QueryStopped`: it was told to end."""
    # What an executor lacks it lacks at the next try as well.
    # PySpark 4.2 raises what the worker raised.
    thrown = error.java_exception if isinstance(error, Py4JJavaError) else error
    said, connect = str(thrown), None
    if context is None:
        said = _with_causes(thrown) if thrown is not error else said
        if any(word in said for word in _CANCELLED):
            raise QueryStopped from error
        connect = connect_problem(said)
    problem = bound_reached(said) or connect or executor_problem(said, lambda: _failing_hosts(context))
    return failure_of("spark", JobFailed.of(said)) if problem is None else failure_of("spark", problem, retry=False)


def _failing_hosts(context: SparkContext | None) -> list[str]:
    executors = [] if context is None else executors_of(context)
    return [str(one.hostPort()).rpartition(":")[0] for one in executors if one.failedTasks()]


def _with_causes(thrown: Any) -> str:
    """Return what an exception of the JVM says: an interruption is the cause of one that only says that it waited."""
    told: list[str] = []
    while thrown is not None:
        told.append(thrown.toString())
        thrown = thrown.getCause()
    return "\n".join(told)


def jvm_gone(error: Exception) -> EnvironmentProblem:
    return EnvironmentProblem.of_now(
        f"Spark's JVM does not answer any more ({describe(error)}). Most often it ran out of memory, which on a local master "
        "is spark.driver.memory (1g unless spark_conf says more)"
    )


# What Spark says when data outgrows it, in one line with the way out. Where the same batch would fail again, it is final.

_RESULTS = re.compile(
    r"Total size of serialized results of (\d+) tasks \(([^)]+)\) is bigger than (?:local )?spark\.driver\.maxResultSize "
    r"\(?(\d[\d.]* \w+)"
)
_PART = re.compile(
    r"Serialized task \S+ was (\d+) bytes, which exceeds max allowed: spark\.rpc\.message\.maxSize \((\d+) bytes\)"
)

_FATAL = re.compile(r"Fatal Python error: ([^\n]+)")
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}
_EXIT = re.compile(r"[Ee]xit (?:code|status):? (1[2-9]\d)\b")
_ENDED = re.compile(r"ExecutorLostFailure|exit (?:code|status):? 137|Python worker exited unexpectedly")
_NO_HEAP = re.compile(r"OutOfMemoryError|TaskResultLost")


class TooMuchData(Exception):
    """A batch has more data than Spark passes on; another try would meet the same bound."""


def bound_reached(said: str) -> TooMuchData | None:
    """Return the error for the text of a failed job if a bound of Spark's ended it; None if not."""
    if match := _RESULTS.search(said):
        return TooMuchData(
            f"{match[1]} tasks of the batch give the driver {match[2]} together, and spark.driver.maxResultSize is {match[3]}. "
            'Let states commit in the executors (state_placement="executors"), use smaller batches, or raise '
            "spark.driver.maxResultSize, and spark.driver.memory to four times as much"
        )
    if match := _PART.search(said):
        return TooMuchData(
            f"a part of the batch carries its rows to a task in {match[1]} bytes, and spark.rpc.message.maxSize is {match[2]} "
            "bytes. Use smaller batches, more parts (parallelism), or a spout whose rows are read in the tasks"
        )
    return None


def way_out(said: str) -> str:
    """Return what to do about the text of a failed job if memory is the most likely cause; empty if it is not."""
    if _NO_HEAP.search(said):
        return (
            ". A JVM had too little memory for what tasks gave: raise spark.driver.memory or spark.executor.memory, or use "
            "smaller batches"
        )
    if crash := crash_of(said):
        return f". Native code of a library, or of yours, crashed ({crash}); lack of memory is not the cause"
    if _ENDED.search(said):
        doubt = " (or native code crashed: spark.python.worker.faulthandler.enabled=true shows that)"
        return (
            f". A process that ends like this was most often killed because memory ran out"
            f"{doubt if 'faulthandler.enabled' in said else ''}: use smaller batches, more "
            "partitions (parallelism_hint), fewer tasks at a time (spark.executor.cores), or raise "
            "spark.executor.memoryOverhead, in which Python's memory counts; if one key has most of the rows, aggregate with a "
            "CombinerAggregator, or set max_bytes_per_partition, whose error names the key"
        )
    return ""


def crash_of(said: str) -> str:
    """Return what crashed a process, from the text of a failed job; empty if it did not, or was killed (SIGKILL)."""
    if match := _FATAL.search(said):
        return match[1].strip()
    number = int(match[1]) - 128 if (match := _EXIT.search(said)) else 0
    return signal.Signals(number).name if number in _CRASHES else ""


_WHERE = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((\S+) executor \S+\)")
_MODULE = re.compile(r"^(?:ModuleNotFound|Import)Error: (.*)$", re.MULTILINE)
_DAEMON = re.compile(r"Error while finding module specification for '\S+' \(ModuleNotFoundError: (.*)\)$", re.MULTILINE)
_OTHER_PYTHON = re.compile(
    r"\[PYTHON_VERSION_MISMATCH\] .*? version:? \(?(\d+)(?:\.|, )(\d+)\)? than that in driver:? ([\d.]+),"
)
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"[^\n]*: error=(?:2|13), ([^\n]+)')
_PAGE = "docs/deploying.md"
_ENVIRONMENT = (
    "ship an environment (spark-submit: --archives environment.tar.gz#environment; trident run: --conf spark.archives=…) and "
    f"let spark.pyspark.python name its Python, as in ./environment/bin/python; see {_PAGE}"
)


def executor_problem(said: str, failing_hosts: Callable[[], Sequence[str]] = list) -> EnvironmentProblem | None:
    """Return the error for what Spark says of a failed job, if an executor's Python is the cause; else None."""
    # PySpark 4.2 no longer says where a worker raised the error.
    if not any(problem.search(said) for problem in (_OTHER_PYTHON, _NO_PYTHON, _MODULE, _DAEMON)):
        return None
    where = _WHERE.search(said)
    hosts = [where[1]] if where else sorted(set(failing_hosts()))
    executor = f"the executor on host {' or '.join(hosts)}" if hosts else "an executor"
    if match := _OTHER_PYTHON.search(said):
        return EnvironmentProblem(
            f"{executor} runs Python {match[1]}.{match[2]}, the driver Python {match[3]}; both must be of the same minor "
            f"version. Let PYSPARK_PYTHON or spark.pyspark.python name a Python {match[3]} that every machine has, or "
            f"{_ENVIRONMENT}"
        )
    if match := _NO_PYTHON.search(said):
        return EnvironmentProblem(
            f"{executor} cannot run {match[1]}: {match[2].strip()}. Let PYSPARK_PYTHON or spark.pyspark.python name a Python "
            f"that every machine has, or {_ENVIRONMENT}"
        )
    lacking = (_MODULE.findall(said) or _DAEMON.findall(said))[-1].strip()  # the last line of a traceback is the error
    return EnvironmentProblem(f"{executor} cannot import {_lacking(lacking)}. {_way_out()}")


def cannot_import(error: ImportError) -> EnvironmentProblem:
    """Return the error for a worker that cannot import what the topology needs. Called in the worker."""
    return EnvironmentProblem(
        f"the worker on host {socket.gethostname()} cannot import {_lacking(str(error))}. A module of yours: trident run ships "
        "it with what it imports from the same folder; ship others with --py-files (trident run: --conf "
        f"spark.submit.pyFiles=…). {_way_out()}"
    )


def _lacking(said: str) -> str:
    name = re.fullmatch(r"No module named '([\w.]+)'", said)
    return f"{name[1]}: {said}" if name else f"a module: {said}"


def _way_out() -> str:
    python = os.environ.get("PYSPARK_PYTHON", "its Python")
    return f"Install it there for {python}, or {_ENVIRONMENT}"
