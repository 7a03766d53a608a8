"""Partitioned spouts on each engine, over random schedules; what their emitters may do with metadata."""

import os
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.commands import until
from tests.harness.topology_runs import Keep, RowsState, dict_state, keep, run_all, start
from tests.spout.folder_source import noted, numbers_in, readers, spout_of, write
from tests.spout.partition_source import FIELDS, Emitter, Source, emitted, emitting
from tests.spout.test_partitioned import BOTH, FailingPoints
from trident import BatchFailedError, TridentTopology
from trident.operations import Count, Sum
from trident.spout import SpoutType


def summed(folder: Path, kind: SpoutType) -> tuple[TridentTopology, Any]:
    """Return a topology that sums the rows of each file, and keeps them all."""
    topology = TridentTopology("t")
    stream = topology.new_stream("s", spout_of(kind, folder))
    rows = keep(stream)
    stream.shuffle().group_by("partition").persistent_aggregate(MemoryMapState(), "n", Sum(), "sum", state_name="sums")
    return topology, rows


def sums(running: Any, folder: Path) -> dict[str, int]:
    names = list(numbers_in(folder))
    return dict(zip(names, running.state("sums").multi_get([(name,) for name in names]), strict=True))


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", BOTH)
def test_each_row_counts_once_on_each_engine(kind: SpoutType, engine: str, tmp_path: Path) -> None:
    for partition, size in (("a", 10), ("b", 3), ("c", 0)):
        write(tmp_path, partition, range(size))
    topology, rows = summed(tmp_path, kind)
    with start(topology, engine, FailingPoints(2)) as running:
        running.process_all_available()
        write(tmp_path, "c", [5, 6])
        write(tmp_path, "d", [7])
        running.process_all_available()
        assert sums(running, tmp_path) == numbers_in(tmp_path)
    of_a = [row[1] for row in rows.rows if row[0] == "part-a"]
    assert of_a == list(range(10))
    assert noted(tmp_path, "again-2-part-a") == (1 if kind is SpoutType.TRANSACTIONAL else 0)
    assert (readers(tmp_path, 1) == {os.getpid()}) == (engine == "in_process")


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", BOTH)
def test_an_idle_source_costs_no_spark_job(kind: SpoutType, spark: Any, tmp_path: Path) -> None:
    write(tmp_path, "a", range(3))
    topology, _ = summed(tmp_path, kind)
    context: SparkContext = spark.sparkContext
    with start(topology, "spark", poll_interval_ms=5) as running:
        running.process_all_available()
        jobs, asked = _jobs(context), noted(tmp_path, "asked")
        until(lambda: noted(tmp_path, "asked") >= asked + 20, "the source is asked again and again")
        assert _jobs(context) == jobs
        write(tmp_path, "a", range(3, 8))
        running.process_all_available()
        assert sums(running, tmp_path) == numbers_in(tmp_path)
    assert running.txid == 3
    assert readers(tmp_path, 2) == {os.getpid()}  # what the driver found was shipped
    assert os.getpid() not in readers(tmp_path, 1) | readers(tmp_path, 3)


def _jobs(context: SparkContext) -> int:
    return len(context.statusTracker().getJobIdsForGroup())


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", BOTH)
def test_behind_a_large_batch_the_workers_read_until_one_is_small(kind: SpoutType, spark: Any, tmp_path: Path) -> None:
    write(tmp_path, "a", range(10))
    topology, _ = summed(tmp_path, kind)
    with start(topology, "auto", auto_bytes=70) as running:  # four rows have more, two have fewer
        running.process_all_available()
        write(tmp_path, "a", [11, 12])
        running.process_all_available()
        assert sums(running, tmp_path) == numbers_in(tmp_path)
    assert [os.getpid() in readers(tmp_path, txid) for txid in (1, 2, 3, 4)] == [True, False, False, True]


class ChangesWhatItWasGiven(Emitter):
    """Counts on in its last metadata."""

    def emit_partition_batch_new(self, attempt: Any, collector: Any, partition: str, last_metadata: Any) -> Any:
        metadata = last_metadata or {"start": 0, "end": 0}
        rows = self.source.rows[partition][metadata["end"] : metadata["end"] + self.source.limit]
        self._emit(collector, partition, rows)
        metadata["start"] = metadata["end"]
        metadata["end"] += len(rows)
        self.source.before(partition)
        return metadata if rows else last_metadata

    def emit_partition_batch(self, attempt: Any, collector: Any, partition: str, metadata: Any) -> None:
        super().emit_partition_batch(attempt, collector, partition, metadata)
        metadata.clear()
        self.source.before(partition)


class ChangesWhatItReturned(Emitter):
    """Has one dict for each partition, and returns it each time."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.own: dict[str, dict[str, int]] = {}

    def emit_partition_batch_new(self, attempt: Any, collector: Any, partition: str, last_metadata: Any) -> Any:
        metadata = super().emit_partition_batch_new(attempt, collector, partition, last_metadata)
        own = self.own.setdefault(partition, {})
        own.update(metadata or {})
        return own if metadata else None


class Forgets(Emitter):
    """Returns None if there is nothing new, as a function without a return does."""

    def emit_partition_batch_new(self, attempt: Any, collector: Any, partition: str, last_metadata: Any) -> Any:
        metadata = super().emit_partition_batch_new(attempt, collector, partition, last_metadata)
        return metadata if metadata != last_metadata else None


@pytest.mark.parametrize("engine", ["in_process", "auto"])
@pytest.mark.parametrize("emitter", [ChangesWhatItWasGiven, ChangesWhatItReturned])
@pytest.mark.parametrize("kind", BOTH)
def test_an_emitter_may_change_metadata_in_place(
    kind: SpoutType, emitter: type[Emitter], engine: str, tmp_path: Path
) -> None:
    """Readings and commits fail, and each row is still in one batch; small ones need no Spark: a quick test starts none."""
    source, readings, commits = Source({"a": list(range(20)), "b": [100]}), [0], {2, 4, 5}

    def read(partition: str) -> None:
        readings[0] += 1
        if readings[0] in (4, 7, 8, 13):
            raise OSError("broken")

    def observe(point: str, attempt: Any) -> None:
        if point == "committing" and attempt.txid in commits:
            commits.discard(attempt.txid)
            raise OSError("no commit")

    source.before = read
    conf = {"max_batch_attempts": 9, "max_spout_pending": 3, "log_dir": str(tmp_path)}
    rows = emitted(emitting(emitter, source, kind), engine, observe, **conf)
    assert not commits
    assert sorted(rows.rows) == [*(("a", n) for n in range(20)), ("b", 100)]


@pytest.mark.parametrize("kind", BOTH)
def test_an_emitter_that_returns_none_for_nothing_new_does_not_read_all_again(kind: SpoutType) -> None:
    source, topology = Source({"a": [1, 2]}), TridentTopology("t")
    rows = keep(topology.new_stream("s", emitting(Forgets, source, kind)))
    with pytest.raises(
        BatchFailedError, match="'a' emitted 0 rows and returned None: the next batch would read the partition"
    ):
        run_all(topology, "in_process")
    assert rows.rows == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("kind", BOTH)
def test_a_stream_that_had_another_kind_of_spout_says_so(kind: SpoutType, tmp_path: Path) -> None:
    before, after = TridentTopology("t"), TridentTopology("t")
    keep(before.new_stream("s", FixedBatchSpout(FIELDS, 1, ("a", 1))))
    rows = keep(after.new_stream("s", Source({"a": [2]}).spout(kind)))
    conf: dict[str, Any] = {"log_dir": str(tmp_path), "allow_changed_topology": True}
    run_all(before, "in_process", **conf)
    with pytest.raises(BatchFailedError, match="definition of another kind of spout"):
        run_all(after, "in_process", **conf)
    assert rows.rows == []


LIVES, ROUNDS = 3, 6


class Restless(Source):
    """Names some of its partitions, others each time, while it is `shaken`."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(limit=rng.randrange(1, 6), arrow=rng.random() < 0.5, quick=rng.random() < 0.5)
        self.rng, self.shaken, self.next = rng, False, 0
        self.before = self.fail

    def get_partitions_for_batch(self) -> list[str]:
        names = sorted(self.rows)
        return [name for name in names if not self.shaken or self.rng.random() < 0.7]

    def fail(self, point: str, attempt: Any = None) -> None:
        if self.shaken and self.rng.random() < 0.15:
            raise OSError(f"no {point}")

    def grow(self) -> None:
        for _ in range(self.rng.randrange(4)):
            name = f"p{self.rng.randrange(6)}"
            count = self.rng.randrange(9)
            self.rows.setdefault(name, []).extend(range(self.next, self.next + count))
            self.next += count


def declared(source: Source, kind: SpoutType, state: str, kept: RowsState, entries: list[dict[Any, Any]]) -> Any:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", source.spout(kind))
    stream.partition_persist(kept, Keep(), stream.fields, state_name="kept")
    rows, sums = (dict_state(one, state) for one in entries)
    stream.group_by("partition", "n").persistent_aggregate(rows, Count(), "count", state_name="rows")
    stream.group_by("partition").persistent_aggregate(sums, "n", Sum(), "sum", state_name="sums")
    return topology


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 100))])
@pytest.mark.parametrize(("kind", "state"), [(BOTH[0], "transactional"), (BOTH[0], "opaque"), (BOTH[1], "opaque")])
def test_each_row_counts_once(kind: SpoutType, state: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{kind} {state} {seed}")
    source, kept, entries = Restless(rng), RowsState(), [{}, {}]  # type: ignore[var-annotated]
    conf = {"max_batch_attempts": 1000, "retry_backoff_max_ms": 1, "max_spout_pending": rng.choice([1, 3])}

    def observe(point: str, attempt: Any) -> None:
        if point in ("committing", "committed"):
            source.fail(point)

    for life in range(LIVES):
        topology = declared(source, kind, state, kept, entries)
        with start(topology, "in_process", observe, log_dir=str(tmp_path), **conf) as running:
            for _ in range(ROUNDS):
                source.grow()
                source.shaken = True
                running.process_all_available()
                source.shaken = rng.random() < 0.5
            source.shaken = life < LIVES - 1
            running.process_all_available()
            if source.shaken:
                continue
            wanted = [(name, n) for name, numbers in source.rows.items() for n in numbers]
            assert running.state("rows").multi_get(wanted) == [1] * len(wanted)
            names = [name for name, numbers in source.rows.items() if numbers]
            assert running.state("sums").multi_get(names) == [sum(source.rows[name]) for name in names]
            for name, numbers in source.rows.items():
                assert [n for partition, n in kept.rows if partition == name] == numbers
    if kind is SpoutType.OPAQUE:
        assert source.of("again") == []
