"""`rehearse_upgrade`: the last batches once more through former and new code, over what the stores have; what would differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from trident.config import Config
from trident.errors import HistoryStartError, ReplayFailedError, TopologyError, TridentError, UnsupportedOperation
from trident.fields import struct_fields
from trident.graph import Graph, JoinWithinNode, PersistNode, QueryNode, WindowNode
from trident.log.log_address import read_history
from trident.plan.meaning import Meaning, TopologyChanges, compare, meaning_of
from trident.read.state_reader import ForeignLog, StateReader, log_place
from trident.replay.verifying import is_same
from trident.run.batch_replay import Replay
from trident.state.interfaces import Key

_MOST_READS = 100


class ChangedKey(NamedTuple):
    """A key that the new code makes something else of: its value now, and after the batches, by former and by new code."""

    key: Key
    now: Any  # in the store
    former: Any  # after the batches, by the former code; None: absent
    new: Any  # by the new code


@dataclass(frozen=True)
class Rehearsed:
    """What the new code would do to one state in the batches `first` to `last`: how many keys are equal, which change."""

    state: str
    first: int  # of the batches that were run
    last: int
    equal: int = 0  # how many keys both make the same of
    changed: Sequence[ChangedKey] = ()
    refused: str = ""  # why the state was not compared; empty: it was


def rehearse_upgrade(former: Graph, new: Graph, config: Config, batches: int) -> list[Rehearsed]:
    """Run the last batches through former and new code; see `trident.rehearse_upgrade`."""
    if batches < 1:
        raise ValueError(f"batches={batches}: give at least 1")
    _check(former, new)
    new = _with_former_names(former, new)
    place = log_place(former.name, config)
    with ExitStack() as opened:
        log = opened.enter_context(closing(ForeignLog(former.name, config, [], "")))
        last = log.now().txid
        record = next(read_history(place, max(1, last - batches + 1), last), None)
        if record is None:
            raise HistoryStartError(place, None)
        stores = opened.enter_context(closing(_Stores(former, new, config, log)))
        replays = [
            opened.enter_context(Replay(graph, config, below=below, first=record.txid))
            for graph, below in ((former, partial(stores.values, 0)), (new, partial(stores.values, 1)))
        ]
        for code, replay in zip(("former code", "new code"), replays, strict=True):
            try:
                for _ in replay.until(last):
                    pass
            except ReplayFailedError as error:
                topology, txid, step, cause, _ = error.args
                raise ReplayFailedError(topology, txid, step, cause, code) from error.__cause__
        return [
            Rehearsed(name, record.txid, last, refused=refused)
            if (refused := _refusal(former, new, replays, name))
            else _compare_state(name, record.txid, last, stores, replays, _common_fields(former, new, name))
            for name in dict.fromkeys(
                state.name for graph in (former, new) for state in graph.states if not state.static
            )
        ]


def _check(former: Graph, new: Graph) -> None:
    if former.name != new.name:
        raise TopologyError(
            f"rehearse an upgrade of topology {former.name!r}: the new declaration is of topology {new.name!r}. An "
            "upgrade goes on with the log and the states of the former one, which are found by the name"
        )
    for graph in (former, new):
        for node in graph.nodes:
            if isinstance(node, WindowNode | JoinWithinNode):
                raise UnsupportedOperation(
                    f"rehearse an upgrade of topology {graph.name!r}: {node.id!r} keeps tuples of earlier batches, which the "
                    "history does not have. Rehearse declarations without windows over several batches and joins over time"
                )


def _with_former_names(former: Graph, new: Graph) -> Graph:
    names = {now: old for old, now in compare(meaning_of(former), meaning_of(new)).renamed.items()}
    states = tuple(replace(state, name=names.get(state.name, state.name)) for state in new.states)
    nodes = tuple(
        replace(node, state=names.get(node.state, node.state)) if isinstance(node, PersistNode | QueryNode) else node
        for node in new.nodes
    )
    return replace(new, nodes=nodes, states=states)


def _refusal(former: Graph, new: Graph, replays: Sequence[Replay], name: str) -> str:
    there = [state for graph in (former, new) for state in graph.states if state.name == name]
    if len(there) == 1:
        return "the new code does not write it" if there[0] in former.states else "the former code does not write it"
    if _change(former, new, name).refused:
        return "the new code gives it different keys or a different type of value, so it is a different state"
    return next((replay.left_out[name] for replay in replays if name in replay.left_out), "")


def _change(former: Graph, new: Graph, name: str) -> TopologyChanges:
    before, now = (meaning_of(graph) for graph in (former, new))
    states = [{name: one.states[name]} if name in one.states else {} for one in (before, now)]
    return compare(Meaning(states[0], {}), Meaning(states[1], {}, now.rename, now.migrating))


def _common_fields(former: Graph, new: Graph, name: str) -> Mapping[str, str | None]:
    """Return the fields of a value that both declarations have: what the new one calls it, what the former one; none: all."""
    evolution = _change(former, new, name).evolutions.get(name)
    names = evolution.types[-1][2] if evolution is not None and evolution.types else None
    declared = {field for field, _ in struct_fields(new.state(name).value.types[0])} if names else ()
    return {field: old for field, old in (names or {}).items() if old is not None and field in declared}


def _compare_state(
    name: str, first: int, last: int, below: _Stores, replays: Sequence[Replay], kept: Mapping[str, str | None]
) -> Rehearsed:
    keys = list(dict.fromkeys(key for replay in replays for key in replay.keys(name)))
    former, new = ([one and one.curr for one in replay.values_of(name, keys)] for replay in replays)
    now = below.values(0, name, keys)
    rows = list(map(ChangedKey, keys, now, former, new))
    changed = [row for row in rows if not is_same(_only(row.former, kept.values()), _only(row.new, kept))]
    return Rehearsed(name, first, last, len(rows) - len(changed), changed)


def _only(value: Any, fields: Collection[str | None]) -> Any:
    """Return what a struct has in these fields; any other value, and with no fields, as it is."""
    return [value.get(field) for field in fields if field] if fields and isinstance(value, dict) else value


class _Stores:
    """What the stores of a topology have: a key is read once, at one moment for both codes: both begin with the same."""

    def __init__(self, former: Graph, new: Graph, config: Config, log: ForeignLog) -> None:
        self._former, self._new, self._config, self._log = former, new, config, log
        self._readers: dict[tuple[int, str], StateReader] = {}
        self._known: dict[str, dict[Key, tuple[Any, Any]]] = {}

    def values(self, code: int, state: str, keys: Sequence[Key]) -> list[Any]:
        """Return a value per key, as the former code (0) or the new one (1) declares it; None where that has another state."""
        if not any(each.name == state for each in self._former.states):
            return [None] * len(keys)
        known = self._known.setdefault(state, {})
        missing = [key for key in keys if key not in known]
        if missing:
            known.update(zip(missing, self._read(state, missing), strict=True))
        return [known[key][code] for key in keys]

    def _read(self, state: str, keys: Sequence[Key]) -> list[tuple[Any, Any]]:
        change = _change(self._former, self._new, state)
        if change.refused or not any(each.name == state for each in self._new.states):
            return [(value, None) for value in self._read_by(self._former, state, keys)]
        if state not in change.evolutions:
            return [(value, value) for value in self._read_by(self._former, state, keys)]
        for _ in range(_MOST_READS):
            before = self._log.now().txid
            former, new = (self._read_by(graph, state, keys) for graph in (self._former, self._new))
            if self._log.now().txid == before:
                return list(zip(former, new, strict=True))
        raise TridentError(
            f"rehearse an upgrade of topology {self._former.name!r}: state {state!r} was read {_MOST_READS} times, each time "
            "while another batch was committed. Deactivate or stop the topology, rehearse, and let it go on"
        )

    def _read_by(self, graph: Graph, state: str, keys: Sequence[Key]) -> Sequence[Any]:
        place = id(graph), state
        if place not in self._readers:
            self._readers[place] = StateReader(graph, state, self._config)
        reader, node = self._readers[place], graph.state(state)
        is_total = bool(len(node.value)) and not len(node.key_fields)
        return [reader.get()] * len(keys) if is_total else reader.multi_get(keys)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
