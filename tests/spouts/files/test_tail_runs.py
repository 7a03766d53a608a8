"""Topologies that read files whose last lines are not whole: all else goes on, and no half of a line is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spouts import CsvFileSpout, FeederBatchSpout, JsonFileSpout
from states.memory import MemoryMapState
from tests.spouts.files.test_text_files import append, write
from trident import BatchFailedError, FailedException, TridentTopology
from trident.operations import Count, Filter, Sum, col
from trident.tuples import TridentTuple


class FailsOnce(Filter):
    """Fails at the first tuple, and has the rest of a line written then."""

    def __init__(self, path: Path, rest: bytes) -> None:
        self.path, self.rest = path, rest

    def is_keep(self, tuple: TridentTuple) -> bool:
        rest, self.rest = self.rest, b""
        if rest:
            append(self.path, rest)
            raise FailedException("for once")
        return True


def test_other_streams_go_on_and_stop_returns_while_the_end_of_a_line_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"v\n1\n2")
    topology, feeder = TridentTopology("t"), FeederBatchSpout("n: bigint")
    files = topology.new_stream("files", CsvFileSpout(path, "v: bigint", tail=3600))
    sums = files.persistent_aggregate(MemoryMapState(), "v", Sum(), "sum", state_name="v")
    topology.new_stream("fed", feeder).persistent_aggregate(MemoryMapState(), "n", Sum(), "sum", state_name="n")
    with topology.start(engine="in_process") as running:
        feeder.feed([(1,)])
        feeder.feed([(2,)])
        assert running.state(sums).get() == 1
        told = running.status["waiting"]
        assert told.startswith(
            f"waiting for the rest of {path} (1 bytes behind byte 4 are without a line end) (step 'files')"
        )
    with path.open("ab") as file:
        file.write(b"\n")
    with topology.start(engine="in_process") as running:
        running.process_all_available()
        assert running.state(sums).get() == 3


@pytest.mark.parametrize("where", ["in a step", "in a commit"])
def test_a_guess_that_an_attempt_made_is_made_anew_by_the_next_one(tmp_path: Path, where: str) -> None:
    path, topology = write(tmp_path / "a.csv", b"v\n10"), TridentTopology("t")
    fails = FailsOnce(path, b"19\n")
    stream = topology.new_stream("rows", CsvFileSpout(path, "v: bigint"))
    if where == "in a step":
        stream = stream.each("v", fails)
    sums = stream.persistent_aggregate(MemoryMapState.opaque(), "v", Sum(), "sum")
    if where == "in a commit":
        sums.new_values_stream().each("sum", fails)
    with topology.start(engine="in_process", log_dir=tmp_path / "log") as running:
        running.process_all_available()
        assert running.state(sums).get() == 1019


def test_what_a_transactional_state_may_hold_is_given_again_and_then_refused_with_both_halves(tmp_path: Path) -> None:
    path, topology = write(tmp_path / "a.csv", b"v\n10"), TridentTopology("t")
    stream = topology.new_stream("rows", CsvFileSpout(path, "v: bigint"))
    sums = stream.persistent_aggregate(MemoryMapState.transactional(), "v", Sum(), "sum")
    sums.new_values_stream().each("sum", FailsOnce(path, b"19\n"))
    with (
        pytest.raises(BatchFailedError, match="'10' .bytes 2 to 4. had no line end.* now '19' follows"),
        topology.start(engine="in_process", log_dir=tmp_path / "log") as running,
    ):
        running.process_all_available()
    assert running.txid == 1


@pytest.mark.parametrize("bad", [None, "bad"])
def test_a_line_null_is_no_row_and_ends_no_process(tmp_path: Path, bad: str | None) -> None:
    topology = TridentTopology("t")
    path = write(tmp_path / "a.json", b'null\n{"v":1}\nnull\n')
    stream = topology.new_stream("rows", JsonFileSpout(path, "v: bigint", bad_lines=bad))
    rows = stream.filter(col("bad").is_null()) if bad else stream
    count = rows.persistent_aggregate(MemoryMapState(), Count(), "count")
    settings: dict[str, Any] = {"engine": "in_process", "log_dir": tmp_path / "log"}
    if bad:
        with topology.start(**settings) as running:
            running.process_all_available()
            assert running.state(count).get() == 1
    else:
        with (
            pytest.raises(BatchFailedError, match=r"line 1 of .*a.json .at byte 0. is not a row: it is not an object"),
            topology.start(**settings) as running,
        ):
            running.process_all_available()


class RefuseBad(Filter):
    def is_keep(self, tuple: TridentTuple) -> bool:
        if tuple[0] is not None:
            raise ValueError(f"no row: {tuple[0]}")
        return True


def test_a_step_that_raises_for_bad_lines_makes_them_dead_letters(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.csv", b"id,name\n1,x\ntwo,y\n3,z\n4\n")
    topology = TridentTopology("bad")
    stream = topology.new_stream("rows", CsvFileSpout(tmp_path / "in", "id: bigint", bad_lines="bad", with_file=True))
    total = stream.each("bad", RefuseBad()).persistent_aggregate(MemoryMapState(), "id", Sum(), "sum")
    settings: dict[str, Any] = {"log_dir": tmp_path / "log", "on_poison": "dead_letter", "max_batch_attempts": 1}
    with topology.start(engine="in_process", **settings) as running:
        running.process_all_available()
        assert running.state(total).get() == 4
    (file,) = (tmp_path / "log" / "dead_letters").glob("*.jsonl")
    letters = [json.loads(line) for line in file.read_text().splitlines()]
    assert [letter["error"] for letter in letters] == ["ValueError: no row: two,y", "ValueError: no row: 4"]
