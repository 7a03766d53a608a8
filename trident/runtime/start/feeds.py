"""At the start: since when a state's store has each of its changes."""

from __future__ import annotations

from trident.coordination.log_state import LogState
from trident.planner import Plan
from trident.planner.meaning import Meaning
from trident.state.winners import CHANGES


def with_feeds(plan: Plan, log: LogState, meaning: Meaning) -> Meaning:
    """Return what is to be recorded of a topology: also the batch after which each change of a state is kept.

    A feed goes on where the state means what it meant, and was kept by the last driver that committed. Else a new one begins
    with the next batch.
    """
    states, known = {}, log.declared.get("states", {})
    for name, facts in meaning.states.items():
        before = {fact: value for fact, value in known.get(name, {}).items() if fact != CHANGES}
        since = log.changes_since(name) if before == facts else None
        is_kept = plan.states[name].spec.facts.keeps_changes
        states[name] = {**facts, CHANGES: log.txid if since is None else since} if is_kept else facts
    return Meaning(states, meaning.streams)
