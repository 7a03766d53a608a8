"""What a simulation compares: all that is in states, and what code has put into lists, dicts and sets outside of them."""

import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from datetime import date, time, timedelta
from decimal import Decimal
from functools import partial
from types import FunctionType, MethodType
from typing import Any
from uuid import UUID

from trident.comparing import is_close
from trident.errors import ConfigError, CorruptValueError
from trident.graph import Graph, JoinWithinNode, PersistNode, StateNode, WindowNode
from trident.operations.interfaces import Operation
from trident.roles import has
from trident.run.opened_topology import OpenedTopology
from trident.state.encoding.equal_keys import typed_keys
from trident.state.map_state import MapStateFactory

Contents = Mapping[Any, Any]
"""What is in a state, or another place: by key, the value."""
Places = Mapping[str, Contents]

_SHOWN = 5
_LONGEST = 120
_KINDS = (list, dict, set, deque, Counter, defaultdict)
_DEEPEST = 4
_NOT_OF_USERS = frozenset({"trident", "states", "spouts", "pyarrow", "numpy", "pandas", "pyspark", "py4j"})


def written_states(graph: Graph) -> list[str]:
    return [node.state for node in graph.nodes if isinstance(node, PersistNode)]


def compared_states(graph: Graph) -> list[str]:
    """Return the states whose contents do not depend on how rows are cut: not what windows and joins keep meanwhile."""
    persists = [node for node in graph.nodes if isinstance(node, PersistNode)]
    return [node.state for node in persists if not isinstance(node, (WindowNode, JoinWithinNode))]


def contents_of(opened: OpenedTopology, node: StateNode) -> Contents:
    """Read all of a state. Raises `ConfigError`: the state has no method for that."""
    view, writer = opened.view(node.name), opened.states[node.name][0]
    if not len(node.key_fields) and len(node.value):
        return {(): view.get()}
    if not writer.offers("get_tuples"):
        raise ConfigError(
            f"state {node.name!r} ({type(writer.given).__name__}) cannot be compared: it has no get_tuples(); write one that "
            f"gives a row for each key, or leave the state out with ignore=[{node.name!r}]"
        )
    rows = list(view.get_tuples())
    found: dict[Any, Any] = {}
    for row in rows:
        key = row[:-1]
        with suppress(CorruptValueError):  # 1 and 1.0 are two keys in a store; one of the user's own types stays
            (key,) = typed_keys([key])
        found[key] = (*found[key], row[-1]) if key in found else (row[-1],)
    return {key: values[0] if len(values) == 1 else sorted(values, key=repr) for key, values in found.items()}


def differences(wanted: Places, found: Places, said: tuple[str, str] = ("expected", "found")) -> list[str]:
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


class OutsideValues:
    """Containers that operations and stores reach by closures, globals and attributes; each run finds them as at first."""

    def __init__(self, graph: Graph) -> None:
        self._found: dict[int, tuple[str, Any, Any, bool]] = {}
        for node in graph.nodes:
            given = (node.updater,) if isinstance(node, PersistNode) else ()
            aggregator = node.aggregation.aggregator if isinstance(node, PersistNode) and node.aggregation else None
            for operation in (*node.operations, *given, aggregator):
                self._add(_reachable_values(operation, _DEEPEST), compared=True)
        for state in graph.states:
            self._add(_reachable_values(state.spec.factory, _DEEPEST), compared=False)

    def _add(self, found: Iterable[tuple[str, Any]], compared: bool) -> None:
        for name, value in found:
            if id(value) not in self._found and len(value) <= 10_000 and _is_plain(value):
                self._found[id(value)] = (name, value, deepcopy(value), compared)

    def restore(self) -> None:
        for _, value, first, _ in self._found.values():
            if value != first:
                value.clear()
                if isinstance(value, (list, deque)):
                    value.extend(deepcopy(first))
                else:
                    value.update(deepcopy(first))

    def changed_values(self) -> dict[str, Any]:
        return {
            name: _without_order(value)
            for name, value, first, compared in self._found.values()
            if compared and value != first
        }


def _without_order(value: Any) -> Any:
    if not _is_plain(value):
        return f"{len(value)} entries"  # of objects that may be equal to nothing but themselves
    return sorted(deepcopy(value), key=repr) if isinstance(value, (list, deque)) else deepcopy(value)


def _is_plain(value: Any) -> bool:
    """Whether a value is made of data alone, so that it can be copied and compared."""
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, bytes, Decimal, UUID, date, time, timedelta))


def _reachable_values(value: Any, depth: int, name: str = "") -> Iterator[tuple[str, Any]]:
    if type(value) in _KINDS:
        yield name, value
    elif depth == 0:
        return
    elif isinstance(value, MethodType):
        yield from _reachable_values(value.__self__, depth, name)
    elif isinstance(value, partial):
        for given in (value.func, *value.args, *value.keywords.values()):
            yield from _reachable_values(given, depth - 1, f"{name or 'partial'}.given")
    elif isinstance(value, FunctionType):
        yield from _of_function(value, depth)
    elif isinstance(value, type):
        yield from _of_class(value, depth)
    elif isinstance(value, (Operation, MapStateFactory)) or _is_of_user(type(value).__module__):
        for attribute, one in (vars(value) if has(value, "__dict__") else {}).items():
            yield from _reachable_values(one, depth - 1, f"{type(value).__name__}.{attribute}")
        yield from _of_class(type(value), depth)


def _is_of_user(module: str | None) -> bool:
    """Whether a module is the user's: not Python's, this project's or Arrow's, whose containers stay as they are."""
    top = (module or "builtins").partition(".")[0]
    return (top not in _NOT_OF_USERS and top not in sys.stdlib_module_names) or top == "__main__"


def _of_class(given: type, depth: int) -> Iterator[tuple[str, Any]]:
    for base in given.__mro__:
        if not _is_of_user(base.__module__):
            continue
        for attribute, one in vars(base).items():
            if isinstance(one, FunctionType):
                yield from _of_function(one, depth)
            elif type(one) in _KINDS and not attribute.startswith("__"):
                yield f"{base.__name__}.{attribute}", one


def _of_function(function: FunctionType, depth: int) -> Iterator[tuple[str, Any]]:
    if not _is_of_user(function.__module__):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield from _reachable_values(cell.cell_contents, depth - 1, name)
        except ValueError:  # not filled yet
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__ and not name.startswith("__"):
            yield from _reachable_values(function.__globals__[name], depth - 1, name)
    for number, default in enumerate(function.__defaults__ or ()):
        yield from _reachable_values(default, depth - 1, f"default {number} of {function.__name__}")
