"""`trident get`: read a state from another process than the one that runs the topology, at its last committed batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import typer
from rich.table import Table

from trident.cli.console import results, say
from trident.config import Config
from trident.fields import Fields
from trident.graph import StateNode
from trident.runtime.foreign_logs import open_foreign_log
from trident.runtime.states import open_view
from trident.state.interfaces import Key
from trident.topology import TridentTopology

__all__ = ["Answer", "get", "parse_key", "plain"]


@dataclass(frozen=True)
class Answer:
    """What a state holds for some keys, after batch `txid`. A single value has no keys."""

    topology: str
    state: StateNode
    txid: int
    keys: list[Key]
    values: list[Any]

    def to_json(self) -> str:
        """Return the answer as one JSON object."""
        head = {"topology": self.topology, "state": self.state.name, "txid": self.txid}
        if not self.keys:
            return json.dumps({**head, "value": plain(self.values[0])}, ensure_ascii=False)
        pairs = [{"key": plain(key), "value": plain(value)} for key, value in zip(self.keys, self.values, strict=True)]
        return json.dumps({**head, "values": pairs}, ensure_ascii=False)

    def to_table(self) -> Table:
        """Return the answer as a table for the terminal."""
        table = Table()
        parts = len(self.keys[0]) if self.keys else 0
        for name in self.state.key_fields.names or ["key"] * parts:
            table.add_column(name)
        table.add_column(", ".join(self.state.value.names) or "value", justify="right")
        for key, value in zip(self.keys or [()], self.values, strict=True):
            table.add_row(*map(_shown, key), "–" if value is None else _shown(value))
        return table


def get(topology: TridentTopology, config: Config, name: str, texts: Sequence[str], as_json: bool) -> None:
    """Print the values of some keys of a state, or its single value."""
    answer = read(topology, config, name, texts)
    if as_json:
        typer.echo(answer.to_json())
    else:
        results().print(answer.to_table(), markup=False)
        say(f"{answer.topology}, state {name}, after batch {answer.txid}")


def read(topology: TridentTopology, config: Config, name: str, texts: Sequence[str]) -> Answer:
    """Read some keys of a state, or its single value, all at the snapshot of the log's last committed batch.

    Raises
    ------
    TopologyError
        There is no such state.
    UnsupportedOperation
        The state lives in memory.
    LogError, ForeignLogError
        There is no log, or it is of another topology.
    """
    graph = topology.graph()
    node = graph.state(name)
    keys = _keys(node, texts)
    reader = open_foreign_log(topology.name, config, [node], f'Read it there with running.state("{name}")')
    log = reader.refresh()
    snapshots = [log.snapshot(name)]

    def snapshot() -> Any:
        snapshots.append(reader.refresh().snapshot(name))
        return snapshots[-1]

    partitions = log.layouts[name][0] if name in log.layouts else None
    with closing(open_view(graph, config, name, snapshot, partitions)) as view:
        values = view.multi_get(keys) if keys else [view.get()]
    return Answer(topology.name, node, snapshots[-1].txid, keys, values)


def _keys(node: StateNode, texts: Sequence[str]) -> list[Key]:
    fields = node.key_fields
    aggregated = len(node.value) > 0
    if aggregated and not fields and texts:
        raise typer.BadParameter(f"state {node.name!r} holds a single value; name no key")
    if fields and not texts:
        raise typer.BadParameter(
            f"state {node.name!r} is a map with the key ({', '.join(fields.names)}); name the keys to read"
        )
    return [parse_key(text, fields, node.name) for text in texts]


def parse_key(text: str, fields: Fields, state: str) -> Key:
    """Turn an argument into a key: the text of a key of one part, a JSON list for one of several.

    Where nobody knows the fields, a JSON list is a key of several parts and anything else a text.
    """
    if len(fields) == 1:
        return (_typed(text, fields.types[0], f"key {text!r} of state {state!r}"),)
    try:
        parts = json.loads(text)
    except ValueError:
        parts = None
    if not fields:
        return tuple(parts) if isinstance(parts, list) else (text,)
    if not isinstance(parts, list) or len(parts) != len(fields):
        raise typer.BadParameter(
            f"key {text!r} of state {state!r}: expected a JSON list of its {len(fields)} parts "
            f"({', '.join(fields.names)}), as in '[\"a\", 1]'"
        )
    names = zip(parts, fields.types, fields.names, strict=True)
    return tuple(_typed(part, type_, f"{field} of key {text!r} of state {state!r}") for part, type_, field in names)


def _typed(value: Any, type_: str | None, what: str) -> Any:
    """Turn a text, or what JSON made of it, into the type of a field."""
    if value is None or type_ is None:
        return value
    base = type_.partition("(")[0]
    read = _READERS.get(base)
    if read is None:
        return value
    try:
        return read(value)
    except (ValueError, TypeError, ArithmeticError):
        raise typer.BadParameter(f"{what}: expected a value of type {type_}") from None


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, str) and type(value) is not int:
        raise TypeError(value)
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError(value)
    return float(value)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return ("false", "true").index(_string(value).lower()) == 1


def _timestamp(value: Any) -> datetime:
    read = datetime.fromisoformat(value)
    return read if read.tzinfo else read.replace(tzinfo=UTC)


_READERS: dict[str, Callable[[Any], Any]] = {
    "string": _string,
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _integer),
    **dict.fromkeys(("float", "double"), _number),
    "boolean": _boolean,
    "decimal": lambda value: Decimal(str(value)),
    "date": date.fromisoformat,
    "timestamp": _timestamp,
    "timestamp_ntz": datetime.fromisoformat,
    "binary": lambda value: _string(value).encode(),
}


def plain(value: Any) -> Any:
    """Return a value as JSON has it: numbers, texts, lists and mappings; all else as text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(plain(value))
