"""One run of a topology over given rows, with the faults of a plan: drivers that follow each other, and what they leave."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import pyarrow as pa

from trident.config import Config
from trident.errors import StateError, describe
from trident.graph import Graph, Node, PersistNode, SpoutNode
from trident.plan import make_plan
from trident.run.drive import Drive
from trident.run.opened_topology import OpenedTopology
from trident.run.running import new_memory_log
from trident.spout.interfaces import Definition, TransactionAttempt
from trident.testing.simulation.compared_values import Contents, Places, contents_of
from trident.testing.simulation.fault_plan import Fault, FaultKind, FaultPlan
from trident.testing.simulation.simulated_stores import Died, FaultHooks, SimulatedStore, watched_spec
from trident.testing.stand_ins import GivenSpout, HandClock, Unheard, watch_records


class Wrong(Exception):
    """A run went on where it had to stop, stopped where it had to go on, or left something wrong; the text says what."""

    def __init__(self, text: str, trace: list[str], wanted: Places | None = None, found: Places | None = None) -> None:
        super().__init__(text)
        self.trace, self.wanted, self.found = trace, wanted or {}, found or {}


class SimulatedSpout(GivenSpout):
    """A spout whose batches the plan cuts. Definitions are `{"from": n, "until": n}`, numbers of rows."""

    def __init__(self, node: SpoutNode, run: SimulatedRun, hooks: FaultHooks) -> None:
        super().__init__(node)
        self._rows, self._run, self._hooks = run.rows[node.id], run, hooks

    def get_emitter(self, conf: Mapping[str, Any]) -> _WatchedEmitter:
        return _WatchedEmitter(self._hooks)

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        begin = 0 if previous is None else int(previous["until"])
        if begin >= self._rows.num_rows:
            return None
        self._hooks.reach("define", txid=txid)
        return {"from": begin, "until": min(self._rows.num_rows, begin + self._run.rows_of(self.stream, txid))}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        begin, until = int(definition["from"]), int(definition["until"])
        shown = f"rows {begin} to {until - 1}" if until > begin else "no rows"
        self._run.note(f"{shown} of stream {self.stream!r}", attempt)
        return [(attempt.txid, self._rows.slice(begin, until - begin))]


class _WatchedEmitter:
    def __init__(self, hooks: FaultHooks | None = None) -> None:
        self._hooks = hooks

    def __reduce__(self) -> tuple[Any, ...]:
        return _WatchedEmitter, ()  # a worker has no part in the simulation

    def emit(self, part: tuple[int, pa.Table]) -> Iterable[pa.Table]:
        txid, rows = part
        if self._hooks is not None:
            self._hooks.reach("read", txid=txid)
        return [rows]


class SimulatedDriver:
    """Opens everything as a start of the topology does, over the stores and the log of a run, and takes them over."""

    def __init__(self, run: SimulatedRun, number: int) -> None:
        self.number, self._run = number, run
        self.hooks = hooks = FaultHooks(run.due, run.happens, run.txid + 1)
        given = run.graph
        states = (
            replace(node, spec=watched_spec(node, run.stores[node.name], hooks), migrate=None) for node in given.states
        )
        graph = replace(given, nodes=tuple(map(self._node, given.nodes)), states=tuple(states))
        reopened = lambda states: run.log.reopen(True)  # noqa: E731
        self.opened = opened = OpenedTopology(graph, make_plan(graph), run.config, reopened, in_threads=False)
        opened.committer.reach = hooks.reach
        watch_records(opened.log, hooks.reach)
        run.opened.append(opened)
        run.unfenced = tuple(name for name, each in opened.states.items() if not each[0].facts.fences)
        hooks.fences = not run.unfenced
        self.loop = Drive(graph, opened, Unheard(graph.name), observer=self._observe, clock=HandClock()).loop
        hooks.reach("start")

    def _observe(self, point: str, attempt: TransactionAttempt) -> None:
        if point == "recorded":
            self._run.note("committed", attempt)
        self.hooks.observe(point, attempt)

    def _node(self, node: Node) -> Node:
        if isinstance(node, SpoutNode):
            return replace(node, spout=SimulatedSpout(node, self._run, self.hooks))
        if isinstance(node, PersistNode) and node.updater is not None:
            return replace(node, updater=copy.copy(node.updater))  # as in a process of its own
        return node


class SimulatedRun:
    """The drivers of one run. `cuts`: how many rows each batch had of each stream; `contents`: of states at the end."""

    def __init__(
        self, graph: Graph, config: Config, rows: Mapping[str, pa.Table], plan: FaultPlan, compared: Collection[str]
    ) -> None:
        self._plan, self._left = plan, list(plan.faults)
        self.graph, self.config, self.rows, self.log = graph, config, rows, new_memory_log(graph.name)
        self.stores = {node.name: SimulatedStore() for node in graph.states}
        self.opened: list[OpenedTopology] = []
        self._compared = compared
        self._drivers = 0
        self._tries: dict[int, list[int]] = {}
        self._asked: Counter[tuple[str, int]] = Counter()
        self._lost: tuple[str, SimulatedStore] | None = None  # a state whose store is set back, and what it had
        self._wrong: Wrong | None = None
        self._earlier = {node.name: [SimulatedStore()] for node in graph.states}
        self._recounted: set[tuple[str, int]] = set()
        self._turns = 0
        self.unfenced: tuple[str, ...] = ()  # the states whose store stops no driver that was replaced
        self.trace: list[str] = []
        self.happened: Counter[FaultKind] = Counter()
        self.cuts: dict[tuple[str, int], int] = {}
        self.contents: dict[str, Contents] = {}

    def run(self) -> None:
        try:
            self._start()
            self._lead(None)
            self._put_right()
            nodes = [node for node in self.graph.states if node.name in self._compared]
            self.contents = {node.name: contents_of(self._driver.opened, node) for node in nodes}
        except StateError as error:
            raise Wrong(f"at the end {describe(error)}", self.trace) from error
        finally:
            for opened in self.opened:  # late, because what is dead writes nothing as it is closed
                opened.closers.close("views", "states")

    @property
    def txid(self) -> int:
        return self.log.state.txid

    @property
    def attempts(self) -> int:
        return sum(map(len, self._tries.values()))

    def due(self, point: str, txid: int, state: str, last: bool) -> Fault | None:
        if point == "recorded":
            self._was_recorded(txid)
        for fault in self._left:
            if (fault.point, fault.txid) == (point, txid) and (fault.state == state or fault.kind == "set_back"):
                if last:
                    self._left.remove(fault)
                return fault
        return None

    def rows_of(self, stream: str, txid: int) -> int:
        asked = self._asked[stream, txid]
        self._asked[stream, txid] += 1
        rows = self._plan.rows_of(stream, txid, asked)
        if asked and rows != self._plan.rows_of(stream, txid, 0) and (stream, txid) not in self._recounted:
            self._recounted.add((stream, txid))
            self.happened["other_cut"] += 1
        return rows

    def happens(self, fault: Fault, attempt: TransactionAttempt) -> None:
        self.note(str(fault), attempt)
        if fault.kind == "set_back":
            self._set_back(fault)
            return
        self.happened[fault.kind] += 1
        if fault.kind == "pause":
            paused = self._driver
            self._start()
            self._lead(self.txid + fault.batches)
            self.note(f"driver {paused.number} goes on where it was paused")

    def note(self, text: str, attempt: TransactionAttempt | None = None) -> None:
        if attempt is None:
            self.trace.append(text)
            return
        tries = self._tries.setdefault(attempt.txid, [])
        if attempt.attempt and attempt.attempt not in tries:
            tries.append(attempt.attempt)
        number = tries.index(attempt.attempt) + 1 if attempt.attempt in tries else len(tries)
        self.trace.append(f"batch {attempt.txid}, attempt {max(1, number)}: {text}")

    def _was_recorded(self, txid: int) -> None:
        record = self.log.state.history[-1]
        if self._lost is not None and record.touched.get(self._lost[0]):
            self._fail(f"state {self._lost[0]!r} was set back by one batch, and batch {txid} was committed on top")
        for stream in self.rows:
            definition = record.spouts.get(stream, {"from": 0, "until": 0})
            self.cuts[stream, txid] = definition["until"] - definition["from"]
        if any(fault.kind == "set_back" for fault in self._left):
            for state, kept in self._earlier.items():
                kept.append(self.stores[state].copy())

    def _start(self) -> None:
        """Start the next driver; one that dies as it starts, or refuses a store that was set back, is followed by another."""
        while True:
            self._drivers += 1
            if self._drivers > 1:
                self.note(f"driver {self._drivers} takes over")
            try:
                self._driver = SimulatedDriver(self, self._drivers)
            except Died:
                continue
            except (StateError, ValueError) as error:
                if self._lost is None:
                    self._fail(f"driver {self._drivers} cannot start: {describe(error)}", error)
                self._put_right(error)
            else:
                if self._lost is not None:
                    self._fail(f"state {self._lost[0]!r} was set back by one batch, and the next start accepted it")
                return

    def _lead(self, target: int | None) -> None:
        idle = 0
        while not self._is_done() and (target is None or self.txid < target):
            before, driver = self._turns, self._driver
            idle = 0 if self._turn(driver) else idle + 1
            if self._wrong is not None:  # said within a driver, which may handle every exception
                raise self._wrong
            if idle > 100 or before > 20_000:
                self._fail(f"batch {self.txid + 1} is not committed, and nothing moves any more")

    def _turn(self, driver: SimulatedDriver) -> bool:
        """Let a driver do one step, and see to what becomes of it; False: it had nothing to do."""
        self._turns += 1
        try:
            moved = driver.loop.turn()
        except Died:
            self._start()
        except Exception as error:  # noqa: BLE001  whatever ends a driver is judged here
            if driver is not self._driver:
                self.note(f"driver {driver.number} is refused ({type(error).__name__})")
            elif self._lost is not None:
                self._put_right(error)
                self._start()
            elif self._wrong is None:
                self._fail(f"the topology ended: {describe(error)}", error)
        else:
            if driver is not self._driver:
                self._finish_off(driver)
            return moved
        return True

    def _is_done(self) -> bool:
        last = self.log.state.spouts
        return all(rows.num_rows <= last.get(stream, {"until": 0})["until"] for stream, rows in self.rows.items())

    def _finish_off(self, driver: SimulatedDriver) -> None:
        """Let a driver that does not know yet that it was replaced do what it can; it is of no effect."""
        try:
            for _ in range(3):  # of a driver that was replaced and does not know it yet
                driver.loop.turn()
        except (Exception, Died) as error:  # noqa: BLE001  whatever ends it
            self.note(f"driver {driver.number} is refused ({type(error).__name__})")
        driver.hooks.is_dead = True

    def _fail(self, text: str, cause: BaseException | None = None) -> NoReturn:
        self._wrong = Wrong(text, self.trace)
        raise self._wrong from cause

    def _set_back(self, fault: Fault) -> None:
        store = self.stores[fault.state]
        earlier = self._earlier[fault.state][-2:][0]
        # Of several partitions, some may have lost nothing, and the driver may commit to them.
        in_part = fault.is_live and len(store.sentinels) > 1
        if in_part or self._lost is not None or not self._loses(fault.state, earlier):
            self.note(f"nothing is set back: state {fault.state!r} was not written since, or has several partitions")
            return
        self.happened["set_back"] += 1
        self._lost = fault.state, store.copy()
        store.set_to(earlier)

    def _put_right(self, error: BaseException | None = None) -> None:
        if self._lost is not None:
            state, kept = self._lost
            self.stores[state].set_to(kept)
            self._lost = None
            if error is not None:
                self.note(f"state {state!r} is refused ({type(error).__name__}); it is put right again")

    def _loses(self, state: str, earlier: SimulatedStore) -> bool:
        """Whether a store that is set back loses a committed batch, and one that the simulation keeps."""
        log = self.log.state
        expected = {partition: log.expected_sentinel(state, partition) for partition in log.touched.get(state, ())}
        stored = self.stores[state].sentinels  # empty if the simulation does not keep the store
        pairs = [(one, earlier.sentinels.get(at)) for at, one in expected.items() if one is not None and at in stored]
        return any(one.txid and (found is None or found[1:3] < one[1:3]) for one, found in pairs)
