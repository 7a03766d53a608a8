"""Every case of comparing what the store says of its last commit with what the log says."""

import pytest

from states.memory import MemoryBackingMap
from tests.harness.crashing_stores import DictMap, LateMap
from trident.errors import (
    BackendError,
    FencedError,
    SecondRunError,
    StateError,
    StateLossDetected,
    StateMismatchError,
    StatePlaceError,
)
from trident.state import OpaqueMap, ReservedKeySentinel, Sentinel, Txid, Winners, check_sentinel, fenced
from trident.state.sentinel import displaced
from trident.state.txid import Epochs
from trident.testing.backend.schedules import Add

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
    said = rf"state 'counts' partition 2: this writer is batch {txid} attempt {attempt}"
    with pytest.raises(FencedError, match=said):
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


A, B = 1 << 20, 2 << 20  # the first attempts of two epochs


def compare(found: Sentinel, expected: Sentinel | None, txid: int = 5, epochs: Epochs | None = None) -> None:
    commit = Txid(txid, B, Winners(((1, A),)), "log", expected, epochs)
    check_sentinel("counts", 2, found, commit, "t/counts")


def test_an_expected_commit_without_its_seal_has_lost_its_end() -> None:
    expected = Sentinel("log", 4, A)
    compare(expected._replace(place="t/counts", sealed=True), expected)
    said = "the store has batch 4 attempt 1048576 .*, whose last writes are missing"
    with pytest.raises(StateMismatchError, match=said):
        compare(expected._replace(place="t/counts", sealed=False), expected)


def test_a_failed_attempt_needs_no_seal() -> None:
    compare(Sentinel("log", 5, A + 1, "t/counts", sealed=False), Sentinel("log", 4, A))


def test_an_attempt_of_a_driver_that_the_log_does_not_know_is_a_mismatch() -> None:
    found, expected = Sentinel("log", 5, A + 1), Sentinel("log", 4, A)
    compare(found, expected, epochs=Epochs(((1, 1),)))
    with pytest.raises(StateMismatchError, match="of a driver that this log does not know"):
        compare(found, expected, epochs=Epochs(((2, 7),)))


def test_another_run_of_this_very_commit_is_named() -> None:
    found = Sentinel("log", 5, B, "t/counts", sealed=False, run="first")
    commit = Txid(5, B, Winners(((1, A),)), "log", Sentinel("log", 4, A))
    check_sentinel("counts", 2, found, commit.of_run("first"), "t/counts")
    with pytest.raises(SecondRunError, match="state 'counts' partition 2"):
        check_sentinel("counts", 2, found, commit.of_run("second"), "t/counts")


def test_another_state_in_the_same_place_is_named() -> None:
    with pytest.raises(StatePlaceError, match="'t/counts' wants to keep its values belongs to 't/weights'"):
        compare(Sentinel("log", 4, A, "t/weights"), Sentinel("log", 4, A))


def test_a_claim_of_another_log_that_never_committed_is_nobodys() -> None:
    compare(Sentinel("lost", 0, A, "t/counts"), None, txid=1)
    with pytest.raises(StateMismatchError):
        compare(Sentinel("lost", 1, A, "t/counts"), None, txid=1)


def test_epochs_are_kept_as_ranges() -> None:
    epochs = Epochs()
    for epoch in (1, 2, 3, 7, 8):
        epochs = epochs.with_epoch(epoch)
    assert epochs.ranges == ((1, 3), (7, 8))
    assert [epoch for epoch in range(10) if epoch in epochs] == [1, 2, 3, 7, 8]


OWN = Sentinel("log", 5, B, "t/counts", sealed=False)


@pytest.mark.parametrize(
    ("found", "seen", "error"),
    [
        pytest.param(None, Sentinel("log", 4, A), StateLossDetected, id="emptied"),
        pytest.param(Sentinel("log", 3, A), Sentinel("log", 4, A), StateLossDetected, id="rolled back before the move"),
        pytest.param(Sentinel("log", 4, A), OWN, StateLossDetected, id="rolled back after the move"),
        pytest.param(OWN, OWN._replace(sealed=True), StateLossDetected, id="rolled back behind the seal"),
        pytest.param(Sentinel("log", 5, B + 1), OWN, FencedError, id="replaced"),
        pytest.param(Sentinel("other", 1, A), OWN, FencedError, id="replaced by another log's writer"),
        pytest.param(OWN, OWN, FencedError, id="another run of the same attempt"),
        pytest.param(
            Sentinel("log", 5, A, sealed=False), Sentinel("log", 4, A), BackendError, id="an older one moved it"
        ),
        pytest.param(Sentinel("log", 4, A), None, BackendError, id="the first one of all, by an older writer"),
        pytest.param(Sentinel("log", 4, A, "t/weights"), None, StatePlaceError, id="another state"),
    ],
)
def test_what_a_writer_is_told_that_finds_another_sentinel(
    found: Sentinel | None, seen: Sentinel | None, error: type[StateError]
) -> None:
    told = displaced("state 'counts' partition 2", OWN, found, seen)
    assert type(told) is error
    assert "state 'counts' partition 2" in str(told)


def begun(store: DictMap, txid: int = 2) -> OpaqueMap:
    """A commit of batch 2 with its values written and its end to come."""
    state = OpaqueMap(store, "t/counts", 2)
    state.begin_commit(Txid(1, A, Winners(), "log"))
    state.multi_update([("a",)], [Add(1)])
    state.commit(Txid(1, A, Winners(), "log"))
    state.begin_commit(Txid(2, A, Winners(((1, A),)), "log", Sentinel("log", 1, A)))
    state.multi_update([("a",)], [Add(1)])
    return state


@pytest.mark.parametrize("store", [DictMap, LateMap])
def test_a_commit_is_sealed_at_its_end(store: type[DictMap]) -> None:
    entries = store({})
    state = begun(entries)
    assert state.read_sentinel() == Sentinel("log", 1, A)
    state.commit(Txid(2, A))
    found = state.read_sentinel()
    assert found is not None
    assert (*found,) == ("log", 2, A, "t/counts", True, "")


@pytest.mark.parametrize("kept", [(), ("a",), ("a", "begun"), ("a", "complete")])
def test_a_store_that_was_emptied_between_the_sentinels_read_and_the_end_is_found(kept: tuple[str, ...]) -> None:
    store = DictMap({})
    state = begun(store)
    names = {"a": ("a",), "complete": ("\x00trident-sentinel", 2), "begun": ("\x00trident-sentinel", 2, "begun")}
    store.entries = {names[name]: store.entries[names[name]] for name in kept}
    with pytest.raises(StateLossDetected, match="is gone"):
        state.commit(Txid(2, A))


def test_a_store_that_was_rolled_back_while_a_commit_is_under_way_is_found() -> None:
    store = DictMap({})
    state = begun(store)
    state.commit(Txid(2, A))
    older = dict(store.entries)
    winners = Winners(((1, A),))
    state.begin_commit(Txid(3, A, winners, "log", Sentinel("log", 2, A)))
    state.commit(Txid(3, A))
    state.begin_commit(Txid(4, A, winners, "log", Sentinel("log", 3, A)))
    store.entries = older
    with pytest.raises(StateLossDetected, match="rolled back from batch 3 .* to batch 2"):
        state.commit(Txid(4, A))


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
