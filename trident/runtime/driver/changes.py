"""At the start: compares a topology with the one that wrote its log, as far as states and streams depend on it."""

from __future__ import annotations

import logging

from trident.coordination.memory_log import TransactionLog
from trident.coordination.records import TopologyRecord
from trident.errors import TopologyChangedError
from trident.planner.meaning import Meaning, changes, dropped

__all__ = ["check_meaning", "record_meaning"]

logger = logging.getLogger(__name__)


def check_meaning(topology: str, log: TransactionLog, now: Meaning, allow: bool) -> None:
    """Compare with the log. New states and streams are accepted, and so is a log from before such records.

    Raises
    ------
    TopologyChangedError
        The meaning of a state or a stream has changed, and that is not allowed. Nothing was written.
    """
    before = _recorded(log)
    found = changes(before, now)
    if found and not allow:
        raise TopologyChangedError(topology, "\n".join(f"  {change}" for change in found))
    for change in found:
        logger.warning("topology %s: %s; taken as it is, because allow_changed_topology is set", topology, change)
    for name in dropped(before, now):
        logger.warning("topology %s: %s of the log is no longer declared; it stays as it is", topology, name)


def record_meaning(log: TransactionLog, now: Meaning) -> None:
    """Record what is new or changed. What is no longer declared stays in the log, to be compared if it returns."""
    before = _recorded(log)
    states = {name: facts for name, facts in now.states.items() if before.states.get(name) != facts}
    streams = {name: facts for name, facts in now.streams.items() if before.streams.get(name) != facts}
    if states or streams:
        log.append(TopologyRecord(states, streams))


def _recorded(log: TransactionLog) -> Meaning:
    declared = log.state.declared
    return Meaning(declared.get("states", {}), declared.get("streams", {}))
