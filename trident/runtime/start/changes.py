"""At the start: compares a topology with the one that wrote its log, as far as states and streams depend on it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from trident.coordination.memory_log import TransactionLog
from trident.coordination.records import TopologyRecord
from trident.errors import TopologyChangedError
from trident.planner.meaning import Meaning, changes, dropped

logger = logging.getLogger(__name__)


def check_meaning(topology: str, log: TransactionLog, now: Meaning, allow: bool) -> None:
    """Compare with the log. New states and streams are accepted, and so is a log from before such records.

    Raises
    ------
    TopologyChangedError
        The meaning of a state or a stream has changed, and that is not allowed. Nothing was written.
    """
    before = _recorded(log)
    differences = changes(before, now)
    if differences and not allow:
        raise TopologyChangedError(topology, "\n".join(f"  {change}" for change in differences))
    for change in differences:
        logger.warning("topology %s: %s; taken as it is, because allow_changed_topology is set", topology, change)
    for name in dropped(before, now):
        logger.warning("topology %s: %s of the log is no longer declared; it stays as it is", topology, name)


class NewMeaning:
    """What is new or changed: recorded with the first batch that is committed, so that code which commits none leaves no trace.

    A state from which nothing takes back what a failed attempt wrote means something new from the first write on. What is no
    longer declared stays in the log, to be compared if it returns.

    Parameters
    ----------
    now
        What the topology means.
    lasting
        The states of that kind, by name.
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
