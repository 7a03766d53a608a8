"""A driver says of its end whether another one would end in the same way."""

from __future__ import annotations

import pytest

from trident import Config
from trident.cluster.driver.driver_main import _Driver
from trident.cluster.machine.machine_folder import DriverOrder
from trident.cluster_errors import BadPackage, ClusterUnreachable
from trident.errors import (
    BackendError,
    BatchFailedError,
    ConfigError,
    EnvironmentProblem,
    FencedError,
    StateMismatchError,
    StoreAwayError,
    TopologyError,
)
from trident.runtime.loop.retrying import pause_after
from trident.runtime.steps.failures import failure_of
from trident.spark.job_errors import jvm_gone
from trident.spout.interfaces import TransactionAttempt

_ORDER = DriverOrder("", "words-1-1", "a", 1, "host", 0.0, 1, "", "", "", "", "")


def is_fatal(error: Exception, has_run: bool = False) -> bool:
    driver = _Driver(_ORDER)
    driver._running_since = 1.0 if has_run else None
    return driver._is_fatal(error)


def batch_failed(error: Exception, retry: bool = True) -> BatchFailedError:
    """Return what ends a topology whose batch fails each time of this."""
    with pytest.raises(BatchFailedError) as raised:
        pause_after(Config(), TransactionAttempt(1, 1), failure_of("step", error, retry=retry), 3, True)
    return raised.value


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        BadPackage("damaged"),
        ConfigError("no such setting"),
        TopologyError("no such field"),
        EnvironmentProblem("pip install it"),
        StateMismatchError("count", 0, "batch 2", "nothing"),
        BackendError("wrong password", retryable=False),
        batch_failed(ZeroDivisionError()),
        batch_failed(BackendError("no such table", retryable=False)),
        batch_failed(EnvironmentProblem("the executor lacks pyarrow"), retry=False),
    ],
    ids=repr,
)
def test_what_no_second_try_can_mend_is_fatal(error: Exception, has_run: bool) -> None:
    assert is_fatal(error, has_run)


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        StoreAwayError("no answer", "Redis at localhost:6379"),
        ClusterUnreachable("no answer"),
        FencedError("log", "one", "another"),
        EnvironmentProblem.of_now("no Spark master answers"),
        ConnectionResetError(),
        batch_failed(ConnectionResetError()),
        batch_failed(StoreAwayError("no answer", "Redis at localhost:6379")),
        batch_failed(jvm_gone(ConnectionRefusedError()), retry=False),
    ],
    ids=repr,
)
def test_what_may_pass_is_tried_again(error: Exception, has_run: bool) -> None:
    assert not is_fatal(error, has_run)


def test_a_mistake_of_python_is_fatal_only_before_the_topology_ran() -> None:
    assert is_fatal(AttributeError("'NoneType' object has no attribute 'sc'"))
    assert not is_fatal(AttributeError("'NoneType' object has no attribute 'sc'"), has_run=True)
