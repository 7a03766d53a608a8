"""What the contracts of states share: a log, whole batches, and reads as of the last committed one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trident.state.interfaces import Key, StateType
from trident.state.txid import Txid
from trident.testing.backend.contract import StoreContract
from trident.testing.backend.simulated_log import Log
from trident.testing.backend.updaters import Append
from trident.testing.checks.expecting import expect

__all__ = ["StateContract", "append"]


def append(state: Any, txid: Txid, *calls: dict[str, int]) -> None:
    """Begin a commit and append a number to each named key, call by call; the commit is not ended."""
    state.begin_commit(txid)
    for call in calls:
        state.multi_update([(name,) for name in call], [Append(number) for number in call.values()])


class StateContract(StoreContract):
    """Base of the contracts of states."""

    _log: Log | None = None

    @property
    def log(self) -> Log:
        """The log of this check."""
        if self._log is None:
            self._log = Log()
        return self._log

    @property
    def exact(self) -> bool:
        """Whether the kind undoes a failed attempt."""
        return self.store.kind is not StateType.NON_TRANSACTIONAL

    @property
    def opaque(self) -> bool:
        """Whether replays may change, and readers may read as of a batch."""
        return self.store.kind is StateType.OPAQUE

    def run(self, state: Any, *calls: dict[str, int]) -> None:
        """Run one whole batch, record included."""
        txid = self.log.next()
        append(state, txid, *calls)
        state.commit(txid)
        self.log.record()

    def remove(self, state: Any, *keys: Key) -> None:
        """Run a batch that removes keys, without its record."""
        txid = self.log.next()
        state.begin_commit(txid)
        state.multi_remove(list(keys))
        expect(list(state.multi_get(list(keys))), [None] * len(keys), "read in the batch that removed the keys")
        state.commit(txid)

    def read(self, state: Any, keys: Sequence[Key]) -> list[Any]:
        """Read as a topology does: as of the last committed batch, where the kind can."""
        if self.opaque and self.log.committed:
            return list(state.multi_get_at(keys, self.log.snapshot()))
        return list(state.multi_get(keys))

    def expect_values(self, what: str, *states: Any, **wanted: Any) -> None:
        """Compare what is read, by these and by a new instance, with what each key should have."""
        keys: list[Key] = [(name,) for name in wanted]
        for state in (*states, self.store.state(reads=True)):
            expect(self.read(state, keys), list(wanted.values()), what)
