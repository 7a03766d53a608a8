"""What keeps an executor's Python from running a task at all, in one line with the way out.

Such a task never reaches our code, which would report a failure as data: all there is is the text of Spark.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Sequence

from trident.errors import EnvironmentProblem

__all__ = ["cannot_import", "executor_problem"]

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
    """Return the error for what Spark says of a failed job, if it is one of an executor's Python; else None.

    `failing_hosts` returns where tasks have failed. PySpark 4.2 no longer says so where a worker raised the error.
    """
    if not any(problem.search(said) for problem in (_OTHER_PYTHON, _NO_PYTHON, _MODULE, _DAEMON)):
        return None
    where = _WHERE.search(said)
    hosts = [where[1]] if where else sorted(set(failing_hosts()))
    executor = f"the executor on host {' or '.join(hosts)}" if hosts else "an executor"
    if found := _OTHER_PYTHON.search(said):
        return EnvironmentProblem(
            f"{executor} runs Python {found[1]}.{found[2]}, the driver Python {found[3]}; both must be of the same minor "
            f"version. Let PYSPARK_PYTHON or spark.pyspark.python name a Python {found[3]} that every machine has, or "
            f"{_ENVIRONMENT}"
        )
    if found := _NO_PYTHON.search(said):
        return EnvironmentProblem(
            f"{executor} cannot run {found[1]}: {found[2].strip()}. Let PYSPARK_PYTHON or spark.pyspark.python name a Python "
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
