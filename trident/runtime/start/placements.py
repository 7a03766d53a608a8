"""Where each state is committed, by this process or by tasks in Spark's executors; and whether the record goes with the states.

The writes of a batch to its states and its record in the log are one transaction where the log and all states of a topology are
in one database of PostgreSQL. Then a batch waits for the disk once, and neither states nor log are ever ahead of the other. The
driver leaves the last write of each state to the log, which makes it on its own connection when the record is appended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from trident.config import Config
from trident.coordination.memory_log import TransactionLog
from trident.coordination.stored_log import StoredLog
from trident.errors import ConfigError
from trident.graph import QueryNode
from trident.observe.batch_committed import Placement
from trident.planner import Plan
from trident.planner.placing import misplaced
from trident.servers.log_addresses import Database, PostgresAddress, is_postgres
from trident.spark.connect import server_of
from trident.spark.environment import is_local, master_of
from trident.state.interfaces import StateType, kind_of

DRIVER: Final[Placement] = "driver"
EXECUTORS: Final[Placement] = "executors"
TOGETHER: Final = ""


class PlacedState(NamedTuple):
    """Where a state is committed, and why there."""

    where: Placement
    why: str


def executors_of(placements: Mapping[str, PlacedState]) -> list[str]:
    """Return the states that executors commit."""
    return [name for name, placement in placements.items() if placement.where == EXECUTORS]


def roaming_states(plan: Plan, states: Mapping[str, Sequence[Any]], executors: Collection[str]) -> list[str]:
    """Return the states any of whose partitions may write any key, where tasks write them and not the driver for them."""
    return [
        name
        for name in executors
        if plan.states[name].free_keys and len(states[name]) > 1 and not states[name][0].offers("stage")
    ]


def placements_of(plan: Plan, config: Config, states: Mapping[str, Sequence[Any]]) -> dict[str, PlacedState]:
    """Decide where the opened states are committed.

    Raises `ConfigError`: a state is to be committed in executors and cannot be; the message says why, and what can be done.
    """
    asked = {name: plan.placements.get(name, config.state_placement) for name in states}
    cluster = on_cluster(config)
    found = {
        name: _wanted(asked[name], plan, name, _unfit(plan, config, name, opened), cluster)
        for name, opened in states.items()
    }
    for name, why in misplaced(plan, executors_of(found)).items():
        found[name] = PlacedState(DRIVER, why)
    for name, (where, why) in found.items():
        if asked[name] == EXECUTORS != where:
            raise ConfigError(
                f'state {name!r} cannot be committed in executors: {why}. Use placement "driver" or "auto" for it'
            )
    return found


def _wanted(asked: str, plan: Plan, name: str, unfit: str, cluster: bool) -> PlacedState:
    """Decide for one state, whatever feeds it; `unfit` says why executors cannot commit it, if so."""
    state = plan.states[name]
    if asked == DRIVER:
        return PlacedState(DRIVER, "as asked")
    if unfit:
        return PlacedState(DRIVER, unfit)
    if asked == EXECUTORS:
        return PlacedState(EXECUTORS, "as asked")
    if not cluster:
        return PlacedState(DRIVER, "auto, on one machine")
    if state.spec.facts.on_one_machine:
        return PlacedState(DRIVER, "auto: its place is on this machine, and executors of another one may not see it")
    return PlacedState(EXECUTORS, "auto, on a cluster")


def _unfit(plan: Plan, config: Config, name: str, partitions: Sequence[Any]) -> str:
    """Say why a state cannot be committed in executors; empty if it can."""
    if config.engine == "in_process":
        return 'engine "in_process" has no executors'
    if server_of(config.master, config.spark_conf) is not None:
        return "Spark Connect cannot keep what a job has processed for a second one that commits it"
    if plan.states[name].spec.facts.in_memory:
        return "its values are in the memory of this process"
    state = partitions[0]
    if not state.offers("stage") and not state.facts.fences:
        return (
            f"its store ({type(state).__name__}) cannot refuse a task that was replaced and writes late (it has no "
            "read_sentinel and move_sentinel), and such a write would stay"
        )
    kind = kind_of(state, plan.states[name].spec.factory)
    if plan.states[name].free_keys and len(partitions) > 1 and kind is not None and kind is not StateType.OPAQUE:
        return (
            f"an updater chooses the keys of its {len(partitions)} partitions, and that no two of them write one must be known "
            f"before a state that is {kind.value} is written; tasks know their own keys only (an opaque state can take back "
            "what was written, and with one partition there is nothing to compare)"
        )
    if state.offers("stage") and _sees_its_batch(plan, name):
        return (
            "a query of it sees its own batch, and the store shows a batch only when the driver has published what all "
            "tasks staged"
        )
    return ""


def _sees_its_batch(plan: Plan, name: str) -> bool:
    return any(isinstance(node, QueryNode) and node.state == name and node.sees_batch for node in plan.commits)


def on_cluster(config: Config) -> bool:
    """Whether Spark runs, or will run, its tasks in other processes than this one."""
    if config.engine == "in_process":  # without even importing Spark
        return False
    return not is_local(master_of(config.master or config.spark_conf.get("spark.master")))


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
    if _sees_its_batch(plan, name):
        return f"a query of state {name!r} sees its own batch, so that must be written before the record"
    differs = database.differs_from(log)
    return differs and f"state {name!r} is reached otherwise than the log ({differs}): give both the same address"


def _database(plan: Plan, name: str) -> Database:
    database = plan.states[name].spec.facts.database
    assert database is not None, name
    return database
