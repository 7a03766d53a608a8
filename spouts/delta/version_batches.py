"""Chooses the files that make up a batch: the driver's side of `DeltaSpout`.

A definition is plain data:

``table``
    The id of the table, from its metadata.
``version``, ``crc``
    How far the table was read: a version, and the checksum of its entry in the log.
``taken``, ``snapshot``
    How many files of that version were read, -1 for all of them; whether they are the whole table's at that version, and
    not the ones that the version added.
``commits``
    What the batch contains: `[version, timestamp, files]` for each version, with `[change, path, size, partition values]` for
    each file. So a replay needs these files alone, and not the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from spouts.delta.change_rules import ChangeRules
from spouts.delta.table_log import LogEntry, LoggedFile, Metadata, TableLog, cleaned_up, not_there, other_table
from spouts.delta.version_rows import FilePiece, fields_of_table
from spouts.files.ranges import FileRange, cut
from trident.errors import SpoutError
from trident.spout.interfaces import Definition, Lag, ThrottledCoordinator, TransactionAttempt

_ALL = -1
_MAX_VERSIONS = 1000


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
        """Fix the files of a batch; None if the table has no further version.

        Raises `ReplayMismatchError`: it is another table now, or it was set back.
        Raises `SpoutError`: its log was cleaned up too far, or a version cannot be read as a stream of this kind.
        """
        if previous is None:
            before = self._first()
        else:
            before = _Place(**{one.name: previous[one.name] for one in fields(_Place)})
            if self._metadata is None:
                self._look_at(before)
        after, commits = self._filled(before)
        if after == before and not (previous is None and after.taken == _ALL):
            return None
        self._newest = max(after.version, self._log.newest(after.version))
        return {**asdict(after), "commits": commits}

    def parts(
        self, attempt: TransactionAttempt, definition: Definition, parallelism: int
    ) -> Sequence[tuple[FilePiece, ...]]:
        """Cut the files to about equal bytes; workers align to row groups."""
        made: dict[int, FilePiece] = {}
        ranges = []
        for version, timestamp_ms, files in definition["commits"]:
            for change, path, size, values in files:
                range_ = FileRange(path, 0, max(1, size), 0)
                ranges.append(range_)
                made[id(range_)] = FilePiece(LoggedFile(change, path, size, values), version, timestamp_ms, 0, 0)
        return [
            tuple(made[id(piece.range)]._replace(start=piece.start, end=piece.end) for piece in part)
            for part in cut(ranges, parallelism, lambda _: False)
        ]

    def size(self, definition: Definition) -> int:
        return sum(max(0, size) for _, _, files in definition["commits"] for _, _, size, _ in files)

    def lag(self, definition: Definition) -> Lag:
        """Say how many versions the table had after this one when it was last looked at; one that is read in part counts."""
        left = self._newest - int(definition["version"]) + (definition["taken"] != _ALL)
        return Lag(max(0, left), "versions")

    # ---- where to begin --------------------------------------------------------------------------------------------------

    def _first(self) -> _Place:
        newest, metadata, features = self._log.metadata()
        self._columns = fields_of_table(metadata.schema).names
        if isinstance(self._start, int):
            if self._start > newest + 1 or (self._start <= newest and self._log.stamp(self._start) is None):
                raise not_there(self._log.name, self._start, newest)
            if self._start <= newest:
                newest, (metadata, features) = self._start, self._metadata_at(self._start, metadata, features)
        self._check(newest, metadata, features)
        crc = self._log.crc(newest) or 0
        if self._start == "earliest":
            return _Place(metadata.id, newest, crc, 0, True)
        if isinstance(self._start, int) and self._start == newest:
            return _Place(metadata.id, newest, crc, 0, False)
        return _Place(metadata.id, newest, crc, _ALL, False)

    def _look_at(self, place: _Place) -> None:
        """Learn after a start what the table is where the log of the topology says that it was read to."""
        newest, metadata, features = self._log.metadata()
        self._columns = fields_of_table(metadata.schema).names
        if metadata.id != place.table or newest < place.version:
            raise other_table(self._log.name, place.table, place.version, newest, metadata.id)
        self._check(place.version, *self._metadata_at(place.version, metadata, features))

    def _metadata_at(
        self, version: int, newest: Metadata, features: tuple[str, ...]
    ) -> tuple[Metadata, tuple[str, ...]]:
        """Return what the table was at a version; what it is now if the log does not go back so far."""
        try:
            _, metadata, then = self._log.metadata(version)
        except SpoutError:
            if self._log.goes_back_to(version):
                raise
            return newest, features
        return metadata, then

    def _check(self, version: int, metadata: Metadata, features: Sequence[str]) -> None:
        self._rules.check_readable(version, features)
        self._rules.check_metadata(version, metadata, self._columns)
        self._metadata = metadata

    # ---- going on --------------------------------------------------------------------------------------------------------

    def _filled(self, place: _Place) -> tuple[_Place, list[list[Any]]]:
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
        self._opened(entry, snapshot=False)
        return _Place(place.table, entry.version, entry.crc, 0, False)

    def _version_at(self, place: _Place) -> _Version:
        """Return the version that a place is in."""
        read = self._read
        if read is not None and (read.entry.version, read.snapshot) == (place.version, place.snapshot):
            return read
        entry = self._log.snapshot(place.version) if place.snapshot else self._log.entry(place.version)
        if entry is None:
            raise cleaned_up(self._log.name, place.version)
        if place.crc not in (0, entry.crc):
            raise other_table(self._log.name, place.table, place.version, place.version, "unknown")
        return self._opened(entry, place.snapshot)

    def _opened(self, entry: LogEntry, snapshot: bool) -> _Version:
        columns = () if self._metadata is None else self._metadata.partition_columns
        has_feed = self._metadata is not None and self._metadata.has_feed
        self._read = _Version(entry, snapshot, self._rules.files(entry, columns, has_feed))
        return self._read

    def _check_same(self, place: _Place) -> None:
        """Make sure that the table is still the one that was read up to here."""
        stamp = self._log.stamp(place.version)
        if stamp is not None and self._stamp == (place.version, stamp):
            return
        if stamp is None:
            newest, metadata, _ = self._log.metadata()
            if metadata.id != place.table or newest < place.version:
                raise other_table(self._log.name, place.table, place.version, newest, metadata.id)
            if newest > place.version and self._log.stamp(place.version + 1) is None:
                raise cleaned_up(self._log.name, place.version + 1)
        elif place.crc not in (0, self._log.crc(place.version)):
            newest, metadata, _ = self._log.metadata()
            raise other_table(self._log.name, place.table, place.version, newest, metadata.id)
        else:
            self._stamp = place.version, stamp
