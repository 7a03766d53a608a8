"""One Delta table of a state through delta-rs: it is followed, read, written and kept small, as its role says.

Every commit names the version that it is based on and is tried once (`max_commit_retries=0`): delta-rs then refuses it if
another writer has committed since. Only a compaction, which changes no content, tries again.

On a local disk a commit syncs everything that it is based on, then its data file and the folder that names it; then it makes
its log entry and syncs it. So after any power failure, an entry has its data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from states.delta import data_files
from states.delta.data_files import DataFile, add_action, name_of
from states.delta.faults import AFRESH, VersionMoved, reading, writing
from states.delta.layout import in_order
from states.delta.local_folder import TXN_IS_LAST, TableFolder
from states.delta.options import DeltaOptions
from states.delta.table_opening import TableOpening, TableRole, fits
from trident.errors import BackendError, StateError, StoreAwayError
from trident.object_stores import short

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

ABSENT = -1  # the version of a table that does not exist
COMPACTION = "trident.compaction"  # the note of a version that changes no content
_COLUMNS = "trident-columns"
_READ_TRIES = 5
_COMPACTION_TRIES = 15
_ROWS_PER_GROUP = 1 << 20


class StateTable(TableOpening):
    """A Delta table at the version that this object last saw; a commit is the version after it. For one thread at a time."""

    def __init__(self, path: str, schema: pa.Schema, description: str, options: DeltaOptions, role: TableRole) -> None:
        super().__init__(path, schema, description, options, role)
        self._folder = self.place.folder
        self._table: DeltaTable | None = None
        self._committed: int | None = None  # the version that this object committed, until delta-rs has read its entry
        self._files: tuple[int, list[DataFile]] | None = None  # of a version of `_table`

    def another(self, read_only: bool = False, at: int | None = None) -> StateTable:
        """Return a new object for the same table, for another thread or another version."""
        role = self.role._replace(read_only=read_only, at=at)
        other = StateTable(self._path, self.schema, self.description, self.options, role)
        other._is_alone = other._is_alone or self._is_alone
        return other

    @property
    def version(self) -> int:
        """The version last seen; `ABSENT` without a table."""
        if self._table is None:
            return ABSENT
        return self._table.version() if self._committed is None else self._committed

    def identity(self) -> tuple[int, int]:
        """Return the version last seen, and an identity that distinguishes it from the same version of another table here."""
        return self.version, 0 if self._folder is None else self._folder.entry_id(self.version)

    def forget(self) -> None:
        """Forget the table; the next `refresh` opens it again."""
        self._table = self._committed = self._files = None

    def refresh(self) -> int:
        """Move to the newest version and return it; `ABSENT` if there is no table. See `_open` for errors."""
        if self._table is not None and self.is_replaced(self.version):
            self.forget()
        if self._table is None:
            self._table = self._open()
        elif self.role.at is None:
            with reading(self.name, "read the log of"):
                if self.is_before_damage():
                    return self.version
                self._table.update_incremental()
            self._committed = None
        return self.version

    def step_back(self) -> bool:
        """Stay before entries at the end of the log whose data is missing or cut; return whether there are any."""
        with reading(self.name, "read the log of"):
            if not super().step_back():
                return False
        self.forget()
        return True

    def scan(
        self,
        filter: pc.Expression | None = None,
        columns: list[str] | None = None,
        files: Sequence[DataFile] | None = None,
    ) -> pa.Table:
        """Read rows of the version last seen (of some of its `files`), or of a newer one if its files were deleted."""
        for left in range(_READ_TRIES - 1, -1, -1):
            if self._table is None:
                break
            with reading(self.name, "read"):
                try:
                    if files is not None:
                        paths = [file.path for file in files]
                        return ds.dataset(paths, self.schema, "parquet", self.filesystem()).to_table(columns, filter)
                    return self._dataset(self._current_table()).to_table(columns, filter)
                except FileNotFoundError as error:
                    if not left or self.role.at is not None:
                        raise StateError(
                            f"cannot read Delta table {self.name}: data files are missing: {short(error)}. "
                            f"Nothing was written. Restore them from a copy. If there is none, {AFRESH}"
                        ) from error
            self.forget()
            self.refresh()
        return self.schema.empty_table().select(columns if columns is not None else self.schema.names)

    def scans_after(self, seq: int) -> Iterator[pa.Table]:
        """Iterate over the rows after a `_seq` of the version last seen, in order, and maybe some before."""
        for files in data_files.in_turn(file for file in self.files() if file.last > seq):
            yield in_order(self.scan(None, None, files))

    def files(self) -> list[DataFile]:
        """Return the data files of the version last seen, in the order of their rows' `_seq`."""
        if self._table is None:
            return []
        if self._files is None or self._files[0] != self.version:
            with reading(self.name, "list the files of"):
                facts = pa.table(self._current_table().get_add_actions(flatten=True)).to_pylist()
            self._files = self.version, sorted(map(DataFile.of, facts), key=lambda file: file.first)
        return self._files[1]

    def cover(self) -> None:
        """Let the table have all columns that it should have; `VersionMoved`: another writer has committed meanwhile."""
        if fits(pa.schema(self._current_table().schema().to_arrow()), self.schema, evolves=False):
            return
        files, app = self.files(), (_COLUMNS, self.version)
        span = min((file.first for file in files), default=0), max((file.last for file in files), default=0)
        self.append([self.data_file(self.scan(), span, new_rows=False)], "overwrite", app, {COMPACTION: "columns"})
        self.refresh()

    def has_columns(self) -> bool:
        return bool(self._current_table().schema().to_json() == self._delta_schema().to_json())

    def transaction(self, app: str) -> int | None:
        """Return the version of the last transaction of an application, None if there was none."""
        if self._table is None:
            return None
        with reading(self.name, "read the log of"):
            return self._current_table().transaction_version(app)

    def readable(self) -> bool:
        """Tell whether the version can still be read; `StoreAwayError`: the object store does not say it."""
        try:
            self.refresh()
        except StoreAwayError:
            raise
        except StateError:
            return False
        if self._table is None:
            return False
        with reading(self.name, "list the files of"):
            dataset = self._dataset(self._current_table())
            files = dataset.filesystem.get_file_info(dataset.files) if dataset.files else []
        return all(info.is_file for info in files)

    def notes(self, count: int | None = None) -> Iterator[dict[str, Any]]:
        """Iterate over the notes of the last `count` versions up to the one last seen (None: all in the log), newest first."""
        system = self.filesystem()
        for version in range(self.version, ABSENT if count is None else self.version - count, -1):
            with reading(self.name, "read the log of"):
                actions = data_files.actions_of(system, version)
            if not actions:  # it was cleaned up
                return
            noted: dict[str, Any] = next((one["commitInfo"] for one in actions if "commitInfo" in one), {})
            yield {**noted, "version": version}

    def create(self) -> int:
        if self.refresh() == ABSENT:
            with writing(self.name, "create"), nullcontext() if self._folder is None else self._folder.sync_created():
                try:
                    self.driver.DeltaTable.create(
                        self.place.uri,
                        self._delta_schema(),
                        mode="error",
                        description=self.description,
                        configuration={
                            "delta.checkpointInterval": str(self.options.checkpoint_interval),
                            "delta.logRetentionDuration": f"interval {self.options.log_retention_hours} hours",
                            "delta.enableExpiredLogCleanup": "true",
                        },
                        storage_options=self.storage,
                    )
                except self.driver.exceptions.DeltaError:  # several, if another writer has just made it
                    if self.refresh() == ABSENT:
                        raise
            if self.refresh() == ABSENT:
                raise BackendError(f"cannot create Delta table {self.name}: it was created, but is not there")
        return self.version

    def replace(self, rows: pa.Table, files: Sequence[DataFile], app: tuple[str, int], note: Mapping[str, str]) -> None:
        """Replace `files` by `rows`, on top of what was appended since; `VersionMoved`: another writer replaced them."""
        self._current_table()
        seq = min(file.first for file in files), max(file.last for file in files)
        actions = [self.data_file(rows, seq, new_rows=False), *(file.remove_action() for file in files)]
        for left in range(_COMPACTION_TRIES - 1, -1, -1):
            try:
                # delta-rs would accept the removal of files that another writer has removed.
                if not {file.path for file in self.files()}.issuperset(file.path for file in files):
                    raise VersionMoved("its files were replaced meanwhile")
                self.append(actions, "append", app, note)
                return
            except VersionMoved:
                if not left or self.refresh() == ABSENT:
                    raise

    def data_file(
        self, rows: pa.Table, seq: tuple[int, int], new_rows: bool = True, name: str | None = None
    ) -> AddAction | None:
        """Write rows into a file that no version shows yet, durably; return the action that adds it, None without any row.

        `seq`: the lowest and highest `_seq` of the rows. `name`: of a file that is staged.
        """
        if not rows.num_rows:
            return None
        path = name or name_of(*seq)
        with self.or_forgotten("commit to" if name is None else "stage a commit to"):
            rows = rows if rows.schema == self.schema else rows.cast(self.schema)
            try:
                size = data_files.write_parquet(rows, path, self.filesystem(), _ROWS_PER_GROUP)
            except FileNotFoundError as error:
                raise VersionMoved(f"the folder of the table is gone: {error}") from error
        self.sync_data(path)
        return add_action(path, size, rows.num_rows, new_rows)

    def append(
        self,
        actions: Sequence[AddAction | RemoveAction | None],
        mode: Literal["append", "overwrite"],
        app: tuple[str, int],
        note: Mapping[str, str],
        *more: tuple[str, int],
    ) -> None:
        """Make the version after the one last seen, whole or not at all: of synced files, with transactions and a note.

        Raises `VersionMoved`: another writer has committed that version. Nothing was written.
        Raises `BackendError`: the store refused. Nothing is visible, unless the store failed after it had accepted the
        commit.
        """
        table, driver = self._current_table(), self.driver
        based_on = table.version()
        self._sync(lambda folder: folder.sync(based_on, own=False))
        with self.or_forgotten("commit to"):
            if self.is_replaced(self.version):
                raise VersionMoved(f"version {based_on} is no longer there")
            table.create_write_transaction(
                [action for action in actions if action is not None],
                mode,
                self._delta_schema(),
                commit_properties=driver.CommitProperties(
                    custom_metadata={TXN_IS_LAST: "true", **note},
                    max_commit_retries=0,
                    app_transactions=[driver.Transaction(*each) for each in (app, *more)],
                ),
                post_commithook_properties=driver.PostCommitHookProperties(False, False),
            )
        self._committed = based_on + 1
        self._sync(lambda folder: folder.sync(based_on + 1, own=True))

    def sync_data(self, name: str) -> None:
        self._sync(lambda folder: folder.sync_data(name))

    @contextmanager
    def or_forgotten(self, doing: str) -> Iterator[None]:
        """Write: errors of delta-rs become ours, and after any the table is opened again."""
        try:
            with writing(self.name, doing):
                yield
        except Exception:
            self.forget()
            raise

    def checkpoint(self) -> None:
        """Write a checkpoint of the log, and delete entries that are older than the table keeps them."""
        table = self._current_table()
        with writing(self.name, "write a checkpoint of"):
            table.create_checkpoint()
            if self._folder is not None:
                self._folder.sync_checkpoint()
            table.cleanup_metadata()

    def delete_old_versions(self) -> None:
        """Delete versions before the `retained_versions` newest, and the data files that only these have."""
        if self.options.retained_versions is not None:
            oldest, used = self.version - self.options.retained_versions, {file.path for file in self.files()}
            with writing(self.name, "delete old versions of"):
                data_files.delete_versions_before(self.filesystem(), oldest, used)

    def vacuum(self) -> None:
        """Delete files that no version younger than `vacuum_after_hours` refers to; also what failed commits left."""
        hours = self.options.vacuum_after_hours
        if hours is None:
            return
        with writing(self.name, "vacuum"):
            unused = self._current_table().vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
            # delta-rs goes by the age of a file, and not by the time of its replacement, where a checkpoint does not hold that.
            needed = data_files.removed_since(self.filesystem(), int((time.time() - hours * 3600) * 1000))
            data_files.delete_files(self.filesystem(), data_files.only_data_files(sorted({*unused} - needed)))

    def _current_table(self) -> DeltaTable:
        if self._table is None:
            raise BackendError(f"Delta table {self.name} is not open")
        if self._committed is not None and self._table.version() != self._committed:
            self._table.load_as_version(self._committed)
        return self._table

    def _dataset(self, table: DeltaTable) -> Any:
        return table.to_pyarrow_dataset(
            filesystem=None if self._folder is None else self.filesystem(), schema=self.schema
        )

    def _sync(self, what: Callable[[TableFolder], None]) -> None:
        if self._folder is not None:
            with self.or_forgotten("fsync"):
                what(self._folder)

    def _delta_schema(self) -> Any:
        return self.driver.Schema.from_arrow(self.schema)
