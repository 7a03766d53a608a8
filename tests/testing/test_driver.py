"""TopologyTestDriver: batches by hand, failures at each point, what is captured, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.topology_runs import Keep, RowsSpout, RowsState
from trident import TridentTopology
from trident.errors import BatchFailedError, FailedException, InexactPairingError, TridentError
from trident.operations import Count, MapGet, Split, Sum
from trident.spout import SpoutType
from trident.state import StateSpec
from trident.stream import TridentState
from trident.testing import TopologyTestDriver

POINTS = ["define", "process", "begin_commit:count", "put:count", "commit:count", "record"]
KINDS = [MemoryMapState.opaque, MemoryMapState.transactional]


def word_count(
    spec: Any = None, spout_type: SpoutType = SpoutType.TRANSACTIONAL, partitions: int = 1
) -> tuple[TridentTopology, TridentState]:
    topology = TridentTopology("words")
    lines = topology.new_stream("lines", RowsSpout("line: string", {}, spout_type))
    counts = (
        lines.each("line", Split(), "word")
        .group_by("word")
        .persistent_aggregate(spec or MemoryMapState.opaque(), Count(), "count")
        .parallelism_hint(partitions)
    )
    return topology, counts


def of_words(*declared: Any, **settings: Any) -> TopologyTestDriver:
    """Return a driver of the word count, declared so, and run with these settings."""
    return TopologyTestDriver(word_count(*declared)[0], **settings)


def test_a_step_tells_what_happened() -> None:
    with of_words() as driver:
        assert driver.step() is None
        driver.feed("lines", ("a b a",), ["c"])
        result = driver.step()
        assert result is not None
        assert (result.txid, result.committed, result.failed_at, result.failure) == (1, True, None, None)
        assert (result.tuples, result.keys) == (2, {"count": 3})
        assert sorted(result.new_values["count"]) == [("a", 2), ("b", 1), ("c", 1)]
        assert driver.step() is None
        assert driver.txid == 1


def test_each_feed_is_a_batch_and_an_empty_one_is_one_too() -> None:
    with of_words() as driver:
        for rows in (["a"], [], ["a", "b"]):
            driver.feed("lines", *rows)
        assert [result.tuples for result in driver.run()] == [1, 0, 2]
        assert driver.new_values("count") == {1: [("a", 1)], 2: [], 3: [("a", 2), ("b", 1)]}


@pytest.mark.parametrize("spec", KINDS)
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("point", POINTS)
def test_a_replay_after_a_failure_at_any_point_is_exact(
    point: str, partitions: int, spec: Callable[[], StateSpec]
) -> None:
    topology, counts = word_count(spec(), partitions=partitions)
    with TopologyTestDriver(topology) as driver:
        driver.feed("lines", "the cow jumped over the moon")
        driver.run()
        driver.feed("lines", "the dish ran", "the the")
        driver.fail_at(point)
        failed = driver.step()
        assert failed is not None
        assert (failed.txid, failed.committed) == (2, False)
        assert "as the test asked" in str(failed.failure)
        assert driver.txid == 1
        replayed = driver.step()
        assert replayed is not None
        assert (replayed.txid, replayed.committed, replayed.tuples) == (2, True, 2)
        assert replayed.attempt > failed.attempt
        assert driver.state(counts).multi_get(["the", "dish", "moon"]) == [5, 1, 1]
        assert sorted(driver.new_values(counts)[2]) == [("dish", 1), ("ran", 1), ("the", 5)]


def test_a_replay_repeats_side_effects_and_counts_once() -> None:
    topology, calls = TridentTopology("t"), list[str]()
    words = topology.new_stream("s", RowsSpout("word: string", {})).peek(lambda row: calls.append(row[0]))
    words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    with TopologyTestDriver(topology) as driver:
        driver.feed("s", "a")
        driver.fail_at("record")
        driver.run()
        assert (calls, driver.state("count").multi_get(["a"])) == (["a", "a"], [1])


@pytest.mark.parametrize("point", POINTS)
def test_an_opaque_spout_may_replay_other_rows(point: str) -> None:
    with of_words(MemoryMapState.opaque(), SpoutType.OPAQUE) as driver:
        driver.feed("lines", "a b")
        driver.run()
        driver.feed("lines", "a b c")
        driver.feed("lines", "b")
        driver.fail_at(point)
        driver.step()
        driver.replay("lines", "a d")
        driver.run()
        assert driver.state("count").multi_get(["a", "b", "c", "d"]) == [2, 2, None, 1]


def test_a_transactional_state_on_an_opaque_spout_is_refused_for_good_reason() -> None:
    topology, counts = word_count(MemoryMapState.transactional(), SpoutType.OPAQUE)
    with pytest.raises(InexactPairingError):
        TopologyTestDriver(topology)
    with TopologyTestDriver(topology, allow_inexact=True) as driver:
        driver.feed("lines", "a")
        driver.fail_at("commit:count")
        driver.step()
        driver.replay("lines", "a a a")
        driver.step()
        assert driver.state(counts).multi_get(["a"]) == [1]  # the value of the attempt that failed


def test_several_failures_of_one_batch() -> None:
    with of_words(max_batch_attempts=9) as driver:
        driver.feed("lines", "a")
        for point in POINTS:
            driver.fail_at(point)
        driver.fail_at("process", times=2)
        results = driver.run()
        assert [result.failed_at for result in results] == [
            "lines", *["process"] * 3, *["lines/Split/Count@count"] * 3, "record", None,
        ]  # fmt: skip
        assert [result.committed for result in results] == [False] * 8 + [True]
        assert len({result.attempt for result in results}) == 9
        assert driver.state("count").multi_get(["a"]) == [1]


def test_a_batch_that_fails_too_often_ends_the_topology() -> None:
    with of_words(max_batch_attempts=2) as driver:
        driver.feed("lines", "a")
        driver.fail_at("process", times=5)
        first = driver.step()
        assert first is not None
        assert first.failed_at == "process"
        for _ in range(2):
            with pytest.raises(BatchFailedError, match="process"):
                driver.step()


def test_a_failure_of_user_code_is_told_and_tried_again() -> None:
    calls: list[str] = []
    topology = TridentTopology("t")

    def once(word: str) -> str:
        calls.append(word)
        if len(calls) == 1:
            raise FailedException("not now")
        return word

    kept = RowsState()
    topology.new_stream("s", RowsSpout("x: string", {})).each("x", once, "y: string").partition_persist(
        kept, ["y"], Keep(), "y: string", state_name="kept"
    )
    with TopologyTestDriver(topology) as driver:
        driver.feed("s", "a")
        failed, done = driver.run()
        assert (failed.failed_at, failed.committed, done.committed) == ("s/once", False, True)
        assert "not now" in str(failed.failure)
        assert kept.batches == {1: [("a",)]}


def test_queries_aggregates_states_behind_states_and_batches_in_which_one_stream_has_rows() -> None:
    topology = TridentTopology("t")
    words = topology.new_stream("words", RowsSpout("word: string", {}))
    more = topology.new_stream("more", RowsSpout("word: string, n: int", {}))
    counts = words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "n")
    seen = words.state_query(counts, "word", MapGet(), "before")
    total = counts.new_values_stream().persistent_aggregate(MemoryMapState(), "n", Sum(), "total")
    size = words.aggregate(Count(), "size")
    joined = topology.join(seen, "word", more, "word", "word, before, n")
    with TopologyTestDriver(topology) as driver:
        driver.feed("words", "a", "a")
        driver.feed(words, "a")
        driver.feed(more, ("a", 5), ("b", 6))
        driver.fail_at("commit:total")
        driver.run()
        assert driver.captured(seen) == {1: [("a", None), ("a", None)], 2: [("a", 2)]}
        assert driver.captured("more") == {1: [("a", 5), ("b", 6)], 2: []}
        assert driver.captured(joined) == {1: [("a", None, 5)] * 2, 2: []}
        assert driver.captured(size) == {1: [(2,)], 2: [(1,)]}
        assert driver.new_values("total") == {1: [(2,)], 2: [(5,)]}
        assert driver.state(total).get() == 5
        assert driver.state("n").multi_get(["a"]) == [3]


def test_several_batches_may_be_in_flight() -> None:
    with of_words(max_spout_pending=3) as driver:
        for row in ("a", "a b", "b"):
            driver.feed("lines", row)
        driver.fail_at("commit:count")
        results = driver.run()
        assert [(result.txid, result.committed) for result in results] == [(1, False), (1, True), (2, True), (3, True)]
        assert driver.captured("lines") == {1: [("a",)], 2: [("a b",)], 3: [("b",)]}
        assert driver.state("count").multi_get(["a", "b"]) == [2, 2]


def test_a_step_ends_with_its_record_and_before_the_next_commit() -> None:
    with of_words(MemoryMapState.transactional(), max_spout_pending=3) as driver:
        for _ in range(3):
            driver.feed("lines", "cow")
        for txid in (1, 2, 3):
            assert driver.step() is not None
            assert (driver.txid, driver.state("count").multi_get(["cow"])) == (txid, [txid])


def test_a_later_batch_that_fails_while_one_is_committed_is_tried_again() -> None:
    with of_words(max_spout_pending=2) as driver:
        for row in ("a", "a b", "b"):
            driver.feed("lines", row)
        assert driver.step() is not None
        driver.fail_at("define")  # of batch 3, in the step that commits batch 2
        assert [(result.txid, result.committed) for result in driver.run()] == [(2, True), (3, True)]
        assert driver.state("count").multi_get(["a", "b"]) == [2, 2]


def test_time_is_what_the_test_says() -> None:
    with of_words(batch_emit_interval_ms=10_000) as driver:
        driver.feed("lines", "a")
        driver.feed("lines", "b")
        assert [result.txid for result in driver.run()] == [1]
        driver.clock.advance(9.5)
        assert driver.step() is None
        driver.clock.advance(0.5)
        assert [result.txid for result in driver.run()] == [2]
        with pytest.raises(ValueError, match="time does not go back"):
            driver.clock.advance(-1)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_durable_state_and_a_log_on_disk(point: str, tmp_path: Path) -> None:
    topology, counts = word_count(DeltaState.opaque(tmp_path / "state"))
    for txid in (1, 2):
        with TopologyTestDriver(topology, log_dir=str(tmp_path / "log")) as driver:
            assert driver.txid == txid - 1
            driver.feed("lines", "a b a")
            driver.fail_at(point)
            assert [result.committed for result in driver.run()] == [False, True]
            assert driver.state(counts).multi_get(["a", "b"]) == [2 * txid, txid]


def test_a_batch_that_another_driver_left_unfinished_cannot_be_replayed(tmp_path: Path) -> None:
    declared, log = DeltaState.opaque(tmp_path / "state"), str(tmp_path / "log")
    with of_words(declared, log_dir=log) as driver:
        driver.feed("lines", "a")
        driver.fail_at("process")
        driver.step()
    text = "finish it where it began, or give a new log_dir"
    with of_words(declared, log_dir=log, max_batch_attempts=1) as driver, pytest.raises(BatchFailedError, match=text):
        driver.step()


def test_tuples_that_raise_are_put_aside(tmp_path: Path) -> None:
    topology = TridentTopology("t")
    numbers = topology.new_stream("s", RowsSpout("x: int", {})).each("x", lambda x: 1 // x, "y: int")
    numbers.persistent_aggregate(MemoryMapState(), "y", Sum(), "sum")
    with TopologyTestDriver(
        topology, on_poison="dead_letter", dead_letter_dir=str(tmp_path), max_batch_attempts=1
    ) as driver:
        driver.feed("s", 1, 0, 1)
        driver.run()
        assert driver.state("sum").get() == 2
    (letters,) = tmp_path.iterdir()
    assert "ZeroDivisionError" in letters.read_text()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda d: d.feed("line", "a"), "topology 'words' has no spout 'line' to feed; it has lines, pairs"),
        (lambda d: d.feed("lines", ("a", 1)), r"feed\('lines'\): row 0 has 2 values \('a', 1\), the stream has 1"),
        (lambda d: d.feed("lines", "a", 5), r"feed\('lines'\): row 1: 5 is not of type string, that of field 'line'"),
        (lambda d: d.feed("pairs", "x"), r"feed\('pairs'\): row 0 is 'x'; give a tuple of 2 values"),
        (lambda d: d.replay("lines", "a"), r"replay\('lines'\): its spout is transactional"),
        (lambda d: d.replay("pairs", "a"), r"replay\('pairs'\): no rows that .* wait for a replay"),
        (lambda d: d.fail_at("commit"), "no point 'commit' to fail at; it has define, process, record, begin_commit:co"),
        (lambda d: d.fail_at("put:sum"), "no point 'put:sum' to fail at"),
        (lambda d: d.fail_at("define", 0), "give at least 1"),
        (lambda d: d.state("sum"), r"has no state 'sum'; it has \['count'\]"),
        (lambda d: d.new_values("sum"), "writes no state 'sum'; it writes count"),
        (lambda d: d.captured("sum"), "had no stream 'sum' when the driver was made; it had"),
        (lambda d: TopologyTestDriver(TridentTopology("t"), engine="spark"), "runs in this process"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused(call: Callable[[TopologyTestDriver], Any], text: str) -> None:
    topology, _ = word_count()
    topology.new_stream("pairs", RowsSpout("a: string, b: int", {}, SpoutType.OPAQUE))
    with TopologyTestDriver(topology) as driver:
        driver.feed("pairs", ("a", 1))
        driver.run()
        with pytest.raises((TridentError, ValueError), match=text):
            call(driver)


def test_a_closed_driver_says_so() -> None:
    driver = of_words()
    driver.close()
    driver.close()
    for call in (driver.step, lambda: driver.feed("lines", "a"), lambda: driver.state("count")):
        with pytest.raises(TridentError, match="is closed"):
            call()
