"""DrawnKeys: a spout whose rows are computed in the tasks, so that its size costs the driver nothing.

Row `r` of batch `b` has a key that follows from `r` and `b` alone, so a replay is identical and counts are known beforehand.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from trident.fields import Fields
from trident.spout.interfaces import Definition, SpoutType, TransactionAttempt

_STRIDE = 2_654_435_761  # a prime, so that neighbouring rows have distant keys, and a cycle meets every key once


class _Part(NamedTuple):
    batch: int
    start: int
    end: int


@dataclass(frozen=True)
class DrawnKeys:
    """Batches of `rows` words out of `distinct`.

    `batches`: how many there are.
    `per_table`: how many rows a part gives at once; parts are cut at multiples of it.
    `skew`: which share of the rows has the first key.
    """

    batches: int
    rows: int
    distinct: int
    per_table: int = 500_000
    skew: float = 0.0
    spout_type = SpoutType.TRANSACTIONAL

    def get_output_fields(self) -> Fields:
        return Fields("word: string")

    def get_coordinator(self, conf: Mapping[str, Any]) -> Self:
        """This object is both sides: it keeps nothing."""
        return self

    get_emitter = get_coordinator

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        batch = 0 if previous is None else int(previous["batch"]) + 1
        return {"batch": batch} if batch < self.batches else None

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> list[_Part]:
        """Cut the rows of a batch into parts of whole tables, about one a task."""
        size = -(-self.rows // max(1, parallelism))
        batch, starts = int(definition["batch"]), range(0, self.rows, size)
        return [_Part(batch, start, min(start + size, self.rows)) for start in starts]

    def success(self, txid: int, definition: Definition) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is open."""

    def emit(self, part: _Part) -> Iterator[pa.Table]:
        """Give the rows of a part, table by table."""
        for start in range(part.start, part.end, self.per_table):
            yield pa.table({"word": self.words(self.numbers(part.batch, start, min(start + self.per_table, part.end)))})

    def numbers(self, batch: int, start: int, end: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the numbers of the keys of some rows of a batch."""
        rows = np.arange(start, end, dtype=np.int64)
        numbers = (rows + batch * self.rows) * _STRIDE % self.distinct
        if self.skew:
            numbers[rows % 1000 < self.skew * 1000] = 0
        return numbers

    @staticmethod
    def words(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
        """Return the words of some numbers."""
        return pa.array(numbers + 1_000_000_000).cast(pa.string())

    def count_of_each(self) -> int:
        """Return how often each key comes in all batches together, if they all come equally often."""
        times, rest = divmod(self.batches * self.rows, self.distinct)
        assert not rest
        assert not self.skew
        return times
