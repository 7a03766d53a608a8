"""A group of workers without Spark: who is started again, who is told to end, and when no other try can help."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engine.forked_workers import LocalContext
from tests.harness.commands import until
from trident.errors import EnvironmentProblem
from trident.spark import worker_group
from trident.spark.mailbox import Mailbox
from trident.spark.worker_group import Letter, Shutdown, WorkerGroup, WorkerPlace, WorkerTicket


class _Job:
    """As a `WorkerJob` whose task does nothing."""

    made: list[_Job]

    def __init__(self, context: Any, topology: str, worker: int, body: Any, ended: Callable[[_Job, Any], None]) -> None:
        self.worker, self.ended, self.cancelled = worker, ended, False
        (self.ticket,) = body.args
        self.made.append(self)

    def cancel(self) -> None:
        self.cancelled = True

    def join(self, wait_s: float) -> bool:
        return True


class _Group(WorkerGroup[WorkerPlace]):
    return_s = longest_pause_s = 0.0

    def __init__(self) -> None:
        self.heard, self.losses = list[Any](), list[str]()
        context: Any = LocalContext()
        super().__init__(context, "t", [WorkerPlace(0)], lambda ticket: iter(()), b"")
        self.open()

    def word(self) -> str:
        return "word"

    def heed(self, place: WorkerPlace, news: Any) -> None:
        self.heard.append(news)

    def on_loss(self, place: WorkerPlace, run: str, cause: str, problem: EnvironmentProblem | None) -> None:
        self.losses.append(cause)


class _Process:
    """What runs in a place: it hears, and says what a test wants."""

    def __init__(self, ticket: WorkerTicket, run: str) -> None:
        self.heard = list[Any]()
        self.mailbox = Mailbox(ticket.keys, "127.0.0.1", "127.0.0.1", self.heard.append, lambda: None, 0.01)
        self.mailbox.open()
        self._letter = Letter(0, run, self.mailbox.address, "here", 1, run)
        self._driver = self.mailbox.peer(ticket.driver)

    def speak(self) -> None:
        """Send a letter."""
        self._driver.send(self._letter)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Group]:
    _Job.made = []
    monkeypatch.setattr(worker_group, "WorkerJob", _Job)
    monkeypatch.setattr("pyspark.InheritableThread", threading.Thread)
    group = _Group()
    until(lambda: bool(_Job.made), "its worker is started")
    yield group
    group.close()


def test_a_process_that_was_given_up_is_told_to_end_when_it_wakes_up(group: _Group) -> None:
    (job,) = _Job.made
    first, second = _Process(job.ticket, "first"), _Process(job.ticket, "second")
    first.speak()
    until(lambda: "word" in first.heard, "it is told what all are told")
    job.ended(job, "it was killed")
    until(lambda: len(_Job.made) == 2, "another job is started")
    first.speak()
    until(lambda: Shutdown() in first.heard, "it is told to end")
    second.speak()
    until(lambda: "word" in second.heard, "the other one is there")
    assert (group.heard, len(group.losses)) == (["first", "second"], 1)
    assert "worker 0 (process 1 on here) has ended: it was killed" in group.losses[0]
    for each in (first, second):
        each.mailbox.close()


def test_a_worker_that_ended_at_once_thousands_of_times_is_started_again(group: _Group) -> None:
    (job,) = _Job.made
    group.places[0].brief = 5000
    job.ended(job, "it was killed")
    until(lambda: len(_Job.made) == 2, "another job is started")


def test_a_mailbox_that_was_never_opened_can_be_closed(group: _Group) -> None:
    (job,) = _Job.made
    mailbox = Mailbox(job.ticket.keys, "127.0.0.1", "127.0.0.1", lambda _: None, lambda: None, 0.01)
    closing = threading.Thread(target=mailbox.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()


def test_a_task_that_spark_runs_again_is_another_process_in_the_same_job(group: _Group) -> None:
    (job,) = _Job.made
    first, second = _Process(job.ticket, "first"), _Process(job.ticket, "second")
    for each in (first, second):
        each.speak()
        until(lambda each=each: "word" in each.heard, "it is there")  # type: ignore[misc]
    assert group.losses == ["worker 0 (process 1 on here) has ended, and Spark has started it again"]
    assert (len(_Job.made), job.cancelled) == (1, False)
    for each in (first, second):
        each.mailbox.close()


def test_no_worker_is_started_after_an_error_that_no_other_try_can_mend(group: _Group) -> None:
    (job,) = _Job.made
    job.ended(job, EnvironmentProblem("no such module"))
    assert str(group.problem) == "no such module"
    looked = threading.Event()
    group.word = looked.set  # type: ignore[method-assign, assignment]
    assert not looked.wait(1.2)  # it would be told each second
    assert len(_Job.made) == 1
