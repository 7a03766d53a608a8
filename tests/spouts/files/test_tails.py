"""The ends of files that may not be whole: held, waited for without waiting, guessed and taken back, or refused."""

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from spouts import CsvFileSpout, FeederBatchSpout, JsonFileSpout, TextFileSpout
from spouts.files.file_coordinator import FileCoordinator
from states.memory import MemoryMapState
from tests.harness.topology_runs import run_all
from tests.spouts.files.test_text_files import LONG_AGO, append, write
from tests.spouts.reading import Row, definitions, rows_of
from trident import BatchFailedError, FailedException, TridentTopology
from trident.errors import BadDataError, ReplayMismatchError, SourceAwayError, SpoutError
from trident.operations import Count, Filter, Sum, col
from trident.spout import Definition
from trident.tuples import TridentTuple

NAMES = {"csv": CsvFileSpout, "json": JsonFileSpout, "text": TextFileSpout}


class Reader:
    """A spout of one file, read by the clock that the test sets, which begins when the file was written last."""

    def __init__(self, path: Path, fields: str | None = "v: bigint", **settings: Any) -> None:
        kind = path.suffixes[0][1:]
        self.spout = NAMES[kind](path, *([fields] if kind != "text" else []), **settings)
        self.path, self.now, self.last, self.txid = path, float(LONG_AGO), None, 0
        self.coordinator: FileCoordinator = self.spout.get_coordinator({}, lambda: self.now)

    def define(self) -> Definition | None:
        return self.coordinator.initialize_transaction(self.txid + 1, self.last)

    def read(self) -> list[Row]:
        found = []
        while (made := self.define()) is not None:
            found += rows_of(self.spout, self.coordinator, made)
            made = made if self.coordinator.traits(made).is_complete else self.coordinator.complete(made, {})
            self.last, self.txid = made, self.txid + 1
        return found

    def after(self, seconds: float, more: bytes = b"") -> list[Row]:
        """Read what there is some seconds later, when something more was written."""
        self.now += seconds
        if more:
            append(self.path, more, at=self.now)
        return self.read()


GOES_ON = [
    ("a.csv", "v: bigint", b"v\n10", b"19\n", [(1019,)]),
    ("b.csv", "v: bigint", b"v\r\n10\r", b"\n19\r\n", [(10,), (19,)]),
    ("a.text", None, b"one\nha", b"lf\n", [("one",), ("half",)]),
    ("b.text", None, b"a\n\xe2\x82", b"\xac\n", [("a",), ("€",)]),
    ("a.json", "v: bigint", b'{"v":1}\n{"v":', b"5}\n", [(1,), (5,)]),
]


@pytest.mark.parametrize(("name", "fields", "begin", "rest", "rows"), GOES_ON)
def test_a_line_that_is_continued_within_ten_seconds_is_one_line(
    tmp_path: Path, name: str, fields: str, begin: bytes, rest: bytes, rows: list[Row]
) -> None:
    reader = Reader(write(tmp_path / name, begin), fields)
    assert [*reader.read(), *reader.after(9), *reader.after(0.5, rest)] == rows


UNFINISHED = [
    ("a.csv", "v: bigint, w: bigint", b"v,w\n10", b"19,2\n", [(1019, 2)]),
    ("b.csv", "v: string", b'v\n"a', b'b"\n', [("ab",)]),
    ("c.csv", "v: string, w: bigint", b"v", b"alue,w,v\n1,2,3\n", [("3", 2)]),
    ("d.csv", "v: bigint", b"v\n-", b"5\n", [(-5,)]),
    ("e.csv", "v: date", b"v\n2024-0", b"2-29\n", None),
    ("f.csv", "v: bigint", b"\xef\xbb", b"\xbfv\n1\n", [(1,)]),
    ("g.csv", "v: bigint", b"v\n1\n\r", b"\n2\n", [(1,), (2,)]),
    ("a.json", "v: bigint", b'{"v":1}\n{"v":', b"5}\n", [(1,), (5,)]),
    ("b.json", "v: string", b'{"v":"}', b'"}\n', [("}",)]),
    ("c.json", "v: string", b'{"v":"a\\', b'""}\n', [('a"',)]),
    ("d.json", "v: array<struct<a:int>>", b'{"v":[{"a":1}', b"]}\n", [([{"a": 1}],)]),
    ("a.text", None, b"a\n\xf0\x9f", b"\x98\x80\n", [("a",), ("😀",)]),
    ("b.text", None, b"\xef\xbb\xbf", b"a\n", [("a",)]),
]


@pytest.mark.parametrize(("name", "fields", "begin", "rest", "rows"), UNFINISHED)
def test_what_cannot_be_whole_is_held_however_long(
    tmp_path: Path, name: str, fields: str, begin: bytes, rest: bytes, rows: list[Row] | None
) -> None:
    reader = Reader(write(tmp_path / name, begin), fields)
    found = [*reader.read(), *reader.after(1_000_000), *reader.after(1_000_000)]
    assert "bytes behind byte" in str(reader.coordinator.unavailable())
    found += reader.after(1, rest)
    assert reader.coordinator.unavailable() is None
    assert rows is None or found == rows
    assert len(found) == len(rows or [0])


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_half_of_a_compressed_file_is_held_until_the_rest_is_there(tmp_path: Path, cut: int) -> None:
    data = gzip.compress(b"one\n") + gzip.compress(b"two\n" * 9)
    cut = min(cut, len(data) - 1)
    reader = Reader(write(tmp_path / "a.text.gz", data[:cut]))
    is_member = cut == len(gzip.compress(b"one\n"))
    assert [*reader.read(), *reader.after(1000)] == ([("one",)] if is_member else [])
    if not is_member:
        assert reader.after(1, data[cut:]) == []
        assert reader.after(11) == [("one",)] + [("two",)] * 9


@pytest.mark.parametrize(
    ("begin", "rest"),
    [
        (b'v\n"a\n', b'b"\n'), (b'v\n"' + b"a" * 200_000 + b"\n", b'b"\n'), (b"v\n1\n2\n", b""), (b"v", b"\n1\n"),
        (b'\xef\xbb\xbf"x,y",v\n1,2\n', b""),
    ],
)  # fmt: skip
def test_a_file_of_rows_of_several_lines_is_read_once_it_is_whole(tmp_path: Path, begin: bytes, rest: bytes) -> None:
    reader = Reader(write(tmp_path / "a.csv", begin), "v: string", multiline=True)
    assert bool(reader.after(1000)) == (not rest)
    if rest:
        assert reader.after(1, rest) == []
        assert len(reader.after(11)) == 1


def test_a_last_line_without_an_end_is_read_after_ten_seconds_and_an_object_at_once(tmp_path: Path) -> None:
    reader = Reader(write(tmp_path / "a.csv", b"v\n1\n2"))
    assert reader.read() == [(1,)]
    assert "bytes behind byte 4 are without a line end" in str(reader.coordinator.unavailable())
    reader.coordinator.refresh()
    assert [*reader.after(9.9), reader.coordinator.may_have_more(), *reader.after(0.2)] == [True, (2,)]
    assert not reader.coordinator.may_have_more()
    assert reader.after(5, b"\r\n3\n") == [(3,)]
    reader = Reader(write(tmp_path / "a.json", b'{"v": 1}\n{"v": 2}'))
    assert [*reader.read(), *reader.after(1, b"\n")] == [(1,), (2,)]


def test_without_follow_a_last_line_is_read_at_once_and_said_to_be_bad_if_it_is(tmp_path: Path) -> None:
    assert Reader(write(tmp_path / "a.csv", b"v\n1\n2"), follow=False).read() == [(1,), (2,)]
    with pytest.raises(SpoutError, match=r"line 3 of .*a.csv \(at byte 8\) is not a row: .*Expected 2 columns"):
        Reader(write(tmp_path / "a.csv", b"v,w\n1,2\n3"), "v: bigint, w: bigint", follow=False).read()


def test_hold_reads_no_line_without_its_end_and_says_what_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader(write(tmp_path / "a.text", b"1\n2"), tail="hold")
    assert [*reader.read(), *reader.after(1_000_000)] == [("1",)]
    reader.coordinator.refresh()
    with caplog.at_level(logging.WARNING):
        assert not reader.coordinator.may_have_more()
        assert not reader.coordinator.may_have_more()
    (warned,) = caplog.messages
    assert warned.startswith(f"{reader.path} is not read to its end: 1 bytes behind byte 2 are not whole.")
    assert reader.after(1, b"2\n") == [("22",)]


def test_a_line_that_goes_on_all_the_time_is_not_waited_for_by_who_came_before(tmp_path: Path) -> None:
    reader = Reader(write(tmp_path / "a.text", b"half"))
    reader.coordinator.refresh()
    assert [*reader.read(), reader.coordinator.may_have_more()] == [True]
    assert [*reader.after(9, b" more"), reader.coordinator.may_have_more()] == [False]
    assert [*reader.after(9), *reader.after(2)] == [("half more",)]


def test_a_time_of_change_in_the_future_is_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    reader = Reader(write(tmp_path / "a.text", b"half", at=LONG_AGO + 10_000))
    assert [*reader.read(), *reader.after(9), *reader.after(2)] == [("half",)]


def test_a_guess_that_is_not_committed_is_cut_again_if_the_line_goes_on(tmp_path: Path) -> None:
    reader = Reader(write(tmp_path / "a.csv", b"v\n10"))
    reader.now += 11
    guess = reader.define()
    assert guess is not None
    assert rows_of(reader.spout, reader.coordinator, guess) == [(10,)]
    append(reader.path, b"19\n", at=reader.now)
    with pytest.raises(
        SourceAwayError, match="a.csv goes on after byte 4, where it seemed to be complete; it is read again"
    ):
        reader.coordinator.complete(guess, {})
    assert reader.read() == [(1019,)]


@pytest.mark.parametrize("name", ["a.text.gz", "a.csv"])
def test_a_file_that_is_read_whole_and_grows_meanwhile_is_cut_again(tmp_path: Path, name: str) -> None:
    data, more = (gzip.compress(b"1\n"), gzip.compress(b"2\n")) if name.endswith(".gz") else (b"v\n1\n", b"2\n")
    reader = Reader(write(tmp_path / name, data), "v: string", **({"multiline": True} if name == "a.csv" else {}))
    reader.now += 11
    guess = reader.define()
    append(reader.path, more, at=reader.now)
    with pytest.raises(SourceAwayError, match="it is read again"):
        rows_of(reader.spout, reader.coordinator, guess)
    with pytest.raises(SourceAwayError, match="it is read again"):
        reader.coordinator.complete(guess, {})
    assert [*reader.read(), *reader.after(11)] == [("1",), ("2",)]
    append(reader.path, more, at=reader.now)
    with pytest.raises(ReplayMismatchError, match="such files are read once, whole"):
        reader.define()


@pytest.mark.parametrize(("more", "shown"), [(b"19\n5\n", "'19'"), (b"1", "'1'"), (b"\rx", r"'\rx'")])
def test_a_line_that_goes_on_after_it_was_committed_is_refused_with_both_halves(
    tmp_path: Path, more: bytes, shown: str
) -> None:
    reader = Reader(write(tmp_path / "a.csv", b"v\n10"))
    assert reader.after(11) == [(10,)]
    append(reader.path, more, at=reader.now)
    again = reader.spout.get_coordinator({})
    for each in (reader.coordinator, reader.coordinator, again):
        with pytest.raises(BadDataError) as caught:
            each.initialize_transaction(2, reader.last)
        assert f"{reader.path} goes on in the middle of a line that was given already: '10' (bytes 2 to 4)" in str(
            caught.value
        )
        assert f"now {shown} follows" in str(caught.value)
        assert "insert a line end at byte 4" in str(caught.value)
        assert "give tail='hold'" in str(caught.value)


def test_the_first_way_out_counts_both_lines_once(tmp_path: Path) -> None:
    reader = Reader(write(tmp_path / "a.csv", b"v\n10"))
    assert reader.after(11) == [(10,)]
    write(reader.path, b"v\n10\n19\n", at=reader.now)
    assert reader.read() == [(19,)]
    reader = Reader(write(tmp_path / "b.csv", b'v\n"a"'), "v: string", multiline=True)
    assert reader.after(11) == [("a",)]
    append(reader.path, b"b\n", at=reader.now)
    with pytest.raises(BadDataError, match="put what follows byte 5 into a file of its own"):
        reader.define()


def test_other_files_are_read_while_one_is_waited_for_and_it_is_not_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a", b"half")
    write(tmp_path / "b", b"1\n2\n")
    spout = TextFileSpout(tmp_path)
    coordinator = spout.get_coordinator({}, lambda: float(LONG_AGO))
    (made,) = definitions(coordinator)
    assert rows_of(spout, coordinator, made) == [("1",), ("2",)]
    monkeypatch.setattr("spouts.files.file_coordinator.opened", None)
    assert coordinator.initialize_transaction(2, made) is None
    assert f"the rest of {tmp_path / 'a'} (" in str(coordinator.unavailable())


@pytest.mark.parametrize("header", [True, False])
def test_lines_that_end_with_a_lone_return_are_refused_or_read_with_multiline(tmp_path: Path, header: bool) -> None:
    path = write(tmp_path / "a.csv", b"v,w\r1,2\r3,4\r"[0 if header else 4 :])
    reader = Reader(path, "v: bigint, w: bigint", header=header)
    said = (
        r"the header of .*a.csv cannot be read .*multiline=True"
        if header
        else r"line 1 of .*a.csv .*\\r alone ends one"
    )
    with pytest.raises(BadDataError, match=said):
        reader.after(1000)
    assert Reader(path, "v: bigint, w: bigint", header=header, multiline=True).after(1000) == [(1, 2), (3, 4)]


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
    running = run_all(topology, "in_process")
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
    running = run_all(topology, "in_process", log_dir=tmp_path / "log")
    assert running.state(sums).get() == 1019


def test_what_a_transactional_state_may_hold_is_given_again_then_refused(tmp_path: Path) -> None:
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
    running = run_all(topology, "in_process", **settings)
    assert running.state(total).get() == 4
    (file,) = (tmp_path / "log" / "dead_letters").glob("*.jsonl")
    letters = [json.loads(line) for line in file.read_text().splitlines()]
    assert [letter["error"] for letter in letters] == ["ValueError: no row: two,y", "ValueError: no row: 4"]
