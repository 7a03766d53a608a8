"""Tuples that are put aside are whole, and come back through the topology once, whatever happens on the way."""

import datetime as dt
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spouts import FeederBatchSpout, FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import RowsSpout, dict_state, keep, operation, run_all, start, topology_of
from trident import BatchFailedError, FailedException, Stream, TridentCollector, TridentTopology, TridentTuple
from trident.engine.fragment_runs import check_places, put_backs_of
from trident.engine.routing import RowFrame
from trident.errors import LogError
from trident.fields import Fields
from trident.log.log_state import LogState
from trident.log.records import LETTERS
from trident.operations import (
    BaseAggregator,
    BaseQueryFunction,
    BaseStateUpdater,
    CombinerAggregator,
    Count,
    Function,
    GroupedMultiReducer,
    ReducerAggregator,
    TumblingDurationWindow,
    arrow_function,
)
from trident.plan import Fragment
from trident.run.dead_letters import DeadLetter, DeadLetters, state_of, waiting
from trident.run.running import RunningTopology
from trident.spout.interfaces import TransactionAttempt
from trident.state.encoding.codec import decode, encode
from trident.state.encoding.equal_keys import canonical_key
from trident.steps.failures import Failure, LeftOut, StepFailed
from trident.testing import TopologyTestDriver

broken = True
"""Whether what raises at "bad" raises."""


@pytest.fixture(autouse=True)
def _broken() -> Iterator[None]:
    mend(False)
    yield
    mend(False)


def mend(mended: bool = True) -> None:
    global broken
    broken = not mended


def fail(word: str) -> int:
    raise FailedException("the whole batch")


def look_at(word: Any) -> Any:
    if broken and word == "bad":
        raise ValueError("cannot read this")
    return word


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {
        "on_poison": "dead_letter",
        "dead_letter_dir": str(tmp_path / "letters"),
        "log_dir": str(tmp_path / "log"),
        "max_batch_attempts": 1,
    }


def letters_of(running: RunningTopology) -> list[DeadLetter]:
    return list(DeadLetters(running.config.dead_letter_folder(running.name)).all(running.log_state))


def put_back(running: RunningTopology, *ids: tuple[int, int]) -> None:
    """Ask for letters (batch, number) and wait until they are back; for all that wait if none are named."""
    asked: dict[int, list[list[int]]] = {}
    for txid, number in ids or [(letter.txid, letter.number) for letter in letters_of(running)]:
        asked.setdefault(txid, []).append([number, number + 1])
    DeadLetters(running.config.dead_letter_folder(running.name)).request(running.log_state, asked)
    running.process_all_available()


HalfWay = operation(
    "HalfWay", Function, "string", execute=lambda row, collector: (collector.emit([row[0]]), look_at(row[0]))
)
Careful = operation(
    "Careful", CombinerAggregator,
    zero=lambda: 0, init=lambda row: len(str(look_at(row[0]))), combine=lambda left, right: left + right,
)  # fmt: skip
CarefulReducer = operation(
    "CarefulReducer", ReducerAggregator, init=lambda: 0, reduce=lambda curr, row: curr + len(look_at(row[0]))
)
CarefulAggregator = operation(
    "CarefulAggregator", BaseAggregator,
    init=lambda batch_id, collector: [0],
    aggregate=lambda val, row, collector: [val[0] + bool(look_at(row[0]))],
    complete=lambda val, collector: collector.emit([val[0]]),
)  # fmt: skip
CarefulMulti = operation(
    "CarefulMulti", GroupedMultiReducer,
    init=lambda collector, group: 0,
    execute=lambda state, index, group, row, collector: state + (10 * bool(look_at(group[0])) if index else 1),
    complete=lambda state, group, collector: collector.emit([state]),
)  # fmt: skip
Ask = operation(
    "Ask", BaseQueryFunction,
    batch_retrieve=lambda state, args: list(state.multi_get([row.values for row in args])),
    execute=lambda row, result, collector: look_at(row[0]) and collector.emit([result or 0]),
)  # fmt: skip


@arrow_function("again: string")
def vectorised(words: pa.Array) -> pa.Array:
    for word in words.to_pylist():
        look_at(word)
    return words


def chosen(row: TridentTuple, partitions: int) -> int:
    look_at(row[0])
    return len(row[0]) % partitions


def multi(stream: Stream) -> Stream:
    other = stream.each("n", lambda n: n + 1, "m: int").project("word", "m")
    streams = (stream.group_by("word"), other.group_by("word"))
    return topology_of(stream).multi_reduce(*streams, CarefulMulti(), "seen: bigint")


PLACES: dict[str, Callable[[Stream], Any]] = {
    "each": lambda s: s.each("word", look_at, "again: string"),
    "half way": lambda s: s.each("word", HalfWay(), "again"),
    "filter": lambda s: s.filter("word", lambda word: look_at(word) is not None),
    "map": lambda s: s.map(lambda row: (look_at(row[0]), row[1]), "word: string, n: int"),
    "flat map": lambda s: s.flat_map(lambda row: [(look_at(row[0]), row[1])] * 2, "word: string, n: int"),
    "peek": lambda s: s.peek(lambda row: look_at(row[0])),
    "vectorised": lambda s: s.each("word", vectorised, "again"),
    "two steps": lambda s: s.each("word", lambda word: word.upper(), "up: string").each("word", look_at, "again: string"),
    "no columns": lambda s: s.each("word", look_at, "again: string").project("again"),
    "behind an exchange": lambda s: s.partition_by("word").each("word", look_at, "again: string").parallelism_hint(3),
    "custom partition": lambda s: s.partition(chosen).parallelism_hint(3),
    "partition aggregate": lambda s: s.partition_aggregate("word", Careful(), "size"),
    "global aggregate": lambda s: s.aggregate("word", CarefulReducer(), "size"),
    "behind a state": lambda s: (
        s.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count").new_values_stream().each(
            "word", look_at, "again: string")
    ),
    "exchange behind a state": lambda s: (
        s.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count").new_values_stream().shuffle().each(
            "word", look_at, "again: string").parallelism_hint(2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_letter_comes_in_where_it_was_left_out_and_nowhere_else(place: str, settings: dict[str, Any]) -> None:
    """Another branch, which the tuple went through the first time, does not see it again."""

    def outcome(rows: Sequence[Sequence[Any]], again: bool) -> tuple[Any, Any]:
        feeder, topology = FeederBatchSpout("word: string, n: int"), TridentTopology("t")
        stream = topology.new_stream("s", feeder)
        kept = keep(PLACES[place](stream))
        other = stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count", state_name="other")
        with start(topology, "in_process", **settings, parallelism=3) as running:
            feeder.feed(rows)
            running.process_all_available()
            if again:
                assert [letter.left_out.values["word"] for letter in letters_of(running)] == ["bad"]
                assert running.status["deadLetters"] == 1
                mend()
                put_back(running)
                assert running.status["deadLetters"] == 0
                put_back(running)  # once
                assert running.txid == 2
            else:
                mend()
                feeder.feed([["bad", 4]])
                running.process_all_available()
            count = dict(running.state(other).get_tuples())
        mend(False)
        return kept.batches, count

    good = [["one", 1], ["three", 2]]
    batches, count = outcome([*good, ["bad", 4]], again=True)
    assert count == {"one": 1, "three": 1, "bad": 1}
    settings["log_dir"] += "2"
    expected, _ = outcome(good, again=False)
    assert {txid: sorted(rows) for txid, rows in batches.items()} == {
        txid: sorted(rows) for txid, rows in expected.items()
    }


KEYED: dict[str, tuple[Callable[[Stream], Any], list[tuple[Any, ...]], list[tuple[Any, ...]]]] = {
    "grouped aggregate": (
        lambda s: s.group_by("word").aggregate("word", CarefulAggregator(), "size"),
        [("bad", 0), ("one", 1)],
        [("bad", 2)],
    ),
    "multi reduce": (multi, [(2,), (11,)], [(20,)]),
}


@pytest.mark.parametrize("partitions", [3, 5])
@pytest.mark.parametrize("place", KEYED)
def test_letters_of_one_key_meet_in_its_partition(place: str, partitions: int, settings: dict[str, Any]) -> None:
    declared, first, second = KEYED[place]
    feeder, topology = FeederBatchSpout("word: string, n: int"), TridentTopology("t")
    kept = keep(declared(topology.new_stream("s", feeder)))
    with start(topology, "in_process", **settings, parallelism=3) as running:
        feeder.feed([["one", 1], ["bad", 4], ["bad", 5]])
        running.process_all_available()
        assert sorted(kept.batches[1]) == first
    mend()
    with start(topology, "in_process", **settings, parallelism=partitions) as running:
        put_back(running)
    assert kept.batches[2] == second


PARTED: dict[str, Callable[[Stream, MemoryMapState], Stream]] = {
    "shuffle": lambda s, _: s.shuffle().each("word", look_at, "again: string"),
    "hash": lambda s, _: s.partition_by("n").each("word", look_at, "again: string"),
    "broadcast": lambda s, _: s.broadcast().each("word", look_at, "again: string"),
    "behind a state": lambda s, state: (
        s.group_by("word", "n").persistent_aggregate(state, Count(), "count").new_values_stream().shuffle()
        .each("word", look_at, "again: string")
    ),
    "grouped aggregate": lambda s, _: s.group_by("word", "n").aggregate("word", CarefulAggregator(), "size"),
}  # fmt: skip


@pytest.mark.parametrize("place", PARTED)
def test_letters_of_more_partitions_than_there_are_now_all_come_back(place: str, settings: dict[str, Any]) -> None:
    """Letters of runs with 4, 3 and 2 partitions meet in the partitions of a run with 2."""
    feeder, state = FeederBatchSpout("word: string, n: int"), MemoryMapState()

    def started(partitions: int) -> tuple[RunningTopology, Any]:
        topology = TridentTopology("t")
        kept = keep(PARTED[place](topology.new_stream("s", feeder), state).parallelism_hint(partitions))
        return start(topology, "in_process", **settings), kept

    aside = 0
    for partitions in (4, 3, 2):
        running, _ = started(partitions)
        with running:
            feeder.feed([["bad", n] for n in range(8)])
            running.process_all_available()
            aside = running.status["deadLetters"]
    assert aside == (8 * (4 + 3 + 2) if place == "broadcast" else 3 * 8)
    mend()
    running, kept = started(2)
    with running:
        put_back(running)
        assert running.status["deadLetters"] == 0
    came = kept.batches[4]
    assert (sum(row[-1] for row in came) if place == "grouped aggregate" else len(came)) == aside


def test_letters_without_columns_of_several_partitions_all_come_back() -> None:
    """Arrow forgets the rows of tables without columns where it puts them together."""
    nothing = pa.table({"_": pa.nulls(2)}).select([])
    frames = [RowFrame("s", 0, 0, (LETTERS, 4, partition), nothing, "s/each") for partition in (0, 2)]
    assert put_backs_of(frames)["s/each", 0].num_rows == 4


def test_rows_that_come_in_nowhere_fail_the_batch() -> None:
    fragment = Fragment("s", Fields([]), (), ())
    with pytest.raises(StepFailed) as failed:
        check_places(fragment, {("s/gone", 0): pa.table({"word": ["bad"]})})
    assert "come in at 's/gone' (input 0), which is not behind 's'" in failed.value.failure.cause


def test_a_query_of_a_state_asks_again(settings: dict[str, Any]) -> None:
    feeder, topology = FeederBatchSpout("word: string"), TridentTopology("t")
    stream = topology.new_stream("s", feeder)
    counts = stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count", state_name="counts")
    kept = keep(stream.state_query(counts, "word", Ask(), "before"))
    with start(topology, "in_process", **settings) as running:
        feeder.feed([["bad"], ["good"]])
        mend()
        put_back(running)
    assert kept.batches == {1: [("good", 0)], 2: [("bad", 1)]}


def test_a_window_takes_a_letter_by_the_time_that_it_has(settings: dict[str, Any]) -> None:
    feeder, topology = FeederBatchSpout("word: string, at: bigint"), TridentTopology("t")
    window = TumblingDurationWindow.of(dt.timedelta(milliseconds=10)).by_event_time("at")
    fired = keep(topology.new_stream("s", feeder).window(window, "word", Careful(), "size"))
    with start(topology, "in_process", **settings) as running:
        feeder.feed([["bad", 2], ["one", 3], ["three", 4]])
        mend()
        put_back(running)
        feeder.feed([["later", 11]])
    assert fired.batches == {3: [(11,)]}


@pytest.mark.spark
def test_letters_come_in_on_spark(settings: dict[str, Any]) -> None:
    """At the steps of a spout, behind an exchange, and behind a state; the workers look at a file to see what is mended."""
    mended = Path(settings["log_dir"] + "-mended")

    def careful(word: str) -> str:
        if word == "bad" and not mended.exists():
            raise ValueError("cannot read this")
        return word

    feeder, topology = FeederBatchSpout("word: string"), TridentTopology("t")
    stream = topology.new_stream("s", feeder)
    kept = [
        keep(stream.each("word", careful, "again: string"), "spout"),
        keep(stream.partition_by("word").each("word", careful, "again: string").parallelism_hint(2), "exchange"),
    ]
    counts = stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    kept.append(keep(counts.new_values_stream().project("word").each("word", careful, "again: string"), "state"))
    with start(topology, "spark", **settings, parallelism=2) as running:
        feeder.feed([["bad"], ["good"]])
        assert running.status["deadLetters"] == 3
        mended.touch()
        put_back(running)
    assert [rows.batches for rows in kept] == [{1: [("good", "good")], 2: [("bad", "bad")]}] * 3


FIELDS = (
    "n: bigint, f: float, d: decimal(10,2), day: date, at: timestamp, raw: binary, texts: array<string>, "
    "pair: struct<a: int, b: string>, map: map<string,int>, nothing: string"
)
ROW = (
    1 << 60, 0.1, Decimal("12.30"), dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 1, 2, 3, 4, dt.UTC), b"\xff\x00",
    ["ü", None], {"a": 1, "b": None}, [("k", 1)], None,
)  # fmt: skip


def test_a_letter_holds_the_whole_tuple_typed_and_it_comes_back_as_it_was(settings: dict[str, Any]) -> None:
    def careful(n: int) -> int:
        look_at("bad")
        return n

    topology = TridentTopology("t")
    kept = keep(topology.new_stream("s", RowsSpout(FIELDS, {1: [ROW]})).each("n", careful, "again: bigint"))
    whole = keep(topology.new_stream("other", RowsSpout(FIELDS, {1: [ROW]})), "whole")
    with start(topology, "in_process", **settings) as running:
        running.process_all_available()
        (letter,) = letters_of(running)
        assert (letter.id, letter.txid, letter.attempt, letter.failure.step) == ("1-0", 1, 1 << 20, "s/careful")
        assert letter.failure.cause == "ValueError: cannot read this"
        assert "look_at" in letter.failure.details
        given = tuple(
            list(one.items()) if one == {"k": 1} else one for one in whole.rows[0]
        )  # a map as pairs, to be edited
        assert (*letter.left_out.values.values(),) == given
        assert list(map(type, letter.left_out.values.values())) == list(map(type, given))
        mend()
        put_back(running)
    assert kept.rows == [(*whole.rows[0], whole.rows[0][0])]


def test_what_an_operation_changed_in_place_stays_changed(settings: dict[str, Any]) -> None:
    def count_first(val: list[int], row: TridentTuple, collector: TridentCollector) -> list[int]:
        val[0] += 1
        look_at(row[0])
        return val

    counts = operation("CountsFirst", CarefulAggregator, aggregate=count_first)()

    topology, spout = TridentTopology("t"), FixedBatchSpout("w: string", 2, ["a"], ["bad"])
    kept = keep(topology.new_stream("s", spout).aggregate("w", counts, "n"))
    with start(topology, "in_process", **settings) as running:
        running.process_all_available()
        assert ([letter.left_out.values["w"] for letter in letters_of(running)], kept.rows) == (["bad"], [(2,)])


def test_a_letters_file_is_json_to_be_read(settings: dict[str, Any]) -> None:
    error = "cannot say \udc80 \u2028"
    letter = DeadLetter(
        3, 1 << 20, 0, Failure("step", "[x='ü']", error, left_out=LeftOut({"x": "\u2028\n"}, "s", 1, 2, 3))
    )
    assert DeadLetter.of_line(letter.to_line()) == letter
    folder = DeadLetters(settings["dead_letter_dir"])
    folder.write(TransactionAttempt(3, 1 << 20), [letter.failure], "abc")
    (path,) = folder.folder.iterdir()
    line, rest = path.read_text(encoding="utf-8").split("\n")
    assert rest == ""
    assert json.loads(line)["tuple"] == "[x='ü']"


def counting_topology() -> TridentTopology:
    topology = TridentTopology("t")
    words = topology.new_stream("s", RowsSpout("word: string", {})).each("word", look_at, "again: string")
    words.group_by("again").persistent_aggregate(MemoryMapState(), Count(), "count")
    return topology


@contextmanager
def driven(settings: dict[str, Any], *words: str, **more: Any) -> Iterator[tuple[TopologyTestDriver, DeadLetters]]:
    """Commit a batch of words; give the driver, and the folder of its letters."""
    with TopologyTestDriver(counting_topology(), **{**settings, **more}) as driver:
        driver.feed("s", *words)
        driver.run()
        yield driver, DeadLetters(settings["dead_letter_dir"])


def later(driver: TopologyTestDriver) -> list[Any]:
    """Look for requests again."""
    driver.clock.advance(1)
    return driver.run()


POINTS = ["define", "process", "begin_commit:count", "put:count", "commit:count", "record"]


@pytest.mark.parametrize("point", POINTS)
def test_no_failure_loses_a_letter_or_puts_it_back_twice(point: str, settings: dict[str, Any]) -> None:
    with driven(settings, "bad", "good", "bad", max_batch_attempts=3) as (driver, folder):
        assert (driver.txid, waiting(driver.log_state)) == (1, 2)
        mend()
        folder.request(driver.log_state, {1: [[0, 2]]})
        driver.feed("s", "good")
        driver.clock.advance(1)
        driver.fail_at(point)
        driver.run()
        assert driver.state("count").multi_get(["good", "bad"]) == [2, 2]
        later(driver)
        assert (driver.txid, waiting(driver.log_state), list((folder.folder / "replay").iterdir())) == (2, 0, [])
        assert driver.log_state.put_back == {1: [[0, 2]]}


def test_a_driver_that_dies_between_states_and_record_puts_the_same_letters_back(settings: dict[str, Any]) -> None:
    """Though more are asked for meanwhile."""
    with driven(settings, "bad", "bad", "bad") as (driver, folder):
        mend()
        folder.request(driver.log_state, {1: [[1, 2]]})
        driver.clock.advance(1)
        driver.fail_at("record")
        driver.step()
        folder.request(driver.log_state, {1: [[0, 3]]})
        driver.step()
        assert driver.log_state.put_back == {1: [[1, 2]]}
        driver.run()
        assert driver.log_state.put_back == {1: [[0, 3]]}
        assert (driver.txid, driver.state("count").multi_get(["bad"])) == (3, [3])


def test_a_letter_is_put_back_with_the_values_that_its_batch_began_with(settings: dict[str, Any]) -> None:
    """Though other values are asked for meanwhile, and by the driver that takes over."""
    with driven(settings, "bad", "bad") as (driver, folder):
        letter = folder.of_batch(driver.log_state, 1)[0]
        folder.request(driver.log_state, {1: [[0, 1]]}, [letter.with_values({"word": "mended"})])
        driver.clock.advance(1)
        driver.fail_at("record")
        driver.step()
        folder.request(driver.log_state, {1: [[0, 1]]}, [letter.with_values({"word": "too late"})])
        driver.run()
        later(driver)
        assert driver.state("count").multi_get(["mended", "too late", "bad"]) == [1, None, None]
        assert (driver.log_state.put_back, waiting(driver.log_state)) == ({1: [[0, 1]]}, 1)
        assert folder.of_batch(driver.log_state, 1)[0] == letter
        assert folder.as_put_back(driver.log_state, 1)[0].left_out.values == {"word": "mended"}


def test_the_last_values_that_were_asked_for_are_put_back(settings: dict[str, Any]) -> None:
    with driven(settings, "bad") as (driver, folder):
        (letter,) = folder.all(driver.log_state)
        for word in ("first", "second"):
            folder.request(driver.log_state, {1: [[0, 1]]}, [letter.with_values({"word": word})])
        later(driver)
        later(driver)
        assert driver.state("count").multi_get(["first", "second"]) == [None, 1]
        assert (driver.txid, list((folder.folder / "replay").iterdir())) == (2, [])


def test_a_discarded_letter_waits_no_more_is_not_put_back_and_says_why(settings: dict[str, Any]) -> None:
    with driven(settings, "bad", "bad", "bad") as (driver, folder):
        mend()
        folder.request(driver.log_state, {1: [[0, 3]]})
        folder.request(driver.log_state, {1: [[0, 2], [7, 9]]}, reason="a test")  # there are no such others
        later(driver)
        later(driver)
        told = LogState.from_data(decode(encode(driver.log_state.to_data())))
        assert [state_of(letter, told) for letter in driver.dead_letters] == [
            "discarded: a test", "discarded: a test", "put back",
        ]  # fmt: skip
        assert (waiting(told), driver.state("count").multi_get(["bad"])) == (0, [1])
        assert list((folder.folder / "replay").iterdir()) == []


def test_letters_are_of_committed_batches_and_written_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with TopologyTestDriver(counting_topology(), on_poison="dead_letter") as driver:
        driver.feed("s", "good", "bad")
        driver.run()
        (letter,) = driver.dead_letters
        assert (letter.txid, letter.failure.step, letter.failure.cause) == (
            1,
            "s/look_at",
            "ValueError: cannot read this",
        )
        assert letter.left_out.values == {"word": "bad"}
    assert list(tmp_path.iterdir()) == []


def test_a_tuple_that_becomes_a_letter_is_one_warning_and_a_batch_that_fails_is_one_each(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def told(function: Any, **conf: Any) -> list[tuple[str, str]]:
        topology = TridentTopology("t")
        words = topology.new_stream("s", FixedBatchSpout("word: string", 1, ["bad"]))
        keep(words.each("word", function, "again: string"))
        with suppress(BatchFailedError):
            run_all(topology, "in_process", **{**settings, **conf})
        found = [(record.levelname, record.getMessage()) for record in caplog.records]
        caplog.clear()
        return found

    caplog.set_level(logging.INFO, "trident.events")
    of_letters = told(look_at, max_batch_attempts=3)
    notes = [text for level, text in of_letters if level == "INFO" and "failed in step" in text]
    assert notes
    assert all("the last try leaves the tuple out, as a dead letter" in text for text in notes)
    (warning,) = [text for level, text in of_letters if level == "WARNING"]
    assert warning.endswith("; 1 tuple left out: a dead letter each")
    settings["log_dir"] += "2"
    assert [level for level, text in told(fail, max_batch_attempts=2) if "failed in step" in text] == ["WARNING"] * 2


@pytest.mark.parametrize(
    ("most", "in_bytes", "sizes"), [(2, 1000, [2, 2, 1]), (9, 2.5, [2, 2, 1]), (2, 2.5, [2, 2, 1]), (9, 0.1, [1] * 5)]
)
def test_many_letters_come_back_in_several_batches(
    most: int, in_bytes: float, sizes: list[int], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there may be of them, or as have so many bytes."""
    monkeypatch.setattr("trident.run.replays._MOST", most)
    feeder, topology = FeederBatchSpout("word: string"), TridentTopology("t")
    kept = keep(topology.new_stream("s", feeder).each("word", look_at, "again: string"))
    with start(topology, "in_process", **settings) as running:
        feeder.feed([["bad"]] * 3)
        feeder.feed([["bad"]] * 2)
        size = letters_of(running)[0].size
        monkeypatch.setattr("trident.run.replays._MOST_BYTES", int(in_bytes * size))
        mend()
        put_back(running)
        assert running.log_state.put_back == {1: [[0, 3]], 2: [[0, 2]]}
    assert {txid: len(rows) for txid, rows in kept.batches.items()} == dict(enumerate(sizes, 3))


def test_letters_count_in_the_size_of_their_batch(settings: dict[str, Any]) -> None:
    """A large one is no batch for the thread of the loop."""
    with driven(settings, "bad", "bad") as (driver, _):
        _, letter = DeadLetters(settings["dead_letter_dir"]).all(driver.log_state)
        driver.log_state.definitions[2] = {LETTERS: {1: [[1, 2]]}}
        defined: Any = driver._drive.loop._sources.define(2, {})
        batch = driver._drive.loop._new_batch(0.0, *defined)
        assert batch.sizes == {LETTERS: letter.size}
        assert batch.size == letter.size > 0


def test_letters_of_a_life_that_did_not_commit_them_go_with_it(settings: dict[str, Any]) -> None:
    """The next driver does the batch again, and then nothing of it fails."""
    with TopologyTestDriver(counting_topology(), **settings) as driver:
        driver.feed("s", "bad", "good")
        driver.fail_at("record")
        driver.step()
        mend()
        assert [result.committed for result in driver.run()] == [True]
        assert list(DeadLetters(settings["dead_letter_dir"]).all(driver.log_state)) == []
        assert waiting(driver.log_state) == 0
        folder = DeadLetters(settings["dead_letter_dir"])
        assert folder.of_batch(driver.log_state, 1) == []
        assert len(list(folder.folder.glob("*.jsonl"))) == 1  # it might be a letter of another log of the same start


def test_a_copy_of_a_log_leaves_the_letters_of_the_original_alone(settings: dict[str, Any], tmp_path: Path) -> None:
    """They have one folder, and the copy knows less."""
    with driven(settings, "good") as (driver, _):
        shutil.copytree(settings["log_dir"], tmp_path / "copy")
        driver.feed("s", "bad")
        driver.run()
        copy = {**settings, "log_dir": str(tmp_path / "copy"), "state_recovery": "keep_totals_even_if_wrong"}
        TopologyTestDriver(counting_topology(), **copy).close()
        assert [letter.id for letter in DeadLetters(settings["dead_letter_dir"]).all(driver.log_state)] == ["2-0"]


def test_a_log_that_lost_its_end_may_put_letters_back_again(settings: dict[str, Any], tmp_path: Path) -> None:
    feeder, counts = FeederBatchSpout("word: string"), dict[Any, Any]()

    def started(feeder: FeederBatchSpout, **conf: Any) -> RunningTopology:
        topology = TridentTopology("t")
        words = topology.new_stream("s", feeder).each("word", look_at, "again: string").group_by("again")
        words.persistent_aggregate(dict_state(counts), Count(), "count")
        return start(topology, "in_process", **{**settings, **conf})

    with started(feeder) as running:
        feeder.feed([["bad"]])
        shutil.copytree(settings["log_dir"], tmp_path / "copy")
        mend()
        put_back(running)
        feeder.feed([["good"]])
        assert (running.status["deadLetters"], running.state("count").multi_get(["bad"])) == (0, [1])
    lost = {"log_dir": str(tmp_path / "copy"), "state_recovery": "keep_totals"}
    with started(FeederBatchSpout("word: string"), **lost) as running:
        put_back(running)
        assert running.state("count").multi_get(["bad"]) == [2]


def test_a_driver_that_was_replaced_cannot_replace_letters(settings: dict[str, Any]) -> None:
    folder = DeadLetters(settings["dead_letter_dir"])
    late = Failure("s/look_at", "late", "late", left_out=LeftOut({}, "s"))
    with TopologyTestDriver(counting_topology(), **settings) as driver:
        driver.feed("s", "good")
        driver.fail_at("record")
        driver.step()
        driver.run()  # a second driver: attempt 2.0 wins
        log = driver.log_state
        folder.write(TransactionAttempt(1, 1 << 20), [late], log.incarnation)
        assert list(folder.all(log)) == []
        driver.feed("s", "bad")
        driver.run()
        folder.write(TransactionAttempt(2, 1 << 20), [late], log.incarnation)
        assert [letter.failure.row for letter in folder.newest(log, 9)] == ["[word='bad']"]
        assert folder.newest(log, 9) == list(folder.all(log))


def test_letters_of_another_log_are_none_of_this_one(settings: dict[str, Any]) -> None:
    for _ in range(2):
        with TopologyTestDriver(counting_topology(), **settings) as driver:
            driver.feed("s", "bad")
            driver.run()
            assert len(list(DeadLetters(settings["dead_letter_dir"]).all(driver.log_state))) == 1
        settings["log_dir"] += "2"
    assert len(list(Path(settings["dead_letter_dir"]).glob("*.jsonl"))) == 2


def test_letters_that_have_no_place_any_more_stay_letters(settings: dict[str, Any]) -> None:
    def started(*steps: str) -> RunningTopology:
        topology = TridentTopology("t")
        stream = topology.new_stream("s", feeder)
        for name in steps:
            stream = stream.name(name).each("word", look_at, f"{name}: string")
        keep(stream.project("word", "n") if steps == ("two",) else stream.project("word"))
        return start(topology, "in_process", allow_changed_topology=True, **settings)

    feeder = FeederBatchSpout("word: string, n: int")
    with started("one") as running:
        feeder.feed([["bad", 1]])
    mend()
    with started("two") as running:
        put_back(running)
        assert [letter.id for letter in letters_of(running)] == ["1-0", "2-0"]
        again = letters_of(running)[1]
        assert again.left_out.values == {"word": "bad", "n": 1}
        assert again.failure.cause.startswith("this topology has no step 's/one' behind 's' at which")


def test_letters_are_put_back_also_where_nothing_is_put_aside_any_more(settings: dict[str, Any]) -> None:
    """Then one that fails again stops the topology, as any other tuple does."""
    feeder, topology = FeederBatchSpout("word: string"), TridentTopology("t")
    kept = keep(topology.new_stream("s", feeder).each("word", look_at, "again: string"))
    with start(topology, "in_process", **settings) as running:
        feeder.feed([["bad"]])
        DeadLetters(settings["dead_letter_dir"]).request(running.log_state, {1: [[0, 1]]})
    settings["on_poison"] = "stop"
    running = start(topology, "in_process", **settings)
    with pytest.raises(BatchFailedError, match="cannot read this"):
        running.await_termination()
    mend()
    with start(topology, "in_process", **settings) as running:
        running.process_all_available()
        assert (running.txid, running.status["deadLetters"]) == (2, 0)
    assert kept.batches == {2: [("bad", "bad")]}


@pytest.mark.parametrize(
    ("call", "on_poison"),
    [(look_at, "stop"), (fail, "stop"), (fail, "dead_letter"), *[("update", on) for on in ("stop", "dead_letter")]],
)
def test_an_error_proposes_a_setting_only_where_it_helps(call: Any, on_poison: str, settings: dict[str, Any]) -> None:
    """`on_poison` leaves out a tuple at which an operation raised: neither an update of a state, nor `FailedException`."""
    topology = TridentTopology("t")
    words = topology.new_stream("s", RowsSpout("word: string", {}))
    if call == "update":
        words.group_by("word").persistent_aggregate(MemoryMapState(), "word", CarefulReducer(), "size")
    else:
        keep(words.each("word", call, "one: string"))
    with TopologyTestDriver(topology, **{**settings, "on_poison": on_poison}) as driver:
        driver.feed("s", "bad")
        with pytest.raises(BatchFailedError, match=r"on tuple \[word='bad'\]|CarefulReducer@size") as failed:
            driver.run()
    assert ("on_poison" in str(failed.value)) == (call is look_at)
    assert not Path(settings["dead_letter_dir"]).exists()


def test_a_letter_whose_file_is_gone_fails_by_name(settings: dict[str, Any]) -> None:
    """It is a dead letter again, of the batch that was to put it back, or stops the topology."""
    with driven(settings, "bad") as (driver, folder):
        folder.request(driver.log_state, {1: [[0, 1]], 7: [[0, 1]]})  # there is no batch 7
        driver.clock.advance(1)
        driver.fail_at("record")
        driver.step()
        (file,) = folder.folder.glob("000000000001.*.jsonl")
        file.rename(file.with_suffix(".away"))
        driver.run()
        (letter,) = folder.of_batch(driver.log_state, 2)
        assert letter.failure.cause.startswith("dead letter 1-0 is to be put back, but it is no longer in ")
        assert driver.log_state.put_back == {1: [[0, 1]]}
        folder.request(driver.log_state, {2: [[0, 1]]})
        later(driver)
        assert [again.failure.cause for again in folder.of_batch(driver.log_state, 3)] == [letter.failure.cause]
    settings["on_poison"] = "stop"
    with TopologyTestDriver(counting_topology(), **settings) as driver:
        folder.request(driver.log_state, {3: [[0, 1]]})
        with pytest.raises(BatchFailedError, match=r"dead letter 1-0 is to be put back, but it is no longer in"):
            driver.run()


def test_a_request_outlives_an_unreadable_file(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with driven(settings, "bad") as (driver, folder):
        folder.request(driver.log_state, {1: [[0, 1]]})
        (file,) = folder.folder.glob("*.jsonl")
        text = file.read_text()
        file.write_text("{}\n")
        for _ in range(2):
            assert later(driver) == []
        assert caplog.text.count("they are not put back until it can be read") == 1
        with pytest.raises(LogError, match="cannot read the dead letters in"):
            list(folder.all(driver.log_state))
        mend()
        file.write_text(text)
        assert [result.committed for result in later(driver)] == [True]
        assert driver.log_state.put_back == {1: [[0, 1]]}


@pytest.mark.parametrize(
    "letters",
    ["5", '{"1": 5}', '{"1": [5]}', '{"1": [["a", "b"]]}', '{"1": [[0, 99999999999]]}', '{"1": [[2, 1]]}', "[[["],
)
def test_a_request_without_sense_is_left_alone(
    letters: str, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with driven(settings, "bad") as (driver, folder):
        (folder.folder / "replay").mkdir()
        request = folder.folder / "replay" / "bad.json"
        request.write_text(f'{{"version": 1, "incarnation": "{driver.log_state.incarnation}", "letters": {letters}}}')
        for _ in range(2):
            assert later(driver) == []
    assert caplog.text.count("bad.json asks for dead letters in a form that cannot be read") == 1
    assert request.exists()


def test_files_of_other_names_are_none_of_a_topologys(settings: dict[str, Any]) -> None:
    with driven(settings, "bad") as (driver, folder):
        (file,) = folder.folder.glob("*.jsonl")
        for name in (f"copy of {file.name}", f"._{file.name}", f"0{file.name}", f"1.x.{file.name}"):
            file.with_name(name).write_bytes(b"\x00\x05\x16\x07")
        driver.fail_at("record")
        driver.feed("s", "good")
        driver.run()  # a driver that starts
        assert [letter.id for letter in folder.all(driver.log_state)] == ["1-0"]


def test_letters_are_durable_before_the_record_with_their_folders(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        done.append(os.path.relpath(Path(f"/proc/self/fd/{fd}").readlink(), tmp_path))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    settings["dead_letter_dir"] = str(tmp_path / "new" / "letters")
    feeder, topology = FeederBatchSpout("word: string"), TridentTopology("t")
    keep(topology.new_stream("s", feeder).each("word", look_at, "again: string"))
    with start(topology, "in_process", lambda point, attempt: done.append(point), **settings):
        del done[:]
        feeder.feed([["bad"]])
    before = done[: done.index("recorded")]
    name = next(one for one in before if one.endswith(".tmp"))
    assert before.index(".") < before.index("new") < before.index(name)
    assert before.index(name) < len(before) - 1 - before[::-1].index("new/letters")


class FailsOnce(BaseStateUpdater[Any]):
    """Fails the first commit, after the states before it are written."""

    def __init__(self) -> None:
        self.failed = False

    def update_state(self, state: Any, tuples: Any, collector: TridentCollector) -> None:
        if not self.failed:
            self.failed = True
            mend(False)  # from now on the tuple raises, which it did not before
            raise RuntimeError("the first attempt fails behind the counts")


@pytest.mark.parametrize("kind", ["opaque", "transactional", "non_transactional"])
@pytest.mark.parametrize("where", ["before the counts", "behind them", "in sums behind them", "beside them"])
def test_a_tuple_that_is_in_a_state_already_is_not_left_out(kind: str, where: str, settings: dict[str, Any]) -> None:
    """It raises only at the last try: its letter, put back, would count twice in a state that keeps what was written."""
    settings |= {"max_batch_attempts": 2, "allow_inexact": True, "retry_backoff_ms": 1}
    feeder = FeederBatchSpout("word: string, n: int")
    counts, sums, last = dict[Any, Any](), dict[Any, Any](), dict[Any, Any]()

    def topology() -> tuple[TridentTopology, Any]:
        topology = TridentTopology("t")
        stream = topology.new_stream("s", feeder)
        raising = stream.each("word", look_at, "again: string")
        counted = (raising if where == "before the counts" else stream).group_by("word")
        state = counted.persistent_aggregate(dict_state(counts, kind), Count(), "count", state_name="counts")
        if where == "behind them":
            state.new_values_stream().each("word", look_at, "again: string")
        if where == "in sums behind them":
            again = state.new_values_stream().group_by("word")
            again.persistent_aggregate(dict_state(sums, "opaque"), "word", Careful(), "sum", state_name="sums")
        raising.partition_persist(dict_state(last), fails, state_name="last")
        return topology, state

    mend()
    fails, is_kept = FailsOnce(), where == "before the counts" and kind != "opaque"
    declared, _ = topology()
    running = start(declared, "in_process", **settings)
    feeder.feed_nowait([["one", 1], ["bad", 4]])
    if is_kept:
        with pytest.raises(BatchFailedError, match="an earlier attempt .* has written to 'counts'.* count twice"):
            running.process_all_available()
        assert letters_of(running) == []
    else:
        running.process_all_available()
        assert {letter.left_out.values["word"] for letter in letters_of(running)} == {"bad"}
        mend()
        put_back(running)
        assert running.status["deadLetters"] == 0
    running.stop()
    mend()
    declared, state = topology()
    running = run_all(declared, "in_process", **settings)
    found = running.state(state).multi_get([("one",), ("bad",)])
    replays = 1 if kind == "non_transactional" else 0  # its matrix: no replay is exact
    assert found == [1 + replays, 1 + replays]


def written(folder: Path, *rows: dict[str, Any]) -> DeadLetters:
    """Write letters of these rows; one without a row names its key in the error alone."""
    letters = DeadLetters(folder)
    failures = [Failure("step", None, "error" if row else "of ann", left_out=LeftOut(row, "s")) for row in rows]
    letters.write(TransactionAttempt(1, 1 << 20), failures, "log")
    return letters


@pytest.mark.parametrize(
    "key", [math.nan, -0.0, (1, "ann"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), Decimal("1.50"), b"ann"]
)
def test_a_key_is_forgotten_in_whatever_form_a_letter_has_it(key: Any, tmp_path: Path) -> None:
    """Keys are equal as their states have them: all NaN are one, and so are 0.0 and -0.0."""
    letters = written(tmp_path, {"k": key, "n": 1}, {"k": [key], "n": 2}, {"k": "another", "n": 3})
    assert letters.forget([canonical_key((key,))]) == 2
    (path,) = tmp_path.glob("*.jsonl")
    assert [DeadLetter.of_line(line).number for line in path.read_text().splitlines()] == [2]


def test_a_key_of_empty_text_takes_no_letters_without_a_row_along(tmp_path: Path) -> None:
    letters = written(tmp_path, {"k": "ann"}, {"k": ""})
    assert letters.forget([("",)]) == 1
    assert letters.forget([("ann",)]) == 1


def test_a_file_that_is_no_letters_keeps_no_key_in_the_others(tmp_path: Path) -> None:
    letters = written(tmp_path, {})
    (path,) = tmp_path.glob("*.jsonl")
    path.with_name(f"._{path.name}").write_bytes(b"\x00\x05\x16\x07")
    with pytest.raises(LogError, match=r"cannot read the dead letters in .*/\._.*remove it if"):
        letters.forget([("ann",)])
    assert path.read_text() == ""
