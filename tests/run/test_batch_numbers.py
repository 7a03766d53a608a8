"""Which batch of a query is the next one of the log: every case of a function of values."""

from __future__ import annotations

from typing import Any

import pytest

from trident.errors import CheckpointMismatchError, SpoutError
from trident.run.handed_batches import QueryBatch, definition_of, definition_of_name

MINE, OTHER = "query-1", "query-2"


def definition(batch: int, base: int = 0, query: str | None = MINE, planned: int | None = None) -> dict[str, Any]:
    return {"batch": batch, "base": base, "query": query, "run": "run-1", "planned_ms": planned}


def test_the_batches_of_a_new_checkpoint() -> None:
    last: dict[str, Any] | None = None
    for txid in range(5):
        last = definition_of(QueryBatch(txid, MINE, "run-1", 1000 + txid), txid, last)
        assert last == definition(txid, planned=1000 + txid), "batch b is txid b + 1 - base, and base is 0"


def test_a_batch_that_spark_repeats_is_nothing_whatever_the_session_tells() -> None:
    for known in (definition(3, planned=7), definition(3, query=None), definition(3)):
        assert definition_of(QueryBatch(3, MINE, "run-2", 7), 4, known) is None
        assert definition_of(QueryBatch(3), 4, known) is None, "a session of Spark Connect tells nothing"


@pytest.mark.parametrize(
    ("found", "last", "said"),
    [
        (QueryBatch(4, MINE), None, "the log has no batch of any query: the log was lost"),
        (QueryBatch(3, MINE, None, 8), definition(3, planned=7), "planned at 8 ms.*the same number means other rows"),
        (QueryBatch(2, MINE), definition(3), "the checkpoint was deleted or restored from an older copy"),
        (QueryBatch(0), definition(3), "the checkpoint was deleted or restored from an older copy"),
        (QueryBatch(0, OTHER), definition(3), "the checkpoint was deleted, or two queries use one function or one log"),
        (QueryBatch(4, OTHER), definition(3), "the checkpoint was deleted, or two queries use one function or one log"),
        (QueryBatch(5, MINE), definition(3), "the log is older than the checkpoint"),
        (
            QueryBatch(4, MINE),
            {"name": "2026", "names": ["2026"], "floor": None},
            "written by name, the last one '2026'",
        ),
    ],
)
def test_what_does_not_belong_together_is_named(found: QueryBatch, last: dict[str, Any] | None, said: str) -> None:
    with pytest.raises(CheckpointMismatchError, match=said):
        definition_of(found, 4, last)


@pytest.mark.parametrize("batch", [0, 2, 9])
def test_a_user_may_take_any_batch_as_the_next(batch: int) -> None:
    taken = definition_of(QueryBatch(batch, OTHER, "run-1"), 4, definition(3), adopts=True)
    assert taken == definition(batch, base=batch - 4, query=OTHER)
    assert definition_of(QueryBatch(batch + 1, OTHER), 5, taken) is not None, "from then on it goes on"


def test_a_batch_that_was_begun_is_finished_as_it_was_begun() -> None:
    begun = definition(4, planned=9)
    assert definition_of(QueryBatch(4, MINE, "run-2", 9), 4, definition(3), begun) == begun
    for found in (QueryBatch(4, MINE, None, 10), QueryBatch(0, OTHER)):
        for adopts in (found.query == OTHER,):
            with pytest.raises(CheckpointMismatchError, match="the log has begun batch 4"):
                definition_of(found, 4, definition(3), begun, adopts)


def test_named_batches_in_any_order_are_each_written_once() -> None:
    last: dict[str, Any] | None = None
    for name in ("03", "01", "02"):
        last = definition_of_name(name, last)
        assert last is not None
        assert last["name"] == name
    for name in ("01", "02", "03"):
        assert definition_of_name(name, last) is None


def test_a_named_batch_that_was_begun_comes_first() -> None:
    begun = definition_of_name("02", None)
    assert definition_of_name("02", None, begun) == begun
    with pytest.raises(SpoutError, match="write batch '02' first"):
        definition_of_name("03", None, begun)


def test_named_batches_and_a_query_do_not_share_a_log() -> None:
    with pytest.raises(CheckpointMismatchError, match="come from a query, the last one is 3"):
        definition_of_name("02", definition(3))
    with pytest.raises(CheckpointMismatchError, match="come from a query, the last one is 0"):
        definition_of_name("02", None, definition(0))  # the first one was begun, and failed
    with pytest.raises(CheckpointMismatchError, match="written by name, the last one '02'"):
        definition_of(QueryBatch(0, MINE), 0, None, definition_of_name("02", None))
