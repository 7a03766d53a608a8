"""Which states of a topology a simulation compares, all that is in one of them, and how two runs differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trident.comparing import is_close
from trident.errors import ConfigError
from trident.graph import Graph, JoinWithinNode, PersistNode, StateNode, WindowNode
from trident.runtime.start.opened_topology import OpenedTopology

Contents = Mapping[str, Mapping[Any, Any]]
"""What is in each state, or another place: by key, the value."""

_SHOWN = 5
_LONGEST = 120


def written_states(graph: Graph) -> list[str]:
    """Return the states that batches write."""
    return [node.state for node in graph.nodes if isinstance(node, PersistNode)]


def compared_states(graph: Graph) -> list[str]:
    """Return the states whose contents do not depend on how rows are cut: not what windows and joins keep meanwhile."""
    persists = [node for node in graph.nodes if isinstance(node, PersistNode)]
    return [node.state for node in persists if not isinstance(node, (WindowNode, JoinWithinNode))]


def contents_of(opened: OpenedTopology, node: StateNode) -> dict[Any, Any]:
    """Read all of a state. Raises `ConfigError`: the state has no method for that."""
    view, writer = opened.view(node.name), opened.states[node.name][0]
    if not len(node.key_fields) and len(node.value):
        return {(): view.get()}
    if not (writer.offers("get_tuples") or writer.offers("get_tuples_at")):
        raise ConfigError(
            f"state {node.name!r} ({type(writer.given).__name__}) cannot be compared: it has no get_tuples(); write one that "
            f"gives a row for each key, or leave the state out with ignore=[{node.name!r}]"
        )
    rows = list(view.get_tuples())
    found: dict[Any, Any] = {}
    for row in rows:
        key = row[:-1]
        found[key] = (*found[key], row[-1]) if key in found else (row[-1],)
    return {key: values[0] if len(values) == 1 else sorted(values, key=repr) for key, values in found.items()}


def differences(wanted: Contents, found: Contents, said: tuple[str, str] = ("expected", "found")) -> list[str]:
    """Return a line for each place that differs, with some of its keys; `said` stands before a value of each."""
    lines: list[str] = []
    for place in {**wanted, **found}:
        wrong = list(_wrong(wanted.get(place, {}), found.get(place, {}), *said))
        if wrong:
            more = f", and {len(wrong) - _SHOWN} keys more" if len(wrong) > _SHOWN else ""
            lines.append(f"{place}: {'; '.join(wrong[:_SHOWN])}{more}")
    return lines


def _wrong(expected: Mapping[Any, Any], found: Mapping[Any, Any], one: str, other: str) -> Iterator[str]:
    for key in {**expected, **found}:
        if key not in found or key not in expected or not is_close(expected[key], found[key]):
            left, right = (_short(each[key]) if key in each else "nothing" for each in (expected, found))
            yield f"{f'{key!r}: ' if key != () else ''}{one} {left}, {other} {right}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
