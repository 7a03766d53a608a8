"""A spout that takes part in the commit of its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.harness.topology_runs import Points, keep, start
from tests.spout.test_partitioned import Fails
from trident import BatchFailedError, Fields, TridentTopology
from trident.coordination.log_reader import LogReader
from trident.errors import FencedError
from trident.spout import Definition, ICommitterTridentSpout, SpoutType, TransactionAttempt


class Committing:
    """Gives the numbers 0 to 3, two a batch, and writes down what it commits."""

    def __init__(self, spout_type: SpoutType, points: Points, before: Any = lambda: None) -> None:
        self.spout_type, self.points, self.before = spout_type, points, before
        self.committed: list[tuple[TransactionAttempt, Definition]] = []
        self.seen: list[list[str]] = []

    def get_output_fields(self) -> Fields:
        return Fields("n: bigint")

    def get_coordinator(self, conf: Mapping[str, Any]) -> Committing:
        return self

    def get_emitter(self, conf: Mapping[str, Any]) -> NumbersEmitter:
        return NumbersEmitter()

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        start = 0 if previous is None else previous["end"]
        return None if start == 4 else {"start": start, "end": start + 2}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        return [(definition["start"], definition["end"])]

    def commit(self, attempt: TransactionAttempt, definition: Definition) -> None:
        self.seen.append(self.points.of(attempt.txid))
        self.committed.append((attempt, definition))
        self.before()

    def success(self, txid: int, definition: Definition) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is open."""


class NumbersEmitter:
    is_quick = True

    def emit(self, part: tuple[int, int]) -> list[pa.Table]:
        return [pa.table({"n": pa.array(range(*part), pa.int64())})]


def run(spout: ICommitterTridentSpout, points: Points, engine: str = "in_process", **conf: Any) -> Any:
    topology = TridentTopology("t")
    rows = keep(topology.new_stream("s", spout))
    with start(topology, engine, points, **conf) as running:
        running.process_all_available()
    return rows


@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("kind", [SpoutType.TRANSACTIONAL, SpoutType.OPAQUE])
def test_it_commits_when_all_states_have_and_before_the_record(kind: SpoutType, pending: int) -> None:
    points = Points()
    spout = Committing(kind, points)
    rows = run(spout, points, max_spout_pending=pending)
    assert [definition for _, definition in spout.committed] == [{"start": 0, "end": 2}, {"start": 2, "end": 4}]
    assert all(seen[-1] == "committed" for seen in spout.seen)
    assert rows.rows == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("pending", [1, 3])
def test_if_it_raises_the_attempt_fails_and_the_batch_is_committed_again(pending: int) -> None:
    points = Points()
    spout = Committing(SpoutType.TRANSACTIONAL, points, Fails(1))
    rows = run(spout, points, max_spout_pending=pending)
    first, second, *_ = spout.committed
    assert (first[0].txid, first[1]) == (second[0].txid, second[1])
    assert first[0].attempt < second[0].attempt
    assert rows.rows == [(0,), (1,), (2,), (3,)]
    assert points.of(1).count("recorded") == 1


def test_a_commit_that_always_fails_ends_the_topology_and_nothing_is_recorded(tmp_path: Path) -> None:
    points = Points()
    spout = Committing(SpoutType.OPAQUE, points, Fails(1, 2, 3))
    with pytest.raises(BatchFailedError, match="batch 1 failed 3 times in step 's': OSError: not now"):
        run(spout, points, log_dir=str(tmp_path))
    assert LogReader(tmp_path).refresh().txid == 0
    spout.before = lambda: None
    run(spout, points, log_dir=str(tmp_path))
    assert [(attempt.txid, definition["end"]) for attempt, definition in spout.committed[-2:]] == [(1, 2), (2, 4)]


def test_a_driver_that_was_replaced_commits_nothing_in_the_source(tmp_path: Path) -> None:
    first, second, points = (make() for make in (Points, Points, Points))
    old, new = Committing(SpoutType.OPAQUE, first), Committing(SpoutType.OPAQUE, second)

    def observe(point: str, attempt: TransactionAttempt) -> None:
        points(point, attempt)
        if point == "committed" and attempt.txid == 1:
            run(new, second, log_dir=str(tmp_path), takeover=True)

    topology = TridentTopology("t")
    keep(topology.new_stream("s", old))
    with pytest.raises(FencedError), start(topology, "in_process", observe, log_dir=str(tmp_path)) as running:
        running.process_all_available()
    assert old.committed == []
    assert [definition["end"] for _, definition in new.committed] == [2, 4]


def test_it_commits_on_each_engine(engine: str) -> None:
    points = Points()
    spout = Committing(SpoutType.OPAQUE, points)
    rows = run(spout, points, engine)
    assert [definition["end"] for _, definition in spout.committed] == [2, 4]
    assert rows.rows == [(0,), (1,), (2,), (3,)]
