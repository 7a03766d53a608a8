"""Whether the writes of a batch to its states and its record in the log are one transaction: decided once, at the start.

They are where the log and all states of a topology are in one database of PostgreSQL. Then a batch waits for the disk once,
and neither states nor log are ever ahead of the other. The driver leaves the last write of each state to the log,
which makes it on its own connection when the record is appended.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from trident.coordination.memory_log import TransactionLog
from trident.coordination.stored_log import StoredLog
from trident.graph import QueryNode
from trident.planner import Plan
from trident.servers.log_addresses import Database, PostgresAddress, is_postgres

TOGETHER: Final = ""


def states_with_record(plan: Plan, log: TransactionLog, apart: str | None) -> tuple[StoredLog | None, list[str]]:
    """Return the log that takes writes of states along, and which states'; None and none if they are `apart`."""
    if apart != TOGETHER or not isinstance(log, StoredLog):
        return None, []
    names = list(plan.partitions)
    log.carry(max(_database(plan, name).timeout_s for name in names))
    return log, names


def why_apart(plan: Plan, executors: Collection[str], log_dir: str, committing: Collection[str] = ()) -> str | None:
    """Say why the states of a batch and its record are transactions of their own.

    Parameters
    ----------
    committing
        The spouts that commit a batch to their source before it is recorded.

    Returns
    -------
    str | None
        `TOGETHER` if they are one; None if there is nothing to say: no log or no state is in a database.
    """
    names = list(plan.partitions)
    stored = [name for name in names if plan.states[name].spec.facts.database is not None]
    if not is_postgres(log_dir) or not stored:
        return None
    log = Database.of(PostgresAddress.of(log_dir).url)
    reasons = (why for name in names if (why := _why_apart(plan, name, log, executors)))
    spouts = f"spout {min(committing)!r} commits to its source before the batch is recorded" if committing else TOGETHER
    return next(reasons, spouts)


def _why_apart(plan: Plan, name: str, log: Database, executors: Collection[str]) -> str:
    database = plan.states[name].spec.facts.database
    if database is None:
        return f"state {name!r} is in another store than the log"
    if name in executors:
        return f"executors commit state {name!r}, and the driver the record"
    if plan.partitions[name] > 1:
        return f"state {name!r} has {plan.partitions[name]} partitions, each with a connection of its own"
    if any(isinstance(node, QueryNode) and node.state == name and node.sees_batch for node in plan.commits):
        return f"a query of state {name!r} sees its own batch, so that must be written before the record"
    differs = database.differs_from(log)
    return differs and f"state {name!r} is reached otherwise than the log ({differs}): give both the same address"


def _database(plan: Plan, name: str) -> Database:
    database = plan.states[name].spec.facts.database
    assert database is not None, name
    return database
