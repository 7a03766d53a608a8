"""Makes a plan that fails smaller: fewer faults, fewer rows, fewer batches in flight, as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from trident.testing.simulation.fault_plan import Fault, FaultPlan

Rows = Mapping[str, Sequence[int]]
"""By stream, the numbers of the rows that are left."""

_MOST_TRIES = 400


def shrunk(plan: FaultPlan, rows: Rows, fails: Callable[[FaultPlan, Rows], bool]) -> tuple[FaultPlan, Rows]:
    """Return the smallest plan and rows that were found to fail; each step keeps what `fails` says is enough."""
    tries, found = _MOST_TRIES, True
    while found:
        found = False
        for smaller in _smaller(plan, rows):
            tries -= 1
            if tries < 0:
                return plan, rows
            if fails(*smaller):
                (plan, rows), found = smaller, True
                break
    return plan, rows


def _smaller(plan: FaultPlan, rows: Rows) -> Iterator[tuple[FaultPlan, Rows]]:
    """Iterate over what could be left out next, the largest first."""
    faults = plan.faults
    if len(faults) > 1:
        yield replace(plan, faults=()), rows
    for at in range(len(faults)):
        yield replace(plan, faults=(*faults[:at], *faults[at + 1 :])), rows
    if plan.recuts:
        yield replace(plan, recuts=False), rows
    if plan.empties:
        yield replace(plan, empties=False), rows
    if plan.pending > 1:
        yield replace(plan, pending=1), rows
    for stream, kept in rows.items():
        size = len(kept)
        while size := size // 2:
            for begin in range(0, len(kept), size):
                yield plan, {**rows, stream: [*kept[:begin], *kept[begin + size :]]}
    for at, fault in enumerate(faults):
        for simpler in _simpler(fault):
            yield replace(plan, faults=(*faults[:at], simpler, *faults[at + 1 :])), rows


def _simpler(fault: Fault) -> Iterator[Fault]:
    if fault.txid > 1:
        yield replace(fault, txid=fault.txid - 1)
    if fault.kind in ("pause", "lost_answer"):
        yield replace(fault, kind="crash")
    if fault.batches:
        yield replace(fault, batches=fault.batches - 1)
