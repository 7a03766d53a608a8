"""`Case`: a random topology as data, with all its options, and the strategies that draw them.

A case that fails prints as it would be written: it can be pasted into a test as it is.
"""

import dataclasses
import datetime as dt
from dataclasses import dataclass, replace
from decimal import Decimal
from math import inf, nan
from typing import Any

from hypothesis import strategies as st

Row = tuple[Any, ...]
"""The fields of the key, then `v`."""

AT = 10
"""Milliseconds between the event times of two batches, and the length of a window: each batch is a window of its own."""

STORES = ("memory", "apart", "delta", "delta beyond memory", "redis", "postgres", "cassandra", "memcached")
_UNCACHED = STORES[:4]
UNTYPED = "untyped"

_OSLO = dt.timezone(dt.timedelta(hours=2))
_MOON_LANDING = dt.datetime(1969, 7, 20, 20, 17, 40, 1, tzinfo=dt.UTC)
_HUGE = 2_000  # the longest that each store takes

KEYS: dict[str, tuple[Any, ...]] = {
    "string": ("a", "", "b", None, "\u00e9", "e\u0301", "\0", "a\0", "x" * _HUGE, "$GLOBAL$", "1", '["a"]', "\U0001f600"),
    "bigint": (0, 1, None, -1, 2**63 - 1, -(2**63)),
    "int": (0, 1, None, 2**31 - 1),
    "tinyint": (0, -128, None, 127),
    "double": (0.0, -0.0, nan, 1.0, None, inf, -inf, 0.1, 5e-324, -nan),
    "float": (0.0, -0.0, nan, 1.5, None, -inf, -nan),
    "decimal(10,2)": (
        Decimal("0"), Decimal("1"), Decimal("1.0"), Decimal("1.00"), Decimal("-0.00"), None, Decimal("99999999.99"),
        Decimal("100"),
    ),
    "boolean": (False, True, None),
    "binary": (b"", b"a", b"\0", None, b"\xff" * _HUGE),
    "date": (dt.date(1970, 1, 1), dt.date(1, 1, 1), None, dt.date(9999, 12, 31)),
    "timestamp": (
        _MOON_LANDING, _MOON_LANDING.astimezone(_OSLO), None, dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
        dt.datetime(1970, 1, 1, 2, tzinfo=_OSLO),
    ),
    "timestamp_ntz": (
        dt.datetime(1970, 1, 1), None, dt.datetime(2024, 10, 27, 2, 30), dt.datetime(2024, 10, 27, 2, 30, fold=1),
    ),
}  # fmt: skip
"""Values of a key by its type, the plainest first; some are equal, and are then one key (the NaNs differ in a bit)."""

PARTITIONINGS = (
    "partition_by",
    "partition_by v",
    "shuffle",
    "local_or_shuffle",
    "global_",
    "batch_global",
    "partition",
)
_CHANGES = ("filter", "where", "map", "flat_map", "sum", "merge")
_UPDATES = ("sum", "count", "rowwise sum", "reduce", "max", "map", "map, removing")
TAPS = (
    "new values", "query", "query this batch", "static", "window", "sessions", "count window", "join", "outer join",
    "join within",
)  # fmt: skip
_LONG = 16
"""So many batches later a removed key is deleted."""


class _Shown:
    """Prints only what differs from the default, so that a case is short."""

    def __repr__(self) -> str:
        given = (
            f"{field.name}={value!r}"
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, field.name)) != field.default
        )
        return f"{type(self).__name__}({', '.join(given)})"


@dataclass(frozen=True, repr=False)
class Step(_Shown):
    """A step of the stream; `hint` is the number of partitions behind a partitioning."""

    name: str
    hint: int | None = None


@dataclass(frozen=True, repr=False)
class Life(_Shown):
    """What differs between one start of the topology and the next.

    Attributes
    ----------
    batches
        How many it runs.
    hint
        How many partitions its states have.
    engine, placement, pending
        `pending` is `max_spout_pending`. With `"auto"` every other batch is large.
    parallelism
        Into how many parts a batch is cut.
    """

    batches: int = 1
    hint: int = 1
    engine: str = "in_process"
    placement: str = "driver"
    pending: int = 1
    parallelism: int = 1


@dataclass(frozen=True, repr=False)
class Case(_Shown):
    """A topology, its options, and its rows.

    Attributes
    ----------
    batches
        The rows of each batch.
    key
        The types of the key's fields; `"untyped"`: what an updater of the user's makes of a text.
    steps
        What the rows go through before the state.
    update
        The aggregate; `"map"` is a `StateUpdater` over a map, behind `partition_persist`, which may also remove keys.
    grouped
        Whether the aggregate is one of each key.
    taps
        What else is declared of the stream and of the state, each with a state of its own behind it.
    spout, kind
        What spout and states promise.
    partitions
        How many the spout has, if it is a partitioned one.
    store, cache
        Where all states are; `"apart"`: in a back-end of the user's, of which each partition has its own.
    lives
        The starts of the topology, one after the other.
    """

    batches: tuple[tuple[Row, ...], ...]
    key: tuple[str, ...] = ("string",)
    steps: tuple[Step, ...] = ()
    update: str = "sum"
    grouped: bool = True
    taps: tuple[str, ...] = ()
    spout: str = "transactional"
    partitions: int = 0
    kind: str = "opaque"
    store: str = "memory"
    cache: int = 0
    lives: tuple[Life, ...] = (Life(),)

    @property
    def is_updated(self) -> bool:
        """Whether an updater of the user's writes the state, which then has no declared key."""
        return self.update.startswith("map")

    @property
    def names(self) -> list[str]:
        return [f"k{at}" for at in range(len(self.key))]

    @property
    def types(self) -> list[str]:
        return ["string" if type_ == UNTYPED else type_ for type_ in self.key]


_HINTS = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8])
_FEW = st.sampled_from([1, 1, 1, 2, 3])  # on Spark each partition is a task, which costs more than its rows
_VALUES = st.sampled_from([1, 0, -3, 5, None, 7])


@st.composite
def _steps(draw: st.DrawFn, hints: st.SearchStrategy[int]) -> tuple[Step, ...]:
    names = draw(st.lists(st.sampled_from(PARTITIONINGS + _CHANGES), max_size=3))
    return tuple(Step(name, draw(hints) if name in PARTITIONINGS[:5] + PARTITIONINGS[-1:] else None) for name in names)


def _pool(draw: st.DrawFn, type_: str) -> st.SearchStrategy[Any]:
    """Return a few values of a type, so that keys come again."""
    values = KEYS[type_] if type_ in KEYS else tuple(map(str, range(len(UNTYPED_KEYS))))
    return st.sampled_from(draw(st.lists(st.sampled_from(values), min_size=1, max_size=4)))


@st.composite
def cases(draw: st.DrawFn, stores: tuple[str, ...] = ("memory",), skeleton: tuple[Life, ...] | None = None) -> Case:
    """Draw a case; with a skeleton its lives are given but for the hints, and all batches are there."""
    store = draw(st.sampled_from(stores))
    update = draw(st.sampled_from(_UPDATES))
    untyped = update.startswith("map") and draw(st.sampled_from([False, False, True]))
    key = (UNTYPED,) if untyped else tuple(draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=2)))
    lives = skeleton or tuple(
        Life(
            batches=draw(st.integers(1, 3)),
            pending=draw(st.sampled_from([1, 1, 3])),
            parallelism=draw(st.integers(1, 3)),
        )
        for _ in range(draw(st.sampled_from([1, 1, 2, 3])))
    )
    of_partitions = _FEW if skeleton else _HINTS
    hints = [draw(of_partitions) for _ in lives]
    if store == "apart":  # where a key stays in the partition that wrote it
        hints = [1 if update.startswith("map") else hints[0]] * len(lives)
    spout = draw(st.sampled_from(["transactional", "opaque", "non-transactional"]))
    # A stream has no key without a type, to ask with or to pass on.
    taps = [] if untyped else draw(st.lists(st.sampled_from(TAPS), max_size=2, unique=True))
    if spout == "non-transactional":
        taps = [
            tap for tap in taps if tap not in ("window", "sessions", "count window", "join within")
        ]  # which need a replay
    if skeleton and store == "memory":
        taps = [tap for tap in taps if tap != "static"]  # which is read in Spark's workers
    rows = st.lists(st.tuples(*(_pool(draw, type_) for type_ in key), _VALUES), max_size=6).map(tuple)
    batches = [draw(rows) for life in lives for _ in range(life.batches)]
    # A reading of partitions that gives no row makes no batch.
    partitions = draw(st.sampled_from([0, 1, 3])) if all(batches) and spout != "non-transactional" else 0
    removes = "removing" in update and batches[0] and not (skeleton or partitions)
    if removes and draw(st.sampled_from([False, False, True])):
        lives = (replace(lives[0], batches=lives[0].batches + _LONG), *lives[1:])
        # Ten empty batches in a row would be the end.
        batches[1:1] = [() if number % 8 else batches[0][:1] for number in range(1, _LONG + 1)]
    return Case(
        batches=tuple(batches),
        key=key,
        steps=draw(_steps(of_partitions)),
        update=update,
        grouped=update.startswith("map") or draw(st.sampled_from([True, True, False])),
        taps=tuple(taps),
        spout=spout,
        partitions=partitions,
        kind=draw(st.sampled_from(["opaque", "opaque", "transactional", "non-transactional"])),
        store=store,
        cache=draw(st.sampled_from([0, 1, 100])) if store not in _UNCACHED else 0,
        lives=tuple(replace(life, hint=hint) for life, hint in zip(lives, hints, strict=True)),
    )


UNTYPED_KEYS: tuple[Any, ...] = (
    1, 1.0, True, Decimal(1), "1", b"1", 0, 0.0, -0.0, False, None, nan, "", (1, 2), _MOON_LANDING,
    _MOON_LANDING.astimezone(_OSLO), _MOON_LANDING.replace(tzinfo=None), dt.date(1969, 7, 20), Decimal("1.0"),
)  # fmt: skip
"""What an updater makes of the text of a number; keys of no declared type keep their type."""
