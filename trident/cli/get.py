"""`trident get`: read a state from another process than the one that runs the topology, at its last committed batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console

from trident.cli.console import cell, show, wrong_use
from trident.cli.target import parse_keys
from trident.config import Config
from trident.graph import JoinWithinNode, StateNode, WindowNode
from trident.read.state_reader import StateReader
from trident.read.views import results_in
from trident.read.written_values import parse_prefix
from trident.reading import open_state
from trident.servers.plain_json import plain
from trident.state.interfaces import Key
from trident.topology import TridentTopology


@dataclass(frozen=True)
class KeyListing:
    """Which keys are listed: with a prefix, at most so many, or those with the `top` greatest values."""

    prefix: str | None = None
    limit: int | None = None
    top: int | None = None
    by: str | None = None


@dataclass(frozen=True)
class LookupAnswer:
    """What a state holds for some keys, or as a single value; `more` is None if this is not a listing."""

    topology: str
    state: StateNode
    txid: int
    keys: list[Key] | None
    values: list[Any]
    more: bool | None = None
    results: Sequence[str] = ()

    def plain(self) -> dict[str, Any]:
        head: dict[str, Any] = {"topology": self.topology, "state": self.state.name, "txid": self.txid}
        if self.keys is None:
            return {**head, "value": plain(self.values[0])}
        if self.more is not None:
            head["more"] = self.more
        pairs = [{"key": plain(key), "value": plain(value)} for key, value in zip(self.keys, self.values, strict=True)]
        return {**head, "values": pairs}

    def show(self, console: Console) -> None:
        parts = len(self.keys[0]) if self.keys else 0
        names = self.state.key_fields.names or ["key"] * parts
        results = self.results or [", ".join(self.state.value.names) or "value"]
        rows = []
        for key, value in zip([()] if self.keys is None else self.keys, self.values, strict=True):
            cells = [value[name] for name in self.results] if value is not None and self.results else [value]
            absent = ["–"] * (len(names) + len(results) - len(key) - len(cells))
            rows.append([*(cell(part, is_key=True) for part in key), *absent, *map(cell, cells)])
        show(rows, *names, *results, right=range(len(names), len(names) + len(results)), console=console)


def read(
    topology: TridentTopology, config: Config, name: str, texts: Sequence[str], listing: KeyListing | None = None
) -> LookupAnswer:
    """Read some keys of a state, list them, or read its single value, at the log's last committed batch."""
    graph = topology.graph()
    node = graph.state(name)
    if any(isinstance(each, (WindowNode, JoinWithinNode)) and each.state == name for each in graph.nodes):
        raise typer.BadParameter(
            f"state {name!r} keeps the tuples of open windows, or those that a join still needs, in a form of its own; "
            "persist the results of the window or the join, and read that state"
        )
    keys = _keys(topology, node, texts, listing)
    results = results_in(graph.nodes, name).names
    with open_state(topology, name, config) as state:
        rows, more = (_rows_of_keys(state, node, keys), None) if listing is None else _list_rows(state, node, listing)
        values = [{name: row[-1][name] for name in results} if results and row[-1] else row[-1] for row in rows]
        found = [row[:-1] for row in rows] if keys or listing else None
        return LookupAnswer(topology.name, node, state.txid, found, values, more, results)


def _rows_of_keys(state: StateReader, node: StateNode, keys: Sequence[Key]) -> list[tuple[Any, ...]]:
    """Return a row for each key, or for each key that begins so; None is the value of an absent one."""
    if not keys:
        return [(state.get(),)]
    if all(len(key) >= len(node.key_fields) for key in keys):
        return [(*key, value) for key, value in zip(keys, state.multi_get(keys), strict=True)]
    return [row for key in keys for row in list(state.get_tuples(key)) or [(*key, None)]]


def _list_rows(state: StateReader, node: StateNode, listing: KeyListing) -> tuple[list[tuple[Any, ...]], bool | None]:
    prefix, limit = listing.prefix, listing.limit
    with wrong_use(ValueError):
        wanted = None if prefix is None else parse_prefix(prefix, node.key_fields, node.name)
    if listing.top is not None:
        return state.top(listing.top, listing.by, wanted), None
    rows = list(state.get_tuples(wanted, None if limit is None else limit + 1))
    return rows[:limit], limit is not None and len(rows) > limit


def _keys(topology: TridentTopology, node: StateNode, texts: Sequence[str], listing: KeyListing | None) -> list[Key]:
    fields = node.key_fields
    if len(node.value) > 0 and not fields and (texts or listing):
        raise typer.BadParameter(f"state {node.name!r} holds a single value; name no key, and list none")
    if texts and listing:
        raise typer.BadParameter("name keys, or list them with --all, --prefix, --limit or --top; not both")
    if fields and not texts and not listing:
        raise typer.BadParameter(
            f"state {node.name!r} is a map with the key ({', '.join(fields.names)}); name the keys to read, or list them "
            "with --all, --prefix TEXT, --limit N or --top N"
        )
    return parse_keys(topology, node.name, texts, part=True)
