"""BackingMapContract: what every backing map must do.

Checks of a backing map: which keys are different, and whether values come back as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trident.errors import StateError
from trident.state.encoding.codec import encode
from trident.state.interfaces import Key
from trident.testing.backend.contract import MapContract, keys_of
from trident.testing.backend.contract_basics import MapBasics
from trident.testing.backend.contract_sharing import MapSharing
from trident.testing.backend.limits import Promise
from trident.testing.backend.sample_values import (
    BINARY_KEYS,
    INTS,
    KEYS,
    LONG_KEY_PARTS,
    NUMBERS,
    PLAIN_VALUES,
    TYPED_VALUES,
)
from trident.testing.checks.expecting import expect, expect_error, promise

_KEY_OVERHEAD = 128  # a prefix, and what the store adds


class MapTypes(MapContract):
    """Keys and values of all types."""

    @promise(Promise.KEYS)
    def test_different_keys_are_different(self) -> None:
        """Compound, empty, numeric-looking, unicode in several forms, with separators and wildcards."""
        self._all_apart([key for key in KEYS if self._fits(key)])

    @promise(Promise.KEYS)
    def test_a_key_that_looks_like_another_one_is_absent(self) -> None:
        """Of the same keys, one half is written; the other half stays absent."""
        for half in (0, 1):
            writer, state = self.store.writer(f"half {half}"), f"half {half}"
            written = [key for at, key in enumerate(KEYS) if at % 2 == half and self._fits(key)]
            writer.commit([(key, "written") for key in written], 1)
            wanted = ["written" if key in set(written) else None for key in KEYS if self._fits(key)]
            found = self.reader(state).read([key for key in KEYS if self._fits(key)])
            expect(found, wanted, f"read {len(KEYS)} keys, half of which were written")

    @promise(Promise.KEYS)
    def test_each_key_can_be_written_alone(self) -> None:
        """One key a put: the empty text, None, a number."""
        writer = self.store.writer()
        keys: list[Key] = [
            ("",),
            (" ",),
            ("\x00",),
            (None,),
            (0,),
            ("0",),
            ("", ""),
            ("汉",),
            ("a/b",),
            (-1,),
            (2**64,),
        ]
        for txid, key in enumerate(keys, 1):
            writer.commit([(key, txid)], txid)
        expect(self.reader().read(keys), list(range(1, len(keys) + 1)), "read keys that were written one at a time")

    @promise(Promise.KEYS)
    def test_long_keys_that_differ_at_their_end_are_different(self) -> None:
        """Up to the limit of the store."""
        keys: list[Key] = [("k" * length + end,) for length in LONG_KEY_PARTS for end in "ab"]
        self._all_apart([key for key in keys if self._fits(key)])

    @promise(Promise.BINARY_KEYS)
    def test_bytes_in_keys_stay_apart(self) -> None:
        """Not UTF-8, not text, not each other. A store without them refuses them."""
        if self.claims.binary_keys:
            self._all_apart(list(BINARY_KEYS))
            return
        for at, key in enumerate(key for key in BINARY_KEYS if isinstance(key[0], bytes)):
            with expect_error(
                StateError, TypeError, ValueError, what=f"put key {key!r}, which is claimed to be refused"
            ):
                self.store.writer(f"refused {at}").commit([(key, 1)], 1)

    @promise(Promise.NUMBERS)
    def test_integers_keep_all_their_digits(self) -> None:
        """From 0 over 2^53 + 1 and 2^64 to 10^30."""
        self._come_back(INTS)

    @promise(Promise.NUMBERS)
    def test_numbers_keep_their_type(self) -> None:
        """1, 1.0, True and Decimal("1.00") are four things; NaN, infinities and -0.0 are there."""
        numbers = NUMBERS if self.claims.all_types else [one for one in NUMBERS if _is_json_number(one)]
        self._come_back(numbers)

    @promise(Promise.VALUES)
    def test_texts_and_collections_come_back(self) -> None:
        """Empty, nested, in several scripts, and a text of a million characters."""
        self._come_back([value for value in PLAIN_VALUES if self._is_small(value)])

    @promise(Promise.VALUES)
    def test_other_types_come_back_or_are_refused(self) -> None:
        """Bytes, tuples, sets, dates and times with zones; a store without them refuses them."""
        if self.claims.all_types:
            self._come_back([value for value in TYPED_VALUES if self._is_small(value)])
            return
        for at, value in enumerate([b"bytes", {1}, float("nan"), TYPED_VALUES[-1]]):
            with expect_error(StateError, TypeError, ValueError, what=f"put {value!r}, which is claimed to be refused"):
                self.store.writer(f"refused {at}").commit([(("key",), value)], 1)

    def _all_apart(self, keys: Sequence[Key]) -> None:
        writer, numbers = self.store.writer(), list(range(len(keys)))
        writer.commit(zip(keys, numbers, strict=True), 1)
        for each in (writer, self.reader()):
            wrong = {key: found for key, found, at in zip(keys, each.read(keys), numbers, strict=True) if found != at}
            expect(wrong, {}, "keys that read what was put to another key")

    def _come_back(self, values: Sequence[Any]) -> None:
        writer, pairs = self.store.writer(), [((f"value {at}",), value) for at, value in enumerate(values)]
        writer.commit(pairs, 1)
        for each in (writer, self.reader()):
            for (key, value), found in zip(pairs, each.read(keys_of(pairs)), strict=True):
                expect(found, value, f"read {key[0]!r}, a {type(value).__name__}")

    def _fits(self, key: Key) -> bool:
        most = self.claims.max_key_bytes
        return most is None or len(encode(key)) + _KEY_OVERHEAD <= most

    def _is_small(self, value: Any) -> bool:
        most = self.claims.max_value_bytes
        return most is None or not isinstance(value, str | bytes) or len(value) + _KEY_OVERHEAD <= most


def _is_json_number(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and value - value == 0)


class BackingMapContract(MapBasics, MapTypes, MapSharing):
    """What every `IBackingMap` must do. Subclass it, set `factory`, and let pytest run it.

    Examples
    --------
    >>> from states.memory import MemoryMapState
    >>> class TestMemoryMap(BackingMapContract):
    ...     factory = MemoryMapState
    >>> TestMemoryMap().test_answers_come_in_the_order_asked()
    """
