"""What a driver makes of its orders and of errors, whatever does not answer.

A batch that new code has committed keeps it from being rolled back, also if its driver dies in the same moment. A driver says
of its end whether another one would end in the same way.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.commands import until
from trident import Config, TridentTopology
from trident.channel import Clock
from trident.cluster.driver_main import _Driver
from trident.cluster.driver_orders import DriverBeats, Orders, epoch_before
from trident.cluster.machine_folder import DriverOrder
from trident.cluster.submissions import rolled_back
from trident.cluster_state.cluster_address import open_cluster_state
from trident.cluster_state.cluster_records import DRIVER, Assignment, ErrorInfo, NodePort, StormBase, WantedStatus
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.errors import (
    BackendError,
    BadPackage,
    BatchFailedError,
    ClusterUnreachable,
    ConfigError,
    EnvironmentProblem,
    FencedError,
    StateMismatchError,
    StoreAwayError,
    TopologyError,
)
from trident.operations import Count
from trident.run.coordinator import MasterBatchCoordinator
from trident.run.retrying import RetryRule
from trident.spark.job_errors import jvm_gone
from trident.spout.interfaces import TransactionAttempt
from trident.steps.failures import failure_of

_ID = "words-1-1"
_ORDER = DriverOrder("", _ID, "a", 1, "host", 0.0, 2, "new", "", "", "", "")
_REPLACED = {"target": "m:t", "conf": {}, "component->executors": {}}
_UPGRADED = StormBase(
    "words", 1.0, WantedStatus("active", 0.0), 1, {}, "trident", "m:t", "new", {}, 2, "",
    previous_code_hash="old", previous=_REPLACED,
)  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StormClusterState]:
    made = StormClusterState(open_cluster_state(tmp_path / "cluster"))
    assert made.activate_storm(_ID, _UPGRADED)
    yield made
    made.disconnect()


def batch(log_dir: Path, rows: int) -> None:
    """Have one more driver commit one more batch: as code before an upgrade, or after it."""
    topology = TridentTopology("words")
    spout = FixedBatchSpout("word: string", 1, *[[f"w{number}"] for number in range(rows)])
    topology.new_stream("words", spout).group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    with topology.start(engine="in_process", log_dir=str(log_dir), state_recovery="discard_totals") as running:
        running.process_all_available()


def started(cluster: StormClusterState, log_dir: Path) -> StormBase:
    """Do what a driver of the new code does before it starts its topology."""
    _, base = cluster.find_storm(_ID)
    noted = Orders(cluster, _ORDER).note_proof(base, str(log_dir))
    assert noted == cluster.storm_base(_ID)
    return noted


def test_code_whose_drivers_die_after_a_commit_is_not_rolled_back(cluster: StormClusterState, tmp_path: Path) -> None:
    log_dir = tmp_path / "log"
    batch(log_dir, 1)  # the old code
    first = started(cluster, log_dir)
    assert (first.previous_code_hash, epoch_before(first)) == ("old", 1)
    assert started(cluster, log_dir) == first  # the first driver died before it committed anything
    batch(log_dir, 2)  # the second one died after its commit, before it told of it
    assert started(cluster, log_dir).previous_code_hash == ""
    assert cluster.update_storm(_ID, rolled_back) == cluster.storm_base(_ID)


def test_batches_of_the_old_code_prove_nothing(cluster: StormClusterState, tmp_path: Path) -> None:
    batch(tmp_path / "log", 3)
    for _ in range(3):
        assert started(cluster, tmp_path / "log").previous_code_hash == "old"
    back = rolled_back(started(cluster, tmp_path / "log"))
    assert (back.code_hash, back.previous, back.target) == ("old", {}, "m:t")


def test_without_a_log_the_first_batch_is_the_proof(cluster: StormClusterState, tmp_path: Path) -> None:
    assert epoch_before(started(cluster, tmp_path / "log")) == 0
    batch(tmp_path / "log", 1)
    assert started(cluster, tmp_path / "log").previous_code_hash == ""


def test_an_error_is_told_when_the_state_is_back(cluster: StormClusterState, monkeypatch: pytest.MonkeyPatch) -> None:
    where = {Assignment.DRIVER: NodePort("a", 1)}, {Assignment.DRIVER: 0.0}
    cluster.replace_assignment(_ID, None, Assignment("", {}, *where, "new", 2))
    orders, report, tries = Orders(cluster, _ORDER), cluster.report_error, [ClusterUnreachable("no answer")]

    def report_error(storm_id: str, component: str, error: ErrorInfo) -> None:
        with suppress(IndexError):
            raise tries.pop()
        report(storm_id, component, error)

    def activate() -> None:
        orders.end()
        raise ConfigError("it cannot go on")

    monkeypatch.setattr(cluster, "report_error", report_error)
    running = SimpleNamespace(is_active=True, activate=activate)
    driven: Any = SimpleNamespace(running=running, has_proved=False, await_end=lambda seconds: False)
    beats = DriverBeats(cluster, _ORDER)
    inactive = replace(_UPGRADED, status=WantedStatus("inactive", 0.0))
    assert orders.follow(driven, inactive, beats) == ("ordered", _UPGRADED)
    until(lambda: bool(cluster.errors(_ID, DRIVER)), "the error is reported")
    beats.stop(ended=False)
    assert [each.error for each in cluster.errors(_ID, DRIVER)] == ["it cannot go on"]
    assert not tries


def is_fatal(error: Exception, has_run: bool = False) -> bool:
    driver = _Driver(_ORDER)
    driver._running_since = 1.0 if has_run else None
    return driver._is_fatal(error)


def batch_failed(error: Exception, retry: bool = True) -> BatchFailedError:
    """Return what ends a topology whose batch fails each time of this."""
    rule = RetryRule(Config(max_batch_attempts=1, store_wait_s=0), MasterBatchCoordinator(0, 1), Clock(), False, False)
    with pytest.raises(BatchFailedError) as raised:
        rule.pause_after(TransactionAttempt(1, 1), failure_of("step", error, retry=retry))
    return raised.value


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        BadPackage("damaged"), ConfigError("no such setting"), TopologyError("no such field"),
        EnvironmentProblem("pip install it"), StateMismatchError("count", 0, "batch 2", "nothing"),
        BackendError("wrong password", retryable=False), batch_failed(ZeroDivisionError()),
        batch_failed(BackendError("no such table", retryable=False)),
        batch_failed(EnvironmentProblem("the executor lacks pyarrow"), retry=False),
    ],
    ids=repr,
)  # fmt: skip
def test_what_no_second_try_can_mend_is_fatal(error: Exception, has_run: bool) -> None:
    assert is_fatal(error, has_run)


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        StoreAwayError("no answer", "Redis at localhost:6379"), ClusterUnreachable("no answer"),
        FencedError("log", "one", "another"), EnvironmentProblem.of_now("no Spark master answers"),
        ConnectionResetError(), batch_failed(ConnectionResetError()),
        batch_failed(StoreAwayError("no answer", "Redis at localhost:6379")),
        batch_failed(jvm_gone(ConnectionRefusedError()), retry=False),
    ],
    ids=lambda error: type(error).__name__,  # the texts of some say what time it is
)  # fmt: skip
def test_what_may_pass_is_tried_again(error: Exception, has_run: bool) -> None:
    assert not is_fatal(error, has_run)


def test_a_mistake_of_python_is_fatal_only_before_the_topology_ran() -> None:
    assert is_fatal(AttributeError("'NoneType' object has no attribute 'sc'"))
    assert not is_fatal(AttributeError("'NoneType' object has no attribute 'sc'"), has_run=True)
