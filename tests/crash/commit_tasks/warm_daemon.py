"""Spark's daemon that forks Python workers, with all imported that they need: each begins a second or two earlier.

An executor starts it as a module (`spark.python.daemon.module`).
"""

from __future__ import annotations

import importlib
import os

from pyspark import daemon

_NEEDED = (
    "pyspark.worker",
    "states.postgres",
    "states.redis",
    "tests.crash.commit_tasks.task_case",
    "trident.runtime.executors.committing",
)

if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process that forks should have no threads
    for name in _NEEDED:
        importlib.import_module(name)
    daemon.manager()
