"""Reading spouts as the runtime does, with everything that goes to a worker pickled on its way."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from trident.arrow import schema_of
from trident.spout import BatchCoordinator, Definition, ITridentSpout, TransactionAttempt

Row = tuple[Any, ...]


def rows_of(
    spout: ITridentSpout, coordinator: BatchCoordinator, definition: Definition, parallelism: int = 1, txid: int = 1
) -> list[Row]:
    """Emit one batch; the rows in the order of the parts."""
    emitter = pickle.loads(pickle.dumps(spout.get_emitter({})))
    rows: list[Row] = []
    for part in coordinator.parts(TransactionAttempt(txid, 0), definition, parallelism):
        for data in emitter.emit(pickle.loads(pickle.dumps(part))):
            assert data.schema.equals(schema_of(spout.get_output_fields()))
            data.validate(full=True)
            rows += tuple_rows(data)
    return rows


def tuple_rows(data: pa.Table | pa.RecordBatch) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in data.columns), strict=True))


def definitions(
    coordinator: BatchCoordinator, previous: Definition | None = None, first: int = 1
) -> Iterator[Definition]:
    """Define batches until there is nothing more, each from a copy of the one before, as a log would give it back."""
    txid = first
    while (definition := coordinator.initialize_transaction(txid, previous)) is not None:
        yield definition
        previous, txid = pickle.loads(pickle.dumps(definition)), txid + 1


def is_plain(value: Any) -> bool:
    """Whether a value is of the types that a definition may have, and its texts can be encoded."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(one) for key, one in value.items())
    if isinstance(value, list):
        return all(is_plain(one) for one in value)
    if isinstance(value, str):
        return bool(json.dumps(value).encode()) and value.encode() is not None
    return value is None or type(value) in (bool, int, float, bytes)
