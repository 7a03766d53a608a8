"""Creates or checks the table of a state, and checks that reads see every write."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any

from states.cassandra.cluster_session import CassandraConnection
from states.cassandra.options import CassandraOptions
from trident.errors import ConfigError, StateError

_COLUMNS = {
    "state": ("partition_key", 0, "text"),
    "bucket": ("partition_key", 1, "int"),
    "key": ("clustering", 0, "blob"),
    "value": ("regular", -1, "blob"),
}
_COMMENT = re.compile(r"trident state table, layout (\d+), (\d+) buckets")
_LAYOUT = 1
_making = threading.Lock()


def open_table(connection: CassandraConnection, options: CassandraOptions, table: str, read_only: bool) -> str:
    """Check keyspace and table, create them if they are absent and that is allowed; return the table's full name.

    Raises
    ------
    ConfigError
        There is no such keyspace, or the consistency levels are too weak for its copies.
    StateError
        There is no such table and creating it is not allowed, or it is not a table of a state, or has another number of
        buckets.
    """
    full = f'"{options.keyspace}"."{table}"'
    with _making:  # two partitions of one process must not create it at once, because nodes could each create their own
        _check_keyspace(connection, options, read_only)
        found = _describe(connection, options.keyspace, table)
        if found is None:
            if read_only or not options.create_table:
                raise StateError(
                    f"there is no table {full} in Cassandra at {options.address}: nothing was ever written, or it was "
                    f"dropped. {'Start the topology first' if read_only else f'Make it with: {_create(full, options)}'}"
                )
            connection.define(_create(full, options))
            found = _describe(connection, options.keyspace, table)
        _check_table(full, found, options)
    return full


def _create(full: str, options: CassandraOptions) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {full} (state text, bucket int, key blob, value blob, "
        f"PRIMARY KEY ((state, bucket), key)) "
        f"WITH comment = 'trident state table, layout {_LAYOUT}, {options.buckets} buckets'"
    )


def _describe(connection: CassandraConnection, keyspace: str, table: str) -> tuple[dict[str, Any], str, int] | None:
    doing = f"describe table {keyspace}.{table}"
    where = "WHERE keyspace_name = ? AND table_name = ?"
    tables = connection.prepare(f"SELECT comment, default_time_to_live FROM system_schema.tables {where}", "ONE")
    described = connection.execute(tables.bind((keyspace, table)), doing)
    if not described:
        return None
    columns = connection.prepare(f"SELECT column_name, kind, position, type FROM system_schema.columns {where}", "ONE")
    found = {row[0]: tuple(row[1:]) for row in connection.execute(columns.bind((keyspace, table)), doing)}
    return found, described[0][0] or "", described[0][1] or 0


def _check_table(full: str, found: tuple[dict[str, Any], str, int] | None, options: CassandraOptions) -> None:
    if found is None:
        raise StateError(f"table {full} was made in Cassandra at {options.address}, and is not there; try again")
    columns, comment, ttl = found
    marked = _COMMENT.search(comment)
    if columns != _COLUMNS or marked is None:
        raise StateError(
            f"table {full} is not a table of a state: its columns are {', '.join(sorted(columns))} and its comment is "
            f"{comment!r}. Nothing was written. Give the state a table of its own with table="
        )
    layout, buckets = int(marked[1]), int(marked[2])
    if layout != _LAYOUT:
        raise StateError(f"table {full} has layout {layout}; this version knows {_LAYOUT}. Nothing was written")
    if buckets != options.buckets:
        raise StateError(
            f"table {full} was made with {buckets} buckets, and buckets={options.buckets} is asked for: keys would not be "
            f"found. Nothing was written. Give buckets={buckets}, or another table"
        )
    if ttl:
        raise StateError(
            f"table {full} has default_time_to_live = {ttl}, so its records of commits would expire. Nothing was "
            f"written. Run: ALTER TABLE {full} WITH default_time_to_live = 0; and give the state ttl_s={ttl}"
        )


# ---- copies ----------------------------------------------------------------------------------------------------------


def _check_keyspace(connection: CassandraConnection, options: CassandraOptions, read_only: bool) -> None:
    select = connection.prepare("SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?", "ONE")
    doing = f"describe keyspace {options.keyspace}"
    found = connection.execute(select.bind((options.keyspace,)), doing)
    if not found and options.replication is not None and not read_only:
        connection.define(_create_keyspace(options))
        found = connection.execute(select.bind((options.keyspace,)), doing)
    if not found:
        raise ConfigError(
            f"there is no keyspace {options.keyspace!r} in Cassandra at {options.address}; make it, or have it made with "
            "replication= the number of copies (3 in most clusters), or {data centre: copies}"
        )
    check_consistency(options, dict(found[0][0]))


def _create_keyspace(options: CassandraOptions) -> str:
    copies = options.replication
    if isinstance(copies, Mapping):
        pairs = {"class": "NetworkTopologyStrategy", **{name: str(count) for name, count in copies.items()}}
    else:
        pairs = {"class": "SimpleStrategy", "replication_factor": str(copies)}
    quoted = ", ".join("'{}': '{}'".format(*(text.replace("'", "''") for text in pair)) for pair in pairs.items())
    return f'CREATE KEYSPACE IF NOT EXISTS "{options.keyspace}" WITH replication = {{{quoted}}}'


def check_consistency(options: CassandraOptions, replication: Mapping[str, str]) -> None:
    """Refuse levels that together do not reach more copies than there are, because a read could miss the last write.

    Parameters
    ----------
    replication
        Of the keyspace, as `system_schema.keyspaces` has it.
    """
    copies = {
        name: int(count.partition("/")[0]) for name, count in replication.items() if name.lower() != "class"
    }  # "3/1": three copies, one of them transient
    levels = options.read_consistency, options.write_consistency
    local = any(level.startswith(("LOCAL", "EACH")) for level in levels)
    # A level that counts within a data centre does not cover the others, so only the copies of one count.
    there = _local_copies(options, copies) if local else sum(copies.values())
    reached = [_reached(level, there, local and len(copies) > 1) for level in levels]
    if sum(reached) <= there and not options.allow_weak_consistency:
        read, write = levels
        raise ConfigError(
            f"reads at {read} ({reached[0]} of {there} copies) and writes at {write} ({reached[1]} of {there}) in keyspace "
            f"{options.keyspace!r} may miss each other, and a state would not be exact. Use QUORUM or LOCAL_QUORUM for "
            "both, or accept that with allow_weak_consistency=True"
        )


def _local_copies(options: CassandraOptions, copies: Mapping[str, int]) -> int:
    if len(copies) == 1:
        return next(iter(copies.values()))
    if options.local_dc is None or options.local_dc not in copies:
        raise ConfigError(
            f"a LOCAL_ consistency level needs local_dc: keyspace {options.keyspace!r} has copies in {sorted(copies)}, and "
            f"local_dc={options.local_dc!r}"
        )
    return copies[options.local_dc]


def _reached(level: str, copies: int, one_of_several: bool) -> int:
    name = level.removeprefix("LOCAL_").removeprefix("EACH_")
    if one_of_several and name == level and level != "ALL":
        return 0  # its copies may be anywhere, perhaps none of them here
    return {"ONE": 1, "TWO": 2, "THREE": 3, "QUORUM": copies // 2 + 1, "ALL": copies}[name]
