"""Processes of each key, with a value and timers: on both engines, and against a model over random lives."""

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from states.redis import RedisState
from tests.harness.crashing_stores import WAYS, DictMap
from tests.harness.servers import Server
from tests.harness.topology_runs import RowsSpout, dict_state, keep, run_all, start, stream_of
from tests.windows.test_window_partitions import Life
from tests.windows.test_windows import WallClock, fed
from tests.windows.test_windows_model import batches, examples, fed_batch, ordinate
from trident import BatchFailedError, Fields, Stream, TopologyError, TridentTopology, TridentTuple
from trident.errors import TopologyChangedError
from trident.operations import Count, KeyedProcess, Sum, Timers, TumblingDurationWindow
from trident.run import drive
from trident.spout import SpoutType
from trident.state import OpaqueMap
from trident.state.txid import Txid, Winners
from trident.state.values import OpaqueValue
from trident.steps.key_columns import partition_of
from trident.testing import TopologyTestDriver
from trident.windows import window_state
from trident.windows.timer_index import DueRecords
from trident.windows.window_partitions import ONE, Now

MS = timedelta(milliseconds=1)
FIELDS = "key: string, n: int, at: bigint"
DELAY = 3
PARTITIONS = st.sampled_from([1, 2, 3, 8])


class Idle(KeyedProcess[int]):
    """Says when a key had no tuple for 30 milliseconds, and how many it had before."""

    def process(self, value: int | None, tuple: TridentTuple, timers: Timers, collector: Any) -> int:
        timers.clear()
        timers.set(tuple["at"] + 30)
        return (value or 0) + 1

    def on_timer(self, value: int | None, time: Any, timers: Timers, collector: Any) -> None:
        collector.emit([time, value])


class Wild(KeyedProcess[list[int]]):
    """Does with its value and its timers all that can be done, as its tuples say."""

    def process(self, value: Any, tuple: TridentTuple, timers: Any, collector: Any) -> Any:
        n, at = tuple
        unit: Any = 1 if isinstance(timers.now, int) else MS
        base = at if isinstance(timers.now, int) else timers.now
        match n:
            case 0 | 1:
                timers.set(base + n * unit)
            case 2 | 3:
                timers.set(base + 40 * n * unit)
                timers.set(base - 3 * unit)
            case 4:
                timers.delete(base + 80 * unit)
            case 5:
                timers.clear()
                timers.set(base + 500 * unit)
            case 6:
                return None
            case 7 if timers.times:
                timers.delete(timers.times[-1])
            case _:
                timers.set(base + 17 * n * unit)
        collector.emit(["came", n, len(value or ())])
        return [*(value or ()), n]

    def on_timer(self, value: Any, time: Any, timers: Any, collector: Any) -> Any:
        collector.emit([str(ordinate(time)), sum(value or ()), len(timers.times)])
        if len(value or ()) % 3 == 1:
            timers.set(time + (7 if isinstance(time, int) else 7 * MS))
            return [*value, 1]
        return None if len(value or ()) > 6 else value


class ModelTimers:
    """The timers of a key, as plain as they can be."""

    def __init__(self, now: Any) -> None:
        self.now, self.times = now, list[Any]()

    def set(self, time: Any) -> None:
        self.delete(time)
        self.times = sorted([*self.times, time])

    def delete(self, time: Any) -> None:
        self.times = [one for one in self.times if one != time]

    def clear(self) -> None:
        self.times = []


class Model:
    """What a process gives, in plain Python that looks through all keys."""

    def __init__(self, by_event_time: bool) -> None:
        self.by_event_time = by_event_time
        self.values: dict[str, Any] = {}
        self.timers: dict[str, ModelTimers] = {}
        self.now: Any = None
        self.rows: list[tuple[Any, ...]] = []

    def take(self, rows: Sequence[Any], now_ms: int) -> list[tuple[Any, ...]]:
        """Return what a batch gives."""
        self.rows, code = [], Wild()
        if self.by_event_time:
            rows = [row for row in rows if row[2] is not None]
            reached = [row[2] - DELAY for row in rows]
            self.now = max([*reached, *([] if self.now is None else [self.now])], default=None)
        else:
            self.now = datetime.fromtimestamp(now_ms / 1000, UTC)
        for key, n, at in rows:
            self._call(key, code.process, (n, at))
        while due := self.due():
            time, key = min(due)
            self.timers[key].delete(time)
            self._call(key, code.on_timer, time)
        return self.rows

    def due(self, now_ms: int | None = None) -> list[Any]:
        now = self.now if now_ms is None else datetime.fromtimestamp(now_ms / 1000, UTC)
        return [(time, key) for key, timers in self.timers.items() for time in timers.times if time <= now]

    def _call(self, key: str, method: Callable[..., Any], given_: Any) -> None:
        timers = self.timers.setdefault(key, ModelTimers(self.now))
        timers.now, out = self.now, _Out(key, self.rows)
        self.values[key] = method(self.values.get(key), given_, timers, out)


class _Out:
    def __init__(self, key: str, rows: list[tuple[Any, ...]]) -> None:
        self._key, self._rows = key, rows

    def emit(self, values: Sequence[Any]) -> None:
        self._rows.append((self._key, *values))


def by_partition(rows: Sequence[Any], partitions: int) -> list[Any]:
    """Return rows as several partitions give them, one behind the other."""
    return [row for at in range(partitions) for row in rows if partition_of((row[0],), partitions) == at]


def declared(by_event_time: bool, state: Any, spout: Any, out: str = "what: string, a: int, b: int") -> Any:
    topology = TridentTopology("t")
    timed: dict[str, Any] = {"event_time": "at", "delay": DELAY * MS} if by_event_time else {}
    stream = topology.new_stream("s", spout).group_by("key")
    return topology, stream.process(state, ["n", "at"], Wild(), out, state_name="w", **timed)


def test_a_timer_fires_in_the_batch_that_passes_its_time(engine: str, topology: TridentTopology) -> None:
    rows = [("a", 0), ("b", 5), ("a", 20), ("z", 50), ("z", 51), ("z", 60), ("b", 70), ("z", 999)]
    stream = topology.new_stream("s", FixedBatchSpout("user: string, at: bigint", 2, *rows))
    process = stream.group_by("user").process(Idle(), "at: bigint, n: int", event_time="at", delay=DELAY * MS)
    kept = keep(process.parallelism_hint(2))
    run_all(topology, engine, parallelism=2)
    found = {txid: sorted(batch) for txid, batch in kept.batches.items() if batch}
    assert found == {2: [("b", 35, 1)], 3: [("a", 50, 2)], 4: [("b", 100, 1)]}


class Later(KeyedProcess[int]):
    """Waits as many seconds as a tuple says, then gives how many tuples came."""

    def process(self, value: int | None, tuple: TridentTuple, timers: Timers, collector: Any) -> int:
        timers.set(timers.now + timedelta(seconds=tuple["n"]))
        return (value or 0) + 1

    def on_timer(self, value: int | None, time: Any, timers: Timers, collector: Any) -> None:
        collector.emit([time, value])


def test_by_the_time_of_the_batch_timers_fire_without_tuples(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = WallClock()
    monkeypatch.setattr(drive, "Clock", lambda: clock)
    topology = TridentTopology("t")
    spout = RowsSpout("k: string, n: int", {1: [("a", 10), ("b", 3_000)]})
    process = topology.new_stream("s", spout).group_by("k").process(Later(), "at: timestamp, n: int")
    kept, clock.now = keep(process.parallelism_hint(2)), 5_000
    with start(topology, "in_process") as running_topology:
        for clock.now in (5_000, 14_999, 15_000, 15_001, 3_004_999, 3_005_000):
            running_topology.process_all_available()
            fired = [(key, ordinate(at), n) for key, at, n in kept.rows]
            wanted = [("a", 15_000, 1)] * (clock.now >= 15_000) + [("b", 3_005_000, 1)] * (clock.now >= 3_005_000)
            assert fired == wanted
        assert running_topology.txid < 16  # each timer was looked for a few times
        before = running_topology.txid
        clock.now = 10**12
        running_topology.process_all_available()
        assert running_topology.txid == before  # nothing is left to look for


def test_what_is_due_fires_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, entries = WallClock(), dict[Any, Any]()
    monkeypatch.setattr(drive, "Clock", lambda: clock)
    fired = []
    for clock.now, given_, partitions in (
        (5_000, {1: [("a", 10)]}, 1),
        (14_000, {}, 3),
        (15_000, {}, 2),
        (16_000, {}, 2),
    ):
        topology = TridentTopology("t")
        stream = topology.new_stream("s", RowsSpout("k: string, n: int", given_)).group_by("k")
        kept = keep(stream.process(dict_state(entries), Later(), "at: timestamp, n: int").parallelism_hint(partitions))
        run_all(topology, "in_process", log_dir=str(tmp_path))
        fired.append(kept.rows)
    assert fired == [[], [], [("a", datetime(1970, 1, 1, 0, 0, 15, tzinfo=UTC), 1)], []]


def test_a_window_of_batch_time_behind_timers_fires_without_tuples(topology: TridentTopology) -> None:
    process = topology.new_stream("s", RowsSpout("k: string, n: int", {})).group_by("k")
    late = process.process(Later(), "at: timestamp, n: int")
    second = late.window(TumblingDurationWindow.of(timedelta(seconds=1)), "n", Sum(), "sum")
    with TopologyTestDriver(topology) as driver:
        driver.clock.advance(1000.2 - driver.clock.wall_ms() / 1000 % 1000)
        driver.feed("s", ("a", 5), ("b", 5))
        for seconds in (0, 4, 1, 1, 1):
            driver.clock.advance(seconds)
            driver.run()
        given_ = [rows for rows in driver.captured(second).values() if rows]
    assert given_ == [[(2,)]]


@pytest.mark.parametrize("type_", ["timestamp", "timestamp_ntz"])
def test_times_are_of_the_type_of_the_field_and_as_exact(type_: str, topology: TridentTopology) -> None:
    zone = UTC if type_ == "timestamp" else None
    at = datetime(2026, 11, 26, 12, 0, 0, 1, zone)
    stream = topology.new_stream("s", FixedBatchSpout(f"k: string, at: {type_}", 1, ("a", at), ("b", at + 5 * MS)))
    kept = keep(stream.group_by("k").process(Rounded(), f"at: {type_}, now: {type_}", event_time="at"))
    run_all(topology, "in_process")
    assert kept.rows == [("a", at + 3 * MS, at + 5 * MS)]


class Rounded(KeyedProcess[Any]):
    def process(self, value: Any, tuple: TridentTuple, timers: Timers, collector: Any) -> Any:
        timers.set(tuple["at"] + 3 * MS)

    def on_timer(self, value: Any, time: Any, timers: Timers, collector: Any) -> Any:
        collector.emit([time, timers.now])


def test_the_value_is_any_that_a_state_stores_and_keys_have_several_fields_and_nulls(topology: TridentTopology) -> None:
    rows = [(None, 1.5, 0), ("a", 0.0, 5), ("a", -0.0, 6), ("a", None, 7), (None, 1.5, 8), ("z", 1.0, 900)]
    stream = topology.new_stream("s", FixedBatchSpout("k: string, x: double, at: bigint", 1, *rows))
    kept = keep(stream.group_by("k", "x").process("at", Remembering(), "v: string", event_time="at"))
    run_all(topology, "in_process")
    assert kept.rows == [
        (None, 1.5, "{'times': (0, 8), 'last': datetime.timedelta(microseconds=8)}"),
        ("a", 0.0, "{'times': (5, 6), 'last': datetime.timedelta(microseconds=6)}"),
        ("a", None, "{'times': (7,), 'last': datetime.timedelta(microseconds=7)}"),
    ]


class Remembering(KeyedProcess[Any]):
    def process(self, value: Any, tuple: TridentTuple, timers: Timers, collector: Any) -> Any:
        timers.set(100)
        value = value or {"times": (), "last": None}
        value["times"], value["last"] = (*value["times"], tuple[0]), timedelta(microseconds=tuple[0])
        return value

    def on_timer(self, value: Any, time: Any, timers: Timers, collector: Any) -> Any:
        if timers.key["k"] != "z":
            collector.emit([str(value)])


def test_tuples_without_a_time_are_dropped_and_counted_late_ones_are_kept(topology: TridentTopology) -> None:
    stream = topology.new_stream("s", RowsSpout("user: string, at: bigint", {}))
    out = stream.group_by("user").process(Idle(), "at: bigint, n: int", event_time="at", state_name="w")
    with TopologyTestDriver(topology) as driver:
        fed(driver, [("z", 900)], [("a", None), ("a", 100)])
        assert driver.captured(out) == {1: [], 2: [("a", 130, 1)]}
        assert driver._progress.metrics()["w/no_event_time"] == 1


FAILURES = st.tuples(st.integers(1, 30), st.sampled_from(WAYS), PARTITIONS)
ROWS = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 9), st.none() | st.integers(0, 90)), max_size=6)
LIVES = st.lists(
    st.tuples(ROWS, st.integers(0, 300), PARTITIONS, st.lists(st.tuples(FAILURES, st.none() | ROWS), max_size=2)),
    max_size=14,
)


@pytest.mark.sample(1)
@pytest.mark.slow
@examples(12, 300)
@pytest.mark.parametrize("by_event_time", [True, False], ids=["event", "batch"])
def test_a_process_gives_what_the_model_gives_whatever_crashes(by_event_time: bool, count: int) -> None:
    @given(life=LIVES)
    @settings(max_examples=count)
    def lives(life: Any) -> None:
        lived(by_event_time, life)

    lives()


def lived(by_event_time: bool, life: Any) -> None:
    """Commit batches to a store that crashes, by drivers with other numbers of partitions, and compare with the model."""
    topology, stream = declared(by_event_time, MemoryMapState.opaque(), RowsSpout(FIELDS, {}, SpoutType.OPAQUE))
    lives, model, now = Life(topology, keep(stream)), Model(by_event_time), 1_000
    with patch.object(window_state, "_FAN_IN", 2), patch.object(window_state, "MAX_CHUNK_BYTES", 40):
        for rows, wait, partitions, failures in life:
            now += wait
            attempts = [(*failure, None if other is None else [other]) for failure, other in failures]
            found = lives.batch([rows], partitions, attempts, Now(now))
            (taken,) = lives.taken
            wanted = model.take(taken, now)
            # An attempt that was to crash may have gone well, with its number of partitions.
            assert found in [by_partition(wanted, count) for count in {partitions, *(one[2] for one in attempts)}]
    state = OpaqueMap(DictMap(lives.entries), "w")
    state.begin_commit(Txid(lives.txid + 1, lives.attempt + 1, lives.winners))
    left = state.multi_get([("key", key) for key in "abcde"])
    kept = {key for key, one in model.timers.items() if one.times or model.values[key] is not None}
    assert {key for key, one in zip("abcde", left, strict=True) if one is not None} == kept


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 3])
@given(life=batches, scale=st.sampled_from([1, 10, 1000]))
@settings(max_examples=15)
def test_by_the_time_of_the_batch_a_batch_runs_when_a_timer_is_due(partitions: int, life: Any, scale: int) -> None:
    topology, stream = declared(False, MemoryMapState.opaque(), RowsSpout(FIELDS, {}, SpoutType.OPAQUE))
    stream, model = stream.parallelism_hint(partitions), Model(by_event_time=False)
    wanted = {}
    with TopologyTestDriver(topology, max_batch_attempts=99) as driver:
        for rows, wait, failures in life:
            driver.clock.advance(wait * scale / 1000)
            now = driver.clock.wall_ms()
            due, alone = model.due(now), driver.run()
            assert len(alone) == 1 or (not alone and not due)
            for result in alone:
                wanted[result.txid] = model.take([], now)
            points = [point for point in failures if point[0].split(":")[-1] != "total"]
            final, at = fed_batch(driver, rows, points)
            wanted[driver.txid] = model.take(final, at)
        found = {txid: [tuple(row) for row in rows] for txid, rows in driver.captured(stream).items()}
    assert found == {txid: by_partition(rows, partitions) for txid, rows in wanted.items()}


def test_in_redis_a_process_goes_on_with_other_numbers_of_partitions(redis_server: Server, tmp_path: Path) -> None:
    chosen = random.Random(5)
    given_ = {
        txid: [(chosen.choice("abcdefgh"), chosen.randrange(10), txid * 60 + chosen.randrange(90)) for _ in range(12)]
        for txid in range(1, 9)
    }
    model, wanted, found = Model(by_event_time=True), list[Any](), list[Any]()
    for last, partitions in ((2, 2), (3, 1), (6, 8), (8, 3)):
        spout = RowsSpout(FIELDS, {txid: given_[txid] for txid in range(1, last + 1)})
        topology, stream = declared(True, RedisState.opaque(f"redis://{redis_server.address}/0"), spout)
        kept = keep(stream.parallelism_hint(partitions))
        run_all(topology, "in_process", log_dir=str(tmp_path))
        found.append(kept.rows)
        first = {2: 1, 3: 3, 6: 4, 8: 7}[last]
        rows = [by_partition(model.take(given_[txid], 0), partitions) for txid in range(first, last + 1)]
        wanted.append([row for batch in rows for row in batch])
    assert found == wanted
    assert sum(map(len, found)) > 120


class Ends(KeyedProcess[int]):
    """Gives how many tuples a key had in each part of 9 milliseconds that had some, by the time of the event."""

    def process(self, value: int | None, tuple: TridentTuple, timers: Timers, collector: Any) -> int:
        if not timers.times:
            timers.set(tuple["at"] + 9)
        return (value or 0) + 1

    def on_timer(self, value: int | None, time: Any, timers: Timers, collector: Any) -> None:
        collector.emit([time, value])


class Failing(KeyedProcess[Any]):
    """Fails as its tuples say."""

    def process(self, value: Any, tuple: TridentTuple, timers: Timers, collector: Any) -> Any:
        match tuple["n"]:
            case 0:
                raise ValueError("no such page")
            case 1:
                return object()
            case 2 | 3:
                timers.set(tuple["at"])
                return tuple["n"]
            case 4:
                collector.emit(["one too many", 1])
            case 5:
                timers.set(datetime(2026, 1, 1, tzinfo=UTC))
            case 6:
                timers.set(1 << 60)
        return None

    def on_timer(self, value: Any, time: Any, timers: Timers, collector: Any) -> Any:
        if value == 2:
            raise KeyError("nobody")
        timers.set(time)


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, r"step 's/Failing@w' on tuple \[key='a', n=0, at=7\]: ValueError: no such page"),
        (1, r"the value <object object at .*> of key \('a',\) cannot be stored: .*object"),
        (2, r"on_timer of key \('a',\) at 7 raised KeyError: 'nobody'"),
        (3, r"on_timer of key \('a',\) at 7 raised ValueError: on_timer of 7 sets a timer at 7, which is not later"),
        (4, r"emitted 2 values .* for the 1 output field \['what'\]"),
        (5, r"a timer at datetime.*: the times of this process are bigint, so give a whole number of milliseconds"),
        (6, r"a timer at 1152921504606846976: .* of the years 1 to 9999"),
    ],
)
def test_an_error_fails_the_batch_and_names_key_and_time(n: int, text: str, topology: TridentTopology) -> None:
    stream = topology.new_stream("s", FixedBatchSpout(FIELDS, 1, ("a", n, 7)))
    stream.group_by("key").process(Failing(), "what: string", event_time="at", state_name="w")
    with pytest.raises(BatchFailedError, match=text):
        run_all(topology, "in_process", max_batch_attempts=1)


def test_a_time_without_a_zone_is_refused_where_times_have_one() -> None:
    timers = Timers(TridentTuple(Fields("k"), ("a",)), 0, set(), "timestamp")
    with pytest.raises(TypeError, match="are timestamp, so give a datetime with a time zone"):
        timers.set(datetime(2026, 1, 1))
    with pytest.raises(TypeError, match="are timestamp_ntz, so give a datetime without a time zone"):
        Timers(timers.key, 0, set(), "timestamp_ntz").set(datetime(2026, 1, 1, tzinfo=UTC))


class NoTimer:
    def process(self, *args: Any) -> Any:
        """Do nothing."""


CALLS: list[tuple[Callable[[Stream], Any], str]] = [
    (lambda s: s.group_by("key").process(Idle(), "a: int", delay=MS), "which is that of an event time"),
    (lambda s: s.group_by("key").process(Idle(), "a: int", event_time="key"), "the event time 'key' is string"),
    (lambda s: s.group_by("key").process(Idle(), "a: int", event_time="x"), "'x'"),
    (lambda s: s.group_by("key").process(Idle(), "a"), "the type of field 'a' that Idle emits is not known"),
    (lambda s: s.group_by("key").process(Idle()), r"process takes \(\[state,\] \[fields,\] process, output fields\)"),
    (lambda s: s.group_by("key").process(Idle, "a: int"), "process takes"),
    (lambda s: s.group_by("key").process(NoTimer(), "a: int"), r"and on_timer\(value, time, timers, collector\)"),
    (lambda s: s.group_by("key").process(Idle(), "key: int"), "'key'"),
    (lambda s: s.group_by("key").process(Idle(), "$a: int"), r"a process cannot take or give '\$a'"),
    (lambda s: s.group_by("key").process(dict_state({}, "transactional"), Idle(), "a: int"),
        "the process keeps what it holds in state"),
    (lambda s: s.group_by("key").process(RedisState.opaque("redis://h/0", ttl_s=10**8), Idle(), "a: int"),
        "keeps values and timers in state 'a-process', .* needs them until your code lets go of them: leave ttl_s out"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), CALLS)
def test_a_wrong_call_is_refused(call: Callable[[Stream], Any], text: str, topology: TridentTopology) -> None:
    with pytest.raises(TopologyError, match=text):
        call(topology.new_stream("s", FixedBatchSpout(FIELDS, 1, ("a", 1, 1))))


def test_a_process_takes_other_outputs_and_refuses_another_time_or_version(tmp_path: Path) -> None:
    entries: dict[Any, OpaqueValue] = {}
    conf: dict[str, Any] = {"log_dir": str(tmp_path), "max_batch_attempts": 1}
    topology, _ = declared(True, dict_state(entries), RowsSpout(FIELDS, {1: [("a", 1, 1)]}))
    run_all(topology, "in_process", **conf)
    by_batch, _ = declared(False, dict_state(entries), RowsSpout(FIELDS, {}))
    said = "window timers by event time at, .* -> timers by the time of the batch"
    with pytest.raises(TopologyChangedError, match=said):
        start(by_batch, "in_process", **conf)
    spout = RowsSpout(FIELDS, {2: [("a", 1, 9)]})
    other, stream = declared(True, dict_state(entries), spout, "x: string, y: int, z: bigint")
    kept = keep(stream)
    run_all(other, "in_process", **conf)
    assert kept.rows == [("a", "came", 1, 1), ("a", "2", 2, 1)]
    stored = entries[("key", "a")]
    entries[("key", "a")] = OpaqueValue(stored.txid, stored.attempt, stored.prev, b"\x01\x94\x09\x00\xc0\x90")
    again, _ = declared(True, dict_state(entries), RowsSpout(FIELDS, {3: [("a", 1, 2)]}))
    why = "read the timers of a process: one is of version 9, this topology keeps version 1"
    with pytest.raises(BatchFailedError, match=why):
        run_all(again, "in_process", **conf)


def test_explain_and_describe_name_the_process() -> None:
    topology, _ = declared(True, MemoryMapState.opaque(), RowsSpout(FIELDS, {}))
    text = topology.explain()
    assert "process w: timers by event time at, delay 0:00:00.003000 by key: Wild(n, at) -> what, a, b" in text
    assert "every tuple goes to the process" in text
    assert topology.describe()[0]["window"] == "timers by event time at, delay 0:00:00.003000"


def test_a_key_is_found_when_it_is_due_however_far_away_with_few_panes_kept() -> None:
    chosen, entries, now = random.Random(3), dict[Any, Any](), 0
    due = {f"k{n}": chosen.randrange(1, 10 ** chosen.randrange(1, 13)) for n in range(400)}
    winners, panes, txid = Winners(), [], 0
    while due:
        txid += 1
        state = OpaqueMap(DictMap(entries), "w", 0)
        state.begin_commit(Txid(txid, txid, winners))
        kept, new = DueRecords(state, Fields("k: string"), ONE, "", "some records", []), due if txid == 1 else {}
        kept.read([("key", name) for name in new])
        if txid > 1:
            assert kept.earliest is not None
            assert kept.earliest <= min(due.values())
            now = kept.earliest if chosen.random() < 0.5 else now + chosen.randrange(1, 10 ** chosen.randrange(1, 13))
            assert set(kept.take(now).column("k").to_pylist()) == {key for key, at in due.items() if at <= now}
            due = {key: at for key, at in due.items() if at > now}
        names, times = pa.table({"k": pa.array(list(new), pa.string())}), np.array(list(new.values()), np.int64)
        kept.keep(names, [(times, now)], now, [], [False] * len(new))
        panes.append(len(kept._store.directory.panes))
        state.commit(Txid(txid, txid, winners))
        winners = winners.with_winner(txid, txid)
    assert max(panes) < 57 * 14
    assert [key for key in entries if key[0] == "chunk" and entries[key].curr is not None] == []


@pytest.mark.slow
def test_a_timer_that_is_set_later_again_and_again_is_noted_once_in_its_time(tmp_path: Path) -> None:
    entries: dict[Any, Any] = {}
    batches_ = {n: [("a", n), ("b", n)] for n in range(1, 60)}
    topology, stream = stream_of(RowsSpout("user: string, at: bigint", batches_))
    kept = keep(stream.group_by("user").process(dict_state(entries), Idle(), "at: bigint, n: int", event_time="at"))
    with patch.object(DueRecords, "_add", autospec=True, side_effect=DueRecords._add) as added:
        run_all(topology, "in_process", log_dir=str(tmp_path))
    assert kept.rows == []
    assert sum(call.args[1].num_rows for call in added.call_args_list) <= 2 * 2 * 3


def test_a_process_counts_in_the_statistics_of_its_topology() -> None:
    topology, stream = declared(True, MemoryMapState.opaque(), RowsSpout(FIELDS, {1: [("a", 8, 1), ("b", 8, 2)]}))
    stream.group_by("key").persistent_aggregate(MemoryMapState(), Count(), "n")
    status = run_all(topology, "in_process").last_progress
    assert status is not None
    assert status["stateKeysUpdated"] == {"w": 2, "n": 2}
