"""What worker processes keep open, and when it is closed."""

from __future__ import annotations

import logging

import pytest

from spouts import FixedBatchSpout
from tests.harness.crashing_stores import DictMap
from trident import TridentTopology
from trident.operations import Count
from trident.plan import make_plan
from trident.run.committing import MOST_KEPT, WorkerStates
from trident.state import StateSpec, map_state
from trident.storekit import record_fence as guards


def states_of(spec: StateSpec, idle_s: float = 60.0) -> WorkerStates:
    topology = TridentTopology("workers")
    lines = topology.new_stream("lines", FixedBatchSpout("word: string", 1, ["a"]))
    lines.group_by("word").persistent_aggregate(spec, Count(), "n", state_name="counts")
    return WorkerStates("workers", make_plan(topology.graph()).states, {}, idle_s)


# ---- what is kept open -------------------------------------------------------------------------------------------------


class Closing(DictMap):
    """Notes that it was closed."""

    closed: list[int]

    def close(self) -> None:
        self.closed.append(self.partition)

    def __init__(self, partition: int, closed: list[int]) -> None:
        super().__init__()
        self.partition, self.closed = partition, closed


@pytest.fixture
def closed() -> list[int]:
    return []


@pytest.fixture
def spec(closed: list[int]) -> StateSpec:
    return map_state(lambda conf, partition, count: Closing(partition, closed), "opaque")


def test_only_the_partitions_used_last_stay_open(spec: StateSpec, closed: list[int]) -> None:
    states = states_of(spec)
    opened = [states.partition_state("counts", partition, 99) for partition in range(MOST_KEPT + 3)]
    assert states.partition_state("counts", 0, 99) is opened[0]
    assert closed == []  # a task may be using all of them
    states.tidy()
    assert closed == [1, 2, 3]
    assert states.partition_state("counts", 0, 99) is opened[0]
    assert states.partition_state("counts", 1, 99) is not opened[1]
    states.close()
    assert sorted(closed[3:]) == [0, 1, *range(4, MOST_KEPT + 3)]


def test_what_no_task_uses_is_closed(spec: StateSpec, closed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("trident.run.committing.monotonic", lambda: now[0])
    states = states_of(spec, idle_s=60.0)
    for partition in range(3):
        now[0] += 25
        states.partition_state("counts", partition, 3)
    now[0] += 5
    states.tidy()
    assert closed == []
    now[0] += 35  # partition 0 was used 90 seconds ago, 1 65 seconds ago, 2 40 seconds ago
    states.tidy()
    assert closed == [0, 1]


def test_a_worker_does_not_repeat_what_the_driver_has_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("stores")
    monkeypatch.setattr(guards, "_warned", set())
    with caplog.at_level(logging.WARNING):
        guards.warn_once(logger, "Redis a:1", "there is no persistence")
        monkeypatch.setattr("trident.state.backing_map._warnings_left", True)
        guards.warn_once(logger, "Redis b:1", "there is no persistence")
    assert [record.getMessage() for record in caplog.records] == ["Redis a:1: there is no persistence"]
