"""Reading spouts as a topology does, with everything that goes to a worker pickled on its way."""

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.harness.commands import until
from trident.arrow import schema_of
from trident.errors import SpoutError
from trident.spout import BadRow, BatchCoordinator, Definition, ITridentSpout, TransactionAttempt
from trident.spout.interfaces import coordinator_of

Row = tuple[Any, ...]


def rows_of(
    spout: ITridentSpout, coordinator: BatchCoordinator, definition: Definition, parallelism: int = 1, txid: int = 1
) -> list[Row]:
    """Emit one batch; the rows in the order of the parts."""
    emitter = pickle.loads(pickle.dumps(spout.get_emitter({})))
    read: list[Row] = []
    for part in coordinator.parts(TransactionAttempt(txid, 0), definition, parallelism):
        for data in emitter.emit(pickle.loads(pickle.dumps(part))):
            if isinstance(data, BadRow):
                raise data.error
            assert data.schema.equals(schema_of(spout.get_output_fields()))
            data.validate(full=True)
            read += tuple_rows(data)
    return read


def batches(spout: ITridentSpout, previous: Definition | None = None, parallelism: int = 1) -> list[list[Row]]:
    """Open a coordinator and read all that there is after a definition; the rows of each batch."""
    coordinator = spout.get_coordinator({})
    return [rows_of(spout, coordinator, one, parallelism) for one in definitions(coordinator, previous)]


def rows(spout: ITridentSpout, parallelism: int = 1) -> list[Row]:
    return [row for batch in batches(spout, None, parallelism) for row in batch]


def tuple_rows(data: pa.Table | pa.RecordBatch) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in data.columns), strict=True))


def first_batch(spout: ITridentSpout) -> tuple[Any, Definition]:
    """Open a coordinator, and define the only batch that there is."""
    coordinator = spout.get_coordinator({})
    (first,) = definitions(coordinator)
    return coordinator, first


def begun(spout: ITridentSpout) -> tuple[Any, Any]:
    """Open a coordinator, and define a first batch."""
    coordinator = spout.get_coordinator({})
    return coordinator, coordinator.initialize_transaction(1, None)


def refuse_both(
    spout: ITridentSpout, coordinator: Any, previous: Any, error: type[Exception], match: str, txid: int = 2
) -> None:
    """Check that a coordinator refuses to define a batch behind another one, each time, and that of a later start too."""
    for each in (coordinator, coordinator, spout.get_coordinator({})):
        with pytest.raises(error, match=match):
            each.initialize_transaction(txid, previous)


def definitions(
    coordinator: BatchCoordinator, previous: Definition | None = None, first: int = 1
) -> Iterator[Definition]:
    """Define batches until there is nothing more, each from a copy of the one before, as a log would give it back."""
    txid = first
    while (definition := coordinator.initialize_transaction(txid, previous)) is not None:
        if not definition.get("read", True):
            definition = coordinator.complete(definition, {})
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


class Life:
    """Batches of a spout as a driver runs them: what fails is tried again, what was defined is kept, as in a log."""

    def __init__(self, spout: Any) -> None:
        self.spout, self.rows, self.committed = spout, list[Any](), list[Definition]()
        self.errors = list[SpoutError]()
        self.coordinator: Any = None
        self.defined: Definition | None = None

    def step(self) -> bool:
        """Define, read and commit one batch, as far as that can be done; whether there may be more."""
        try:
            if self.coordinator is None:
                self.coordinator = self.spout.get_coordinator({})
            txid, previous = len(self.committed) + 1, self.committed[-1] if self.committed else None
            if self.defined is None:
                self.defined = self.coordinator.initialize_transaction(txid, pickle.loads(pickle.dumps(previous)))
            if self.defined is None:
                return coordinator_of(self.coordinator).may_have_more()
            read = rows_of(self.spout, self.coordinator, self.defined, 1, txid)
        except SpoutError as error:
            self.errors.append(error)
            return True
        self.rows += read
        self.committed.append(self.defined)
        self.coordinator.success(txid, self.defined)
        self.defined = None
        return True

    def run(self) -> None:
        try:
            until(lambda: not self.step(), "it has read all that is there")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.errors[-1:]}") from self.errors[-1]

    def restart(self) -> None:
        if self.coordinator is not None:
            self.coordinator.close()
        self.coordinator = None
