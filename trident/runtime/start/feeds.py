"""At the start: how much of its past a state keeps, and since when its store has each of its changes."""

from __future__ import annotations

import logging
from dataclasses import replace

from trident.coordination.log_state import LogState
from trident.graph import Graph
from trident.planner import Plan
from trident.planner.evolution import goes_on
from trident.planner.meaning import Meaning, with_kept_options
from trident.state.winners import CHANGES, KEPT

logger = logging.getLogger(__name__)


def as_log_keeps(graph: Graph, plan: Plan, log: LogState) -> tuple[Graph, Plan]:
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


def with_feeds(plan: Plan, log: LogState, meaning: Meaning) -> Meaning:
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
