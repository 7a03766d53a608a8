"""A resident worker: a Spark task that does not end, and works on parts of batches as its driver sends them.

Its main thread processes one part of a stage after the other, the oldest attempt first, a second thread commits in the same
way, and the thread of its mailbox listens.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from mmap import ACCESS_READ, mmap
from queue import PriorityQueue
from tempfile import TemporaryFile
from time import monotonic
from typing import Any, NamedTuple

import cloudpickle
import pyarrow as pa

from trident.arrow import ipc_of, table_of_ipc
from trident.engine.fragment_runs import TaskOutput
from trident.engine.routing import RowFrame
from trident.engine.tasks import Job, close_program, output_of_destination, outputs_of_parts, pack_within
from trident.spark.mailbox import MailboxPeer, PeerAway
from trident.spark.worker_group import GroupWorker, WorkerTicket
from trident.steps.failures import MOST_SHIPPED, Failure, StepFailed, TooManyRows, failure_of

logger = logging.getLogger(__name__)


class StageResult(NamedTuple):
    """A worker has done its part of a stage."""

    place: int
    number: int
    outputs: list[bytes]  # as `pack` packs them
    failed: bool
    sent: Mapping[int, int]  # how many messages with rows it has sent to each worker


class DriverHeartbeat(NamedTuple):
    """The driver is there, every second; what a worker has of attempts that are not `live` can go."""

    live: frozenset[int]
    newest: int  # the number of the newest attempt that the driver knows


class StageWork(NamedTuple):
    """A part of a stage of an attempt."""

    number: int  # of the attempt. No other attempt of the pool has the same
    place: int  # of the worker that it is for
    order: bytes  # a pickled `Order`
    stage: int  # 0 for the parts of the batch, after that the levels of exchanges
    commits: bool  # whether it commits: that goes on beside what is processed for later batches
    tasks: bytes  # pickled: the parts with their numbers; of a level each task's number, exchange and partition
    crew: Mapping[int, str]  # the addresses of the workers that work on the attempt
    owners: Mapping[str, Sequence[int]]  # by exchange, which of them has each partition
    expects: Mapping[int, int]  # how many messages with rows each of them has sent here


class AttemptOver(NamedTuple):
    """An attempt has ended: what a worker has of it can go. It may still be at it, if the attempt was cancelled."""

    number: int


class Rows(NamedTuple):
    """Frames on their way to partitions that the other has; their data are bytes."""

    number: int
    sender: int
    frames: list[RowFrame]


_LOOK_S = 0.2
_PATIENCE_S = 30.0  # for rows that another worker says it has sent, and for one that takes no more
_GRACE_S = 5.0  # for work that is not wanted any more
_AT_ONCE = 8 << 20  # bytes of rows in a message, unless one frame has more
_NONE = -1


def run_resident(ticket: WorkerTicket) -> Iterator[bytes]:
    # The job has no result.
    worker = ResidentWorker(ticket)
    try:
        worker.run()
    finally:
        worker.close()
    return iter(())


class ResidentWorker(GroupWorker):
    """A worker, from its start to its end."""

    def __init__(self, ticket: WorkerTicket) -> None:
        self._peers: dict[str, MailboxPeer] = {}
        self._processing, self._committing = _Lane(), _Lane()
        self._boxes, self._over_since = Boxes(), 0.0
        super().__init__(ticket, _LOOK_S)

    def run(self) -> None:
        commits = threading.Thread(target=self._commit, name="commits", daemon=True)
        commits.start()
        self.mailbox.open()
        self._work_in(self._processing)
        commits.join()

    def close(self) -> None:
        close_program(self.ticket.program_id)
        self.mailbox.close()

    def heed(self, message: Any) -> bool:
        match message:
            case DriverHeartbeat():
                self._boxes.keep(message.live, message.newest)
            case StageWork():
                self._boxes.begin(message.number)
                (self._committing if message.commits else self._processing).put(message)
            case Rows():
                self._boxes.add(message)
            case AttemptOver():
                self._boxes.end(message.number)
        return not isinstance(message, Rows)

    def look(self, now: float) -> None:
        unwanted = [self._boxes.ended_since(lane.at_work_on) for lane in (self._processing, self._committing)]
        if any(since and now - since > _GRACE_S for since in (self._over_since, *unwanted)):
            os._exit(1)  # a call that does not return; Spark ends a cancelled task in the same way

    def end(self) -> None:
        if not self.over.is_set():
            super().end()
            self._over_since = monotonic()
            self._boxes.close()
            self._processing.end()
            self._committing.end()

    def _commit(self) -> None:
        try:
            self._work_in(self._committing)
        except BaseException:
            logger.exception("resident worker %d ends", self.ticket.place)
            os._exit(1)  # as what ends the main thread would end this process

    def _work_in(self, lane: _Lane) -> None:
        while (work := lane.next()) is not None:
            lane.at_work_on = work.number
            done = self._run_stage(work)
            # Before it is told: a driver that is slow to take it is no call that does not return.
            lane.at_work_on = _NONE
            self.tell(done, _PATIENCE_S)

    def _run_stage(self, work: StageWork) -> StageResult:
        sent: Counter[int] = Counter()
        outputs: list[bytes] = []
        failed = not self._boxes.is_live(work.number)
        if failed:  # it was cancelled, but the driver waits until this worker is free
            return StageResult(work.place, work.number, outputs, failed, sent)
        try:
            job = Job(self.ticket.program_id, self.ticket.program, cloudpickle.loads(work.order))
            for output in self._outputs(job, work):
                kept = output if output.failure else self._passed_on(work, output, sent)
                failed = failed or kept.failure is not None
                outputs.append(pack_within(kept, job.most))
        except Exception as error:  # noqa: BLE001  whatever is raised fails the attempt, as data
            failure = error.failure if isinstance(error, StepFailed) else failure_of("spark", error)
            failed, outputs = True, [pack_within(TaskOutput(failure=failure, level=work.stage), MOST_SHIPPED)]
        return StageResult(work.place, work.number, outputs, failed, sent)

    def _outputs(self, job: Job, work: StageWork) -> Iterator[TaskOutput]:
        tasks = cloudpickle.loads(work.tasks)
        if not work.stage:
            yield from outputs_of_parts(job, tasks)
            return
        self._boxes.wait(work.number, work.expects, _PATIENCE_S)
        for task, entry, partition in tasks:
            frames = self._boxes.take(work.number, entry, partition)
            yield replace(output_of_destination(job, work.stage, entry, partition, frames, set()), task=task)

    def _passed_on(self, work: StageWork, output: TaskOutput, sent: Counter[int]) -> TaskOutput:
        """Send the rows of an output to the workers that have their partitions; return what is left for the driver."""
        left: list[RowFrame] = []
        waiting: dict[int, list[RowFrame]] = {}
        sizes: Counter[int] = Counter()
        for frame in output.frames:
            owners = work.owners.get(frame.target)
            if owners is None:
                left.append(frame)
                continue
            to = owners[frame.partition]
            if to != work.place:
                frame = frame._replace(data=ipc_of(frame.data))
            waiting.setdefault(to, []).append(frame)
            sizes[to] += (size := size_of(frame))
            output.bytes_shuffled += size
            if sizes[to] > _AT_ONCE:
                self._send(work, to, waiting.pop(to), sent)
                sizes[to] = 0
        for to, frames in waiting.items():
            self._send(work, to, frames, sent)
        return replace(output, frames=left)

    def _send(self, work: StageWork, to: int, frames: list[RowFrame], sent: Counter[int]) -> None:
        rows, address = Rows(work.number, work.place, frames), work.crew[to]
        sent[to] += 1
        # What stays here is still tables: only between processes rows are bytes.
        if to == work.place:
            self._boxes.add(rows)
            return
        if address not in self._peers:
            self._peers[address] = self.mailbox.peer(address)
        try:
            self._peers[address].send(rows, _PATIENCE_S)
        except PeerAway as error:
            cause = f"worker {to} takes no rows of worker {work.place}: {error}"
            raise StepFailed(Failure("spark", None, cause)) from error


class _Lane:
    """What one thread has to do, the oldest attempt first, and the number of the attempt that it is at work on."""

    def __init__(self) -> None:
        self.at_work_on, self._numbers = _NONE, count()
        self._queue: PriorityQueue[tuple[int, int, StageWork | None]] = PriorityQueue()

    def put(self, work: StageWork) -> None:
        # The second number keeps the stages of an attempt in order, and works from being compared.
        self._queue.put((work.number, next(self._numbers), work))

    def end(self) -> None:
        # Ahead of all that waits, because no driver takes its results any more.
        self._queue.put((_NONE, 0, None))

    def next(self) -> StageWork | None:
        return self._queue.get()[2]


_IN_MEMORY = 256 << 20  # bytes of rows that wait; what comes behind them waits on the local disk
_MOST_WAITING = 8 << 30  # bytes of one attempt
_REMEMBERED = 10_000  # attempts that have ended


def size_of(frame: RowFrame) -> int:
    return frame.data.nbytes if isinstance(frame.data, pa.Table) else len(frame.data)


def _on_disk(frame: RowFrame) -> RowFrame:
    # The file has no name, and is gone when the rows are read.
    data = ipc_of(frame.data) if isinstance(frame.data, pa.Table) else frame.data
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    with TemporaryFile(dir=folder or None) as file:
        file.write(data)
        # The map outlives the file: nothing has to be removed, also after a kill.
        file.flush()
        return frame._replace(data=mmap(file.fileno(), len(data), access=ACCESS_READ))


@dataclass
class _Box:
    """What has arrived of one attempt: the rows, how many messages each worker has sent, and how many bytes there are."""

    rows: dict[tuple[str, int], list[RowFrame]] = field(default_factory=dict)
    messages: Counter[int] = field(default_factory=Counter)
    size: int = 0


class Boxes:
    """The rows that wait for a stage, by the number of their attempt; those of one that has ended are dropped."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._boxes: dict[int, _Box] = {}
        # Else rows that are late could not be told from those that are early.
        self._ended: dict[int, float] = {}
        self._closed = False

    def begin(self, number: int) -> None:
        with self._changed:
            if number not in self._ended:
                self._boxes.setdefault(number, _Box())

    def add(self, rows: Rows) -> None:
        """Take in a message. Of an attempt that has too much already only the number of bytes is kept."""
        # Rows of another worker may be here sooner than what the driver says of their attempt.
        self.begin(rows.number)
        with self._changed:
            box = self._boxes.get(rows.number)
            if box is None:
                return
            frames, in_memory = rows.frames, sum(each.size for each in self._boxes.values())
            box.messages[rows.sender] += 1
            box.size += sum(map(size_of, frames))
            if box.size > _MOST_WAITING:
                frames = []
                box.rows.clear()
            elif in_memory > _IN_MEMORY:
                frames = list(map(_on_disk, frames))
            for frame in frames:
                box.rows.setdefault((frame.target, frame.partition), []).append(frame)
            self._changed.notify_all()

    def wait(self, number: int, expects: Mapping[int, int], wait_s: float) -> None:
        """Wait until all is there; `TooManyRows`: it is more than a worker holds; `StepFailed`: it has not come in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._lacks(number, expects), wait_s)
            box = self._boxes.get(number)
            if box is None or (lacking := self._lacks(number, expects)):
                which = "" if box is None else f" of worker {lacking[0]}"
                raise StepFailed(Failure("spark", None, f"rows{which} have not arrived within {wait_s:g} s"))
            if box.size > _MOST_WAITING:
                error = TooManyRows(
                    f"a resident worker was sent {box.size} bytes of one batch, and holds at most {_MOST_WAITING}. Use "
                    'smaller batches, or workers="jobs", whose rows Spark writes to disk'
                )
                raise StepFailed(failure_of("spark", error, retry=False))

    def _lacks(self, number: int, expects: Mapping[int, int]) -> list[int]:
        box = self._boxes.get(number)
        if box is None:
            return []
        return [sender for sender, messages in expects.items() if box.messages[sender] < messages]

    def take(self, number: int, entry: str, partition: int) -> list[RowFrame]:
        """Return the rows for a partition of an exchange, as tables, and forget them; `StepFailed` if the attempt has ended."""
        with self._changed:
            box = self._boxes.get(number)
            if box is None:  # its rows are gone, and no partition may commit as if it had had none
                raise StepFailed(Failure("spark", None, "the attempt has ended"))
            frames = box.rows.pop((entry, partition), [])
        return [
            frame if isinstance(frame.data, pa.Table) else frame._replace(data=table_of_ipc(frame.data))
            for frame in frames
        ]

    def end(self, number: int) -> None:
        with self._changed:
            self._boxes.pop(number, None)
            self._ended.setdefault(number, monotonic())
            if len(self._ended) > _REMEMBERED:
                self._ended.pop(next(iter(self._ended)))
            self._changed.notify_all()

    def keep(self, live: frozenset[int], newest: int) -> None:
        """Forget all attempts up to the newest that the driver knows, but these."""
        # The driver had not begun a newer one when it said so, though its rows may be here by now.
        with self._changed:
            gone = [number for number in self._boxes if number <= newest and number not in live]
        for number in gone:
            self.end(number)

    def is_live(self, number: int) -> bool:
        with self._changed:
            return number in self._boxes and not self._closed

    def ended_since(self, number: int) -> float:
        """Return when an attempt has ended, on the monotonic clock; 0 if it has not."""
        with self._changed:
            return self._ended.get(number, 0.0)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
