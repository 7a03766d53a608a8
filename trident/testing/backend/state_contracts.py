"""MapStateContract: the exactly-once rules, over a real store; SnapshottableContract: the value of an ungrouped aggregate."""

from functools import cached_property
from typing import Any

from trident.errors import FencedError, StaleTransactionError, StateMismatchError, UnsupportedOperation
from trident.state.interfaces import Key
from trident.state.txid import Sentinel, Snapshot, Txid
from trident.testing.backend.contract import StateContract, update
from trident.testing.backend.schedules import Add, Append, Log
from trident.testing.backend.store_under_test import INCARNATION
from trident.testing.contract import Promise, expect, expect_error, promise


class MapStateContract(StateContract):
    """What a map state over the store must do: opaque, transactional or not, as `kind` says."""

    @promise(Promise.RULES)
    def test_batches_add_up(self) -> None:
        state = self.store.state()
        self.run(state, {"a": 1, "b": 2})
        self.run(state, {"a": 3, "c": 4})
        self.run(self.store.state(), {"a": 5})

    @promise(Promise.RULES)
    def test_a_batch_without_keys_changes_nothing(self) -> None:
        state = self.store.state()
        self.run(state, {"a": 1})
        self.run(state, {})
        self.run(state)
        self.run(state, {"a": 2})

    @promise(Promise.RULES)
    def test_a_key_may_be_updated_twice_in_a_batch(self) -> None:
        state = self.store.state()
        self.run(state, {"a": 1})
        self.run(state, {"a": 2, "b": 3}, {"a": 4})

    @promise(Promise.RULES)
    def test_a_commit_reads_its_own_updates(self) -> None:
        state = self.store.state()
        with self.batch(state, {"a": 1, "b": 2}):
            expect(list(state.multi_get([("b",), ("a",), ("c",)])), [[2], [1], None], "read in the commit")

    @promise(Promise.RULES, "exact")
    def test_the_same_replay_counts_once(self) -> None:
        for is_new in (False, True):
            state, call = self.store.state(), {"a": self.log.committed, "b": self.log.committed}
            self.run(state, call, recorded=False)
            self.log.fail()
            self.run(self.store.state() if is_new else state, call)

    @promise(Promise.RULES, "opaque")
    def test_a_replay_with_other_rows_counts_only_these(self) -> None:
        """The failed attempt wrote keys and numbers that the replay does not have; the key comes back later."""
        for takeover in (False, True):
            name, state, number = f"takeover {takeover}", self.store.state(), self.log.committed
            self.run(state, {name: 1, "x": number})
            self.run(state, {name: 100, "dropped": 100, "x": 100}, recorded=False)
            self.log.fail(takeover)
            again = self.store.state() if takeover else state
            self.run(again, {name: 2})
            self.run(again, {name: 3, "x": -number})

    @promise(Promise.RULES, "opaque")
    def test_several_failed_attempts_count_not_at_all(self) -> None:
        self.run(self.store.state(), {"a": 1})
        for number in (10, 20, 30):
            state, self.model[f"b{number}"] = self.store.state(), None
            state.begin_commit(self.log.next())
            update(state, {"a": number, f"b{number}": number})
            self.log.fail(takeover=number == 20)
        self.run(self.store.state(), {"a": 2})

    @promise(Promise.RULES, "exact")
    def test_a_value_of_a_later_batch_is_an_error(self) -> None:
        self.log.committed = 9
        self.run(self.store.state(), {"a": 1})
        self._expect_refusal(StaleTransactionError, "update a key of batch 10 in batch 5", self.store.state(), Txid(5))

    @promise(Promise.RULES)
    def test_none_is_a_value(self) -> None:
        state = self.store.state()
        for values in ([1, None], [None, 2], [None, None]):
            with self.batch(state):
                state.multi_put([("a",), ("b",)], values)
                self.model.update(zip("ab", values, strict=True))

    @promise(Promise.RULES)
    def test_many_keys_are_updated_at_once(self) -> None:
        state, number = self.store.state(), 2 * self.claims.chunk + 1
        keys: list[Key] = [("key", at) for at in range(number)]
        for _ in range(2):
            with self.batch(state):
                state.multi_update(keys, [Add(at) for at in range(number)])
        expect(self.read(self.store.state(reads=True), keys), [2 * at for at in range(number)], f"read {number} keys")

    @promise(Promise.SNAPSHOT, "opaque")
    def test_readers_do_not_see_a_batch_that_is_not_committed(self) -> None:
        state, reader = self.store.state(), self.store.state(reads=True)
        self.run(state, {"a": 1, "b": 1})
        old = self.log.snapshot()
        with self.batch(state, {"a": 2, "new": 2}, recorded=False):
            self._expect_at(old, reader, "while a batch is written", a=[1], b=[1], new=None)
        self._expect_at(old, reader, "after the store has all of it, before the record", a=[1], b=[1], new=None)
        self.log.record()
        self._expect_at(self.log.snapshot(), reader, "after the record", a=[1, 2], b=[1], new=[2])
        self._expect_at(old, reader, "as of the batch before", a=[1], b=[1], new=None)

    @promise(Promise.SNAPSHOT, "opaque")
    def test_a_snapshot_that_is_too_old_is_an_error(self) -> None:
        """The value of then is no longer there; a wrong one is not given instead."""
        state = self.store.state()
        self.run(state, {"a": 1})
        old = self.log.snapshot()
        self.run(state, {"a": 2})
        self.run(state, {"a": 3})
        with expect_error(StaleTransactionError, what="read as of two batches ago"):
            self.store.state(reads=True).multi_get_at([("a",)], old)

    @promise(Promise.LOSS)
    def test_a_store_that_was_wiped_is_found(self) -> None:
        self._expect_mismatch("commit to an empty store what follows batch 1")

    @promise(Promise.LOSS)
    def test_a_store_of_another_log_is_found(self) -> None:
        self.store.state().move_sentinel(Sentinel("another log", 1, 1 << 20), True)
        self._expect_mismatch("commit to the store of another log")

    @promise(Promise.LOSS)
    def test_a_store_that_was_rolled_back_is_found(self) -> None:
        self.run(self.store.state(), {"a": 1})
        self.run(self.store.state(), {"a": 2})
        self.store.state().move_sentinel(Sentinel(INCARNATION, 1, 1 << 20), True)
        self._expect_mismatch("commit to a store that was rolled back")

    @promise(Promise.LOSS)
    def test_a_driver_that_was_replaced_is_told_so(self) -> None:
        zombie, late = self.store.state(), self.log.next()
        self.log.fail(takeover=True)
        self.run(self.store.state(), {"a": 1})
        self._expect_refusal(FencedError, "begin a commit after another driver took over", zombie, late)

    @promise(Promise.REMOVAL)
    def test_a_removed_key_is_absent_and_may_come_back(self) -> None:
        state = self.store.state()
        self.run(state, {"a": 1, "b": 1})
        self.remove(state, "a", "never", recorded=not self.opaque)
        self.log.fail()
        self.run(self.store.state(), {"b": 2} if self.opaque else {"a": 7})

    @promise(Promise.REMOVAL)
    def test_a_removed_key_stays_removed(self) -> None:
        state = self.store.state()
        self.run(state, {"a": 1, "b": 1})
        self.remove(state, "a")
        for _ in range(20):
            self.run(state, {"c": 0})
        if self.claims.removes:
            found = list(self.store.map().multi_get([("a",)]))
            expect(found, [None], "what the store has of a key that was removed long ago")
        self.run(state, {"a": 2})

    @promise(Promise.LISTING, "lists", refusal=True)
    def test_rows_are_listed_or_the_refusal_says_so(self) -> None:
        state = self.store.state()
        self.run(state, {"a": 1, "b": 2})
        self.remove(state, "a")
        for each in (state, self.store.state(reads=True)):
            if self.claims.lists:
                expect(sorted(each.get_tuples()), [("b", [2])], "rows that are listed")
            else:
                with expect_error(UnsupportedOperation, what="list the rows of a store that cannot"):
                    list(each.get_tuples())

    @promise(Promise.RESET, "resets", refusal=True)
    def test_a_state_is_emptied_or_the_refusal_says_so(self) -> None:
        """With `state_recovery="discard_totals"`."""
        self.run(self.store.state(), {"a": 1})
        state = self.store.state()
        if not self.claims.resets:
            with expect_error(UnsupportedOperation, what="empty a state of a store that cannot"):
                state.reset()
            self.expect_model()
            return
        state.reset()
        self.log, self.model = Log(), {"a": None}
        self.expect_model(state)
        self.run(state, {"a": 5})

    def _expect_mismatch(self, what: str) -> None:
        commit = Txid(3, 1 << 20, self.log.winners, INCARNATION, Sentinel(INCARNATION, 2, 1 << 20))
        self._expect_refusal(StateMismatchError, what, self.store.state(), commit)

    def _expect_refusal(self, error: type[Exception], what: str, state: Any, commit: Txid) -> None:
        keys: list[Key] = [("a",), ("written",)]
        before = list(self.store.state(reads=True).multi_get(keys))
        with expect_error(error, what=what):
            state.begin_commit(commit)
            update(state, {"written": 100, "a": 100})
            state.commit(commit)
        expect(list(self.store.state(reads=True).multi_get(keys)), before, "read after a commit that was refused")

    def _expect_at(self, snapshot: Snapshot, reader: Any, what: str, **wanted: Any) -> None:
        for each in (reader, self.store.state(reads=True)):
            found = each.multi_get_at([(name,) for name in wanted], snapshot)
            expect(list(found), list(wanted.values()), f"read {what}")


class SnapshottableContract(StateContract):
    """What a state with a single value must do: `get`, `update`, `set`, by the rule of its kind."""

    def add(self, state: Any, *items: int) -> None:
        """Run one whole batch that appends to the value, and compare."""
        with self.batch(state):
            for item in items:
                state.update(Append(item))
        self._items += items
        self.expect_value(self._items, f"the value after batch {self.log.committed}", state)

    @cached_property
    def _items(self) -> list[int]:
        return []

    def expect_value(self, wanted: Any, what: str, state: Any) -> None:
        """Compare what is read, by a state and by a new instance."""
        for each in (state, self.store.state(reads=True)):
            expect(each.get_at(self.log.snapshot()) if self.opaque else each.get(), wanted, what)

    @promise(Promise.SINGLE_VALUE)
    def test_it_is_none_until_it_is_written(self) -> None:
        state = self.store.state()
        expect(state.get(), None, "the value of an empty state")
        self.add(state, 1)
        self.add(state, 2, 3)
        self.add(self.store.state(), 4)

    @promise(Promise.SINGLE_VALUE)
    def test_it_can_be_replaced(self) -> None:
        state = self.store.state()
        for value in (5, "text", None, 0):
            with self.batch(state):
                state.set(value)
            self.expect_value(value, f"the value after it was set to {value!r}", state)

    @promise(Promise.SINGLE_VALUE, "exact")
    def test_a_replay_counts_once(self) -> None:
        state = self.store.state()
        self.add(state, 1)
        with self.batch(state, recorded=False):
            state.update(Append(100 if self.opaque else 2))
        self.log.fail(takeover=True)
        self.add(self.store.state(), 2)

    @promise(Promise.SINGLE_VALUE)
    def test_keys_of_the_map_are_others(self) -> None:
        state = self.store.state()
        self.add(state, 1)
        self.run(state, {"a": 5, "": 6})
        self.expect_value([1], "the value after keys were written", state)

    @promise(Promise.SNAPSHOT)
    def test_it_is_read_as_of_a_committed_batch_or_the_refusal_says_so(self) -> None:
        state, reader = self.store.state(), self.store.state(reads=True)
        self.add(state, 1)
        snapshot = self.log.snapshot()
        with self.batch(state):
            state.update(Append(2))
            if self.opaque:
                expect(reader.get_at(snapshot), [1], "the value while a batch is written")
            else:
                with expect_error(UnsupportedOperation, what="read a value that keeps no earlier one as of a batch"):
                    reader.get_at(snapshot)
        self.expect_value([1, 2], "the value after the record", state)
