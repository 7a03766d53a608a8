"""One Delta table through delta-rs: open, refresh, scan, commit. The only module that imports `deltalake`.

Every commit names the version that it is based on and is tried once (`max_commit_retries=0`): delta-rs then refuses it
as soon as anyone has committed since, so what was read in a snapshot is still true at the moment of the commit. Errors
of the library leave this module as errors of `trident.errors`.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import pyarrow as pa

from states._delta_options import DeltaOptions
from trident.errors import BackendError, EnvironmentProblem, StateError

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from deltalake import CommitProperties, DeltaTable

__all__ = ["ABSENT", "ChangeTable", "VersionMoved"]

ABSENT = -1
"""The version of a table that does not exist."""

_READ_TRIES = 5
_PERMANENT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG})
_LOG = "_delta_log"
_LOG_ENTRY = re.compile(r"\d{20}\.(json|checkpoint.*)$")
_OS_ERROR = re.compile(r"os error (\d+)|Os \{ code: (\d+)")


class VersionMoved(Exception):
    """The commit was refused: somebody else has committed since the version that it is based on. Stays inside."""


class ChangeTable:
    """A Delta table of a given schema, at the version that this object last saw.

    Parameters
    ----------
    path
        Directory, or URI of an object store.
    schema, description
        The columns that the table must have, and the line that it is marked with.
    options
        See `DeltaOptions`.
    """

    def __init__(self, path: str, schema: pa.Schema, description: str, options: DeltaOptions) -> None:
        self._driver = _driver()
        self.path, self._schema, self._description, self._options = path, schema, description, options
        self._storage = None if options.storage_options is None else dict(options.storage_options)
        self._local = None if "://" in path else Path(path)
        self._table: DeltaTable | None = None

    @property
    def version(self) -> int:
        """The version last seen; `ABSENT` without a table."""
        return ABSENT if self._table is None else self._table.version()

    @property
    def files(self) -> int:
        """How many data files the version last seen consists of."""
        return 0 if self._table is None else len(self._table.file_uris())

    def forget(self) -> None:
        """Drop what is known of the table; the next `refresh` opens it anew."""
        self._table = None

    def refresh(self) -> int:
        """Move to the newest version and return it; `ABSENT` if there is no table.

        Raises
        ------
        StateError
            There is something else at the path, its columns are others, or its log is damaged.
        """
        if self._table is not None and self._replaced():
            self.forget()
        if self._table is not None:
            with self._reading("read the log of"):
                self._table.update_incremental()
            return self.version
        with self._reading("open"):
            try:
                table = self._driver.DeltaTable(self.path, storage_options=self._storage)
            except self._driver.exceptions.TableNotFoundError:
                self._refuse_other_content()
                return ABSENT
        self._check(table)
        self._table = table
        return self.version

    def create(self) -> int:
        """Make the table if it is absent; return its version."""
        if self.refresh() == ABSENT:
            with self._writing("create"):
                try:
                    self._driver.DeltaTable.create(
                        self.path,
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
                    if "already exists" not in str(error):  # made by another writer a moment ago
                        raise
            if self.refresh() == ABSENT:
                raise BackendError(f"cannot create Delta table {self.path}: it was made, and is not there")
        return self.version

    def scan(self, filter: pc.Expression | None = None, columns: list[str] | None = None) -> pa.Table:
        """Read the rows of the version last seen, moving on to a newer one if its files were deleted meanwhile."""
        for left in range(_READ_TRIES - 1, -1, -1):
            if self._table is None:
                break
            with self._reading("read"):
                try:
                    return self._table.to_pyarrow_dataset().to_table(columns, filter)
                except FileNotFoundError as error:
                    if not left:
                        raise StateError(
                            f"cannot read Delta table {self.path}: data files are missing: {_short(error)}. "
                            "Nothing was written. Restore them from a copy"
                        ) from error
            self.forget()
            self.refresh()
        names = columns if columns is not None else self._schema.names
        return self._schema.empty_table().select(names)

    def commit(
        self, rows: pa.Table, mode: Literal["append", "overwrite"], app: tuple[str, int] | None, note: Mapping[str, str]
    ) -> int:
        """Commit rows as the version after the one last seen, whole or not at all; return that version.

        Raises
        ------
        VersionMoved
            Somebody else has committed that version. Nothing was written.
        BackendError
            The store refused. Nothing is visible, unless the store failed after it had taken the commit.
        """
        table = self._open_table()
        based_on = table.version()
        with self._writing("commit to"):
            self._driver.write_deltalake(table, rows, mode=mode, commit_properties=self._once(app, note))
        if table.version() != based_on + 1:
            raise BackendError(f"commit to {self.path}: version {based_on + 1} expected, {table.version()} found")
        self._sync(table.version())
        return table.version()

    def merge_files(self, note: Mapping[str, str]) -> int:
        """Merge small files into large ones without a change of any row; return the new version."""
        table = self._open_table()
        with self._writing("compact"):
            table.optimize.compact(commit_properties=self._once(None, note))
        self._sync(table.version())
        return table.version()

    def vacuum(self) -> int:
        """Delete files that no version younger than `vacuum_after_hours` refers to; return the version."""
        table = self._open_table()
        if self._options.vacuum_after_hours is not None:
            with self._writing("vacuum"):
                table.vacuum(
                    retention_hours=self._options.vacuum_after_hours,
                    dry_run=False,
                    enforce_retention_duration=False,
                    full=True,
                )
        return table.version()

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _open_table(self) -> DeltaTable:
        if self._table is None:
            raise BackendError(f"Delta table {self.path} is not open")
        return self._table

    def _once(self, app: tuple[str, int] | None, note: Mapping[str, str]) -> CommitProperties:
        transactions = None if app is None else [self._driver.Transaction(*app)]
        properties: CommitProperties = self._driver.CommitProperties(
            custom_metadata=dict(note), max_commit_retries=0, app_transactions=transactions
        )
        return properties

    def _delta_schema(self) -> Any:
        return self._driver.Schema.from_arrow(self._schema)

    def _check(self, table: DeltaTable) -> None:
        found, expected = table.schema(), self._delta_schema()
        if found.to_json() != expected.to_json():
            raise StateError(
                f"open Delta table {self.path} as {self._description}: expected columns {_columns(expected)}, found "
                f"{_columns(found)}. It belongs to something else, or the types of the state were changed; give the "
                "state a path of its own, or move the old table away"
            )
        description = table.metadata().description or ""
        if description.startswith("trident ") and description != self._description:
            raise StateError(
                f"open Delta table {self.path} as {self._description}: it is marked as {description}. Give the state a "
                "path of its own"
            )

    def _replaced(self) -> bool:
        # delta-rs looks for newer versions only, so it never notices that the table was deleted or rolled back.
        return self._local is not None and not self._entry(self._local, self.version).exists()

    @staticmethod
    def _entry(folder: Path, version: int) -> Path:
        return folder / _LOG / f"{version:020}.json"

    def _refuse_other_content(self) -> None:
        if self._local is None:
            return
        try:
            names = sorted(found.name for found in self._local.iterdir())
        except FileNotFoundError:
            return
        # What a crash in the middle of the creation leaves is no other content: a log without an entry.
        started = names == [_LOG] and not any(_LOG_ENTRY.match(found.name) for found in (self._local / _LOG).iterdir())
        if names and not started:
            raise StateError(
                f"open Delta table {self.path}: the directory holds {names[:5]} and is no Delta table. Nothing was "
                "written. Give the state a path of its own, or restore _delta_log"
            )

    def _sync(self, version: int) -> None:
        # The data before the log: a log entry must not survive a power failure that its file does not.
        if self._local is None or not self._options.fsync:
            return
        entry = self._entry(self._local, version)
        with self._writing("fsync"):
            actions = map(json.loads, entry.read_text("utf-8").splitlines())
            added = [self._local / unquote(action["add"]["path"]) for action in actions if "add" in action]
            for name in (*added, self._local, entry, entry.parent):
                _fsync(name)

    @contextmanager
    def _reading(self, doing: str) -> Iterator[None]:
        errors = self._driver.exceptions
        try:
            yield
        except (errors.DeltaError, pa.ArrowException, OSError, ValueError) as error:
            if _os_error(error) is not None:
                raise self._refused(doing, error) from error
            raise StateError(
                f"cannot {doing} Delta table {self.path}: it is damaged or of an unknown format: {_short(error)}. "
                "Nothing was written. Restore it from a copy, or move it away and start with "
                'state_recovery="restart"'
            ) from error

    @contextmanager
    def _writing(self, doing: str) -> Iterator[None]:
        errors = self._driver.exceptions
        try:
            yield
        except errors.CommitFailedError as error:
            self.forget()
            raise VersionMoved(_short(error)) from error
        except errors.SchemaMismatchError as error:
            self.forget()
            raise StateError(f"cannot {doing} Delta table {self.path}: its columns changed: {_short(error)}") from error
        except (errors.DeltaError, OSError, pa.ArrowException) as error:
            self.forget()
            if "Invalid table version" in str(error):  # the version it is based on is no longer in the log
                raise VersionMoved(_short(error)) from error
            raise self._refused(doing, error) from error

    def _refused(self, doing: str, error: Exception) -> BackendError:
        number = _os_error(error)
        retryable = number not in _PERMANENT
        advice = "the batch may be replayed" if retryable else "make the directory writable for this process"
        return BackendError(f"cannot {doing} Delta table {self.path}: {_short(error)}; {advice}", retryable)


def _driver() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        raise EnvironmentProblem(
            f"a Delta state needs the package deltalake ({error}); pip install 'trident-spark[delta]'"
        ) from error
    return deltalake


def _os_error(error: Exception) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _OS_ERROR.search(str(error))
    return None if found is None else int(found[1] or found[2])


def _short(error: Exception) -> str:
    # delta-rs adds a stack trace to some of its texts.
    lines = [line.strip() for line in str(error).splitlines()]
    return "; ".join(line for line in lines if line and not re.match(r"(\d+: |at )", line))[:500]


def _columns(schema: Any) -> list[str]:
    fields = json.loads(schema.to_json())["fields"]
    return [f"{field['name']}: {_type_name(field['type'])}" for field in fields]


def _type_name(type_: Any) -> str:
    if isinstance(type_, str):
        return type_
    if type_["type"] == "array":
        return f"array<{_type_name(type_['elementType'])}>"
    if type_["type"] == "map":
        return f"map<{_type_name(type_['keyType'])},{_type_name(type_['valueType'])}>"
    inner = ",".join(f"{field['name']}:{_type_name(field['type'])}" for field in type_["fields"])
    return f"struct<{inner}>"


def _fsync(name: Path) -> None:
    descriptor = os.open(name, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
