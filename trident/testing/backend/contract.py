"""What the contracts of stores share: the store under test; rows and readers of maps; the log and whole batches of states."""

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from trident.state.interfaces import Key, StateType
from trident.state.txid import Txid
from trident.testing.backend.schedules import Append, Log, Schedule
from trident.testing.backend.store_under_test import METHODS, Limits, Store, SuiteRun, Writer
from trident.testing.contract import Contract, broken, expect

INTS: tuple[int, ...] = (
    0, 1, -1, 127, 128, 255, 256, -128, -129, 2**15, 2**16, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**32 + 1,
    2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 2**64 + 1, 10**30, -(10**30),
)  # fmt: skip

NUMBERS: tuple[Any, ...] = (
    *INTS, True, False, 0.0, -0.0, 1.0, 0.1, -2.5, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"),
    Decimal("0"), Decimal("1.00"), Decimal("-0"), Decimal("1E+30"), Decimal("0.1234567890123456789012345678"),
)  # fmt: skip

PLAIN_VALUES: tuple[Any, ...] = (
    "", " ", "0", "null", "None", "NaN", "a\x00b", "naïve", "汉字", "👩‍👩‍👧", "e\u0301", "é", "\u2028", "x" * (1 << 20),
    [], [1, "a", None], [[[]], [[1]]], {}, {"a": {"b": [1, {"c": None}]}}, {"": ""},
)  # fmt: skip

TYPED_VALUES: tuple[Any, ...] = (
    b"", b"\x00", b"\xff\xfe", bytes(range(256)), b"text", (), (1, "a"), ((), (1, (2,))), {1: "one", (1, 2): "pair"},
    {1, 2, 3}, frozenset({"a"}), UUID(int=7), dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.time(23, 59, 59, 999999),
    dt.timedelta(days=-1, microseconds=1), dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 12, 30, 0, 1),
    dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC), dt.datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Vienna")),
    dt.datetime(2024, 7, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=45))),
)  # fmt: skip

KEYS: tuple[Key, ...] = (
    ("",), (" ",), ("a",), ("A",), ("a ",), (" a",), ("a\n",), ("a\x00",), ("\x00",), ("a\x00b",), ("ab",), ("abc",),
    ("a", "b"), ("a", "bc"), ("ab", "c"), ("a/b",), ("a:b",), ("a,b",), ("a|b",), ("a\tb",), ("a", ""), ("", "a"),
    ("", ""), ("a", "b", "c"), (("a", "b"),), ("('a', 'b')",), ("a b",), ("a%b",), ("a_b",), ("a*b",), ("a?b",),
    ("a'b",), ('a"b',), ("a\\b",), ("a[b]",), ("{a}",), ("null",), ("None",), (None,), (None, None), ("None", "None"),
    ("0",), ("1",), ("01",), ("1.0",), ("1e0",), ("-1",), ("+1",), (0,), (1,), (-1,), (2.5,), ("2.5",), (1, 2),
    ("1", "2"), (12,), ("12",), (1, "2"), ("true",), ("nan",), ("é",), ("e\u0301",), ("ß",), ("ss",), ("汉",), ("汉字",),
    ("👩",), ("👩‍👧",), ("İ",), ("i",), ("I",), ("ı",), (dt.date(2024, 1, 2),), ("2024-01-02",), (Decimal("1.5"),), ("1.5",),
    (dt.datetime(2024, 1, 2),), (dt.datetime(2024, 1, 2, tzinfo=dt.UTC),), *((number,) for number in INTS if number > 255),
)  # fmt: skip

BINARY_KEYS: tuple[Key, ...] = (
    (b"",), (b"\x00",), (b"\x00\x00",), (b"\xff",), (b"\xfe",), (b"\xff\xfe",), (b"\xfe\xff",), (b"\x80",), (b"\x81",),
    (b"\xc3\xa9",), ("é",), (b"a",), ("a",), ("b'a'",), (b"a", "a"), ("a", b"a"), (b"\xed\xa0\x80",), ("\ufffd",),
    (b"\xef\xbf\xbd",), (b"\r\n",), (b"\n",), ("",), (bytes(range(256)),), (b"a ",), (b"a b",), ("\\xff",),
)  # fmt: skip

LONG_KEY_PARTS: tuple[int, ...] = (100, 200, 249, 250, 251, 255, 256, 1023, 1024, 4096)
"""Lengths of text; two keys of each that differ in the last letter only."""


class _Foreign:
    """A type that no store holds."""


UNSTORABLE: tuple[Any, ...] = (_Foreign(), "lone surrogate \ud800")
"""Values that have no encoding, in the codec or in JSON."""


class StoreContract(Contract):
    """Base of the contracts. Subclass one of them, name the factory, and let pytest run it.

    `factory`: a `BackingMapFactory`, `StateSpec` or `StateFactory`; a function without arguments that returns one of these over
    an empty store; also as a method, or set by a fixture.
    `kind`, `limits`: what the maps hold, and what the store claims; None: as the factory says, as its methods claim.
    `outage`: returns a context in which the store does not answer; None: the case is left out.
    """

    subject = "store"
    factory: Any = None
    kind: StateType | None = None
    limits: Limits | None = None
    outage: Any = None
    suite_run: SuiteRun | None = None

    @cached_property
    def store(self) -> Store:
        factory = self.user_attribute("factory", 3, ", or let a fixture set it")
        return Store(factory, self.kind, self.limits, self.suite_run)

    @property
    def claims(self) -> Limits:
        return self.store.limits

    @property
    def exact(self) -> bool:
        """Whether the kind undoes a failed attempt."""
        return self.store.kind is not StateType.NON_TRANSACTIONAL

    @property
    def opaque(self) -> bool:
        """Whether replays may change, and readers may read as of a batch."""
        return self.store.kind is StateType.OPAQUE

    def run_schedule(self, number: int) -> None:
        Schedule(self.store, f"{self.seed}/{self.store.kind.value}/{number}", self.store.partitions or 2).run()

    def why_unclaimed(self, claim: str) -> str:
        found = getattr(self.claims, claim) if hasattr(self.claims, claim) else getattr(self, claim)
        if found in (False, None, "no"):
            return f"{claim} is not claimed"
        return ""


def rows(number: int, start: int = 0) -> list[tuple[Key, int]]:
    return [((f"key {at}",), at) for at in range(start, start + number)]


def keys_of(pairs: Sequence[tuple[Key, Any]]) -> list[Key]:
    return [key for key, _ in pairs]


def values_of(pairs: Sequence[tuple[Key, Any]]) -> list[Any]:
    return [value for _, value in pairs]


class MapContract(StoreContract):
    """Base of the contracts of backing maps."""

    def why_unclaimed(self, claim: str) -> str:
        reason = super().why_unclaimed(claim)
        if not reason and claim in METHODS and not all(map(self.store.map().offers, METHODS[claim])):
            found = getattr(self.claims, claim)
            broken(f"Limits({claim}={found!r}), but the map has no {' and '.join(METHODS[claim])}")
        return reason

    def reader(self, state: str = "state") -> Writer:
        return Writer(self.store.map(state, reads=True), self.store.kind)

    def commit_rows(self, number: int) -> tuple[Writer, list[tuple[Key, int]]]:
        writer, pairs = self.store.writer(), rows(number)
        writer.commit(pairs, 1)
        return writer, pairs

    def expect_rows(self, pairs: Sequence[tuple[Key, Any]], what: str, *readers: Writer) -> None:
        for each in (*readers, self.reader()):
            expect(each.read(keys_of(pairs)), values_of(pairs), what)


def update(state: Any, *calls: dict[str, int]) -> None:
    for call in calls:
        state.multi_update([(name,) for name in call], [Append(number) for number in call.values()])


class StateContract(StoreContract):
    """Base of the contracts of states: whole batches, and a dict, `model`, that is fed each committed batch once."""

    @cached_property
    def log(self) -> Log:
        return Log()

    @cached_property
    def model(self) -> dict[str, Any]:
        return {"never": None}

    @contextmanager
    def batch(self, state: Any, *calls: dict[str, int], recorded: bool = True) -> Iterator[Txid]:
        """Write a batch of calls, and end it after the block; if it is `recorded`, all see it from then on."""
        txid = self.log.next()
        state.begin_commit(txid)
        update(state, *calls)
        yield txid
        state.commit(txid)
        for name, number in (pair for call in calls for pair in call.items()):
            before = self.model.setdefault(name, None)
            self.model[name] = [*(before or []), number] if recorded else before
        if recorded:
            self.log.record()
            self.expect_model(state)

    def run(self, state: Any, *calls: dict[str, int], recorded: bool = True) -> None:
        with self.batch(state, *calls, recorded=recorded):
            pass

    def remove(self, state: Any, *names: str, recorded: bool = True) -> None:
        keys: list[Key] = [(name,) for name in names]
        with self.batch(state, recorded=recorded):
            state.multi_remove(keys)
            expect(list(state.multi_get(keys)), [None] * len(keys), "read in the batch that removed the keys")
            self.model |= dict.fromkeys(names) if recorded else {}

    def read(self, state: Any, keys: Sequence[Key]) -> list[Any]:
        """Read as a topology does: as of the last committed batch, where the kind can."""
        if self.opaque and self.log.committed:
            return list(state.multi_get_at(keys, self.log.snapshot()))
        return list(state.multi_get(keys))

    def expect_model(self, *states: Any) -> None:
        for state in (*states, self.store.state(reads=True)):
            found = self.read(state, [(name,) for name in self.model])
            expect(found, list(self.model.values()), f"read {list(self.model)} after batch {self.log.committed}")
