"""User code: which functions call it, at which step each thread is, and what it raised, as data.

A failure comes back from a worker as data, because an exception of a Spark task reaches the driver as text only.
"""

from __future__ import annotations

import re
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import get_ident
from types import CodeType
from typing import Any, NoReturn, Self, TypeVar

import pyarrow as pa

from trident.arrow import Misfit
from trident.errors import FailedException, FencedError, SourceAwayError, TridentError, can_heal, describe
from trident.naming import shown

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
        default = DEFAULT_BOUNDS
        return Bounds(
            settings.get("max_rows_per_tuple", default.per_tuple),
            settings.get("max_rows_per_step", default.per_step),
            settings.get("max_bytes_per_partition", default.per_partition),
        )

    def step_of(self, rows: int) -> int:
        """Return how many rows a step that got `rows` may give; as many as it got are always allowed."""
        return max(self.per_step, rows)

    def check_step(self, rows: int, given: int) -> None:
        if rows > self.step_of(given):
            raise TooManyRows(
                f"the step makes {rows} rows or more of the {given} of one partition of the batch; at most {self.per_step} are "
                "allowed. Use smaller batches or more partitions, or raise the setting max_rows_per_step"
            )

    def refuse_tuple(self) -> NoReturn:
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


@dataclass(frozen=True)
class LeftOut:
    """A tuple that a batch left out, with all that is needed to put it back.

    `entry`, `port`, `partition`, `partitions`: the entry of the fragment that has the step, the number of the exchange's input,
    the partition, and the number of partitions.
    """

    values: Mapping[str, Any]  # the columns that it had at the input of the step that raised, by name
    entry: str
    port: int = 0
    partition: int = 0
    partitions: int = 1


@dataclass(frozen=True)
class Failure:
    """Why an attempt failed, as data: it crosses process boundaries whole.

    `step`, `row`, `cause`: the step that raised, its tuple (text; None if no single tuple is the cause), the error.
    `waits_for`: what does not answer (`TridentError.waits_for`), so that this try does not count; empty if that is not the
    cause.
    `is_mistake`: True if user code raised at a tuple or gave a wrong result, and would do so at each try with the same tuples
    (`can_heal`).
    """

    step: str
    row: str | None
    cause: str
    retry: bool = True  # False if another try cannot help (a wrong number of values, a value of a wrong type)
    reported: bool = False
    details: str = ""  # the traceback
    left_out: LeftOut | None = None  # the tuple, if it was left out
    waits_for: str = ""
    can_heal: bool = True  # whether the same may go well later, in another driver if not in this one
    is_mistake: bool = False
    may_leave_out: bool = False  # whether a last try may leave the tuple out

    @property
    def is_source_away(self) -> bool:
        """Whether it is a source that does not answer, and not a store."""
        return self.waits_for == SourceAwayError.waits_for


class WrongResult(ValueError):
    """What user code gave is no row of its step's fields; the text is the whole cause."""


class StepFailed(Exception):
    """Carries a `Failure` out of a step."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class AtStep:
    """The running thread is at a step while this is entered; nothing may be yielded meanwhile, or it might go elsewhere.

    `row`, `given`: return the tuple that the step is at, and how much a call has given so far; another thread asks.
    """

    __slots__ = ("given", "row", "step")

    def __init__(
        self, step: str, row: Callable[[], object] = lambda: None, given: Callable[[], object] = lambda: None
    ) -> None:
        self.step, self.row, self.given = step, row, given

    def __enter__(self) -> Self:
        ENTERED[get_ident()].append(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        ENTERED[get_ident()].pop()


ENTERED: defaultdict[int, list[AtStep]] = defaultdict(list)
"""By the number of a thread, what it has entered, the innermost last. It is no context variable, as other threads read it."""


class FailingAt(AtStep):
    """Turns an exception inside into a failure of the step, too; a `StepFailed` passes unchanged."""

    __slots__ = ()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        ENTERED[get_ident()].pop()
        if isinstance(error, Exception) and not isinstance(error, StepFailed):
            raise StepFailed(failure_of(self.step, error)) from error


@lru_cache(maxsize=1024)
def failing_at(step: str) -> FailingAt:
    """Return what is entered at a step again and again, by several threads: so `step` stays what it is."""
    return FailingAt(step)


def failure_of(step: str, error: BaseException, row: object = None, retry: bool = True) -> Failure:
    """Describe an exception of user code, a spout or a state."""
    if isinstance(error, StepFailed):
        return error.failure
    full = full_column(error)
    error = full or error
    of = None if row is None else shown(row)
    ours = error if isinstance(error, TridentError) else TridentError()
    is_wrong = isinstance(error, WrongResult | Misfit)
    final = isinstance(error, FencedError) or not ours.can_heal or full is not None or is_wrong or not retry
    heals = full is None and can_heal(error)
    details = "".join(traceback.format_exception(error))
    reported = type(error).__name__ == "ReportedFailedException"
    cause = str(error) if is_wrong else describe(error)
    return Failure(step, of, cause, not final, reported, details, None, ours.waits_for, heals, is_mistake=is_wrong)


@dataclass
class TupleErrors:
    """What to do with a tuple whose operation raises: fail the batch, or (on the last try) leave the tuple out.

    `bounds` says how many rows a tuple, and a step, may give; the operation raises at one more. `entry`, `partition` and
    `partitions` say where the tuples are.
    """

    capture: bool = False
    captured: list[Failure] = field(default_factory=list)
    bounds: Bounds = DEFAULT_BOUNDS
    entry: str = ""
    partition: int = 0
    partitions: int = 1

    def __call__(self, step: str, row: object, error: Exception, table: pa.Table, at: int, port: int = 0) -> None:
        """Handle one exception, of row `at` of a table: raise `StepFailed`, or record the tuple and return."""
        may_leave_out = not isinstance(error, (FailedException, StepFailed))
        failure = failure_of(step, error, row)
        failure = replace(failure, is_mistake=not can_heal(error), may_leave_out=may_leave_out)
        if not (self.capture and may_leave_out):
            raise StepFailed(failure) from error
        values = printable_row(table.slice(at, 1))
        self.captured.append(
            replace(failure, left_out=LeftOut(values, self.entry, port, self.partition, self.partitions))
        )


def printable_row(row: pa.Table) -> dict[str, Any]:
    """Return the values of a table of one row; in place of one that Python has not, what Arrow prints."""
    values = {}
    for name, column in zip(row.column_names, row.columns, strict=True):
        try:
            (values[name],) = column.to_pylist()
        except (OverflowError, ValueError):
            values[name] = " ".join(str(column.combine_chunks()).strip("[] \n").split())
    return values


F = TypeVar("F", bound=Callable[..., Any])

CALLERS: set[CodeType] = set()  # the functions that call the user's code: on a thread's stack it is behind them


def calls_user_code(function: F) -> F:
    """Mark a function; what it calls is within an `AtStep`."""
    CALLERS.add(function.__code__)
    return function
