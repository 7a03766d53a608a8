"""What a driver and its resident workers tell each other about batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trident.runtime.engine.routing import RowFrame

# ---- of a worker, to its driver -----------------------------------------------------------------------------------------


class Done(NamedTuple):
    """A worker has done its part of a stage.

    `outputs`: as `pack` packs them.
    `sent`: how many messages with rows it has sent to each worker.
    """

    place: int
    number: int
    outputs: list[bytes]
    failed: bool
    sent: Mapping[int, int]


# ---- of the driver, to a worker -----------------------------------------------------------------------------------------


class Alive(NamedTuple):
    """The driver is there, every second; what a worker has of attempts that are not `live` can go.

    `newest`: the number of the newest attempt that the driver knows.
    """

    live: frozenset[int]
    newest: int


class StageWork(NamedTuple):
    """A part of a stage of an attempt.

    `number`: of the attempt. No other attempt of the pool has the same.
    `place`: of the worker that it is for.
    `order`: a pickled `Order`.
    `stage`: 0 for the parts of the batch, after that the levels of exchanges.
    `commits`: whether it commits: that goes on beside what is processed for later batches.
    `tasks`: pickled: the parts with their numbers; of a level the number of each task, its exchange and its partition.
    `crew`: the addresses of the workers that work on the attempt.
    `owners`: by exchange, which of them has each partition.
    `expects`: how many messages with rows each of them has sent here.
    """

    number: int
    place: int
    order: bytes
    stage: int
    commits: bool
    tasks: bytes
    crew: Mapping[int, str]
    owners: Mapping[str, Sequence[int]]
    expects: Mapping[int, int]


class AttemptOver(NamedTuple):
    """An attempt has ended: what a worker has of it can go. It may still be at it, if the attempt was cancelled."""

    number: int


# ---- of a worker, to another --------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """Frames on their way to partitions that the other has; their data are bytes."""

    number: int
    sender: int
    frames: list[RowFrame]
