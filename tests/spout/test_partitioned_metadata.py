"""What emitters may do with metadata: change it in place, return it twice; and that none of them loses its position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from tests.harness.topology_runs import keep, start
from tests.spout.partition_source import FIELDS, Emitter, Source, emitting
from tests.spout.test_partitioned import BOTH
from trident import BatchFailedError, TridentTopology
from trident.spout import SpoutType


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
    """Readings and commits fail, and each row is still in one batch."""
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
    topology = TridentTopology("t")
    rows = keep(topology.new_stream("s", emitting(emitter, source, kind)))
    conf = {"max_batch_attempts": 9, "max_spout_pending": 3, "log_dir": str(tmp_path)}
    with start(topology, engine, observe, **conf) as running:
        running.process_all_available()
    assert not commits
    assert sorted(rows.rows) == [*(("a", n) for n in range(20)), ("b", 100)]


@pytest.mark.parametrize("kind", BOTH)
def test_an_emitter_that_returns_none_for_nothing_new_does_not_read_all_again(kind: SpoutType) -> None:
    source, topology = Source({"a": [1, 2]}), TridentTopology("t")
    rows = keep(topology.new_stream("s", emitting(Forgets, source, kind)))
    with (
        pytest.raises(
            BatchFailedError, match="'a' emitted 0 rows and returned None: the next batch would read the partition"
        ),
        start(topology, "in_process") as running,
    ):
        running.process_all_available()
    assert rows.rows == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("kind", BOTH)
def test_a_stream_that_had_another_kind_of_spout_says_so(kind: SpoutType, tmp_path: Path) -> None:
    before, after = TridentTopology("t"), TridentTopology("t")
    keep(before.new_stream("s", FixedBatchSpout(FIELDS, 1, ("a", 1))))
    rows = keep(after.new_stream("s", Source({"a": [2]}).spout(kind)))
    conf: dict[str, Any] = {"log_dir": str(tmp_path), "allow_changed_topology": True}
    with start(before, "in_process", **conf) as running:
        running.process_all_available()
    with (
        pytest.raises(BatchFailedError, match="definition of another kind of spout"),
        start(after, "in_process", **conf) as running,
    ):
        running.process_all_available()
    assert rows.rows == []
