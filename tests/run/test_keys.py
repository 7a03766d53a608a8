"""Equal keys are one key (R15): the writer, all readers and the tables agree on every key, in every store."""

import datetime as dt
import itertools
import math
import struct
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import example, given, settings
from hypothesis import strategies as st

from states.delta import DeltaState
from states.memory import LRUMemoryMapState, MemoryMapState
from states.redis import RedisState
from tests.harness.servers import Server
from tests.harness.sqlite_map import sqlite_state
from tests.harness.topology_runs import CountAll, Fold, RowsSpout, dict_state, keep, start
from trident import TridentCollector, TridentTopology, TridentTuple, open_state
from trident.arrow import arrow_type
from trident.errors import CorruptValueError
from trident.operations import BaseStateUpdater, Count, MapGet
from trident.state import StateConf, StateSpec
from trident.state.encoding.equal_keys import canonical_key
from trident.steps.key_columns import keys_of
from trident.testing.backend.schedules import Add

NANS = [struct.unpack(">d", bytes.fromhex(bits))[0] for bits in ("7ff8000000000000", "fff8000000000123")]
MOMENT = dt.datetime(2024, 10, 27, 0, 30, 0, 1, dt.UTC)
NAIVE = dt.datetime(2024, 10, 27, 2, 30)
ZONES = [ZoneInfo("Europe/Berlin"), dt.timezone(dt.timedelta(hours=-9)), dt.UTC]
HUGE = "ü" * 5_000

KEYS: dict[str, list[list[Any]]] = {
    "double": [[0.0, -0.0, 0], [*NANS, math.nan], [1.0, 1], [0.1], [math.inf], [-math.inf], [float(2**53), 2**53], [5e-324]],
    "float": [[0.0, -0.0, 0], [*NANS, math.nan], [1.0, 1], [0.1, struct.unpack("f", struct.pack("f", 0.1))[0]], [math.inf]],
    "decimal(10,2)": [
        [Decimal("1.0"), Decimal("1.00"), 1], [Decimal("100"), Decimal("1E+2")], [Decimal("0"), Decimal("-0.00"), 0],
        [Decimal("-1.5"), Decimal("-1.50")], [Decimal("99999999.99")],
    ],
    "decimal(38,0)": [[Decimal("1"), 1], [Decimal("9" * 38)], [Decimal("1E+30"), 10**30]],
    "timestamp": [[MOMENT, *(MOMENT.astimezone(zone) for zone in ZONES)], [MOMENT.replace(microsecond=2)],
                  [dt.datetime(1, 1, 2, tzinfo=dt.UTC)], [NAIVE, NAIVE.replace(tzinfo=dt.UTC), NAIVE.replace(fold=1)]],
    "timestamp_ntz": [[NAIVE, NAIVE.replace(fold=1)], [NAIVE.replace(microsecond=1)], [dt.datetime(9999, 12, 31)]],
    "date": [[dt.date(2024, 2, 29)], [dt.date(1, 1, 1)], [dt.date(9999, 12, 31)]],
    "bigint": [[0], [1], [-1], [2**63 - 1], [-(2**63)], [2**53 + 1]],
    "int": [[0], [1], [-(2**31)], [2**31 - 1]],
    "boolean": [[True], [False]],
    "string": [[""], ["a"], ["\0"], ["é"], ["e\u0301"], [" a"], ["A"], [HUGE], ["null"]],
    "binary": [[b""], [b"\0"], [b"\xff\xfe"], [b"a"], [HUGE.encode()]],
}  # fmt: skip
"""By type, the keys: each a list of values that are one key."""

SHORT = {type_: [key for key in keys if key[0] not in (HUGE, HUGE.encode())] for type_, keys in KEYS.items()}


def same(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)


@dataclass(frozen=True)
class Fed:
    """Batches of keys of one type: the number of the key, and the value that it is written as."""

    type_: str
    batches: list[list[tuple[int | None, Any]]]

    def counts(self, before: int | None = None) -> dict[int | None, int]:
        """Return how often each key occurs, in the first `before` batches."""
        found: dict[int | None, int] = {}
        for number, _ in (row for batch in self.batches[:before] for row in batch):
            found[number] = found.get(number, 0) + 1
        return found

    def number(self, value: Any) -> int | None:
        if value is None:
            return None
        (number,) = [at for at, key in enumerate(KEYS[self.type_]) if any(same(value, form) for form in key)]
        return number

    def counted(self, rows: Iterable[Sequence[Any]]) -> dict[int | None, Any]:
        """Return rows of a key and a value by the number of the key; no key occurs twice."""
        found = [(self.number(row[0]), row[-1]) for row in rows]
        assert len(dict(found)) == len(found), found
        return dict(found)


@st.composite
def fed(draw: Any) -> Fed:
    type_ = draw(st.sampled_from(sorted(KEYS)))
    forms = [(number, form) for number, key in enumerate(KEYS[type_]) for form in key]
    rows = st.lists(st.sampled_from([*forms, (None, None)]), min_size=1, max_size=12)
    return Fed(type_, draw(st.lists(rows, min_size=1, max_size=4)))


def all_of(type_: str, keys: list[list[Any]]) -> Fed:
    """Return each form of each key twice in the first batch, and then each in a batch in the other order."""
    rows: list[tuple[int | None, Any]] = [(KEYS[type_].index(key), form) for key in keys for form in key]
    rows.append((None, None))
    return Fed(type_, [rows + rows, rows[::-1], rows[:1]])


class CountRows(BaseStateUpdater[Any]):
    """Counts keys in a state whose keys have no declared type; what begins with a null is removed again."""

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        for row in tuples:
            state.multi_update([(row[0],)], [Add(1)])
        state.multi_remove([(row[0],) for row in tuples if row[0] is None])


NUMBER = itertools.count(1)
AGGREGATES = {"kernel": Count, "rows": CountAll, "reducer": Fold}


def check(
    what: Fed, spec: Callable[[str], StateSpec], folder: Path, hint: int, listed: bool = True, durable: bool = True
) -> None:
    """Run the batches through states of one store; compare every reader with a fold over the rows."""
    spout = RowsSpout(f"k: {what.type_}", {at: [[form] for _, form in rows] for at, rows in enumerate(what.batches, 1)})
    topology = TridentTopology(f"keys-{next(NUMBER)}")  # of its own in a server's store
    stream = topology.new_stream("s", spout)
    states = {
        name: stream.group_by("k")
        .persistent_aggregate(spec(name), aggregator(), "n", state_name=name)
        .parallelism_hint(hint)
        for name, aggregator in AGGREGATES.items()
    }
    states["updated"] = stream.partition_by("k").partition_persist(
        spec("updated"), "k", CountRows(), state_name="updated"
    )
    queried = keep(stream.state_query(states["kernel"], "k", MapGet(), "before"), "queried")
    grouped = keep(stream.group_by("k").aggregate(Count(), "n"), "grouped")
    expected = what.counts()
    with start(topology, "in_process", log_dir=folder / "log") as running:
        running.process_all_available()
        for name, state in states.items():
            counts = {number: n for number, n in expected.items() if name != "updated" or number is not None}
            readers: list[Any] = [running.state(state)]
            if durable:
                readers.append(open_state(topology, state, log_dir=folder / "log"))
            for reader in readers:
                agrees(what, reader, counts, name != "updated", listed)
            if durable:
                readers[1].close()
    for at, rows in queried.batches.items():
        before = what.counts(at - 1)
        assert [row[1] for row in rows] == [before.get(what.number(row[0])) for row in rows]
    for at, rows in grouped.batches.items():
        assert what.counted(rows) == Fed(what.type_, [what.batches[at - 1]]).counts()


def is_declared(value: Any, type_: str) -> bool:
    """Whether a value is of a type as it is: not a whole number for a double, nor a time without zone for a moment."""
    (stored,) = pa.array([value], arrow_type(type_)).to_pylist()
    return type(stored) is type(value) and same(stored, value)


def agrees(what: Fed, reader: Any, counts: dict[int | None, int], is_typed: bool, listed: bool) -> None:
    values = [form for key in SHORT[what.type_] for form in key if is_typed or is_declared(form, what.type_)]
    forms: list[tuple[int | None, Any]] = [(None, None), *((what.number(form), form) for form in values)]
    expected = [counts.get(number) for number, _ in forms]
    assert reader.multi_get([(form,) for _, form in forms]) == expected
    assert reader.multi_get([form for _, form in forms]) == expected
    if not listed:
        return
    assert what.counted(reader.get_tuples()) == counts
    for number, form in forms:
        assert what.counted(reader.get_tuples((form,))) == ({number: counts[number]} if number in counts else {})


EMBEDDED: dict[str, Callable[[Path, str], StateSpec]] = {
    "memory": lambda folder, name: MemoryMapState.opaque(),
    "least recently used": lambda folder, name: StateSpec(LRUMemoryMapState(1000)),
    "sqlite": lambda folder, name: sqlite_state(str(folder / f"{name}.db")),
    "transactional": lambda folder, name: dict_state(DICTS.setdefault((folder, name), {}), "transactional"),
    "delta": lambda folder, name: DeltaState.opaque(folder / name),
    "delta, transactional": lambda folder, name: DeltaState.transactional(folder / name),
}
DICTS: dict[tuple[Path, str], dict[Any, Any]] = {}


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("store", EMBEDDED)
@settings(max_examples=3)
@given(what=fed(), hint=st.sampled_from([1, 3]))
@example(what=all_of("double", SHORT["double"]), hint=3)
def test_equal_keys_are_one_key_for_the_writer_and_all_readers_of_a_store(store: str, hint: int, what: Fed) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        durable = store not in ("memory", "least recently used", "transactional")
        check(what, lambda name: EMBEDDED[store](folder, name), folder, hint, store != "transactional", durable)
        if store.startswith("delta"):
            for name in AGGREGATES:
                rows = DeltaTable(folder / name).to_pyarrow_table().to_pylist()
                assert what.counted((row["k"], row["n"]) for row in rows) == what.counts()


SEVERAL_FORMS = ["double", "decimal(10,2)", "timestamp"]


@pytest.mark.parametrize("types", [SEVERAL_FORMS, pytest.param(list(KEYS), marks=pytest.mark.long)], ids=len)
def test_equal_keys_are_one_key_in_redis(types: list[str], redis_server: Server, tmp_path: Path) -> None:
    spec = RedisState.opaque(f"redis://127.0.0.1:{redis_server.port}/0")
    for at, type_ in enumerate(types):
        check(all_of(type_, SHORT[type_]), lambda name: spec, tmp_path / str(at), 2)


NUMBERS: list[Any] = [1, 1.0, True, Decimal(1)]


class CountNumbers(BaseStateUpdater[Any]):
    """Counts keys that are equal in Python, and of different types; takes one of them away again."""

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        for row in tuples:
            updaters = [Add(row[0] + at) for at in range(len(NUMBERS))]
            state.multi_update([(number,) for number in NUMBERS], updaters)
            assert state.multi_get([(number,) for number in NUMBERS]) == [row[0] + at for at in range(len(NUMBERS))]
            state.multi_remove([(True,)])


UNTYPED: dict[str, Callable[[Path], StateSpec]] = {
    "memory": lambda folder: MemoryMapState.opaque(),
    "a cache before a dict": lambda folder: dict_state({}),
    "sqlite": lambda folder: sqlite_state(str(folder / "state.db")),
    "delta": lambda folder: DeltaState.opaque(folder / "state"),
}


@pytest.mark.parametrize("store", UNTYPED)
def test_keys_without_a_declared_type_keep_their_type(store: str, tmp_path: Path) -> None:
    topology = TridentTopology("numbers")
    stream = topology.new_stream("s", RowsSpout("n: bigint", {1: [(5,)]}))
    state = stream.partition_persist(UNTYPED[store](tmp_path), "n", CountNumbers())
    with start(topology, "in_process", log_dir=tmp_path / "log") as running:
        running.process_all_available()
        view = running.state(state)
        assert view.multi_get([(number,) for number in NUMBERS]) == [5, 6, None, 8]
        if store != "a cache before a dict":
            rows = {(type(key), key): value for key, value in view.get_tuples()}
            assert rows == {(int, 1): 5, (float, 1.0): 6, (Decimal, 1): 8}


@pytest.mark.parametrize(
    "bad",
    [object(), dt.time(1, tzinfo=dt.UTC), Decimal("sNaN"), (1, object())],
    ids=["an object", "a time with a zone", "a signalling NaN", "an object in a tuple"],
)
def test_a_key_that_has_no_one_form_is_refused_by_name(bad: object) -> None:
    state = MemoryMapState.opaque().factory.make_state(StateConf(), 0, 1)
    state.begin_commit(1)
    with pytest.raises(CorruptValueError, match="a key is made of None, bool, int"):
        state.multi_update([("a", bad)], [Add(1)])


def test_moments_of_a_column_have_the_form_that_moments_of_user_code_get() -> None:
    moments = [dt.datetime.min, dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), NAIVE, dt.datetime.max]
    given = [*(one.replace(tzinfo=dt.UTC) for one in moments), None]
    keys = keys_of(pa.table({"k": pa.array(given, arrow_type("timestamp"))}), ["k"])
    assert [repr(key) for key in keys] == [repr(canonical_key((one,))) for one in given]
    in_berlin = pa.array(given[1:3], pa.timestamp("us", "Europe/Berlin"))
    assert [repr(key) for key in keys_of(pa.table({"k": in_berlin}), ["k"])] == [repr(key) for key in keys[1:3]]
