"""At the start: compares a topology with the one that wrote its log, as far as states and streams depend on it.

Also how much of its past a state keeps, and since when its store has each of its changes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trident.coordination.log_state import LogState
from trident.coordination.memory_log import TransactionLog
from trident.coordination.records import RenameRecord, TopologyRecord
from trident.errors import TopologyChangedError, TopologyError
from trident.graph import Graph
from trident.planner import Plan
from trident.planner.evolution import goes_on
from trident.planner.meaning import Meaning, TopologyChanges, compare, meaning_of, with_kept_options
from trident.runtime.reading.open_partitions import with_evolutions
from trident.state.txid import RETRY_BITS
from trident.state.winners import CHANGES, KEPT

logger = logging.getLogger(__name__)

States = Mapping[str, Sequence[Any]]


def check_meaning(topology: str, log: TransactionLog, now: Meaning, allow: bool) -> TopologyChanges:
    """Compare with the log. New states and streams are accepted, and so is a log from before such records.

    Raises `TopologyChangedError`: the meaning of a state or a stream has changed, and that is not allowed. Nothing was written.
    """
    compared = compare(Meaning.of_log(log.state.declared), now, log.epoch << RETRY_BITS, log.state.txid + 1)
    if compared.refused and not allow:
        raise TopologyChangedError(topology, compared.refused)
    for difference in compared.refused:
        logger.warning(
            "topology %s: %s; taken as it is, because allow_changed_topology is set", topology, difference.text
        )
    for old, new in compared.renamed.items():
        log.append(RenameRecord(old, new))
    for change in compared.taken:
        logger.warning("topology %s: from batch %d on: %s", topology, log.state.txid + 1, change)
    for name in compared.dropped:
        logger.warning("topology %s: %s of the log is no longer declared; it stays as it is", topology, name)
    return compared


def compared_with_log(
    graph: Graph, plan: Plan, log: TransactionLog, allow: bool
) -> tuple[Graph, Plan, TopologyChanges]:
    """Return graph and plan as the log keeps the past of their states, and former declarations left them; compare as above."""
    graph, kept = _as_log_keeps(graph, plan, log.state)
    compared = check_meaning(graph.name, log, meaning_of(graph), allow)
    return graph, with_evolutions(kept, compared.evolutions), compared


def check_stores(compared: TopologyChanges, states: States) -> None:
    """Refuse a state whose store cannot hold values of two types.

    Raises `TopologyError`: with what to do. Nothing was written.
    """
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
        if not (state.facts.migrates and state.keeps_attempts()):
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


class NewMeaning:
    """What is new or changed: recorded with the first batch that is committed, so that code which commits none leaves no trace.

    A state from which nothing takes back what a failed attempt wrote means something new from the first write on. What is no
    longer declared stays in the log, to be compared if it returns.

    `now`: what the topology means.
    `lasting`: the states of that kind, by name.
    `declares`: what the record of the next batch declares; nothing once the log has it.
    `lasts`: whether it must be recorded before anything is written, because that may stay although its batch fails.
    """

    def __init__(self, log: TransactionLog, now: Meaning, lasting: Collection[str] = ()) -> None:
        before = Meaning.of_log(log.state.declared)
        self._log = log
        states = {name: facts for name, facts in now.states.items() if before.states.get(name) != facts}
        streams = {name: facts for name, facts in now.streams.items() if before.streams.get(name) != facts}
        declares = {"states": states, "streams": streams}
        self.declares: Mapping[str, Mapping[str, Any]] = declares if states or streams else {}
        self.lasts = not set(lasting).isdisjoint(states)

    @classmethod
    def of(cls, log: TransactionLog, plan: Plan, compared: TopologyChanges, lasting: Collection[str]) -> NewMeaning:
        """Return what is new of a topology that starts; it is recorded at once where a function migrates values from now on."""
        evolved, migrating = compared.evolutions.items(), compared.recorded.migrating
        by_function = [name for name, each in evolved if each.types and each.types[-1][2] is None and name in migrating]
        found = cls(log, _with_feeds(plan, log.state, compared.recorded), {*lasting, *by_function})
        if by_function and found.lasts:
            found.record()  # readers and the first commit have to know which values are of the new types
        return found

    def record(self) -> None:
        """Record it now."""
        self._log.append(TopologyRecord(**self.declares))
        self.recorded()

    def recorded(self) -> None:
        """Note that the log has it."""
        self.declares, self.lasts = {}, False


def _as_log_keeps(graph: Graph, plan: Plan, log: LogState) -> tuple[Graph, Plan]:
    """Return a topology that keeps of its states' past what the log says, and tell what it does not declare."""
    known = log.declared.get("states", {})
    kept = with_kept_options(graph, known)
    changed = {now.name: now for before, now in zip(graph.states, kept.states, strict=True) if now is not before}
    for state in graph.states:
        now, declared = kept.state(state.name).spec.facts.kept, state.spec.facts.kept
        for option, value in known.get(state.name, {}).get(KEPT, {}).items():
            what = (graph.name, state.name, option, value)
            if option not in now:
                logger.warning("topology %s: the store of state %s cannot keep what the log has: %s=%r", *what)
            elif option not in declared:
                logger.info(
                    "topology %s: state %s keeps %s=%r, which its log has and its declaration does not set", *what
                )
    return (kept, replace(plan, states={**plan.states, **changed})) if changed else (graph, plan)


def _with_feeds(plan: Plan, log: LogState, meaning: Meaning) -> Meaning:
    """Return what is to be recorded of a topology: also what its states keep, and the batch after which each change is kept.

    A feed goes on where the state means what it meant, and was kept by the last driver that committed. Else a new one begins
    with the next batch.
    """
    states, known = {}, log.declared.get("states", {})
    for name, facts in meaning.states.items():
        means = {fact: value for fact, value in facts.items() if fact not in (CHANGES, KEPT)}
        since = log.changes_since(name) if goes_on(known.get(name), means) else None
        store = plan.states[name].spec.facts
        kept = {option: value for option, value in store.kept.items() if value != 0}
        feed = {CHANGES: log.txid if since is None else since} if store.keeps_changes else {}
        states[name] = {**means, **feed, **({KEPT: kept} if kept else {})}
    return Meaning(states, meaning.streams)
