"""Where each state is committed: by this process, or by tasks in Spark's executors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from trident.config import Config
from trident.errors import ConfigError
from trident.monitoring.batch_committed import Placement
from trident.planner import Plan
from trident.planner.placing import misplaced
from trident.runtime.engine.environment import master_of
from trident.state.abilities import Fencing, StagedCommits

__all__ = ["DRIVER", "EXECUTORS", "PlacedState", "executors_of", "placements_of"]

DRIVER: Final[Placement] = "driver"
EXECUTORS: Final[Placement] = "executors"

_LOCAL = re.compile(r"local(\[|$)")


class PlacedState(NamedTuple):
    """Where a state is committed, and why there."""

    where: Placement
    why: str


def executors_of(placements: Mapping[str, PlacedState]) -> list[str]:
    """Return the states that executors commit."""
    return [name for name, placement in placements.items() if placement.where == EXECUTORS]


def placements_of(plan: Plan, config: Config, states: Mapping[str, Sequence[Any]]) -> dict[str, PlacedState]:
    """Decide where the opened states are committed.

    Raises
    ------
    ConfigError
        A state is to be committed in executors and cannot be; the message says why, and what can be done.
    """
    asked = {name: plan.placements.get(name, config.state_placement) for name in states}
    cannot = {name: why for name, opened in states.items() if (why := _unfit(plan, config, name, opened))}
    wanted = [name for name in states if asked[name] != DRIVER and name not in cannot]
    cluster = _on_cluster(config)
    here = {name for name in wanted if asked[name] != EXECUTORS and plan.states[name].spec.on_one_machine}
    wanted = [name for name in wanted if asked[name] == EXECUTORS or (cluster and name not in here)]
    cannot.update(misplaced(plan, wanted))
    for name, why in cannot.items():
        if asked[name] == EXECUTORS:
            raise ConfigError(
                f'state {name!r} cannot be committed in executors: {why}. Use placement "driver" or "auto" for it'
            )
    found = {}
    for name in states:
        if asked[name] == DRIVER:
            found[name] = PlacedState(DRIVER, "as asked")
        elif name in cannot:
            found[name] = PlacedState(DRIVER, cannot[name])
        elif name in here and cluster:
            found[name] = PlacedState(
                DRIVER, "auto: its place is on this machine, and executors of another one may not see it"
            )
        elif asked[name] == EXECUTORS:
            found[name] = PlacedState(EXECUTORS, "as asked")
        else:
            where = EXECUTORS if cluster else DRIVER
            found[name] = PlacedState(where, f"auto, on {'a cluster' if cluster else 'one machine'}")
    return found


def _unfit(plan: Plan, config: Config, name: str, partitions: Sequence[Any]) -> str:
    """Say why a state cannot be committed in executors; empty if it can."""
    if config.engine == "in_process":
        return 'engine "in_process" has no executors'
    if plan.states[name].spec.in_memory:
        return "its values are in the memory of this process"
    state = partitions[0]
    if not isinstance(state, StagedCommits) and not (isinstance(state, Fencing) and state.fences):
        return (
            f"its store ({type(state).__name__}) cannot refuse a task that was replaced and writes late (it has no "
            "read_sentinel and move_sentinel), and such a write would stay"
        )
    return ""


def _on_cluster(config: Config) -> bool:
    """Whether Spark runs, or will run, its tasks in other processes than this one."""
    if config.engine == "in_process":  # without even importing Spark
        return False
    return not _LOCAL.match(master_of(config.master or config.spark_conf.get("spark.master")))
