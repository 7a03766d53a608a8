"""Chooses the files that make up a batch, and which files of a version have rows: the driver's side of `DeltaSpout`.

A definition is plain data: the id of the `table`; how far it was read, a `version` and the `crc` of its entry in the log; how
many files of that version were `taken`, -1 for all, and whether they are the whole table's at that version (`snapshot`); and
`commits`, `[version, timestamp, files]` for each version, with `[change, path, size, partition values]` for each file. So a
replay needs these files alone, and not the log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

from spouts.delta.table_log import LogEntry, LoggedFile, Metadata, TableLog, cleaned_up, not_there, other_table
from spouts.files.ranges import cut_evenly
from trident.alignment import reads_as
from trident.arrow import arrow_type, schema_of
from trident.errors import SpoutError
from trident.fields import Fields, names_shown, type_of_json
from trident.spout.interfaces import Definition, Lag, ThrottledCoordinator, TransactionAttempt

_ALL = -1
_MAX_VERSIONS = 1000
# Features of the protocol that do not change what a data file says, or are looked for where they would.
_KNOWN = {
    "columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening",
    "typeWidening-preview",
}  # fmt: skip
_MAPPING = "delta.columnMapping.mode"
_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint", "void": "string"}


class FilePiece(NamedTuple):
    """What one task reads of a file: the row groups that begin in the bytes `start` to `end`."""

    file: LoggedFile
    version: int
    timestamp_ms: int
    start: int
    end: int


@dataclass(frozen=True)
class ChangeRules:
    """How versions become rows; see `DeltaSpout`."""

    table: str
    fields: Fields
    mode: str
    on_removal: str

    def check_readable(self, version: int, features: Sequence[str]) -> None:
        """Refuse a table that asks its readers for something unknown."""
        unknown = sorted(set(features) - _KNOWN)
        if unknown:
            raise SpoutError(
                f"version {version} of the Delta table {self.table} needs readers that know {', '.join(unknown)}, and this "
                "one does not. Turn the feature off, or read the table with Spark (StructuredStreamingSpout)"
            )

    def check_metadata(self, version: int, metadata: Metadata, later: Sequence[str]) -> None:
        """Refuse a table whose columns are not the stream's; columns that it has `later` may be missing still."""
        if metadata.configuration.get(_MAPPING, "none") != "none":
            raise SpoutError(
                f"the Delta table {self.table} maps its columns by {metadata.configuration[_MAPPING]} ({_MAPPING}), so "
                "its files have other names. Read it with Spark (StructuredStreamingSpout), or copy it into a table without "
                "column mapping"
            )
        there = fields_of_table(metadata.schema)
        for name, wanted in zip(self.fields.names, schema_of(self.fields).types, strict=True):
            if name not in there.names and name in later:
                continue
            if name not in there.names:
                raise SpoutError(
                    f"the Delta table {self.table} has no column {name!r} at version {version}; it has "
                    f"{names_shown(there.names, name)}. Leave the field out and start again"
                )
            found = there.type_of(name) or ""
            if not reads_as(arrow_type(found), wanted):
                raise SpoutError(
                    f"column {name!r} of the Delta table {self.table} is {found} at version {version}, and the stream has it "
                    f"as {self.fields.type_of(name)}. Declare it as {found} and start again, which says what becomes of the "
                    "states that have values of the former type"
                )

    def files(self, entry: LogEntry, partition_columns: Sequence[str], has_feed: bool) -> list[LoggedFile]:
        """Return the files of a version that have rows; `has_feed` says whether the table keeps what changes."""
        files = self._changes(entry, has_feed) if self.mode == "changes" else self._appended_files(entry)
        if files and entry.with_vector is not None:
            raise SpoutError(
                f"version {entry.version} of the Delta table {self.table} has deletion vectors (in {entry.with_vector}), "
                "which say which rows of a file are deleted and are not read here. Rewrite these files with REORG TABLE … "
                "APPLY (PURGE) and turn delta.enableDeletionVectors off, or read the table with Spark "
                "(StructuredStreamingSpout)"
            )
        for file in files:
            if "://" in file.path or file.path.startswith("/"):
                raise SpoutError(
                    f"version {entry.version} of the Delta table {self.table} has a file outside of the table, {file.path}, "
                    "as shallow clones do, which is not read here. Read the table that was cloned, or make a deep clone"
                )
            unsaid = [name for name in partition_columns if name not in file.values]
            if unsaid:
                raise SpoutError(
                    f"version {entry.version} of the Delta table {self.table} removed {file.path} and does not say the "
                    f"value of its partition column {unsaid[0]!r}, so its rows are not known. "
                    "Skip the version: begin with a new log_dir, "
                    f"starting_version={entry.version + 1} and empty states"
                )
        return files

    def _appended_files(self, entry: LogEntry) -> list[LoggedFile]:
        if not entry.removed or self.on_removal == "added_files":
            return entry.added
        if self.on_removal == "skip":
            return []
        raise SpoutError(
            f"version {entry.version} of the Delta table {self.table} ({entry.operation}) removed rows, "
            f"{len(entry.removed)} files of them, which a stream of appended rows cannot express. Choose: mode='changes' reads "
            "what was inserted, updated and deleted, if the table has delta.enableChangeDataFeed=true; on_removal='skip' "
            "reads nothing of such versions; on_removal='added_files' reads all files that they wrote, with rows that were "
            "only copied"
        )

    def _changes(self, entry: LogEntry, has_feed: bool) -> list[LoggedFile]:
        if entry.changes:
            return entry.changes
        if entry.added and entry.removed and not has_feed:
            raise SpoutError(
                f"version {entry.version} of the Delta table {self.table} ({entry.operation}) changed rows, and the table did "
                "not keep what changed. Set delta.enableChangeDataFeed=true on the table, and start with a later "
                "starting_version, a new log_dir and empty states; or read with mode='append' and on_removal"
            )
        return [*entry.removed, *entry.added]


@dataclass(frozen=True)
class _Place:
    """How far a table was read."""

    table: str
    version: int
    crc: int
    taken: int
    snapshot: bool


@dataclass(frozen=True)
class _Version:
    """The version being read: its entry, or the table as it was then, and the files that have rows."""

    entry: LogEntry
    snapshot: bool
    files: list[LoggedFile]


class DeltaCoordinator(ThrottledCoordinator):
    """Says which files make up a batch, one version after the other; its `limits` are of bytes and of files."""

    def __init__(self, log: TableLog, rules: ChangeRules, limits: tuple[int, int], starting_version: int | str) -> None:
        self._log, self._rules, self._limits, self._start = log, rules, limits, starting_version
        self._newest = 0
        self._metadata: Metadata | None = None  # at the version being read
        self._columns: Sequence[str] = ()  # of the newest version that was seen: older ones may not have them all
        self._read: _Version | None = None
        self._stamp: tuple[int, tuple[int, int]] | None = None  # of the entry that was compared last

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Fix the files of a batch; None if the table has no further version."""
        if previous is None:
            before = self._first()
        else:
            before = _Place(**{one.name: previous[one.name] for one in fields(_Place)})
            if self._metadata is None:  # after a start: is it the table that the log of the topology says was read?
                newest, metadata = self._log.metadata()
                self._columns = fields_of_table(metadata.schema).names
                if metadata.id != before.table or newest < before.version:
                    raise other_table(self._log.name, before.table, before.version, newest, metadata.id)
                self._check(before.version, self._metadata_at(before.version, metadata))
        after, commits = self._fill_batch(before)
        if after == before and not (previous is None and after.taken == _ALL):
            return None
        self._newest = max(after.version, self._log.newest(after.version))
        return {**asdict(after), "commits": commits}

    def parts(
        self, attempt: TransactionAttempt, definition: Definition, parallelism: int
    ) -> Sequence[tuple[FilePiece, ...]]:
        """Cut the files to about equal bytes; workers align to row groups."""
        files = [
            (LoggedFile(*file), version, timestamp_ms)
            for version, timestamp_ms, chosen in definition["commits"]
            for file in chosen
        ]
        parts = cut_evenly([max(1, file.size) for file, _, _ in files], parallelism)
        return [tuple(FilePiece(*files[at], start, end) for at, start, end in part) for part in parts]

    def size(self, definition: Definition) -> int:
        return sum(max(0, size) for _, _, files in definition["commits"] for _, _, size, _ in files)

    def lag(self, definition: Definition) -> Lag:
        """Say how many versions the table had after this one when it was last looked at; one that is read in part counts."""
        left = self._newest - int(definition["version"]) + (definition["taken"] != _ALL)
        return Lag(max(0, left), "versions")

    def _first(self) -> _Place:
        newest, metadata = self._log.metadata()
        self._columns = fields_of_table(metadata.schema).names
        if isinstance(self._start, int):
            if self._start > newest + 1 or (self._start <= newest and self._log.stamp(self._start) is None):
                raise not_there(self._log.name, self._start, newest)
            if self._start <= newest:
                newest, metadata = self._start, self._metadata_at(self._start, metadata)
        self._check(newest, metadata)
        taken = 0 if self._start in ("earliest", newest) else _ALL
        return _Place(metadata.id, newest, self._log.crc(newest) or 0, taken, self._start == "earliest")

    def _metadata_at(self, version: int, newest: Metadata) -> Metadata:
        """Return what the table was at a version; what it is now if the log does not go back so far."""
        try:
            return self._log.metadata(version)[1]
        except SpoutError:
            if self._log.goes_back_to(version):
                raise
            return newest

    def _check(self, version: int, metadata: Metadata) -> None:
        self._rules.check_readable(version, metadata.features)
        self._rules.check_metadata(version, metadata, self._columns)
        self._metadata = metadata

    def _fill_batch(self, place: _Place) -> tuple[_Place, list[list[Any]]]:
        """Take files until the batch is full or there are no more."""
        before = place
        commits: list[list[Any]] = []
        room, most = map(self._most, self._limits)
        count = most
        for _ in range(_MAX_VERSIONS):
            if place.taken == _ALL:
                try:
                    following = self._next(place)
                except SpoutError:
                    if place == before:
                        raise
                    break  # first what can be read; the next batch raises it
                if following is None:
                    break
                place = following
            version = self._version_at(place)
            files, taken = version.files, place.taken
            # A file that is larger than a batch is a batch of its own.
            while taken < len(files) and count > 0 and (files[taken].size <= room or count == most):
                room, count, taken = room - files[taken].size, count - 1, taken + 1
            if taken > place.taken:
                chosen = [list(file) for file in files[place.taken : taken]]
                commits.append([place.version, version.entry.timestamp_ms, chosen])
            if taken < len(files):
                return replace(place, taken=taken), commits
            place = replace(place, taken=_ALL)
        return place, commits

    def _next(self, place: _Place) -> _Place | None:
        self._check_same(place)
        stamp, entry = self._log.stamp(place.version + 1), self._log.entry(place.version + 1)
        if stamp is None or entry is None:
            return None
        if entry.metadata is not None and entry.metadata.id != place.table:
            raise other_table(self._log.name, place.table, place.version, entry.version, entry.metadata.id)
        self._rules.check_readable(entry.version, entry.reader_features)
        if entry.metadata is not None:
            self._rules.check_metadata(entry.version, entry.metadata, self._columns)
            self._metadata = entry.metadata
        self._stamp = entry.version, stamp
        self._open_version(entry, snapshot=False)
        return _Place(place.table, entry.version, entry.crc, 0, False)

    def _version_at(self, place: _Place) -> _Version:
        read = self._read
        if read is not None and (read.entry.version, read.snapshot) == (place.version, place.snapshot):
            return read
        entry = self._log.snapshot(place.version) if place.snapshot else self._log.entry(place.version)
        if entry is None:
            raise cleaned_up(self._log.name, place.version)
        if place.crc not in (0, entry.crc):
            raise other_table(self._log.name, place.table, place.version, place.version, "unknown")
        return self._open_version(entry, place.snapshot)

    def _open_version(self, entry: LogEntry, snapshot: bool) -> _Version:
        columns = () if self._metadata is None else self._metadata.partition_columns
        has_feed = self._metadata is not None and self._metadata.has_feed
        self._read = _Version(entry, snapshot, self._rules.files(entry, columns, has_feed))
        return self._read

    def _check_same(self, place: _Place) -> None:
        """Make sure that the table is still the one that was read up to here."""
        stamp = self._log.stamp(place.version)
        if stamp is not None and (
            self._stamp == (place.version, stamp) or place.crc in (0, self._log.crc(place.version))
        ):
            self._stamp = place.version, stamp
            return
        newest, metadata = self._log.metadata()
        if stamp is not None or metadata.id != place.table or newest < place.version:
            raise other_table(self._log.name, place.table, place.version, newest, metadata.id)
        if newest > place.version and self._log.stamp(place.version + 1) is None:
            raise cleaned_up(self._log.name, place.version + 1)


def fields_of_table(schema: Mapping[str, Any]) -> Fields:
    types = [type_of_json(one["type"], lambda name: _NAMES.get(name, name)) for one in schema["fields"]]
    return Fields.of([one["name"] for one in schema["fields"]], types)
