"""A state in a Delta table: one atomic transaction per batch, durable on a local disk, readable by Spark.

An append-only change table, inside of the folder that people read, has for each key that a commit wrote a row: the key
columns, the columns of the state's kind, and `_seq`, which rises with every commit; of one key the row with the highest
`_seq` is valid. The sentinel is a row of its own (`_sentinel`) in the file of its commit: neither a clean-up of the log, nor
a compaction, here or by Spark's OPTIMIZE, nor a copy of the table can lose it.

Fencing: `move_sentinel` compares the newest sentinel and pins that version; `end` commits rows and sentinel as the very next
one, which Delta gives to one writer only. Compactions since change no content, and are followed; anything else refuses the
commit. An older writer that commits between the `begin` and the `end` of its successor makes that try once more: its rows are
seen with the attempt that lost, and the value rule undoes them. Afterwards it cannot do anything.

`staging.py` has what tasks commit, `publishing.py` what people read, `upkeep.py` the threads beside, `beyond_memory/` large
states.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

from states.delta.fence import CommitNote, newest_sentinel, shown_commits
from states.delta.index import IndexedValues
from states.delta.layout import RawValue, in_order
from states.delta.map import DeltaBackingMap
from states.delta.options import KEEPING, DeltaOptions, local_path
from states.delta.spark_table import delta_dataframe
from states.delta.state_table import ABSENT, StateTable
from states.delta.state_tables import TRIMMED, PublishedTable, StateTables
from trident.errors import ConfigError, EnvironmentProblem, StateError
from trident.fields import quote
from trident.redaction import Redacted
from trident.state.interfaces import Key, State, StateConf, StateSpec, StateType, StoreFacts, state_type
from trident.state.map_state import SnapshottableMap
from trident.state.maps import map_for, migrate_values
from trident.state.sentinel import check_sentinel
from trident.state.txid import Snapshot, Txid
from trident.state.values import OpaqueValue, TransactionalValue
from trident.storekit import SpecKinds, called_as, kinds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

P = ParamSpec("P")


class DeltaStateAt(State):
    """A Delta state as it was after the batch `txid`, read from version `version` of its table; read only."""

    def __init__(self, tables: StateTables, table: StateTable, snapshot: Snapshot) -> None:
        self.txid, self.version = snapshot.txid, table.version
        self._layout, self._snapshot, key = tables.layout, snapshot, tables.options.snapshot_key
        self._snapshot_key = key if isinstance(key, tuple) else (key,)
        base, changes = _base(tables, table, snapshot.txid), in_order(table.scan())
        index = None if base is None else base.index(tables.layout, base.holds(), [changes])
        self._values = index or IndexedValues(tables.layout, lambda: changes)
        self._types = tables.types

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        return self._of(self._values.get(self._layout.pack_keys(keys)))

    def get(self) -> Any:
        """Return the single value of an ungrouped aggregate, None if never written."""
        return self.multi_get([self._snapshot_key])[0]

    def get_tuples(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows: the fields of each key, then its value; a key whose value is None has no row."""
        for page in self._values.key_pages():
            for raw, found in zip(page, self._of(self._values.get(page)), strict=True):
                if found is not None:
                    yield (*self._layout.unpack_key(raw), found)

    def _of(self, raw: Sequence[RawValue | None]) -> list[Any]:
        values = self._layout.unpack_values(raw)
        if self._layout.kind is StateType.OPAQUE:
            opaque: Sequence[OpaqueValue | None] = migrate_values(values, self._snapshot.winners, self._types)
            found = [None if one is None else one.at(self._snapshot) for one in opaque]
            return found if self._types is None else self._types.narrow(found)
        return [value.value if isinstance(value, TransactionalValue) else value for value in values]


class DeltaMapState(SnapshottableMap):
    """One partition of a Delta state; parameters as for `DeltaBackingMap`."""

    def __init__(
        self, path: str, kind: StateType, conf: StateConf, partition: int = 0, options: DeltaOptions | None = None
    ) -> None:
        self._path, self._conf, self._partition = path, conf, partition
        self._backing = DeltaBackingMap(path, kind, conf, partition, options)
        self._tables = self._backing.tables
        of_kind = map_for(kind, self._backing, conf.prefix, partition, conf.migrate)
        super().__init__(of_kind, self._tables.options.snapshot_key)

    def at(self, txid: int | Snapshot) -> DeltaStateAt:
        """Return the state as it was after batch `txid`; see `delta_state_at`."""
        return DeltaStateAt(self._tables, *_table_at(self._tables, txid))

    def to_dataframe(self, spark: SparkSession, snapshot: Snapshot | None = None) -> DataFrame:
        """Return the table as a DataFrame of its key columns and `value`, newest or as of a batch; see `delta_dataframe`.

        Raises `EnvironmentProblem`: former declarations have written a part, of which Spark sees the columns that they had.
        """
        if self._conf.evolves:
            raise EnvironmentProblem("values of former declarations are read by this process")
        if snapshot is None:
            return delta_dataframe(spark, self._path)
        table, then = _table_at(self._tables, snapshot)
        if table.version <= 0:  # nothing was ever committed
            columns = [*self._conf.key_fields, ("value", self._conf.value_type or "")]
            return spark.createDataFrame([], ", ".join(f"{quote(name)} {type_ or 'binary'}" for name, type_ in columns))
        base = _base(self._tables, table, snapshot.txid)
        return delta_dataframe(
            spark, self._path, table.version, then, base_version=None if base is None else base.version
        )

    def stage(self, txid: int) -> bytes:
        """End a commit in a task: write what it put into a file that the table does not show yet; return what names it."""
        return self._backing.staging.staged_by(lambda: self.commit(txid))

    def publish(self, txid: Txid, staged: bytes) -> None:
        """Commit, in the driver, what a task staged for this attempt."""
        own = txid.sentinel
        if own is None:
            raise StateError(f"state {self._conf.prefix!r}: what a task stages is published in batches of a log")
        place, partition = self._conf.prefix, self._partition
        check_sentinel(place, partition, self._backing.read_sentinel(), txid, place)
        self._backing.publish(own._replace(place=place), txid, staged)

    def recorded(self, snapshot: Snapshot) -> None:
        """Publish the state after a batch that the log holds; called between two commits."""
        self._backing.publish_snapshot(snapshot)

    def wait_for_maintenance(self) -> None:
        """Return once no compaction is running, and what may be published is."""
        self._backing.wait_for_maintenance()


class _StateAt(Protocol[P]):
    def __call__(
        self,
        path: str | os.PathLike[str],
        txid: int | Snapshot,
        conf: StateConf,
        kind: StateType | str = StateType.OPAQUE,
        *args: P.args,
        **options: P.kwargs,
    ) -> DeltaStateAt: ...


def _with_options(declared: Callable[P, DeltaOptions]) -> Callable[[Any], _StateAt[P]]:
    """Let type checkers know the options of a call."""
    return lambda function: function


@_with_options(DeltaOptions)
def delta_state_at(
    path: str | os.PathLike[str],
    txid: int | Snapshot,
    conf: StateConf,
    kind: StateType | str = StateType.OPAQUE,
    **options: object,
) -> DeltaStateAt:
    """Read a Delta state as it was after batch `txid`, from any process.

    Batches go back as far as the log (`retained_versions`, `log_retention_hours`) and the data files (`vacuum_after_hours`)
    do. A batch that did not touch the state shows what the one before it left.

    Parameters
    ----------
    path, conf, kind, options
        As the state was made.
    txid
        The batch: its number, if it is before the last one that touched the state. Only the log knows whether that one, and
        later ones, were committed; a `Snapshot` of the log says so.

    Raises
    ------
    StateError
        The batch is not known to be committed, or is no longer retained; the message names the batches that are.
    """
    tables = StateTables(path, state_type(kind), conf, 0, DeltaOptions.of(None, options))
    return DeltaStateAt(tables, *_table_at(tables, txid))


def _base(tables: StateTables, changes: StateTable, txid: int) -> PublishedTable | None:
    """Return the base behind a version of the changes, as of a batch; None if there was no base yet."""
    published = tables.at_path(read_only=True)
    published.refresh()
    if published.base_under(changes) is None:
        return None
    version = published.version_of(txid, changes.version)
    old = None if version is None else tables.at_path(True, version)
    holds = None if old is None or old.refresh() == ABSENT else old.holds()
    trimmed = changes.transaction(TRIMMED)
    if trimmed is not None and trimmed > (-1 if holds is None else holds.seq):
        raise StateError(
            f"read Delta state {published.name} as of batch {txid}: the rows that had not changed for long are no longer "
            "retained. A state beyond memory keeps them for published_hours"
        )
    return None if holds is None else old


def _table_at(tables: StateTables, txid: int | Snapshot) -> tuple[StateTable, Snapshot]:
    """Return the table of the changes at a batch, and the batch with the winners that the newest commit knows."""
    table = tables.changes.another(read_only=True)
    number = txid.txid if isinstance(txid, Snapshot) else int(txid)
    what = f"read Delta state {table.name} as of batch {number}"
    if table.refresh() == ABSENT and not isinstance(txid, Snapshot):
        raise StateError(f"{what}: there is no table")
    if table.version <= 0 and isinstance(txid, Snapshot):
        return table, txid
    at, snapshot = _version_at(table, txid, what)
    old = None if at is None else table.another(read_only=True, at=at)
    if old is None or not old.readable():
        raise StateError(f"{what}: {_retention(table)}")
    return old, snapshot


def _version_at(table: StateTable, txid: int | Snapshot, what: str) -> tuple[int | None, Snapshot]:
    """Return the version that shows a batch, None if it is gone, and the batch with its winners."""
    # The sentinel names the last batch that touched the table, even if the history does not go back so far.
    shown = shown_commits(table.notes(), table.version)
    newest = next(shown, None)
    sentinel = None if newest else newest_sentinel(table)
    last = newest[1] if newest else sentinel and CommitNote.of_sentinel(sentinel)
    # A snapshot comes from the log, so its batch is committed, whether it touched this table or not.
    from_log = isinstance(txid, Snapshot)
    if last is None or not (last.txid or from_log):  # a sentinel of batch 0 is written before the first batch
        raise StateError(f"{what}: its log holds no commit of a batch")
    snapshot = txid if isinstance(txid, Snapshot) else last.snapshot(int(txid))
    if from_log and snapshot.txid >= last.txid:
        return table.version, snapshot
    if snapshot.txid > last.txid:
        raise StateError(
            f"{what}: the last batch that touched it is {last.txid}, and only the topology's "
            "log knows whether there were later ones. Read it through the topology, or give a Snapshot of its log"
        )
    shown = chain([newest] if newest else [], shown)
    return next((version for version, note in shown if note.txid <= snapshot.txid), None), snapshot


def _retention(table: StateTable) -> str:
    # Older files are deleted first, so the readable versions are the end of the history; ascending here.
    shown = shown_commits(table.notes(), table.version)
    versions = [(version, note.txid) for version, note in shown if note.txid][::-1]
    first = bisect_left(versions, True, key=lambda place: table.another(read_only=True, at=place[0]).readable())
    if first == len(versions):
        return "none of its batches can be read any more; its data files are missing"
    return (
        f"it is no longer retained; batches {versions[first][1]} to {versions[-1][1]} are. Raise "
        "retained_versions, log_retention_hours and vacuum_after_hours to keep more"
    )


class DeltaState(SpecKinds[str | os.PathLike[str]]):
    """States in Delta tables, as `StateSpec`s for `persistent_aggregate` and its like: opaque, or by one of the methods.

    Each takes the path of the table; `options` are the fields of `DeltaOptions`.
    """

    opaque, transactional, non_transactional = kinds(DeltaOptions)

    @called_as(opaque)
    def __new__(cls, target: str | os.PathLike[str], /) -> Any: ...

    @classmethod
    def of_kind(cls, kind: StateType, target: str | os.PathLike[str] | None, options: dict[str, Any]) -> StateSpec:
        path = options.pop("path", None) if target is None else target
        if not isinstance(path, (str, os.PathLike)) or not str(path):
            raise ConfigError(f"path={path!r} of a Delta state: give the folder or the URL of its table")
        kept = {name: options[name] for name in KEEPING if name in options}
        factory = _DeltaFactory(kind, os.fspath(path), DeltaOptions.of(None, options), kept)
        local = local_path(factory.path)  # one folder has many names: links, URLs, `..`
        place = factory.path.rstrip("/") if local is None else str(local.resolve())
        return StateSpec(factory, required_num_partitions=1, place=place)


@dataclass(frozen=True, repr=False)
class _DeltaFactory(Redacted):
    kind: StateType
    path: str
    options: DeltaOptions
    kept: Mapping[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> StoreFacts:
        """A table may be in a folder or in an object store. A batch is one transaction of it, which the driver commits."""
        hours, until = self.options.vacuum_after_hours, "for as long as they are kept"
        if hours is not None:
            until = f"until they are deleted, {hours} hours after a compaction"
        remains = f"in files of earlier versions {until}; in the published table until the next batch is published"
        return StoreFacts(
            on_one_machine=local_path(self.path) is not None, stages_commits=True, expires_after_s=self.options.ttl_s,
            remains=remains, is_map=True, snapshot_key=self.options.snapshot_key, kept=self.kept, with_kept=self._with_kept,
        )  # fmt: skip

    def _with_kept(self, kept: Mapping[str, Any]) -> _DeltaFactory:
        kept = {**{name: value for name, value in kept.items() if name in KEEPING}, **self.kept}
        return replace(self, options=replace(self.options, **kept), kept=kept)

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> DeltaMapState:
        if num_partitions != 1 and not conf.read_only:  # a reader finds the note of a move to a store with several
            raise ConfigError(
                f"open Delta state {conf.prefix!r} with {num_partitions} partitions: a table is one partition"
            )
        return DeltaMapState(self.path, self.kind, conf, partition_index, self.options)
