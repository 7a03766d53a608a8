"""Which files of a version have rows of the stream, and what cannot be read: refused by name, with the choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spouts.delta.table_log import LogEntry, LoggedFile, Metadata
from spouts.delta.version_rows import fields_of_table
from trident.alignment import reads_as
from trident.arrow import arrow_type, schema_of
from trident.errors import SpoutError
from trident.fields import Fields, names_shown

# Features of the protocol that do not change what a data file says, or are looked for where they would.
_KNOWN = {
    "columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening",
    "typeWidening-preview",
}  # fmt: skip
_MAPPING = "delta.columnMapping.mode"


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
                    f"{names_shown(there.names, name)}. Leave the field out and start again, or start with another "
                    "name of the stream to read from here on"
                )
            found = there.type_of(name) or ""
            if not reads_as(arrow_type(found), wanted):
                raise SpoutError(
                    f"column {name!r} of the Delta table {self.table} is {found} at version {version}, and the stream has it "
                    f"as {self.fields.type_of(name)}. Declare it as {found} and start again; states that keep values of the "
                    "old type may need allow_changed_topology=True"
                )

    def files(self, entry: LogEntry, partition_columns: Sequence[str], has_feed: bool) -> list[LoggedFile]:
        """Return the files of a version that have rows; `has_feed` says whether the table keeps what changes."""
        files = self._changes(entry, has_feed) if self.mode == "changes" else self._appended(entry)
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

    def _appended(self, entry: LogEntry) -> list[LoggedFile]:
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
