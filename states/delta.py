"""A state in a Delta table: one atomic transaction per batch, durable on a local disk, readable by Spark.

What is stored
    An append-only change table, one per state partition (`path`, or `path/part-00001` … where a state has several). A
    commit appends one file with a row for each key that it wrote: the key columns, the columns of the state's kind
    (`txid, attempt, prev, curr`; `txid, value`; `value`), `_seq`, the number of the Delta version that wrote the row,
    XX of one key that with the highest `_seq` counts. Key and value have their own Spark
    types where the topology declares them, else they are binary columns in the codec of `trident.state.codec`.

The sentinel
    is a row of its own, with `_sentinel` set and neither key nor value, in the same file as the commit's rows. It is
    part of the table's content, so neither the clean-up of the log, nor a compaction, here or by Spark's OPTIMIZE, nor
    a copy of the table can lose it. The commit also carries `txnAppId` = `trident/<topology>/<state>/<partition>` and
    `txnVersion` = `Sentinel.version` (made of txid and attempt), for other tools to see.

Fencing
    A commit costs one Delta transaction. `move_sentinel` compares the claim with the newest sentinel and pins that
    version; puts are collected in memory; `end` commits rows and sentinel as the very next version, tried once. Delta
    gives each version to one writer only, so if anyone has committed since, nothing is written and this writer gets
    `FencedError` (a higher attempt was there) or a retryable `BackendError` (anything else: an older attempt that woke
    up, a compaction, another program). An older writer that commits between the `begin` and the `end` of its successor
    thus makes the successor try once more, and then its rows are seen, with the attempt that lost, and the rule of the
    value undoes them. There is nothing that a paused writer could still do afterwards.

Reads
    A writer keeps all latest rows in memory, valid for one version: if another version is found at `begin`, they are
    read again. A `read_only` instance keeps no index: it moves to the newest version and reads the rows of the keys
    asked for. Each version is a whole number of batches, so no read sees half of one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from states._delta_layout import SENTINEL_COLUMN, SEQ_COLUMN, Layout, RawKey, RawValue
from states._delta_options import DeltaOptions
from states._delta_spark import delta_dataframe, delta_session_conf
from states._delta_table import ABSENT, ChangeTable, VersionMoved
from trident.errors import BackendError, FencedError, StateError, UnsupportedOperation
from trident.state.forwarding import offer
from trident.state.interfaces import Key, StateConf, StateSpec, StateType
from trident.state.maps import map_for
from trident.state.snapshottable import SnapshottableMap
from trident.state.txid import Sentinel, Txid

__all__ = ["DeltaBackingMap", "DeltaOptions", "DeltaState", "delta_dataframe", "delta_session_conf"]

_LOGGER = logging.getLogger(__name__)
_COMPACTIONS_PER_VACUUM = 8


class DeltaState:
    """States in Delta tables; one method for each kind, as `StateSpec`s for `persistent_aggregate` and its like.

    Examples
    --------
    >>> spec = DeltaState.opaque("state/word-count", compact_after_commits=32)
    >>> spec.required_num_partitions
    1
    """

    @staticmethod
    def opaque(path: str | os.PathLike[str], **options: Any) -> StateSpec:
        """Exact with transactional and opaque spouts; `options` are the fields of `DeltaOptions`."""
        return _spec(StateType.OPAQUE, path, options)

    @staticmethod
    def transactional(path: str | os.PathLike[str], **options: Any) -> StateSpec:
        """Exact with transactional spouts; `options` are the fields of `DeltaOptions`."""
        return _spec(StateType.TRANSACTIONAL, path, options)

    @staticmethod
    def non_transactional(path: str | os.PathLike[str], **options: Any) -> StateSpec:
        """Bare values, where a replay counts twice; `options` are the fields of `DeltaOptions`."""
        return _spec(StateType.NON_TRANSACTIONAL, path, options)


@dataclass(frozen=True)
class _DeltaFactory:
    kind: StateType
    path: str
    options: DeltaOptions

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> SnapshottableMap:
        """Return the map of the kind over the partition's table; nothing is created before the first commit."""
        path = self.path if num_partitions == 1 else f"{self.path.rstrip('/')}/part-{partition_index:05}"
        backing = DeltaBackingMap(path, self.kind, conf, partition_index, self.options)
        map_state = map_for(self.kind, backing, conf.state, partition_index)
        offer(map_state, backing, ("get_tuples",))
        return SnapshottableMap(map_state, (self.options.snapshot_key,))


def _spec(kind: StateType, path: str | os.PathLike[str], options: dict[str, Any]) -> StateSpec:
    return StateSpec(_DeltaFactory(kind, os.fspath(path), DeltaOptions(**options)), required_num_partitions=1)


class DeltaBackingMap:
    """The key-value store in one Delta table: a backing map that keeps its own sentinel. Used by one thread at a time.

    Within `begin` … `end` puts are collected and become one Delta version at `end`; outside of them each `multi_put`
    is a version of its own.

    Parameters
    ----------
    path
        Directory or object store URI of the table.
    kind
        Decides the value columns and what `multi_get` returns: `OpaqueValue`, `TransactionalValue` or bare values.
    conf
        Types of keys and value; `read_only`.
    partition
        Number of the state partition.
    options
        See `DeltaOptions`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: StateType,
        conf: StateConf | None = None,
        partition: int = 0,
        options: DeltaOptions | None = None,
    ) -> None:
        conf = StateConf() if conf is None else conf
        self._options = DeltaOptions() if options is None else options
        self._layout = Layout(kind, conf)
        self._table = ChangeTable(os.fspath(path), self._layout.schema, self._layout.description, self._options)
        self._what = f"state {conf.state!r} partition {partition} in {os.fspath(path)}"
        self._app = f"trident/{conf.prefix}/{partition}"
        self._read_only = conf.read_only
        # The index: the latest rows and the sentinel of version `_loaded`; None if they are of no version.
        self._index: dict[RawKey, RawValue] = {}
        self._sentinel: Sentinel | None = None
        self._seq = 0
        self._loaded: int | None = None
        self._rows = self._files = self._merged_files = self._compactions = 0
        # The commit: its claim, the version it is based on (None outside of a commit), and its puts.
        self._claim: Sentinel | None = None
        self._based_on: int | None = None
        self._puts: dict[RawKey, RawValue] = {}
        # The answers of a read-only instance for the version last seen.
        self._answers: dict[RawKey, RawValue | None] = {}

    # ---- IBackingMap ----------------------------------------------------------------------------------------------

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Read many keys: in a commit as of the version it is based on and with its own puts, else the newest."""
        raw = self._layout.pack_keys(keys)
        if self._read_only:
            return self._layout.unpack_values(self._look_up(raw))
        if self._based_on is None:
            self._load()
        puts, index = self._puts, self._index
        return self._layout.unpack_values(puts[key] if key in puts else index.get(key) for key in raw)

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write many keys: in a commit collected until `end`, else made durable at once as a version of its own."""
        self._refuse_read_only("write")
        puts = dict(zip(self._layout.pack_keys(keys), self._layout.pack_values(values), strict=True))
        if self._based_on is not None:
            self._puts.update(puts)
        elif puts:
            if self._claim is None:
                self._table.create()
                self._load()
            self._commit(puts, self._claim)

    # ---- BackingMapLifecycle --------------------------------------------------------------------------------------

    def begin(self, txid: Txid) -> None:
        """Start a commit on the version that `move_sentinel` compared the sentinel in, or on the newest."""
        self._refuse_read_only("begin a commit")
        if self._claim is None or self._claim != txid.sentinel:
            self._drop_commit()
            self._table.create()
            self._load()
        self._puts = {}
        self._based_on = self._loaded

    def end(self, txid: Txid) -> None:
        """Commit the puts and the sentinel as one Delta version.

        Raises
        ------
        FencedError
            A higher attempt has committed since `begin`. Nothing was written.
        BackendError
            Something else has committed since `begin` (nothing was written), or the store refused; the batch may be
            replayed with a higher attempt.
        """
        if self._based_on is None:
            raise StateError(f"end of batch {int(txid)} in {self._what} without its begin")
        puts, claim = self._puts, self._claim
        if puts or claim is not None:
            try:
                self._commit(puts, claim)
            finally:
                self._drop_commit()
            self._compact_if_due()
        self._drop_commit()

    # ---- FencedMap, Resettable ------------------------------------------------------------------------------------

    def read_sentinel(self) -> Sentinel | None:
        """Return the sentinel of the newest version, None if there is none; voids an unfinished commit."""
        if self._read_only:
            if self._table.refresh() == ABSENT:
                return None
            marks = self._table.scan(~pc.field(SENTINEL_COLUMN).is_null(), [SENTINEL_COLUMN, SEQ_COLUMN]).to_pylist()
            latest = max(marks, key=lambda row: int(row[SEQ_COLUMN]), default=None)
            return None if latest is None else Sentinel(**latest[SENTINEL_COLUMN])
        self._drop_commit()
        self._load()
        return self._sentinel

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Claim the partition for the commit that `begin` starts next; `force` lays the sentinel at once.

        The claim is compared with the sentinel of the newest version; the commit is based on this version, and its
        `end` stores the claim in the version after it or fails.
        """
        self._refuse_read_only("move the sentinel")
        self._drop_commit()
        self._table.create()
        self._load()
        if force:
            self._commit({}, sentinel)
            return
        found = self._sentinel
        if found is not None and _ahead(found, sentinel):
            raise FencedError(self._what, str(sentinel), str(found))
        self._claim = sentinel

    def reset(self) -> None:
        """Empty the table, sentinel included, in one transaction."""
        self._refuse_read_only("empty the table")
        self._drop_commit()
        if self._table.refresh() != ABSENT:
            self._loaded = None
            self._write(self._layout.table([], [], 0, None), "overwrite", None)
            self._load()

    # ---- the rest -------------------------------------------------------------------------------------------------

    def get_tuples(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the newest version: the parts of each key, then its latest value."""
        if self._read_only:
            self._table.refresh()
            values: Mapping[RawKey, RawValue] = self._layout.rows(self._table.scan()).values
        else:
            if self._based_on is None:
                self._load()
            values = self._index | self._puts
        for raw, value in values.items():
            yield (*self._layout.unpack_key(raw), self._layout.latest(value))

    def close(self) -> None:
        """Forget the index and the puts of an unfinished commit."""
        self._drop_commit()
        self._forget()

    def _commit(self, puts: Mapping[RawKey, RawValue], sentinel: Sentinel | None) -> None:
        seq = self._next_seq()
        rows = self._layout.table(list(puts), list(puts.values()), seq, sentinel)
        self._write(rows, "append", sentinel)
        # After the store, never before it: a failed commit must not look written.
        self._index.update(puts)
        self._sentinel = sentinel or self._sentinel
        self._seq, self._rows, self._files = seq, self._rows + rows.num_rows, self._files + 1
        self._loaded = self._table.version

    def _next_seq(self) -> int:
        # The version alone would do, but for rows that were copied from a table of higher versions, or added by hand.
        return max(self._seq, self._table.version) + 1

    def _write(self, rows: Any, mode: Any, sentinel: Sentinel | None) -> None:
        note = {} if sentinel is None else {"trident.sentinel": str(sentinel)}
        app = None if sentinel is None else (self._app, sentinel.version)
        try:
            self._table.commit(rows, mode, app, note)
        except VersionMoved as moved:
            self._forget()
            raise self._overtaken(sentinel) from moved
        except Exception:
            self._forget()
            raise

    def _overtaken(self, own: Sentinel | None) -> Exception:
        found = self.read_sentinel()
        if found is not None and own is not None and _ahead(found, own):
            return FencedError(self._what, str(own), str(found))
        writer = "another writer" if own is None else f"the writer of {own}"
        return BackendError(
            f"commit of {writer} to {self._what} was refused: version {self._table.version} was committed meanwhile, "
            f"its sentinel is {found}. Nothing was written; the batch may be replayed"
        )

    def _load(self) -> None:
        if self._table.refresh() == self._loaded:
            return
        self._loaded = None
        rows = self._layout.rows(self._table.scan())
        self._index, self._sentinel, self._rows, self._seq = rows.values, rows.sentinel, rows.total, rows.seq
        self._files, self._merged_files, self._loaded = self._table.files, 0, self._table.version

    def _look_up(self, raw: list[RawKey]) -> list[RawValue | None]:
        before = self._table.version
        if self._table.refresh() != before:
            self._answers = {}
        missing = list(dict.fromkeys(key for key in raw if key not in self._answers))
        if missing and self._table.version != ABSENT:
            at = self._table.version
            found = self._layout.rows(self._table.scan(self._layout.key_filter(missing))).values
            if self._table.version != at:  # the files of that version are gone: all answers must be of the newer one
                self._answers = {}
                return self._look_up(raw)
            self._answers.update((key, found.get(key)) for key in missing)
        return [self._answers.get(key) for key in raw]

    def _compact_if_due(self) -> None:
        if self._files - self._merged_files < self._options.compact_after_commits:
            return
        # The batch is committed: whatever fails here is tried again after a later commit.
        try:
            self._compact()
        except (VersionMoved, StateError) as error:
            self._forget()
            _LOGGER.warning("compaction of %s was put off: %s", self._what, error)

    def _compact(self) -> None:
        if self._rows > 2 * len(self._index):
            seq = self._next_seq()
            rows = self._layout.table(list(self._index), list(self._index.values()), seq, self._sentinel)
            app = None if self._sentinel is None else (self._app, self._sentinel.version)
            self._table.commit(rows, "overwrite", app, {"trident.compaction": "rows"})
            self._rows, self._seq = rows.num_rows, seq
        else:
            self._table.merge_files({"trident.compaction": "files"})
        self._compactions += 1
        if self._compactions % _COMPACTIONS_PER_VACUUM == 0:
            self._table.vacuum()
        self._files = self._merged_files = self._table.files
        self._loaded = self._table.version

    def _drop_commit(self) -> None:
        self._claim, self._based_on, self._puts = None, None, {}

    def _forget(self) -> None:
        self._index, self._sentinel, self._loaded, self._answers = {}, None, None, {}
        self._table.forget()

    def _refuse_read_only(self, doing: str) -> None:
        if self._read_only:
            raise UnsupportedOperation(f"cannot {doing}: {self._what} was opened to be read only")


def _ahead(found: Sentinel, own: Sentinel) -> bool:
    # A foreign incarnation counts as ahead: the check before has let it pass if it was expected.
    return found.incarnation != own.incarnation or (found.txid, found.attempt) > (own.txid, own.attempt)
