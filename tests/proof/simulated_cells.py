"""P1 and P2: the code of production under simulation, cell by cell and by random schedules."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from states.memory import MemoryMapState
from states.redis import RedisState
from tests.crash.case import Case
from tests.crash.driver_runs import run_here
from tests.crash.matrix import PAIRINGS, memory_cases
from tests.proof.proof_row import Trial
from tests.testing.simulation import mistaken_topologies as mistaken
from tests.testing.simulation.right_topologies import REDIS
from tests.testing.simulation.test_simulate import RIGHT, rows_for
from trident import TridentTopology
from trident.operations import Count
from trident.spout import SpoutType
from trident.state import Key, StateType, map_state
from trident.testing.simulation.fault_plan import FAULT_KINDS, OF_STATES, POINTS, Fault, FaultPlan
from trident.testing.simulation.simulated_run import Wrong
from trident.testing.simulation.simulating import Declared, JudgedRuns

_KINDS = (StateType.NON_TRANSACTIONAL, StateType.TRANSACTIONAL, StateType.OPAQUE)
_SPOUTS = (SpoutType.TRANSACTIONAL, SpoutType.OPAQUE)
_STORES = ("memory", "redis", "redis cached", "two methods", "two methods cached")
_UNWRITTEN = ("P0", "P1", "P2", "P4", "P5", "P12")
"""Points at which no store holds anything of a batch that is not committed."""

_BLOCK = 50


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
    return map_state(lambda conf, partition, partitions: mistaken.DictMap(data), kind, **cache)


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
    for first in itertools.count(seed, _BLOCK):
        for name, each in runs.items():
            yield Trial(name, partial(_block, each, first))


def _block(runs: JudgedRuns, first: int) -> Mapping[str, int]:
    report = runs.report(range(first, first + _BLOCK))
    return {"cases": report.seeds, "faults": sum(report.faults.values()), "batches": report.batches}
