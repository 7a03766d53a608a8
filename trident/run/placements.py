"""At start: what the opened states can do, where each is committed, which log there is, and if the record goes with them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from trident.config import Config
from trident.errors import ConfigError, DirtyReadError, InexactPairingError, TopologyError
from trident.graph import Graph, JoinWithinNode, PersistNode, QueryNode, WindowNode
from trident.log import log_address
from trident.log.log_interface import MemoryLog, TransactionLog
from trident.log.stored_log import StoredLog
from trident.observe.batch_committed import Placement
from trident.plan import Plan
from trident.plan.plan import early_reads, is_exact, lack_text, misplaced_states, spout_type_of
from trident.retention import Retention
from trident.servers.log_addresses import Database, PostgresAddress, is_postgres
from trident.spark.connect import server_of
from trident.spark.environment import is_local, master_of
from trident.state.interfaces import State, StateType, kind_of

DRIVER: Final[Placement] = "driver"
EXECUTORS: Final[Placement] = "executors"
TOGETHER: Final = ""

States = Mapping[str, Sequence[State]]
OpenLog = Callable[[States], TransactionLog]
Kinds = Mapping[str, StateType | None]


def check_states(plan: Plan, graph: Graph, states: States, allow_inexact: bool) -> None:
    """Refuse a topology whose states cannot do what it asks, or are not exact together with its spouts and queries."""
    kinds = kinds_of(plan, states)
    _check_capabilities(plan, states, kinds)
    if allow_inexact:
        return
    for node in _persists(plan):
        kind, keeps = kinds[node.state], states[node.state][0].facts.keeps_attempts()
        if kind is None:
            continue  # a user's own state: what it does with a replay is up to the state
        for spout in graph.sources_of(node.id):
            promise = spout_type_of(spout.spout)
            if not is_exact(promise, kind, keeps):
                text = f"{kind.value}{lack_text(kind, keeps)}"
                raise InexactPairingError(spout.id, promise.value, node.state, text)
    # A query may read what a failed attempt wrote; then nothing is exact that its answers flow into.
    for query, state, into in early_reads(graph, plan.commits):
        read, kind = states[state][0], kinds[state]
        if read.facts.multi_get_at is not None and (read.facts.get_at is not None or not read.offers("get")):
            continue  # a view reads it as of a batch, by whatever method the query uses
        for fed in into:
            if kinds[fed] is not None:
                raise DirtyReadError(query, state, "of a kind of its own" if kind is None else kind.value, fed)


def _check_capabilities(plan: Plan, states: States, kinds: Kinds) -> None:
    for node in _persists(plan):
        state, own = states[node.state][0], "it is no State"
        needed = {"begin_commit": own, "commit": own}
        if isinstance(node, (WindowNode, JoinWithinNode)):
            what = node.config.what if isinstance(node, WindowNode) else "join"
            kind = kinds[node.state]
            if kind is not StateType.OPAQUE:
                found = kind.value if kind is not None else "of a kind that it does not say"
                raise TopologyError(
                    f"state {node.state!r} ({type(state).__name__}) is {found}, but {what} {node.id!r} needs an opaque map: "
                    f"only that lets a replay take back what a failed attempt put into a {what}"
                )
            needed = dict.fromkeys((*needed, "multi_get", "multi_put"), f"a {what} needs an opaque map state")
        elif node.aggregation is not None and node.aggregation.group.names:
            needed["multi_update"] = "a grouped persistent_aggregate needs a MapState"
        elif node.aggregation is not None:
            needed["update"] = (
                "an ungrouped persistent_aggregate needs a Snapshottable; wrap the map in SnapshottableMap"
            )
        if node.removals:
            needed["multi_remove"] = (
                "a stream removes keys from it (remove), which needs a map whose keys can be removed"
            )
        for name, why in needed.items():
            if not state.offers(name):
                raise TopologyError(f"state {node.state!r} ({type(state).__name__}) has no method {name!r}: {why}")


def kinds_of(plan: Plan, states: States) -> dict[str, StateType | None]:
    """Return the kind that each opened state, or its factory, declares; None of one that declares none."""
    kinds: dict[str, StateType | None] = {}
    for name, partitions in states.items():
        state, factory = partitions[0], plan.states[name].spec.factory
        try:
            kinds[name] = kind_of(state, factory)
        except ConfigError as error:
            raise ConfigError(
                f"state {name!r} ({type(state).__name__} of {type(factory).__name__}): {error}"
            ) from error
    return kinds


def lasting_states(plan: Plan, states: States) -> set[str]:
    """Return the states from which nothing takes back what a failed attempt wrote: it stays, also for other tuples or code."""
    kinds = kinds_of(plan, states)
    return {
        node.state
        for node in _persists(plan)
        if kinds[node.state] is not StateType.OPAQUE or not states[node.state][0].facts.keeps_attempts()
    }


def is_all_in_memory(plan: Plan) -> bool:
    return all(plan.states[node.state].spec.facts.in_memory for node in _persists(plan))


def _persists(plan: Plan) -> Iterator[PersistNode]:
    return (node for node in plan.commits if isinstance(node, PersistNode))


class PlacedState(NamedTuple):
    """Where a state is committed, and why there."""

    where: Placement
    why: str


def executors_of(placements: Mapping[str, PlacedState]) -> list[str]:
    return [name for name, placement in placements.items() if placement.where == EXECUTORS]


def roaming_states(plan: Plan, states: States, executors: Collection[str]) -> list[str]:
    """Return the states any of whose partitions may write any key, where tasks write them and not the driver for them."""
    return [
        name
        for name in executors
        if plan.states[name].free_keys and len(states[name]) > 1 and states[name][0].facts.stage is None
    ]


def placements_of(plan: Plan, config: Config, states: States) -> dict[str, PlacedState]:
    """Decide where the opened states are committed; `ConfigError` if one cannot be where it is to be."""
    asked = {name: plan.placements.get(name, config.state_placement) for name in states}
    cluster = on_cluster(config)
    found = {
        name: _decide_place(asked[name], plan, name, _unfit(plan, config, name, opened), cluster)
        for name, opened in states.items()
    }
    for name, why in misplaced_states(plan, executors_of(found)).items():
        found[name] = PlacedState(DRIVER, why)
    for name, (where, why) in found.items():
        if asked[name] == EXECUTORS != where:
            raise ConfigError(
                f'state {name!r} cannot be committed in executors: {why}. Use placement "driver" or "auto" for it'
            )
    return found


def _decide_place(asked: str, plan: Plan, name: str, unfit: str, cluster: bool) -> PlacedState:
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


def _unfit(plan: Plan, config: Config, name: str, partitions: Sequence[State]) -> str:
    if config.engine == "in_process":
        return 'engine "in_process" has no executors'
    if server_of(config.master, config.spark_conf) is not None:
        return "Spark Connect cannot keep what a job has processed for a second one that commits it"
    if plan.states[name].spec.facts.in_memory:
        return "its values are in the memory of this process"
    state = partitions[0]
    if state.facts.stage is None and not state.facts.fences:
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
    if state.facts.stage is not None and _sees_its_batch(plan, name):
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


def open_log(plan: Plan, config: Config, memory_log: MemoryLog | None) -> TransactionLog:
    """Take the log, which no other driver may write from now on; `memory_log` is continued if it is the one."""
    history = Retention.of(config.history)
    if config.log_dir is None and is_all_in_memory(plan):
        if history is not None and not history.keeps_nothing:
            where = f"the log of topology {plan.topology!r} is in memory, as its states are"
            raise ConfigError(f"history={config.history!r}: {where}. Give log_dir, or leave it out")
        return MemoryLog(plan.topology) if memory_log is None else memory_log.reopen(config.takeover)
    return log_address.open_log(config.log_folder(plan.topology), plan.topology, config.takeover, history)


def states_with_record(plan: Plan, log: TransactionLog, apart: str | None) -> tuple[StoredLog | None, list[str]]:
    """Return the log that takes writes of states along, and which states'; None and none if they are `apart`."""
    if apart != TOGETHER or not isinstance(log, StoredLog):
        return None, []
    names = list(plan.partitions)
    databases = [plan.states[name].spec.facts.database for name in names]
    log.carry(max(one.timeout_s for one in databases if one is not None))
    return log, names


def why_apart(plan: Plan, executors: Collection[str], log_dir: str, committing: Collection[str] = ()) -> str | None:
    """Say why the states of a batch and its record are separate transactions; `TOGETHER`: they are one; None: no database."""
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
