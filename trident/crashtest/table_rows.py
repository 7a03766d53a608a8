"""Reads the table that a job writes (files, SQLite, PostgreSQL, what a function returns), and compares two as multisets."""

import csv
import json
import os
import sqlite3
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from trident.errors import ConfigError, TridentError, describe
from trident.extras import needs_package
from trident.redaction import redacted
from trident.servers.local_processes import run_captured

Row = Mapping[str, Any]
"""A row: its columns by name."""

_KINDS = (
    "a folder or file of Parquet, CSV, JSON or Delta below the job's folder, sqlite:///counts.db?table=counts, "
    "postgresql://host/database?table=counts, or module:function that returns rows"
)


@dataclass(frozen=True)
class Table:
    """A table, as the command line names it; nothing is opened before `read`.

    `name`: how it is shown, without secrets.
    `place`: the relative path, the URL without its query, or `module:function`.
    `select`: of a database: what is read.
    """

    name: str
    kind: str
    place: str
    select: str = ""
    options: Mapping[str, str] | None = None

    @property
    def database(self) -> str | None:
        """The name that `--copy` has to say; None where the table is in the copy of the folder."""
        if self.kind == "function":
            return self.place
        return unquote(urlsplit(self.place).path.strip("/")) if self.kind == "postgres" else None

    def read(self, folder: Path) -> list[Row]:
        """Return all rows, in no order; none if there is no table (yet). `TridentError` if it cannot be read."""
        try:
            return list(_READ[self.kind](self, folder))
        except (OSError, ValueError, csv.Error, sqlite3.Error) as error:
            raise TridentError(f"table {self.name} cannot be read: {describe(error)}") from error


def table_named(text: str) -> Table:
    """Return the table that a text names; `ConfigError` if it names none, or one that is not in the copy of the folder."""
    url = urlsplit(text)
    if url.scheme in ("sqlite", "postgresql", "postgres"):
        return _database(text, url)
    if url.scheme in ("", "file") or not all(part.replace(".", "").isidentifier() for part in text.split(":")):
        path, _, query = text.partition("?")
        return Table(text, "path", _relative(path, text), options=dict(parse_qsl(query)))
    return Table(text, "function", text)


def _database(text: str, url: SplitResult) -> Table:
    options = dict(parse_qsl(url.query))
    table, query = options.pop("table", ""), options.pop("query", "")
    if not table and not query:
        raise ConfigError(f"--table {redacted(text)} does not say what to read there: add ?table=NAME or ?query=SELECT")
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))
    select = query or f"SELECT * FROM {quoted}"
    if url.scheme == "sqlite":
        path = _relative(unquote(url.path.removeprefix("/")), text)
        return Table(f"{table or query} in {path}", "sqlite", path, select)
    shown = f"{table or query} in {redacted(urlunsplit(url._replace(query='')))}"
    return Table(shown, "postgres", urlunsplit(url._replace(query=urlencode(options))), select)


def _relative(path: str, text: str) -> str:
    """Refuse what is not below the folder: there is no copy of it."""
    inside = os.path.normpath(path)
    if "://" in path or path.startswith("file:") or Path(path).is_absolute() or Path(inside).parts[:1] == ("..",):
        raise ConfigError(
            f"--table {redacted(text)} is not a path below the folder that is copied, and a test must not touch the real "
            f"table. Give {_KINDS}; and let the job write to the same relative path"
        )
    return inside


def _rows_of_path(table: Table, folder: Path) -> Iterable[Row]:
    path = folder / table.place
    if not (path / "_delta_log").is_dir():
        return [row for file in _files(path) for row in _rows_of_file(file, path, table)]
    with needs_package("a Delta table", "delta"):
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError
    try:
        return list(DeltaTable(str(path)).to_pyarrow_table().to_pylist())
    except TableNotFoundError:  # its folder is there, and no commit yet
        return []
    except DeltaError as error:
        raise TridentError(f"table {table.name} cannot be read: {describe(error)}") from error


def _files(path: Path) -> list[Path]:
    """Return the files of a table as Spark sees them: without `_…` and `.…`, and of a sink's folder only what its log names."""
    if path.is_file():
        return [path]
    found = (each for each in path.rglob("*") if each.is_file())
    shown = sorted(each for each in found if not any(part[0] in "_." for part in each.relative_to(path).parts))
    log = path / "_spark_metadata"
    if not log.is_dir():
        return shown
    lines = [line for each in log.glob("[0-9]*") for line in each.read_bytes().splitlines()[1:]]
    named = {unquote(json.loads(line)["path"]).rpartition("/")[2] for line in lines}
    return [each for each in shown if each.name in named]


def _rows_of_file(file: Path, root: Path, table: Table) -> Iterator[Row]:
    folders = [part.partition("=") for part in file.relative_to(root).parts[:-1]]
    columns = {name: value for name, sign, value in folders if sign}  # of partitions: day=2026-01-01
    match file.suffix:
        case ".parquet":
            import pyarrow.parquet as pq

            rows: Iterable[Row] = pq.ParquetFile(file).read().to_pylist()
        case ".json" | ".jsonl":
            rows = _rows_of_json(file, lines=file != root or file.suffix == ".jsonl")
        case ".csv":
            rows = _rows_of_csv(file, (table.options or {}).get("header", "").lower() == "true")
        case _:
            raise TridentError(
                f"table {table.name} has the file {file.name}, which is not .parquet, .csv, .json or .jsonl. Give the rows "
                "with a function of your own: --table module:function"
            )
    yield from ({**columns, **row} for row in rows)


def _rows_of_csv(file: Path, header: bool) -> Iterator[Row]:
    with file.open(encoding="utf-8", newline="") as lines:
        # A line that a kill has cut, and the next one written behind it, have more values than there are names.
        yield from csv.DictReader(lines, restkey="beyond the header") if header else map(_as_row, csv.reader(lines))


def _rows_of_json(file: Path, lines: bool) -> list[Row]:
    """Read a row in each line, as Spark writes them; or one list of rows, one object with a row for each key, or one value."""
    data = file.read_bytes()
    whole = [json.loads(line) for line in data.splitlines() if line.strip()] if lines else json.loads(data)
    if isinstance(whole, dict):
        return [{"key": key, "value": value} for key, value in whole.items()]
    return [_as_row(row) for row in (whole if isinstance(whole, list) else [whole])]


def _as_row(row: Any) -> Row:
    if isinstance(row, Mapping):
        return row
    values = row if isinstance(row, Sequence) and not isinstance(row, str) else [row]
    return {f"_c{number}": value for number, value in enumerate(values)}  # as Spark calls columns without a name


def _rows_of_sqlite(table: Table, folder: Path) -> list[Row]:
    path = folder / table.place
    if not path.exists():
        return []
    try:
        with closing(sqlite3.connect(path)) as database:
            found = database.execute(table.select)
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found]
    except sqlite3.Error as error:
        if "no such table" in str(error):
            return []
        raise


def _rows_of_postgres(table: Table, folder: Path) -> list[Row]:
    with needs_package("a table in PostgreSQL", "postgres"):
        import psycopg
        from psycopg.rows import dict_row

        from trident.servers.postgres_connection import text_of
    try:
        with psycopg.connect(table.place, row_factory=dict_row) as connection:
            return list(connection.execute(table.select.encode()))
    except psycopg.errors.UndefinedTable:
        return []
    except psycopg.Error as error:
        raise TridentError(f"table {table.name} cannot be read: {text_of(error)}") from error


_CALL = """
import importlib, json, sys
sys.path.insert(0, "")
module, name, result = sys.argv[1:]
rows = [row.asDict() if hasattr(row, "asDict") else row for row in getattr(importlib.import_module(module), name)()]
with open(result, "w") as file:
    json.dump(rows, file, default=str)
"""


def _rows_of_function(table: Table, folder: Path) -> list[Row]:
    """Call the function in a process of its own, in the copy, as its relative paths are those of the job."""
    module, _, function = table.place.partition(":")
    with tempfile.TemporaryDirectory() as place:
        result = Path(place, "rows.json")
        done = run_captured([sys.executable, "-c", _CALL, module, function, str(result)], cwd=folder)
        if done.returncode:
            raise TridentError(
                f"{table.name}() gave no rows for the table: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}. "
                "It is called without arguments, in the copy of the folder, and returns mappings or sequences"
            )
        return [_as_row(row) for row in json.loads(result.read_text(encoding="utf-8"))]


_READ: Mapping[str, Callable[[Table, Path], Iterable[Row]]] = {
    "path": _rows_of_path, "sqlite": _rows_of_sqlite, "postgres": _rows_of_postgres, "function": _rows_of_function,
}  # fmt: skip


@dataclass(frozen=True)
class RowDifference:
    """A key whose rows differ, and what was expected and found of it, as text."""

    key: str
    expected: str
    found: str


@dataclass(frozen=True)
class Comparison:
    """How two tables are compared: by `key` (none: the whole row, whose copies are counted), without columns `ignored`."""

    key: Sequence[str] = ()
    ignored: Sequence[str] = ()

    def differences(self, expected: Sequence[Row], found: Sequence[Row]) -> list[RowDifference]:
        """Return the keys that differ, in order; `ConfigError` if a column of the key is not in the table."""
        one, other = self._count_by_key(expected), self._count_by_key(found)
        return [
            RowDifference(key, self._counts_text(one[key]), self._counts_text(other[key]))
            for key in sorted({*one, *other})
            if one[key] != other[key]
        ]

    def _count_by_key(self, rows: Sequence[Row]) -> defaultdict[str, Counter[str]]:
        grouped: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for row in rows:
            if missing := [name for name in self.key if name not in row]:
                raise ConfigError(f"--key {missing[0]} is not a column of the table; it has {', '.join(row)}")
            kept = {name: value for name, value in row.items() if name not in self.ignored}
            names = self.key or list(kept)
            rest = {name: value for name, value in kept.items() if name not in names}
            grouped[_text({name: row[name] for name in names}, bare=len(self.key) == 1)][_text(rest)] += 1
        return grouped

    def _counts_text(self, rows: Counter[str]) -> str:
        if not rows:
            return "no row"
        if not self.key or set(rows) == {""}:
            return f"{rows.total()} ×"
        return "; ".join(row if count == 1 else f"{count} × {row}" for row, count in sorted(rows.items()))


def _text(row: Mapping[str, Any], bare: bool = False) -> str:
    values = {name: _value(row[name]) for name in sorted(row)}
    return next(iter(values.values())) if bare else ", ".join(f"{name}={value}" for name, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        return json.dumps(_round_floats(value), sort_keys=True, default=str)
    if isinstance(value, str):  # one that would be taken for a null is quoted, and so is what is quoted
        return repr(value) if value == "NULL" or value[:1] in _QUOTES else value
    return "NULL" if value is None else format(value + 0.0, ".12g") if isinstance(value, float) else str(value)


_QUOTES = ("'", '"')


def _round_floats(value: Any) -> Any:
    """Return a value whose floats have 12 digits, and no -0: the order in which a sum was added up is no difference."""
    if isinstance(value, dict):
        return {key: _round_floats(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_round_floats(each) for each in value]
    return float(_value(value)) if isinstance(value, float) else value
