"""One Delta table through delta-rs: open, refresh, scan, commit, and the maintenance of its files.

Every commit names the version that it is based on and is tried once (`max_commit_retries=0`): delta-rs then refuses it
if another writer has committed since, so what was read in a snapshot is still true at the moment of the commit. Only a
compaction, which changes no content, tries again on top of what was appended meanwhile. Checkpoints and the clean-up of the
log are separate steps here and never part of a commit.

The order of a commit on a local disk: it syncs everything that it is based on, then its data file and the folder that names
it; then it makes its log entry and syncs it. So after any power failure, an entry has its data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from states.delta.data_files import DataFile, write_file
from states.delta.faults import VersionMoved, writing
from states.delta.local_folder import TableFolder
from states.delta.log_entries import TXN_IS_LAST
from states.delta.nesting import only_data_files
from states.delta.old_versions import delete_files, delete_versions_before, removed_since
from states.delta.opened_table import ABSENT, OpenedTable
from trident.errors import BackendError

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction

__all__ = ["ABSENT", "ChangeTable", "VersionMoved"]


_COMPACTION_TRIES = 15


class ChangeTable(OpenedTable):
    """A table that is written: each commit is the version after the one last seen."""

    def mend(self) -> None:
        """Rename the entries that `step_back` stays before, because the log of the topology does not miss them."""
        if self._folder is not None and self._steps_back:
            self._folder.set_damaged_aside(without_data=True)
            self._damaged, self._steps_back = None, False

    def create(self) -> int:
        """Make the table if it is absent; return its version."""
        if self.refresh() == ABSENT:
            with writing(self.name, "create"), nullcontext() if self._folder is None else self._folder.created():
                try:
                    self._driver.DeltaTable.create(
                        self._place.uri,
                        self._delta_schema(),
                        mode="error",
                        description=self._description,
                        configuration={
                            "delta.checkpointInterval": str(self._options.checkpoint_interval),
                            "delta.logRetentionDuration": f"interval {self._options.log_retention_hours} hours",
                            "delta.enableExpiredLogCleanup": "true",
                        },
                        storage_options=self._storage,
                    )
                except self._driver.exceptions.DeltaError as error:
                    if "already exists" not in str(error):  # another writer has just made it
                        raise
            if self.refresh() == ABSENT:
                raise BackendError(f"cannot create Delta table {self.name}: it was created, but is not there")
        return self.version

    def commit(
        self,
        rows: pa.Table | pa.RecordBatchReader,
        seq: int,
        mode: Literal["append", "overwrite"],
        app: tuple[str, int],
        note: Mapping[str, str],
        *more: tuple[str, int],
    ) -> int:
        """Commit rows, all of one `_seq`, as the version after the one last seen, whole or not at all; return that version.

        Raises
        ------
        VersionMoved
            Another writer has committed that version. Nothing was written.
        BackendError
            The store refused. Nothing is visible, unless the store failed after it had accepted the commit.
        """
        self._append([self._data_file(rows, (seq, seq), True)], mode, app, note, *more)
        return self.version

    def replace(self, rows: pa.Table, files: Sequence[DataFile], app: tuple[str, int], note: Mapping[str, str]) -> int:
        """Replace `files` by `rows`, on top of what was appended meanwhile.

        Raises
        ------
        VersionMoved
            Another writer has replaced these files meanwhile. Nothing was written.
        """
        self._opened()
        seq = min(file.first for file in files), max(file.last for file in files)
        actions = [self._data_file(rows, seq, False), *(file.removed() for file in files)]
        for left in range(_COMPACTION_TRIES - 1, -1, -1):
            try:
                # delta-rs would accept the removal of files that another writer has removed.
                if not {file.path for file in self.files()}.issuperset(file.path for file in files):
                    raise VersionMoved("its files were replaced meanwhile")
                self._append(actions, "append", app, note)
                break
            except VersionMoved:
                if not left or self.refresh() == ABSENT:
                    raise
        return self.version

    def checkpoint(self) -> None:
        """Write a checkpoint of the log, and delete entries that are older than the table keeps them."""
        table = self._opened()
        with writing(self.name, "write a checkpoint of"):
            table.create_checkpoint()
            if self._folder is not None:
                self._folder.sync_checkpoint()
            table.cleanup_metadata()

    def delete_old_versions(self) -> None:
        """Delete versions before the `retained_versions` newest, and the data files that only these have."""
        if self._options.retained_versions is not None:
            oldest, used = self.version - self._options.retained_versions, {file.path for file in self.files()}
            with writing(self.name, "delete old versions of"):
                delete_versions_before(self._filesystem(), oldest, used)

    def vacuum(self) -> None:
        """Delete files that no version younger than `vacuum_after_hours` refers to; also what failed commits left."""
        hours = self._options.vacuum_after_hours
        if hours is None:
            return
        with writing(self.name, "vacuum"):
            unused = self._opened().vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
            # delta-rs goes by the age of a file, and not by the time of its replacement, where a checkpoint does not hold that.
            needed = removed_since(self._filesystem(), int((time.time() - hours * 3600) * 1000))
            delete_files(self._filesystem(), only_data_files(sorted({*unused} - needed)))

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _data_file(
        self, rows: pa.Table | pa.RecordBatchReader, seq: tuple[int, int], new_rows: bool
    ) -> AddAction | None:
        with self._or_forgotten("commit to"):
            added = write_file(rows, seq, self._schema, self._filesystem(), new_rows)
        if added is not None:
            self._sync_data(added.path)
        return added

    def _sync_data(self, name: str) -> None:
        self._sync(lambda folder: folder.sync_data(name))

    def _append(
        self,
        actions: Sequence[AddAction | RemoveAction | None],
        mode: str,
        app: tuple[str, int],
        note: Mapping[str, str],
        *more: tuple[str, int],
    ) -> None:
        table = self._opened()
        based_on = table.version()
        self._sync(lambda folder: folder.sync(based_on, own=False))
        with self._or_forgotten("commit to"):
            if self._replaced():
                raise VersionMoved(f"version {based_on} is no longer there")
            table.create_write_transaction(
                [action for action in actions if action is not None],
                mode,
                self._delta_schema(),
                commit_properties=self._driver.CommitProperties(
                    custom_metadata={TXN_IS_LAST: "true", **note},
                    max_commit_retries=0,
                    app_transactions=[self._driver.Transaction(*each) for each in (app, *more)],
                ),
                post_commithook_properties=self._driver.PostCommitHookProperties(False, False),
            )
        self._committed = based_on + 1
        self._sync(lambda folder: folder.sync(based_on + 1, own=True))

    def _sync(self, what: Callable[[TableFolder], None]) -> None:
        if self._folder is not None:
            with self._or_forgotten("fsync"):
                what(self._folder)

    @contextmanager
    def _or_forgotten(self, doing: str) -> Iterator[None]:
        try:
            with writing(self.name, doing):
                yield
        except Exception:
            self.forget()
            raise

    def _delta_schema(self) -> Any:
        return self._driver.Schema.from_arrow(self._schema)
