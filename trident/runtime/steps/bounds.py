"""Limits on the rows that user code may make of a tuple and of a batch, so that it cannot use up the memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np
import pyarrow as pa

from trident.errors import describe

T = TypeVar("T")

MOST_SHIPPED = 2_000_000_000
"""The bytes that a Python worker can pass to Spark at once: a little less than a 32-bit int can count."""


_MOST_IN_COLUMN = (1 << 31) - 1
_FULL = re.compile(r"offset overflow while concatenating|cannot contain more than \d+ bytes")


class TooManyRows(Exception):
    """A step made more rows than the settings allow. It is raised in user code at the emit that is one too many."""


@dataclass(frozen=True)
class Bounds:
    """The settings `max_rows_per_tuple`, `max_rows_per_step` and `max_bytes_per_partition`."""

    per_tuple: int = 1_000_000
    per_step: int = 10_000_000
    per_partition: int = MOST_SHIPPED

    @staticmethod
    def of(settings: Mapping[str, Any]) -> Bounds:
        """Take them from the settings of a topology."""
        default = DEFAULT_BOUNDS
        return Bounds(
            settings.get("max_rows_per_tuple", default.per_tuple),
            settings.get("max_rows_per_step", default.per_step),
            settings.get("max_bytes_per_partition", default.per_partition),
        )

    def step_of(self, rows: int) -> int:
        """Return how many rows a step that got `rows` may give; as many as it got are always allowed."""
        return max(self.per_step, rows)

    def check_parents(self, parents: Any) -> None:
        """Raise `TooManyRows` if a tuple is the parent of too many rows; `parents` has the parent of each row."""
        if len(parents) > self.per_tuple < int(np.bincount(parents).max()):
            self.refuse_tuple()

    def check_step(self, rows: int, given: int) -> None:
        """Raise `TooManyRows` if a step that got `given` rows may not give `rows`."""
        if rows > self.step_of(given):
            raise TooManyRows(
                f"the step makes {rows} rows or more of the {given} of one partition of the batch; at most {self.per_step} are "
                "allowed. Use smaller batches or more partitions, or raise the setting max_rows_per_step"
            )

    def refuse_tuple(self) -> NoReturn:
        """Raise `TooManyRows` for a tuple."""
        raise TooManyRows(
            f"one tuple gave more than {self.per_tuple} rows. Does the function ever end? If it must give so many, raise the "
            "setting max_rows_per_tuple"
        )


DEFAULT_BOUNDS = Bounds()


def in_lists(items: Iterable[T], size_of: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Give items in lists that end with the one that makes their size `most`."""
    kept: list[T] = []
    size = 0
    for item in items:
        kept.append(item)
        size += size_of(item)
        if size >= most:
            yield kept
            kept, size = [], 0
    if kept:
        yield kept


def full_column(error: BaseException) -> TooManyRows | None:
    """Return the error for what Arrow raises where a column would hold more than it can; None for any other."""
    if not isinstance(error, pa.ArrowException) or not _FULL.search(str(error)):
        return None
    return TooManyRows(
        f"a column of one partition of the batch would hold more than the {_MOST_IN_COLUMN:,} bytes that a text or binary "
        f"column can ({describe(error)}). Use smaller batches, more partitions or smaller values"
    )


def check_shippable(size: int, where: str, most: int) -> None:
    """Raise `TooManyRows` if one task would pass on more than `most` bytes at once."""
    if size > most:
        raise TooManyRows(
            f"one partition gives {size} bytes for {where}, and Spark, with the memory that it has, should take at most {most} "
            "at once. Use smaller batches, more partitions (parallelism_hint) or smaller values, or give Spark more memory "
            "(spark.driver.memory, spark.executor.memory)"
        )
