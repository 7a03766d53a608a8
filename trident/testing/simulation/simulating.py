"""simulate: thousands of seeded runs of a topology with crashes, lost answers, paused drivers and other cuts of replays."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pyarrow as pa

from trident.config import Config
from trident.errors import ConfigError, StateMismatchError, TridentError
from trident.graph import Graph
from trident.testing.simulation.compared_values import (
    Contents,
    OutsideValues,
    compared_states,
    differences,
    written_states,
)
from trident.testing.simulation.fault_plan import FAULT_KINDS, FaultKind, FaultPlan, Rows, drawn_plan, shrunk
from trident.testing.simulation.simulated_run import SimulatedRun, Wrong
from trident.testing.stand_ins import typed_rows
from trident.topology import TridentTopology

Declared = TridentTopology | Callable[[], TridentTopology]
GivenRows = Mapping[str, Sequence[Any]] | Sequence[Any]

_SETTINGS: dict[str, Any] = {
    "engine": "in_process", "poll_interval_ms": 0, "retry_backoff_ms": 0, "retry_backoff_max_ms": 0, "max_batch_attempts": 20,
}  # fmt: skip
_LATER_S = 3600
_NO_FAULT = (
    "This happens without any fault: the results depend on how the rows are cut into batches. Aggregators "
    "must give the same for any grouping of their input, and stores must keep what they are given. If that is "
    "intended, as with a query before an update, say same_batches=True"
)
_RANDOM = (
    "Two runs over the same rows differ although nothing went wrong: something depends on a clock, on random numbers, or on "
    "what the run before has left in a variable. A replay would not repeat it. The setting verify_replays=1.0 names the step"
)


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
    seeds, seed
        How many runs; their seeds are 0, 1, 2 … Or the only seed to run.
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
    SimulationFailed, ConfigError
        A run has left something other than a run without faults; or a state cannot be simulated.

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


class SimulationFailed(AssertionError):
    """A simulated run has not left what a run without faults leaves; the text has the trace.

    `seed`: the run's; None if it failed without faults.
    `trace`: what happened in the smallest run that was found to fail, line by line.
    """

    def __init__(self, text: str, seed: int | None = None, trace: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.seed, self.trace = seed, list(trace)


@dataclass(frozen=True)
class SimulationReport:
    """How much was simulated, and that all of it was right.

    `faults`: how often each kind of fault was met.
    `notes`: what could not be simulated.
    `trace`: what happened, line by line, if a single seed was run.
    """

    seeds: int
    batches: int
    attempts: int
    faults: Mapping[FaultKind, int]
    seconds: float
    notes: tuple[str, ...] = ()
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        met = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(self.faults.items()))
        runs = f"{self.seeds} runs, {self.batches} batches in {self.attempts} attempts, {self.seconds:.1f} s"
        return "\n".join([f"{runs}; met: {met or 'no fault'}", *self.notes, *self.trace])


class JudgedRuns:
    """What all runs have in common: the topology, its rows, and what they must come to."""

    def __init__(
        self,
        topology: Declared,
        rows: GivenRows,
        kinds: Collection[FaultKind],
        same_batches: bool,
        ignore: Collection[str],
        settings: Mapping[str, Any],
    ) -> None:
        if refused := {"engine", "log_dir", "max_spout_pending"}.intersection(settings):
            raise ConfigError(
                f"simulate with {', '.join(sorted(refused))}: a simulation sets that itself; leave it out"
            )
        self._topology, self._kinds, self._same_batches, self._ignore = topology, kinds, same_batches, frozenset(ignore)
        self._config = Config.of({**_SETTINGS, **settings})
        if self._config.state_recovery != "refuse":
            self._kinds = [kind for kind in kinds if kind != "set_back"]
        graph = self._graph()
        self._given = _rows_by_stream(graph, rows)
        fields = {node.id: node.fields for node in graph.spouts()}
        self._rows = {
            stream: typed_rows(f"simulate, stream {stream!r}", fields[stream], given)
            for stream, given in self._given.items()
        }
        self._states = written_states(graph)
        self._compared = [name for name in compared_states(graph) if name not in self._ignore]
        self._outside = OutsideValues(graph)
        self._name = graph.name
        self._wanted: dict[str, Contents] = {}
        also = {"same_batches": same_batches or None, "ignore": list(ignore) or None, **settings}
        if set(kinds) != set(FAULT_KINDS):
            also = {"faults": list(kinds), **also}
        self._also = "".join(f", {name}={value!r}" for name, value in also.items() if value is not None)
        self._unfenced: tuple[str, ...] = ()

    def _graph(self) -> Graph:
        topology = self._topology if isinstance(self._topology, TridentTopology) else self._topology()
        return topology.graph().of_batches()

    @property
    def _all_rows(self) -> Rows:
        return {stream: range(table.num_rows) for stream, table in self._rows.items()}

    def report(self, seeds: Sequence[int], told: bool = False) -> SimulationReport:
        """Run seeds; `told`: with the trace of the last one. `SimulationFailed` if a run differs from one without faults."""
        began = time.monotonic()
        self._check_repeats()
        batches, attempts, met, trace = 0, 0, Counter[FaultKind](), [""]
        most = max((table.num_rows for table in self._rows.values()), default=0)
        for seed in seeds:
            plan = drawn_plan(seed, self._states, most, self._kinds)
            try:
                run = self._check_plan(plan, self._all_rows, self._wanted)
            except Wrong as error:
                raise self._failure_of(plan, error) from None
            batches, attempts, met = batches + run.txid, attempts + run.attempts, met + run.happened
            trace = run.trace
        took, shown = time.monotonic() - began, tuple(trace) if told else ()
        return SimulationReport(len(seeds), batches, attempts, dict(met), took, self._notes(), shown)

    def _notes(self) -> tuple[str, ...]:
        if not self._unfenced or "pause" not in self._kinds:
            return ()
        names = ", ".join(map(repr, self._unfenced))
        return (
            f"the store of {names} has no move_sentinel, and does not stop a driver that was replaced: a pause within a commit "
            "was simulated as a crash",
        )

    def _run(self, plan: FaultPlan, rows: Rows) -> tuple[SimulatedRun, dict[str, Contents]]:
        self._outside.restore()
        graph = self._graph()
        outside = self._outside if isinstance(self._topology, TridentTopology) else OutsideValues(graph)
        tables = {stream: self._rows[stream].take(pa.array(list(kept), pa.int64())) for stream, kept in rows.items()}
        run = SimulatedRun(graph, replace(self._config, max_spout_pending=plan.pending), tables, plan, self._compared)
        run.run()
        self._unfenced = run.unfenced
        found: dict[str, Contents] = {f"state {name!r}": contents for name, contents in run.contents.items()}
        for name, value in outside.changed_values().items():
            if name not in self._ignore:
                found[f"outside of states, {name}"] = {(): value}
        self._outside.restore()
        return run, found

    def _without_faults(self, rows: Rows, cuts: Mapping[tuple[str, int], int] | None = None) -> dict[str, Contents]:
        plan = FaultPlan(0, most=1, cuts=cuts or {(stream, 1): len(kept) for stream, kept in rows.items()})
        try:
            return self._run(plan, rows)[1]
        except Wrong as error:
            cause = error.__cause__
            if isinstance(cause, StateMismatchError):
                raise ConfigError(
                    "the store of a state is not empty at the beginning of a run: give simulate a function that declares the "
                    f"topology with stores of its own ({cause})"
                ) from cause
            if cause is None:
                raise SimulationFailed(
                    f"topology {self._name!r} without any fault: {error}", trace=error.trace
                ) from None
            raise cause from None

    def _check_repeats(self) -> None:
        self._wanted = self._without_faults(self._all_rows)
        with _later():
            again = self._without_faults(self._all_rows)
        if lines := differences(self._wanted, again):
            raise SimulationFailed("\n  ".join([f"topology {self._name!r} without any fault:", *lines, _RANDOM]))

    def _check_plan(self, plan: FaultPlan, rows: Rows, wanted: Mapping[str, Contents] | None = None) -> SimulatedRun:
        run, found = self._run(plan, rows)
        if wanted is None or self._same_batches:
            wanted = self._without_faults(rows, run.cuts if self._same_batches else None)
        if lines := differences(wanted, found):
            raise Wrong("\n".join(lines), run.trace, wanted, found)
        return run

    def _failure_of(self, plan: FaultPlan, error: Wrong) -> SimulationFailed:
        last = [error]

        def fails(smaller: FaultPlan, rows: Rows) -> bool:
            try:
                self._check_plan(smaller, rows)
            except Wrong as found:
                last[0] = found
                return True
            except (TridentError, SimulationFailed):  # of the run without faults: these rows say nothing
                return False
            return False

        small, rows = shrunk(plan, self._all_rows, fails)
        text, said = str(last[0]), []
        if not small.faults and not small.recuts and last[0].found:  # neither cut into batches is the right one
            said = [_RANDOM if self._same_batches else _NO_FAULT]
            text = "\n".join(differences(last[0].wanted, last[0].found, ("in one batch", "in these batches")))
        left = ", ".join(
            f"{len(kept)} of {self._rows[stream].num_rows} rows of stream {stream!r}" for stream, kept in rows.items()
        )
        lines = [
            f"seed {plan.seed} of topology {self._name!r} differs from a run without faults:",
            *(f"  {line.strip()}" for line in text.splitlines()),
            f"with {len(small.faults)} of its {len(plan.faults)} faults and {left}:",
            *(
                f"  {stream}: {[self._given[stream][at] for at in kept]!r}"
                for stream, kept in rows.items()
                if len(kept) <= 20
            ),
            *(f"  {line}" for line in last[0].trace),
            *said,
            f"Run it again: simulate(topology, rows, seed={plan.seed}{self._also})",
        ]
        return SimulationFailed("\n".join(lines), plan.seed, last[0].trace)


def _later() -> AbstractContextManager[object]:
    """Let code that asks `time.time` find in the block that an hour has passed."""
    clock, clock_ns = time.time, time.time_ns
    return mock.patch.multiple(time, time=lambda: clock() + _LATER_S, time_ns=lambda: clock_ns() + _LATER_S * 10**9)


def _rows_by_stream(graph: Graph, rows: GivenRows) -> dict[str, Sequence[Any]]:
    streams = [node.id for node in graph.spouts()]
    if not isinstance(rows, Mapping):
        if len(streams) != 1:
            raise ConfigError(
                f"a list of rows, but the topology has the streams {streams}: give a dict of rows by stream"
            )
        return {streams[0]: rows}
    if unknown := [stream for stream in rows if stream not in streams]:
        raise ConfigError(f"rows of {unknown}, but the topology has the streams {streams}")
    return {stream: rows.get(stream, ()) for stream in streams}
