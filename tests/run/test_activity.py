"""A topology that is paused, drained or slowed down."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts import FeederBatchSpout, FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import GATES, QUICK, WAIT_S, GatedState, Keep, OneSpout, Points, keep, start, touch
from tests.run.test_loop import letters
from trident import Config, FailedException, Fields, TridentCollector, TridentTopology, TridentTuple
from trident.errors import BatchFailedError, TridentError
from trident.operations import Count, Function
from trident.run.running import RunningTopology
from trident.run.running import start as start_graph
from trident.run.sources import BackPressure
from trident.spout.interfaces import Lag, SpoutType


class GatedThenFailing(Function):
    """Waits at a gate, and raises so and so often; works in this process only."""

    output_types = ("string",)

    def __init__(self, gate: str, folder: Path, times: int = 1) -> None:
        self.gate, self.folder, self.times = gate, str(folder), times

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        GATES.pass_through(self.gate)
        if touch(self.folder) < self.times:
            raise FailedException("once more")
        collector.emit(tuple.values)


def test_what_had_begun_is_committed_and_nothing_begins_while_inactive(
    engine: str, topology: TridentTopology, gate: str
) -> None:
    state, points = GatedState(gate, 1), Points()
    topology.new_stream("s", letters("abcdefgh")).partition_persist(state, Keep(), "y: string")
    with start(topology, engine, points, max_spout_pending=3) as running:
        GATES.await_reached(gate)
        points.await_point("processed", 3)
        running.deactivate()
        assert (running.is_deactivated, running.is_active, running.status["message"]) == (True, True, "inactive")
        assert not running.drain(0.1)
        GATES.open(gate)
        assert running.drain(WAIT_S)
        assert running.txid == 3
        assert {attempt.txid for attempt in points.attempts("defined")} == {1, 2, 3}
        running.activate()
        running.process_all_available()
        assert (running.txid, running.status["message"], running.is_deactivated) == (8, "running", False)
    assert state.rows == [(letter,) for letter in "abcdefgh"]
    assert (running.is_deactivated, running.status["message"]) == (False, "stopped")


def test_a_batch_that_fails_while_inactive_is_tried_again(topology: TridentTopology, tmp_path: Path, gate: str) -> None:
    failing = GatedThenFailing(gate, tmp_path)
    rows = keep(topology.new_stream("s", letters("ab")).each("x", failing, "y").project("y"))
    with start(topology, "in_process", max_spout_pending=2) as running:
        GATES.await_reached(gate)
        running.deactivate()
        GATES.open(gate)
        assert running.drain(WAIT_S)
        committed = running.txid
        assert committed in (1, 2)  # whether the second had begun is up to the threads
        assert running.status["failures"] >= 1
        running.activate()
        running.process_all_available()
    assert rows.rows == [("a",), ("b",)]


def test_a_batch_that_fails_for_good_ends_an_inactive_topology(
    topology: TridentTopology, tmp_path: Path, gate: str
) -> None:
    keep(topology.new_stream("s", letters("ab")).each("x", GatedThenFailing(gate, tmp_path, 9), "y"))
    running = start(topology, "in_process", max_spout_pending=1, max_batch_attempts=2)
    GATES.await_reached(gate)
    running.deactivate()
    GATES.open(gate)
    with pytest.raises(BatchFailedError, match="batch 1 failed 2 times"):
        running.drain(WAIT_S)
    assert not running.is_deactivated


@pytest.mark.parametrize("pending", [1, 3])
def test_a_topology_that_starts_inactive_begins_no_batch(topology: TridentTopology, pending: int) -> None:
    feeder, points = FeederBatchSpout("x: string"), Points()
    rows = keep(topology.new_stream("s", feeder))
    feeder.feed_nowait([["a"]])
    feeder.feed_nowait([["b"]])
    config = Config.of({**QUICK, "engine": "in_process", "max_spout_pending": pending})
    with start_graph(topology.graph(), config, None, points, active=False) as running:
        assert running.drain(WAIT_S)
        for _ in range(20):
            running.loop.wake()  # each is a turn of the loop
        running.loop.start_gate.order(False)
        assert running.drain(WAIT_S)
        assert (points.reached, running.txid, running.status["message"]) == ([], 0, "inactive")
        running.activate()
        running.process_all_available()
    assert rows.rows == [("a",), ("b",)]


def test_a_wait_for_all_available_data_ends_when_it_is_deactivated(topology: TridentTopology, gate: str) -> None:
    state = GatedState(gate, 1)
    topology.new_stream("s", letters("abc")).partition_persist(state, Keep(), "y: string")
    with start(topology, "in_process", max_spout_pending=2) as running, ThreadPoolExecutor(1) as pool:
        GATES.await_reached(gate)
        waiting = pool.submit(running.process_all_available)
        running.deactivate()
        with pytest.raises(
            TridentError, match=r"topology 't' is deactivated: its spouts are not asked .* activate\(\)"
        ):
            waiting.result(WAIT_S)
        GATES.open(gate)
        running.activate()
        running.process_all_available()
    assert state.rows == [("a",), ("b",), ("c",)]


def test_a_drain_that_is_overtaken_by_activate_says_that_it_was_not_done(topology: TridentTopology, gate: str) -> None:
    topology.new_stream("s", letters("a")).partition_persist(GatedState(gate, 1), Keep(), "y: string")
    with start(topology, "in_process", max_spout_pending=2) as running, ThreadPoolExecutor(1) as pool:
        GATES.await_reached(gate)
        running.deactivate()
        draining = pool.submit(running.drain)
        running.activate()
        assert draining.result(WAIT_S) is False
        GATES.open(gate)


def test_an_inactive_topology_stops_and_the_next_start_goes_on(topology: TridentTopology, tmp_path: Path) -> None:
    points = Points()
    rows = keep(topology.new_stream("s", letters("abcdef")))
    with start(topology, "in_process", points, log_dir=str(tmp_path / "log")) as running:
        points.await_point("recorded", 1)
        running.deactivate()
    committed = running.txid
    with start(topology, "in_process", log_dir=str(tmp_path / "log")) as again:
        again.process_all_available()
    assert committed >= 1
    assert (rows.rows, again.txid) == ([(letter,) for letter in "abcdef"], 6)


@pytest.mark.slow
def test_any_orders_while_it_runs_keep_the_counts_exact(topology: TridentTopology) -> None:
    feeder, points = FeederBatchSpout("x: string"), Points()
    rows = keep(topology.new_stream("s", feeder))
    with start(topology, "in_process", points, max_spout_pending=3) as running:

        def order() -> None:
            for number in range(150):
                running.deactivate()
                if number % 5 == 0:
                    running.drain(WAIT_S)
                running.activate()

        threads = [threading.Thread(target=order) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(300):
            feeder.feed_nowait([[str(number)]])
        for thread in threads:
            thread.join()
        running.activate()
        running.process_all_available()
        running.deactivate()
        assert running.drain(WAIT_S)
        feeder.feed_nowait([["late"]])
        assert running.drain(WAIT_S)
        assert [attempt.txid for attempt in points.attempts("recorded")] == list(range(1, running.txid + 1))
    assert rows.rows == [(str(number),) for number in range(300)]


class QueueSpout:
    """An `IRichSpout` that emits each message once, and forgets those that fail; notes what it is told."""

    def __init__(self, *messages: str) -> None:
        self.messages = list(messages)
        self.calls: list[str] = []

    def open(self, conf: Mapping[str, Any], context: Any, collector: Any) -> None:
        self.collector = collector
        self.calls.append("open")

    def next_tuple(self) -> None:
        if self.messages:
            self.collector.emit([self.messages[0]], self.messages.pop(0))

    def ack(self, msg_id: Any) -> None:
        self.calls.append(f"ack {msg_id}")

    def fail(self, msg_id: Any) -> None:
        self.calls.append(f"fail {msg_id}")

    def activate(self) -> None:
        self.calls.append("activate")

    def deactivate(self) -> None:
        self.calls.append("deactivate")

    def close(self) -> None:
        self.calls.append("close")

    def get_output_fields(self) -> Fields:
        return Fields("x: string")

    def __deepcopy__(self, memo: Any) -> QueueSpout:
        return self


def test_a_second_try_without_rows_leaves_nothing_to_wait_for(
    topology: TridentTopology, tmp_path: Path, gate: str
) -> None:
    spout = QueueSpout("a")
    keep(topology.new_stream("s", spout).each("x", GatedThenFailing(gate, tmp_path), "y"))
    with start(topology, "in_process", max_spout_pending=2) as running:
        GATES.await_reached(gate)
        running.deactivate()
        GATES.open(gate)
        assert running.drain(WAIT_S)
        assert running.txid == 0
        assert spout.calls == ["open", "activate", "fail a", "deactivate"]
        spout.messages.append("b")
        running.activate()
        running.process_all_available()
        assert running.txid == 1
    assert spout.calls[4:] == ["activate", "ack b", "deactivate", "close"]


def test_a_spout_that_raises_then_harms_nothing(topology: TridentTopology, caplog: pytest.LogCaptureFixture) -> None:
    class Raising(QueueSpout):
        def deactivate(self) -> None:
            super().deactivate()
            if self.calls.count("deactivate") == 1:
                raise ValueError("not now")

    spout = Raising("a")
    rows = keep(topology.new_stream("s", spout))
    with start(topology, "in_process") as running:
        running.process_all_available()
        running.deactivate()
        assert running.drain(WAIT_S)
        assert "a spout raised when notified that it is active: False" in caplog.text
        spout.messages.append("b")
        running.activate()
        running.process_all_available()
    assert rows.rows == [("a",), ("b",)]


def test_an_inactive_topology_is_idle(topology: TridentTopology) -> None:
    keep(topology.new_stream("s", letters("ab")))
    with topology.start(engine="in_process", active=False) as running:
        assert running.drain(WAIT_S)
        before = time.process_time()
        assert not running.await_termination(0.5)
        assert time.process_time() - before < 0.1


def leave(running: RunningTopology) -> int:
    """Leave the block of a topology, in a process that was forked within it; say what that gave."""
    try:
        with running:
            pass
    except TridentError as error:
        return 3 if "goes on there; it cannot be used here" in str(error) else 4
    return 5


def test_a_forked_process_leaves_the_topology_to_its_parent(tmp_path: Path) -> None:
    feeder, state = FeederBatchSpout("x: string"), MemoryMapState()
    topology = TridentTopology("forked")
    counts = topology.new_stream("s", feeder).group_by("x").persistent_aggregate(state, Count(), "n")
    with start(topology, "in_process", log_dir=str(tmp_path / "log")) as running:
        feeder.feed([["a"]])
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)  # ends it if it waits for threads that it does not have
            os._exit(leave(running))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        feeder.feed([["a"]])
        assert running.state(counts).multi_get(["a"]) == [2]


TARGET_S = 10.0
Store = Callable[[float], float]
"""From the share of a batch to the seconds that it takes."""


def store(fixed_s: float, read_s: float, noise: float = 0.0, seed: int = 0) -> Store:
    draw = random.Random(seed)
    return lambda share: (fixed_s + read_s * share) * (1 + draw.uniform(-noise, noise))


def run(pressure: BackPressure, takes: Store, batches: int, in_flight: int = 1) -> list[float]:
    """Let batches run, several of them defined ahead; return the share after each."""
    shares, flying = [], deque([pressure.share] * (in_flight - 1))
    for _ in range(batches):
        flying.append(pressure.share)
        defined_with = flying.popleft()
        pressure.took(defined_with, takes(defined_with))
        shares.append(pressure.share)
    return shares


def test_fast_batches_change_nothing() -> None:
    assert set(run(BackPressure(TARGET_S), store(0.5, 9.4, noise=0.005), 50)) == {1.0}


@pytest.mark.parametrize("in_flight", [1, 3, 5])
@pytest.mark.parametrize("slow_s", [20.0, 60.0, 1_000.0])
def test_a_slow_store_shrinks_batches_within_few_to_what_it_can_take(slow_s: float, in_flight: int) -> None:
    shares = run(BackPressure(TARGET_S), store(0.0, slow_s), 40, in_flight)
    assert shares[0] == pytest.approx(
        max(TARGET_S / slow_s, 0.25)
    )  # a single batch never costs more than three quarters
    settled = 1 + 4 * in_flight
    assert all(share * slow_s == pytest.approx(TARGET_S, rel=0.15) for share in shares[settled:])


@pytest.mark.parametrize("in_flight", [1, 3, 5])
def test_a_store_that_is_fast_again_gets_whole_batches_again_step_by_step(in_flight: int) -> None:
    pressure = BackPressure(TARGET_S)
    run(pressure, store(0.0, 1_000.0), 40, in_flight)
    low = pressure.share
    shares = run(pressure, store(0.01, 1.0), 40 * in_flight, in_flight)
    assert shares[-1] == 1.0
    steps = [after / before for before, after in zip([low, *shares], shares, strict=False)]
    assert all(1.0 <= step <= 1.25**in_flight + 1e-9 for step in steps)


@pytest.mark.parametrize("fixed_s", [5.0, 9.0, 30.0, 200.0])
def test_batches_are_not_cut_where_less_to_read_does_not_make_them_faster(fixed_s: float) -> None:
    """Else a store that takes a minute for any commit would get a thousandth of the rows per minute."""
    read_s = 20.0
    shares = run(BackPressure(TARGET_S), store(fixed_s, read_s), 60)[20:]
    rate = sum(shares) / sum(fixed_s + read_s * share for share in shares)
    assert rate >= 0.4 / (fixed_s + read_s)  # of what whole batches would give


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_make_it_swing(seed: int) -> None:
    shares = run(BackPressure(TARGET_S), store(0.3, 40.0, noise=0.3, seed=seed), 200, in_flight=3)[30:]
    assert 0.1 < min(shares) <= max(shares) < 0.55  # a quarter would be right


def test_a_batch_in_flight_that_was_large_does_not_cut_the_small_ones_again() -> None:
    pressure = BackPressure(TARGET_S)
    for _ in range(5):
        pressure.took(1.0, 40.0)
        assert pressure.share == 0.25


def test_a_batch_that_is_not_done_in_time_is_too_large_whatever_the_target() -> None:
    pressure = BackPressure(TARGET_S)
    for _ in range(3):  # all that were in flight
        pressure.timed_out(1.0)
        assert pressure.share == 0.25
    pressure.timed_out(pressure.share)
    assert pressure.share == 0.0625
    assert run(pressure, store(0.01, 1.0), 40)[-1] == 1.0


@given(st.lists(st.floats(0, 1e6) | st.sampled_from([0.0, TARGET_S])), st.integers(1, 5), st.booleans())
def test_after_whatever_happened_fast_batches_lead_back_to_all(before: list[float], in_flight: int, late: bool) -> None:
    pressure = BackPressure(TARGET_S)
    for took in before:
        pressure.timed_out(pressure.share) if late else pressure.took(pressure.share, took)
        assert 0.001 <= pressure.share <= 1
    assert run(pressure, store(0.01, 1.0), 60 * in_flight, in_flight)[-1] == 1.0


def test_batches_that_spill_are_halved_and_grow_slowly_beyond_the_size_that_spilled() -> None:
    pressure, shares = BackPressure(TARGET_S), []
    for _ in range(200):
        share = pressure.share
        shares.append(share)
        pressure.took(share, 0.1)
        if share > 0.4:
            pressure.note_spill(share)
    assert shares[:3] == [1.0, 0.5, 0.25]
    assert sum(share > 0.4 for share in shares[3:]) < 20
    assert min(shares) >= 0.1


class Shrinking(OneSpout):
    """An opaque spout of 400 numbers that emits at most `most`, or a share of these; notes what it is told and asked."""

    fields, spout_type, is_quick = Fields("n: bigint"), SpoutType.OPAQUE, True

    def __init__(self, most: int) -> None:
        self.most = self.bound = most
        self.calls: list[Any] = []

    def throttle(self, share: float) -> None:
        self.calls.append(share)
        self.bound = max(1, int(self.most * share))

    def initialize_transaction(self, txid: int, previous: Any) -> Any:
        self.calls.append("define")
        start = previous["end"] if previous else 0
        return {"start": start, "end": min(400, start + self.bound)} if start < 400 else None

    def emit(self, part: dict[str, int]) -> Iterator[pa.Table]:
        yield pa.table({"n": pa.array(range(part["start"], part["end"]), pa.int64())})


@pytest.mark.parametrize(("target_s", "throttled"), [(1e-9, True), (0.0, False), (30.0, False)])
def test_a_spout_is_told_before_it_is_asked_and_only_when_the_share_changes(
    topology: TridentTopology, target_s: float, throttled: bool
) -> None:
    spout = Shrinking(100)
    topology.new_stream("numbers", spout).persistent_aggregate(MemoryMapState(), Count(), "count")
    with start(topology, "in_process", target_batch_s=target_s, max_spout_pending=1) as running:
        running.process_all_available()
        share = running.status["share"]
    shares = [call for call in spout.calls if call != "define"]
    assert (shares != [], share < 1) == (throttled, throttled)
    assert spout.calls[0] == "define"
    assert all(before != after for before, after in pairwise(shares))
    if throttled:
        assert spout.calls[:3] == ["define", 0.25, "define"]
        assert min(shares) >= 0.001


def slow(n: int) -> int:
    threading.Event().wait(0.005)  # what slow work is
    return n


def test_an_opaque_batch_that_is_too_large_for_its_time_is_tried_again_with_less(topology: TridentTopology) -> None:
    numbers = topology.new_stream("numbers", Shrinking(400)).each("n", slow, "m: bigint")
    state = numbers.persistent_aggregate(MemoryMapState(), Count(), "count")
    with start(topology, "in_process", message_timeout_s=1.0, max_spout_pending=2) as running:
        running.process_all_available()
        assert running.state(state).get() == 400
        assert running.status["failures"] >= 1  # all 400 take two seconds
        assert running.last_progress is not None
        assert running.last_progress["numInputRows"] < 400


def test_each_source_says_its_rows_its_rates_and_how_far_it_is_behind(engine: str, topology: TridentTopology) -> None:
    one = topology.new_stream("one", FixedBatchSpout("x: string", 2, ["a"], ["b"], ["c"], ["d"], ["e"]))
    other = topology.new_stream("other", fed := FeederBatchSpout("x: string"))
    for number in range(4):
        fed.feed_nowait([[str(number)]])
    topology.merge(one, other).persistent_aggregate(MemoryMapState(), Count(), "count")
    with start(topology, engine) as running:
        running.process_all_available()
        batches, status = running.recent_progress, running.status
    told = [
        [(each["description"], each["numInputRows"], each["lag"]) for each in batch["sources"]] for batch in batches
    ]
    assert [batch["numInputRows"] for batch in batches] == [3, 3, 2, 1]
    records, fed_batches = Lag(0, "records")._asdict(), Lag(0, "batches")._asdict()
    assert told[0] == [("one", 2, {**records, "amount": 3}), ("other", 1, {**fed_batches, "amount": 3})]
    assert told[3] == [("one", 0, records), ("other", 1, fed_batches)]
    assert all(each["processedRowsPerSecond"] > 0 for each in batches[0]["sources"])
    assert [batch["sources"][0]["inputRowsPerSecond"] > 0 for batch in batches] == [False, True, True, False]
    assert status["sources"] == [
        {"description": "one", "numInputRows": 5, "lag": records},
        {"description": "other", "numInputRows": 4, "lag": fed_batches},
    ]
    assert (status["share"], status["tuples"]) == (1.0, 9)


class Confused(FixedBatchSpout):
    """Its coordinator's lag raises."""

    def get_coordinator(self, conf: Any) -> Any:
        made = super().get_coordinator(conf)

        def confused(definition: Any) -> Any:
            raise RuntimeError("lost count")

        made.lag = confused  # type: ignore[method-assign]
        return made


def test_a_lag_that_raises_is_told_once_and_costs_nothing(
    topology: TridentTopology, caplog: pytest.LogCaptureFixture
) -> None:
    spout = Confused("x: string", 1, ["a"], ["b"])
    topology.new_stream("s", spout).persistent_aggregate(MemoryMapState(), Count(), "count")
    with start(topology, "in_process") as running:
        running.process_all_available()
        assert running.status["sources"] == [{"description": "s", "numInputRows": 2, "lag": None}]
    assert [record.getMessage() for record in caplog.records] == [
        "spout s: its lag is not known any more: RuntimeError: lost count"
    ]
