"""Where each state is committed: by this process, or by tasks in Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from trident.config import Config
from trident.errors import ConfigError
from trident.graph import QueryNode
from trident.observe.batch_committed import Placement
from trident.planner import Plan
from trident.planner.placing import misplaced
from trident.spark.connect import server_of
from trident.spark.environment import is_local, master_of
from trident.state.interfaces import StateType, kind_of

DRIVER: Final[Placement] = "driver"
EXECUTORS: Final[Placement] = "executors"


class PlacedState(NamedTuple):
    """Where a state is committed, and why there."""

    where: Placement
    why: str


def executors_of(placements: Mapping[str, PlacedState]) -> list[str]:
    """Return the states that executors commit."""
    return [name for name, placement in placements.items() if placement.where == EXECUTORS]


def roaming_states(plan: Plan, states: Mapping[str, Sequence[Any]], placements: Mapping[str, PlacedState]) -> list[str]:
    """Return the states any of whose partitions may write any key, where tasks write them and not the driver for them."""
    return [
        name
        for name in executors_of(placements)
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
    queries = (node for node in plan.commits if isinstance(node, QueryNode))
    return any(query.state == name and query.sees_batch for query in queries)


def on_cluster(config: Config) -> bool:
    """Whether Spark runs, or will run, its tasks in other processes than this one."""
    if config.engine == "in_process":  # without even importing Spark
        return False
    return not is_local(master_of(config.master or config.spark_conf.get("spark.master")))
