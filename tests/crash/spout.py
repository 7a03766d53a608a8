"""A spout whose definitions name every row, so that the log itself tells what must have been counted."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tests.crash.fuse import Fuse
from trident.arrow import table_of
from trident.fields import Fields
from trident.spout.interfaces import Definition, SpoutType, TransactionAttempt

WORDS = [f"word-{number:02}" for number in range(24)]
SHELVES = 15
FIELDS = Fields("word: string", "shelf: bigint", "odd: boolean", "weight: bigint")


class Row(NamedTuple):
    """One row of the source. Its weight is a random number of 40 bits, so a wrong sum is never right by chance."""

    word: str
    shelf: int
    odd: bool
    weight: int


def rows_of(seed: int, count: int) -> list[Row]:
    """Return the whole source of a seed."""
    rng = random.Random(f"rows {seed}")
    return [
        Row(rng.choice(WORDS), rng.randrange(SHELVES), rng.random() < 0.5, rng.getrandbits(40)) for _ in range(count)
    ]


class ScriptedSpout:
    """Gives every row of its source once, in batches of `batch_size` rows.

    A definition is `{"rows": numbers of the batch's rows, "left": numbers of the rows that no batch has yet}`.

    Parameters
    ----------
    kind
        `transactional` and `changing`: each definition is a new random choice among the rows that are left, so a
        replay is identical only if the framework remembers the first definition, as it must for a transactional
        spout; that of a changing (opaque) one drops and adds keys. `repeating`: opaque, with an identical replay.
    life
        Which driver of the schedule this is; another life chooses otherwise.
    worker_marker
        The worker that can create this file kills itself once it has read its part of batch `worker_txid`.
    """

    def __init__(
        self,
        kind: str,
        seed: int,
        life: int,
        fuse: Fuse,
        rows: int = 60,
        batch_size: int = 10,
        worker_marker: str = "",
        worker_txid: int = 0,
    ) -> None:
        self.spout_type = SpoutType.TRANSACTIONAL if kind == "transactional" else SpoutType.OPAQUE
        self.kind, self.seed, self.life, self.fuse = kind, seed, life, fuse
        self.rows, self.batch_size = rows, batch_size
        self.worker_marker, self.worker_txid = worker_marker, worker_txid
        self._defined: Counter[int] = Counter()

    def get_output_fields(self) -> Fields:
        return FIELDS

    def get_coordinator(self, conf: Mapping[str, Any]) -> ScriptedSpout:
        return self

    def get_emitter(self, conf: Mapping[str, Any]) -> ScriptedEmitter:
        return ScriptedEmitter(rows_of(self.seed, self.rows), self.fuse, self.worker_marker, self.worker_txid)

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        self.fuse.reach("P0", txid)
        left = list(range(self.rows)) if previous is None else list(previous["left"])
        if not left:
            return None
        if self.kind == "repeating":
            rows = left[: self.batch_size]
        else:
            self._defined[txid] += 1
            rng = random.Random(f"{self.seed} {self.life} {txid} {self._defined[txid]}")
            rows = rng.sample(left, min(self.batch_size, len(left)))
        chosen = set(rows)
        return {"rows": rows, "left": [row for row in left if row not in chosen]}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        rows = definition["rows"]
        middle = len(rows) // 2
        return [(attempt.txid, rows[:middle]), (attempt.txid, rows[middle:])]

    def success(self, txid: int, definition: Definition) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is open."""


class ScriptedEmitter:
    """Reads a part in two halves, so that a driver can die in between."""

    def __init__(self, rows: list[Row], fuse: Fuse, worker_marker: str, worker_txid: int) -> None:
        self._rows, self._fuse = rows, fuse
        self._worker_marker, self._worker_txid = worker_marker, worker_txid

    def emit(self, part: tuple[int, list[int]]) -> Iterator[pa.Table]:
        txid, numbers = part
        rows = [self._rows[number] for number in numbers]
        middle = len(rows) // 2
        yield table_of(FIELDS, rows[:middle])
        self._fuse.reach("P2", txid)
        yield table_of(FIELDS, rows[middle:])
        # All of the part is aggregated by now; the frame that carries it to the driver is not yet written.
        if self._worker_marker and txid == self._worker_txid:
            with suppress(FileExistsError):
                Path(self._worker_marker).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
