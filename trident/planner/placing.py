"""Which part of a plan is committed by Spark's executors: states, and the queries and exchanges behind them, as levels.

A commit that is placed in executors is one more level of exchanges: the rows for a state go to the partition of their key, as
rows go to the partition of an exchange. So a batch, or its second half, is one Spark job.

A stage is what runs at the same time: in the workers, level by level; at the end the commits of the driver. The memory that it
asks for is the sum of the loads of its steps, as in Storm.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from trident.graph import JoinWithinNode, Node, PersistNode, QueryNode, Routing, WindowNode
from trident.planner.plan import Exchange, Fragment, Plan, Sink


@dataclass(frozen=True)
class Placed:
    """What runs in the executors.

    `fragments`, `exchanges`: by entry id. The entry of a commit is an exchange too, with as many partitions as its state.
    `levels`: the entries that run after the spouts' entries, level by level: first those that process, then those that commit.
    `processing`: how many of the levels process.
    `commits`: the entries that are not left to the driver.
    """

    fragments: dict[str, Fragment]
    exchanges: dict[str, Exchange]
    levels: tuple[tuple[str, ...], ...]
    processing: int
    commits: frozenset[str]


def misplaced(plan: Plan, wanted: Collection[str]) -> dict[str, str]:
    """Return which of these states cannot be committed in executors, and why: the driver commits what feeds them.

    A state that is queried where the driver commits is misplaced too: the query must not run beside the update.
    """
    wrong: dict[str, str] = {}
    while True:
        here = _placed(plan, set(wanted) - wrong.keys())
        new = {
            node.state: _reason(plan, node, here)
            for node in plan.commits
            if isinstance(node, (PersistNode, QueryNode)) and node.state in wanted and node.state not in wrong
            if node.id not in here
        }
        if not new:
            return wrong
        wrong.update(new)


def place(plan: Plan, states: Collection[str]) -> Placed:
    """Return the part of a plan that executors run if they commit these states, none of which is misplaced."""
    here = _placed(plan, states)
    level = _levels(plan, here)
    processing = len(plan.levels)
    committing = tuple(
        tuple(id_ for id_ in level if level[id_] == number) for number in range(1, max(level.values(), default=0) + 1)
    )
    driver = {node.id for node in plan.commits} - here
    fragments = {
        entry: replace(fragment, sinks=tuple(_routed(plan, sink, here) for sink in fragment.sinks))
        for entry, fragment in plan.fragments.items()
        if entry not in driver
    }
    exchanges = {id_: one for id_, one in plan.exchanges.items() if id_ not in driver}
    kept = {sink.target: sink.kept for fragment in plan.fragments.values() for sink in fragment.sinks}
    for node in plan.commits:
        if node.id in here and isinstance(node, (PersistNode, QueryNode)):
            exchanges[node.id] = Exchange(node, (), kept.get(node.id) or plan.partitions[node.state])
    return Placed(fragments, exchanges, (*plan.levels, *committing), processing, frozenset(here))


def _placed(plan: Plan, states: Collection[str]) -> set[str]:
    """Return the commits that executors can run: those that no commit of the driver feeds."""
    here: set[str] = set()
    commits = {node.id for node in plan.commits}
    feeders = _feeders(plan)
    for node in plan.commits:
        fits = not isinstance(node, (PersistNode, QueryNode)) or node.state in states
        if fits and feeders.get(node.id, set()) & commits <= here:
            here.add(node.id)
    return here


def _reason(plan: Plan, node: PersistNode | QueryNode, here: set[str]) -> str:
    commits = {commit.id for commit in plan.commits}
    feeders = sorted(_feeders(plan).get(node.id, set()) & commits - here)
    what = "what it is queried with" if isinstance(node, QueryNode) else "its input"
    return f"{what} comes from {', '.join(map(repr, feeders))}, which the driver commits"


def _feeders(plan: Plan) -> dict[str, set[str]]:
    """Return by entry the entries whose fragments send rows to it."""
    feeders: dict[str, set[str]] = {}
    for entry, fragment in plan.fragments.items():
        for sink in fragment.sinks:
            feeders.setdefault(sink.target, set()).add(entry)
    return feeders


def _levels(plan: Plan, here: set[str]) -> dict[str, int]:
    """Return the level of each commit, from 1: above what feeds it, and above what goes before it at the same state."""
    level: dict[str, int] = {}
    feeders, last, updated = _feeders(plan), dict[str, int](), dict[str, int]()
    for node in plan.commits:  # in the order of a batch, so what goes before is there
        if node.id not in here:
            continue
        own = 1 + max((level[feeder] for feeder in feeders.get(node.id, ()) if feeder in level), default=0)
        if isinstance(node, (PersistNode, QueryNode)):
            updates = isinstance(node, PersistNode)
            before = (last if updates else updated).get(node.state, 0)  # queries of one state may run side by side
            own = max(own, before + 1)
            last[node.state] = max(own, last.get(node.state, 0))
            if updates:
                updated[node.state] = own
        level[node.id] = own
    return level


def _routed(plan: Plan, sink: Sink, here: Collection[str]) -> Sink:
    """Return a sink that sends the rows of a commit to the state partition of their key."""
    if sink.target not in here or sink.routing is not None or sink.kept:
        return sink
    node = next(node for node in plan.commits if node.id == sink.target)
    return replace(sink, routing=_routing(node, sink))


def _routing(node: Node, sink: Sink) -> Routing:
    if isinstance(node, JoinWithinNode):
        return Routing("key", node.sides[sink.port].key)
    if isinstance(node, WindowNode):
        return Routing("key", node.group)
    if isinstance(node, QueryNode):
        return Routing("key", node.inputs)
    assert isinstance(node, PersistNode), node
    if node.aggregation is None:
        return Routing("global")  # it has one partition; a state of several keeps the stream's partitions
    return Routing("key", node.aggregation.group)


@dataclass(frozen=True)
class Stage:
    """Fragments that run at the same time; only commits run one after the other.

    `title`: where they run, for people.
    `entries`: the entries of the fragments.
    `driver`: whether it is the commits.
    """

    title: str
    entries: tuple[str, ...]
    driver: bool = False


def stages_of(plan: Plan, in_executors: Collection[str] = ()) -> list[Stage]:
    """Return the stages of a batch, in order, if executors commit these states."""
    placed = place(plan, in_executors)
    levels = [tuple(spout.id for spout in plan.spouts), *placed.levels]
    stages = [
        Stage(f"stage {number}, in the workers{': commit' if number > 1 + placed.processing else ''}", entries)
        for number, entries in enumerate(levels, 1)
    ]
    commits = tuple(node.id for node in plan.commits if node.id not in placed.commits)
    if commits:
        stages.append(Stage("commit, in the driver, in this order", commits, driver=True))
    return stages


def stage_memory(plan: Plan, in_executors: Collection[str] = ()) -> list[float]:
    """Return how many MiB a task of each stage in the workers asks for, in order; of different tasks the most.

    `in_executors` are the states that executors commit, in stages of their own.
    """
    return [
        max((sum(plan.memory_mb.get(id_, 0) for id_ in plan.fragments[one].ids) for one in stage.entries), default=0)
        for stage in stages_of(plan, in_executors)
        if not stage.driver
    ]


def commit_loads(plan: Plan, in_executors: Collection[str] = ()) -> list[str]:
    """Return the ids of steps with a load that run in the driver, and of static states, which run nowhere."""
    stages = [stage.entries for stage in stages_of(plan, in_executors) if not stage.driver]
    in_workers = {id_ for entries in stages for entry in entries for id_ in plan.fragments[entry].ids}
    return [id_ for id_ in plan.memory_mb if id_ not in in_workers]
