"""Log, store and checkpoint that do not belong together: found by a named error before anything counts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from states.delta import DeltaState
from tests.harness.connect_servers import started
from trident import exactly_once, open_state
from trident.errors import CheckpointMismatchError, SpoutError, StartMismatchError, TridentError
from trident.one_aggregate import ExactlyOnce
from trident.operations import Count
from trident.run.handed_batches import QueryBatch, definition_of, definition_of_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Job:
    """A query over the files of a folder, one batch a file, with checkpoint, log and state in folders beside it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.files = spark, folder, 0
        (folder / "in").mkdir()

    def add(self, *words: str) -> None:
        self.files += 1
        part = self.folder / "part"
        part.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        part.rename(self.folder / f"in/{self.files:03}.txt")

    def state(self) -> Any:
        return DeltaState.opaque(str(self.folder / "state"))

    def function(self, **settings: Any) -> ExactlyOnce:
        return exactly_once(
            "words", self.state(), group_by="value", aggregate=Count(), value="n",
            schema="value: string", log_dir=str(self.folder / "log"), **settings,
        )  # fmt: skip

    def start(self, function: Callable[..., None], checkpoint: str = "checkpoint") -> StreamingQuery:
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "in"))
        writer = lines.writeStream.foreachBatch(function).trigger(availableNow=True)
        return started(writer.option("checkpointLocation", str(self.folder / checkpoint)).start)

    def run(self, checkpoint: str = "checkpoint", **settings: Any) -> dict[str, int]:
        with self.function(**settings) as function:
            self.start(function, checkpoint).awaitTermination()
        with open_state(function.topology, "n", log_dir=str(self.folder / "log")) as counts:
            found = counts.multi_get(["a", "b"])
        return {word: n for word, n in zip("ab", found, strict=True) if n is not None}

    def fails(self, checkpoint: str = "checkpoint", **settings: Any) -> str:
        """Run; return what Spark says why it stopped."""
        with self.function(**settings) as function, pytest.raises(StreamingQueryException) as raised:
            self.start(function, checkpoint).awaitTermination()
        return str(raised.value)

    def copy(self, name: str) -> Callable[[], None]:
        copy = self.folder / f"{name}-{self.files}"
        shutil.copytree(self.folder / name, copy)

        def restore() -> None:
            shutil.rmtree(self.folder / name)
            shutil.copytree(copy, self.folder / name)

        return restore

    def table(self) -> list[Path]:
        """Return what is written of the state."""
        return sorted(path for path in (self.folder / "state").rglob("*") if path.is_file())


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


def with_three_batches(job: Job) -> None:
    for words in ("ab", "a", "b"):
        job.add(*words)
    assert job.run() == {"a": 2, "b": 2}


def test_a_restart_goes_on(job: Job) -> None:
    with_three_batches(job)
    job.add("a")
    assert job.run() == {"a": 3, "b": 2}
    assert job.run() == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        ("checkpoint", ["Spark gives batch 0 of query", "the checkpoint was deleted"]),
        ("log", ["the log has no batch of any query"]),
    ],
)
def test_a_checkpoint_or_a_log_that_was_deleted_is_found(job: Job, lost: str, told: list[str]) -> None:
    with_three_batches(job)
    before = job.table()
    shutil.rmtree(job.folder / lost)
    job.add("a")
    said = job.fails()
    assert [text for text in ["CheckpointMismatchError", *told] if text not in said] == []
    assert job.table() == before


def replace_last_batch(job: Job) -> None:
    """Restore the checkpoint of before the last batch, of which the file has other rows now."""
    job.add("a", "b")
    job.run()
    restore = job.copy("checkpoint")
    job.add("a")
    job.run()
    restore()
    (job.folder / "in/002.txt").unlink()
    job.add("b")


@pytest.mark.long
def test_the_last_batch_with_other_rows_is_found(job: Job) -> None:
    replace_last_batch(job)
    said = job.fails()
    assert "Spark gives batch 1, planned at" in said
    assert "the same number means other rows" in said


@pytest.mark.long
def test_a_log_and_a_checkpoint_that_were_deleted_are_found_by_the_store(job: Job) -> None:
    with_three_batches(job)
    shutil.rmtree(job.folder / "log")
    shutil.rmtree(job.folder / "checkpoint")
    said = job.fails()
    assert StartMismatchError.__name__ in said
    assert "the log is new, and state 'n' has the totals of 3 batches" in said
    assert 'once with a new checkpoint and state_recovery="discard_totals"' in said
    assert "does not begin where the totals end" in job.fails(state_recovery="keep_totals")
    assert job.run(state_recovery="discard_totals") == {"a": 2, "b": 2}


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "history", "recovery", "told"),
    [
        ("log", {}, {}, ["the log is older than the checkpoint"]),
        ("state", {}, {}, [StartMismatchError.__name__]),
        (  # it is not rewound, because the batches are Spark's
            "state", {"history": "7d"}, {"state_recovery": "rewind"},
            ["RewindError", "does not give the rows of a recorded batch again"],
        ),
    ],
)  # fmt: skip
def test_a_log_or_a_store_that_was_restored_is_found(
    job: Job, what: str, history: dict[str, Any], recovery: dict[str, Any], told: list[str]
) -> None:
    job.add("a", "b")
    job.run(**history)
    restore = job.copy(what)
    job.add("a")
    job.run(**history)
    job.add("b")
    restore()
    before = job.table()
    said = job.fails(**history, **recovery)
    assert [text for text in told if text not in said] == []
    assert job.table() == before


@pytest.mark.long
def test_a_user_may_begin_with_another_checkpoint_on_purpose(job: Job) -> None:
    with_three_batches(job)
    shutil.rmtree(job.folder / "checkpoint")
    assert job.run(adopt_checkpoint=True) == {"a": 4, "b": 4}  # he has all rows once more, as he asked
    job.add("a")
    assert job.run() == {"a": 5, "b": 4}


@pytest.mark.long
def test_the_same_cell_of_a_notebook_runs_twice(job: Job) -> None:
    job.add("a", "b")
    first = job.function()
    job.start(first).awaitTermination()
    job.add("a")
    assert job.run() == {"a": 2, "b": 1}
    with pytest.raises(TridentError, match="is not open"):
        _ = first.txid


MINE, OTHER = "query-1", "query-2"


def definition(batch: int, base: int = 0, query: str | None = MINE, planned: int | None = None) -> dict[str, Any]:
    return {"batch": batch, "base": base, "query": query, "run": "run-1", "planned_ms": planned}


def test_the_batches_of_a_new_checkpoint() -> None:
    last: dict[str, Any] | None = None
    for txid in range(5):
        last = definition_of(QueryBatch(txid, MINE, "run-1", 1000 + txid), txid, last)
        assert last == definition(txid, planned=1000 + txid), "batch b is txid b + 1 - base, and base is 0"


def test_a_batch_that_spark_repeats_is_nothing_whatever_the_session_tells() -> None:
    for known in (definition(3, planned=7), definition(3, query=None), definition(3)):
        assert definition_of(QueryBatch(3, MINE, "run-2", 7), 4, known) is None
        assert definition_of(QueryBatch(3), 4, known) is None, "a session of Spark Connect tells nothing"


@pytest.mark.parametrize(
    ("found", "last", "said"),
    [
        (QueryBatch(4, MINE), None, "no batch of any query: the log was lost, the function was renamed, or"),
        (QueryBatch(3, MINE, None, 8), definition(3, planned=7), "planned at 8 ms.*the same number means other rows"),
        (QueryBatch(2, MINE), definition(3), "the checkpoint was deleted or restored from an older copy"),
        (QueryBatch(0), definition(3), "the checkpoint was deleted or restored from an older copy"),
        (QueryBatch(0, OTHER), definition(3), "the checkpoint was deleted, or two queries use one function or one log"),
        (QueryBatch(4, OTHER), definition(3), "the checkpoint was deleted, or two queries use one function or one log"),
        (QueryBatch(5, MINE), definition(3), "the log is older than the checkpoint"),
        (
            QueryBatch(4, MINE),
            {"name": "2026", "names": ["2026"], "floor": None},
            "written by name, the last one '2026'",
        ),
    ],
)
def test_what_does_not_belong_together_is_named(found: QueryBatch, last: dict[str, Any] | None, said: str) -> None:
    with pytest.raises(CheckpointMismatchError, match=said):
        definition_of(found, 4, last)


@pytest.mark.parametrize("batch", [0, 2, 9])
def test_a_user_may_take_any_batch_as_the_next(batch: int) -> None:
    taken = definition_of(QueryBatch(batch, OTHER, "run-1"), 4, definition(3), adopts=True)
    assert taken == definition(batch, base=batch - 4, query=OTHER)
    assert definition_of(QueryBatch(batch + 1, OTHER), 5, taken) is not None, "from then on it goes on"


def test_a_batch_that_was_begun_is_finished_as_it_was_begun() -> None:
    begun = definition(4, planned=9)
    assert definition_of(QueryBatch(4, MINE, "run-2", 9), 4, definition(3), begun) == begun
    for found in (QueryBatch(4, MINE, None, 10), QueryBatch(0, OTHER)):
        for adopts in (found.query == OTHER,):
            with pytest.raises(CheckpointMismatchError, match="the log has begun batch 4"):
                definition_of(found, 4, definition(3), begun, adopts)


def test_named_batches_in_any_order_are_each_written_once() -> None:
    last: dict[str, Any] | None = None
    for name in ("03", "01", "02"):
        last = definition_of_name(name, last)
        assert last is not None
        assert last["name"] == name
    for name in ("01", "02", "03"):
        assert definition_of_name(name, last) is None


def test_a_named_batch_that_was_begun_comes_first() -> None:
    begun = definition_of_name("02", None)
    assert definition_of_name("02", None, begun) == begun
    with pytest.raises(SpoutError, match="write batch '02' first"):
        definition_of_name("03", None, begun)


def test_named_batches_and_a_query_do_not_share_a_log() -> None:
    with pytest.raises(CheckpointMismatchError, match="come from a query, the last one is 3"):
        definition_of_name("02", definition(3))
    with pytest.raises(CheckpointMismatchError, match="come from a query, the last one is 0"):
        definition_of_name("02", None, definition(0))  # the first one was begun, and failed
    with pytest.raises(CheckpointMismatchError, match="written by name, the last one '02'"):
        definition_of(QueryBatch(0, MINE), 0, None, definition_of_name("02", None))
