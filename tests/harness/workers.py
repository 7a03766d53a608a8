"""How tests are shared out among the processes of `pytest -n`: a file is one piece of work, the longest pieces first.

Each process has a Spark session and servers of its own. Some files are one piece together (`_TOGETHER`).
"""

import os
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_MEMORY = 4 << 30  # of a process of tests: a session of Spark, what tests start besides, a Cassandra in one of them
# What a test takes, about, in tenths of a second: the sum over a file decides only when it starts.
_COSTS = {"spark": 10, "server": 5, "slow": 20}
_TOGETHER = {
    # What takes long to start is started by one process.
    "cassandra": "cassandra",
    "connect.py": "connect",
    "kafka": "brokers",
    "spouts/messages": "brokers",
    "zookeeper": "zookeeper",
    "cluster/state": "zookeeper",
    "ui/test_page": "browser",
    # Two processes that fetch Spark's library of Delta at once disturb each other.
    "test_delta_spark.py": "delta on spark",
    "test_delta_merge.py": "delta on spark",
}
_OWN_TIMEOUT = 300  # the cost of a test that may take longer than others


_USES_SPARK = re.compile(r"SparkSession|\bengine: str\b|mark\.spark")


class FilesInTurn(LoadScopeScheduling):
    """Gives a process that has nothing left to do the next file of the collection.

    One half of the processes takes what needs Spark first, and the other half last: so most sessions of Spark, of which each
    takes long to become fast, are started in the first half alone.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # they are in order

    def _split_scope(self, nodeid: str) -> str:
        return piece(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        wants_spark = self.nodes.index(node) < (len(self.nodes) + 1) // 2
        pieces = ((name, any(map(self._uses_spark, unit))) for name, unit in self.workqueue.items())
        name = next((name for name, on_spark in pieces if on_spark is wants_spark), next(iter(self.workqueue)))
        self.workqueue.move_to_end(name, last=False)
        super()._assign_work_unit(node)

    def _uses_spark(self, nodeid: str) -> bool:
        return _is_on_spark(self.config.rootpath / nodeid.split("::")[0])


@cache
def _is_on_spark(file: Path) -> bool:
    return file.is_file() and _USES_SPARK.search(file.read_text(encoding="utf-8")) is not None


def number_of_workers(is_quick: bool) -> int:
    """Return how many processes of tests this machine bears.

    Quick tests wait for nothing, and each process collects all of them; others wait half of their time.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(4, cores + 2 * (not is_quick), psutil.virtual_memory().total // _MEMORY))


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests so that the pieces that take longest come first."""
    costs: Counter[str] = Counter()
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if marks & {"long", "soak"}:
            continue
        costs[piece(item.nodeid)] += max(_OWN_TIMEOUT * ("timeout" in marks), *(_COSTS.get(name, 1) for name in marks))
    items.sort(key=lambda item: -costs[piece(item.nodeid)])


def piece(nodeid: str) -> str:
    file = nodeid.split("::")[0]
    return next((piece for part, piece in _TOGETHER.items() if part in nodeid), file)
