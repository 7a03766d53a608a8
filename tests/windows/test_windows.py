"""Windows on both engines: Storm's examples digit by digit, time by hand, and what is refused at the call."""

import datetime as dt
import operator
import struct
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import LRUMemoryMapState, MemoryMapState
from tests.harness.topology_runs import RowsSpout, dict_state, keep, operation, run_all, start, stream_of, topology_of
from tests.windows.test_windows_model import Numbers
from trident import BatchFailedError, Stream, TopologyError, TridentCollector, TridentTopology, TridentTuple
from trident.channel import Clock
from trident.errors import InexactPairingError, TopologyChangedError
from trident.operations import (
    Aggregator,
    Avg,
    CombinerAggregator,
    Count,
    ReducerAggregator,
    SessionWindow,
    SlidingCountWindow,
    SlidingDurationWindow,
    Sum,
    TumblingCountWindow,
    TumblingDurationWindow,
    WindowConfig,
)
from trident.run import drive
from trident.spout import SpoutType
from trident.state import StateConf, StateSpec
from trident.testing import TopologyTestDriver

S = timedelta(seconds=1)
MS = timedelta(milliseconds=1)


class Collect(ReducerAggregator[list[str]]):
    """The texts in the order in which the window has them."""

    def init(self) -> list[str]:
        return []

    def reduce(self, curr: list[str], tuple: TridentTuple) -> list[str]:
        curr.append(tuple[0])  # in place: what is stored must not suffer
        return curr


Joined = operation(  # a combiner that no kernel knows
    "Joined", CombinerAggregator, "string", init=lambda row: str(row[0]), zero=lambda: None,
    combine=lambda one, other: "+".join(sorted([*one.split("+"), *other.split("+")])),
)  # fmt: skip


def count_empty(count: int, row: TridentTuple) -> int:
    assert len(row) == 0
    return count + 1


Empty = operation("Empty", ReducerAggregator, "bigint", init=int, reduce=count_empty)


class Ends(Aggregator[list[str]]):
    """Emits the first and the last text: two rows for a window, or one."""

    output_types = ("string",)

    def init(self, batch_id: Any, collector: TridentCollector) -> list[str]:
        return []

    def aggregate(self, val: list[str], tuple: TridentTuple, collector: TridentCollector) -> list[str]:
        return [*val, tuple[0]]

    def complete(self, val: list[str], collector: TridentCollector) -> None:
        for text in dict.fromkeys([val[0], val[-1]]):
            collector.emit((text,))


class WallClock(Clock):
    """The time that batches have, by hand."""

    def __init__(self) -> None:
        self.now = 0

    def wall_ms(self) -> int:
        return self.now


def at(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)


def texts(first: int, last: int) -> list[str]:
    return [f"t{number}" for number in range(first, last + 1)]


def rows(*values: Any) -> list[tuple[Any, ...]]:
    return [value if isinstance(value, tuple) else (value,) for value in values]


def test_count_windows_are_storms_but_over_the_whole_stream(engine: str, topology: TridentTopology) -> None:
    spout = RowsSpout("t: string", {1: rows(*texts(0, 2)), 2: rows(*texts(3, 7)), 3: rows("t8")})
    stream = topology.new_stream("s", spout)
    sliding = keep(stream.sliding_window(4, 2, "t", Collect(), "ts", state_name="a"), "k1")
    tumbling = keep(stream.window(TumblingCountWindow.of(4), "t", Collect(), "ts", state_name="b"), "k2")
    counted = keep(stream.sliding_window(4, 2, Count(), "n", bounds="start, end", state_name="c"), "k3")
    joined = keep(stream.tumbling_window(2, "t", Joined(), "ts", state_name="d"), "k4")
    ends = keep(stream.tumbling_window(3, "t", Ends(), "end", state_name="e"), "k5")
    run_all(topology, engine, parallelism=2)
    assert sliding.rows == [(texts(0, 1),), (texts(0, 3),), (texts(2, 5),), (texts(4, 7),)]
    assert {txid: len(kept) for txid, kept in sliding.batches.items()} == {1: 1, 2: 3}  # in the batch that completes it
    assert tumbling.rows == [(texts(0, 3),), (texts(4, 7),)]  # and one tuple waits
    assert counted.rows == [(0, 2, 2), (0, 4, 4), (2, 6, 4), (4, 8, 4)]
    assert joined.rows == [("t0+t1",), ("t2+t3",), ("t4+t5",), ("t6+t7",)]
    assert ends.rows == [("t0",), ("t2",), ("t3",), ("t5",), ("t6",), ("t8",)]


def test_a_grouped_count_window_counts_each_key_by_itself(engine: str, topology: TridentTopology) -> None:
    given = {1: [("a", 1), ("b", 2), ("a", 3)], 2: [("a", 4), (None, 5), ("b", 6), (None, 7)], 3: [("a", 8)] * 5}
    words = topology.new_stream("s", RowsSpout("w: string, n: int", given)).group_by("w")
    counts = keep(words.sliding_window(4, 2, Count(), "count", bounds="start, end"), "k1")
    sums = keep(words.sliding_window(4, 2, "n", Sum(), "sum"), "k2")
    kept = keep(words.tumbling_window(3, "n", Numbers(), "ns: array<bigint>"), "k3")
    run_all(topology, engine, parallelism=2)
    assert counts.batches == {
        1: [("a", 0, 2, 2)],
        2: [(None, 0, 2, 2), ("b", 0, 2, 2)],
        3: [("a", 0, 4, 4), ("a", 2, 6, 4), ("a", 4, 8, 4)],
    }
    assert sorted(sums.rows, key=repr) == [("a", 16), ("a", 28), ("a", 32), ("a", 4), ("b", 8), (None, 12)]
    assert kept.rows == [("a", [1, 3, 4]), ("a", [8, 8, 8])]


def test_windows_by_the_time_of_the_batch(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = WallClock()
    monkeypatch.setattr(drive, "Clock", lambda: clock)
    spout = RowsSpout("w: string", {1: rows("a", "b", "a")})
    topology, words = stream_of(spout)
    grouped = keep(words.group_by("w").tumbling_window(S, Count(), "n", bounds="start, end", state_name="a"), "k1")
    last = keep(words.sliding_window(2 * S, S, "w", Collect(), "ws", bounds="start, end", state_name="b"), "k2")
    clock.now = 10_300
    with start(topology, engine, parallelism=2) as running_topology:
        running_topology.process_all_available()
        clock.now = 10_900
        spout.batches = {2: rows("a", "c")}
        running_topology.process_all_available()
        for clock.now in (11_000, 12_999, 99_000):
            running_topology.process_all_available()
        assert running_topology.txid == 4
    first, second = (at(10_000), at(11_000)), (at(11_000), at(12_000))
    assert grouped.batches == {3: [("a", *first, 3), ("b", *first, 1), ("c", *first, 1)]}
    texts = ["a", "b", "a", "a", "c"]
    assert last.batches == {3: [(at(9_000), first[1], texts)], 4: [(first[0], second[1], texts)]}


def test_windows_by_event_time(engine: str, topology: TridentTopology) -> None:
    event_time = TumblingDurationWindow.of(10 * MS).by_event_time("at", delay=5 * MS, allowed_lateness=10 * MS)
    given = {
        1: [("a", at(1)), ("b", at(9)), ("b", at(14)), ("x", None)],  # watermark 9: nothing is complete
        2: [("a", at(16)), ("b", at(3)), ("b", at(10))],  # 11: [0, 10) fires
        3: [("c", at(4)), ("a", at(12))],  # late by less than 10: [0, 10) fires again, complete
        4: [("z", at(26))],  # 21: [10, 20) fires
        5: [("a", at(9)), ("a", at(12))],  # the first is dropped, the second makes [10, 20) fire again
    }
    words = topology.new_stream("s", RowsSpout("w: string, at: timestamp", given))
    counts = keep(words.group_by("w").window(event_time, Count(), "n", bounds="start, end", state_name="a"), "k1")
    kept = keep(words.window(event_time, "w", Collect(), "ws", bounds="start, end", state_name="b"), "k2")
    running_topology = run_all(topology, engine, parallelism=2)
    first, second = (at(0), at(10)), (at(10), at(20))
    assert {txid: sorted(batch) for txid, batch in counts.batches.items()} == {
        2: [("a", *first, 1), ("b", *first, 2)],
        3: [("a", *first, 1), ("b", *first, 2), ("c", *first, 1)],
        4: [("a", *second, 2), ("b", *second, 2)],
        5: [("a", *second, 3), ("b", *second, 2)],
    }
    assert kept.rows == [
        (*first, ["a", "b", "b"]),
        (*first, ["a", "b", "b", "c"]),
        (*second, ["b", "a", "b", "a"]),
        (*second, ["b", "a", "b", "a", "a"]),
    ]
    metrics = running_topology.status["metrics"]
    assert metrics == {"a/no_event_time": 1, "b/no_event_time": 1, "a/late": 1, "b/late": 1}


@pytest.mark.parametrize(
    ("type_", "make", "bound"),
    [
        ("timestamp_ntz", lambda ms: at(ms).replace(tzinfo=None), lambda ms: at(ms).replace(tzinfo=None)),
        ("bigint", lambda ms: ms, at),
    ],
)
def test_event_times_of_other_types(type_: str, make: Callable[[int], Any], bound: Callable[[int], Any]) -> None:
    given = {1: [(make(-25),), (make(-1),), (make(0),)], 2: [(make(10),)]}
    topology, stream = stream_of(RowsSpout(f"at: {type_}", given))
    config = SlidingDurationWindow.of(20 * MS, 10 * MS).by_event_time("at")
    fired = keep(stream.window(config, Count(), "n", bounds="start, end"))
    run_all(topology, "in_process")
    assert fired.batches == {
        1: [(bound(-40), bound(-20), 1), (bound(-30), bound(-10), 1), (bound(-20), bound(0), 1)],
        2: [(bound(-10), bound(10), 2)],
    }


def test_a_window_that_begins_before_the_calendar_does_has_a_bound_that_can_be_read(topology: TridentTopology) -> None:
    first = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    week = TumblingDurationWindow.of(timedelta(days=7)).by_event_time("at")
    windows = topology.new_stream("s", RowsSpout("at: timestamp", {})).window(week, Count(), "n", bounds="a, b")
    kept = keep(windows.each("a", lambda start: start.year, "year: int").project("year", "n"))
    with TopologyTestDriver(topology) as driver:
        fed(driver, [(first,)], [(dt.datetime(2024, 1, 1, tzinfo=dt.UTC),)])
    assert kept.rows == [(1, 1)]


def test_a_latest_event_far_ahead_costs_nothing_and_fires_what_it_passes(topology: TridentTopology) -> None:
    year = 365 * 24 * 3600 * 1000
    stream = topology.new_stream("s", RowsSpout("at: bigint", {1: [(1,), (50 * year,)], 2: [(51 * year,)]}))
    config = SlidingDurationWindow.of(3 * MS, 1 * MS).by_event_time("at")
    fired = keep(stream.window(config, Count(), "n", bounds="start, end"))
    run_all(topology, "in_process")
    assert [row[1] for row in fired.rows] == [at(2), at(3), at(4), *(at(50 * year + ms) for ms in (1, 2, 3))]


def test_equal_keys_are_one_key_whatever_their_bits(topology: TridentTopology) -> None:
    nans = [struct.unpack("d", struct.pack("Q", bits))[0] for bits in (0x7FF8000000000000, 0x7FF8000000000001)]
    given = {1: [(0.0, 1), (nans[0], 1), (None, 1)], 2: [(-0.0, 2), (nans[1], 2), (None, 2)], 3: [(1.0, 15)]}
    stream = topology.new_stream("s", RowsSpout("key: double, at: bigint", given))
    config = TumblingDurationWindow.of(10 * MS).by_event_time("at", delay=4 * MS)
    kept = []
    for number, aggregator in enumerate((Count(), Empty())):
        keys = stream.group_by("key")
        kept.append(keep(keys.window(config, aggregator, "n: bigint", state_name=f"a{number}"), f"ka{number}"))
        kept.append(keep(keys.tumbling_window(2, aggregator, "n: bigint", state_name=f"b{number}"), f"kb{number}"))
    run_all(topology, "in_process")
    for rows in kept:
        assert sorted(map(repr, rows.rows)) in (
            ["(-0.0, 2)", "(None, 2)", "(nan, 2)"],
            ["(0.0, 2)", "(None, 2)", "(nan, 2)"],
        )


def test_parts_of_one_and_of_several_panes_come_together(topology: TridentTopology) -> None:
    one = topology.new_stream("one", RowsSpout("w: string, at: bigint", {1: [("a", 1), ("b", 2), ("a", 3)]}))
    many = topology.new_stream("many", RowsSpout("w: string, at: bigint", {1: [("a", 4), ("a", 15)], 2: [("b", 3)]}))
    words = topology.merge(one, many).group_by("w")
    config = TumblingDurationWindow.of(10 * MS).by_event_time("at")
    fired = keep(words.window(config, Count(), "n"))
    metrics = run_all(topology, "in_process").status["metrics"]
    assert (fired.batches, metrics) == ({1: [("a", 3), ("b", 1)]}, {"n-window/late": 1})


def test_a_window_goes_on_to_further_steps_and_windows(engine: str, topology: TridentTopology) -> None:
    words = topology.new_stream("s", RowsSpout("w: string", {1: rows(*"abab"), 2: rows(*"aaaa"), 3: rows(*"bb")}))
    fired = words.group_by("w").tumbling_window(2, Count(), "n")
    totals = fired.group_by("w").persistent_aggregate(MemoryMapState(), "n", Sum(), "total")
    pairs = keep(fired.tumbling_window(2, "w", Joined(), "ws"))
    running_topology = run_all(topology, engine)
    assert running_topology.state(totals).multi_get(["a", "b"]) == [6, 4]
    assert sorted(pairs.rows) == [("a+a",), ("a+b",)]


def test_an_in_process_window_sees_what_an_aggregator_without_fields_sees(topology: TridentTopology) -> None:
    stream = topology.new_stream("s", RowsSpout("w: string", {1: rows(*"abab"), 2: rows("a")}))
    ungrouped = keep(stream.tumbling_window(2, Empty(), "n: int", state_name="a"), "k1")
    grouped = keep(stream.group_by("w").tumbling_window(3, Empty(), "n: int", state_name="b"), "k2")
    run_all(topology, "in_process", parallelism=2)
    assert (ungrouped.rows, grouped.rows) == ([(2,), (2,)], [("a", 3)])


def but_13(row: TridentTuple) -> int:
    if row[0] == 13:
        raise ValueError("13")
    return int(row[0])


Fragile = operation("Fragile", CombinerAggregator, "bigint", init=but_13, combine=operator.add, zero=int)
FragileFold = operation(
    "FragileFold", ReducerAggregator, "bigint", init=int, reduce=lambda sum_, row: sum_ + but_13(row)
)


def test_a_tuple_that_a_combiner_cannot_take_is_put_aside_by_time(tmp_path: Any, topology: TridentTopology) -> None:
    given = {1: [(13, 1), (2, 2)], 2: [(13, 15)], 3: [(7, 31)]}
    stream = topology.new_stream("s", RowsSpout("n: int, at: bigint", given))
    config = TumblingDurationWindow.of(10 * MS).by_event_time("at")
    fired = keep(stream.window(config, "n", Fragile(), "sum"))
    settings = {"on_poison": "dead_letter", "dead_letter_dir": str(tmp_path), "max_batch_attempts": 1}
    run_all(topology, "in_process", **settings)
    assert fired.rows == [(2,)]
    assert sum(line.count("13") > 0 for path in tmp_path.iterdir() for line in path.read_text().splitlines()) == 2


def test_what_a_reducer_does_not_bear_fails_the_batch_that_completes_the_window(topology: TridentTopology) -> None:
    topology.new_stream("s", RowsSpout("n: int", {})).tumbling_window(2, "n", FragileFold(), "n: int")
    with TopologyTestDriver(topology, max_batch_attempts=2) as driver:
        fed(driver, [13])
        driver.feed("s", 1)
        said = r"batch 2 failed once in step 's/FragileFold@n-window' on tuple \[n=13\]: ValueError"
        with pytest.raises(BatchFailedError, match=said):
            driver.run()
        assert driver.txid == 1


SESSIONS = SessionWindow.of(S, "at")


def _of_a_wrong_type(value: Any) -> Any:
    return value


@pytest.mark.parametrize(("make", "text"), [
    (lambda: SlidingCountWindow.of(2, 5), "length 2 and slide 5: the slide must not be greater"),
    (lambda: SlidingDurationWindow.of(S, 2 * S), "length 0:00:01 and slide 0:00:02: the slide must not"),
    (lambda: TumblingCountWindow.of(0), "length 0: give a whole number of tuples"),
    (lambda: SlidingCountWindow.of(3, -1), "slide -1: give a whole number"),
    (lambda: TumblingCountWindow.of(_of_a_wrong_type(2.5)), r"length 2\.5: give"),
    (lambda: TumblingCountWindow.of(True), "length True: give"),
    (lambda: TumblingCountWindow.of(10**30), "give a whole number of tuples"),
    (lambda: WindowConfig(3, 3), "a WindowConfig is made by of: TumblingCountWindow"),
    (lambda: TumblingDurationWindow.of(_of_a_wrong_type(5)), "length of a window by time is a timedelta, .* got 5"),
    (lambda: TumblingDurationWindow.of(timedelta(microseconds=999)), "give whole milliseconds, at least 1"),
    (lambda: SlidingDurationWindow.of(S, timedelta(0)), r"slide datetime.timedelta\(0\) of a window"),
    (lambda: TumblingDurationWindow.of(S).by_event_time("at", delay=-S), "delay .* at least 0"),
    (lambda: SessionWindow.of(timedelta(0), "at"), r"gap datetime.timedelta\(0\) of a window: give whole millisec"),
    (lambda: SessionWindow.of(_of_a_wrong_type("30m"), "at"),
        "gap of a window by time is a timedelta, .* got '30m'"),
    (lambda: SessionWindow.of(S, _of_a_wrong_type(None)), "takes the name of one field, got None"),
    (lambda: SessionWindow.of(S, ""), "takes the name of one field, got ''"),
    (lambda: SessionWindow.of(S, "at", delay=-S), "delay .* at least 0"),
    (lambda: TumblingDurationWindow.of(S).by_event_time(_of_a_wrong_type(["at"])),
        r"takes the name of one field, got \['at'\]"),
])  # fmt: skip
def test_a_wrong_window_is_refused_when_it_is_made(make: Callable[[], WindowConfig], text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        make()


def test_equal_length_and_slide_are_allowed() -> None:
    assert str(SlidingCountWindow.of(3, 3)) == "tumbling count of 3"
    assert str(SlidingDurationWindow.of(3 * S, S)) == "sliding time of 0:00:03 every 0:00:01"


@pytest.mark.parametrize(("call", "text"), [
    (lambda s: s.tumbling_window(2, "x", Sum(), "n"), r"no field 'x' of stream 's'; it has \['w', 'n', 'at'\]"),
    (lambda s: s.tumbling_window(2, "w", Sum(), "n"), "Sum needs a number, but field 'w' is string"),
    (lambda s: s.tumbling_window(2, Count()), "window of Count does not say what its output is called"),
    (lambda s: s.tumbling_window(4, Avg("n")), "does not say what its output is called"),
    (lambda s: s.group_by("w").tumbling_window(4, {"w": Count()}), "'w'"),
    (lambda s: s.group_by("w").tumbling_window(4, {"start": Count()}, bounds="start, end"), "'start'"),
    (lambda s: s.tumbling_window(2, Count, "n"), r"which is a class; give an object: Count\(\)"),
    (lambda s: s.window(SESSIONS, Count(), "n"), "gap 0:00:01 by event time at, delay 0:00:00 needs a key"),
    (lambda s: s.group_by("w").window(SessionWindow.of(S, "n"), Count(), "c"), "event time 'n' is int; it must be a tim"),
    (lambda s: s.group_by("w").window(SessionWindow.of(S, "x"), Count(), "c"), "no field 'x' of stream 's'; it has"),
    (lambda s: s.group_by("w").window(SESSIONS, MemoryMapState.transactional(), Count(), "c"),
        "only an opaque state lets a replay take back"),
    (lambda s: s.window_with_late_rows(TumblingCountWindow.of(2), Count(), "c"), "late for a window of tumbling count"),
    (lambda s: s.window_with_late_rows(TumblingDurationWindow.of(S), Count(), "c"), "tumbling time of 0:00:01: call win"),
    (lambda s: s.window(4, Count(), "n"), "4 is not a window configuration, as TumblingCountWindow.of"),
    (lambda s: s.tumbling_window("4", Count(), "n"), "give a whole number of tuples"),
    (lambda s: s.sliding_window(4, S, Count(), "n"), "two numbers of tuples, or two timedeltas"),
    (lambda s: s.group_by("w").tumbling_window(2, Count(), "w"), "cannot add field 'w'"),
    (lambda s: s.tumbling_window(2, Count(), "n", bounds="start"), "bounds='start': name two fields"),
    (lambda s: s.tumbling_window(2, Count(), "n", bounds="a: string, b"), "here they are bigint"),
    (lambda s: s.tumbling_window(2, Count(), "n", bounds="a, n"), "cannot add field 'n'"),
    (lambda s: s.tumbling_window(2, MemoryMapState.transactional(), Count(), "n"),
     "state 'n-window', which is transactional; only an opaque state"),
    (lambda s: s.tumbling_window(2, LRUMemoryMapState.opaque(9), Count(), "n"), "state 'n-window', which forgets"),
    (lambda s: s.tumbling_window(2, Count(), "$pane"), r"cannot take or give '\$pane': names that begin with \$"),
    (lambda s: s.each("n", lambda n: n, "$at: int").tumbling_window(2, "$at", Sum(), "n2"), r"take or give '\$at'"),
    (lambda s: s.tumbling_window(2, dict_state({}, partitions=3), Count(), "n"), "insists on 3 partitions"),
    (lambda s: s.window(TumblingDurationWindow.of(S).by_event_time("w"), Count(), "c"),
     "event time 'w' is string; it must be a timestamp"),
    (lambda s: s.window(TumblingDurationWindow.of(S).by_event_time("n"), Count(), "c"), "'n' is int"),
    (lambda s: s.window(TumblingDurationWindow.of(S).by_event_time("when"), Count(), "c"), "no field 'when'"),
    (lambda s: topology_of(s).new_drpc_stream("f").tumbling_window(2, Count(), "n"), "requests of DRPC function 'f'"),
])  # fmt: skip
def test_a_wrong_call_is_refused(call: Callable[[Stream], Any], text: str) -> None:
    spout = FixedBatchSpout("w: string, n: int, at: timestamp", 2, [("a", 1, at(0))])
    with pytest.raises(TopologyError, match=text):
        call(TridentTopology("t").new_stream("s", spout))


class _NoKind:
    """A state that says no kind."""

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> Any:
        state = MemoryMapState.transactional().factory.make_state(conf, 0, 1)
        return state if partition_index == 0 else None


def test_a_state_that_says_its_kind_late_is_refused_at_the_start(topology: TridentTopology) -> None:
    topology.new_stream("s", RowsSpout("w: string", {})).tumbling_window(2, StateSpec(_NoKind()), Count(), "n")
    said = r"state 'n-window' \(MemoryMap\) is transactional, but window 's/Count@n-window' needs"
    with pytest.raises(TopologyError, match=said):
        start(topology, "in_process")


def test_a_spout_that_promises_nothing_is_refused(topology: TridentTopology) -> None:
    spout = RowsSpout("w: string", {}, SpoutType.NON_TRANSACTIONAL)
    topology.new_stream("s", spout).tumbling_window(2, Count(), "n")
    with pytest.raises(InexactPairingError, match="feeds state 'n-window', which is opaque"):
        start(topology, "in_process")


def by_event_time(topology: TridentTopology, length: timedelta, state: StateSpec) -> None:
    stream = topology.new_stream("s", RowsSpout("w: string, at: timestamp", {1: [("a", at(0))]}))
    config = TumblingDurationWindow.of(length).by_event_time("at", delay=S)
    stream.group_by("w").window(config, state, Count(), "n", state_name="counts")


def test_a_changed_window_on_an_old_log_is_refused_with_the_difference(tmp_path: Any) -> None:
    entries: dict[Any, Any] = {}
    for length in (10 * S, 10 * S):  # the same once more is no change
        topology = TridentTopology("t")
        by_event_time(topology, length, dict_state(entries))
        run_all(topology, "in_process", log_dir=str(tmp_path))
    changed = TridentTopology("t")
    by_event_time(changed, 20 * S, dict_state(entries))
    said = "state 'counts': window tumbling time of 0:00:10 by event time at, "
    with pytest.raises(TopologyChangedError, match=said):
        start(changed, "in_process", log_dir=str(tmp_path))


def test_explain_describe_and_the_drawings_show_it(topology: TridentTopology) -> None:
    by_event_time(topology, 10 * S, MemoryMapState.opaque())
    config = "tumbling time of 0:00:10 by event time at, delay 0:00:01, allowed lateness 0:00:00"
    text = topology.explain()
    assert f"s/Count@counts: window counts: {config} by w: Count() -> n; 1 partition" in text
    assert "sends w, at; aggregated in each task first, Arrow kernel" in text
    (state,) = topology.describe()
    assert (state["kind"], state["window"], state["partitions"]) == ("opaque", config, 1)
    assert (state["key"], state["value"], state["streams"]["s"]["exact"]) == (["w: string"], ["n: bigint"], True)
    assert config in topology.to_mermaid()


def fed(driver: TopologyTestDriver, *batches: Sequence[Any]) -> None:
    for batch in batches:
        driver.feed("s", *batch)
        driver.run()
