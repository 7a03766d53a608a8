"""The two tables of a Delta state, and what is fixed of it: columns, options, names.

The table at the path is what people read: a Delta version for each state that it shows. While the state fits into memory
nothing depends on its rows, which are made from the changes. Beyond memory they are the *base*, in buckets: it holds all
changes up to one `_seq`, the version of a Delta transaction of it; those up to there need not be anywhere else.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from states.delta.beyond_memory.bucketed_base import ATTEMPT, BucketedBase, BucketFile
from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.sorted_rows import SortedRows
from states.delta.data_files import add_action
from states.delta.faults import AFRESH, VersionMoved
from states.delta.fence import newest_sentinel
from states.delta.layout import ATTEMPT_COLUMN, HASH_COLUMN, SENTINEL_COLUMN, DeltaLayout, free_names
from states.delta.options import AT_PATH, CHANGES, DeltaOptions
from states.delta.state_table import ABSENT, StateTable
from states.delta.table_opening import TableRole
from trident.errors import StateError, TopologyError, TridentError
from trident.fields import struct_fields, widens
from trident.redaction import redacted
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Sentinel, Snapshot
from trident.state.values import stand_before

_LOGGER = logging.getLogger(__name__)

TRIMMED = "trident/trimmed"
"""The transaction of the change table whose version is the highest `_seq` that it need not hold."""

_SHOWN, _BATCH = "trident.shown", "trident.batch"
_LOOKED_AT = 20  # versions; other programs may have added some of the last ones
_MERGED, _MERGED_BATCH = "trident/merged", "trident/merged-batch"
_FILES = "trident/files"  # its version says whether the files are still the ones of our last commit
NOTHING = -1  # the `_seq` of a table that is empty
_RUNS_PER_CHECKPOINT = 32


class Shown(NamedTuple):
    """What a version of the published table shows, or is to show."""

    snapshot: Snapshot  # the last batch that was committed then; who won, if it is still to be shown
    sentinel: Sentinel | None  # of the last commit that touched the state; None without a log
    version: int  # of the change table

    @property
    def txid(self) -> int:
        return self.snapshot.txid

    def metadata(self, name: str) -> dict[str, str]:
        """Return what the Delta commit notes; `userMetadata` is what Spark's DESCRIBE HISTORY shows."""
        batch = "the newest writes" if self.sentinel is None else f"batch {self.txid}"
        own = None if self.sentinel is None else self.sentinel[:3]
        note = {_SHOWN: json.dumps([self.txid, own, self.version]), "userMetadata": f"{batch} of {name}"}
        return note if self.sentinel is None else {**note, _BATCH: str(self.txid)}

    @staticmethod
    def of(note: str) -> Shown:
        txid, own, version = json.loads(note)
        return Shown(Snapshot(txid), None if own is None else Sentinel(*own), version)

    def is_same(self, other: Shown) -> bool:
        if self.sentinel is None or other.sentinel is None:
            return self.sentinel is other.sentinel and self.version == other.version
        return self.sentinel == other.sentinel

    def is_later(self, other: Shown) -> bool:
        """Tell whether this comes after the other, in the same log."""
        own, its = self.sentinel, other.sentinel
        if own is None or its is None:
            return False
        return own.incarnation == its.incarnation and own.version > its.version


class Holds(NamedTuple):
    """What a base holds: all changes up to a `_seq`, as of a committed batch."""

    seq: int
    batch: int


class PublishedTable(StateTable):
    """The table at the path of a state, at a version or the newest."""

    def __init__(self, tables: StateTables, read_only: bool, at: int | None) -> None:
        hours, role = tables.options.published_hours, TableRole(AT_PATH, read_only, at)
        options = replace(tables.options, vacuum_after_hours=hours, log_retention_hours=hours)
        super().__init__(tables.path, tables.rows.schema, tables.layout.description, options, role)
        self._of_state, self._what, self._runs = tables.name, tables.what, 0

    def read_shown(self) -> Shown | None:
        """Return what the version last seen shows; None if that is not known, or the columns are others."""
        if self.version == ABSENT or not self.has_columns():
            return None
        notes = (entry[_SHOWN] for entry in self.notes(_LOOKED_AT) if _SHOWN in entry)
        return next(map(Shown.of, notes), None)

    def version_of(self, txid: int, version: int) -> int | None:
        """Return the last version that shows no later batch, and no later version of the changes; None if there is none."""
        for entry in self.notes():
            shown = Shown.of(entry[_SHOWN]) if _SHOWN in entry else None
            if shown is not None and shown.txid <= txid and shown.version <= version:
                return int(entry["version"])
        return None

    def show(self, rows: pa.Table, shown: Shown) -> None:
        """Replace all rows, as the version after the one last seen; raise `VersionMoved` if that is taken."""
        file = self.data_file(rows, (0, 0))
        self.append([file], "overwrite", self._app(shown), shown.metadata(self._of_state))

    def holds(self) -> Holds | None:
        """Return what the version last seen holds; None if it is only derived from the changes."""
        if self.version == ABSENT:
            return None
        seq = self.transaction(_MERGED)
        return None if seq is None or seq == NOTHING else Holds(seq, self.transaction(_MERGED_BATCH) or 0)

    def base_under(self, changes: StateTable) -> Holds | None:
        """Return what the version last seen, which was seen after the changes, holds of the state; None: it is no base of it.

        Without a record of a batch in the changes the state is empty, and what is at the path was left by an earlier one.
        Raises `StateError`: base and changes together do not have all rows.
        """
        holds, trimmed = self.holds(), changes.transaction(TRIMMED)
        held, left = NOTHING if holds is None else holds.seq, NOTHING if trimmed is None else trimmed
        if held == left == NOTHING or newest_sentinel(changes) is None:
            return None
        is_newer = held > last_seq(changes)
        if is_newer:  # it may have been merged meanwhile
            changes = changes.another(read_only=True)
            is_newer = changes.refresh() == ABSENT or held > last_seq(changes)
        if is_newer or left > held:
            raise StateError(
                f"{self._what}: the table at its path and that of its changes, in _trident, are not of one moment, and rows "
                "are missing: one of them was set back, removed or exchanged. Restore both from one copy of the whole folder. "
                f"If there is none, {AFRESH}"
            )
        return holds

    def base(self, files: Iterable[BucketFile] | None = None) -> BucketedBase:
        """Return the rows of the version last seen, or of some files; `StateError`: another program has changed the table."""
        files, schema = self._own_files() if files is None else files, self.schema
        return BucketedBase(list(files), schema.append(ATTEMPT), schema.names[:-1], self.filesystem(), self.name)

    def index(self, layout: DeltaLayout, holds: Holds | None, changes: Iterable[pa.Table] = ()) -> LargeIndex | None:
        """Return the base of the version last seen, which `holds` so much, under later `changes`, in the order of `_seq`."""
        if holds is None:
            return None
        index = LargeIndex(layout, self.base(), holds.batch)
        for rows in changes:
            index.load(rows, holds.seq)
        return index

    def move(self, before: BucketedBase | None, after: BucketedBase, seq: int, shown: Shown) -> None:
        """Replace the files of a base by those of another, with all changes up to `seq`, as the next version."""
        from deltalake.transaction import RemoveAction

        gone, new = set[BucketFile]() if before is None else {*before.files}, {*after.files}
        mode: Literal["append", "overwrite"] = "append"
        if before is None or not self.has_columns():
            assert not gone & new, "a version has files of its own columns only"
            gone, mode = set(), "overwrite"
        for file in new - gone:
            self.sync_data(file.path)
        now = int(time.time() * 1000)
        actions: list[Any] = [RemoveAction(file.path, True, now, file.size, {}) for file in gone - new]
        more = (_FILES, _fingerprint(after.files)), (_MERGED_BATCH, shown.txid), (_MERGED, seq)
        actions += [add_action(file.path, file.size, file.rows, True) for file in new - gone]
        self.append(actions, mode, self._app(shown), shown.metadata(self._of_state), *more)

    def clear(self) -> None:
        """Remove all rows, because the state was emptied; the changes are the state from now on."""
        self.move(None, self.base([]), NOTHING, Shown(Snapshot(0), None, ABSENT))

    def keep_small(self) -> None:
        """Write a checkpoint and delete old files, if that is due after a version; nothing depends on it."""
        self._runs += 1
        if self._runs % _RUNS_PER_CHECKPOINT == 0:
            try:
                self.checkpoint()
                self.vacuum()
            except (VersionMoved, TridentError, OSError) as error:
                _LOGGER.warning("the clean-up of the table of %s was postponed: %s", self._of_state, error)

    def _app(self, shown: Shown) -> tuple[str, int]:
        return f"trident/{self._of_state}/shown", shown.txid

    def _own_files(self) -> list[BucketFile]:
        files = [BucketFile.of(file.path, file.size, file.rows) for file in self.files()]
        own = [file for file in files if file is not None]
        if len(own) < len(files) or self.transaction(_FILES) != _fingerprint(own):
            raise StateError(
                f"Delta table {self.name} was changed by another program (version {self.version} or one before), "
                "and the state depends on it, because it is larger than memory. Bring back the topology's last version "
                "of it with Delta's RESTORE: the last one in the table's history that names a batch. If its files were deleted "
                f"(VACUUM), {AFRESH}"
            )
        return own


def last_seq(changes: StateTable) -> int:
    """Return the highest `_seq` of the version last seen."""
    return max((file.last for file in changes.files()), default=NOTHING)


def is_newest(changes: StateTable, shown: Shown) -> bool:
    """Whether the changes are still this writer's, or a later writer's that goes on from there."""
    if shown.sentinel is None:
        return True
    changes = changes.another(read_only=True)
    if changes.refresh() == ABSENT:
        return False
    found = newest_sentinel(changes)
    own = shown.sentinel
    return found is not None and found.incarnation == own.incarnation and found.version >= own.version


def _fingerprint(files: Iterable[BucketFile]) -> int:
    names = "\n".join(sorted(file.path for file in files))
    return int.from_bytes(blake2b(names.encode(), digest_size=7).digest())


class StateTables:
    """One state in Delta tables; parameters as of `DeltaBackingMap`. `changes` is for the thread that has this."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: StateType,
        conf: StateConf | None = None,
        partition: int = 0,
        options: DeltaOptions | None = None,
    ) -> None:
        conf = StateConf() if conf is None else conf
        refuse_reused_names(conf, redacted(os.fspath(path)))
        self.options = DeltaOptions() if options is None else options
        self.layout = DeltaLayout(kind, conf)
        self.rows = PublishedRows(self.layout, conf)
        self.evolves, self.types = conf.evolves, conf.migrate
        self.name, self.app = conf.prefix, f"trident/{conf.prefix}/{partition}"
        self.path = os.fspath(path)
        self.what = f"state {conf.state!r} partition {partition} in {redacted(self.path)}"
        role = TableRole(CHANGES, conf.read_only, evolves=conf.evolves)
        self.changes = StateTable(self.path, self.layout.schema, self.layout.description, self.options, role)

    def at_path(self, read_only: bool = False, at: int | None = None) -> PublishedTable:
        """Return the table at the path, not opened yet."""
        return PublishedTable(self, read_only, at)


def refuse_reused_names(conf: StateConf, path: str) -> None:
    """Raise `TopologyError` if a field of the value has a name whose column has values that are none of the field's type."""
    own = dict(struct_fields(conf.value_type))
    for _, former, names in () if conf.migrate is None else conf.migrate.types:
        for name, type_ in () if names is None else struct_fields(former):
            if not widens(type_, own.get(name, type_)):
                raise TopologyError(
                    f"open Delta table {path}: {name!r} of state {conf.called!r} is of type {own[name]}, and what had "
                    f"this name before is of type {type_}, which does not fit into a column of this type. Nothing was "
                    "written. Give it another name"
                )


class PublishedRows:
    """The columns of the published table, and how rows of the change table become its rows."""

    def __init__(self, layout: DeltaLayout, conf: StateConf) -> None:
        self._layout = layout
        names, own = [name for name, _ in conf.key_fields], (HASH_COLUMN, ATTEMPT_COLUMN)
        self.keys = free_names(names, own) if layout.typed_keys else layout.key_columns
        self.value, taken = conf.value_field or "value", {each.lower() for each in (*self.keys, *own)}
        while self.value.lower() in taken:  # column names of Delta are equal if they differ in case only
            self.value += "_"
        types = [*layout.key_types, layout.value_types[-1]]
        self.schema = pa.schema(list(map(pa.field, [*self.keys, self.value], types)))

    def of(self, rows: pa.Table, snapshot: Snapshot) -> pa.Table:
        """Return the state after a committed batch, given the latest row of each key then or one batch later."""
        rows = self._published_rows(rows.filter(pc.is_null(rows[SENTINEL_COLUMN])).combine_chunks(), snapshot)
        return rows.filter(pc.is_valid(rows[self.value])).select(self.schema.names)

    def in_base(self, changes: SortedRows, snapshot: Snapshot) -> SortedRows:
        """Return changes as a base has them: key, value as of a committed batch, and who wrote it."""
        return changes.with_rows(self._published_rows(changes.rows, snapshot), self.keys, self.value)

    def _published_rows(self, rows: pa.Table, snapshot: Snapshot) -> pa.Table:
        is_opaque = self._layout.kind is StateType.OPAQUE
        attempts = rows["attempt"] if is_opaque else pa.nulls(rows.num_rows, ATTEMPT.type)
        columns = [*(rows[name] for name in self._layout.key_columns), self._values(rows, snapshot), attempts]
        return pa.table(columns, schema=self.schema.append(ATTEMPT))

    def _values(self, rows: pa.Table, snapshot: Snapshot) -> pa.ChunkedArray:
        """Return the value of each row as of a committed batch: the rule of `trident.state.values.OpaqueValue.at`."""
        if self._layout.kind is not StateType.OPAQUE or not rows.num_rows:
            return rows[self._layout.value_columns[-1]]
        txids, attempts = (rows[name].fill_null(0).to_numpy() for name in ("txid", "attempt"))
        stands = stand_before(txids, attempts, snapshot.txid + 1, snapshot.winners)
        return pc.if_else(pa.array(stands), rows["curr"], rows["prev"])
