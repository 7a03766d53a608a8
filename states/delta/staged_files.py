"""What a task stages, as its driver hears of it: the name of a file, and what is in it."""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import NamedTuple, Self

from trident.state.txid import Sentinel

__all__ = ["STAGED", "Staged", "StagedName"]

STAGED = "_staged"
_NAME = re.compile(r"([\da-f]{16})-(\d+)-(\d+)-(\d+)-(\w*)\.parquet")


class StagedName(NamedTuple):
    """Who staged a file: the log, the batch, the attempt, the partition, and the run of the task."""

    log: str
    txid: int
    attempt: int
    partition: int
    run: str

    @classmethod
    def of_commit(cls, own: Sentinel, partition: int) -> Self:
        """Return the name for a commit by its sentinel."""
        return cls(_digest(own.incarnation), own.txid, own.attempt, partition, own.run)

    @classmethod
    def of_file(cls, name: str) -> Self | None:
        """Return the name of a file; None if it is not one of ours."""
        found = _NAME.fullmatch(name)
        return found and cls(found[1], int(found[2]), int(found[3]), int(found[4]), found[5])

    def is_other_run_of(self, own: StagedName) -> bool:
        """Whether another run of the same task wrote it."""
        return self[:4] == own[:4] and self.run != own.run

    def is_stale(self, incarnation: str, attempt: int) -> bool:
        """Whether it is of an attempt up to this one, or of another log."""
        return self.log != _digest(incarnation) or self.attempt <= attempt

    def __str__(self) -> str:
        return f"{self.log}-{self.txid}-{self.attempt}-{self.partition}-{self.run}.parquet"


class Staged(NamedTuple):
    """What a task has staged: plain data, which goes through the driver.

    Attributes
    ----------
    name
        The file.
    size, rows, seq
        Its bytes, its rows, and the `_seq` of all of them.
    version
        The version of the table that its values are based on.
    """

    name: str
    size: int = 0
    rows: int = 0
    seq: int = 0
    version: int = 0

    def packed(self) -> bytes:
        """Return it as bytes."""
        return json.dumps(self).encode()

    @classmethod
    def unpacked(cls, data: bytes) -> Self:
        """Return what was packed."""
        return cls(*json.loads(data))


def _digest(incarnation: str) -> str:
    return blake2b(incarnation.encode(), digest_size=8).hexdigest()
