"""Snapshots of workers that start again, come twice or too late, put together; against a model."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from tests.storm.components import word_count
from trident.storm.execution.storm_worker import WorkerSnapshot
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import lay_out
from trident.storm.topology_monitor import Collected, TopologyMonitor

LAYOUT = lay_out(word_count(), workers=2, ackers=1)
SPLIT, COUNT = LAYOUT.tasks["split"], LAYOUT.tasks["count"]


@dataclass
class Worker:
    """Counts tuples of one task since it started, as a worker's process does."""

    number: int
    task: int
    start: int = 1
    snapshots: int = 0
    executed: int = 0
    pending: int = 0
    sent: list[WorkerSnapshot] = field(default_factory=list)

    def snapshot(self) -> WorkerSnapshot:
        self.snapshots += 1
        taken: WorkerSnapshot = {
            "worker": self.number,
            "start": self.start,
            "number": self.snapshots,
            "host": "here",
            "pid": 1,
            "uptime_s": 0.0,
            "totals": [((self.task, "executed", "split", "default"), self.executed)],
            "pending": self.pending,
            "port": 0,
            "calls": [],
        }
        self.sent.append(taken)
        return taken

    def restart(self) -> None:
        self.start, self.snapshots, self.executed, self.sent = self.start + 1, 0, 0, []


ACTIONS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(["work", "snapshot", "restart", "again"]), st.integers(1, 5)),
    max_size=60,
)


@given(ACTIONS)
def test_totals_are_what_was_told_whichever_workers_start_again(actions: list[tuple[int, str, int]]) -> None:
    collected = Collected(word_count(), 0)
    workers = [Worker(0, COUNT[0]), Worker(1, COUNT[1])]
    told = 0
    for second, (at, action, amount) in enumerate(actions):
        worker = workers[at]
        before = worker.sent[-1]["totals"][0][1] if worker.sent else 0
        if action == "work":
            worker.executed += amount
        elif action == "restart":
            worker.restart()
        elif action == "snapshot":
            told += worker.executed - int(before)
            collected.take(msgpack.unpackb(msgpack.packb(worker.snapshot())), second)
        elif worker.sent:
            collected.take(worker.sent[0], second)
    found = collected.statistics(LAYOUT, len(actions), {}).over().components["count"]
    assert found.figures.executed == told == sum(each.figures.executed for each in found.executors)


def test_figures_stay_with_their_tasks_when_executors_change() -> None:
    collected = Collected(word_count(), 0)
    for number, task in enumerate(COUNT[:2]):
        worker = Worker(number, task, executed=10 + number)
        collected.take(worker.snapshot(), 1)
    rebalanced = lay_out(word_count(), workers=1, ackers=1, executors={"count": 1})
    found = collected.statistics(rebalanced, 2, {}).over().components["count"]
    assert [(each.name, each.figures.executed) for each in found.executors] == [(f"[{COUNT[0]}-{COUNT[-1]}]", 21)]


def test_what_a_worker_had_pending_that_a_rebalance_took_away_is_not_waited_for() -> None:
    layouts, now = [LAYOUT], [0.0]
    monitor = TopologyMonitor(StormConfig(), word_count(), lambda: layouts[-1], lambda: True, list, lambda: now[0])
    for worker in (Worker(0, COUNT[0], pending=1), Worker(1, COUNT[1], pending=5)):
        monitor.take(worker.snapshot())
    assert (monitor.status.pending, monitor.status.at_work.left) == (6, "6 pending")
    layouts.append(lay_out(word_count(), workers=1, ackers=1))
    now[0] = 600.0
    monitor.take(Worker(0, COUNT[0], start=2).snapshot())
    status = monitor.status
    assert (status.pending, status.at_work.left, status.at_work.moved_s) == (0, "", 0.0)


def _totals(task: int, executed: int, seconds: float) -> WorkerSnapshot:
    worker = Worker(task, task, executed=executed).snapshot()
    worker["totals"] += [
        ((task, "execute_s", "split", "default"), seconds),
        ((task, "execute_s", "__system", "__tick"), 1),
    ]
    return worker


def test_capacity_is_the_busy_share_of_the_busiest_executor_in_the_last_ten_minutes() -> None:
    collected = Collected(word_count(), 0)
    collected.take(_totals(COUNT[0], 100, 49.0), 100)
    collected.take(_totals(COUNT[1], 100, 24.0), 100)
    for window in collected.statistics(LAYOUT, 100, {}).windows:  # it is of the last ten minutes in all windows
        found = window.components["count"]
        assert [each.figures.capacity for each in found.executors] == [0.5, 0.25, 0.0]
        assert found.figures.capacity == 0.5
        assert found.figures.execute_latency_ms == 73.0 / 200 * 1000  # without that of ticks
        assert [each.component for each in found.inputs] == ["split"]
    later = collected.statistics(LAYOUT, 100 + 640, {})
    assert later.over(600).components["count"].figures.capacity == 0
    assert later.over(600).components["count"].figures.execute_latency_ms is None
    assert later.over(10_800).components["count"].figures.executed == 200
