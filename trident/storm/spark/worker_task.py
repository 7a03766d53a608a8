"""What runs in a Spark task: a worker, until the driver ends it, its own code fails, or the driver is gone."""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import socket
import threading
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from random import Random, SystemRandom
from time import monotonic
from typing import Any

import cloudpickle

from trident.observe.reported_errors import ReportedError
from trident.spark.job_errors import cannot_import
from trident.spark.link_keys import own_address
from trident.storm.execution.executor import Setting, TaskError
from trident.storm.execution.storm_worker import Worker, lines_of
from trident.storm.links.linked_mail import LinkedMail
from trident.storm.spark.worker_registry import Launch, Line, Ticket, WorkerOrders
from trident.storm.statistics import WorkerSnapshots

logger = logging.getLogger("trident.storm")

_BEAT_S = 1.0
_LOOK_S = 0.1
_STOP_S = 5.0
_REPORTED = 100  # errors that wait for the next beat
_SHOWN = 20_000
_seeds = SystemRandom()


def run_worker(tickets: Iterable[Ticket]) -> Iterator[bytes]:
    """Be the worker that a ticket says, as the only task of a Spark job; the job has no result."""
    for ticket in tickets:
        with seldom_collected():
            stuck = _WorkerTask(ticket).run()
        if stuck:
            os._exit(1)  # Spark would give this process its next task, beside threads that never end
    return iter(())


class _WorkerTask:
    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._parent = os.getppid()
        self._line = Line(ticket.keys, ticket.registry, ticket.worker, ticket.incarnation)
        self._orders = WorkerOrders(version=-1)
        self._heard_at = self._next_beat = monotonic()
        self._errors: deque[ReportedError] = deque(maxlen=_REPORTED)
        self._death: BaseException | None = None
        self._replaced = False
        self._mail: LinkedMail | None = None
        self._worker: Worker | None = None
        self._snapshots: WorkerSnapshots | None = None
        self._opened = threading.Event()
        self._ready = False

    def run(self) -> bool:
        """Run to the end; whether threads are left that do not end."""
        stuck: list[str] = []
        try:
            self._open()
            while not self._is_over():
                self._heed(self._line.receive(_LOOK_S))
                self._report_progress()
        except Exception as error:  # noqa: BLE001  reported to the driver
            self._death = error
        if self._death is not None:
            self._line.send("died", **_death_report(self._death), errors=self._take_errors())
        try:
            stuck = self._close()
        finally:
            self._line.send("ended", blocked=stuck)
            self._line.close()
        return bool(stuck)

    def _open(self) -> None:
        ticket = self._ticket
        host = own_address(ticket.registry, ticket.timeout_s)
        try:
            launch: Launch = cloudpickle.loads(ticket.launch)
        except ImportError as error:
            raise cannot_import(error) from error
        conf, layout = launch.conf, launch.layout
        mail = LinkedMail(ticket.worker, launch.topology, layout, ticket.keys, conf.receive_buffer_size, host)
        self._mail = mail
        setting = Setting(
            conf.name, launch.topology, launch.pickled, layout, conf, mail, self._report, monotonic,
            lambda: Random(_seeds.getrandbits(128)),
        )  # fmt: skip
        self._worker = Worker(ticket.worker, setting, mail.inboxes, self._died)
        self._snapshots = WorkerSnapshots(
            ticket.worker, self._worker.executors, self._worker.at_work, int(mail.address.rpartition(":")[2])
        )
        self._line.send("register", address=mail.address, host=socket.gethostname(), pid=os.getpid())

    def _is_over(self) -> bool:
        return (
            self._replaced
            or self._orders.stop
            or self._death is not None
            or os.getppid() != self._parent
            or monotonic() - self._heard_at > self._ticket.timeout_s
        )

    def _heed(self, message: dict[str, Any] | None) -> None:
        """Do what the driver says."""
        if message is None:
            return
        self._heard_at = monotonic()
        self._replaced = message["kind"] == "replaced"
        if message["kind"] != "orders" or self._mail is None or self._worker is None:
            return
        begins = self._orders.version < 0
        self._orders = WorkerOrders.of(message)
        self._mail.set_peers(self._orders.places)
        self._worker.set_active(self._orders.active)
        self._next_beat = 0.0  # the driver waits for the version that this worker has reached
        if begins:
            threading.Thread(target=self._start, args=(self._worker,), name="worker-start", daemon=True).start()

    def _start(self, worker: Worker) -> None:
        worker.start()  # waits for all open() and prepare(), while the worker's heart goes on beating
        self._opened.set()

    def _report_progress(self) -> None:
        """Report to the driver: each second, and more often while it waits for the end of what is pending."""
        if self._opened.is_set() and not self._ready and self._worker is not None and not self._worker.stopping:
            self._ready = True
            self._next_beat = 0.0
        now = monotonic()
        if now < self._next_beat or self._worker is None or self._mail is None:
            return
        self._next_beat = now + (_BEAT_S if self._orders.active else _LOOK_S)
        mail = self._mail
        self._line.send(
            "beat",
            version=self._orders.version,
            ready=self._ready,
            pending=self._worker.pending,
            at_rest=self._ready and self._worker.at_rest,
            snapshot=None if self._snapshots is None else self._snapshots.take(),
            links={"dropped": mail.dropped, "corrupt": mail.corrupt, "astray": mail.unknown},
            errors=self._take_errors(),
        )

    def _close(self) -> list[str]:
        """End all threads; return what those were doing that did not end."""
        if self._worker is None or self._mail is None:
            return []
        self._mail.ended.set()
        stuck = lines_of(self._worker.stop(_STOP_S))
        self._mail.close()
        return stuck

    def _report(self, component: str, task: int, error: BaseException) -> None:
        logger.error("topology %s: component %s (task %d) reports %s", self._ticket.topology, component, task, error)
        self._errors.append(ReportedError.of(component, task, error))

    def _died(self, error: BaseException) -> None:
        if isinstance(error, TaskError):
            self._errors.append(ReportedError.of(error.component, error.task, error))
        self._death = error

    def _take_errors(self) -> list[dict[str, Any]]:
        errors = []
        while self._errors:
            each = self._errors.popleft()
            errors.append(dataclasses.asdict(each) | {"text": each.text[-_SHOWN:]})
        return errors


def _death_report(error: BaseException) -> dict[str, Any]:
    return {
        "error": str(error) or repr(error),
        "text": "".join(traceback.format_exception(error))[-_SHOWN:],
        "final": type(error).__name__ == "EnvironmentProblem",
    }


# How often Python looks for garbage in cycles while a worker runs.

# Tuples on their way are no cycles, and Python would look through the young ones after every 700.
_THRESHOLDS = (20_000, 20, 100)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect cycles less often, and leave out what was imported before; as it was afterwards."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
