"""What runs in a Spark task: a worker, until the driver ends it, its own code fails, or the driver is gone."""

import dataclasses
import gc
import logging
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import cloudpickle

from trident.observe.events import ReportedError
from trident.spark.job_errors import cannot_import
from trident.spark.mailbox import Codec
from trident.spark.worker_group import LOOK_S, GroupWorker, Letter, Shutdown, WorkerTicket
from trident.state.encoding.extensions import pack, unpack
from trident.storm.execution.launch import Launch, TaskError
from trident.storm.execution.storm_worker import Worker, lines_of
from trident.storm.spark.linked_mail import LinkedMail

logger = logging.getLogger("trident.storm")

_BEAT_S = 1.0
_STOP_S = 5.0
_REPORTED = 100  # errors that wait for the next beat
_SHOWN = 20_000


class WorkerOrders(NamedTuple):
    """What a worker must know and do: where the others take tuples, and their runs. `version` grows with each change."""

    version: int
    places: Mapping[int, tuple[str, str]]
    active: bool


_KINDS: Mapping[str, Callable[..., Any]] = {each.__name__: each for each in (Shutdown, Letter, WorkerOrders)}


def _unpack_message(data: bytes) -> Any:
    kind, *fields = unpack(data)
    return _KINDS[kind](*fields)


CODEC: Codec = (lambda message: pack([type(message).__name__, *message]), _unpack_message)
"""How a driver and its workers write to each other: nothing is unpickled that came over a link."""


def run_worker(ticket: WorkerTicket) -> Iterator[bytes]:
    """Be the worker that a ticket says, as the only task of a Spark job; the job has no result."""
    with seldom_collected():
        stuck = BoltWorker(ticket).run()
    if stuck:
        os._exit(1)  # Spark would give this process its next task, beside threads that never end
    return iter(())


class BoltWorker(GroupWorker):
    """Tells its driver how it goes (`beat`, `died`, `ended`): each second, more often while that waits for what is pending."""

    def __init__(self, ticket: WorkerTicket) -> None:
        super().__init__(ticket, codec=CODEC)
        self._orders = WorkerOrders(-1, {}, False)
        self._errors: deque[ReportedError] = deque(maxlen=_REPORTED)
        self._death: BaseException | None = None
        self._mail: LinkedMail
        self._worker: Worker
        self._opened = self._ready = False

    def run(self) -> bool:
        stuck: list[str] = []
        try:
            self._open()
            self.mailbox.open()
            self.over.wait()
        except Exception as error:  # noqa: BLE001  reported to the driver
            self._death = error
        if self._death is not None:
            text, final = traceback.format_exception(self._death), type(self._death).__name__ == "EnvironmentProblem"
            died = {"error": str(self._death) or repr(self._death), "text": "".join(text)[-_SHOWN:], "final": final}
            self.tell({"kind": "died", **died, "errors": self._take_errors()})
        try:
            if self._opened:
                stuck = lines_of(self._worker.stop(_STOP_S))
                self._mail.close()
        finally:
            self.tell({"kind": "ended", "blocked": stuck})
            self.mailbox.close()
        return bool(stuck)

    def _open(self) -> None:
        ticket = self.ticket
        try:
            launch: Launch = cloudpickle.loads(ticket.program)
        except ImportError as error:
            raise cannot_import(error) from error
        capacity = launch.conf.receive_buffer_size
        mail = LinkedMail(ticket.place, launch.topology, launch.layout, ticket.keys, capacity, self.host)
        self._mail = mail
        port = int(mail.address.rpartition(":")[2])
        self._worker = Worker(ticket.place, launch.setting(mail, self._report), mail, self._on_death, port)
        self._opened = True

    def heed(self, orders: WorkerOrders) -> bool:
        if orders.version > self._orders.version:
            begins = self._orders.version < 0
            self._orders, self.beat_s = orders, _BEAT_S if orders.active else LOOK_S
            try:
                self._mail.set_peers({worker: (address, run) for worker, (address, run) in orders.places.items()})
            except Exception as error:  # noqa: BLE001  reported to the driver; it would lack peers for ever
                self._on_death(error)
                return True
            self._worker.set_active(orders.active)
            self.next_beat = 0.0  # the driver waits for the version that this worker has reached
            if begins:
                threading.Thread(target=self._start, args=(self._worker,), name="worker-start", daemon=True).start()
        return True

    def _start(self, worker: Worker) -> None:
        worker.start()  # waits for all open() and prepare(), while the worker's heart goes on beating
        self._ready = not worker.stopping
        self.next_beat = 0.0

    def news(self) -> dict[str, Any]:
        mail, worker = self._mail, self._worker
        return {
            "kind": "beat",
            "address": mail.address,
            "version": self._orders.version,
            "ready": self._ready,
            "pending": worker.pending,
            "at_rest": self._ready and worker.at_rest,
            "snapshot": worker.snapshots.take(),
            "links": {"dropped": mail.dropped, "corrupt": mail.corrupt, "astray": mail.unknown},
            "errors": self._take_errors(),
        }

    def _report(self, component: str, task: int, error: BaseException) -> None:
        logger.error("topology %s: component %s (task %d) reports %s", self.ticket.topology, component, task, error)
        self._errors.append(ReportedError.of(component, task, error))

    def _on_death(self, error: BaseException) -> None:
        if isinstance(error, TaskError):
            self._errors.append(ReportedError.of(error.component, error.task, error))
        self._death = error
        self.over.set()

    def _take_errors(self) -> list[dict[str, Any]]:
        errors = []
        with suppress(IndexError):  # there is no more, or another thread has taken it
            while True:
                each = self._errors.popleft()
                errors.append(dataclasses.asdict(each) | {"text": each.text[-_SHOWN:]})
        return errors


# Tuples on their way are no garbage in cycles, and Python would look through the young ones after every 700.
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
