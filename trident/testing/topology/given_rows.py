"""Spouts over the rows that a test gives, in place of declared ones; a `TopologyTestDriver` has one batch for each feed."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from trident.arrow import UNFIT, Misfit, table_of
from trident.errors import ReplayMismatchError, TridentError
from trident.fields import Fields
from trident.spout.interfaces import Definition, SpoutType, TransactionAttempt
from trident.testing.topology.driver_points import FailurePoints


class GivenSpout:
    """What spouts over given rows share: the fields and the promise of a declared spout; rows that survive a restart."""

    def __init__(self, stream: str, fields: Fields, spout_type: SpoutType) -> None:
        self.stream, self.fields, self.spout_type = stream, fields, spout_type

    def get_output_fields(self) -> Fields:
        return self.fields

    def get_coordinator(self, conf: Mapping[str, Any]) -> Self:
        """Return the spout itself as the driver's side."""
        return self

    def get_emitter(self, conf: Mapping[str, Any]) -> Any:
        """Return the worker's side."""
        return GivenEmitter()

    def success(self, txid: int, definition: Definition) -> None:
        """Remember nothing."""

    def close(self) -> None:
        """Nothing is open."""


class GivenEmitter:
    """Emits parts that are their rows."""

    def emit(self, part: pa.Table) -> Iterable[pa.Table]:
        return [part]


class FedSpout(GivenSpout):
    """A spout that emits what it is fed.

    Definitions are `{"fed": id of the spout, "feed": n}`, n = 0, 1, 2 …
    """

    def __init__(self, stream: str, fields: Fields, spout_type: SpoutType, points: FailurePoints) -> None:
        super().__init__(stream, fields, spout_type)
        self._points = points
        self._id = uuid.uuid4().hex
        self._feeds: list[pa.Table] = []
        self._committed = 0

    def feed(self, rows: Sequence[Any]) -> None:
        """Queue the rows of a batch; `TridentError` for a row that does not fit the fields."""
        self._feeds.append(self._table("feed", rows))

    def replace(self, rows: Sequence[Any]) -> None:
        """Give the next attempt at the failed batch other rows."""
        if self.spout_type is SpoutType.TRANSACTIONAL:
            raise TridentError(
                f"replay({self.stream!r}): its spout is transactional, it promises that a replay holds the same rows. "
                "Call step() for that; only a spout of another type may emit other rows"
            )
        if self._committed == len(self._feeds):
            raise TridentError(f"replay({self.stream!r}): no rows that this stream was fed wait for a replay")
        self._feeds[self._committed] = self._table("replay", rows)

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Return the feed after the one of the batch before; None if it is not fed yet.

        A log that something else wrote before is continued with what is fed here.
        """
        own = self._is_own(previous)
        number = int(previous["feed"]) + 1 if own and previous is not None else self._committed
        if number >= len(self._feeds):
            return None
        self._points.reach("define")
        return {"fed": self._id, "feed": number}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[pa.Table]:
        """Give the rows of a feed, all in one part."""
        if not self._is_own(definition):
            raise ReplayMismatchError(
                f"batch {attempt.txid} was defined as {definition!r} before this driver was made, and what it held is not "
                "known here; finish it where it began, or give a new log_dir"
            )
        return [self._feeds[int(definition["feed"])]]

    def success(self, txid: int, definition: Definition) -> None:
        """Remember that the feed is committed and will not be replayed."""
        self._committed = int(definition["feed"]) + 1

    def _is_own(self, definition: Definition | None) -> bool:
        return isinstance(definition, dict) and definition.get("fed") == self._id

    def _table(self, call: str, given: Sequence[Any]) -> pa.Table:
        return typed_rows(f"{call}({self.stream!r})", self.fields, given)


def typed_rows(call: str, fields: Fields, given: Sequence[Any]) -> pa.Table:
    """Return the table of rows: tuples, dicts by field, or bare values where there is one field.

    `call` begins the message of the `TridentError` for a row that does not fit.
    """
    rows = [_row(call, fields, number, row) for number, row in enumerate(given)]
    try:
        return table_of(fields, rows)
    except Misfit as misfit:
        said = f"is not a {misfit.declared}, the type of field {misfit.field!r} ({misfit.reason})"
        raise TridentError(f"{call}: row {misfit.at}: {misfit.shown} {said}") from misfit
    except UNFIT as error:
        raise TridentError(f"{call}: the rows do not fit the fields ({fields}): {error}") from error


def _row(call: str, fields: Fields, number: int, row: Any) -> Sequence[Any]:
    if isinstance(row, Mapping) and set(row) == set(fields.names):
        values: Sequence[Any] = [row[name] for name in fields.names]
    elif isinstance(row, (list, tuple)):
        values = row
    elif len(fields) == 1:
        values = (row,)
    else:
        raise TridentError(f"{call}: row {number} is {row!r}; give a tuple of {len(fields)} values ({fields})")
    if len(values) != len(fields):
        raise TridentError(
            f"{call}: row {number} has {len(values)} values {row!r}, the stream has {len(fields)} ({fields})"
        )
    return values
