"""The bodies of Spark tasks: parts of a batch, then level after level of exchanges; between them, bytes of Arrow.

Each stage writes one shuffle, and all stages number the destinations alike: the tasks of all levels, then the driver's own. So
rows for a later level, or for the driver, wait in the shuffle of the stage that made them until they are read.

If an executor is lost, Spark repeats the tasks whose output was lost with it, and user code may then give other rows. Tasks
that have ended keep the rows of the first run; together with tasks that read the second run they would lose rows and double
others. So every task says which runs it read, and a batch fails if its tasks read different ones.
"""

import atexit
import hashlib
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import cloudpickle

from trident.arrow import ipc_of, table_of_ipc
from trident.engine.fragment_runs import PutBack, TaskOutput, merge_outputs
from trident.engine.routing import RowFrame
from trident.engine.worker import Destination, Order, Part, Program, WorkerProgram, run_entry, run_part
from trident.spark.job_errors import cannot_import
from trident.steps.failures import MOST_SHIPPED, Failure, TooManyRows, check_shippable, failure_of


@dataclass(frozen=True)
class Stop:
    """What a task that failed sends to every task that reads its stage, so that none goes on, let alone commits."""


Item = bytes | RowFrame | Stop  # what a task sends: a frame, or an output for the driver, or the order to stop


class Source(NamedTuple):
    """A run of a task. The first stage has the number 0; after that the levels count from 1."""

    stage: int
    task: int
    run: str


class Sent(NamedTuple):
    """An item with its source. A task also sends None to every reader of its stage, so that each knows each run."""

    source: Source
    item: Item | None


@dataclass(frozen=True)
class Routes:
    """Where the items of a job go.

    `readers`: by stage: the numbers of the tasks that read it, in ranges. All of the next level do, and of later ones those
    that it has rows for. Each reader costs a stage as much as a small piece of rows, so there are no others.
    `driver`: the numbers that the driver reads, past all tasks; empty if no stage but the last has rows for it. What tasks tell
    the driver then goes along from stage to stage, because a task of its own would take longer than a few counts.
    """

    entries: Mapping[str, range]  # by exchange: the numbers of its partitions
    levels: tuple[range, ...]  # the numbers of the tasks of each level
    sources: tuple[tuple[int, ...], ...]  # the stages that each level reads
    readers: tuple[tuple[range, ...], ...]
    driver: range

    @property
    def count(self) -> int:
        return self.driver.stop

    def number_of(self, frame: RowFrame) -> int | None:
        """Return the number of the task that a frame goes to; None if it goes to the driver."""
        numbers = self.entries.get(frame.target)
        return None if numbers is None else numbers[frame.partition]

    def destination(self, stage: int, task: int) -> Destination:
        number = self.levels[stage - 1][task]
        return next((entry, numbers.index(number)) for entry, numbers in self.entries.items() if number in numbers)

    def readers_of(self, stage: int) -> Iterator[int]:
        return chain.from_iterable(self.readers[stage])

    def to_driver(self, stage: int, task: int) -> int:
        """Return the number to which a task sends what is for the driver; the last stage returns it."""
        if stage == len(self.levels):
            return 0
        numbers = self.driver or self.levels[stage]
        return numbers[task % len(numbers)]


def routes_of(program: Program, any_way: bool, apart: bool, width: int) -> Routes:
    """Return the routes of a job.

    `any_way`: rows may take other ways than those of the plan: dead letters, to the driver or put back. `apart`: a later job
    commits, so that the driver must be told before the last stage. `width`: how many numbers the driver has, if it gets rows.
    """
    entries: dict[str, range] = {}
    levels: list[range] = []
    number = 0
    for level in program.levels:
        first = number
        for entry in level:
            entries[entry] = range(number, number + (program.exchanges[entry].partitions or 1))
            number = entries[entry].stop
        levels.append(range(first, number))
    stages = [tuple(program.emitters), *program.levels]
    sends = [{sink.target for entry in stage for sink in program.fragments[entry].sinks} for stage in stages[:-1]]
    readers = [_readers(program, entries, stage, any_way, targets) for stage, targets in enumerate(sends)]
    sources = [
        tuple(stage for stage, ranges in enumerate(readers) if any(numbers[0] in level for numbers in ranges))
        for level in levels
    ]
    rows, tasks = any_way or set().union(*sends) - entries.keys(), sum(map(len, levels))
    driver = range(tasks, tasks + (width if rows else int(apart)))
    return Routes(entries, tuple(levels), tuple(sources), (*readers, ()), driver)


def _readers(
    program: Program, entries: Mapping[str, range], stage: int, any_way: bool, targets: Set[str]
) -> tuple[range, ...]:
    return tuple(
        entries[entry]
        for ahead, level in enumerate(program.levels[stage:])
        for entry in level
        if not ahead or entry in targets or (any_way and not stage)
    )


def skips(parts: Sequence[Part], order: Order) -> bool:
    """Whether rows of these parts may take other ways than those of the plan."""
    return order.capture or any(isinstance(part, PutBack) for _, part in parts)


def sign(stage: int, task: int, routes: Routes, items: Iterable[tuple[int, Item]]) -> Iterator[tuple[int, Sent]]:
    """Send items, and tell all readers of the stage the run of this task."""
    source = Source(stage, task, secrets.token_hex(8))
    # Also where no rows follow: a reader that got rows of the first run must meet the second, which may have none for it.
    for to in routes.readers_of(stage):
        yield to, Sent(source, None)
    if routes.driver:
        yield routes.to_driver(stage, task), Sent(source, None)
    for to, item in items:
        yield to, Sent(source, item)


def is_mixed(sources: Set[Source]) -> bool:
    return len({(stage, task) for stage, task, _ in sources}) < len(sources)


def digests_of(sources: Set[Source]) -> dict[int, str]:
    """Return by stage a digest that is equal if all its runs are equal."""
    runs: dict[int, list[Source]] = {}
    for source in sorted(sources):
        runs.setdefault(source.stage, []).append(source)
    return {stage: hashlib.sha256(repr([tuple(one) for one in of]).encode()).hexdigest() for stage, of in runs.items()}


def two_runs(stage: int) -> Failure:
    cause = (
        f"stage {stage + 1} lost output of a task, most often with an executor, and Spark ran that task again after "
        "the output of its first run had been read"
    )
    return Failure("spark", None, cause)


# Spark's workers outlive topologies, whose operations may hold connections.
_PROGRAMS_KEPT = 8
_programs: dict[str, WorkerProgram] = {}
_opening = threading.Lock()  # a resident worker processes and commits in two threads


@dataclass(frozen=True)
class Job:
    """What all tasks of a Spark job know: the program, by an id that each topology has its own of, and the order."""

    program_id: str
    pickled: bytes
    order: Order

    def worker(self) -> WorkerProgram:
        # A batch ships only its parts: a process keeps the programs that it served last.
        id_ = self.program_id
        with _opening:
            if id_ not in _programs:
                if len(_programs) == _PROGRAMS_KEPT:
                    _programs.pop(next(iter(_programs))).cleanup()
                _programs[id_] = cloudpickle.loads(self.pickled).open_worker()
            # To the end: the first one is that which was asked for longest ago.
            _programs[id_] = _programs.pop(id_)
            return _programs[id_]

    @property
    def most(self) -> int:
        known = _programs.get(self.program_id)
        return MOST_SHIPPED if known is None else known.program.most_shipped


def _prepare_failure(error: Exception) -> Failure:
    if isinstance(error, ImportError):
        return failure_of("prepare", cannot_import(error), retry=False)
    return failure_of("prepare", error)


@atexit.register
def _cleanup() -> None:
    for worker in _programs.values():
        worker.cleanup()


def close_program(program_id: str) -> None:
    worker = _programs.pop(program_id, None)
    if worker is not None:
        worker.cleanup()


def run_parts_task(
    job: Job, routes: Routes, task: int, parts: Iterator[tuple[int, Part]]
) -> Iterator[tuple[int, Sent] | bytes]:
    # Without exchanges this is the last stage.
    outputs = outputs_of_parts(job, parts)
    return _emit(routes, 0, task, (sent for one in outputs for sent in _route(one, routes, 0, one.task, job.most)))


def outputs_of_parts(job: Job, parts: Iterable[tuple[int, Part]]) -> Iterator[TaskOutput]:
    """Run parts one after the other; a program that cannot be prepared is a failure too."""
    try:
        worker = job.worker()
    except Exception as error:  # noqa: BLE001  an operation's prepare may raise anything; it fails the attempt as data
        list(parts)  # Spark keeps a worker only if it reads all of its input
        yield TaskOutput(failure=_prepare_failure(error))
        return
    for index, part in parts:
        yield replace(run_part(worker, job.order, index, *part), task=index)


def run_level_task(
    job: Job, routes: Routes, stage: int, task: int, items: Iterator[Sent]
) -> Iterator[tuple[int, Sent] | bytes]:
    return _emit(routes, stage, task, _run_destination(job, routes, stage, task, items))


def _emit(
    routes: Routes, stage: int, task: int, sent: Iterable[tuple[int, Item]]
) -> Iterator[tuple[int, Sent] | bytes]:
    """Give what a stage sends; the last one gives the bytes of outputs."""
    return (item for _, item in sent) if stage == len(routes.levels) else sign(stage, task, routes, sent)  # type: ignore[misc]


def _run_destination(
    job: Job, routes: Routes, stage: int, task: int, items: Iterator[Sent]
) -> Iterator[tuple[int, Item]]:
    destination = routes.destination(stage, task)
    frames: list[RowFrame] = []
    sources: set[Source] = set()
    stopped = False
    for source, item in items:
        sources.add(source)
        if isinstance(item, bytes):
            # An output of an earlier stage is on its way to the driver, and this task only hands it on.
            yield routes.to_driver(stage, task), item
        elif isinstance(item, Stop):
            stopped = True
        elif item is not None:
            if (item.target, item.partition) != destination:
                raise AssertionError(f"rows for {item[:3]} reached the task of {destination}")
            frames.append(item._replace(data=table_of_ipc(item.data)))
    if stopped:
        cause = f"a task of stage {stage + 1} did not run, because a task before it had failed"  # which is shown
        output = TaskOutput(failure=Failure("spark", None, cause), level=stage)
    else:
        output = output_of_destination(job, stage, *destination, frames, sources)
    yield from _route(replace(output, task=task, sources=digests_of(sources)), routes, stage, task, job.most)


def output_of_destination(
    job: Job, stage: int, entry: str, partition: int, frames: list[RowFrame], sources: Set[Source]
) -> TaskOutput:
    # Before a state is opened, because what a commit writes is not taken back here.
    if is_mixed(sources):
        return TaskOutput(failure=two_runs(stage - 1), level=stage)
    try:
        worker = job.worker()
    except Exception as error:  # noqa: BLE001  as above
        return TaskOutput(failure=_prepare_failure(error), level=stage)
    for before, digest in digests_of(sources).items():
        if job.order.sources.get(before, digest) != digest:
            return TaskOutput(failure=two_runs(before), level=stage)  # what processing reported is lost
    return run_entry(worker, job.order, entry, partition, frames, stage)


def _route(output: TaskOutput, routes: Routes, stage: int, task: int, most: int) -> Iterator[tuple[int, Item]]:
    here: list[RowFrame] = []  # what is exchanged behind a state goes to the driver
    readers = frozenset(routes.readers_of(stage))
    for frame in output.frames:
        number = routes.number_of(frame)
        if number is None:
            here.append(frame)
            continue
        if number not in readers:
            raise AssertionError(f"rows of stage {stage + 1} for {frame[:3]}, which does not read that stage")
        try:
            data = ipc_of(frame.data)
            check_shippable(len(data), repr(frame.target), most)
        except TooManyRows as error:
            # What was sent before is not used, because its readers are told to stop.
            output = _failed_output(output, frame.target, error)
            break
        output.bytes_shuffled += len(data)
        yield number, frame._replace(data=data)
    if output.failure is not None:
        # To those without rows, too: no rows look like an empty partition, which may be committed.
        yield from ((to, Stop()) for to in readers)
    yield routes.to_driver(stage, task), pack_within(output if output.failure else replace(output, frames=here), most)


def pack_within(output: TaskOutput, most: int) -> bytes:
    """Return an output as bytes; a failure in its place if these are more than `most`."""
    data = pack(output)
    try:
        check_shippable(len(data), "the driver", most)
    except TooManyRows as error:
        largest = max(output.sinks, key=lambda target: sum(table.nbytes for table in output.sinks[target]), default="")
        return pack(_failed_output(output, largest, error))
    return data


def _failed_output(output: TaskOutput, step: str, error: TooManyRows) -> TaskOutput:
    return TaskOutput(
        failure=failure_of(step, error, retry=False), level=output.level, task=output.task, sources=output.sources
    )


def merge_sent(items: Iterable[bytes | Sent]) -> TaskOutput:
    """Merge the outputs of all tasks of a batch; the batch fails if different runs of a task were read, or arrived here."""
    blobs: list[bytes] = []
    arrived: set[Source] = set()
    for one in items:
        if isinstance(one, Sent):
            arrived.add(one.source)
        item = one.item if isinstance(one, Sent) else one
        if isinstance(item, bytes):
            blobs.append(item)
    outputs = sorted(map(unpack, blobs), key=lambda output: (output.level, output.task))
    here = digests_of(arrived)
    read = {pair for sources in (here, *(output.sources for output in outputs)) for pair in sources.items()}
    stages = [stage for stage, _ in read]
    mixed = [stage for stage in stages if stages.count(stage) > 1]
    if mixed or is_mixed(arrived):
        return TaskOutput(failure=two_runs(min(mixed, default=0)))
    return replace(merge_outputs(outputs), bytes_collected=sum(map(len, blobs)), sources=here)


def pack(output: TaskOutput) -> bytes:
    sinks = {target: [ipc_of(table) for table in tables] for target, tables in output.sinks.items()}
    frames = [frame._replace(data=ipc_of(frame.data)) for frame in output.frames]
    return bytes(cloudpickle.dumps(replace(output, sinks=sinks, frames=frames)))


def unpack(data: bytes) -> TaskOutput:
    # The bytes come from this topology's own tasks, never from a store or a network peer.
    output: TaskOutput = cloudpickle.loads(data)
    tables = {target: [table_of_ipc(blob) for blob in blobs] for target, blobs in output.sinks.items()}
    arrived = [frame._replace(data=table_of_ipc(frame.data)) for frame in output.frames]
    return replace(output, sinks=tables, frames=arrived)
