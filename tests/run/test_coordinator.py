"""Which batch may start and commit, what is tried again, what follows a failure; and which lane a batch takes."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import OneSpout
from trident import Config, Fields, TridentTopology
from trident.channel import Clock
from trident.errors import BatchFailedError, CommitOrderError, FailedException, SourceAwayError, SpoutError, can_heal
from trident.log.log_interface import MemoryLog
from trident.operations import Count, Split
from trident.plan import make_plan
from trident.run.batch import LOOP, Lane
from trident.run.coordinator import AttemptStatus, MasterBatchCoordinator
from trident.run.execution import LaneOf, lanes, lanes_of
from trident.run.opened_topology import OpenedTopology
from trident.run.retrying import RetryRule
from trident.spout import SpoutType
from trident.spout.interfaces import TransactionAttempt
from trident.state.txid import RETRY_BITS
from trident.steps.failures import Failure

EPOCH = 3


def attempt(txid: int, retry: int = 0, epoch: int = EPOCH) -> TransactionAttempt:
    return TransactionAttempt(txid, epoch << RETRY_BITS | retry)


def coordinator(pending: int = 3, last: int = 0, interval: float = 0.0) -> MasterBatchCoordinator:
    return MasterBatchCoordinator(last, EPOCH, pending, interval)


class Coordinating(RuleBasedStateMachine):
    """Any order of messages, late and doubled ones included, against a model that is a few lists."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = coordinator(pending=3, last=7, interval=1.0)
        self.now, self.not_before, self.throttled_until = 0.0, 0.0, 0.0
        self.ever: list[TransactionAttempt] = []
        self.live: dict[int, AttemptStatus] = {}
        self.current: dict[int, TransactionAttempt] = {}
        self.committed_ones: list[TransactionAttempt] = []
        self.own_failures = Counter[int]()  # without those that dragged a batch along

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def start(self) -> None:
        txid = 8 + len(self.committed_ones) + len(self.live)
        retried = any(one.txid == txid for one in self.ever)
        wait_s = max(0.0, self.not_before - self.now, 0.0 if retried else self.throttled_until - self.now)
        if len(self.live) == 3:
            wait_s = math.inf
        assert (self.batches.next_txid, self.batches.wait_s(self.now)) == (txid, wait_s)
        if wait_s:
            with pytest.raises(CommitOrderError, match=f"batch {txid} must not be started now"):
                self.batches.start(self.now)
            return
        new = self.batches.start(self.now)
        assert new.txid == txid
        assert new not in self.ever
        assert new.attempt >= max((one.attempt for one in self.ever), default=0)
        assert new.attempt >> RETRY_BITS == EPOCH
        self.ever.append(new)
        self.live[txid], self.current[txid] = AttemptStatus.PROCESSING, new
        self.throttled_until = self.now + 1.0

    @precondition(lambda self: self.ever)
    @rule(data=st.data())
    def processed(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.ever))
        fresh = self.is_live(one) and self.live[one.txid] is AttemptStatus.PROCESSING
        assert self.batches.mark_processed(one) is fresh
        if fresh:
            self.live[one.txid] = AttemptStatus.PROCESSED

    @rule()
    def commit_next(self) -> None:
        txid = 8 + len(self.committed_ones)
        ready = self.live.get(txid) is AttemptStatus.PROCESSED
        assert self.batches.commit_next() == (self.current[txid] if ready else None)
        if ready:
            self.live[txid] = AttemptStatus.COMMITTING

    @precondition(lambda self: self.ever)
    @rule(data=st.data())
    def committed(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.ever))
        if not (self.is_live(one) and self.live[one.txid] is AttemptStatus.COMMITTING):
            with pytest.raises(CommitOrderError, match=re.escape(f"batch {one} was not being committed")):
                self.batches.mark_committed(one)
            return
        self.batches.mark_committed(one)
        self.committed_ones.append(one)
        del self.live[one.txid], self.own_failures[one.txid]

    @precondition(lambda self: self.ever)
    @rule(data=st.data(), backoff=st.sampled_from([0.0, 2.0]))
    def failed(self, data: st.DataObject, backoff: float) -> None:
        one = data.draw(st.sampled_from(self.ever))
        dead = [self.current[txid] for txid in sorted(self.live) if txid >= one.txid] if self.is_live(one) else []
        assert self.batches.fail(one, self.now, backoff) == dead
        for each in dead:
            del self.live[each.txid]
        if dead:
            self.not_before = self.now + backoff
            self.own_failures[one.txid] += 1

    @invariant()
    def commits_are_in_order_and_without_a_gap(self) -> None:
        assert [one.txid for one in self.committed_ones] == list(range(8, 8 + len(self.committed_ones)))
        assert self.batches.last_txid == 7 + len(self.committed_ones)

    @invariant()
    def the_active_ones_follow_the_last_committed_one(self) -> None:
        following = range(8 + len(self.committed_ones), 8 + len(self.committed_ones) + len(self.live))
        assert self.batches.active() == {self.current[txid]: self.live[txid] for txid in following}
        committing = [txid for txid, status in self.live.items() if status is AttemptStatus.COMMITTING]
        assert committing in ([], [8 + len(self.committed_ones)])
        assert all(self.batches.failures(one.txid) == self.own_failures[one.txid] for one in self.ever)

    def is_live(self, one: TransactionAttempt) -> bool:
        return one.txid in self.live and self.current[one.txid] == one


@pytest.mark.slow
def test_any_order_of_messages_is_what_the_rules_say() -> None:
    run_state_machine_as_test(Coordinating, settings=settings(max_examples=80, stateful_step_count=40, deadline=None))


class Away(OneSpout):
    """One batch of one row; reading it raises the given errors first, one for each attempt."""

    fields, spout_type = Fields("n: bigint"), SpoutType.OPAQUE

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def emit(self, part: Any) -> Iterator[pa.Table]:
        if self.errors:
            raise self.errors.pop(0)
        yield pa.table({"n": [1]})


def run(spout: Away, config: Config) -> object:
    topology = TridentTopology("away")
    count = topology.new_stream("rows", spout).persistent_aggregate(MemoryMapState(), Count(), "count")
    with topology.start(config) as running:
        running.process_all_available()
        return running.state(count).get()


CONFIG = Config(engine="in_process", max_batch_attempts=2, retry_backoff_ms=1, retry_backoff_max_ms=1)


def test_tries_while_the_source_is_away_do_not_count() -> None:
    away, broken = SourceAwayError("no leader"), SpoutError("broken")
    assert run(Away(*[away] * 5), CONFIG) == 1
    assert run(Away(*[away] * 5, broken, *[away] * 5), CONFIG) == 1
    with pytest.raises(BatchFailedError, match="failed 2 times .*broken"):
        run(Away(away, broken, away, broken), CONFIG)


def test_tries_of_each_batch_in_flight_differ_from_those_without_its_source() -> None:
    coordinator = MasterBatchCoordinator(0, 1, max_pending=2)
    retrying = RetryRule(CONFIG, coordinator, Clock(), False, False)
    away, broken = Failure("rows", None, "no leader", waits_for="its source"), Failure("rows", None, "broken")

    def fail(attempt: TransactionAttempt, failure: Failure) -> None:
        try:
            retrying.pause_after(attempt, failure)
        finally:
            coordinator.fail(attempt, 0.0)

    for _ in range(5):
        fail(coordinator.start(0.0), away)
    first = coordinator.start(0.0)
    coordinator.mark_processed(first)
    fail(coordinator.start(0.0), away)  # of the next batch
    fail(first, broken)
    with pytest.raises(BatchFailedError) as fatal:
        fail(coordinator.start(0.0), broken)
    assert fatal.value.attempts == 2


def mistaken(kind: SpoutType, error: Exception, **conf: Any) -> tuple[int, BatchFailedError | None]:
    """Run a function that raises at one of two tuples; return its calls with that tuple, and what ended the topology."""
    calls = list[int]()

    def fail(n: int) -> int:
        if n == 1:
            calls.append(n)
            raise error
        return n

    spout = Away()
    spout.spout_type = kind
    topology = TridentTopology("mistaken")
    states = topology.new_stream("rows", spout).each("n", fail, "m: bigint")
    states.persistent_aggregate(MemoryMapState(), Count(), "count")
    running = topology.start(CONFIG, **{"max_batch_attempts": 3, **conf})
    try:
        running.process_all_available()
    except BatchFailedError as ended:
        return len(calls), ended
    running.stop()
    return len(calls), None


def test_a_mistake_that_is_the_same_at_each_try_is_made_once() -> None:
    calls, ended = mistaken(SpoutType.TRANSACTIONAL, ZeroDivisionError("division by zero"))
    assert calls == 1
    assert "batch 1 failed once in step 'rows/fail' on tuple [n=1]: ZeroDivisionError: division by zero." in str(ended)
    assert not can_heal(ended or RuntimeError())


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (SpoutType.OPAQUE, ZeroDivisionError("the next try may have other tuples")),
        (SpoutType.TRANSACTIONAL, ConnectionError("no answer")),
        (SpoutType.TRANSACTIONAL, FailedException("again")),
        (SpoutType.TRANSACTIONAL, RuntimeError("a library gave up")),
    ],
    ids=["opaque", "network", "asked for", "library"],
)
def test_what_another_try_may_mend_is_tried_as_often_as_is_set(kind: SpoutType, error: Exception) -> None:
    calls, ended = mistaken(kind, error)
    assert (calls, ended is not None and ended.attempts) == (3, 3)


def test_a_mistake_is_left_out_at_the_second_try(tmp_path: Path) -> None:
    conf = {"on_poison": "dead_letter", "dead_letter_dir": str(tmp_path), "max_batch_attempts": 9}
    assert mistaken(SpoutType.TRANSACTIONAL, ZeroDivisionError("division by zero"), **conf) == (2, None)
    assert "ZeroDivisionError" in next(tmp_path.glob("*.jsonl")).read_text()


SMALL, LARGE = 96 << 10, (96 << 10) + 1
POOLS = Lane(lambda function: None, lambda function: None)


@pytest.mark.parametrize(
    ("lane_of", "here", "size", "alone", "in_loop", "brief"),
    [
        (lanes(POOLS), True, 0, True, False, False),
        (lanes(POOLS, one_by_one=True), True, None, True, True, False),
        (lanes(POOLS, one_by_one=True), True, LARGE, False, True, False),
        (lanes(POOLS, one_by_one=True), False, 0, True, False, False),
        (lanes(POOLS, by_size=True), True, 0, True, True, True),
        (lanes(POOLS, by_size=True), True, SMALL, True, True, True),
        (lanes(POOLS, by_size=True), True, SMALL, False, False, True),
        (lanes(POOLS, by_size=True), True, LARGE, True, False, False),
        (lanes(POOLS, by_size=True), True, None, True, False, False),
        (lanes(POOLS, by_size=True), False, SMALL, True, False, False),
    ],
)
def test_a_batch_takes_the_lane_of_its_size_runner_and_company(
    lane_of: LaneOf, here: bool, size: int | None, alone: bool, in_loop: bool, brief: bool
) -> None:
    lane = lane_of(mock.Mock(here=here), size, alone)
    assert (lane.in_loop, lane.brief) == (in_loop, brief)
    assert lane.process is (LOOP if in_loop else POOLS).process


def counting(function: Any, state: Any) -> TridentTopology:
    topology = TridentTopology("t")
    texts = topology.new_stream("texts", FixedBatchSpout("text: string", 1, ["a b"]))
    words = texts.each("text", function, "word: string")
    words.group_by("word").persistent_aggregate(state, Count(), "n")
    return topology


@pytest.mark.parametrize(
    ("function", "state", "pending", "lanes"),
    [
        (Split(), MemoryMapState, 3, [(True, True), (False, False)]),
        (Split(), MemoryMapState, 1, [(True, False)] * 2),
        (lambda text: text, MemoryMapState, 3, [(False, False)] * 2),
        (Split(), lambda: MemoryMapState.transactional(), 3, [(False, False)] * 2),
    ],
    ids=["kernels and memory", "one by one", "user code", "rows, not columns"],
)
def test_a_topology_gets_its_way_of_execution_once(
    function: Any, state: Callable[[], Any], pending: int, lanes: list[tuple[bool, bool]]
) -> None:
    graph = counting(function, state()).graph()
    config = Config(engine="in_process", max_spout_pending=pending)
    with closing(OpenedTopology(graph, make_plan(graph), config, lambda states: MemoryLog("t"))) as opened:
        lane_of = lanes_of(opened)
        found = [lane_of(mock.Mock(here=True), size, True) for size in (SMALL, LARGE)]
        assert [(lane.in_loop, lane.brief) for lane in found] == lanes
