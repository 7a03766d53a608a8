"""Where a Delta table is, a local folder or an object store through delta-rs; and its log, one JSON file a version."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from trident.errors import ReplayMismatchError, SourceAwayError, SpoutError
from trident.extras import needs_package
from trident.object_stores import is_unanswered, short
from trident.redaction import redacted

if TYPE_CHECKING:
    from deltalake import DeltaTable

_log = logging.getLogger(__name__)


def delta_rs() -> Any:
    with needs_package("a Delta source", "delta", "deltalake"):
        import deltalake
        import deltalake.exceptions
    return deltalake


def not_read(what: str, error: Exception) -> SpoutError:
    """Return the error that says what could not be read: `SourceAwayError` if the object store is away."""
    return (SourceAwayError if is_unanswered(error) else SpoutError)(f"{what}: {short(error).strip(' .')}")


class LoggedFile(NamedTuple):
    """A file with rows, and the values of its partition columns as text."""

    change: str  # what its rows are: "insert", "delete", or "" if the file says it itself, row by row
    path: str  # as the log has it: relative, with `%` escapes
    size: int  # in bytes; -1 if the log does not say it
    values: dict[str, str | None]


@dataclass(frozen=True)
class Metadata:
    """What a table is from some version on; `features` are those that its readers must know, as far as they are said here."""

    id: str
    schema: Mapping[str, Any]
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str]
    features: tuple[str, ...] = ()

    @property
    def has_feed(self) -> bool:
        """Whether writers keep which rows they change."""
        return self.configuration.get("delta.enableChangeDataFeed", "false").lower() == "true"


@dataclass
class LogEntry:
    """One version: what it added and removed. Files that it only moved about (`dataChange` is false) are not in it."""

    version: int
    crc: int
    timestamp_ms: int = 0
    operation: str = "an unknown operation"
    added: list[LoggedFile] = field(default_factory=list)
    removed: list[LoggedFile] = field(default_factory=list)
    changes: list[LoggedFile] = field(default_factory=list)
    metadata: Metadata | None = None
    reader_features: tuple[str, ...] = ()
    with_vector: str | None = None  # a file of which some rows are deleted


class TableLog:
    """A table and its log: a folder, a `file://` URL or the URL of an object store, with the settings of that.

    `name` is without secrets. A worker opens the files.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None) -> None:
        self.name = redacted(uri)
        self._warned = -1  # the version whose unfinished entry was warned of
        self._options = None if storage_options is None else dict(storage_options)
        self.is_local = "://" not in uri or uri.startswith("file://")
        local = unquote(urlsplit(uri).path) if uri.startswith("file://") else uri
        self._uri = str(Path(local).expanduser().absolute()) if self.is_local else uri

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_files"}

    @cached_property
    def _files(self) -> pafs.FileSystem:
        if self.is_local:
            return pafs.SubTreeFileSystem(self._uri, pafs.LocalFileSystem())
        delta_rs()
        from deltalake.fs import DeltaStorageHandler

        return pafs.PyFileSystem(DeltaStorageHandler(self._uri, self._options))

    def table(self, version: int | None = None) -> DeltaTable:
        """Open the table at a version (None: the newest); `SpoutError` if there is none, or that is gone."""
        package = delta_rs()
        try:
            table: DeltaTable = package.DeltaTable(self._uri, version=version, storage_options=self._options)
        except package.exceptions.TableNotFoundError as error:
            raise SpoutError(
                f"there is no Delta table at {self.name}: {short(error)}. Correct the path, or create it"
            ) from error
        except (package.exceptions.DeltaError, OSError, ValueError) as error:
            at = "" if version is None else f" at version {version}"
            raise not_read(f"the Delta table {self.name} cannot be opened{at}", error) from error
        return table

    def stamp(self, version: int) -> tuple[int, int] | None:
        """Return what is another one as soon as the entry of a version was replaced; None if there is none."""
        with self.wrap_errors(path := _entry_path(version)):
            (info,) = self._files.get_file_info([path])
        return None if info.type is pafs.FileType.NotFound else (info.mtime_ns or 0, info.size or 0)

    def _read(self, version: int) -> bytes | None:
        with self.wrap_errors(path := _entry_path(version)):
            try:
                with self._files.open_input_file(path) as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    @contextmanager
    def wrap_errors(self, what: str) -> Iterator[None]:
        """Turn what file systems and delta-rs raise into errors: no answer is not the answer that nothing is there."""
        try:
            yield
        except (delta_rs().exceptions.DeltaError, OSError) as error:
            raise not_read(f"{what} of the Delta table {self.name} cannot be read", error) from error

    def open(self, path: str) -> pa.NativeFile:
        return self._files.open_input_file(unquote(path))

    def newest(self, version: int) -> int:
        """Return the last version from `version` on without a gap, by looking at few of them."""
        step = 1
        while self.stamp(version + step) is not None:
            version, step = version + step, step * 2
        while (step := step // 2) > 0:
            if self.stamp(version + step) is not None:
                version += step
        return version

    def crc(self, version: int) -> int | None:
        data = self._read(version)
        return None if data is None else zlib.crc32(data)

    def entry(self, version: int) -> LogEntry | None:
        """Read the entry of a version; None if it is not there, or not all of it yet."""
        data = self._read(version)
        if data is None or self._is_unfinished(version, data):
            return None
        entry = LogEntry(version, zlib.crc32(data))
        try:
            for line in data.splitlines():
                if line.strip():
                    _apply(entry, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SpoutError(
                f"the entry of version {version} in the log of the Delta table {self.name} cannot be read: {error!r}. "
                "Restore the log from a copy"
            ) from error
        return entry

    def _is_unfinished(self, version: int, data: bytes) -> bool:
        """Whether the entry of a version is incomplete, as a writer may leave it that is not atomic.

        Raises `SpoutError`: there is a later version already.
        """
        if not _ends_in_the_middle(data):
            return False
        what = f"the entry of version {version} in the log of the Delta table {self.name} ends in the middle"
        if self.stamp(version + 1) is not None:
            raise SpoutError(
                f"{what}, and version {version + 1} is there: a writer that is not atomic was interrupted, so what it "
                'wrote is not known. Restore the entry; if the version had no rows, put {"commitInfo":{}} into its place'
            )
        if version != self._warned:
            _log.warning("%s; its writer is not atomic, and is waited for", what)
            self._warned = version
        return True

    def metadata(self, version: int | None = None) -> tuple[int, Metadata]:
        """Return a version (None: the newest), and what the table is there."""
        table = self.table(version)
        newest = table.version() if version is None else 0
        data = self._read(newest) if newest > 0 else None
        if data is not None and self._is_unfinished(newest, data):
            table = self.table(newest - 1)  # delta-rs takes what there is of an entry for all of it
        said, schema = table.metadata(), json.loads(table.schema().to_json())
        features = tuple(table.protocol().reader_features or ())
        made = Metadata(str(said.id), schema, tuple(said.partition_columns), dict(said.configuration), features)
        return table.version(), made

    def goes_back_to(self, version: int) -> bool:
        """Whether the log has what it takes to say what the table was at a version: its first entry, or a checkpoint."""
        with self.wrap_errors("_delta_log"):
            files = self._files.get_file_info(pafs.FileSelector("_delta_log"))
        names = [info.base_name for info in files if info.base_name[:20].isdecimal()]
        return any(int(name[:20]) <= version for name in names if ".checkpoint." in name or name == f"{0:020}.json")

    def snapshot(self, version: int) -> LogEntry:
        """Return the whole table at a version, as if that version had added all of its files."""
        table = self.table(version)
        with self.wrap_errors(f"version {version}"):
            actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
            timestamp_ms = int(table.history(1)[0].get("timestamp", 0))
            has_vectors = "deletionVectors" in (table.protocol().reader_features or ())
            vectors = pa.table(table.deletion_vectors()) if has_vectors else None
        names = tuple(table.metadata().partition_columns)
        entry = LogEntry(version, self.crc(version) or 0, timestamp_ms)
        for action in sorted(actions, key=lambda one: str(one["path"])):
            values = {name: _value_text(action.get(f"partition.{name}")) for name in names}
            entry.added.append(LoggedFile("insert", action["path"], action["size_bytes"], values))
        if vectors is not None and vectors.num_rows:
            entry.with_vector = str(vectors["filepath"][0])
        return entry


def _ends_in_the_middle(data: bytes) -> bool:
    """Whether an entry has nothing, or only the beginning of its last line; one that ends with a line end has all of it."""
    try:
        json.loads(data[data.rstrip(b"\n").rfind(b"\n") + 1 :])
    except ValueError:
        return not data.endswith(b"\n") or not data.strip()
    return False


def _entry_path(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def _apply(entry: LogEntry, action: Mapping[str, Any]) -> None:
    ((kind, said),) = action.items()
    if kind == "commitInfo":
        entry.timestamp_ms = int(said.get("inCommitTimestamp") or said.get("timestamp") or 0)
        entry.operation = str(said.get("operation", entry.operation))
    elif kind == "add" and said["dataChange"]:
        entry.added.append(_file(entry, "insert", said))
    elif kind == "remove" and said["dataChange"]:
        entry.removed.append(_file(entry, "delete", said))
    elif kind == "cdc":
        entry.changes.append(_file(entry, "", said))
    elif kind == "metaData":
        entry.metadata = _metadata(said)
    elif kind == "protocol":
        entry.reader_features = tuple(said.get("readerFeatures") or ())


def _metadata(said: Mapping[str, Any]) -> Metadata:
    schema, columns = json.loads(said["schemaString"]), tuple(said.get("partitionColumns") or ())
    return Metadata(str(said["id"]), schema, columns, dict(said.get("configuration") or {}))


def _file(entry: LogEntry, change: str, said: Mapping[str, Any]) -> LoggedFile:
    if said.get("deletionVector"):
        entry.with_vector = str(said["path"])
    size = said.get("size")
    return LoggedFile(change, said["path"], -1 if size is None else int(size), dict(said.get("partitionValues") or {}))


def _value_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode()  # delta-rs gives the text that the log has
    return str(value)


def not_there(table: str, version: int, newest: int) -> SpoutError:
    """Say that the first version to be read is not in the log."""
    if version > newest:
        return SpoutError(
            f"starting_version={version}, but the newest version of the Delta table {table} is {newest}. Give a "
            "version that exists, the next one, 'latest' or 'earliest'"
        )
    return SpoutError(
        f"starting_version={version} of the Delta table {table} is no longer in its log, whose newest version is {newest}: the "
        "log was cleaned up. Give a later one, or 'earliest', which begins with the table as it is; a longer "
        "delta.logRetentionDuration keeps more"
    )


def cleaned_up(table: str, version: int) -> SpoutError:
    """Say that a version is gone that was not read yet."""
    return SpoutError(
        f"version {version} of the Delta table {table} was not read to its end and is no longer in its log: the log was "
        "cleaned up. Restore its entry and start again; or begin with a new log_dir, starting_version='earliest' (the table as "
        "it is) and empty states. A longer delta.logRetentionDuration leaves a stream more time"
    )


def other_table(table: str, read_id: str, read_version: int, version: int, id_: str) -> ReplayMismatchError:
    """Say that what is at the place of a table is not what was read."""
    replaced = "" if id_ != read_id else ", or a writer that is not atomic had not finished this version when read"
    return ReplayMismatchError(
        f"the Delta table {table} was read up to version {read_version} as table {read_id}, and is another table now (version "
        f"{version}, table {id_}): it was made again, or restored from a copy{replaced}. Put back the table that was read; if "
        "this one has only rows that are not counted yet, give its stream another name and start once with "
        "allow_changed_topology=True; or begin with a new log_dir and empty states"
    )
