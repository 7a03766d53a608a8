"""SnapshottableContract: the single value of an ungrouped aggregate."""

from __future__ import annotations

from typing import Any

from trident.errors import UnsupportedOperation
from trident.testing.backend.contract import StateContract
from trident.testing.backend.limits import Promise
from trident.testing.backend.simulated_log import Append
from trident.testing.checks.expecting import expect, expect_error, promise


class SnapshottableContract(StateContract):
    """What a state with a single value must do: `get`, `update`, `set`, by the rule of its kind."""

    def add(self, state: Any, *items: int) -> None:
        """Run one whole batch that appends to the value."""
        txid = self.log.next()
        state.begin_commit(txid)
        for item in items:
            state.update(Append(item))
        state.commit(txid)
        self.log.record()

    def expect_value(self, wanted: Any, what: str, *states: Any) -> None:
        """Compare what is read, by these and by a new instance."""
        for state in (*states, self.store.state(reads=True)):
            found = state.get_at(self.log.snapshot()) if self.opaque else state.get()
            expect(found, wanted, what)

    @promise(Promise.SINGLE_VALUE)
    def test_it_is_none_until_it_is_written(self) -> None:
        """Then it stays from batch to batch and from instance to instance."""
        state = self.store.state()
        expect(state.get(), None, "the value of an empty state")
        self.add(state, 1)
        self.add(state, 2, 3)
        self.expect_value([1, 2, 3], "the value after two batches", state)
        self.add(self.store.state(), 4)
        self.expect_value([1, 2, 3, 4], "the value after a batch of a new instance")

    @promise(Promise.SINGLE_VALUE)
    def test_it_can_be_replaced(self) -> None:
        """By another type, and by None."""
        state = self.store.state()
        for value in (5, "text", None, 0):
            txid = self.log.next()
            state.begin_commit(txid)
            state.set(value)
            state.commit(txid)
            self.log.record()
            self.expect_value(value, f"the value after it was set to {value!r}", state)

    @promise(Promise.SINGLE_VALUE, "exact")
    def test_a_replay_counts_once(self) -> None:
        """The failed attempt wrote the same or, where the kind allows it, something else."""
        if not self.exact:
            return
        state = self.store.state()
        self.add(state, 1)
        txid = self.log.next()
        state.begin_commit(txid)
        state.update(Append(100 if self.opaque else 2))
        state.commit(txid)
        self.log.fail(takeover=True)
        self.add(self.store.state(), 2)
        self.expect_value([1, 2], "the value after a replay")

    @promise(Promise.SINGLE_VALUE)
    def test_keys_of_the_map_are_others(self) -> None:
        """Neither hides the other."""
        state = self.store.state()
        self.add(state, 1)
        self.run(state, {"a": 5, "": 6})
        self.expect_value([1], "the value after keys were written", state)
        found = self.store.state(reads=True).multi_get([("a",), ("",)])
        expect(list(found), [[5], [6]], "keys beside the value")

    @promise(Promise.SNAPSHOT)
    def test_it_is_read_as_of_a_committed_batch_or_the_refusal_says_so(self) -> None:
        """While the next batch is written."""
        state, reader = self.store.state(), self.store.state(reads=True)
        self.add(state, 1)
        snapshot, txid = self.log.snapshot(), self.log.next()
        state.begin_commit(txid)
        state.update(Append(2))
        if self.opaque:
            expect(reader.get_at(snapshot), [1], "the value while a batch is written")
        else:
            with expect_error(UnsupportedOperation, what="read a value that keeps no earlier one as of a batch"):
                reader.get_at(snapshot)
        state.commit(txid)
        self.log.record()
        self.expect_value([1, 2], "the value after the record", state)
