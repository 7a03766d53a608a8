"""The sentinel: one record per state partition that shows whether store and log belong together (R8, R9).

Before a commit writes anything, it compares the last commit by the store with the last commit by the log. The comparison is
`check_sentinel`, a function of values; readers compare beside a writer that may be at work (`check_reading`).
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from trident.errors import (
    BackendError,
    FencedError,
    SecondRunError,
    StateError,
    StateLossDetected,
    StateMismatchError,
    StateMovedError,
    StatePlaceError,
    StateReadError,
)
from trident.state.backing_map import BackingMap, backing_map
from trident.state.interfaces import IBackingMap, Key, State
from trident.state.txid import Sentinel, Txid, epoch_of

SENTINEL_KEY = "\x00trident-sentinel"
_ROUNDS = 3


def check_sentinel(state: str, partition: int, found: Sentinel | None, txid: Txid, place: str = "") -> None:
    """Compare the sentinel in the store with what the log expects, for a commit of `txid`.

    Legal are: the expected sentinel itself, and one that a failed attempt of ours left behind (same incarnation, a later
    (txid, attempt) than expected, not above this commit's, of a driver that this log let write, and not a winner, because the
    log would know the touch). `place` is the name of the state in its own sentinels; "" compares none.

    Raises
    ------
    FencedError
        The store is at or beyond this commit by a higher attempt: this writer was replaced.
    SecondRunError
        Another run of the same task has begun this very commit, and may have written other rows.
    StatePlaceError
        Another state keeps its values there.
    StateMovedError
        The state was moved away from there, or is being moved to there.
    StateMismatchError
        Anything else. Nothing was written.
    """
    if _is_last_commit(found, txid, place):
        return
    if is_foreign(found, place):
        raise StatePlaceError(f"state {state!r} partition {partition}", place, found.place)
    if found is not None and _is_second_run(found, txid):
        # Asked first: a start may have claimed the place at this very attempt, then the record is also the expected one.
        raise SecondRunError(f"state {state!r} partition {partition}", str(txid.sentinel))
    if is_expected(found, txid):
        return
    unknown, note = "", move_note(found, str(txid.incarnation))
    if note:
        raise StateMovedError(state, note)
    if found is not None and found != txid.expected and found.incarnation == txid.incarnation:
        # A later batch by an *earlier* attempt is not a successor of this writer: the end of the log was lost.
        if (found.attempt, found.txid) > (txid.attempt, txid):
            raise FencedError(f"state {state!r} partition {partition}", str(txid.sentinel), str(found))
        if not _is_of_known_driver(found, txid):
            unknown = ", of a driver that this log does not know"
        elif _was_left_behind(found, txid):
            return
    raise StateMismatchError(state, partition, expected_text(txid), found_text(found) + unknown)


def _is_last_commit(found: Sentinel | None, txid: Txid, place: str) -> bool:
    """Whether the store has the last commit of this log, as before nearly every commit: then nothing else need be asked."""
    if found is None or found.txid >= txid or not found.sealed:
        return False
    return found.place == place and found == txid.expected


def is_foreign(found: Sentinel | None, place: str) -> TypeGuard[Sentinel]:
    """Whether another state than that named `place` keeps its values there; "" is any state."""
    return found is not None and bool(place) and found.place not in ("", place)


def with_note(incarnation: str, note: str) -> str:
    """Return what stands for an incarnation in a place that no commit of it may use."""
    return f"{incarnation} ({note})"


def move_note(found: Sentinel | None, incarnation: str) -> str:
    """Return what a move has noted of this incarnation in a place; empty: nothing."""
    before, _, note = (found.incarnation if found is not None else "").removesuffix(")").partition(" (")
    return note if before == incarnation and note.startswith(("moved to ", "moving")) else ""


def _is_second_run(found: Sentinel, txid: Txid) -> bool:
    """Whether another run has begun this very commit. The expected record without a run is the claim of a start."""
    own = txid.sentinel
    return own is not None and found == own and found.run != own.run and (found.run != "" or found != txid.expected)


def is_expected(found: Sentinel | None, txid: Txid) -> bool:
    """Whether the store has what the log expects, or nothing if nothing can be missing."""
    expected = txid.expected
    if found is None:
        # A place that was claimed at a start and never touched, so the store has lost nothing.
        return expected is None or expected.txid == 0
    if expected is None:
        # Another log's driver claimed the place and never committed, so none of its values are there.
        return found.incarnation != txid.incarnation and found.txid == 0 and found.sealed
    # Batch 0 is the claim of a start, which has no end; nor has a batch that is still to come.
    return found == expected and (found.sealed or found.txid == 0 or found.txid >= txid)


def _is_of_known_driver(found: Sentinel, txid: Txid) -> bool:
    is_own = (found.txid, found.attempt) == (int(txid), txid.attempt)
    return is_own or txid.epochs is None or epoch_of(found.attempt) in txid.epochs


def _was_left_behind(found: Sentinel, txid: Txid) -> bool:
    """Whether an attempt that committed no batch of the log wrote the sentinel, after the expected one and not after this."""
    expected, at = txid.expected, (found.txid, found.attempt)
    floor = (0, 0) if expected is None else (expected.txid, expected.attempt)
    # Not `won`, which is true for every attempt of an adopted batch, where a start may have written its claim.
    has_lost = found.txid == txid or txid.winners.winner(found.txid) != found.attempt
    return floor < at <= (int(txid), txid.attempt) and has_lost


def expected_text(txid: Txid) -> str:
    return str(txid.expected) if txid.expected is not None else f"no commit of incarnation {txid.incarnation}"


def found_text(found: Sentinel | None) -> str:
    if found is None:
        return "no commit at all"
    return str(found) if found.sealed else f"{found}, whose last writes are missing"


def is_forward(found: Sentinel, own: Sentinel) -> bool:
    """Whether a sentinel may be moved from `found` to `own` without force: neither txid nor attempt falls."""
    return found.incarnation == own.incarnation and found.txid <= own.txid and found.attempt <= own.attempt


def check_move(what: str, own: Sentinel, found: Sentinel | None, seen: Sentinel | None, force: bool = False) -> None:
    """Raise unless a writer may lay its sentinel: the order of sentinels, as every store keeps it (R9).

    The store must have what the writer read or laid last, "none" included. Without `force` the move must also go forward: in
    the same incarnation, in the place of the same state, neither txid nor attempt falls, and not over another run of the same
    commit. `displaced` says what is raised, and what the parameters are.
    """
    if found is not seen and (found != seen or (found is not None and seen is not None and found[4:] != seen[4:])):
        raise displaced(what, own, found, seen)
    if found is None or force:
        return
    if is_foreign(found, own.place) or not is_forward(found, own) or is_other_run(found, own):
        raise displaced(what, own, found, seen)


def is_other_run(found: Sentinel, own: Sentinel) -> bool:
    """Whether another run of the same commit has written what is there. A claim of a start is of no run."""
    return found.run not in ("", own.run) and found == own


def displaced(what: str, own: Sentinel, found: Sentinel | None, seen: Sentinel | None) -> StateError | FencedError:
    """Return the error for a writer that finds a sentinel other than the one that it read or laid last.

    `what` was done where, or the state, partition and server alone, is for the message. `own` is what the writer laid, or
    wants to lay, `found` what is there now, `seen` what it read or laid last.
    """
    if found is None:
        return StateLossDetected(what, f"its sentinel ({seen}) is gone")
    if is_foreign(found, own.place):
        return StatePlaceError(what, own.place, found.place)
    if is_other_run(found, own):
        return SecondRunError(what, str(own))
    if not is_forward(found, own) or (seen == own and found == own and found.sealed >= seen.sealed):
        return FencedError(what, str(own), f"{found} (another run of it)" if found == own else str(found))
    if seen is not None and is_forward(found, seen) and (found != seen or found.sealed < seen.sealed):
        return StateLossDetected(what, f"it was rolled back from {seen} to {found_text(found)}")
    return BackendError(f"{what}: another writer moved the sentinel to {found} meanwhile; the batch may be replayed")


class ReservedKeySentinel:
    """Keeps the sentinel of a two-method backing map under two reserved keys of that map.

    One holds the last commit that is complete, the other the commit that has begun. The first is written only at the end:
    then it must still be what it was at the begin, or the store was emptied or rolled back meanwhile. It cannot fence a
    writer that sleeps between two puts: for that a store has `move_sentinel`.
    """

    def __init__(self, backing: IBackingMap[Any], partition: int) -> None:
        self._backing = backing
        self._complete: Key = (SENTINEL_KEY, partition)
        self._begun: Key = (SENTINEL_KEY, partition, "begun")
        self._what = f"partition {partition} of a state over a {type(backing).__name__}"
        self._seen: tuple[Sentinel | None, Sentinel | None] | None = None

    def read_sentinel(self) -> Sentinel | None:
        """Read the last complete commit."""
        self._seen = self._look()
        return self._seen[0]

    def begun_txid(self) -> int:
        """Return the batch whose commit began last; 0 if none did."""
        begun = self._look()[1]
        return 0 if begun is None else begun.txid

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Note that a commit begins (it is not sealed), or that it is complete; raise what `displaced` returns."""
        complete, begun = seen = self._look() if self._seen is None else self._seen
        if force:
            self._check_unchanged(sentinel, seen)
            # A commit that another writer began before is refused at its end.
            self._backing.multi_put([self._complete], [sentinel])
            self._backing.multi_put([self._begun], [sentinel])
            self._seen = (sentinel, sentinel)
            return
        for found in seen:
            check_move(self._what, sentinel, found, found)
        if not sentinel.sealed:
            self._backing.multi_put([self._begun], [sentinel])
            self._seen = (complete, sentinel)
            return
        if begun == sentinel:
            self._check_unchanged(sentinel, seen)
        self._backing.multi_put([self._complete], [sentinel])
        self._seen = (sentinel, begun)

    def _check_unchanged(self, own: Sentinel, seen: tuple[Sentinel | None, Sentinel | None]) -> None:
        for found, before in zip(self._look(), seen, strict=True):
            if found != before:
                raise displaced(self._what, own, found, before)

    def _look(self) -> tuple[Sentinel | None, Sentinel | None]:
        complete, begun = self._backing.multi_get([self._complete, self._begun])
        return None if complete is None else Sentinel(*complete), None if begun is None else Sentinel(*begun)


def fenced(backing: IBackingMap[Any], partition: int) -> BackingMap | ReservedKeySentinel:
    """Return the map itself if it keeps its own sentinel, else one that stores it under reserved keys."""
    store = backing_map(backing)
    return store if store.offers("move_sentinel") else ReservedKeySentinel(store, partition)


def is_sentinel_key(keys: Sequence[Key]) -> bool:
    """Whether a request is for sentinels under reserved keys: they are read and written by themselves."""
    return 0 < len(keys) <= 2 and keys[0][:1] == (SENTINEL_KEY,)


def compare_stores(name: str, partitions: Sequence[State], log: Callable[[], Any]) -> None:
    """Compare the sentinels of a state's partitions with the log; those without (a user's own state) are not compared."""
    for rounds_left in reversed(range(_ROUNDS)):  # a start may change the store before the log says so
        try:
            check_partitions(name, partitions, lambda: log().commits(name, len(partitions)))
            return
        except StateReadError:
            if not rounds_left:
                raise


def check_partitions(
    name: str, partitions: Sequence[State], commits: Callable[[], Sequence[Txid]], first: int = 0
) -> None:
    """Compare the sentinel of each partition, from `first` on, with its next commit by the log, read again on a mismatch."""
    before = commits()
    for at, state in enumerate(partitions):
        if before[at].incarnation is None or not state.offers("read_sentinel"):
            continue
        found, place = state.read_sentinel(), state.place
        try:
            check_reading(name, first + at, found, before[at], before[at], place)
        except StateReadError:
            check_reading(name, first + at, found, before[at], commits()[at], place)


def check_reading(
    state: str, partition: int, found: Sentinel | None, before: Txid, after: Txid, place: str = ""
) -> None:
    """Compare what a reader found in the store with the log, while a writer may be at work.

    The store must have everything that the log had before the store was read, and nothing that the log could not have after
    it, because a writer writes each sentinel before the log says that its batch is committed.

    `before`, `after`: the next batch, by the log as read before and after the store; the attempt has no meaning.
    """
    wrong = _wrong(found, before, after, place)
    if wrong:
        raise StateReadError(state, partition, expected_text(before), found_text(found), wrong)


def _wrong(found: Sentinel | None, before: Txid, after: Txid, place: str) -> str:
    if found is None:
        return "" if is_expected(found, before) else "it was emptied or moved away"
    if is_foreign(found, place):
        return f"it belongs to {found.place!r}"
    if note := move_note(found, str(before.incarnation)):
        return f"the state was {note}" if note.startswith("moved") else "a move into this place has not ended"
    if found.incarnation.startswith(f"{before.incarnation} ("):
        return "it lost data since"  # a store that knows of the loss writes this
    if is_expected(found, before):
        return ""
    if found.incarnation != before.incarnation:
        return "it belongs to another log"
    if found == before.expected:
        return "the end of that batch was lost"
    return _wrong_beyond(found, before.expected, after)


def _wrong_beyond(found: Sentinel, expected: Sentinel | None, after: Txid) -> str:
    """Say what is wrong with a sentinel that is not the expected one, in a store of this log."""
    at, touched = found[1:3], after.expected
    if expected is not None and at < expected[1:3]:
        return "it is an older copy"
    if found.txid > after:
        return "it is ahead of the log, whose end was lost"
    if after.epochs is not None and epoch_of(found.attempt) not in after.epochs:
        return "it was written by a driver that this log does not know"
    won = found.txid < after and after.winners.winner(found.txid) == found.attempt
    if won and (touched is None or touched[1:3] < at):
        return "the log does not know that this batch has changed it"
    return ""  # committed meanwhile, being committed now, or left behind by an attempt that failed
