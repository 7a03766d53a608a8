"""The daemon that forks Python workers, with all imported that these need too.

An executor starts it as a module (`spark.python.daemon.module`).
"""

import importlib

from trident.spark import worker_daemon

_NEEDED = ("states.postgres", "states.redis", "tests.crash.commit_tasks.task_case")

if __name__ == "__main__":
    for name in _NEEDED:
        importlib.import_module(name)
    worker_daemon.main()
