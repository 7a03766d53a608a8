"""Every case of comparing what the store says of its last commit with what the log says."""

from __future__ import annotations

import pytest

from states.memory import MemoryBackingMap
from tests.state.faults import DictMap
from trident.errors import FencedError, StateMismatchError
from trident.state import ReservedKeySentinel, Sentinel, Txid, Winners, check_sentinel, fenced

WINNERS = Winners(((1, 10), (4, 11)))  # batches 1 to 3 were won by attempt 10, the ones from 4 on by attempt 11


def check(found: tuple[str, int, int] | None, txid: int, attempt: int, expected: tuple[str, int, int] | None) -> None:
    commit = Txid(txid, attempt, WINNERS, "log", Sentinel(*expected) if expected else None)
    check_sentinel("counts", 2, Sentinel(*found) if found else None, commit)


@pytest.mark.parametrize(
    ("found", "txid", "attempt", "expected"),
    [
        pytest.param(None, 1, 10, None, id="a new state"),
        pytest.param(("log", 4, 11), 5, 11, ("log", 4, 11), id="the last commit"),
        pytest.param(("log", 5, 11), 5, 12, ("log", 4, 11), id="a failed attempt of this batch"),
        pytest.param(("log", 5, 12), 5, 12, ("log", 4, 11), id="this very attempt: a task that is tried again"),
        pytest.param(("log", 4, 10), 5, 11, ("log", 3, 10), id="a failed attempt of a batch that left us out later"),
        pytest.param(("log", 1, 9), 1, 10, None, id="a failed attempt of the first batch"),
    ],
)
def test_legal(
    found: tuple[str, int, int] | None, txid: int, attempt: int, expected: tuple[str, int, int] | None
) -> None:
    check(found, txid, attempt, expected)


@pytest.mark.parametrize(
    ("found", "txid", "attempt", "expected"),
    [
        pytest.param(("log", 5, 13), 5, 12, ("log", 4, 11), id="a higher attempt of this batch"),
        pytest.param(("log", 6, 13), 5, 12, ("log", 4, 11), id="a later batch by a higher attempt"),
        pytest.param(("log", 3, 13), 5, 12, ("log", 2, 10), id="an earlier batch by a higher attempt"),
        pytest.param(("log", 6, 11), 5, 11, ("log", 4, 11), id="a later batch by this attempt: we slept"),
    ],
)
def test_a_writer_that_was_replaced_is_fenced(
    found: tuple[str, int, int], txid: int, attempt: int, expected: tuple[str, int, int]
) -> None:
    with pytest.raises(
        FencedError, match=rf"state 'counts' partition 2: this writer is batch {txid} attempt {attempt}"
    ):
        check(found, txid, attempt, expected)


@pytest.mark.parametrize(
    ("found", "txid", "attempt", "expected"),
    [
        pytest.param(None, 5, 11, ("log", 4, 11), id="wiped"),
        pytest.param(("log", 2, 10), 5, 11, ("log", 4, 11), id="rolled back"),
        pytest.param(("log", 4, 10), 5, 11, ("log", 4, 11), id="rolled back within a batch"),
        pytest.param(("other", 4, 11), 5, 11, ("log", 4, 11), id="foreign"),
        pytest.param(("other", 4, 11), 1, 10, None, id="foreign, to a new log"),
        pytest.param(("log", 4, 11), 6, 12, ("log", 3, 10), id="a winner's touch that the log forgot"),
        pytest.param(
            ("log", 7, 11), 5, 12, ("log", 4, 11), id="a later batch by an earlier attempt: the log's end is lost"
        ),
    ],
)
def test_store_and_log_that_do_not_belong_together(
    found: tuple[str, int, int] | None, txid: int, attempt: int, expected: tuple[str, int, int] | None
) -> None:
    wanted = str(Sentinel(*expected)) if expected else "no commit of incarnation log"
    has = str(Sentinel(*found)) if found else "no commit at all"
    with pytest.raises(StateMismatchError) as caught:
        check(found, txid, attempt, expected)
    assert f"partition 2 of state 'counts': the log expects {wanted}, the store has {has}." in str(caught.value)


def test_a_two_method_map_keeps_the_sentinel_under_a_reserved_key_per_partition() -> None:
    store = DictMap()
    first, second = fenced(store, 0), fenced(store, 1)
    assert isinstance(first, ReservedKeySentinel)
    first.move_sentinel(Sentinel("log", 3, 7))
    store.entries = {key: list(stored) for key, stored in store.entries.items()}  # as a serializer may give it back
    assert first.read_sentinel() == Sentinel("log", 3, 7)
    assert second.read_sentinel() is None


def test_a_map_that_keeps_its_sentinel_is_its_own_guard() -> None:
    store: MemoryBackingMap[object] = MemoryBackingMap()
    assert fenced(store, 0) is store
