"""The objects of a Delta state that users have: the map, the state as of an earlier batch, and the table as a DataFrame."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from states.delta.fence import find_batch, newest_sentinel, shown_batches
from states.delta.index import IndexedValues
from states.delta.layout import RawValue, in_order
from states.delta.map import DeltaBackingMap
from states.delta.options import DeltaOptions
from states.delta.spark_table import delta_dataframe
from states.delta.state_table import ABSENT, StateTable
from states.delta.state_tables import TRIMMED, StateTables
from trident.errors import EnvironmentProblem, StateError
from trident.state.interfaces import Key, State, StateConf, StateType, state_type
from trident.state.map_state import SnapshottableMap
from trident.state.maps import map_for
from trident.state.opaque_map import migrated
from trident.state.sentinel import check_sentinel
from trident.state.txid import Snapshot, Txid
from trident.state.values import OpaqueValue, TransactionalValue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class DeltaStateAt(State):
    """A Delta state as it was after a batch; read only.

    Attributes
    ----------
    txid
        The batch.
    version
        The version of the Delta table that is read.
    """

    def __init__(self, tables: StateTables, table: StateTable, snapshot: Snapshot) -> None:
        self.txid, self.version = snapshot.txid, table.version
        self._layout, self._snapshot, key = tables.layout, snapshot, tables.options.snapshot_key
        self._snapshot_key = key if isinstance(key, tuple) else (key,)
        base, changes = _base_version(tables, table, snapshot.txid), in_order(table.scan())
        large = None if base is None else tables.at_path(True, base)
        if large is not None:
            large.refresh()
        index = None if large is None else large.index(tables.layout, [changes])
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
            opaque: Sequence[OpaqueValue | None] = migrated(values, self._snapshot.winners, self._types)
            found = [None if one is None else one.at(self._snapshot) for one in opaque]
            return found if self._types is None else self._types.declared(found)
        return [value.value if isinstance(value, TransactionalValue) else value for value in values]


class DeltaMapState(SnapshottableMap):
    """One partition of a Delta state.

    Parameters
    ----------
    path, kind, conf, partition, options
        As for `DeltaBackingMap`.
    """

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
        return _state_at(self._tables, txid)

    def to_dataframe(self, spark: SparkSession, snapshot: Snapshot | None = None) -> DataFrame:
        """Return the table as a DataFrame of its key columns and `value`; see `delta_dataframe`.

        With a snapshot of the log it is as of that batch, whatever an attempt in flight has written.

        Raises `EnvironmentProblem`: former declarations have written a part, of which Spark sees the columns that they had.
        """
        if self._conf.evolves:
            raise EnvironmentProblem("values of former declarations are read by this process")
        if snapshot is None:
            return delta_dataframe(spark, self._path)
        table, then = _found(self._tables, snapshot)
        if then is None:  # nothing was ever committed
            columns = [*self._conf.key_fields, ("value", self._conf.value_type or "")]
            return spark.createDataFrame([], ", ".join(f"`{name}` {type_ or 'binary'}" for name, type_ in columns))
        base_version = _base_version(self._tables, table, snapshot.txid)
        return delta_dataframe(spark, self._path, table.version, then, base_version=base_version)

    def stage(self, txid: int) -> bytes:
        """End a commit in a task: write what it put into a file that the table does not show yet; return what names it."""
        return self._backing.staging.staged_by(lambda: self.commit(txid))

    def publish(self, txid: Txid, staged: bytes) -> None:
        own = txid.sentinel
        if own is None:
            raise StateError(f"state {self._conf.prefix!r}: what a task stages is published in batches of a log")
        place, partition = self._conf.prefix, self._partition
        check_sentinel(place, partition, self._backing.read_sentinel(), txid, place)
        self._backing.publish(own._replace(place=place), txid, staged)

    def recorded(self, snapshot: Snapshot) -> None:
        """Publish the state after a batch that the log holds; called between two commits."""
        self._backing.recorded(snapshot)

    def wait_for_maintenance(self) -> None:
        """Return once no compaction is running, and what may be published is."""
        self._backing.wait_for_maintenance()


def delta_state_at(
    path: str | os.PathLike[str],
    txid: int | Snapshot,
    conf: StateConf,
    kind: StateType | str = StateType.OPAQUE,
    **options: Any,
) -> DeltaStateAt:
    """Read a Delta state as it was after batch `txid`, from any process.

    Batches go back as far as the log (`retained_versions`, `log_retention_hours`) and the data files (`vacuum_after_hours`)
    do; a compaction in between changes nothing. A batch that did not touch the state shows what the one before it left.

    Parameters
    ----------
    path, conf, kind, options
        As the state was made.
    txid
        The batch. Its number is enough for any batch before the last one that touched the state, because the commits note
        the earlier winners. Only the log knows whether that last one, and later ones, were committed; a `Snapshot` of
        the log says so.

    Raises
    ------
    StateError
        The batch is not known to be committed, or is no longer retained; the message names the batches that are.
    """
    return _state_at(StateTables(path, state_type(kind), conf, 0, DeltaOptions(**options)), txid)


def _state_at(tables: StateTables, txid: int | Snapshot) -> DeltaStateAt:
    table, then = _found(tables, txid)
    snapshot = then or txid
    assert isinstance(snapshot, Snapshot), "a number alone is looked for in the table"
    return DeltaStateAt(tables, table, snapshot)


def _base_version(tables: StateTables, changes: StateTable, txid: int) -> int | None:
    """Return the version of the base behind a version of the changes, as of a batch; None if there was no base yet.

    Raises `StateError`: the base of that time is no longer there.
    """
    published = tables.at_path(read_only=True)
    published.refresh()
    if published.holds() is None:
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
    return None if holds is None else version


def _found(tables: StateTables, txid: int | Snapshot) -> tuple[StateTable, Snapshot | None]:
    """Return the table of the changes at a batch of its history; no snapshot: nothing was ever committed."""
    table = tables.changes.another(read_only=True)
    number = txid.txid if isinstance(txid, Snapshot) else int(txid)
    what = f"read Delta state {table.name} as of batch {number}"
    if table.refresh() == ABSENT and not isinstance(txid, Snapshot):
        raise StateError(f"{what}: there is no table")
    if table.version <= 0 and isinstance(txid, Snapshot):  # nothing was ever committed, so no batch touched it
        return table, None
    entries = table.notes()
    place = find_batch(entries, table.version, partial(newest_sentinel, table), txid, what)
    old = None if place is None else table.another(read_only=True, at=place[0])
    if place is None or old is None or not old.readable():
        raise StateError(f"{what}: {_retained(table, shown_batches(entries, table.version))}")
    return old, place[1]


def _retained(table: StateTable, versions: list[tuple[int, int]]) -> str:
    # Older files are deleted first, so the readable versions are the end of the history; ascending here.
    versions = versions[::-1]

    def is_readable(place: tuple[int, int]) -> bool:
        return table.another(read_only=True, at=place[0]).readable()

    first = bisect_left(versions, True, key=is_readable)
    if first == len(versions):
        return "none of its batches can be read any more; its data files are missing"
    return (
        f"it is no longer retained; batches {versions[first][1]} to {versions[-1][1]} are. Raise "
        "retained_versions, log_retention_hours and vacuum_after_hours to keep more"
    )
