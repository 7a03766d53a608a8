"""Which attempts share a job, what each of them gets, and what the others get when one of them goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest

from trident.runtime.engine.gathering import GatheredJob, Gathering, SharedResult
from trident.runtime.engine.pace import ALONE, Pace, SharingLimits
from trident.spark.job_errors import JobFailed
from trident.spout.interfaces import TransactionAttempt

WAIT_S = 100.0  # a busy machine
LIMITS = SharingLimits(linger_s=0.0)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Jobs:
    """Stands for Spark: jobs that end when the test says so."""

    def __init__(self, limits: SharingLimits = LIMITS) -> None:
        self.begun: SimpleQueue[tuple[GatheredJob[list[bytes]], Future[None]]] = SimpleQueue()
        self.ends: dict[str, Future[None]] = {}
        self.gathering: Gathering[list[bytes]] = Gathering(self.run, self.stop, limits)
        self.gathering.learn(0.0, 0)  # batches are small
        self.pool = ThreadPoolExecutor(20)

    def run(self, job: GatheredJob[list[bytes]]) -> list[list[bytes]]:
        end = self.ends[job.name] = Future()
        self.begun.put((job, end))
        end.result(WAIT_S)
        return [[f"output of {one.attempt.txid}".encode()] for one in job.attempts]

    def stop(self, job: GatheredJob[list[bytes]]) -> None:
        self.ends[job.name].set_exception(JobFailed("cancelled"))

    def start(self, *txids: int) -> list[Future[SharedResult[list[bytes]] | None]]:
        """Start attempts one after the other."""
        started = []
        for txid in txids:
            before = self.gathering.came
            started.append(self.pool.submit(self.gathering.result_of, TransactionAttempt(txid, 1), []))
            wait_until(lambda before=before: self.gathering.came > before)  # type: ignore[misc]
        return started

    def next(self) -> tuple[list[int], Future[None]]:
        """Wait until a job begins; return the batches in it and how it is ended."""
        job, end = self.begun.get(timeout=WAIT_S)
        return [one.attempt.txid for one in job.attempts], end

    def is_idle(self) -> bool:
        return self.begun.empty()


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    jobs = Jobs()
    yield jobs
    jobs.pool.shutdown()


def outputs(results: list[Future[SharedResult[list[bytes]] | None]]) -> list[Any]:
    return [None if (one := result.result(WAIT_S)) is None else (*one.given, one.shared) for result in results]


def test_an_attempt_that_finds_no_job_running_starts_at_once_and_alone(jobs: Jobs) -> None:
    for txid in (1, 2):
        result = jobs.start(txid)
        batches, end = jobs.next()
        assert batches == [txid]
        end.set_result(None)
        assert outputs(result) == [(f"output of {txid}".encode(), 1)]


def test_attempts_that_come_while_a_job_runs_share_the_next_one(jobs: Jobs) -> None:
    results = jobs.start(1, 2, 3, 4)
    batches, end = jobs.next()
    assert batches == [1]
    assert jobs.is_idle()
    end.set_result(None)
    batches, end = jobs.next()
    assert batches == [2, 3, 4]
    end.set_result(None)
    assert outputs(results) == [(b"output of 1", 1), *((f"output of {txid}".encode(), 3) for txid in (2, 3, 4))]


def test_if_a_shared_job_fails_each_attempt_runs_alone_and_only_its_own_failure_counts(
    jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    results = jobs.start(1, 2, 3, 4)
    jobs.next()[1].set_result(None)
    jobs.next()[1].set_exception(JobFailed("an executor is gone"))
    for txid in (2, 3, 4):
        batches, end = jobs.next()
        assert batches == [txid]
        if txid == 3:
            end.set_exception(JobFailed("it again"))
        else:
            end.set_result(None)
    with pytest.raises(JobFailed, match="it again"):
        results[2].result(WAIT_S)
    assert outputs([results[1], results[3]]) == [(b"output of 2", 1), (b"output of 4", 1)]
    text = "batches 2, 3, 4 shared a Spark job; each of them runs alone now: JobFailed: an executor is gone"
    assert [record.message for record in caplog.records] == [text]


def test_attempts_that_come_behind_a_failed_job_share_again_once_its_attempts_are_done(jobs: Jobs) -> None:
    jobs.start(1, 2, 3)
    jobs.next()[1].set_result(None)
    _, failing = jobs.next()
    later = jobs.start(4, 5)
    failing.set_exception(JobFailed("an executor is gone"))
    ran: list[int] = []
    while len(ran) < 4:
        batches, end = jobs.next()
        ran += batches
        jobs.gathering.learn(0.0, 0)
        end.set_result(None)
    assert ran == [2, 3, 4, 5]
    assert [output for output, _ in outputs(later)] == [b"output of 4", b"output of 5"]


def test_an_attempt_that_is_cancelled_while_it_waits_is_in_no_job(jobs: Jobs) -> None:
    results = jobs.start(1, 2, 3)
    _, end = jobs.next()
    jobs.gathering.cancel(TransactionAttempt(2, 1))
    assert outputs(results[1:2]) == [None]
    end.set_result(None)
    batches, end = jobs.next()
    assert batches == [3]
    end.set_result(None)
    assert outputs(results[2:]) == [(b"output of 3", 1)]


def test_a_cancelled_attempt_takes_nothing_from_those_that_share_its_job(jobs: Jobs) -> None:
    results = jobs.start(1, 2, 3, 4)
    jobs.next()[1].set_result(None)
    _, end = jobs.next()
    jobs.gathering.cancel(TransactionAttempt(4, 1))
    jobs.gathering.cancel(TransactionAttempt(2, 1))
    end.set_result(None)
    assert outputs(results[2:3]) == [(b"output of 3", 3)]


def test_a_job_is_stopped_once_none_of_its_attempts_is_wanted(jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    results = jobs.start(1, 2, 3)
    jobs.next()[1].set_result(None)
    _, end = jobs.next()
    jobs.gathering.cancel(TransactionAttempt(2, 1))
    assert not end.done()
    jobs.gathering.cancel(TransactionAttempt(3, 1))
    assert end.done()
    assert outputs(results[1:]) == [None, None]
    assert jobs.is_idle()
    assert not caplog.records


def test_a_shared_job_that_takes_too_long_is_given_up_and_the_attempt_that_hangs_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    jobs = Jobs(LIMITS._replace(patience_s=0.05, patience=0.0))
    results = jobs.start(1, 2, 3, 4)
    jobs.next()[1].set_result(None)
    batches, _ = jobs.next()  # it does not end by itself
    assert batches == [2, 3, 4]
    ends = {}
    for _ in range(3):
        (txid,), ends[txid] = jobs.next()
        if txid != 2:
            ends[txid].set_result(None)
    assert outputs(results[2:]) == [(b"output of 3", 1), (b"output of 4", 1)]
    assert not results[1].done()
    jobs.gathering.cancel(TransactionAttempt(2, 1))
    with pytest.raises(JobFailed, match="cancelled"):
        results[1].result(WAIT_S)
    assert "batches 2, 3, 4 shared a Spark job; each of them runs alone now: it took too long" in caplog.text


def test_attempts_that_come_one_right_after_the_other_are_waited_for_if_the_job_before_was_shared() -> None:
    jobs = Jobs(SharingLimits(linger_s=0.3))
    jobs.start(1, 2, 3)
    jobs.next()[1].set_result(None)
    jobs.next()[1].set_result(None)
    jobs.start(4, 5)
    batches, end = jobs.next()
    assert batches == [4, 5]
    end.set_result(None)


def test_large_attempts_run_beside_each_other_in_jobs_of_their_own() -> None:
    jobs = Jobs()
    for _ in range(3):
        jobs.gathering.learn(LIMITS.work_s, 0)
    jobs.start(1, 2, 3)
    running = [jobs.next() for _ in range(3)]
    assert [batches for batches, _ in running] == [[1], [2], [3]]
    for _, end in running:
        end.set_result(None)


@pytest.mark.parametrize(
    ("seconds", "size", "room"),
    [(0.0, 0, 16), (0.01, 0, 16), (0.05, 0, 4), (0.11, 0, 1), (9.0, 0, 1), (0.0, 8 << 20, 8), (0.0, 1 << 30, 1)],
)
def test_a_job_takes_as_many_attempts_as_are_little_work_together(seconds: float, size: int, room: int) -> None:
    pace = Pace(SharingLimits())
    assert pace.room == 1
    pace.learn(5.0, 0)  # the first one starts a worker
    pace.learn(seconds, size)
    assert pace.room == room


def test_batches_are_wanted_in_bursts_while_they_are_small() -> None:
    pace = Pace(SharingLimits())
    assert [pace.wants(flying, 16) for flying in range(5)] == [True, True, True, False, False]
    assert not pace.wants(2, 2)
    pace.learn(0.0, 0)
    assert all(pace.wants(flying, 16) for flying in range(16))
    assert not any(pace.wants(flying, 16) for flying in range(16, 8, -1))
    assert all(pace.wants(flying, 16) for flying in range(8, 16))
    assert not pace.wants(16, 16)


def test_few_batches_are_wanted_while_they_are_large() -> None:
    pace = Pace(SharingLimits())
    pace.learn(1.0, 0)
    assert [pace.wants(flying, 16) for flying in range(16)].count(True) == ALONE


def test_the_threads_of_attempts_end_with_them(jobs: Jobs) -> None:
    results = jobs.start(*range(1, 10))
    jobs.next()[1].set_result(None)
    jobs.next()[1].set_result(None)
    assert len(outputs(results)) == 9
    jobs.pool.shutdown()
    assert not [thread for thread in threading.enumerate() if thread in jobs.pool._threads]
