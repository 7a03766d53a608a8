"""Runs cases on a cluster of two executors, and drivers that are killed on the way; says what came of each."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import psutil

from tests.crash.commit_tasks.task_case import BATCHES, TaskCase
from tests.crash.commit_tasks.task_seams import executors_of, set_rules
from tests.harness.quick_java import QUICK_JVM
from trident.errors import TridentError
from trident.run.running import start
from trident.spark.session import spark_session
from trident.spout.interfaces import TransactionAttempt

_LIMIT_S = 240.0
_LOOK_S = 0.05
_AT_ONCE = 4
SPARK = {
    "spark.shuffle.io.retryWait": "1s",
    "spark.shuffle.io.maxRetries": "1",
    "spark.python.task.killTimeout": "300s",  # a task that is stopped is not ended, but woken
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.ui.enabled": "false",
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.python.daemon.module": "tests.crash.commit_tasks.warm_daemon",
}


@dataclass(frozen=True)
class TaskOutcome:
    """What came of a case.

    Attributes
    ----------
    happened
        Whether its fault did.
    failures
        How many attempts failed, and why the last one did.
    wrong
        What is not exact; or how the topology ended.
    put
        What became of the put of a worker that slept in it.
    """

    case: TaskCase
    happened: bool
    failures: int
    last: str
    wrong: list[str]
    seconds: float
    put: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether each row of the source is counted once in each state."""
        return not self.wrong

    def __str__(self) -> str:
        end = "exact" if self.is_exact else "; ".join(self.wrong)
        woken = f", woken put {self.put}" if self.put else ""
        fault = "" if self.happened else " (the fault did not happen)"
        return f"{self.case}{fault}: {end}, {self.failures} failed{woken}, {self.seconds:.0f} s; {self.last[:300]}"


def run_case(case: TaskCase, life: int = 1, ended: Callable[[], None] = lambda: None) -> TaskOutcome:
    """Run a case until its source is exhausted; `ended` is called before anything is read."""
    began = time.monotonic()
    set_rules(case.without)
    case.folder.mkdir(parents=True, exist_ok=True)
    failures, last, wrong = 0, "", list[str]()
    try:
        with start(case.topology(life).graph(), case.config(), None, _observer(case)) as running:
            try:
                running.process_all_available()
            finally:
                status = running.status
                failures, last = status["failures"], str(status["lastFailure"])
    except TridentError as error:
        wrong.append(f"{type(error).__name__}: {str(error)[:500]}")
    if case.fault.how == "pause" and case.fault.said("reached"):
        _until(lambda: case.fault.said("woken") is not None, f"{case}: the worker that was woken does not go on")
    ended()
    log = case.log()
    wrong = wrong or ([] if log.txid == BATCHES else [f"{log.txid} batches"]) or case.wrong()
    put = case.fault.said("woken") or ""
    happened = case.fault.said("second-run" if case.fault.how == "slow" else "reached") is not None
    return TaskOutcome(case, happened, failures, last, wrong, time.monotonic() - began, put)


def run_beside(cases: Sequence[TaskCase], at_once: int) -> Iterator[TaskOutcome]:
    """Run cases side by side, all with the same rules: what kills an executor meets all of them."""
    with ThreadPoolExecutor(at_once) as threads:
        for ended in as_completed([threads.submit(run_case, case) for case in cases]):
            yield ended.result()


def _observer(case: TaskCase) -> Callable[[str, TransactionAttempt], None]:
    """Return what the driver does: it kills an executor that keeps rows, and wakes a worker when its batch is recorded."""
    fault = case.fault

    def observe(step: str, attempt: TransactionAttempt) -> None:
        if attempt.txid != fault.txid:
            return
        if step == fault.point == "processed" and fault.note("reached"):
            executors_of([_address()])[0].kill()
        if step == "recorded" and fault.how == "pause" and (pid := fault.said("reached")):
            os.kill(int(pid), signal.SIGCONT)

    return observe


def _address() -> str:
    conf = spark_session("kills").sparkContext.getConf()
    return f"spark://CoarseGrainedScheduler@{conf.get('spark.driver.host')}:{conf.get('spark.driver.port')}"


def run_doomed(cases: Sequence[TaskCase], master: str) -> list[TaskOutcome]:
    """Start all cases in one driver process; kill it when each has come to its point; let this process continue each.

    Workers that were in the middle of a commit go on: those of every second case at once, the others after their batch is
    committed by the next driver.
    """
    for case in cases:
        case.folder.mkdir(parents=True)
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.commit_tasks.cluster_runs", master], stdin=subprocess.PIPE
    )
    assert driver.stdin is not None
    driver.stdin.write(pickle.dumps(list(cases)))
    driver.stdin.close()
    try:
        _until(
            lambda: driver.poll() is not None or all(case.fault.said("reached") is not None for case in cases),
            f"the driver has not come to its points: {[str(c) for c in cases if c.fault.said('reached') is None]}",
        )
    finally:
        driver.kill()
    assert driver.wait() == -signal.SIGKILL
    for case in cases[::2]:
        case.fault.note("go")
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return [*threads.map(lambda case: run_case(case, 2, lambda: _let_end(case)), cases)]


def _let_end(case: TaskCase) -> None:
    """Wait until the worker that survived its driver has done what it was about to do."""
    case.fault.note("go")
    pid = int(case.fault.said("reached") or 0)
    _until(lambda: not _runs(pid), f"{case}: the worker {pid} of a driver that is gone does not end")


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _until(so: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not so():
        assert time.monotonic() < deadline, otherwise
        time.sleep(_LOOK_S)


def main(master: str) -> None:
    """Be the driver of cases that standard input brings, until it is killed."""
    cases: list[TaskCase] = pickle.load(sys.stdin.buffer)
    spark_session("doomed", master, SPARK)
    opened = [start(case.topology().graph(), case.config(), None, _stopping(case)) for case in cases]
    for running in opened:
        running.await_termination(_LIMIT_S)


def _stopping(case: TaskCase) -> Callable[[str, TransactionAttempt], None]:
    def observe(step: str, attempt: TransactionAttempt) -> None:
        fault: Any = case.fault
        if (fault.point, step, attempt.txid) == ("record", "committed", fault.txid) and fault.note(
            "reached", str(os.getpid())
        ):
            threading.Event().wait()

    return observe


if __name__ == "__main__":
    main(sys.argv[1])
