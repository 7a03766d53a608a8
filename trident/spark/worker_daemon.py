"""The process that forks Spark's Python workers (`spark.python.daemon.module`), with all imported that each of them needs.

One that PySpark's own daemon forks, as in place of that of a cancelled task, imports it again, which takes seconds on a slow
machine: with a shorter `message_timeout_s` each attempt would end as the one before.
"""

import gc
import importlib
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from pyspark import daemon

_OWN = ("trident", "states", "spouts")
_SHIPPED = "trident-code-*.zip"  # in the working directory of an executor that was sent the driver's code
_NEEDED = (
    "pyspark.worker",
    "pandas",  # Arrow imports it with the first array that is made of Python's objects
    "spouts",
    "trident.engine.tasks",
    "trident.run.committing",
    "trident.engine.resident_worker",
)
_OF_TASKS: list[list[str]] = [[], ["pyspark.worker"]]  # arguments; Spark's other kinds of workers are named by theirs


def main() -> None:
    """Import what workers need, then fork one whenever Spark asks for it."""
    if sys.argv[1:] in _OF_TASKS:
        import_what_workers_need()
        os.register_at_fork(after_in_child=partial(_after_fork, os.getpid()))
    daemon.manager()


def import_what_workers_need() -> None:
    """Import it without starting a thread: a lock that another thread holds at a fork stays locked in the worker."""
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    for name in _NEEDED:
        with suppress(ImportError):  # the task that needs it says so
            importlib.import_module(name)
    sys.path_importer_cache.clear()  # PySpark makes each worker read every zip in it again
    gc.freeze()  # workers share the pages of what is imported, and their collectors pass it over


def _after_fork(daemon_pid: int) -> None:
    if os.getppid() != daemon_pid:
        return  # a process that a worker forks
    numbers = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed()  # or all workers would draw the same
    if any(Path().glob(_SHIPPED)):  # it is to import the code that was shipped: what is installed may be older
        for name in [name for name in sys.modules if name.partition(".")[0] in _OWN]:
            del sys.modules[name]


if __name__ == "__main__":
    main()
