"""Spouts that have nothing for one batch and something for the next; and batch spouts that do not repeat themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.harness.topology_runs import FailTimes, Points, RowsSpout, keep, run_all, start
from tests.runtime.loop.test_loop import HandClock, looping
from trident import BatchFailedError, Fields, TridentTopology
from trident.spout.interfaces import Definition, SpoutType, TransactionAttempt

EMPTY_IN_A_ROW = 10


class StormSpout(RowsSpout):
    """Emits a batch for every id, as Storm's do: what it has for it, or nothing."""

    def emit_batch(self, batch_id: int, collector: Any) -> bool:
        super().emit_batch(batch_id, collector)
        return True


class Gaps(RowsSpout):
    """Knows which batches are empty: those before the last one that it has."""

    def emit_batch(self, batch_id: int, collector: Any) -> bool:
        super().emit_batch(batch_id, collector)
        return batch_id < max(self.batches)


@pytest.fixture
def topology() -> TridentTopology:
    return TridentTopology("t")


@pytest.mark.parametrize("spout_type", SpoutType)
@pytest.mark.parametrize("pending", [1, 3])
def test_rows_behind_an_empty_batch_come(pending: int, spout_type: SpoutType, topology: TridentTopology) -> None:
    spout = Gaps("x: string", {1: [["a"]], 9: [["b"]], 11: [["c"]]}, spout_type)
    rows = keep(topology.new_stream("s", spout))
    running = run_all(topology, "in_process", max_spout_pending=pending, allow_inexact=True)
    assert {txid: given for txid, given in rows.batches.items() if given} == {1: [("a",)], 9: [("b",)], 11: [("c",)]}
    assert running.txid == 11
    assert spout.calls == ["open", *(f"ack {txid}" for txid in range(1, 12)), "close"]


@pytest.mark.parametrize("says", [None, False])
def test_a_spout_that_stops_at_an_empty_batch_is_told_how_to_go_on(
    topology: TridentTopology, says: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(RowsSpout):
        def emit_batch(self, batch_id: int, collector: Any) -> bool | None:
            super().emit_batch(batch_id, collector)
            return says

    rows = keep(topology.new_stream("s", Silent("x: string", {1: [["a"]], 3: [["c"]]})))
    with start(topology, "in_process") as running:
        for _ in range(3):
            running.process_all_available()
    assert rows.rows == [("a",)]
    told = "Silent.emit_batch(2) emitted nothing and returned None, so it is asked for batch 2 again"
    assert [told in record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == (
        [True] if says is None else []
    )


def test_empty_batches_run_on_spark(engine: str, topology: TridentTopology) -> None:
    rows = keep(topology.new_stream("s", Gaps("x: string", {1: [["a"]], 3: [["c"]]})).shuffle())
    run_all(topology, engine)
    assert rows.batches == {1: [("a",)], 3: [("c",)]}


def test_a_spout_that_has_a_batch_for_every_id_does_not_keep_anybody_waiting(topology: TridentTopology) -> None:
    spout = StormSpout("x: string", {1: [["a"]], 3: [["c"]]})
    rows = keep(topology.new_stream("s", spout))
    with start(topology, "in_process", poll_interval_ms=3_600_000, max_spout_pending=1) as running:
        running.process_all_available()
        assert rows.rows == [("a",), ("c",)]
        assert running.txid - 3 in (EMPTY_IN_A_ROW, EMPTY_IN_A_ROW + 1)  # one may come before anybody waits
        spout.batches = {running.txid + 6: [["d"]]}
        running.process_all_available()
        assert rows.rows == [("a",), ("c",), ("d",)]


class Metadata:
    """As Storm's transactional spouts: metadata for every batch, of which many have no part."""

    spout_type = SpoutType.TRANSACTIONAL

    def __init__(self, batches: Mapping[int, list[str]]) -> None:
        self.batches = batches

    def get_output_fields(self) -> Fields:
        return Fields("x: string")

    def get_coordinator(self, conf: Any) -> Metadata:
        return self

    def get_emitter(self, conf: Any) -> Metadata:
        return self

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition:
        return {"txid": txid}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> list[Any]:
        return [self.batches[attempt.txid]] if attempt.txid in self.batches else []

    def emit(self, part: Any) -> list[pa.Table]:
        return [pa.table({"x": part})]

    def success(self, txid: int, definition: Definition) -> None: ...
    def close(self) -> None: ...


def test_a_definition_without_parts_is_an_empty_batch(topology: TridentTopology) -> None:
    rows = keep(topology.new_stream("s", Metadata({2: ["b"], 9: ["c"]})))
    with start(topology, "in_process") as running:
        running.process_all_available()
    assert rows.rows == [("b",), ("c",)]


def test_an_idle_spout_makes_an_empty_batch_per_poll_and_no_more(topology: TridentTopology) -> None:
    keep(topology.new_stream("s", StormSpout("x: string", {1: [["a"]]})))
    clock, points = HandClock(), Points()
    with looping(topology, clock, points, engine="in_process", poll_interval_ms=10_000) as loop:
        points.await_point("succeeded", 2)
        for txid in (3, 4):
            clock.advance(9.75)
            clock.settle(loop.wake)
            assert len(points.attempts("defined")) == txid - 1
            clock.advance(0.25)
            loop.wake()
            points.await_point("succeeded", txid)


# ---- replays -------------------------------------------------------------------------------------------------------------

DEFINED = [["b", 2], ["c", None]]


@pytest.mark.parametrize(
    ("again", "said"),
    [
        ([["b", 2], ["d", None]], "2 rows with checksum .* in place of 2 rows with checksum"),
        ([["c", None], ["b", 2]], "2 rows with checksum .* in place of 2 rows with checksum"),
        ([["b", 2]], "1 rows with checksum .* in place of 2 rows with checksum"),
        ([], "0 rows with checksum .* in place of 2 rows with checksum"),
    ],
)
def test_a_transactional_spout_that_gives_other_rows_when_replayed_is_found(
    again: list[Any], said: str, topology: TridentTopology, tmp_path: Path
) -> None:
    (tmp_path / "calls").mkdir()
    spout = RowsSpout("x: string, n: int", {1: [["a", 1]], 2: DEFINED})
    failing = FailTimes(tmp_path / "calls", "b", 1, ConnectionError("away"))
    rows = keep(topology.new_stream("s", spout).each("x", failing, "y").project("y"))
    conf: dict[str, Any] = {"max_batch_attempts": 1, "log_dir": tmp_path / "log"}
    with pytest.raises(BatchFailedError, match="ConnectionError: away"):
        run_all(topology, "in_process", **conf)
    spout.batches = {2: again}
    with pytest.raises(BatchFailedError, match=rf"ReplayMismatchError: RowsSpout.emit_batch\(2\) gave .*{said}"):
        run_all(topology, "in_process", **conf)
    spout.batches = {2: DEFINED}
    run_all(topology, "in_process", **conf)
    assert rows.batches == {1: [("a",)], 2: [("b",), ("c",)]}


def test_a_spout_may_fill_the_same_list_again(topology: TridentTopology) -> None:
    class Reusing(RowsSpout):
        def emit_batch(self, batch_id: int, collector: Any) -> None:
            row: list[Any] = [None]
            for row[0] in ("a", "b") if batch_id == 1 else ():
                collector.emit(row)

    rows = keep(topology.new_stream("s", Reusing("x: string", {})))
    run_all(topology, "in_process")
    assert rows.rows == [("a",), ("b",)]
