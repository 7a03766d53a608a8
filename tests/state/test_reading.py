"""Every case of comparing what a reader finds in the store with the log, as it was before and after."""

import pytest

from trident.errors import StateReadError
from trident.state.sentinel import check_reading
from trident.state.txid import Epochs, Sentinel, Txid, Winners

A, B, C = 1 << 20, 2 << 20, 3 << 20  # the first attempts of three epochs; the log knows the first two
EPOCHS = Epochs(((1, 2),))
WINNERS = Winners(((1, A), (5, B)))  # batches 1 to 4 were won by A, those from 5 on by B


def log(txid: int, expected: tuple[int, int] | None, epochs: Epochs | None = EPOCHS) -> Txid:
    """What the log says of the partition when `txid` is the last committed batch."""
    laid = None if expected is None else Sentinel("log", *expected)
    return Txid(txid + 1, 0, WINNERS, "log", laid, epochs)


def sentinel(txid: int, attempt: int, place: str = "t/counts", sealed: bool = True) -> Sentinel:
    return Sentinel("log", txid, attempt, place, sealed)


UNSEALED = sentinel(4, A, sealed=False)
QUIET = log(4, (4, A))
LEGAL: dict[str, tuple[Sentinel | None, Txid, Txid]] = {
    "a state that no batch has touched": (None, log(4, None), log(4, None)),
    "the last commit": (sentinel(4, A), QUIET, QUIET),
    "the last commit, by a writer that says no place": (sentinel(4, A, place=""), QUIET, QUIET),
    "a batch that is being committed": (sentinel(5, A, sealed=False), QUIET, QUIET),
    "a later attempt of it": (sentinel(5, B), QUIET, QUIET),
    "the first batch, which is being committed": (sentinel(1, A, sealed=False), log(0, None), log(0, None)),
    "a failed attempt of a batch that left this partition out": (sentinel(3, A + 1), log(4, (2, A)), log(4, (2, A))),
    "committed between the two looks at the log": (sentinel(5, B, sealed=False), QUIET, log(5, (5, B))),
    "many batches later": (sentinel(9, B), QUIET, log(12, (12, B))),
    "many batches later, being committed": (sentinel(13, B, sealed=False), QUIET, log(12, (12, B))),
    "a place that a start claimed": (sentinel(4, B), QUIET, QUIET),
    "a place that a start claimed before any batch": (sentinel(0, A), log(0, None), log(0, None)),
    "a place that a lost log claimed and never used": (Sentinel("lost", 0, A, "t/counts"), log(4, None), log(4, None)),
    "a log that counts no epochs": (sentinel(5, C), log(4, (4, A), None), log(4, (4, A), None)),
}


@pytest.mark.parametrize("case", LEGAL)
def test_legal(case: str) -> None:
    found, before, after = LEGAL[case]
    check_reading("counts", 2, found, before, after, "t/counts")


WRONG: dict[str, tuple[Sentinel | None, Txid, Txid, str]] = {
    "a folder that was moved away": (None, QUIET, QUIET, "has no commit at all: it was emptied or moved away"),
    "the same while batches go on": (None, QUIET, log(5, (5, B)), "it was emptied or moved away"),
    "an older copy": (sentinel(3, A), QUIET, QUIET, "has batch 3 attempt 1048576 .*: it is an older copy"),
    "an older attempt": (sentinel(5, A), log(5, (5, B)), log(5, (5, B)), "it is an older copy"),
    "another state": (sentinel(4, A, "t/weights"), QUIET, QUIET, "it belongs to 't/weights'"),
    "another log": (Sentinel("other", 4, A, "t/counts"), QUIET, QUIET, "it belongs to another log"),
    "another log, nothing expected": (Sentinel("other", 4, A), log(4, None), log(4, None), "it belongs to another log"),
    "a store that says so itself": (Sentinel("log (lost data: 3 evictions)", 4, A), QUIET, QUIET, "it lost data since"),
    "a claim of another log where values were": (Sentinel("other", 0, A), QUIET, QUIET, "it belongs to another log"),
    "an end that was lost": (UNSEALED, QUIET, QUIET, "whose last writes are missing: the end of that batch was lost"),
    "an older log": (sentinel(6, A), QUIET, QUIET, "it is ahead of the log, whose end was lost"),
    "a driver that an older log does not know": (
        sentinel(5, C),
        QUIET,
        QUIET,
        "it was written by a driver that this log",
    ),
    "a batch that did not change it": (sentinel(3, A), log(4, (2, A)), log(4, (2, A)), "the log does not know that"),
}


@pytest.mark.parametrize("case", WRONG)
def test_store_and_log_that_do_not_belong_together(case: str) -> None:
    found, before, after, said = WRONG[case]
    with pytest.raises(StateReadError, match=f"partition 2 of state 'counts' cannot be read: the log expects .*{said}"):
        check_reading("counts", 2, found, before, after, "t/counts")
