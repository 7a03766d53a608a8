"""Which checkpoints belong to which log; no Spark is needed to decide it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spouts.spark.checkpoint_check import check_checkpoint, check_handed, digest_of, is_batch
from trident.errors import CheckpointMismatchError

LAST = {"query": "q", "batch": 4, "offsets": "d4", "sources": ["files"]}


def checkpoint(query: str = "q", planned: int | None = 4, done: int | None = 4, *, since: int = 99) -> Any:
    """Return a checkpoint whose batches from `since` on are other ones than those of the log."""

    def digest(batch: int) -> str:
        return f"d{batch}" if batch < since else f"other{batch}"

    return SimpleNamespace(path="cp", query=query, planned=planned, done=done, digest=digest)


FITTING = {
    "the last batch is complete": checkpoint(),
    "a crash kept Spark from completing it": checkpoint(done=3),
    "Spark has planned the next one": checkpoint(planned=5),
}
UNFIT = {
    "cp is empty: it was deleted, or a different folder is named": checkpoint("", None, None),
    "cp is of query r: it was deleted and begun again": checkpoint("r", 0, None),
    "cp ends with batch 3: it was restored from an older copy": checkpoint(planned=3, done=3),
    "cp ends with batch None": checkpoint(planned=None, done=None),
    "batch 4 of the checkpoint cp is a different one": checkpoint(planned=6, done=5, since=3),
    "cp has given batch 5 to someone else": checkpoint(planned=5, done=5),
    "cp has given the batches 5 to 8 to someone else": checkpoint(planned=9, done=8),
}


@pytest.mark.parametrize("case", FITTING)
def test_a_checkpoint_of_the_log(case: str) -> None:
    check_checkpoint(FITTING[case], LAST, ["files"])


@pytest.mark.parametrize("case", UNFIT)
def test_a_checkpoint_that_does_not_belong_to_the_log(case: str) -> None:
    with pytest.raises(CheckpointMismatchError, match=rf"behind batch 4 of query q, but .*{case}.*discard_totals"):
        check_checkpoint(UNFIT[case], LAST, ["files"])


def test_another_source() -> None:
    with pytest.raises(
        CheckpointMismatchError, match="the query reads kafka where it read files: the offsets mean nothing there"
    ):
        check_checkpoint(checkpoint(), LAST, ["kafka"])


def test_a_new_log_needs_a_checkpoint_that_completed_nothing() -> None:
    for fresh in (checkpoint("", None, None), checkpoint("q", None, None), checkpoint("q", 0, None)):
        check_checkpoint(fresh, None, ["files"])
    with pytest.raises(
        CheckpointMismatchError, match=r"given the batches up to 0 of query q already, and this log has none of them"
    ):
        check_checkpoint(checkpoint("q", 0, 0), None, ["files"])


@pytest.mark.parametrize(
    ("last", "query", "batch", "fits"),
    [(None, "q", 0, True), (None, "q", 1, False), (LAST, "q", 5, True), (LAST, "q", 6, False), (LAST, "q", 4, False)],
)
def test_a_batch_that_is_handed_over_is_the_next_one(last: Any, query: str, batch: int, fits: bool) -> None:
    check_handed("cp", query, batch, last, adopts=True)
    if fits:
        check_handed("cp", query, batch, last, adopts=False)
    else:
        with pytest.raises(
            CheckpointMismatchError, match=f"Spark gives batch {batch} of query q, but the log continues with batch"
        ):
            check_handed("cp", query, batch, last, adopts=False)


def test_a_replayed_batch_is_known_by_all_three() -> None:
    assert is_batch(LAST, "q", 4, "d4")
    assert not any(is_batch(LAST, *other) for other in (("r", 4, "d4"), ("q", 5, "d4"), ("q", 4, "d5"), ("q", 4, None)))
    assert not is_batch(None, "q", 4, "d4")
    assert digest_of("v1\n1") != digest_of("v1\n2")
