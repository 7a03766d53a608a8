"""`SqlTable`: nodes as rows of a table, with the statements that SQLite and PostgreSQL both understand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from trident.nodes.interface import StoredNode
from trident.nodes.polled_nodes import Changes, above

_MAX_VALUES = 500  # SQLite takes 999, or more since 3.32


class SqlTable:
    """The rows that a transaction sees; implements `NodeTable`.

    `execute`: of a connection. `table`: its name. `mark`: what stands for a value in a statement. `root`: goes before paths.
    """

    def __init__(
        self, execute: Callable[[str, Sequence[Any]], Any], table: str = "node", mark: str = "?", root: str = ""
    ) -> None:
        self._execute, self._table, self._mark, self._root = execute, table, mark, root

    def find(self, paths: Sequence[str]) -> dict[str, StoredNode]:
        rows = self._rows(
            "SELECT path, data, version, session FROM {} WHERE path", [self._root + path for path in paths]
        )
        return {self._path(row[0]): StoredNode(*row[1:]) for row in rows}

    def below(self, paths: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for parent, name in self._rows(
            "SELECT parent, name FROM {} WHERE parent", [self._root + path for path in paths]
        ):
            found.setdefault(self._path(parent), []).append(name)
        return found

    def owned(self, session: str) -> list[str]:
        return [self._path(row[0]) for row in self._rows("SELECT path FROM {} WHERE session", [session])]

    def write(self, changes: Changes) -> None:
        for path, node in changes.items():
            if node is None:
                self._run("DELETE FROM {} WHERE path = ?", (self._root + path,))
            else:
                self._run(
                    "INSERT INTO {} (path, parent, name, data, version, session) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (path) "
                    "DO UPDATE SET data = excluded.data, version = excluded.version, session = excluded.session",
                    (self._root + path, self._root + above(path), path.rpartition("/")[2], *node),
                )

    def _path(self, path: str) -> str:
        return path.removeprefix(self._root)

    def _rows(self, query: str, values: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        wanted = list(dict.fromkeys(values))
        for at in range(0, len(wanted), _MAX_VALUES):
            some = wanted[at : at + _MAX_VALUES]
            yield from self._run(f"{query} IN ({', '.join('?' * len(some))})", some).fetchall()

    def _run(self, statement: str, values: Sequence[Any]) -> Any:
        return self._execute(statement.format(self._table).replace("?", self._mark), values)
