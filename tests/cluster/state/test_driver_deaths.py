"""Deaths of drivers in a cluster's state."""

from __future__ import annotations

from tests.harness.cluster_states import Opened
from trident.cluster.state.cluster_records import DriverDeath
from trident.cluster.state.storm_cluster_state import StormClusterState


def test_deaths_are_read_in_order_without_what_another_version_wrote(opened: Opened) -> None:
    first, second = (DriverDeath(at, "node", 6700, 1, 0.0, 1.0, False, "it broke") for at in (10.0, 20.0))
    cluster = StormClusterState(opened.state)
    cluster.report_death("x", first)
    for strange in (b"", b"[]", b'{"version": 1, "time_secs": 1}', b'{"version": 2}'):
        opened.state.create_sequential("/deaths/x/d", strange)
    cluster.report_death("x", second)
    assert cluster.all_deaths() == {"x": [first, second]}
    cluster.remove_storm("x")
    assert cluster.all_deaths() == {}


def test_the_reason_of_a_death_may_be_of_any_length(opened: Opened) -> None:
    """A supervisor reports it until it is there, and starts no driver before that."""
    cluster = StormClusterState(opened.state)
    death = DriverDeath(10.0, "node", 6700, 1, 0.0, 1.0, False, "it broke: \udc80" + "\0" * 2_000_000)
    cluster.report_death("x", death)
    (found,) = cluster.all_deaths()["x"]
    assert found.reason == death.reason.replace("\udc80", "?")[:50_000]
