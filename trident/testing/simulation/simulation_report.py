"""What `simulate` says: that all runs were right, or which one was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trident.testing.simulation.fault_plan import FaultKind


class SimulationFailed(AssertionError):
    """A simulated run has not left what a run without faults leaves; the text has the trace.

    Attributes
    ----------
    seed
        The run's seed; None if it failed without faults.
    trace
        What happened in the smallest run that was found to fail, line by line.
    """

    def __init__(self, text: str, seed: int | None = None, trace: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.seed, self.trace = seed, list(trace)


@dataclass(frozen=True)
class SimulationReport:
    """What was simulated, and that all of it was right.

    Attributes
    ----------
    seeds, batches, attempts
        How many runs there were, and how many batches and attempts in them.
    faults
        How often each kind of fault was met.
    seconds
        How long it took.
    notes
        What could not be simulated.
    trace
        What happened, line by line, if a single seed was run.
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
