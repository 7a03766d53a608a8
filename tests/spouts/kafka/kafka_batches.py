"""Batches of a Kafka spout as a topology makes them: defined one after the other, read, and confirmed."""

import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spouts.kafka import OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from tests.spouts.reading import Row, is_plain, rows_of
from trident.errors import SourceAwayError
from trident.spout import Definition

Spout = OpaqueTridentKafkaSpout | TransactionalTridentKafkaSpout
Kind = type[OpaqueTridentKafkaSpout] | type[TransactionalTridentKafkaSpout]
BOTH = pytest.mark.parametrize("kind", [OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout])


class Batches:
    """A coordinator and the definitions that it has made so far; `restart` opens another one, as a new driver does."""

    def __init__(self, spout: Spout, parallelism: int = 2) -> None:
        self.spout, self.parallelism = spout, parallelism
        self.coordinator = spout.get_coordinator({})
        self.definitions: list[Definition] = []

    def close(self) -> None:
        self.coordinator.close()

    def restart(self, spout: Spout | None = None) -> None:
        self.close()
        self.spout = pickle.loads(pickle.dumps(spout or self.spout))
        self.coordinator = self.spout.get_coordinator({})

    def define(self) -> Definition | None:
        """Define the next batch; it counts as committed."""
        previous = pickle.loads(pickle.dumps(self.definitions[-1])) if self.definitions else None
        made = self.coordinator.initialize_transaction(len(self.definitions) + 1, previous)
        if made is not None:
            assert is_plain(made)
            self.definitions.append(made)
        return made

    def read(self, definition: Definition, tries: int = 3) -> list[Row]:
        try:
            return rows_of(self.spout, self.coordinator, definition, self.parallelism)
        except SourceAwayError as error:  # as a topology does: a broker that was slow to answer is asked again
            if tries == 1 or "no answer" not in str(error):
                raise
        return self.read(definition, tries - 1)

    def next(self) -> list[Row] | None:
        """Define, read and confirm the next batch; None if there is nothing."""
        made = self.define()
        if made is None:
            return None
        rows = self.read(made)
        self.coordinator.success(len(self.definitions), made)
        return rows

    def until(self, count: int) -> list[Row]:
        """Read until so many records have come, which a broker that was just started has."""
        rows: list[Row] = []
        deadline = time.monotonic() + 60
        while len(rows) < count:
            assert time.monotonic() < deadline, f"{len(rows)} of {count} records came"
            try:
                rows += self.next() or []
            except SourceAwayError:  # as a topology does: the batch is defined again
                self.definitions.pop()
        return rows

    def rest(self) -> list[Row]:
        rows: list[Row] = []
        while (more := self.next()) is not None:
            rows += more
        return rows


@contextmanager
def batches(spout: Spout, parallelism: int = 2) -> Iterator[Batches]:
    made = Batches(spout, parallelism)
    try:
        yield made
    finally:
        made.close()


def spans(definition: Definition) -> list[tuple[int, int, int]]:
    """Return partition, start and end of each range, in all topics."""
    flat = [topic["ranges"] for topic in definition["topics"].values()]
    return [(one[at], one[at + 1], one[at + 2]) for one in flat for at in range(0, len(one), 4)]
