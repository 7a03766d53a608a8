"""The rows of the table, in their order: what each is about, and how much of it is wanted."""

from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.proof.append_histories import histories
from tests.proof.killed_processes import killed, long_run, servers_killed
from tests.proof.proof_machines import machines
from tests.proof.proof_table import Row, Trial
from tests.proof.random_bolts import bolts, cells, schedules
from tests.proof.snapshot_reads import reads

_MUTANTS, _MOST_MUTANTS = "tests.proof.mutants", 100


def _mutants(work: Path, seed: int) -> Iterator[Trial]:
    """Give the seeded bugs, if they are there: a test must have caught each."""
    if find_spec(_MUTANTS) is not None:
        yield from (
            Trial("mutants", partial(_caught, each)) for each in import_module(_MUTANTS).run(seed, _MOST_MUTANTS)
        )


def _caught(verdict: Any) -> Mapping[str, int]:
    assert verdict.test is not None, f"{verdict.mutant.name} survives"
    return {"caught": 1}


ROWS = {
    row.name: row
    for row in (
        Row("P1", "simulated cells: fault, point, spout, state, store, cache, partitions; the crash matrix", {}, cells),
        Row("P2", "random schedules of the code of production under simulation", {"cases": 100_000}, schedules),
        Row("P3", "Hypothesis: maps, log (4 homes), coordinator, readers, metadata, acker", {"cases": 20_000}, machines),
        Row("P4", "real processes killed, or stopped, replaced and woken", {"kills": 500, "zombies": 100}, killed),
        Row("P5", "servers killed, brokers and members that lead lost", {"kills": 200}, servers_killed),
        Row("P6", "snapshot reads beside commits, from other processes", {"reads": 1_000_000}, reads),
        Row("P7", "mutants: seeded bugs, each caught by a test", {"caught": _MOST_MUTANTS}, _mutants),
        Row("P8", "random topologies of bolts, workers killed", {"in process": 10_000, "on Spark": 300}, bolts),
        Row("P9", "an hour of random faults on a cluster of processes", {"faults": 200}, long_run),
        Row("P10", "histories of appends to lists, drivers and servers killed", {"kills": 500}, histories),
    )
}  # fmt: skip
