"""What follows a failure: a batch whose source is away is tried again until it is back; others end the topology."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from states.memory import MemoryMapState
from trident import Config, Fields, TridentTopology
from trident.errors import BatchFailedError, FailedException, SourceAwayError, SpoutError, can_heal
from trident.operations import Count
from trident.runtime.loop.coordinator import MasterBatchCoordinator
from trident.runtime.loop.retrying import RetryRule
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
    retrying = RetryRule(CONFIG, coordinator)
    away, broken = Failure("rows", None, "no leader", waits_for="its source"), Failure("rows", None, "broken")

    def fail(attempt: TransactionAttempt, failure: Failure) -> None:
        try:
            retrying.pause_after(attempt, failure)
        finally:
            coordinator.failed(attempt, 0.0)

    for _ in range(5):
        fail(coordinator.start(0.0), away)
    first = coordinator.start(0.0)
    coordinator.processed(first)
    fail(coordinator.start(0.0), away)  # of the next batch
    fail(first, broken)
    with pytest.raises(BatchFailedError) as fatal:
        fail(coordinator.start(0.0), broken)
    assert fatal.value.attempts == 2


def mistaken(kind: SpoutType, error: Exception, **conf: Any) -> tuple[int, BatchFailedError | None]:
    """Run a function that raises at one of two tuples; return its calls with that tuple, and what ended the topology."""
    calls = list[int]()

    def fail(n: int) -> int:
        if n == 1:
            calls.append(n)
            raise error
        return n

    spout = Away()
    spout.spout_type = kind
    topology = TridentTopology("mistaken")
    states = topology.new_stream("rows", spout).each("n", fail, "m: bigint")
    states.persistent_aggregate(MemoryMapState(), Count(), "count")
    running = topology.start(CONFIG, **{"max_batch_attempts": 3, **conf})
    try:
        running.process_all_available()
    except BatchFailedError as ended:
        return len(calls), ended
    running.stop()
    return len(calls), None


def test_a_mistake_that_is_the_same_at_each_try_is_made_once() -> None:
    calls, ended = mistaken(SpoutType.TRANSACTIONAL, ZeroDivisionError("division by zero"))
    assert calls == 1
    assert "batch 1 failed once in step 'rows/fail' on tuple [n=1]: ZeroDivisionError: division by zero." in str(ended)
    assert not can_heal(ended or RuntimeError())


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (SpoutType.OPAQUE, ZeroDivisionError("the next try may have other tuples")),
        (SpoutType.TRANSACTIONAL, ConnectionError("no answer")),
        (SpoutType.TRANSACTIONAL, FailedException("again")),
        (SpoutType.TRANSACTIONAL, RuntimeError("a library gave up")),
    ],
    ids=["opaque", "network", "asked for", "library"],
)
def test_what_another_try_may_mend_is_tried_as_often_as_is_set(kind: SpoutType, error: Exception) -> None:
    calls, ended = mistaken(kind, error)
    assert (calls, ended is not None and ended.attempts) == (3, 3)


def test_a_mistake_is_left_out_at_the_second_try(tmp_path: Path) -> None:
    conf = {"on_poison": "dead_letter", "dead_letter_dir": str(tmp_path), "max_batch_attempts": 9}
    assert mistaken(SpoutType.TRANSACTIONAL, ZeroDivisionError("division by zero"), **conf) == (2, None)
    assert "ZeroDivisionError" in next(tmp_path.glob("*.jsonl")).read_text()
