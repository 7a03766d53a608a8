"""A state in a Delta table: one atomic transaction per batch, durable on a local disk, readable by Spark.

What is stored
    At the path, a table that people read: one row per key, published beside the commits (`states/delta/publishing.py`), and
    never read back. The state itself is an append-only change table in a folder inside. A state has one partition. A commit
    appends one file with a row for each key that it wrote: the key columns, the columns of the state's kind
    (`txid, attempt, prev, curr`; `txid, value`; `value`), and `_seq`, which rises with every commit. Of the rows
    of one key, the one with the highest `_seq` is valid. Key and value have their own Spark
    types where the topology declares them, else they are binary columns in the codec of `trident.state.encoding.codec`.

The sentinel
    is a row of its own, with `_sentinel` set and neither key nor value, in the same file as the commit's rows. It is
    part of the table's content, so neither the clean-up of the log, nor a compaction, here or by Spark's OPTIMIZE, nor
    a copy of the table can lose it. The commit also carries `txnAppId` = `trident/<topology>/<state>/<partition>` and
    `txnVersion` = `Sentinel.version` (made of txid and attempt), for other tools to see.

Fencing
    A commit costs one Delta transaction. `move_sentinel` compares the newest sentinel with the one that was read and pins
    that version; puts are collected in memory; `end` commits rows and sentinel as the very next version. Delta gives each
    version to one writer only, so if another writer has committed since, nothing is written. If there were only
    compactions of this state since, which change no content and say so in the log, the commit is based on the version
    after them. Otherwise this writer gets `FencedError` (a higher attempt was there) or a retryable `BackendError` (anything
    else: an older attempt that woke up, another program). An older writer that commits between the `begin` and the
    `end` of its successor makes the successor try once more; then its rows are seen with the attempt that lost, and the
    value rule undoes them. Afterwards a paused writer cannot do anything.

In executors
    A task stages its rows and its sentinel as a data file that no version shows; the driver compares the sentinel and
    adds the file, as the version after the one that the task read (`states/delta/staging.py`).

Publishing
    Only batches that the log holds: a writer knows them at its next `begin`, or from `recorded`.

Maintenance
    A thread beside the commits merges files, writes checkpoints and deletes old files. The commit at which it is due
    starts it (`states/delta/maintenance.py`).

Reads
    A writer keeps all latest rows in memory, valid for one version: if another version is found at `begin`, they are
    read again. A `read_only` instance keeps no index: it moves to the newest version and reads the rows of the keys
    asked for. Each version is a whole number of batches, so no read sees half of one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from states.delta.options import KEEPING, DeltaOptions, local_path
from states.delta.time_travel import DeltaMapState
from trident.errors import ConfigError
from trident.redaction import Redacted
from trident.state.interfaces import StateConf, StateSpec, StateType, StoreFacts
from trident.storekit import SpecKinds, called_as, kinds


class DeltaState(SpecKinds[str | os.PathLike[str]]):
    """States in Delta tables, as `StateSpec`s for `persistent_aggregate` and its like: opaque, or by one of the methods.

    Each takes the path of the table; `options` are the fields of `DeltaOptions`.

    Examples
    --------
    >>> spec = DeltaState("state/word-count", compact_after_commits=32)
    >>> spec.required_num_partitions
    1
    """

    opaque, transactional, non_transactional = kinds(DeltaOptions)

    @called_as(opaque)
    def __new__(cls, target: str | os.PathLike[str], /) -> Any: ...

    @classmethod
    def of_kind(cls, kind: StateType, target: str | os.PathLike[str] | None, options: dict[str, Any]) -> StateSpec:
        path = options.pop("path", None) if target is None else target
        if path is None:
            raise ConfigError("a Delta state without a path: give the folder or the URL of its table")
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
        hours = self.options.vacuum_after_hours
        until = (
            "for as long as they are kept"
            if hours is None
            else f"until they are deleted, {hours} hours after a compaction"
        )
        remains = f"in files of earlier versions {until}; in the published table until the next batch is published"
        return StoreFacts(
            on_one_machine=local_path(self.path) is not None, stages_commits=True, expires_after_s=self.options.ttl_s,
            remains=remains, is_map=True, kept=self.kept, with_kept=self._with_kept,
        )  # fmt: skip

    def _with_kept(self, kept: Mapping[str, Any]) -> _DeltaFactory:
        kept = {**{name: value for name, value in kept.items() if name in KEEPING}, **self.kept}
        return replace(self, options=replace(self.options, **kept), kept=kept)

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> DeltaMapState:
        """Return the map of the kind over the table; nothing is created before the first commit."""
        if num_partitions != 1 and not conf.read_only:  # a reader finds the note of a move to a store with several
            raise ConfigError(
                f"open Delta state {conf.prefix!r} with {num_partitions} partitions: a table is one partition"
            )
        return DeltaMapState(self.path, self.kind, conf, partition_index, self.options)
