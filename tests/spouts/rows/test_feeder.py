"""FeederBatchSpout: each feed is a batch, and feed returns when that batch is committed."""

from __future__ import annotations

import gc
import math
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pytest

from spouts import FeederBatchSpout
from tests.spouts.reading import rows_of
from trident.errors import ReplayMismatchError, SpoutError, TopologyError
from trident.spout import ITridentSpout, TransactionAttempt


class Driver:
    """What a topology does with a spout, in a thread of its own until `stop`."""

    def __init__(self, spout: FeederBatchSpout) -> None:
        self.committed: list[list[tuple[Any, ...]]] = []
        self._spout, self._stopping = spout, Event()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        coordinator, previous, txid = self._spout.get_coordinator({}), None, 1
        while not self._stopping.is_set():
            definition = coordinator.initialize_transaction(txid, previous)
            if definition is None:
                self._stopping.wait(0.001)
                continue
            self.committed.append(rows_of(self._spout, coordinator, definition))
            coordinator.success(txid, definition)
            previous, txid = definition, txid + 1
        coordinator.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def test_feeds_are_batches_in_order_and_each_is_committed_when_feed_returns() -> None:
    spout = FeederBatchSpout("word: string", "n: int")
    assert isinstance(spout, ITridentSpout)
    driver = Driver(pickle.loads(pickle.dumps(spout)))
    try:
        spout.feed([("a", 1), ("b", 2)])
        assert driver.committed == [[("a", 1), ("b", 2)]]
        spout.feed([])
        spout.feed(pa.table({"x": ["c"], "y": pa.array([3], pa.int64())}))
        assert driver.committed == [[("a", 1), ("b", 2)], [], [("c", 3)]]
    finally:
        driver.stop()


def test_what_is_fed_before_the_start_is_queued() -> None:
    spout = FeederBatchSpout("n: int")
    assert [spout.feed_nowait([(1,)]), spout.feed_nowait([(2,)])] == [0, 1]
    driver = Driver(spout)
    try:
        spout.feed([(3,)])
        assert driver.committed == [[(1,)], [(2,)], [(3,)]]
    finally:
        driver.stop()


def test_many_threads_may_feed_at_once() -> None:
    spout = FeederBatchSpout("n: int")
    driver = Driver(spout)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: spout.feed([(n,)]), range(100)))
    finally:
        driver.stop()
    assert sorted(driver.committed) == [[(n,)] for n in range(100)]


def test_a_feed_that_is_not_committed_in_time_says_where_it_is_and_stays_queued() -> None:
    spout = FeederBatchSpout("n: int")
    with pytest.raises(SpoutError, match=r"feed 0 was not committed within 0 s \(no batch has it yet\)"):
        spout.feed([(1,)], timeout_s=0)
    coordinator = spout.get_coordinator({})
    definition = coordinator.initialize_transaction(1, None)
    with pytest.raises(SpoutError, match=r"feed 1 was not committed within 0.01 s \(no batch has it yet\)"):
        spout.feed([(2,)], timeout_s=0.01)
    assert rows_of(spout, coordinator, definition) == [(1,)]
    assert rows_of(spout, coordinator, coordinator.initialize_transaction(2, definition)) == [(2,)]


def test_a_feed_may_wait_for_ever() -> None:
    spout = FeederBatchSpout("n: bigint")
    with ThreadPoolExecutor(1) as pool:
        fed = pool.submit(spout.feed, [(1,)], math.inf)
        with pytest.raises(TimeoutError):
            fed.result(0.05)
        driver = Driver(spout)
        fed.result(30)
        driver.stop()
    assert driver.committed == [[(1,)]]


def test_a_feed_is_told_that_the_topology_stopped() -> None:
    spout = FeederBatchSpout("n: int")
    coordinator = spout.get_coordinator({})
    with ThreadPoolExecutor(1) as pool:
        feeding = pool.submit(spout.feed, [(1,)])
        while coordinator.initialize_transaction(1, None) is None:
            pass
        while not feeding.done():  # a close before the wait began is of an earlier topology
            coordinator.close()
        with pytest.raises(SpoutError, match=r"the topology stopped before \(it is batch 1\). The rows stay queued"):
            feeding.result()
    again = spout.get_coordinator({})
    assert rows_of(spout, again, again.initialize_transaction(1, None)) == [(1,)]


def test_a_batch_is_given_again_until_it_is_committed() -> None:
    spout = FeederBatchSpout("n: int")
    spout.feed_nowait([(1,)])
    spout.feed_nowait([(2,)])
    coordinator = spout.get_coordinator({})
    first = coordinator.initialize_transaction(1, None)
    second = coordinator.initialize_transaction(2, first)
    assert coordinator.initialize_transaction(3, second) is None
    assert rows_of(spout, coordinator, first) == rows_of(spout, coordinator, first) == [(1,)]
    coordinator.success(1, first)
    assert rows_of(spout, coordinator, second) == [(2,)]
    assert rows_of(spout, spout.get_coordinator({}), spout.get_coordinator({}).initialize_transaction(2, None)) == [
        (2,)
    ]
    coordinator.success(2, second)
    coordinator.success(1, first)
    assert spout.get_coordinator({}).initialize_transaction(3, None) is None
    with pytest.raises(ReplayMismatchError, match="batch 1 is feed 0 of the feeder .* lost with its process"):
        coordinator.parts(TransactionAttempt(1, 0), first, 1)


def test_a_log_of_an_earlier_process_takes_new_feeds_and_refuses_its_open_batch() -> None:
    spout = FeederBatchSpout("n: int")
    spout.feed_nowait([(1,)])
    coordinator, earlier = spout.get_coordinator({}), {"feeder": "other", "feed": 41}
    assert rows_of(spout, coordinator, coordinator.initialize_transaction(42, earlier)) == [(1,)]
    with pytest.raises(
        ReplayMismatchError, match="batch 9 is feed 41 of the feeder other, which this process does not"
    ):
        coordinator.parts(TransactionAttempt(9, 0), earlier, 1)
    coordinator.success(41, earlier)
    assert rows_of(spout, coordinator, coordinator.initialize_transaction(42, earlier)) == [(1,)]


@pytest.mark.slow
def test_in_another_process_it_can_be_held_but_not_fed() -> None:
    spout = FeederBatchSpout("n: int")
    code = "import pickle, sys; pickle.load(sys.stdin.buffer).feed([(1,)])"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(spout), capture_output=True, check=False)
    assert b"was made in another process" in done.stderr


def test_what_was_fed_goes_with_the_last_copy_of_the_spout() -> None:
    spout = FeederBatchSpout("n: int")
    data = pickle.dumps(spout)
    del spout
    gc.collect()
    with pytest.raises(SpoutError, match="was made in another process"):
        pickle.loads(data).feed_nowait([(1,)])


def test_rows_and_fields_are_checked_at_the_call() -> None:
    with pytest.raises(TopologyError, match="the type of field 'n' is not known"):
        FeederBatchSpout("n")
    spout = FeederBatchSpout("n: int")
    with pytest.raises(TopologyError, match="row 1: the value 'x' of field 'n' is not of type int"):
        spout.feed_nowait([(1,), ("x",)])
    assert spout.feed_nowait([(1,)]) == 0
