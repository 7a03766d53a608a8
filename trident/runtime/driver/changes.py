"""At start: a topology is compared with what its log was written with, as far as states and streams hang on it."""

from __future__ import annotations

import logging

from trident.coordination.memory_log import TransactionLog
from trident.coordination.records import TopologyRecord
from trident.errors import TopologyChangedError
from trident.planner.meaning import Meaning, changes, dropped

__all__ = ["check_meaning", "record_meaning"]

logger = logging.getLogger(__name__)


def check_meaning(topology: str, log: TransactionLog, now: Meaning, allow: bool) -> None:
    """Compare with what the log says; new states and streams are fine. A log from before says nothing: all is fine.

    Raises
    ------
    TopologyChangedError
        Something that a state or a stream hangs on is another one now, and that is not allowed. Nothing was written.
    """
    before = _recorded(log)
    found = changes(before, now)
    if found and not allow:
        raise TopologyChangedError(topology, "\n".join(f"  {change}" for change in found))
    for change in found:
        logger.warning("topology %s: %s; taken as it is, for allow_changed_topology is set", topology, change)
    for name in dropped(before, now):
        logger.warning("topology %s: %s of the log is not declared any more; it stays as it is", topology, name)


def record_meaning(log: TransactionLog, now: Meaning) -> None:
    """Write to the log what is new or changed; what is not declared any more stays there, to be compared if it returns."""
    before = _recorded(log)
    states = {name: facts for name, facts in now.states.items() if before.states.get(name) != facts}
    streams = {name: facts for name, facts in now.streams.items() if before.streams.get(name) != facts}
    if states or streams:
        log.append(TopologyRecord(states, streams))


def _recorded(log: TransactionLog) -> Meaning:
    declared = log.state.declared
    return Meaning(declared.get("states", {}), declared.get("streams", {}))
