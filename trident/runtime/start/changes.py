"""At the start: compares a topology with the one that wrote its log, as far as states and streams depend on it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trident.coordination.memory_log import TransactionLog
from trident.coordination.records import TopologyRecord
from trident.errors import TopologyChangedError, TopologyError
from trident.fields import fields_of_struct, widens
from trident.graph import Graph, PersistNode
from trident.operations.several import Several
from trident.planner.meaning import Meaning, changes, dropped, with_former
from trident.state.txid import RETRY_BITS
from trident.state.winners import FORMER

logger = logging.getLogger(__name__)

States = Mapping[str, Sequence[Any]]


def check_meaning(
    topology: str, log: TransactionLog, now: Meaning, allow: bool, migrating: Mapping[str, Any] | None = None
) -> None:
    """Compare with the log. New states and streams are accepted, and so is a log from before such records.

    `migrating` has what `migrate=` of a state says, by its name.

    Raises `TopologyChangedError`: the meaning of a state or a stream has changed, and that is not allowed. Nothing was written.
    """
    before = _recorded(log)
    differences = changes(before, now, migrating)
    if differences and not allow:
        raise TopologyChangedError(topology, "\n".join(f"  {change}" for change in differences))
    for change in differences:
        logger.warning("topology %s: %s; taken as it is, because allow_changed_topology is set", topology, change)
    for name in dropped(before, now):
        logger.warning("topology %s: %s of the log is no longer declared; it stays as it is", topology, name)


def migrations(
    graph: Graph, log: TransactionLog, now: Meaning, migrating: Mapping[str, Any], states: States
) -> Meaning:
    """Return what is to be recorded of the topology if values are migrated: from now on they may be of their new types.

    Raises `TopologyError`: the store of such a state cannot hold values of two types, or `migrate="widen"` cannot make them.
    """
    before, first = _recorded(log), log.epoch << RETRY_BITS
    recorded = with_former(before, now, migrating, first)
    for node in graph.nodes:
        if (
            isinstance(node, PersistNode)
            and graph.state(node.state).migrate == "widen"
            and node.state in recorded.states
        ):
            _check_widened(node, recorded.states[node.state].get(FORMER, ()))
    for name, facts in recorded.states.items():
        state = states[name][0] if facts.get(FORMER) else None
        if state is not None and not (state.facts.migrates and state.keeps_attempts()):
            former = ", ".join(type_ for _, type_ in facts[FORMER])
            raise TopologyError(
                f"state {name!r} has values of former types ({former}): declare it with migrate=, in a store that keeps each "
                f"value with its type and its attempt (a {type(state).__name__} as it is declared does not)"
            )
    return recorded


def _check_widened(node: PersistNode, former: Sequence[tuple[int, str]]) -> None:
    """Refuse a former type whose values are none of the declared one, or lack a part of what an aggregate remembers."""
    assert node.aggregation is not None, node
    aggregator, now = node.aggregation.aggregator, str(node.aggregation.output.types[0])
    parts = [part.outputs.names for part in aggregator.parts] if isinstance(aggregator, Several) else []
    for _, type_ in former:
        there = fields_of_struct(type_).names
        half = [names[0] for names in parts if 0 < len(set(names).intersection(there)) < len(names)]
        if half or not widens(type_, now):
            why = (
                f"they have not all that the aggregate {half[0]!r} remembers"
                if half
                else "not each of them is one of these"
            )
            raise TopologyError(
                f"state {node.state!r} has values that are {type_}, and migrate='widen' cannot make {now} of them: {why}. Give "
                "migrate= a function, or a new aggregate a name of its own, behind those that are there. Nothing was written"
            )


class NewMeaning:
    """What is new or changed: recorded with the first batch that is committed, so that code which commits none leaves no trace.

    A state from which nothing takes back what a failed attempt wrote means something new from the first write on. What is no
    longer declared stays in the log, to be compared if it returns.

    `now`: what the topology means.
    `lasting`: the states of that kind, by name.
    """

    def __init__(self, log: TransactionLog, now: Meaning, lasting: Collection[str] = ()) -> None:
        before = _recorded(log)
        self._log = log
        self._states = {name: facts for name, facts in now.states.items() if before.states.get(name) != facts}
        self._streams = {name: facts for name, facts in now.streams.items() if before.streams.get(name) != facts}
        self._lasts = not set(lasting).isdisjoint(self._states)

    def before_writing(self) -> None:
        """Record it now, if what is about to be written may stay although its batch fails."""
        if self._lasts:
            self._log.append(TopologyRecord(self._states, self._streams))
            self.recorded()

    def with_batch(self) -> dict[str, Mapping[str, Any]]:
        """Return what the record of the next batch declares."""
        return {"states": self._states, "streams": self._streams} if self._states or self._streams else {}

    def recorded(self) -> None:
        """Note that the log has it."""
        self._states, self._streams, self._lasts = {}, {}, False


def _recorded(log: TransactionLog) -> Meaning:
    declared = log.state.declared
    return Meaning(declared.get("states", {}), declared.get("streams", {}))
