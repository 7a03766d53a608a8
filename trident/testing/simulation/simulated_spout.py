"""The spout that a simulation puts in place of a declared one: given rows, cut into batches as the plan says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from trident.fields import Fields
from trident.spout.interfaces import Definition, SpoutType, TransactionAttempt


class SpoutSeam(Protocol):
    """What a simulated spout asks of its driver."""

    def rows_of(self, stream: str, txid: int) -> int:
        """Return how many rows the batch takes, which is asked for once more."""

    def reach(self, point: str, state: str = "", txid: int = 0) -> None:
        """Come by a point of a batch."""

    def began(self, attempt: TransactionAttempt, text: str) -> None:
        """Note what an attempt holds."""


class SimulatedSpout:
    """A spout with the fields and the promise of another one. Definitions are `{"from": n, "until": n}`, numbers of rows."""

    def __init__(self, stream: str, fields: Fields, spout_type: SpoutType, rows: pa.Table, seam: SpoutSeam) -> None:
        self.spout_type = spout_type
        self._stream, self._fields, self._rows, self._seam = stream, fields, rows, seam

    def get_output_fields(self) -> Fields:
        return self._fields

    def get_coordinator(self, conf: Mapping[str, Any]) -> SimulatedSpout:
        """Return the spout itself as the driver's side."""
        return self

    def get_emitter(self, conf: Mapping[str, Any]) -> _Emitter:
        """Return the worker's side."""
        return _Emitter(self._seam)

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Take the rows behind those of the batch before; None at the end."""
        begin = 0 if previous is None else int(previous["until"])
        if begin >= self._rows.num_rows:
            return None
        self._seam.reach("define", txid=txid)
        return {"from": begin, "until": min(self._rows.num_rows, begin + self._seam.rows_of(self._stream, txid))}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        """Give the rows of a definition in one part."""
        begin, until = int(definition["from"]), int(definition["until"])
        shown = f"rows {begin} to {until - 1}" if until > begin else "no rows"
        self._seam.began(attempt, f"{shown} of stream {self._stream!r}")
        return [(attempt.txid, self._rows.slice(begin, until - begin))]

    def success(self, txid: int, definition: Definition) -> None:
        """Remember nothing."""

    def close(self) -> None:
        """Nothing is open."""


class _Emitter:
    """Emits parts that carry their rows."""

    def __init__(self, seam: SpoutSeam | None = None) -> None:
        self._seam = seam

    def __reduce__(self) -> tuple[Any, ...]:
        return _Emitter, ()  # a worker has no part in the simulation

    def emit(self, part: tuple[int, pa.Table]) -> Iterable[pa.Table]:
        txid, rows = part
        if self._seam is not None:
            self._seam.reach("read", txid=txid)
        return [rows]
