"""What Nimbus decided is carried out on the record that it decided on, and on no later one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from trident.cluster.driver.orders import as_proved
from trident.cluster.nimbus.assigning import MarkFailed, RollBack, decide
from trident.cluster.nimbus.nimbus import Nimbus
from trident.cluster.nimbus.submissions import rebalance
from trident.cluster.state.cluster_address import open_cluster_state
from trident.cluster.state.cluster_records import DriverDeath, StormBase, WantedStatus
from trident.cluster.state.storm_cluster_state import StormClusterState

_ID = "words-1-1"
_NEW = StormBase("words", 1.0, WantedStatus("active", 0.0), 1, {}, "trident", "m:t", "new", generation=2)


@pytest.fixture
def nimbus(address: str, tmp_path: Path) -> Iterator[Nimbus]:
    cluster = StormClusterState(open_cluster_state(address))
    made = Nimbus(cluster, "http://127.0.0.1:1", str(tmp_path))
    yield made
    made.stop()
    cluster.disconnect()


def decided_on(nimbus: Nimbus, base: StormBase) -> Nimbus:
    """Keep a topology whose driver has died of what no second try can mend."""
    assert nimbus.cluster.activate_storm(_ID, base)
    nimbus.cluster.report_death(_ID, death_of(base))
    return nimbus


def death_of(base: StormBase) -> DriverDeath:
    return DriverDeath(time.time(), "a", 1, base.generation, 0.0, 0.0, True, "it cannot run")


def upgraded(base: StormBase) -> StormBase:
    return replace(base, code_hash="newer", generation=base.generation + 1)


def before_upgrade(base: StormBase) -> StormBase:
    replaced = {"target": "m:t", "conf": {}, "component->executors": {}}
    return replace(base, previous_code_hash="old", previous=replaced)


@pytest.mark.parametrize(
    ("base", "meanwhile"),
    [
        pytest.param(_NEW, upgraded, id="rest, and an upgrade"),
        pytest.param(before_upgrade(_NEW), upgraded, id="roll back, and an upgrade"),
        pytest.param(before_upgrade(_NEW), as_proved, id="roll back, and a proof that the new code runs"),
        pytest.param(_NEW, lambda base: rebalance(base, 0.0, 2, {}, {}), id="rest, and a rebalance"),
    ],
)
def test_a_record_that_was_changed_meanwhile_stays_as_it_is(
    nimbus: Nimbus, base: StormBase, meanwhile: Callable[[StormBase], StormBase]
) -> None:
    seen = decided_on(nimbus, base)._look()
    changed = nimbus.cluster.update_storm(_ID, meanwhile)
    for each in decide(seen):
        assert isinstance(each, (MarkFailed, RollBack))
        nimbus._do(each, seen)
    assert nimbus.cluster.storm_base(_ID) == changed


def test_what_was_not_changed_is_put_to_rest_or_rolled_back(nimbus: Nimbus) -> None:
    decided_on(nimbus, before_upgrade(_NEW))._lead()
    base = nimbus.cluster.storm_base(_ID)
    assert base is not None
    assert (base.code_hash, base.generation, base.status.kind) == ("old", 3, "active")
    nimbus.cluster.report_death(_ID, death_of(base))
    nimbus._lead()
    base = nimbus.cluster.storm_base(_ID)
    assert base is not None
    assert (base.status.kind, base.status.reason) == ("failed", "it cannot run")
