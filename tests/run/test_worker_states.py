"""What worker processes keep open: when it is closed, when a cache counts, and what a killed process leaves behind."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import psycopg
import pytest

from spouts import FixedBatchSpout
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness.crashing_stores import DictMap
from tests.harness.servers import Server
from trident import TridentTopology
from trident.counts import KeyCounts, counting_keys
from trident.operations import Count
from trident.plan import make_plan
from trident.run.committing import MOST_KEPT, WorkerStates
from trident.state import Sentinel, Snapshot, StateSpec, Txid, Winners, map_state
from trident.storekit import record_fence as guards
from trident.testing.backend.schedules import Add

A = 1 << 20
KEYS = [(f"key {number}",) for number in range(8)]
WAIT_S = 60.0


def states_of(spec: StateSpec, idle_s: float = 60.0) -> WorkerStates:
    topology = TridentTopology("workers")
    lines = topology.new_stream("lines", FixedBatchSpout("word: string", 1, ["a"]))
    lines.group_by("word").persistent_aggregate(spec, Count(), "n", state_name="counts")
    return WorkerStates("workers", make_plan(topology.graph()).states, {}, idle_s)


# ---- what is kept open -------------------------------------------------------------------------------------------------


class Closing(DictMap):
    """Notes that it was closed."""

    closed: list[int]

    def close(self) -> None:
        self.closed.append(self.partition)

    def __init__(self, partition: int, closed: list[int]) -> None:
        super().__init__()
        self.partition, self.closed = partition, closed


@pytest.fixture
def closed() -> list[int]:
    return []


@pytest.fixture
def spec(closed: list[int]) -> StateSpec:
    return map_state(lambda conf, partition, count: Closing(partition, closed), "opaque")


def test_only_the_partitions_used_last_stay_open(spec: StateSpec, closed: list[int]) -> None:
    states = states_of(spec)
    opened = [states.partition_state("counts", partition, 99) for partition in range(MOST_KEPT + 3)]
    assert states.partition_state("counts", 0, 99) is opened[0]
    assert closed == []  # a task may be using all of them
    states.tidy()
    assert closed == [1, 2, 3]
    assert states.partition_state("counts", 0, 99) is opened[0]
    assert states.partition_state("counts", 1, 99) is not opened[1]
    states.close()
    assert sorted(closed[3:]) == [0, 1, *range(4, MOST_KEPT + 3)]


def test_what_no_task_uses_is_closed(spec: StateSpec, closed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("trident.run.committing.monotonic", lambda: now[0])
    states = states_of(spec, idle_s=60.0)
    for partition in range(3):
        now[0] += 25
        states.partition_state("counts", partition, 3)
    now[0] += 5
    states.tidy()
    assert closed == []
    now[0] += 35  # partition 0 was used 90 seconds ago, 1 65 seconds ago, 2 40 seconds ago
    states.tidy()
    assert closed == [0, 1]


def test_a_worker_does_not_repeat_what_the_driver_has_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("stores")
    monkeypatch.setattr(guards, "_warned", set())
    with caplog.at_level(logging.WARNING):
        guards.warn_once(logger, "Redis a:1", "there is no persistence")
        monkeypatch.setattr("trident.state.backing_map._warnings_left", True)
        guards.warn_once(logger, "Redis b:1", "there is no persistence")
    assert [record.getMessage() for record in caplog.records] == ["Redis a:1: there is no persistence"]


# ---- processes that take turns -----------------------------------------------------------------------------------------


def serve(calls: Connection, spec: StateSpec) -> None:
    """Be a worker process: commit what is sent, or die in the middle of a commit."""
    states = states_of(spec)
    while True:
        txid, rows, dies = calls.recv()
        state = states.partition_state("counts", 0, 1)
        with counting_keys() as keys:
            state.begin_commit(txid)
            state.multi_update(list(rows), [Add(number) for number in rows.values()])
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            state.commit(txid)
        calls.send(keys.counts)


class Worker:
    """A process that commits, as one of Spark's Python workers does."""

    def __init__(self, spec: StateSpec) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])  # so that a further process is there at once
        self._calls, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, spec), daemon=True)
        self._process.start()
        theirs.close()

    def commit(self, txid: Txid, rows: dict[Any, int]) -> KeyCounts:
        self._calls.send((txid, rows, False))
        assert self._calls.poll(WAIT_S), "no answer of the worker"
        counts: KeyCounts = self._calls.recv()
        return counts

    def die_in_a_commit(self, txid: Txid, rows: dict[Any, int]) -> None:
        self._calls.send((txid, rows, True))
        self._process.join(WAIT_S)
        assert self._process.exitcode == -signal.SIGKILL

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self._calls.close()


class Turns:
    """The driver's log, and what must be in the store."""

    def __init__(self, spec: StateSpec) -> None:
        self.spec, self.workers = spec, [Worker(spec), Worker(spec)]
        self.txid, self.attempt, self.winners = 0, A, Winners()
        self.expected: Sentinel | None = None
        self.model = dict.fromkeys(KEYS, 0)
        self.runs = 0

    def next(self) -> Txid:
        self.runs += 1
        return Txid(self.txid + 1, self.attempt, self.winners, "log", self.expected, run=f"run {self.runs}")

    def commit(self, worker: int, rows: dict[Any, int]) -> KeyCounts:
        counts = self.workers[worker].commit(self.next(), rows)
        self.txid += 1
        self.winners = self.winners.with_winner(self.txid, self.attempt)
        self.expected = Sentinel("log", self.txid, self.attempt)
        for key, number in rows.items():
            self.model[key] += number
        return counts

    def kill(self, worker: int, rows: dict[Any, int]) -> None:
        self.workers[worker].die_in_a_commit(self.next(), rows)
        self.workers[worker].stop()
        self.workers[worker] = Worker(self.spec)
        self.attempt += 1

    def check(self) -> None:
        states = states_of(self.spec)
        found = states.partition_state("counts", 0, 1, read_only=True).multi_get_at(
            KEYS, Snapshot(self.txid, self.winners)
        )
        states.close()
        assert dict(zip(KEYS, found, strict=True)) == {key: value or None for key, value in self.model.items()}

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()


@pytest.fixture
def turns(redis_server: Server) -> Iterator[Turns]:
    with_cache = RedisState.opaque(
        f"redis://127.0.0.1:{redis_server.port}/0", cache=100, prefix=f"turns{time.time_ns()}"
    )
    turns = Turns(with_cache)
    yield turns
    turns.stop()


@pytest.mark.long
def test_a_cache_counts_only_in_the_process_that_committed_last(turns: Turns) -> None:
    rows = dict.fromkeys(KEYS, 1)
    cached = [turns.commit(worker, rows).cached for worker in (0, 0, 0, 1, 0, 1, 1)]
    assert cached == [0, 8, 8, 0, 0, 0, 8]
    turns.kill(0, {KEYS[0]: 50})  # it wrote, and is not in the log: what process 1 remembers is still what counts
    turns.check()
    assert [turns.commit(worker, rows).cached for worker in (1, 0, 0)] == [8, 0, 8]
    turns.check()


@pytest.mark.long
def test_processes_that_take_turns_and_are_killed_count_each_batch_once(turns: Turns) -> None:
    rng = random.Random(13)
    for number in range(40):
        rows = {key: rng.randint(1, 9) for key in rng.sample(KEYS, rng.randint(1, 8))}
        if number % 8 == 5:
            turns.kill(rng.randrange(2), rows)
        turns.commit(rng.randrange(2), rows)
    turns.check()


# ---- a worker that is killed -------------------------------------------------------------------------------------------


_SLOW = """
    CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN PERFORM pg_sleep(0.2); RETURN NEW; END'
"""


@pytest.mark.long
def test_the_next_writer_does_not_wait_for_a_transaction_of_a_killed_worker(postgres_server: Server) -> None:
    url = f"postgresql://trident@127.0.0.1:{postgres_server.port}/postgres"
    table = f"killed{time.time_ns()}"
    spec = PostgresState.opaque(url, table=table, max_keys_per_call=2)
    turns = Turns(spec)
    try:
        turns.commit(0, dict.fromkeys(KEYS, 1))
        with psycopg.connect(url, autocommit=True) as client:
            client.execute(_SLOW)
            client.execute(
                f"CREATE TRIGGER slow BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION slow()".encode()
            )
            turns.workers[0]._calls.send((turns.next(), dict.fromkeys(KEYS, 5), False))
            busy = (
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'trident' AND backend_xid IS NOT NULL"
            )
            deadline = time.monotonic() + WAIT_S
            while client.execute(busy).fetchone() == (0,):  # until it is in the transaction, which takes two seconds
                assert time.monotonic() < deadline
            turns.workers[0].stop()
            turns.workers[0] = Worker(spec)
            turns.attempt += 1
        began = time.monotonic()
        turns.commit(1, dict.fromkeys(KEYS, 2))
        assert (
            time.monotonic() - began < 15
        )  # PostgreSQL notices at the end of a statement; idle transactions have 15 s
        turns.check()
    finally:
        turns.stop()
