"""BackingMapContract: what every backing map must do, two methods over any store too."""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from trident.errors import StateError
from trident.state.encoding.codec import encode
from trident.state.interfaces import Key, StateType
from trident.state.values import OpaqueValue
from trident.testing.backend.contract import (
    BINARY_KEYS,
    KEYS,
    LONG_KEY_PARTS,
    NUMBERS,
    PLAIN_VALUES,
    TYPED_VALUES,
    UNSTORABLE,
    keys_of,
    rows,
    values_of,
)
from trident.testing.backend.contract_sharing import MapSharing
from trident.testing.backend.store_under_test import Writer, form_to_store, value_of
from trident.testing.contract import Promise, broken, expect, expect_error, promise

MANY = 10_000
USUAL_SIZES = (4, 8, 10, 16, 20, 25, 32, 50, 64, 100, 128, 200, 250, 256, 500, 512, 1000, 1024, 2000, 2048)
_OVERHEAD = 128  # a prefix, and what the store adds


class BackingMapContract(MapSharing):
    """What every `IBackingMap` must do. Subclass it, set `factory`, and let pytest run it.

    Examples
    --------
    >>> from states.memory import MemoryMapState
    >>> class TestMemoryMap(BackingMapContract):
    ...     factory = MemoryMapState
    >>> TestMemoryMap().test_answers_come_in_the_order_asked()
    """

    @promise(Promise.ORDER)
    def test_answers_come_in_the_order_asked(self) -> None:
        writer, pairs = self.commit_rows(300)
        self.random("order").shuffle(pairs)
        self.expect_rows(pairs, "read 300 keys in another order", writer)

    @promise(Promise.ORDER)
    def test_absent_keys_have_their_place_among_the_answers(self) -> None:
        """A server may answer with the keys that it has; the map puts None for the others."""
        writer, pairs = self.commit_rows(200)
        asked: list[tuple[Key, Any]] = []
        for pair, (absent, _) in zip(pairs, rows(200, 1000), strict=True):
            asked += [pair, (absent, None)]
        self.expect_rows(asked, "read keys, every other of which is absent", writer)

    @promise(Promise.ORDER)
    def test_a_key_that_is_asked_twice_is_answered_twice(self) -> None:
        writer, (first, second) = self.store.writer(), rows(2)
        writer.commit([first, second], 1)
        absent: tuple[Key, Any] = (("absent",), None)
        self.expect_rows([first, second, first, absent, first, absent], "read a key three times", writer)

    @promise(Promise.ORDER)
    def test_no_keys_have_no_answers(self) -> None:
        self.store.writer().commit(rows(1), 1)
        expect(len(self.reader().read([])), 0, "answers to a read of no keys")

    @promise(Promise.ABSENT)
    def test_what_was_never_written_is_none(self) -> None:
        absent: list[tuple[Key, Any]] = [(("absent",), None), ((1, "absent"), None)]
        self.expect_rows(absent, "read absent keys of an empty store")
        writer = self.store.writer()
        writer.commit(rows(3), 1)
        self.expect_rows(absent, "read absent keys", writer)

    @promise(Promise.ABSENT)
    def test_a_stored_none_is_there(self) -> None:
        """None is a value that an aggregate may have; what is stored around it must come back."""
        if self.store.kind is StateType.NON_TRANSACTIONAL:
            return  # the bare value None reads as an absent key, by the interface
        writer, key = self.store.writer(), ("none",)
        wanted = form_to_store(self.store.kind, None, 1, 0)
        if isinstance(wanted, OpaqueValue):
            wanted = wanted._replace(prev=5)
        writer.begin(1)
        writer.backing.multi_put([key], [wanted])
        writer.end(1)
        for each in (writer, self.reader()):
            expect(list(each.backing.multi_get([key])), [wanted], "read a key whose value is None")

    @promise(Promise.ABSENT)
    def test_zero_and_empty_values_are_there(self) -> None:
        self._come_back([0, False, 0.0, "", [], {}])

    @promise(Promise.BULK)
    def test_every_key_of_a_large_put_is_written(self) -> None:
        _, pairs = self.commit_rows(MANY)
        self.random("large").shuffle(pairs)
        self.expect_rows(pairs, f"read a put of {MANY} keys")

    @promise(Promise.BULK)
    def test_puts_of_all_usual_sizes_are_written(self) -> None:
        """One that just fills a request, as it is claimed or whatever it carries, and one key less or more."""
        chunk = self.claims.chunk
        sizes = {*USUAL_SIZES, 1, 2, 3, chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 1} - {0}
        writer, written = self.store.writer(), list[tuple[Key, int]]()
        for txid, size in enumerate(sorted(size for size in sizes if size < MANY), 1):
            pairs = rows(size, len(written))
            writer.commit(pairs, txid)
            expect(writer.read(keys_of(pairs)), values_of(pairs), f"read a put of {size} keys")
            written += pairs
        self.expect_rows(written, f"read puts of {len(sizes)} sizes")

    @promise(Promise.BULK)
    def test_each_commit_is_as_good_as_the_first(self) -> None:
        writer, chunk = self.store.writer(), min(self.claims.chunk, 200)
        wanted: dict[Key, Any] = {}
        for txid in range(1, 6):
            puts = [[(key, value * txid) for key, value in rows(chunk + 1, txid * 50 * put)] for put in (1, 2)]
            writer.begin(txid)
            for pairs in puts:
                writer.put(pairs, txid)
                wanted.update(pairs)
            writer.end(txid)
            self.expect_rows(list(wanted.items()), f"read after commit {txid}", writer)

    @promise(Promise.BULK)
    def test_a_put_of_no_keys_changes_nothing(self) -> None:
        writer, pairs = self.commit_rows(3)
        writer.commit([], 2)
        self.expect_rows(pairs, "read after a put of no keys", writer)

    @promise(Promise.OVERWRITE)
    def test_a_put_replaces_what_was_there(self) -> None:
        writer, key, other = self.store.writer(), ("replaced",), (("other",), "stays")
        writer.commit([other], 1)
        for txid, value in enumerate(["a longer text", "x", 5, 5, -1, None, 5, "", [1, 2], {"a": 1}, 0, 5], 2):
            writer.commit([(key, value)], txid)
            wanted = [form_to_store(self.store.kind, value, txid), form_to_store(self.store.kind, *other[1:], 1)]
            for each in (writer, self.reader()):
                expect(list(each.backing.multi_get([key, other[0]])), wanted, f"read after {value!r} was put")

    @promise(Promise.OVERWRITE)
    def test_writers_in_turn_each_replace(self) -> None:
        """A value that equals what this instance wrote last is still written, because another instance wrote meanwhile."""
        writers, key = [self.store.writer(), self.store.writer()], ("taken in turn",)
        for txid, value in enumerate([1, 2, 1, 2, 2, 1], 1):
            writers[txid % 2].commit([(key, value)], txid, txid)
            wanted = [form_to_store(self.store.kind, value, txid, txid)]
            expect(list(self.reader().backing.multi_get([key])), wanted, f"read after writer {txid % 2} put {value}")

    @promise(Promise.ERRORS)
    def test_a_value_that_cannot_be_stored_is_refused_and_nothing_pretends(self) -> None:
        """A put raises, or it stores the value; and the instance reads what others read."""
        for at, value in enumerate(UNSTORABLE):
            writer, good = self.store.writer(f"bad {at}"), rows(5)
            writer.commit([(key, 1) for key in keys_of(good)], 1)
            self._refused_or_stored(writer, f"bad {at}", [*good[:3], (("bad",), value), *good[3:]], 2)
            writer.commit(good, 3, 1)
            expect(self.reader(f"bad {at}").read(keys_of(good)), values_of(good), "read what was put after a refusal")

    @promise(Promise.ERRORS)
    def test_a_value_that_is_too_large_is_refused(self) -> None:
        most = self.claims.max_value_bytes
        size = 1 << 22 if most is None else most + 1
        self._refused_beyond(most, [*rows(2), (("large",), "x" * size), *rows(2, 5)], f"a value of {size} bytes")

    @promise(Promise.ERRORS)
    def test_a_key_that_is_too_long_is_refused(self) -> None:
        most = self.claims.max_key_bytes
        size = 1 << 16 if most is None else most
        keys = (("k" * size + "a",), "a"), (("k" * size + "b",), "b")
        self._refused_beyond(most, [*rows(2), *keys], f"a key of {size + 1} bytes")

    @promise(Promise.ERRORS, "outage")
    def test_a_store_that_does_not_answer_raises(self) -> None:
        """Neither a read that says "absent" nor a put that says "done"."""
        writer, pairs = self.commit_rows(3)
        writer.begin(2)
        with self.user_attribute("outage")():
            with expect_error(StateError, what="read while the store does not answer"):
                writer.read(keys_of(pairs))
            with expect_error(StateError, what="put while the store does not answer"):
                writer.put([(key, -1) for key in keys_of(pairs)], 2)
                writer.end(2)
        again = self.store.writer()
        again.commit([(("after",), 1)], 3)
        self.expect_rows([(("after",), 1)], "read when the store answers again", again)

    @promise(Promise.KEYS)
    def test_different_keys_are_different(self) -> None:
        writer, keys = self.store.writer(), _within(self.claims.max_key_bytes, KEYS)
        for txid, half in enumerate((0, 1), 1):
            writer.commit([(key, at) for at, key in enumerate(keys) if at % 2 == half], txid)
            wanted = [(key, at if at % 2 <= half else None) for at, key in enumerate(keys)]
            self.expect_rows(wanted, f"read {len(keys)} keys after half {txid} of them was written", writer)

    @promise(Promise.KEYS)
    def test_each_key_can_be_written_alone(self) -> None:
        writer = self.store.writer()
        keys: list[Key] = [*((one,) for one in ("", " ", "\x00", None, 0, "0", "汉", "a/b", -1, 2**64)), ("", "")]
        for txid, key in enumerate(keys, 1):
            writer.commit([(key, txid)], txid)
        expect(self.reader().read(keys), list(range(1, len(keys) + 1)), "read keys that were written one at a time")

    @promise(Promise.KEYS)
    def test_long_keys_that_differ_at_their_end_are_different(self) -> None:
        keys = _within(self.claims.max_key_bytes, [("k" * length + end,) for length in LONG_KEY_PARTS for end in "ab"])
        self._read_back([(key, at) for at, key in enumerate(keys)])

    @promise(Promise.BINARY_KEYS)
    def test_bytes_in_keys_stay_apart(self) -> None:
        """Not UTF-8, not text, not each other. A store without them refuses them."""
        if self.claims.binary_keys:
            self._read_back([(key, at) for at, key in enumerate(BINARY_KEYS)])
            return
        for at, key in enumerate(key for key in BINARY_KEYS if isinstance(key[0], bytes)):
            with expect_error(StateError, TypeError, ValueError, what=f"put key {key!r}, claimed to be refused"):
                self.store.writer(f"refused {at}").commit([(key, 1)], 1)

    @promise(Promise.NUMBERS)
    def test_numbers_keep_their_type(self) -> None:
        """10^30 has all its digits; 1, 1.0, True and Decimal("1.00") are four things; NaN, infinities and -0.0 are there."""
        of_json = [one for one in NUMBERS if isinstance(one, int) or (isinstance(one, float) and math.isfinite(one))]
        self._come_back(NUMBERS if self.claims.all_types else of_json)

    @promise(Promise.VALUES)
    def test_texts_and_collections_come_back(self) -> None:
        self._come_back(_within(self.claims.max_value_bytes, PLAIN_VALUES))

    @promise(Promise.VALUES)
    def test_other_types_come_back_or_are_refused(self) -> None:
        """Bytes, tuples, sets, dates and times with zones; a store without them refuses them."""
        if self.claims.all_types:
            self._come_back(_within(self.claims.max_value_bytes, TYPED_VALUES))
            return
        for at, value in enumerate([b"bytes", {1}, float("nan"), TYPED_VALUES[-1]]):
            with expect_error(StateError, TypeError, ValueError, what=f"put {value!r}, which is claimed to be refused"):
                self.store.writer(f"refused {at}").commit([(("key",), value)], 1)

    def _refused_beyond(self, most: int | None, pairs: list[tuple[Key, Any]], what: str) -> None:
        refused = self._refused_or_stored(self.store.writer(), "state", pairs, 1)
        if most is not None and not refused:
            broken(f"{what} was put without an error; the limit is {most}")

    def _refused_or_stored(self, writer: Writer, state: str, pairs: list[tuple[Key, Any]], txid: int) -> bool:
        keys = keys_of(pairs)
        before = self.reader(state).read(keys)
        writer.begin(txid)
        refused = True
        with suppress(Exception):  # a user's store; any error is a refusal
            writer.put(pairs, txid)
            writer.end(txid)
            refused = False
        others = self.reader(state).read(keys)
        if refused and self.claims.atomic_put:
            expect(others, before, "read after a put that was refused, which is claimed to write all or nothing")
        if not refused:
            expect(others, values_of(pairs), "read what was put without an error")
        # A put may be half done; every instance must read the same.
        again = Writer(writer.backing, self.store.kind)
        again.begin(txid, 1)
        expect(again.read(keys), [value_of(found) for found in others], "read by the instance whose put was refused")
        again.end(txid, 1)
        return refused

    def _come_back(self, values: Sequence[Any]) -> None:
        self._read_back([((f"value {at}",), value) for at, value in enumerate(values)])

    def _read_back(self, pairs: Sequence[tuple[Key, Any]]) -> None:
        writer = self.store.writer()
        writer.commit(pairs, 1)
        for each in (writer, self.reader()):
            for (key, value), found in zip(pairs, each.read(keys_of(pairs)), strict=True):
                expect(found, value, f"read {key!r}, a {type(value).__name__}")


def _within(most: int | None, of: Sequence[Any]) -> list[Any]:
    return [one for one in of if most is None or len(encode(one)) + _OVERHEAD <= most]
