"""The plan: what runs where, as data; and the guarantee matrix. No engine object in it; both runners execute the same plan.

A *fragment* begins at an entry (a spout, an exchange, a persisted state's new values, a query's answers), applies steps,
and ends at sinks, each the input of a later entry. A fragment that only spouts feed runs in workers, level by level: first
the fragments of spouts, then the exchanges that they feed, and so on. A fragment that a state feeds runs where the state is
committed.

As in Storm, an updater gets the tuples as the last `partition_by`, `shuffle`, `global_` … spread them: partition i of the
stream goes to partition i of the state; where the stream has more, i modulo the number of the state's. So if all tuples of
a key are in one partition of the stream, one partition of the state writes the key (R16). A query on the way passes the
partitions on.

A commit that is *placed* in executors is one more level of exchanges: the rows for a state go to the partition of their key, as
rows go to the partition of an exchange. So a batch, or its second half, is one Spark job.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from trident.errors import TopologyError
from trident.fields import Fields
from trident.graph import (
    AggregateNode,
    Aggregation,
    ExchangeNode,
    Graph,
    JoinWithinNode,
    Node,
    PersistNode,
    QueryNode,
    Routing,
    SpoutNode,
    StateNode,
    WindowNode,
)
from trident.spout.interfaces import DeclaresSpoutType, SpoutType
from trident.state.interfaces import StateType

_EXACT = {
    (SpoutType.TRANSACTIONAL, StateType.TRANSACTIONAL),
    (SpoutType.TRANSACTIONAL, StateType.OPAQUE),
    (SpoutType.OPAQUE, StateType.OPAQUE),
}


@dataclass(frozen=True)
class Step:
    """One operation of a fragment, over the tuples of `sources`: one, or several for a merge.

    `node`: the graph's node; a merge names only the parents that are in this fragment.
    `keep`: the output columns that later steps need; the others are dropped at once.
    """

    id: str
    sources: tuple[str, ...]
    node: Any
    keep: tuple[str, ...]


@dataclass(frozen=True)
class Sink:
    """Where tuples leave a fragment: the input of the entry `target`, as partials if `aggregation` combines.

    If the target is an exchange, `routing` says to which of its partitions, and `port` is the number of its input. If it is
    a window, `window` is its node; its combiner too gives partials, if time says to which window a tuple belongs. If it is a
    join over time, `join` is its node, and `port` the number of its side. If the target keeps the partitions of the stream,
    `kept` is how many it has: it takes the stream's partitions in turn (see `trident/plan/plan.py`). If the tuples are keys
    that a state is to remove, `removes` are the fields of its key, whose names the columns get.
    """

    target: str
    source: str
    fields: Fields
    aggregation: Aggregation | None = None
    port: int = 0
    routing: Routing | None = None
    window: WindowNode | None = None
    join: JoinWithinNode | None = None
    kept: int = 0
    removes: Fields | None = None


@dataclass(frozen=True)
class Fragment:
    """Steps between an entry and the next entries, in order; one pass over the tuples."""

    entry: str
    fields: Fields
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]

    @property
    def ids(self) -> list[str]:
        return [self.entry, *(step.id for step in self.steps)]

    @cached_property
    def columns(self) -> dict[str, tuple[str, ...]]:
        return {self.entry: self.fields.names, **{step.id: step.keep for step in self.steps}}

    @cached_property
    def zero_counts(self) -> tuple[int, ...]:
        return (0, 0) * (1 + len(self.steps) + len(self.sinks))

    @cached_property
    def blocking(self) -> bool:
        """Whether a step needs all tuples of the partition at once; then it also runs without tuples."""
        return any(isinstance(step.node, AggregateNode) and not step.node.partial for step in self.steps)

    @cached_property
    def depends_on_partitions(self) -> bool:
        """Whether it gives another result for several partitions than for one."""
        return self.blocking or bool(most_kept(self.sinks))


@dataclass(frozen=True)
class Exchange:
    """An entry that gathers tuples of other fragments, by port. All of its partitions run in every batch."""

    node: ExchangeNode | PersistNode | QueryNode
    inputs: tuple[Fields, ...]
    partitions: int | None = None


@dataclass(frozen=True)
class Plan:
    """A topology, ready to run; fragments and exchanges by the ids of their entries.

    `commits`: persists, queries and the exchanges behind them, in the order in which a batch runs them.
    `levels`: the exchanges that run before any state is committed, level by level: each is fed by earlier levels only.
    `memory_mb`: the loads of steps and states, by their ids; `stage_memory` sums them up.
    """

    topology: str
    spouts: tuple[SpoutNode, ...]
    fragments: dict[str, Fragment]
    commits: tuple[PersistNode | QueryNode | ExchangeNode, ...]
    states: dict[str, StateNode]
    partitions: dict[str, int]
    hints: dict[str, int] = field(default_factory=dict)
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    levels: tuple[tuple[str, ...], ...] = ()
    memory_mb: dict[str, float] = field(default_factory=dict)
    placements: dict[str, str] = field(default_factory=dict)


def partitions_of_state(graph: Graph, node: PersistNode) -> int:
    return graph.state(node.state).spec.required_num_partitions or graph.hints.get(node.id, 1)


def kept_by(graph: Graph, node: Node, fragment: Fragment) -> int:
    """Return how many partitions an entry keeps of the streams in front of it; 0: it chooses them itself."""
    if isinstance(node, QueryNode):
        return most_kept(fragment.sinks)
    if isinstance(node, PersistNode) and graph.state(node.state).free_keys:
        partitions = partitions_of_state(graph, node)
        return partitions if partitions > 1 else 0
    return 0


def most_kept(sinks: Iterable[Sink]) -> int:
    return max((sink.kept for sink in sinks), default=0)


@dataclass(frozen=True)
class Placed:
    """What runs in the executors. The entry of a commit is an exchange too, with as many partitions as its state.

    `levels`: the entries after the spouts', level by level: first those that process (so many: `processing`), then commits.
    `commits`: the entries that are not left to the driver.
    """

    fragments: dict[str, Fragment]
    exchanges: dict[str, Exchange]
    levels: tuple[tuple[str, ...], ...]
    processing: int
    commits: frozenset[str]


def misplaced_states(plan: Plan, wanted: Collection[str]) -> dict[str, str]:
    """Return which of these states executors cannot commit, and why: the driver commits what feeds, or queries, them."""
    wrong: dict[str, str] = {}
    while True:
        here = _commits_of_executors(plan, set(wanted) - wrong.keys())
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
    here = _commits_of_executors(plan, states)
    level = _levels(plan, here)
    processing = len(plan.levels)
    committing = tuple(
        tuple(id_ for id_ in level if level[id_] == number) for number in range(1, max(level.values(), default=0) + 1)
    )
    driver = {node.id for node in plan.commits} - here
    fragments = {
        entry: replace(fragment, sinks=tuple(_route_by_key(plan, sink, here) for sink in fragment.sinks))
        for entry, fragment in plan.fragments.items()
        if entry not in driver
    }
    exchanges = {id_: one for id_, one in plan.exchanges.items() if id_ not in driver}
    kept = {sink.target: sink.kept for fragment in plan.fragments.values() for sink in fragment.sinks}
    for node in plan.commits:
        if node.id in here and isinstance(node, (PersistNode, QueryNode)):
            exchanges[node.id] = Exchange(node, (), kept.get(node.id) or plan.partitions[node.state])
    return Placed(fragments, exchanges, (*plan.levels, *committing), processing, frozenset(here))


def _commits_of_executors(plan: Plan, states: Collection[str]) -> set[str]:
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


def _route_by_key(plan: Plan, sink: Sink, here: Collection[str]) -> Sink:
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
    """Fragments that run at the same time; only commits run one after the other."""

    title: str
    entries: tuple[str, ...]
    driver: bool = False


def stages_of(plan: Plan, in_executors: Collection[str] = ()) -> list[Stage]:
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
    """Return how many MiB a task of each stage in the workers asks for, in order; of different tasks the most."""
    return [
        max((sum(plan.memory_mb.get(id_, 0) for id_ in plan.fragments[one].ids) for one in stage.entries), default=0)
        for stage in stages_of(plan, in_executors)
        if not stage.driver
    ]


def commit_loads(plan: Plan, in_executors: Collection[str] = ()) -> list[str]:
    stages = [stage.entries for stage in stages_of(plan, in_executors) if not stage.driver]
    in_workers = {id_ for entries in stages for entry in entries for id_ in plan.fragments[entry].ids}
    return [id_ for id_ in plan.memory_mb if id_ not in in_workers]


def spout_type_of(spout: Any) -> SpoutType:
    """Return what a spout promises, a `SpoutType` or its name; non-transactional for an `IBatchSpout` that declares none."""
    kind: Any = spout.spout_type if isinstance(spout, DeclaresSpoutType) else None
    if kind is None:
        return SpoutType.NON_TRANSACTIONAL
    try:
        return SpoutType(kind.replace("_", "-") if isinstance(kind, str) else kind)
    except ValueError as error:
        names = ", ".join(repr(known.value) for known in SpoutType)
        raise TopologyError(
            f"{type(spout).__name__}.spout_type is {kind!r}, which is unknown; use one of {names}"
        ) from error


def is_exact(promise: SpoutType, kind: StateType, keeps_attempts: bool | None) -> bool:
    """Whether a replayed batch counts once. A state without attempts treats what a lost attempt wrote as committed."""
    return (promise, kind) in _EXACT and not (promise is SpoutType.OPAQUE and keeps_attempts is False)


def lack_text(kind: StateType, keeps_attempts: bool | None) -> str:
    return " without attempts" if kind is StateType.OPAQUE and keeps_attempts is False else ""


class EarlyRead(NamedTuple):
    """A query that runs before its batch updates the state that it reads, and the states that its answers flow into.

    Unless the state can be read as of the batch before, a replay reads what a failed attempt has written.
    """

    query: str
    state: str
    into: tuple[str, ...]


def early_reads(graph: Graph, commits: Sequence[Node]) -> Iterator[EarlyRead]:
    updated: set[str] = set()
    written = {node.state for node in commits if isinstance(node, PersistNode)}
    for node in commits:
        if isinstance(node, PersistNode):
            updated.add(node.state)
        elif isinstance(node, QueryNode) and node.state in written - updated:
            into = tuple(behind.state for behind in graph.behind(node.id) if isinstance(behind, PersistNode))
            if into:
                yield EarlyRead(node.id, node.state, into)
