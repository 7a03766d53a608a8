"""What follows a failure: a batch whose source is away is tried again until it is back; others end the topology."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from states.memory import MemoryMapState
from trident import Config, Fields, TridentTopology
from trident.coordination.coordinator import MasterBatchCoordinator
from trident.errors import BatchFailedError, SourceAwayError, SpoutError
from trident.operations import Count
from trident.runtime.driver.retrying import Retrying
from trident.runtime.steps.failures import Failure
from trident.spout import SpoutType, TransactionAttempt


class Away:
    """One batch of one row; reading it raises the given errors first, one for each attempt."""

    spout_type = SpoutType.OPAQUE

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def get_output_fields(self) -> Fields:
        return Fields("n: bigint")

    def get_coordinator(self, conf: Any) -> Away:
        return self

    def get_emitter(self, conf: Any) -> Away:
        return self

    def initialize_transaction(self, txid: int, previous: Any) -> Any:
        return None if previous else {"n": 1}

    def parts(self, attempt: Any, definition: Any, parallelism: int) -> list[int]:
        return [1]

    def success(self, txid: int, definition: Any) -> None: ...

    def close(self) -> None: ...

    def emit(self, part: int) -> Iterator[pa.Table]:
        if self.errors:
            raise self.errors.pop(0)
        yield pa.table({"n": [part]})


def run(spout: Away, config: Config) -> object:
    topology = TridentTopology("away")
    count = topology.new_stream("rows", spout).persistent_aggregate(MemoryMapState(), Count(), "count")
    with topology.start(config) as running:
        running.process_all_available()
        return running.state(count).get()


CONFIG = Config(engine="in_process", max_batch_attempts=2, retry_backoff_ms=1, retry_backoff_max_ms=1)


def test_tries_while_the_source_is_away_do_not_count() -> None:
    away = [SourceAwayError("no leader")] * 5
    assert run(Away(*away), CONFIG) == 1
    assert run(Away(*away, SpoutError("broken"), *away), CONFIG) == 1


def test_other_failures_count_however_often_the_source_was_away() -> None:
    away, broken = SourceAwayError("no leader"), SpoutError("broken")
    with pytest.raises(BatchFailedError, match="failed 2 times .*broken"):
        run(Away(away, broken, away, broken), CONFIG)


def test_the_tries_of_each_batch_in_flight_are_told_from_those_while_its_source_was_away() -> None:
    coordinator = MasterBatchCoordinator(0, 1, max_pending=2)
    retrying = Retrying(CONFIG, coordinator)
    away, broken = Failure("rows", None, "no leader", waits_for="its source"), Failure("rows", None, "broken")

    def fail(attempt: TransactionAttempt, failure: Failure) -> None:
        retrying.pause_after(attempt, failure)
        coordinator.failed(attempt, 0.0)

    for _ in range(5):
        fail(coordinator.start(0.0), away)
    first = coordinator.start(0.0)
    coordinator.processed(first)
    fail(coordinator.start(0.0), away)  # of the next batch
    fail(first, broken)
    assert retrying.fatal is None
    fail(coordinator.start(0.0), broken)
    assert isinstance(retrying.fatal, BatchFailedError)
    assert retrying.fatal.attempts == 2
