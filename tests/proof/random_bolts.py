"""P1, P2 and P8: the code of production under simulation, cell by cell and at random; random topologies of bolts."""

import itertools
import os
import random
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from states.memory import MemoryMapState
from states.redis import RedisState
from tests.crash.case import Case
from tests.crash.driver_runs import run_here
from tests.crash.matrix import PAIRINGS, memory_cases
from tests.harness.commands import until
from tests.harness.crashing_stores import DictMap
from tests.proof.proof_table import Trial
from tests.storm.random_trees import MESSAGES, Ledger
from tests.storm.spark.journaled import CountBolt, Journal, QueueSpout, pids, settings
from tests.storm.test_tuple_trees import Run
from tests.testing.simulation import mistaken_topologies as mistaken
from tests.testing.simulation.right_topologies import REDIS
from tests.testing.simulation.test_simulate import RIGHT, rows_for
from trident import TridentTopology
from trident.operations import Count
from trident.spark.environment import pin_worker_python
from trident.spark.session import spark_session, stop_session
from trident.spout import SpoutType
from trident.state import Key, StateType, map_state
from trident.storm import StreamDeclarer, TopologyBuilder, Tuple
from trident.testing.simulation.fault_plan import FAULT_KINDS, OF_STATES, POINTS, Fault, FaultPlan
from trident.testing.simulation.simulated_run import Wrong
from trident.testing.simulation.simulating import Declared, JudgedRuns

_BLOCK, _SPARK_A_BLOCK, _ON_SPARK = 500, 15, 150


def bolts(work: Path, seed: int) -> Iterator[Trial]:
    """Give a block of topologies in process, then some on a local Spark, and so on without end."""
    pin_worker_python()
    spark, numbers = spark_session("proof", "local[2]"), itertools.count(seed)
    try:
        for at in itertools.count():
            yield Trial("in process", partial(_block, seed + at * _BLOCK))
            for number in itertools.islice(numbers, _SPARK_A_BLOCK):
                yield Trial("on Spark", partial(on_spark, work / f"journal-{number}", number))
    finally:
        stop_session(spark)


def _block(first: int) -> Mapping[str, int]:
    for seed in range(first, first + _BLOCK):
        in_process(seed)
    return {"cases": _BLOCK, "in process": _BLOCK}


def in_process(seed: int) -> None:
    """Run a topology: with held tuples, or with lost and doubled deliveries, or with a killed executor."""
    chance = random.Random(seed)
    losses = 0.1 * (seed % 3 == 1)
    run = Run(seed, holds=chance.randint(0, 3) if seed % 3 == 0 else 0, losses=losses, doubles=losses)
    if seed % 3 == 2:
        layout = run.cluster.layout.component_of
        for _ in range(chance.randint(0, 40)):
            run.cluster.step()
        run.cluster.kill(chance.choice([task for task in layout if layout[task] != "spout"]))
    run.cluster.run()
    if seed % 3:
        run.time_out()
        run.losses = run.doubles = 0.0
        for _ in range(3):
            run.time_out()
    wanted = {message for message in range(MESSAGES) if seed % 3 or Ledger.whole(message)}
    assert run.early == [], f"seed {seed}: {run.early} acknowledged early"
    assert run.acked == wanted, f"seed {seed}: {sorted(wanted - run.acked)} not acknowledged"


class Shape:
    """A random topology as data: which bolts read which, and how many tuples each makes of one; the oracle of its trees."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.reads: list[list[int]] = []
        self.widths: list[int] = []
        self.grouped: list[bool] = []
        for at in range(chance.randint(1, 4)):
            self.reads.append(sorted(chance.sample(range(-1, at), chance.randint(1, min(2, at + 1)))))
            self.widths.append(chance.randint(1, 3))
            self.grouped.append(chance.random() < 0.5)

    def words(self) -> list[str]:
        """Return the tuples that every message becomes, by the way they have taken."""
        made = {-1: ["m"]}
        for at, sources in enumerate(self.reads):
            came = [word for source in sources for word in made[source]]
            made[at] = [f"{word}.{at}{number}" for word in came for number in range(self.widths[at])]
        return [f"{at}:{word}" for at, sources in enumerate(self.reads) for source in sources for word in made[source]]

    def build(self, journal: Journal, messages: int) -> TopologyBuilder:
        """Return the topology; a bolt writes each tuple down before it acks it."""
        builder = TopologyBuilder()
        builder.set_spout("-1", _Roots(journal, messages), 1)
        for at, sources in enumerate(self.reads):
            bolt = builder.set_bolt(f"{at}", _Fan(journal, at, self.widths[at]), 1).set_num_tasks(2)
            for source in sources:
                if self.grouped[at]:
                    bolt.fields_grouping(f"{source}", "word")
                else:
                    bolt.shuffle_grouping(f"{source}")
        return builder


class _Roots(QueueSpout):
    def next_tuple(self) -> None:
        if self.waiting:
            message = self.waiting.pop()
            self.collector.emit([message, "m"], message)

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("id: int", "word: string")


class _Fan(CountBolt):
    def __init__(self, journal: Journal, at: int, width: int) -> None:
        super().__init__(journal)
        self.at, self.width = at, width

    def execute(self, tuple: Tuple) -> None:
        for number in range(self.width):
            self.collector.emit([tuple["id"], f"{tuple['word']}.{self.at}{number}"], tuple)
        self.journal.write(f"L {tuple['id']} {self.at}:{tuple['word']}")
        self.collector.ack(tuple)

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("id: int", "word: string")


def on_spark(path: Path, seed: int, **changes: Any) -> Mapping[str, int]:
    """Run a topology on Spark and kill its workers, once to three times; then go through the journal."""
    chance, journal, shape = random.Random(seed), Journal(path), Shape(seed)
    kills = chance.randint(1, 3)
    with shape.build(journal, _ON_SPARK).start(settings(name=f"bolts-{seed}", **changes)) as running:
        for kill in range(1, kills + 1):
            least = chance.randrange(_ON_SPARK * (kill - 1) // 4, _ON_SPARK * kill // 4)
            until(lambda least=least: len(journal.acked()) >= least and any(pids(running)), "it goes on")  # type: ignore[misc]
            with suppress(ProcessLookupError):
                os.kill(chance.choice([pid for pid in pids(running) if pid]), signal.SIGKILL)
        until(lambda: len(journal.acked()) == _ON_SPARK, "all messages are acknowledged")
    check(journal, shape, _ON_SPARK)
    return {"on Spark": 1, "kills": kills}


def check(journal: Journal, shape: Shape, messages: int) -> None:
    """Check that every message is acknowledged, and none before all tuples of its tree were executed."""
    words, executed = shape.words(), {message: set[str]() for message in range(messages)}
    for line in journal.lines():
        if line[0] == "L":
            executed[int(line[1])].add(line[2])
        elif line[0] == "A":
            missing = set(words) - executed[int(line[1])]
            assert not missing, f"message {line[1]} was acknowledged before {sorted(missing)[:5]}"
    assert journal.acked() == set(range(messages)), "messages are lost"


_KINDS = (StateType.NON_TRANSACTIONAL, StateType.TRANSACTIONAL, StateType.OPAQUE)
_SPOUTS = (SpoutType.TRANSACTIONAL, SpoutType.OPAQUE)
_STORES = ("memory", "redis", "redis cached", "two methods", "two methods cached")
_UNWRITTEN = ("P0", "P1", "P2", "P4", "P5", "P12")
"""Points at which no store holds anything of a batch that is not committed."""

_CELLS = 50


def cells(work: Path, seed: int) -> Iterator[Trial]:
    """Give the simulated cells, and those of the crash matrix that run in this process, each once; the seed shuffles them."""
    trials = []
    for spout, kind, store, partitions in itertools.product(_SPOUTS, _KINDS, _STORES, (1, 3)):
        declared = partial(_declared, spout, kind, store, partitions)
        runs = JudgedRuns(declared, mistaken.ROWS, FAULT_KINDS, False, (), {"allow_inexact": True})
        runs._check_repeats()
        group = f"{spout.value} spout, {kind.value} state"
        trials += [Trial(group, partial(_cell, runs, plan, spout, kind)) for plan in _plans(seed)]
    for number, case in enumerate(case for pairing in PAIRINGS for case in memory_cases(pairing, seed)):
        trials.append(Trial(f"crash matrix, {case.pairing}", partial(_matrix_cell, case, work / str(number))))
    random.Random(seed).shuffle(trials)
    yield from trials


def _declared(spout: SpoutType, kind: StateType, store: str, partitions: int) -> TridentTopology:
    topology = TridentTopology("cell")
    counts = mistaken.stream_of(topology, spout).group_by("word")
    counts.persistent_aggregate(_spec(kind, store), Count(), "count").parallelism_hint(partitions)
    return topology


def _spec(kind: StateType, store: str) -> Any:
    if store == "memory":
        return MemoryMapState(kind=kind)
    cache: dict[str, Any] = {"cache": 100} if "cached" in store else {}
    if store.startswith("redis"):
        return RedisState.of_kind(kind, REDIS, cache)
    data: dict[Key, Any] = {}
    return map_state(lambda conf, partition, partitions: DictMap(data), kind, **cache)


def _plans(seed: int) -> Iterator[FaultPlan]:
    """Give each fault at each point, in the first, the second and the third batch, with one and with three in work."""
    for point, (_, kinds) in POINTS.items():
        for kind, txid, pending in itertools.product(kinds, (1, 2, 3), (1, 3)):
            of_state = point in OF_STATES or kind == "set_back"
            fault = Fault(kind, point, txid, "count" if of_state else "", txid % 3)
            yield FaultPlan(seed, (fault,), 3, pending, recuts=True)


def _cell(runs: JudgedRuns, plan: FaultPlan, spout: SpoutType, kind: StateType) -> Mapping[str, int]:
    """Run a cell; one of an exact pairing must be exact, and counts of another one are wrong as the guarantees say."""
    exact = kind is StateType.OPAQUE or (kind is StateType.TRANSACTIONAL and spout is SpoutType.TRANSACTIONAL)
    try:
        runs._check_plan(plan, runs._all_rows, runs._wanted)
    except Wrong as error:
        if exact or not error.found or (kind is StateType.NON_TRANSACTIONAL and not _is_too_much(error)):
            raise
        return {"inexact": 1, "inexact and wrong": 1}
    return {"exact": 1} if exact else {"inexact": 1}


def _is_too_much(error: Wrong) -> bool:
    """Whether no count is too small: a state that is not transactional counts at least once."""
    (wanted,), (found,) = error.wanted.values(), error.found.values()
    return all(found.get(key, 0) >= count for key, count in wanted.items())


def _matrix_cell(case: Case, directory: Path) -> Mapping[str, int]:
    outcome = run_here(case, directory)
    if case.is_exact:
        assert not outcome.differences(), outcome.differences()
        assert not outcome.torn, outcome.torn
        return {"exact": 1}
    # One batch at a time, and no cache: the point is reached in the same way each time.
    if case.point in _UNWRITTEN and case.pending == 1 and case.how == "die":
        assert outcome.is_exact, outcome.differences()
    return {"inexact": 1, "inexact and wrong": int(not outcome.is_exact)}


def schedules(
    work: Path, seed: int, topologies: Mapping[str, tuple[Declared, dict[str, Any]]] = RIGHT
) -> Iterator[Trial]:
    """Give blocks of random schedules of several topologies in turn, without end; the seeds go on from the given one."""
    runs = {
        name: JudgedRuns(declared, rows_for(name), FAULT_KINDS, settings.get("same_batches", False), (), {})
        for name, (declared, settings) in topologies.items()
    }
    for first in itertools.count(seed, _CELLS):
        for name, each in runs.items():
            yield Trial(name, partial(_block_of_cells, each, first))


def _block_of_cells(runs: JudgedRuns, first: int) -> Mapping[str, int]:
    report = runs.report(range(first, first + _CELLS))
    return {"cases": report.seeds, "faults": sum(report.faults.values()), "batches": report.batches}
