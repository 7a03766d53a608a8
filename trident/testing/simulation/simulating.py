"""simulate: thousands of seeded runs of a topology with crashes, lost answers, paused drivers and other cuts of replays."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trident.errors import ConfigError
from trident.testing.simulation.fault_plan import FAULT_KINDS, FaultKind
from trident.testing.simulation.judged_runs import Declared, GivenRows, JudgedRuns, SimulationReport


def simulate(
    topology: Declared,
    rows: GivenRows,
    *,
    seeds: int = 1000,
    seed: int | None = None,
    faults: Collection[FaultKind] | None = None,
    same_batches: bool = False,
    ignore: Collection[str] = (),
    **settings: Any,
) -> SimulationReport:
    """Run a topology over the same rows again and again, each time with other faults, and compare what its states hold.

    The code is that of production. Spouts are replaced by ones over `rows` that make the same promise, this project's stores by
    ones in memory of the same kind; your own maps, states and operations run as they are.

    Parameters
    ----------
    topology
        The topology; or a function that declares it, called for each run, if stores of your own keep data in this process.
    rows
        By stream, its rows: tuples, dicts by field, or bare values if it has one field; a list if there is one stream.
    seeds
        How many runs; the seeds are 0, 1, 2 …
    seed
        The only seed to run.
    faults
        Some of `"crash"`, `"error"`, `"lost_answer"`, `"pause"`, `"set_back"`, `"other_cut"`; None: all.
    same_batches
        Compare a run with one without faults over the batches that it has committed, not over one batch of all rows.
    ignore
        States, and lists or dicts outside of them, that are not compared.
    settings
        Settings of `Config`, such as `allow_inexact`.

    Raises
    ------
    SimulationFailed
        A run has left something other than a run without faults.
    ConfigError
        A state cannot be simulated.

    Examples
    --------
    >>> from spouts import FixedBatchSpout
    >>> from states.memory import MemoryMapState
    >>> from trident import TridentTopology
    >>> from trident.operations import Count
    >>> topology = TridentTopology("words")
    >>> words = topology.new_stream("words", FixedBatchSpout("word", 9, ["whatever"]))
    >>> counts = words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    >>> simulate(topology, ["the", "cow", "the", "moon"], seeds=20).seeds
    20
    """
    runs = JudgedRuns(topology, rows, _kinds(faults), same_batches, ignore, settings)
    return runs.report(range(seeds)) if seed is None else runs.report([seed], told=True)


def _kinds(faults: Collection[FaultKind] | None) -> Collection[FaultKind]:
    if unknown := [kind for kind in faults or () if kind not in FAULT_KINDS]:
        raise ConfigError(f"faults {unknown}: use some of {', '.join(map(repr, FAULT_KINDS))}")
    return FAULT_KINDS if faults is None else faults
