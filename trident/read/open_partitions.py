"""Opens the partitions of declared states, for writing and for reading, as former declarations may have left them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from trident.arrow import array_of, arrow_type, python_of
from trident.config import Config
from trident.errors import BackendError, ConfigError, StateError, StateMismatchError, TopologyError, describe
from trident.fields import struct_fields
from trident.graph import Evolution, Graph, StateNode
from trident.log.log_address import open_reader
from trident.log.log_interface import TransactionLogReader
from trident.log.log_state import LogState
from trident.plan import Plan, make_plan
from trident.plan.evolution import RefusedChange
from trident.plan.meaning import Meaning, TopologyChanges, compare, meaning_of
from trident.read.state_partitions import CommitGate
from trident.read.views import StateView, columns_of, results_in
from trident.state.interfaces import FormerTypes, State, StateType, kind_of, state_of
from trident.state.map_state import committed_map
from trident.state.sentinel import compare_stores
from trident.state.txid import Sentinel, Snapshot

logger = logging.getLogger(__name__)

NOT_YET = 1 << 62  # no attempt: a declaration that has no driver yet has written nothing


def with_evolutions(plan: Plan, evolutions: Mapping[str, Evolution]) -> Plan:
    """Return a plan whose states are opened as former declarations have left them."""
    states = {name: replace(node, evolution=evolutions.get(name)) for name, node in plan.states.items()}
    return replace(plan, states=states) if evolutions else plan


def graph_to_read(graph: Graph, declared: Mapping[str, Any], name: str | None = None) -> Graph:
    """Return a topology whose states are opened as former declarations have left them; `declared` as in `LogState`."""
    compared = compare(Meaning.of_log(declared), meaning_of(graph), NOT_YET)
    evolutions = compared.evolutions
    if known := [old for old, new in compared.renamed.items() if new == name]:
        raise StateError(
            f"state {name!r} of topology {graph.name!r} is called {known[0]!r} in its log: read it by the declaration with "
            "that name, or start the topology with this one, which changes the name there"
        )
    states = tuple(replace(node, evolution=evolutions.get(node.name)) for node in graph.states)
    return replace(graph, states=states) if evolutions else graph


def make_state(
    plan: Plan, config: Config, name: str, partition: int, partitions: int, read_only: bool = False
) -> State:
    return open_state(plan.topology, plan.states[name], config.as_mapping(), partition, partitions, read_only)


def open_state(
    topology: str,
    node: StateNode,
    settings: Mapping[str, Any],
    partition: int,
    partitions: int,
    read_only: bool = False,
) -> State:
    """Open one partition of a declared state."""
    conf = node.conf(topology, settings, read_only, partitions)
    conf = replace(conf, migrate=former_types(node))
    state = state_of(node.spec.factory.make_state(conf, partition, partitions))
    if conf.free_keys:
        state.facts.share_keys()
    return state


def former_types(node: StateNode) -> Conversion | None:
    """Return what reads the values that former declarations wrote; None: the state is not opaque, or has no declared type."""
    is_typed = node.value.types and node.value.types[0] is not None
    return Conversion(node) if is_typed and kind_of(node.spec) is StateType.OPAQUE else None


def writers_of(plan: Plan, config: Config, opened: Callable[[Callable[[], None]], None]) -> dict[str, list[State]]:
    """Open all partitions of the states that a topology updates, for writing; `opened` is given how each is closed."""
    states: dict[str, list[State]] = {name: [] for name in plan.partitions}
    for name, count in plan.partitions.items():
        for partition in range(count):
            states[name].append(make_state(plan, config, name, partition, count))
            opened(states[name][-1].close)
    return states


def writers_as_left(
    graph: Graph, plan: Plan, config: Config, opened: Callable[[Callable[[], None]], None]
) -> dict[str, list[State]]:
    """Open the writers; where a store refuses the declaration, as the log says that former ones have left it."""
    try:
        return writers_of(plan, config, opened)
    except StateError:
        with closing(open_reader(config.log_folder(graph.name))) as reader:
            evolved = graph_to_read(graph, reader.refresh().declared) if reader.is_there() else graph
        if evolved is graph:
            raise
        evolutions = {node.name: node.evolution for node in evolved.states if node.evolution is not None}
        return writers_of(with_evolutions(plan, evolutions), config, opened)


def readers_of(plan: Plan, config: Config, name: str, partitions: int) -> list[State]:
    return [make_state(plan, config, name, partition, partitions, read_only=True) for partition in range(partitions)]


def check_stores(compared: TopologyChanges, states: Mapping[str, Sequence[State]]) -> None:
    """Raise `TopologyError`, with what to do, for a state whose store cannot hold values of two types. Nothing was written."""
    for name, evolution in compared.evolutions.items():
        former = [(type_, names) for _, type_, names in evolution.types]
        state = states[name][0]
        if not former:
            continue
        types = ", ".join(type_ for type_, _ in former)
        if any(names is None for _, names in former) and name not in compared.recorded.migrating:
            raise TopologyError(
                f"state {name!r} has values of former types ({types}): declare it with migrate=, as it was, until `trident "
                f"state migrate MODULE:TOPOLOGY {name}` has rewritten them"
            )
        if not (state.facts.migrates and state.facts.keeps_attempts()):
            raise TopologyError(
                f"state {name!r} has values of former types ({types}), and a {type(state).__name__} as it is declared does not "
                "say which declaration wrote a value: only an opaque state with the serializer 'codec' does. Nothing was "
                "written. Keep its former declaration, or move it to an opaque one: trident state move OLD.py:topology "
                f"{name} --to NEW.py:topology"
            )
        if state.facts.has_typed_columns and any(names is None for _, names in former):
            raise TopologyError(
                f"state {name!r} is in columns of its type, and what migrate= makes is of another one ({types}). Nothing was "
                "written. Give the new declaration another table or path, and move it there: trident state move "
                f"OLD.py:topology {name} --to NEW.py:topology"
            )


def refused_by_stores(
    graph: Graph, config: Config, compared: TopologyChanges, reader: TransactionLogReader | None
) -> list[RefusedChange]:
    """Return what a start would refuse because of what its stores are, or have (with a `reader` of the log)."""
    plan = with_evolutions(make_plan(graph), compared.evolutions)
    former, refused = {now: old for old, now in compared.renamed.items()}, []
    for name in plan.partitions:
        if plan.states[name].spec.facts.in_memory or not (reader or name in compared.evolutions):
            continue
        why = _refusal(plan, config, name, former.get(name, name), compared, reader)
        if why:
            refused.append(RefusedChange(f"state {name!r}, where it is declared now", why))
    return refused


def _refusal(
    plan: Plan, config: Config, name: str, known: str, compared: TopologyChanges, reader: TransactionLogReader | None
) -> str:
    layouts, evolution, move = reader.refresh().layouts if reader else {}, compared.evolutions.get(name), ""
    try:
        with ExitStack() as opened:
            states = readers_of(plan, config, name, layouts.get(known, (plan.partitions[name],))[0])
            for state in states:
                opened.callback(state.close)
            if evolution is not None:
                check_stores(replace(compared, evolutions={name: evolution}), {name: states})
            if reader:
                sentinels = [one.read_sentinel() for one in states if one.offers("read_sentinel")]
                move = move_advice(name, states[0], sentinels)
                compare_stores(known, states, reader.refresh)
    except BackendError as error:  # of one that changes or is new, a start makes what is missing
        return str(error) if not error.retryable and evolution is None and known in layouts else ""
    except (TopologyError, ConfigError, StateMismatchError) as error:
        return f"{move}{error}"
    except Exception as error:  # noqa: BLE001  a factory may be a user's; and a new state has nothing for readers
        logger.debug("state %s cannot be compared: %s", name, error)
    return ""


def move_advice(name: str, state: State, sentinels: Sequence[Sentinel | None]) -> str:
    """Return what to do if a state is only declared in another place: to its old one, an empty place looks the same."""
    kept = committed_map(state)
    if any(sentinels) or kept is None or not kept.backing.offers("key_pages"):
        return ""
    move = f"trident state move OLD.py:topology {name} --to NEW.py:topology"
    return f"if state {name!r} was in another place before, move it to this one: {move}. Else "


def view_of(
    plan: Plan,
    config: Config,
    name: str,
    snapshot: Callable[[], Snapshot] | None,
    partitions: int,
    log: Callable[[], LogState] | None = None,
    gate: CommitGate | None = None,
) -> StateView:
    """Open all partitions of a state of a plan as one view; parameters as of `StateView`."""
    node = plan.states[name]
    readers, results = readers_of(plan, config, name, partitions), results_in(plan.commits, name)
    return StateView(readers, snapshot, name, columns_of(node), node.free_keys, results, log, gate)


class Conversion(FormerTypes):
    """Values of the former types of a state as values of its declared one, many at a time."""

    def __init__(self, node: StateNode) -> None:
        self._name, self._migrate, self._field = node.name, node.migrate, node.value.names[0]
        declared, evolution = str(node.value.types[0]), node.evolution
        self.types = () if evolution is None else evolution.types
        self._type = arrow_type(declared)
        self._read = self._type if evolution is None else arrow_type(evolution.type or declared)
        self.fields = tuple(name for name, _ in struct_fields(declared))
        self._stored = tuple(name for name, _ in struct_fields(None if evolution is None else evolution.stored))

    def convert(self, values: list[Any], former: str, names: Mapping[str, str | None] | None) -> Sequence[Any]:
        if names is None:
            made = [None if value is None else self._migrate_value(value, former) for value in values]
            return python_of(array_of(self._field, self._type, made))
        return python_of(array_of(self._field, self._read, [_rename_fields(value, names) for value in values]))

    def narrow(self, values: list[Any]) -> list[Any]:
        return [_only(value, self.fields) for value in values] if self.fields else values

    def widen(self, values: Sequence[Any], attempt: int) -> Sequence[Any]:
        if not self.types or not self._stored:
            return values
        fields: Mapping[str, str | None] = dict(zip(self._stored, self._stored, strict=True))
        era = next((names for until, _, names in self.types if attempt < until), None)
        if era is not None:  # a batch of before is written again
            # A field that was renamed is there under both names; the declared one has the value.
            now = sorted(era.items(), key=lambda names: names[0] in self.fields)
            fields = {**dict.fromkeys(self._stored), **{old: name for name, old in now if old is not None}}
        return [value if value is None else {old: value.get(name) for old, name in fields.items()} for value in values]

    def _migrate_value(self, value: Any, former: str) -> Any:
        if self._migrate is None:
            raise StateError(
                f"state {self._name!r} has values of a former type, {former}: declare it with its migrate=, or have `trident "
                "state migrate` rewrite them"
            )
        try:
            return self._migrate(value, former)
        except Exception as error:  # a user's function may raise anything
            raise StateError(
                f"migrate {value!r} of state {self._name!r} from {former}: {describe(error)}. Nothing was written"
            ) from error


def _rename_fields(value: Any, names: Mapping[str, str | None]) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: None if old is None else value.get(old) for name, old in names.items()}


def _only(value: Any, names: Sequence[str]) -> Any:
    """Return a struct with these fields alone; null where it has one of them not."""
    if not isinstance(value, dict) or (len(value) == len(names) and all(map(value.__contains__, names))):
        return value
    return {name: value.get(name) for name in names}
