"""What you give to have a spout checked, a source that can be filled; and the source of one check."""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from itertools import count
from typing import Any, ClassVar, NamedTuple
from unittest import SkipTest

import cloudpickle
import pyarrow as pa

from trident.arrow import cast_table, schema_of
from trident.config import Config
from trident.errors import ConfigError
from trident.log.framing import decode, encode
from trident.plan.plan import spout_type_of
from trident.roles import Role
from trident.run.batch_spouts import as_trident_spout
from trident.spout.interfaces import BadRow, Definition, PartitionRead, SpoutType, TransactionAttempt, coordinator_of
from trident.testing.contract import Contract, Violation, broken

Row = tuple[Any, ...]


class SpoutSource(Role, ABC):
    """A source that begins empty, and a spout that reads it. Subclass it; an instance is made for each check.

    `lost`, `outage` and `change` may be written in addition; without one, what it is for is reported as not claimed.

    Attributes
    ----------
    limit
        How many rows a batch of the spout has at most, as you declared it to the spout; about 10 is good. None: no limit.
    unit
        How many rows a batch of a backlog has at least, where they cannot be split, as in a Parquet file.
    partitions
        How many partitions the source begins with. With one, the source has no partitions.
    adds_partitions
        Whether `fill` creates a partition that is not there.
    grows
        Whether a coordinator that is open finds what is added. If not, all is added before it is opened.
    durable
        Whether another process can read the source. Rows in the memory of this process end with it.
    crashes
        Whether a driver may be left as a crash leaves it, with nothing closed, while the next one reads in the same process.
        If not, it is closed first.
    at_least_once
        Whether a non-transactional spout gives again what was not committed; one of another kind does in any case.
    patience_s
        How long the spout may take to notice what was added.
    idle_s
        How long the coordinator may take to say that there is nothing.
    """

    limit: ClassVar[int | None] = None
    unit: ClassVar[int] = 1
    partitions: ClassVar[int] = 1
    adds_partitions: ClassVar[bool] = False
    grows: ClassVar[bool] = True
    durable: ClassVar[bool] = True
    crashes: ClassVar[bool] = True
    at_least_once: ClassVar[bool] = False
    patience_s: ClassVar[float] = 5.0
    idle_s: ClassVar[float] = 0.1

    @abstractmethod
    def spout(self) -> Any:
        """Return a new spout over the source, as the program that a driver starts with does."""

    @abstractmethod
    def fill(self, numbers: Sequence[int], partition: int) -> Sequence[Row]:
        """Add one row for each number to a partition, in this order; return the rows as the spout is to emit them.

        No number is ever given twice, so have it in the row. Without partitions the argument is 0.
        """

    def row_of(self, emitted: Row) -> Row:
        """Return the part of an emitted row that `fill` knew: not, for example, the time of writing."""
        return emitted

    def lost(self, partition: int) -> AbstractContextManager[object]:
        """Return a context in which that partition is not there; it comes back with the same rows."""
        raise NotImplementedError

    def outage(self) -> AbstractContextManager[object]:
        """Return a context in which the source cannot be reached; it comes back with the same rows."""
        return nullcontext()

    def change(self) -> object:
        """Change rows that were there already, or take them away, as a deleted or truncated file is."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove the source after a check."""

    def offers(self, method: str) -> bool:
        """Whether the source has a method of its own: in its class, or set on this very source (None: it has not)."""
        return vars(self)[method] is not None if method in vars(self) else super().offers(method)


_CLAIMS = {
    "limit": "the source declares no limit",
    "grows": "an open coordinator does not find what is added",
    "adds_partitions": "no partition can be added",
    "at_least_once": "the source says nothing of failures",
}
"""The attributes that claim what a check is about, where no method of that name does; and what is said if one does not."""

_KINDS = {
    "identical replays": (SpoutType.TRANSACTIONAL,),
    "replays": (SpoutType.TRANSACTIONAL, SpoutType.OPAQUE),
    "no replays": (SpoutType.NON_TRANSACTIONAL,),
}
"""Which kinds of spouts claim something of replays."""

_ATTEMPT = 1 << 20


class FilledBatch(NamedTuple):
    """A batch that was defined, with its rows if it was read."""

    txid: int
    definition: Definition
    rows: Sequence[Row] = ()
    is_read: bool = False


class Life:
    """One life of a driver that reads a spout, without a log, states or Spark: its coordinator, and its emitter in a worker."""

    def __init__(self, spout: Any) -> None:
        settings = Config().as_mapping()
        self.spout = as_trident_spout(spout)
        self.fields = self.spout.get_output_fields()
        self.coordinator = coordinator_of(self.spout.get_coordinator(settings))
        self.emitter = through_pickle(self.spout.get_emitter(settings))
        self._is_completed_by_reading = self.coordinator.offers("complete")
        self._first: dict[tuple[int, str], list[pa.Table]] = {}

    @property
    def rereads(self) -> bool:
        """Whether a definition can be read again; one that reading has completed is read again only if a replay is the same."""
        return not self._is_completed_by_reading or self.spout.spout_type is SpoutType.TRANSACTIONAL

    def define(self, txid: int, previous: Definition | None) -> Definition | None:
        return through_log(self.define_here(txid, through_log(previous)))

    def define_here(self, txid: int, previous: Definition | None) -> Definition | None:
        """Have a batch defined; where reading completes the definition, it is read."""
        definition = self.coordinator.initialize_transaction(txid, previous)
        if definition is None or self.coordinator.traits(definition).is_complete:
            return definition
        tables, read = list[pa.Table](), dict[str, PartitionRead]()
        for one in self._emit(txid, definition, 1, 0):
            if isinstance(one, PartitionRead):
                read[one.partition] = one
            else:
                tables.append(one)
        complete = self.coordinator.complete(definition, read)
        self._first[txid, repr(through_log(complete))] = tables
        return complete

    def tables(self, batch: FilledBatch, parallelism: int = 1, attempt: int = 0) -> Iterator[pa.Table]:
        """Read a batch as the workers do; what was read to complete the definition is not read again."""
        key = batch.txid, repr(batch.definition)
        first = self._first.pop(key, None) if self.rereads else self._first.get(key)
        found = self._emit(batch.txid, batch.definition, parallelism, attempt) if first is None else first
        yield from (one for one in found if not isinstance(one, PartitionRead))

    def read(self, batch: FilledBatch, parallelism: int = 1, attempt: int = 0) -> list[Row]:
        """Return the rows of a batch; columns under wrong names are taken for those that they should be."""
        schema, rows = schema_of(self.fields), list[Row]()
        for table in self.tables(batch, parallelism, attempt):
            if table.schema.names != schema.names and table.num_columns >= len(schema):
                table = table.select(range(len(schema))).rename_columns(schema.names)
            typed = table if table.schema.types == schema.types else cast_table(table, self.fields)
            rows += zip(*(column.to_pylist() for column in typed.columns), strict=True)
        return rows

    def commit(self, batch: FilledBatch, attempt: int = 0) -> None:
        self.coordinator.commit(TransactionAttempt(batch.txid, _ATTEMPT + attempt), through_log(batch.definition))

    def succeed(self, batch: FilledBatch, attempt: int = 0) -> None:
        self.commit(batch, attempt)
        self.coordinator.success(batch.txid, through_log(batch.definition))

    def _emit(
        self, txid: int, definition: Definition, parallelism: int, attempt: int
    ) -> Iterator[pa.Table | PartitionRead]:
        tried = TransactionAttempt(txid, _ATTEMPT + attempt)
        for part in self.coordinator.parts(tried, through_log(definition), parallelism):
            for data in self.emitter.emit(through_pickle(part)):
                if isinstance(data, BadRow):
                    raise data.error
                yield pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data


def through_log(definition: Definition | None) -> Definition | None:
    try:
        return decode(encode(definition))
    except ValueError:
        return definition  # only the check of plain data complains of it


def through_pickle(value: Any) -> Any:
    try:
        return cloudpickle.loads(cloudpickle.dumps(value))
    except Exception:  # noqa: BLE001 - a user's object may raise anything
        return value


def read_whole(spout: Any, batches: Sequence[FilledBatch]) -> list[list[Row]]:
    return list(map(Life(spout).read, batches))


class Compared(NamedTuple):
    """Rows of the source that did not come, rows that it never had, and rows that came too often."""

    missing: list[Row]
    foreign: list[Row]
    repeated: list[Row]


class FilledSource:
    """A source, the rows that it holds by its own statement, and the drivers that read it."""

    def __init__(self, source: SpoutSource) -> None:
        self.source = source
        self.stated: dict[int, list[Row]] = {}
        self._numbers, self._open = count(1), list[Life]()

    @property
    def backlog(self) -> int:
        return 43 if self.source.limit is None else 4 * self.source.limit + 3

    def fill(self, rows: int, *partitions: int) -> None:
        """Add so many rows, spread over the partitions (all that the source began with, if none is named)."""
        chosen = partitions or tuple(range(self.source.partitions))
        for at, partition in enumerate(chosen):
            share = rows * (at + 1) // len(chosen) - rows * at // len(chosen)
            if share:
                numbers = [next(self._numbers) for _ in range(share)]
                added = [tuple(row) for row in self.source.fill(numbers, partition)]
                if len(added) != share:
                    raise ValueError(f"fill was given {share} numbers and returned {len(added)} rows; one each is due")
                self.stated.setdefault(partition, []).extend(added)

    def rows(self, *partitions: int) -> list[Row]:
        return [row for at, rows in self.stated.items() if not partitions or at in partitions for row in rows]

    def live(self) -> Life:
        life = Life(self.source.spout())
        self._open.append(life)
        return life

    def end(self, life: Life) -> None:
        self._open.remove(life)
        with suppress(Exception):  # its verdict stands without it; there is a check of its own for closing
            life.coordinator.close()

    def crash(self, life: Life) -> None:
        """Leave a driver as a crash leaves it, if the source allows; it is closed after the check."""
        if not self.source.crashes:
            self.end(life)

    def close(self) -> None:
        for life in list(self._open):
            self.end(life)
        self.source.close()

    def define_next(self, life: Life, last: FilledBatch | None = None, wait: bool = True) -> FilledBatch | None:
        """Have the batch after another one defined; where there is nothing, wait a while if `wait`."""
        txid, previous = (1, None) if last is None else (last.txid + 1, last.definition)
        until = time.monotonic() + self.source.patience_s
        if wait:
            life.coordinator.refresh()
        while (definition := life.define(txid, previous)) is None and wait and time.monotonic() < until:
            time.sleep(0.01)  # as the loop waits before it asks again
        return None if definition is None else FilledBatch(txid, definition)

    def read_next(self, life: Life, last: FilledBatch | None = None, wait: bool = True) -> FilledBatch | None:
        batch = self.define_next(life, last, wait)
        return batch and batch._replace(rows=life.read(batch), is_read=True)

    def drain(
        self,
        life: Life,
        previous: FilledBatch | None = None,
        want: int | None = None,
        each: Callable[[FilledBatch], object] = lambda batch: None,
        after: Callable[[FilledBatch], object] = lambda batch: None,
    ) -> list[FilledBatch]:
        """Read and commit batch after batch; `each` is called before the commit of each, `after` after it."""

        def take(last: FilledBatch | None, wait: bool) -> FilledBatch | None:
            if (batch := self.read_next(life, last, wait)) is not None:
                each(batch)
                life.succeed(batch)
                after(batch)
            return batch

        return self.take_all(take, previous, want)

    def take_all(
        self,
        take: Callable[[FilledBatch | None, bool], FilledBatch | None],
        previous: FilledBatch | None = None,
        want: int | None = None,
    ) -> list[FilledBatch]:
        """Take batch after batch, until `want` rows were read (all, if not given) and there is nothing more.

        `take` is given the batch before, and whether to wait for one.
        """
        wanted = len(self.rows()) if want is None else want
        batches, last, read, empty = list[FilledBatch](), previous, 0, 0
        while empty < 10 and read <= 2 * wanted + 100:  # as the loop takes the end of the sources
            if (last := take(last, read < wanted)) is None:
                break
            batches.append(last)
            read, empty = read + len(last.rows), 0 if last.rows else empty + 1
        return batches

    def compare(self, rows: Sequence[Row], stated: Sequence[Row] | None = None) -> Compared:
        wanted = {repr(row): row for row in (self.rows() if stated is None else stated)}
        found = [self.source.row_of(row) for row in rows]
        counts, by_name = Counter(map(repr, found)), {repr(row): row for row in found}
        return Compared(
            [row for name, row in wanted.items() if name not in counts],
            [row for name, row in by_name.items() if name not in wanted],
            [row for name, row in by_name.items() if counts[name] > 1],
        )

    def expect_all(self, rows: Sequence[Row], what: str) -> None:
        wrong = {name: some for name, some in self.compare(rows)._asdict().items() if some}
        if wrong:
            problems = "; ".join(f"{len(some)} {name}, the first is {some[0]!r}" for name, some in wrong.items())
            broken(f"{what}: {len(rows)} rows were read, {len(self.rows())} are expected: {problems}")

    def expect_same(self, found: Sequence[Row], wanted: Sequence[Row], what: str) -> None:
        counts, expected = Counter(map(repr, found)), Counter(map(repr, wanted))
        if counts != expected:
            wrong = {"gone": [*(expected - counts).elements()], "new": [*(counts - expected).elements()]}
            said = [f"{len(some)} {name}, the first is {some[0]}" for name, some in wrong.items() if some]
            raise Violation(f"{what}: {len(found)} rows, {len(wanted)} when it was read first: {'; '.join(said)}")


def rows_of(batches: Sequence[FilledBatch]) -> list[Row]:
    return [row for batch in batches for row in batch.rows]


class SpoutChecks(Contract):
    """Base of the contract. `source`: your `SpoutSource`, or a function that returns one; it is called for each check."""

    subject = "filled"
    source: Any = None
    skips: ClassVar[bool] = True

    @cached_property
    def filled(self) -> FilledSource:
        source = self.user_attribute("source", hint=" to your subclass of SpoutSource, or let a fixture set it")()
        if not isinstance(source, SpoutSource):
            raise ConfigError(
                f"{type(self).__name__}.source() returned a {type(source).__name__}, expected a SpoutSource"
            )
        return FilledSource(source)

    def begin(self) -> tuple[FilledSource, Life]:
        self.filled.fill(self.filled.backlog)
        return self.filled, self.filled.live()

    @property
    def kind(self) -> SpoutType:
        return spout_type_of(self.filled.source.spout())

    @staticmethod
    def needs(claimed: bool, what: str) -> None:
        """Skip the check of what is not claimed: `SkipTest`, which pytest knows."""
        if not claimed:
            raise SkipTest(what)

    def why_unclaimed(self, claim: str) -> str:
        if claim in _KINDS:
            return "" if self.kind in _KINDS[claim] else f"the spout is {self.kind.value}"
        source = self.filled.source
        if claim not in _CLAIMS:
            return "" if source.offers(claim) else f"the source has no {claim}()"
        return "" if getattr(source, claim) else _CLAIMS[claim]
