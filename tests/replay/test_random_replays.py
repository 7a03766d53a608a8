"""Random topologies are what their batches make of them, computed again: all steps, queries and joins."""

from pathlib import Path

import pytest

import trident
from tests.harness.topology_runs import dict_state, run_all
from tests.run import random_topologies
from trident import Stream, TridentTopology
from trident.operations import Count

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def only_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every stream in maps: the states of the tests' own class, which are usual there, cannot be compared."""

    def keep(stream: Stream, name: str) -> None:
        grouped = stream.group_by(*stream.fields)
        grouped.persistent_aggregate(dict_state({}), Count(), "n", state_name=name).parallelism_hint(2)

    monkeypatch.setattr(random_topologies, "keep", keep)
    monkeypatch.delitem(random_topologies.STEPS, "persist_rows")


def verified(seeds: range, folder: Path) -> int:
    """Run a topology for each seed and verify it; return how many keys were equal."""
    equal = 0
    for seed in seeds:
        topology, log_dir = TridentTopology(f"random-{seed}"), str(folder / str(seed))
        random_topologies.Random(topology, seed, lambda: dict_state({}))
        run_all(topology, "in_process", log_dir=log_dir, history="7d")
        done = trident.verify_state(topology, log_dir=log_dir)
        assert not any(state.wrong or state.refused for state in done), f"seed {seed}: {done}"
        equal += sum(state.equal for state in done)
    return equal


def test_random_topologies_are_equal(tmp_path: Path) -> None:
    assert verified(range(6), tmp_path) > 100


@pytest.mark.long
@pytest.mark.parametrize("first", range(6, 1006, 100))
def test_many_random_topologies_are_equal(first: int, tmp_path: Path) -> None:
    assert verified(range(first, first + 100), tmp_path) > 2000
