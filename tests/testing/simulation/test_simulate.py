"""simulate: every mistake that it is for is found, what is right gives no alarm, and a failing seed is small and repeatable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.testing.simulation import mistaken_topologies as mistaken
from tests.testing.simulation.mistaken_topologies import ROWS
from trident import TridentTopology
from trident.errors import InexactPairingError
from trident.testing import SimulationFailed, simulate

Declared = TridentTopology | Callable[[], TridentTopology]

MISTAKES: dict[str, tuple[Declared, str, dict[str, Any]]] = {
    "a clock": (mistaken.with_a_clock(), "without any fault", {}),
    "random numbers": (mistaken.with_random_numbers(), "without any fault", {}),
    "a global counter": (mistaken.with_a_global_counter(), "without any fault", {}),
    "a counter of its own": (mistaken.with_a_counter_of_its_own, "state 'sum'", {}),
    "a mean of means": (mistaken.with_a_mean_of_means(), "No fault is needed", {}),
    "a zero that changes": (mistaken.with_a_zero_that_changes(), "state 'bag'", {}),
    "a list outside": (mistaken.with_a_list_outside(), "the outside value ToList.sent", {}),
    "a put past the rule": (mistaken.with_a_put_past_the_rule(), "state 'totals'", {}),
    "a map that forgets a put": (mistaken.over(mistaken.ForgetfulMap), "No fault is needed", {}),
    "a map that reads stale values": (mistaken.over(mistaken.StaleMap), "state 'count'", {}),
    "a map that adds": (mistaken.over(mistaken.AddingMap), "state 'count'", {}),
    "a map that stops in the middle": (mistaken.over(mistaken.HalfMap), "No fault is needed", {}),
    "a map that writes late": (mistaken.over(mistaken.LateMap), "state 'count'", {}),
    "a state that counts replays": (mistaken.with_a_state_that_counts_replays, "state 'count'", {}),
    "a list changed in place": (mistaken.with_a_list_changed_in_place, "state 'bags'", {}),
    "bare values": (mistaken.with_bare_values(), "state 'count'", {"allow_inexact": True}),
    "transactional values of an opaque spout": (
        mistaken.with_transactional_values_of_an_opaque_spout(),
        "state 'count'",
        {"allow_inexact": True},
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str) -> None:
    declared, said, settings = MISTAKES[name]
    with pytest.raises(SimulationFailed, match=said):
        simulate(declared, ROWS, seeds=300, **settings)


def test_a_pairing_that_is_not_exact_is_refused_as_at_a_start() -> None:
    with pytest.raises(InexactPairingError, match="non-transactional"):
        simulate(mistaken.with_bare_values(), ROWS)
