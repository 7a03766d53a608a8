"""Deaths of drivers in a cluster's state."""

from __future__ import annotations

from tests.harness.cluster_states import Opened
from trident.cluster.state.beat_records import DriverDeath, all_deaths, forget_deaths, report_death


def test_deaths_are_read_in_order_without_what_another_version_wrote(opened: Opened) -> None:
    first, second = (DriverDeath(at, "node", 6700, 1, 0.0, 1.0, False, "it broke") for at in (10.0, 20.0))
    report_death(opened.state, "x", first)
    for strange in (b"", b"[]", b'{"version": 1, "time_secs": 1}', b'{"version": 2}'):
        opened.state.create_sequential("/deaths/x/d", strange)
    report_death(opened.state, "x", second)
    assert all_deaths(opened.state) == {"x": [first, second]}
    forget_deaths(opened.state, "x")
    assert all_deaths(opened.state) == {}
