"""Creates or checks the tables of a state, and checks that reads see every write."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from states.cassandra.cluster_session import CassandraConnection
from states.cassandra.cql_columns import BytesColumns, CqlColumns
from states.cassandra.options import CassandraOptions
from trident.errors import ConfigError, StateError, TopologyError
from trident.state.interfaces import StateConf
from trident.storekit.plain_columns import BEFORE, BEFORE_NULL, OWN

PARTITION = (f"{OWN}state", f"{OWN}bucket")  # the columns that rows of one bucket have in common
RECORD = f"{OWN}record"  # the record of a bucket below zero, which has no rows: a floor of timestamps, or a sentinel
_COMMENT = re.compile(r"trident (\w+) table, layout (\d+)(?:, (\d+) buckets)?")
_LAYOUT = 2
_making = threading.Lock()


class TableForm(NamedTuple):
    """What a table must be: the kind, position and type of each column, as `system_schema.columns` has them."""

    columns: Mapping[str, tuple[str, int, str]]
    layout: str
    buckets: int

    @classmethod
    def of(cls, columns: BytesColumns | CqlColumns, buckets: int) -> TableForm:
        own = list(columns.types.items())
        keys = {name: ("clustering", at, type_) for at, (name, type_) in enumerate(own[: columns.width])}
        rest = {name: ("regular", -1, type_) for name, type_ in own[columns.width :]}
        first = {
            name: ("partition_key", at, type_)
            for at, (name, type_) in enumerate(zip(PARTITION, ("text", "int"), strict=True))
        }
        return cls({**first, RECORD: ("static", -1, "blob"), **keys, **rest}, columns.layout, buckets)

    @property
    def comment(self) -> str:
        return f"trident {self.layout} table, layout {_LAYOUT}, {self.buckets} buckets"

    def create(self, full: str) -> str:
        columns = ", ".join(
            f"{quote_name(name)} {type_}{' static' if kind == 'static' else ''}"
            for name, (kind, _, type_) in self.columns.items()
        )
        keys = ", ".join(quote_name(name) for name, (kind, _, _) in self.columns.items() if kind == "clustering")
        return (
            f"CREATE TABLE IF NOT EXISTS {full} ({columns}, PRIMARY KEY (({', '.join(PARTITION)}), {keys})) "
            f"WITH comment = '{self.comment}'"
        )


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def open_table(
    connection: CassandraConnection, options: CassandraOptions, table: str, form: TableForm, conf: StateConf
) -> str:
    """Check keyspace and table, create them if they are absent and that is allowed; return the table's full name."""
    full = f'"{options.keyspace}"."{table}"'
    with _making:  # two partitions of one process must not create it at once, because nodes could each create their own
        select = connection.prepare("SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?", "ONE")
        doing = f"describe keyspace {options.keyspace}"
        copies = connection.execute(select.bind((options.keyspace,)), doing)
        if not copies and options.replication is not None and not conf.read_only:
            connection.define(_create_keyspace(options))
            copies = connection.execute(select.bind((options.keyspace,)), doing)
        if not copies:
            raise ConfigError(
                f"there is no keyspace {options.keyspace!r} in Cassandra at {options.address}; make it, or have it made with "
                "replication= the number of copies (3 in most clusters), or {data centre: copies}"
            )
        check_consistency(options, dict(copies[0][0]))
        found = _describe(connection, options.keyspace, table)
        if found is None:
            if conf.read_only or not options.create_table:
                raise StateError(
                    f"there is no table {full} in Cassandra at {options.address}: nothing was ever written, or it was "
                    f"dropped. {'Start the topology first' if conf.read_only else f'Make it with: {form.create(full)}'}"
                )
            connection.define(form.create(full))
            found = _describe(connection, options.keyspace, table)
        if conf.evolves and found is not None and _add_missing(connection, full, form, found[0], conf.read_only):
            found = _describe(connection, options.keyspace, table)
        _check_table(full, found, form, options.address)
    return full


def _add_missing(
    connection: CassandraConnection, full: str, form: TableForm, there: Mapping[str, Any], read_only: bool
) -> bool:
    """Add the columns that a table of a former declaration lacks, if any; Cassandra gives a column no other type."""
    for name, column in form.columns.items():
        if name in there and there[name] != column:
            raise TopologyError(
                f"table {full}: column {name} is {there[name][2]}, and {column[2]} as it is declared now; Cassandra does not "
                "change the type of a column. Nothing was written. Keep the former type, or give the new declaration another "
                "table, and move the state there with `trident state move`"
            )
    lacking = [f"{quote_name(name)} {type_}" for name, (_, _, type_) in form.columns.items() if name not in there]
    if not lacking:
        return False
    if read_only:
        raise StateError(
            f"table {full} has no column {', '.join(lacking)} yet: start the topology with this declaration first"
        )
    connection.define(f"ALTER TABLE {full} ADD ({', '.join(lacking)})")
    return True


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


def _check_table(full: str, found: tuple[dict[str, Any], str, int] | None, form: TableForm, address: str) -> None:
    if found is None:
        raise StateError(f"table {full} was made in Cassandra at {address}, but is not there; try again")
    columns, comment, ttl = found
    marked = _COMMENT.search(comment)
    if marked is not None:
        _check_mark(full, form, *marked.groups())
    if marked is None or not _has_form(columns, form):
        wanted = ", ".join(f"{name} {type_}" for name, (_, _, type_) in form.columns.items())
        there = ", ".join(f"{name} {columns[name][2]}" for name in sorted(columns))
        raise StateError(
            f"table {full} is not a table of a state: its columns are {there} and its comment is {comment!r}, not {wanted} "
            f"and {form.comment!r}. Nothing was written. Give the state a table of its own with table="
        )
    if ttl:
        raise StateError(
            f"table {full} has default_time_to_live = {ttl}, so its records of commits would expire. Nothing was "
            f"written. Run: ALTER TABLE {full} WITH default_time_to_live = 0; and if values are to expire, give the "
            f"state ttl_s={ttl}"
        )


def _check_mark(full: str, form: TableForm, layout: str, version: str, buckets: str | None) -> None:
    """Refuse a table by what its comment says of it."""
    if int(version) != _LAYOUT:
        raise StateError(
            f"table {full} has layout {version}; this version knows {_LAYOUT}. Nothing was written. Give the state another "
            "table, or read this one with the version that wrote it"
        )
    if layout != form.layout:
        raise StateError(
            f"table {full} has layout={layout!r}, and layout={form.layout!r} is asked for. Nothing was written. Give the "
            "layout that it has, or another table; `trident state move` brings a state from one layout to the other"
        )
    if buckets is not None and int(buckets) != form.buckets:
        raise StateError(
            f"table {full} was made with {buckets} buckets, and buckets={form.buckets} is asked for: keys would not be "
            f"found. Nothing was written. Give buckets={buckets}, or another table"
        )


def _has_form(columns: Mapping[str, Any], form: TableForm) -> bool:
    """Whether a table has the columns of a form; an owner may add others."""
    more = columns.keys() - form.columns.keys()
    former = {name for name in more if name.startswith(f"{BEFORE}_") and BEFORE_NULL in form.columns}
    is_own = not any(name.startswith(OWN) or columns[name][0] != "regular" for name in more - former)
    return form.columns.items() <= columns.items() and is_own


def _create_keyspace(options: CassandraOptions) -> str:
    copies = options.replication
    if isinstance(copies, Mapping):
        pairs = {"class": "NetworkTopologyStrategy", **{name: str(count) for name, count in copies.items()}}
    else:
        pairs = {"class": "SimpleStrategy", "replication_factor": str(copies)}
    quoted = ", ".join("'{}': '{}'".format(*(text.replace("'", "''") for text in pair)) for pair in pairs.items())
    return f'CREATE KEYSPACE IF NOT EXISTS "{options.keyspace}" WITH replication = {{{quoted}}}'


def check_consistency(options: CassandraOptions, replication: Mapping[str, str]) -> None:
    """Refuse levels that together do not reach more copies than there are, because a read could miss the last write."""
    # "3/1": three copies, one of them transient
    copies = {name: int(count.partition("/")[0]) for name, count in replication.items() if name.lower() != "class"}
    levels = options.read_consistency, options.write_consistency
    local = any(level.startswith(("LOCAL", "EACH")) for level in levels)
    there = sum(copies.values())
    if local and len(copies) != 1:  # a level within a data centre does not cover the others: one's copies count
        if options.local_dc is None or options.local_dc not in copies:
            raise ConfigError(
                f"a LOCAL_ consistency level needs local_dc: keyspace {options.keyspace!r} has copies in {sorted(copies)}, "
                f"and local_dc={options.local_dc!r}"
            )
        there = copies[options.local_dc]
    reached = [_replicas_reached(level, there, local and len(copies) > 1) for level in levels]
    if sum(reached) <= there and not options.allow_weak_consistency:
        read, write = levels
        raise ConfigError(
            f"reads at {read} ({reached[0]} of {there} copies) and writes at {write} ({reached[1]} of {there}) in keyspace "
            f"{options.keyspace!r} may miss each other, and a state would not be exact. Use QUORUM or LOCAL_QUORUM for "
            "both, or accept that with allow_weak_consistency=True"
        )


def _replicas_reached(level: str, copies: int, one_of_several: bool) -> int:
    name = level.removeprefix("LOCAL_").removeprefix("EACH_")
    if one_of_several and name == level and level != "ALL":
        return 0  # its copies may be anywhere, perhaps none of them here
    return {"ONE": 1, "TWO": 2, "THREE": 3, "QUORUM": copies // 2 + 1, "ALL": copies}[name]
