"""Partitioned spouts: what a batch is, what a replay is, what idleness costs."""

import datetime
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from states.memory import MemoryMapState
from tests.harness.topology_runs import WAIT_S, Points, RowsSpout, dict_state, keep, run_all, start
from tests.spout.partition_source import Emitter, Source, emitted, emitting
from trident import BatchFailedError, TopologyError, TridentTopology
from trident.log.log_reader import LogReader
from trident.operations import Sum
from trident.run.partitioned_spouts import checksum
from trident.spout import IPartitionedTridentSpout, SpoutType

BOTH = [SpoutType.TRANSACTIONAL, SpoutType.OPAQUE]


def totals(source: Source) -> dict[Any, int]:
    return {(name,): sum(rows) for name, rows in source.rows.items() if rows}


def summed(source: Source, kind: SpoutType, entries: dict[Any, Any] | None = None) -> TridentTopology:
    """Return a topology that sums the rows of each partition."""
    topology = TridentTopology("t")
    stream = topology.new_stream("s", source.spout(kind))
    state = MemoryMapState() if entries is None else dict_state(entries)
    stream.group_by("partition").persistent_aggregate(state, "n", Sum(), "sum", state_name="sums")
    return topology


def sums(running: Any, source: Source) -> dict[Any, int]:
    keys = [(name,) for name in source.rows]
    return {key: value for key, value in zip(keys, running.state("sums").multi_get(keys), strict=True) if value}


@pytest.mark.parametrize("kind", BOTH)
def test_a_partition_is_given_what_its_last_reading_returned(kind: SpoutType) -> None:
    source = Source({"a": [1, 2, 3, 4], "b": [5]})
    run_all(summed(source, kind), "in_process")
    assert source.of("new")[:6] == [
        (1, "a", None),
        (1, "b", None),
        (2, "a", {"start": 0, "end": 3}),
        (2, "b", {"start": 0, "end": 1}),
        (3, "a", {"start": 3, "end": 4}),
        (3, "b", {"start": 0, "end": 1}),
    ]
    assert source.told == [
        (1, {"a": {"start": 0, "end": 3}, "b": {"start": 0, "end": 1}}),
        (2, {"a": {"start": 3, "end": 4}, "b": {"start": 0, "end": 1}}),
    ]
    assert source.closed == 1


@pytest.mark.parametrize("kind", BOTH)
def test_the_next_batch_is_read_while_the_one_before_commits(kind: SpoutType) -> None:
    source, seen = Source({"a": list(range(6))}), []
    points = Points()

    def observe(point: str, attempt: Any) -> None:
        points(point, attempt)
        if point == "committing" and attempt.txid == 1:  # in the thread of commits
            deadline = time.monotonic() + WAIT_S
            while "processed" not in points.of(2) and time.monotonic() < deadline:
                time.sleep(0.001)
            seen.append("processed" in points.of(2))

    run_all(summed(source, kind), "in_process", observer=observe, max_spout_pending=2)
    assert seen == [True]


@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("kind", BOTH)
def test_an_idle_source_makes_no_batches_and_is_asked_after_a_pause(
    kind: SpoutType, pending: int, tmp_path: Path
) -> None:
    source = Source({"a": [1], "b": []})
    entries: dict[Any, Any] = {}
    with start(
        summed(source, kind, entries),
        "in_process",
        max_spout_pending=pending,
        poll_interval_ms=20,
        log_dir=str(tmp_path),
    ) as running:
        running.process_all_available()
        size = sum(path.stat().st_size for path in tmp_path.rglob("*.log"))
        before, begun = len(source.calls), time.monotonic()
        while len(source.calls) < before + 10:
            time.sleep(0.001)
        assert time.monotonic() - begun > 0.06  # five looks at two partitions: four pauses of 20 ms at least
        assert running.txid == 1
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.log")) == size
        source.rows["b"].append(8)
        running.process_all_available()
        assert (running.txid, sums(running, source)) == (2, totals(source))


@pytest.mark.parametrize("kind", BOTH)
def test_where_nothing_is_ready_nobody_reads(kind: SpoutType) -> None:
    source = Source({"a": [1]}, ready=False)
    with start(summed(source, kind), "in_process") as running:
        running.process_all_available()
        assert (source.calls, running.txid) == ([], 0)
        source.ready = True
        running.process_all_available()
        assert running.txid == 1


@pytest.mark.parametrize("kind", BOTH)
def test_a_source_without_partitions_has_nothing(kind: SpoutType) -> None:
    source = Source()
    assert run_all(summed(source, kind), "in_process").txid == 0
    assert source.calls == []


class Moving(Emitter):
    """Gets on without rows, as behind a filter of the server."""

    def emit_partition_batch_new(self, attempt: Any, collector: Any, partition: str, last_metadata: Any) -> Any:
        self.source.calls.append(("new", attempt, partition, last_metadata))
        return (last_metadata or 0) + 1


@pytest.mark.parametrize("pending", [1, 3])
def test_progress_without_rows_is_committed_and_ten_such_batches_are_the_end(pending: int) -> None:
    source, topology = Source({"a": []}), TridentTopology("t")
    keep(topology.new_stream("s", emitting(Moving, source)))
    running = run_all(topology, "in_process", max_spout_pending=pending, poll_interval_ms=60_000)
    assert 10 <= running.txid <= 12 + pending
    assert source.told[-1] == (running.txid, {"a": running.txid})


def test_metadata_that_are_not_equal_to_themselves_are_no_progress() -> None:
    class Undefined(Emitter):
        def emit_partition_batch_new(self, attempt: Any, collector: Any, partition: str, last_metadata: Any) -> Any:
            return {"at": float("nan")}

    topology = TridentTopology("t")
    keep(topology.new_stream("s", emitting(Undefined)))
    assert run_all(topology, "in_process").txid == 1


@pytest.mark.parametrize("kind", BOTH)
def test_an_idle_partitioned_spout_holds_up_no_other_spout(kind: SpoutType) -> None:
    source, topology = Source({"a": [1]}), TridentTopology("t")
    rows = keep(topology.new_stream("s", source.spout(kind)), "one")
    others = RowsSpout("x: string", {})
    other = keep(topology.new_stream("other", others), "other")
    with start(topology, "in_process") as running:
        running.process_all_available()
        others.batches = {2: [["late"]]}
        running.process_all_available()
        assert (running.txid, rows.rows, other.rows) == (2, [("a", 1)], [("late",)])
        source.rows["a"].append(2)
        running.process_all_available()
        assert (running.txid, rows.rows) == (3, [("a", 1), ("a", 2)])


class Fails:
    """Raises at the calls with these numbers, counted from 1."""

    def __init__(self, *at: int) -> None:
        self.at, self.count = at, 0

    def __call__(self, *args: Any) -> None:
        self.count += 1
        if self.count in self.at:
            raise OSError("not now")


class FailingPoints:
    """Fails the commit of one batch once; an observer in the thread of commits."""

    def __init__(self, txid: int) -> None:
        self.txid, self.done = txid, False

    def __call__(self, point: str, attempt: Any) -> None:
        if point == "committing" and attempt.txid == self.txid and not self.done:
            self.done = True
            raise OSError("not now")


@pytest.mark.parametrize("pending", [1, 3])
def test_a_batch_whose_metadata_are_logged_is_emitted_again_from_them(pending: int) -> None:
    source = Source({"a": [1, 2, 3, 4], "b": [5], "none": []})
    with start(summed(source, BOTH[0]), "in_process", FailingPoints(1), max_spout_pending=pending) as running:
        source.rows["a"] += [9]
        running.process_all_available()
    again = [call for call in source.of("again") if call[0] == 1]
    assert again == [(1, "a", {"start": 0, "end": 3}), (1, "b", {"start": 0, "end": 1})]
    assert sums(running, source) == totals(source)


@pytest.mark.parametrize("pending", [1, 3])
def test_an_opaque_batch_that_failed_in_its_commit_is_read_again_and_may_be_another(pending: int) -> None:
    source, failing = Source({"a": [1, 2, 3, 4], "b": [5]}), FailingPoints(1)

    def observe(point: str, attempt: Any) -> None:
        if point == "committing" and not failing.done:
            source.gone.add("b")
            source.limit = 2
        failing(point, attempt)

    with start(summed(source, SpoutType.OPAQUE), "in_process", observe, max_spout_pending=pending) as running:
        running.process_all_available()
        assert sums(running, source) == {("a",): 10}
        source.gone.clear()
        running.process_all_available()
        assert sums(running, source) == totals(source)
    assert source.of("again") == []


def test_a_replay_with_other_rows_is_refused() -> None:
    source = Source({"a": [1, 2, 3]})

    def observe(point: str, attempt: Any) -> None:
        if point == "committing":
            source.rows["a"][1] = 7
            raise OSError("not now")

    with (
        pytest.raises(
            BatchFailedError,
            match=r"ReplayMismatchError: Transactional: emit_partition_batch of partition 'a' gave "
            r"other rows than when batch 1 was read first: 3 rows with checksum \w{8} in place of 3 rows",
        ),  # fmt: skip
        start(summed(source, BOTH[0]), "in_process", observe) as running,
    ):
        running.process_all_available()
    assert running.txid == 0


def test_what_a_library_leaves_below_a_null_is_no_other_row() -> None:
    class Columns(Emitter):
        def _emit(self, collector: Any, partition: str, rows: list[int]) -> None:
            below = len(self.source.calls)  # another number at each reading
            data = pa.array([rows[0], below, rows[2]], pa.int64()).buffers()[1]
            numbers = pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(b"\x05"), data])
            collector.emit_arrow(pa.table({"partition": [partition] * 3, "n": numbers}))

    source = Source({"a": [1, 2, 3]})

    def observe(point: str, attempt: Any) -> None:
        if point == "committing" and not source.of("again"):
            raise OSError("not now")

    kept = emitted(emitting(Columns, source), observer=observe)
    assert len(source.of("again")) == 1
    assert kept.rows == [("a", 1), ("a", None), ("a", 3)]


def _struct(below: int) -> pa.Array:
    return pa.StructArray.from_arrays([pa.array([1, below])], ["n"], mask=pa.array([False, True]))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1, 2]), pa.array([1, 2, 3])[:2]),
        (pa.array(["a", "b"]), pa.array(["x", "a", "b", "c"])[1:3]),
        (pa.array([True, False]), pa.array([True, False, True])[:2]),
        (pa.array([True, True]), pa.array([True] * 9)[:2]),
        (pa.array([1, None]), pa.array([0, 1, None, 3])[1:3]),
        (pa.array([[True], None]), pa.array([[True], None, [True] * 9])[:2]),
        (_struct(2), _struct(3)),
        (pa.array([[{"n": 1}, None]]), pa.ListArray.from_arrays([0, 2], _struct(3))),
        tuple(pa.array([[{"f": n} for n in (1, 2)], [{"f": 3}]][:n])[:1] for n in (1, 2)),
        tuple(pa.array([[("k", True)], [("k", True)] * 9][:n], pa.map_(pa.string(), pa.bool_()))[:1] for n in (1, 2)),
        (
            pa.array([[("a", 1)]], pa.map_("string", "int64")),
            pa.array([[], [("a", 1)]], pa.map_("string", "int64"))[1:],
        ),
    ],
    ids=lambda rows: str(rows.type),
)
def test_a_checksum_is_of_the_rows_and_not_of_what_lies_beside_them(one: pa.Array, other: pa.Array) -> None:
    assert one.equals(other)
    assert checksum([pa.table({"v": one})]) == checksum([pa.table({"v": other})])
    assert checksum([pa.table({"v": one})]) != checksum([pa.table({"v": one.take(pa.array([0] * (len(one) + 1)))})])


class Returning(Source):
    """The partitions that are gone are back when it was asked for them this often."""

    back_after = 8

    def get_partitions_for_batch(self) -> list[str]:
        if self.gone:
            self.back_after -= 1
            if self.back_after == 0:
                self.gone.clear()
        return super().get_partitions_for_batch()


def test_a_replay_of_a_lost_partition_waits_for_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = Returning({"a": [1, 2, 3, 4], "b": [5, 6]})
    entries: dict[Any, Any] = {}

    def observe(point: str, attempt: Any) -> None:
        if point == "committing" and attempt.txid == 1 and source.back_after == 8:
            source.gone.add("b")
            raise OSError("not now")

    topology = summed(source, BOTH[0], entries)
    conf: dict[str, Any] = {"log_dir": str(tmp_path), "max_batch_attempts": 3, "max_spout_pending": 1}
    with start(topology, "in_process", observe, **conf) as running:
        running.process_all_available()
        assert sums(running, source) == totals(source)
    said = (
        "PartitionLostError: Transactional: batch 1 has rows of 'b', which the source does not have now (it has: 'a')"
    )
    assert caplog.text.count(said) == 7
    assert (1, "b", {"start": 0, "end": 2}) in source.of("again")


@pytest.mark.parametrize("kind", BOTH)
def test_a_partition_that_was_away_goes_on_where_it_was(kind: SpoutType, tmp_path: Path) -> None:
    source = Source({"a": [1], "b": [5, 6]})
    entries: dict[Any, Any] = {}
    run_all(summed(source, kind, entries), "in_process", log_dir=str(tmp_path))
    source.gone.add("b")
    source.rows["a"].append(2)
    source.rows["b"].append(7)
    run_all(summed(source, kind, entries), "in_process", log_dir=str(tmp_path))
    source.gone.clear()
    running = run_all(summed(source, kind, entries), "in_process", log_dir=str(tmp_path))
    assert (3, "b", {"start": 0, "end": 2}) in source.of("new")
    assert sums(running, source) == totals(source)


def returning(metadata: Any, rows: int = 1, emit: Any = lambda collector: collector.emit(["a", 0])) -> Any:
    """Return a spout whose readings emit so many rows and return this."""

    class Returns(Emitter):
        def emit_partition_batch_new(self, attempt: Any, collector: Any, partition: str, last_metadata: Any) -> Any:
            for _ in range(rows):
                emit(collector)
            return metadata

    return emitting(Returns)


OF_A = "SpoutError: Spout: emit_partition_batch_new of partition 'a'"


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (datetime.date(2026, 1, 2), "metadata is a date"),
        ({"at": [1, (2, 3)]}, r"metadata\['at'\]\[1\] is a tuple"),
        ({"at": {3: 4}}, r"metadata\['at'\] has the key 3, a int"),
        (1 << 64, "metadata is an int of more than 64 bits"),
    ],
)
def test_metadata_that_is_no_plain_data_is_an_error(metadata: Any, said: str) -> None:
    with pytest.raises(BatchFailedError, match=f"{OF_A} .*{said}"):
        emitted(returning(metadata))


def test_rows_without_metadata_are_an_error() -> None:
    with pytest.raises(
        BatchFailedError, match="emitted 2 rows and returned None: the next batch would begin where this"
    ):
        emitted(returning(None, 2))


@pytest.mark.parametrize("metadata", [None, {}, [1, {"a": b"\xff", "b": [None, True, 1.5, "x"]}], -(1 << 63)])
def test_any_plain_metadata_comes_back(metadata: Any, tmp_path: Path) -> None:
    emitted(returning(metadata, rows=0), log_dir=str(tmp_path))
    logged = LogReader(tmp_path).refresh().spouts
    assert logged == ({} if metadata is None else {"s": {"read": {}, "kept": {"a": metadata}, "bytes": 0}})


@pytest.mark.parametrize(
    ("emit", "said"),
    [
        (lambda collector: collector.emit(["a"]), "emitted rows that do not fit its fields"),
        (lambda collector: collector.emit(["a", "x"]), "emitted rows that do not fit its fields"),
        (lambda collector: collector.emit_arrow(pa.table({"n": [1]})), r"columns \['n'\], but the fields are"),
    ],
)
def test_rows_that_do_not_fit_are_an_error(emit: Any, said: str) -> None:
    with pytest.raises(BatchFailedError, match=f"{OF_A} .*{said}"):
        emitted(returning(1, emit=emit))


@pytest.mark.parametrize(
    ("partitions", "said"), [([1], r"gave 1 \(int\)"), (["a", "b", "a"], r"named \['a'\] more than once")]
)
def test_partitions_are_distinct_names(partitions: Any, said: str) -> None:
    class Wrong(Source):
        def get_partitions_for_batch(self) -> list[str]:
            return partitions  # type: ignore[no-any-return]

    with pytest.raises(BatchFailedError, match=f"get_partitions_for_batch {said}"):
        run_all(summed(Wrong(), BOTH[1]), "in_process")


def test_an_emitter_that_cannot_emit_again_is_refused_where_it_must() -> None:
    class OnlyNew:
        def __init__(self, source: Source) -> None: ...

        def emit_partition_batch_new(self, attempt: Any, collector: Any, partition: str, last_metadata: Any) -> Any:
            """Has nothing."""

    lacks = r"Spout.get_emitter\(\) returned a OnlyNew, which lacks emit_partition_batch "
    with pytest.raises(TopologyError, match=lacks):
        emitted(emitting(OnlyNew))


def test_a_partitioned_spout_without_its_methods_cannot_be_made() -> None:
    class Spout(IPartitionedTridentSpout):
        """Has nothing."""

    with pytest.raises(TypeError, match="get_coordinator"):
        Spout()  # type: ignore[abstract]
