"""A streaming DataFrame as a source: its batches, its checkpoint, and what happens when they do not go together."""

from __future__ import annotations

import pickle
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from spouts import DataFrameSpout, StructuredStreamingSpout
from spouts.spark import chunks, query_batches
from spouts.spark.chunks import Chunk, ChunkLimits, Manifest, read_manifest
from tests.harness.commands import last_txid, until
from tests.harness.forked import die, exit_code_of
from tests.harness.sqlite_map import sqlite_state
from tests.harness.topology_runs import start
from tests.spout.partition_source import emitted
from tests.spouts.reading import rows_of
from tests.spouts.spark.written_rows import FIELDS, batch_of, chunks_of
from trident import BatchFailedError, Config, TopologyError, TridentTopology
from trident.errors import SpoutError
from trident.fields import Fields
from trident.operations import Count, Filter, Sum
from trident.run.running import RunningTopology
from trident.run.running import start as running_start
from trident.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class _Failing(Filter):
    def is_keep(self, tuple: Any) -> bool:
        raise ValueError("no such line")


class Words:
    """A topology that counts the lines of a folder, one batch a file, with log, states and checkpoint in another one."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.checkpoint = spark, folder, folder / "checkpoint"
        self.source = folder / "in"
        self.source.mkdir()
        self.files = 0

    def add(self, *lines: str) -> None:
        self.files += 1
        part = self.folder / "part"
        part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        part.rename(self.source / f"{self.files}.txt")

    def lines(self) -> DataFrame:
        return self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.source))

    def start(
        self, df: DataFrame | None = None, log: str = "log", name: str = "words", fails: bool = False, **options: Any
    ) -> RunningTopology:
        topology = TridentTopology(name)
        spout = StructuredStreamingSpout(self.lines() if df is None else df, self.checkpoint, **options)
        state = sqlite_state(str(self.folder / f"{log}.db"))
        lines = topology.new_stream("lines", spout)
        if fails:
            lines = lines.filter("value", _Failing())
        lines.group_by("value").persistent_aggregate(state, Count(), "count")
        return start(topology, "in_process", log_dir=str(self.folder / log))

    def run(self, **options: Any) -> tuple[int, dict[str, int]]:
        with self.start(**options) as running:
            running.process_all_available()
            return running.txid, counts(running)


def counts(running: RunningTopology) -> dict[str, int]:
    return dict(running.state("count").get_tuples())


@pytest.fixture
def words(spark: SparkSession, tmp_path: Path) -> Words:
    return Words(spark, tmp_path)


@pytest.mark.spark
def test_each_batch_of_the_query_is_one_batch_and_a_restart_continues(words: Words) -> None:
    for line in "abc":
        words.add(line, "all")
    with words.start() as running:
        running.process_all_available()
        assert (running.txid, counts(running)) == (3, {"a": 1, "b": 1, "c": 1, "all": 3})
        words.add("d", "all")
        running.process_all_available()
        assert running.txid == 4
    words.add("e", "all")
    assert words.run() == (5, {**dict.fromkeys("abcde", 1), "all": 5})
    assert [path for path in (words.checkpoint / "trident-rows").rglob("*") if path.is_file()] == []
    # A driver that is killed between record and Spark's own note leaves no note. Spark then gives the batch again.
    (words.checkpoint / "commits" / "4").unlink()
    (words.checkpoint / "commits" / ".4.crc").unlink()
    words.add("f")
    assert words.run() == (6, {**dict.fromkeys("abcdef", 1), "all": 5})
    assert not words.spark.streams.active


@pytest.mark.long
@pytest.mark.spark
def test_a_checkpoint_that_does_not_belong_to_the_log_is_found(words: Words) -> None:
    older, newer = words.folder / "older", words.folder / "newer"
    words.add("a")
    words.run()
    shutil.copytree(words.checkpoint, older)
    words.add("b")
    words.add("c")
    words.run()
    shutil.copytree(words.checkpoint, newer)

    def found(prepare: Callable[[], object], **options: Any) -> str:
        shutil.rmtree(words.checkpoint, ignore_errors=True)
        prepare()
        with pytest.raises(BatchFailedError) as raised:
            words.run(**options)
        said = str(raised.value)
        assert "failed once in step 'lines': CheckpointMismatchError: " in said
        assert "Nothing of it is committed" in said
        return said

    def restored(copy: Path = newer) -> None:
        shutil.copytree(copy, words.checkpoint)

    assert "is empty: it was deleted" in found(lambda: None)
    assert "ends with batch 0: it was restored from an older copy" in found(lambda: restored(older))
    another = words.spark.readStream.format("rate").load().selectExpr("string(value) AS value")
    assert "the query reads rate where it read FileSource[" in found(restored, df=another)
    assert "has given the batches up to 2 of query" in found(restored, log="another-log")

    def used_elsewhere(copy: Path | None = None) -> None:
        if copy is not None:
            restored(copy)
        query = words.lines().writeStream.foreachBatch(lambda df, batch: None)
        started = query.option("checkpointLocation", str(words.checkpoint)).start()
        started.processAllAvailable()
        started.stop()

    assert "it was deleted and begun again" in found(used_elsewhere)
    words.add("d")
    assert "has given batch 3 to someone else" in found(lambda: used_elsewhere(newer))
    assert "batch 2 of the checkpoint" in found(lambda: used_elsewhere(older))
    shutil.rmtree(words.checkpoint)
    restored()
    assert words.run() == (4, dict.fromkeys("abcd", 1))  # nothing of all this was counted
    shutil.rmtree(words.checkpoint)
    used_elsewhere()
    words.add("e")
    assert words.run(adopt_checkpoint=True) == (5, dict.fromkeys("abcde", 1))  # rightly, because it has read the same
    words.add("f")
    assert words.run() == (6, dict.fromkeys("abcdef", 1))


class _Given:
    """A batch as Spark gives it, of a session that nobody asks for anything."""

    sparkSession = None  # noqa: N815  as PySpark has it


def _said(query: str, digest: str | None) -> SimpleNamespace:
    """Return what a checkpoint says about any batch."""
    return SimpleNamespace(query=query, digest=lambda batch: digest)


def test_a_replaced_driver_does_not_remove_the_rows_of_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(df: Any, folder: str, fields: Fields, limits: ChunkLimits) -> list[Chunk]:
        return chunks_of(Path(folder), [batch_of(0, 10)], limits)

    monkeypatch.setattr(query_batches, "Checkpoint", lambda spark, path: _said("query", "digest"))
    monkeypatch.setattr(chunks, "_write_rows", rows)
    spout = StructuredStreamingSpout(lambda spark: spark.table("t"), tmp_path, fields=FIELDS)
    replaced, successor = (spout.get_coordinator({}) for _ in range(2))
    written: list[Any] = []

    def read_before_the_successor_writes(folder: str) -> Manifest | None:
        found = read_manifest(folder)
        if not written:
            written.append(None)
            written[0] = successor._write(_Given(), 0)  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(query_batches, "read_manifest", read_before_the_successor_writes)
    replaced._write(_Given(), 0)  # type: ignore[arg-type]
    assert rows_of(spout, successor, written[0]) == [(number, "x") for number in range(10)]
    successor.success(1, written[0])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(("found", "missing"), [(("query", None), "offsets/1"), (("", None), "metadata")])
def test_a_checkpoint_without_an_answer_for_a_batch_does_not_commit_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: tuple[str, str | None], missing: str
) -> None:
    monkeypatch.setattr(query_batches, "Checkpoint", lambda spark, path: _said(*found))
    spout = StructuredStreamingSpout(lambda spark: spark.table("t"), tmp_path, fields=FIELDS)
    coordinator = spout.get_coordinator({})
    coordinator._last = {"query": found[0], "batch": 1, "offsets": None, "sources": []}
    with pytest.raises(SpoutError, match=f"Spark gives batch 1, but {tmp_path} does not show {missing}, which"):
        coordinator._write(_Given(), 1)  # type: ignore[arg-type]


@pytest.mark.spark
def test_a_batch_that_another_topology_has_begun_is_not_taken_for_its_own(words: Words) -> None:
    words.add("a")
    with pytest.raises(BatchFailedError, match="no such line"):  # the rows are written, and then the batch fails
        words.run(fails=True)
    said = "the rows in .* belong to the stream 'lines' of the topology 'words', and this is the stream 'lines' of the"
    with pytest.raises(BatchFailedError, match=f"failed once .*CheckpointMismatchError: {said} topology 'others'"):
        words.run(name="others", log="another-log")
    assert words.run() == (1, {"a": 1})


@pytest.mark.long
@pytest.mark.spark
def test_one_checkpoint_is_not_read_by_two_streams_at_once(words: Words) -> None:
    words.add("a")
    with words.start() as running:
        running.process_all_available()
        with pytest.raises(BatchFailedError, match="is in use by another stream of this process. Give each its own"):
            words.run(log="another-log")
        assert running.is_active
        words.spark.streams.active[0].stop()  # as Spark does if a query with the same checkpoint is started
        words.add("b")
        while "b" not in counts(running):
            assert running.is_active
        assert "the streaming query was stopped by someone else: by a call of stop" in running.status["lastFailure"]


@pytest.mark.long
@pytest.mark.spark
def test_a_query_that_fails_ends_the_topology_with_its_reason(words: Words) -> None:
    words.add("a")
    failing = words.lines().selectExpr("if(value = 'a', raise_error('no such line'), value) AS value")
    with pytest.raises(BatchFailedError, match="failed 3 times in step 'lines': SpoutError: .*no such line") as raised:
        words.run(df=failing)
    assert "\n" not in str(raised.value)
    assert words.run() == (1, {"a": 1})  # mended: Spark gives the batch again


@pytest.mark.long
@pytest.mark.spark
def test_a_stop_cancels_the_batch_and_available_now_ends_by_itself(words: Words) -> None:
    words.add("a")
    slow = words.lines().selectExpr("reflect('java.lang.Thread', 'sleep', 60000L) || value AS value")
    with words.start(slow) as running:
        tracker = words.spark.sparkContext.statusTracker()
        while not tracker.getActiveJobsIds():
            assert running.is_active
    assert running.exception() is None
    assert not words.spark.streams.active
    words.add("b")
    with words.start(trigger={"availableNow": True}) as running:
        running.process_all_available()
        assert counts(running) == {"a": 1, "b": 1}
        running.process_all_available()  # the query has ended
        assert running.is_active
    until(
        lambda: not [one for one in threading.enumerate() if one.name.startswith("streaming-")],
        "no thread of the query is left",
    )


@pytest.mark.spark
def test_what_is_no_stream_is_refused_at_the_call(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="reads a streaming DataFrame .* give this one to DataFrameSpout"):
        StructuredStreamingSpout(spark.range(3), tmp_path)
    with pytest.raises(ValueError, match="checkpoint is 's3://b/c'; give rows_dir too"):
        StructuredStreamingSpout(lambda session: session.range(3), "s3://b/c", fields="id: bigint")
    rate = StructuredStreamingSpout(spark.readStream.format("rate").load(), tmp_path)
    assert pickle.loads(pickle.dumps(rate)).get_output_fields() == rate.get_output_fields()
    made = StructuredStreamingSpout(lambda session: session.range(3), tmp_path / "cp", fields="id: bigint")
    with pytest.raises(BatchFailedError, match="the function made a batch DataFrame"):
        emitted(made)


ROWS, BATCHES = 7000, 7


def orders(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, 1).selectExpr("id % 7 AS key", "id", "rand() AS luck")


def totals_of_orders(folder: Path) -> TridentTopology:
    topology = TridentTopology("orders")
    fields = "key: bigint, id: bigint, luck: double"
    spout = DataFrameSpout(orders, folder / "rows", fields=fields, max_batch_rows=ROWS // BATCHES)
    stream = topology.new_stream("orders", spout)
    stream.group_by("key").persistent_aggregate(sqlite_state(str(folder / "states.db")), "id", Sum(), "total")
    return topology


def counts_of_lines(folder: Path) -> TridentTopology:
    def lines(spark: SparkSession) -> DataFrame:
        return spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))

    topology = TridentTopology("lines")
    stream = topology.new_stream(
        "lines", StructuredStreamingSpout(lines, folder / "checkpoint", fields="value: string")
    )
    stream.group_by("value").persistent_aggregate(sqlite_state(str(folder / "states.db")), Count(), "count")
    return topology


TOPOLOGIES = {"orders": totals_of_orders, "lines": counts_of_lines}


def run_until(folder: Path, point: str, txid: int) -> None:
    """Run both, and kill the process when both are at a point of a batch."""
    both = threading.Barrier(len(TOPOLOGIES))

    def die_together(at: str, attempt: Any) -> None:
        if (at, attempt.txid) == (point, txid):
            both.wait()
            die()

    def run(name: str) -> None:
        config = Config(engine="spark", master="local[2]", log_dir=str(folder / name))
        with running_start(TOPOLOGIES[name](folder).graph(), config, None, die_together) as started:
            started.await_termination()

    spark_session("both", "local[2]")  # before both ask for one
    for name in TOPOLOGIES:
        threading.Thread(target=run, args=(name,)).start()


def check_both(folder: Path) -> None:
    """Let both topologies run to their end, and compare their states with the rows of the sources."""
    for name, declared in TOPOLOGIES.items():
        with start(declared(folder), "in_process", log_dir=str(folder / name)) as running:
            running.process_all_available()
            assert running.txid == BATCHES
            if name == "orders":
                expected = {k: sum(range(k, ROWS, 7)) for k in range(7)}
                assert dict(running.state("total").get_tuples()) == expected
            else:
                assert counts(running) == {"all": 7, **{str(number): 1 for number in range(7)}}


@pytest.fixture
def both(spark: SparkSession, tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(BATCHES):
        (tmp_path / "in" / f"{number}.txt").write_text(f"all\n{number}\n", encoding="utf-8")
    return tmp_path


@pytest.mark.long
@pytest.mark.spark
def test_both_sources_are_exact_after_a_kill_between_commit_and_record(both: Path) -> None:
    assert exit_code_of(run_until, both, "committed", 3) == -signal.SIGKILL
    assert [last_txid(both / name) for name in TOPOLOGIES] == [2, 2]
    check_both(both)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_both_sources_are_exact_after_a_kill_at_each_point(both: Path) -> None:
    for txid, point in enumerate(("defined", "processed", "committing", "committed", "recorded", "succeeded"), 1):
        assert exit_code_of(run_until, both, point, txid) == -signal.SIGKILL
    check_both(both)
