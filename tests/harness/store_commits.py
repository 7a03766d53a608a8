"""What the tests of stores share: sums as updates, and the driver's side of commits."""

from collections.abc import Callable, Mapping
from typing import Any

from trident.state.txid import Sentinel, Txid, Winners
from trident.state.values import CombinerValueUpdater


def add(left: int, right: int) -> int:
    return left + right


class Log:
    """The driver's side of a commit: winners, attempts and the sentinel that the partition must have."""

    def __init__(self, incarnation: str = "inc", epoch: int = 0) -> None:
        self.incarnation, self.epoch = incarnation, epoch
        self.winners, self.expected = Winners(), None

    winners: Winners
    expected: Sentinel | None

    def txid(self, number: int, attempt: int = 0) -> Txid:
        return Txid(number, self.epoch + attempt, self.winners, self.incarnation, self.expected)

    def record(self, txid: Txid) -> None:
        self.winners, self.expected = self.winners.with_winner(int(txid), txid.attempt), txid.sentinel


def update(state: Any, counts: Mapping[Any, int]) -> list[Any]:
    keys = [key if isinstance(key, tuple) else (key,) for key in counts]
    return list(state.multi_update(keys, [CombinerValueUpdater(add, n) for n in counts.values()]))


def commit_by(
    state: Any, log: Log, number: int, act: Callable[..., object], *given: Any, attempt: int = 0, record: bool = True
) -> None:
    txid = log.txid(number, attempt)
    state.begin_commit(txid)
    act(*given)
    state.commit(txid)
    if record:
        log.record(txid)


def commit(state: Any, log: Log, number: int, attempt: int, counts: Mapping[Any, int], record: bool = True) -> None:
    commit_by(state, log, number, update, state, counts, attempt=attempt, record=record)


def values(state: Any, *words: str) -> list[Any]:
    return list(state.multi_get([(word,) for word in words]))
