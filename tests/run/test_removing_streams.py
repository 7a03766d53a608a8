"""`TridentState.remove`: what a stream of keys removes is gone, whatever was replayed with other rows, or runs where."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import trident
from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.server_states import postgres_url, state_on
from tests.harness.topology_runs import QUICK, CountAll, RowsSpout, dict_state, keep, run_all
from tests.run.random_declarations import FoldedSum
from trident import FailedException, TopologyError, TridentTopology
from trident.errors import DirtyReadError, UnsupportedOperation
from trident.operations import Avg, BaseStateUpdater, Count, MapGet, Max, Sum, col
from trident.run import entries
from trident.spout import SpoutType
from trident.state.encoding.codec import decode_keys, encode_keys
from trident.testing import TopologyTestDriver, simulate

KEYS: dict[str, Callable[[random.Random], Any]] = {
    "string": lambda draw: draw.choice(["a", "b:c", "ü", "", None]),
    "bigint": lambda draw: draw.choice([0, 1, -1, 5, None]),
    "double": lambda draw: draw.choice([0.0, -0.0, 1.0, float("nan"), None]),
    "boolean": lambda draw: draw.random() < 0.5,
    "date": lambda draw: dt.date(2026, 11, draw.randint(1, 4)),
    "decimal(10,2)": lambda draw: Decimal(draw.randint(0, 3)) / 4,
    "binary": lambda draw: draw.choice([b"\0", b"a:b"]),
}


AGGREGATES: list[Any] = [
    ("n", Sum(), "value"),
    ("n", FoldedSum(), "value"),
    ("n", Max(), "value"),
    ({"count": Count(), "total": Sum("n"), "mean": Avg("n")},),
]


class Rows(RowsSpout):
    """A spout that may give other rows at each try of a batch; it remembers those of the last one."""

    def __init__(self, draw: random.Random, types: list[str], last: int, most: int, spout_type: SpoutType) -> None:
        keys = (f"k{at}: {type_}" for at, type_ in enumerate(types))
        super().__init__(", ".join([*keys, "n: bigint", "gone: boolean"]), {}, spout_type)
        self.draw, self.types, self.last, self.most = draw, types, last, most
        self.given: dict[int, list[tuple[Any, ...]]] = {}
        self.nulls = True

    def emit_batch(self, batch_id: int, collector: Any) -> bool:
        if batch_id > self.last:
            return False
        if batch_id not in self.given or self.spout_type is SpoutType.OPAQUE:
            share = self.draw.choice([0, 0.1, 0.5, 1])
            self.given[batch_id] = [
                (*(self.key(type_) for type_ in self.types), self.draw.randint(1, 9), self.draw.random() < share)
                for _ in range(self.draw.randint(0, self.most))
            ]
        for row in self.given[batch_id]:
            collector.emit(list(row))
        return True

    def key(self, type_: str) -> Any:
        value = KEYS[type_](self.draw)
        return value if self.nulls or value not in ("", None) else {"string": "z", "bigint": 7, "double": 7.0}[type_]


class FailsNowAndThen(BaseStateUpdater[Any]):
    """Fails after the state before it has committed."""

    draw = random.Random()

    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        if self.draw.random() < 0.3:
            raise FailedException("now and then")


@dataclass
class Case:
    """A topology of random keys, aggregates and hints over a state, and what a dict says that it holds."""

    spec: Any
    name: str
    draw: random.Random
    kind: SpoutType = SpoutType.OPAQUE
    settings: dict[str, Any] = field(default_factory=dict)
    place: str = "auto"
    types: tuple[str, ...] = tuple(KEYS)

    def __post_init__(self) -> None:
        draw = self.draw
        types = [draw.choice(self.types) for _ in range(draw.randint(1, 2))]
        self.rows = Rows(draw, types, draw.randint(3, 9), draw.choice([3, 30]), self.kind)
        self.keys = [f"k{at}" for at in range(len(types))]
        self.aggregates, self.hint = draw.choice(AGGREGATES), draw.randint(1, 8)
        self.topology = TridentTopology(self.name)
        stream = self.topology.new_stream("rows", self.rows)
        counted = stream.where(~col("gone")).group_by(*self.keys)
        self.state = counted.persistent_aggregate(self.spec, *self.aggregates, state_name="sums")
        self.state.parallelism_hint(self.hint).placement(self.place)
        gone = stream.where(col("gone"))
        if draw.random() < 0.5:  # a stream of other names, in other partitions
            gone = gone.select("n", **{f"g{key}": col(key) for key in self.keys}).shuffle()
        self.state.remove(gone, [name for name in gone.fields.names if name.lstrip("g") in self.keys])
        new, value = self.state.new_values_stream(), "total" if len(self.aggregates) == 1 else "value"
        self.new = new.group_by(*self.keys).persistent_aggregate(
            MemoryMapState.opaque(), value, Sum(), "new", state_name="new"
        )
        FailsNowAndThen.draw = random.Random(draw.random())
        stream.partition_persist(MemoryMapState.opaque(), "n", FailsNowAndThen(), state_name="fails")

    def run(self) -> None:
        settings = {**QUICK, "max_batch_attempts": 100, "max_spout_pending": self.draw.randint(1, 3), **self.settings}
        with self.topology.start(**settings) as running:
            running.process_all_available()
            self.found, self.given_on = self._rows(running.state(self.state)), [*running.state(self.new).get_tuples()]

    def _rows(self, state: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a state, also of one that can only be asked for keys."""
        try:
            return list(state.get_tuples())
        except UnsupportedOperation:
            pass
        keys = list(
            dict.fromkeys(encode_keys([row[: len(self.keys)] for rows in self.rows.given.values() for row in rows]))
        )
        names = decode_keys(keys)
        return [(*k, value) for k, value in zip(names, state.multi_get(names), strict=True) if value is not None]

    def expected(self) -> dict[bytes, Any]:
        """Return the values at the end, by key; the values of each batch are compared with the stream of new values."""
        values, new = dict[bytes, Any](), dict[bytes, int]()
        for _, rows in sorted(self.rows.given.items()):
            keys = encode_keys([row[: len(self.keys)] for row in rows])
            gone = {key for key, row in zip(keys, rows, strict=True) if row[-1]}
            mine: dict[bytes, list[int]] = {}
            for key, row in zip(keys, rows, strict=True):
                if key not in gone:
                    mine.setdefault(key, []).append(row[-2])
            for key, numbers in mine.items():
                values[key] = [*values.get(key, []), *numbers]
            for key in gone:
                values.pop(key, None)
            for key in mine:
                value = self.value(values[key])
                new[key] = new.get(key, 0) + (value[1] if isinstance(value, tuple) else value)
        assert self.fold(self.given_on) == new, self
        return {key: self.value(numbers) for key, numbers in values.items()}

    def value(self, numbers: list[int]) -> Any:
        if len(self.aggregates) == 1:
            return len(numbers), sum(numbers), sum(numbers) / len(numbers)
        return max(numbers) if isinstance(self.aggregates[1], Max) else sum(numbers)

    def fold(self, rows: Any) -> dict[bytes, Any]:
        """Return the values of rows of keys and one struct, or of keys and several results."""
        at, found = len(self.keys), {}
        for key, row in zip(encode_keys([row[:at] for row in rows]), rows, strict=True):
            value = row[at] if len(row) == at + 1 else tuple(row[at:])
            found[key] = (value["count"], value["total"], value["mean"]) if isinstance(value, dict) else value
        assert len(found) == len(rows), rows
        return found

    def check(self) -> None:
        self.run()
        assert self.fold(self.found) == self.expected(), self


def local(draw: random.Random, folder: Path, kind: str) -> Any:
    """Return a state in memory or in a folder."""
    if draw.random() < 0.5:
        return getattr(MemoryMapState, kind)()
    if draw.random() < 0.3:
        return dict_state({}, kind)
    options: dict[str, Any] = {"compact_after_commits": draw.choice([2, 100]), "fsync": False}
    return getattr(DeltaState, kind)(str(folder / "table"), **options, max_keys_in_memory=draw.choice([4, 1000]))


SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(10, 600))]


@pytest.mark.slow
@pytest.mark.sample(5)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_removed_is_gone_whatever_was_replayed(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    kind = draw.choice(["opaque", "opaque", "transactional"])
    promise = SpoutType.OPAQUE if kind == "opaque" else SpoutType.TRANSACTIONAL
    settings = {"engine": "in_process", "log_dir": str(tmp_path / "log")}
    Case(local(draw, tmp_path, kind), f"t{seed}", draw, promise, settings).check()


def served(store: str, draw: random.Random, name: str, request: pytest.FixtureRequest) -> Any:
    """Return a state of a server, in any layout, or in a folder."""
    if store == "delta":
        return DeltaState.opaque(str(request.getfixturevalue("tmp_path") / "table"), compact_after_commits=4)
    options: dict[str, Any] = {"cache": draw.choice([0, 5, 1000])}
    if store in ("postgres", "redis"):
        options["max_keys_per_call"] = draw.choice([1, 7, 1000])
    if store in ("postgres", "cassandra"):
        options["layout"] = draw.choice(["columns", "columns", "binary"])
    if store == "postgres":
        options["changes"] = "1d" if options["layout"] == "columns" else None
    if store == "redis":
        options |= {"layout": draw.choice(["strings", "fields"]), "changes": "1d"}
    return state_on(store, request.getfixturevalue(f"{store}_server"), name, **options)


STORES = [
    *((store, "in_process", seed) for store in ("postgres", "redis") for seed in range(3)),
    *(pytest.param(store, "in_process", 1, marks=pytest.mark.long) for store in ("cassandra", "memcached")),
    *(
        pytest.param(store, engine, seed, marks=pytest.mark.long)
        for store in ("redis", "delta")
        for engine in ("spark", "resident")
        for seed in (0, 1)
    ),
    *(
        pytest.param(store, engine, seed, marks=pytest.mark.soak)
        for store in ("postgres", "redis", "cassandra", "memcached", "delta")
        for engine in ("in_process", "spark")
        for seed in range(4, 30)
    ),
]


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize(("store", "engine", "seed"), STORES)
def test_all_stores_remove_alike(
    store: str, engine: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    draw, name = random.Random(seed), f"gone_{store}_{engine}_{seed}_{tmp_path.parent.name[-6:].replace('-', '_')}"
    log_dir = str(tmp_path / "log")
    settings: dict[str, Any] = {"engine": engine, "log_dir": log_dir}
    if engine == "resident":
        settings |= {"engine": "spark", "workers": "resident"}
    if engine != "in_process":
        settings["parallelism"] = 2
    place = "auto" if engine == "in_process" else draw.choice(["driver", "executors", "executors"])
    state = served(store, draw, name, request)
    if store == "postgres" and draw.random() < 0.5:  # each batch is one transaction then
        url = postgres_url(request.getfixturevalue("postgres_server"))
        settings["log_dir"] = log_dir = f"{url}?topology={name}"
    case = Case(state, name, draw, SpoutType.OPAQUE, settings, place)
    case.rows.nulls = store != "cassandra"
    case.check()
    if store == "memcached":
        return
    with trident.open_state(case.topology, "sums", log_dir=log_dir) as reader:
        assert case.fold(list(reader.get_tuples())) == case.fold(case.found)
    if state.factory.facts.keeps_changes:
        check_feed(case, log_dir)


def check_feed(case: Case, log_dir: str) -> None:
    """A removal is a change without a value after it."""
    fold: dict[bytes, Any] = {}
    with trident.changes(case.topology, "sums", 0, log_dir=log_dir) as feed:
        while batches := feed.read(case.draw.randint(1, 5)):
            for change in (change for batch in batches for change in batch.changes):
                (key,) = encode_keys([change.key])
                assert fold.get(key) == change.before, (case, change)
                fold[key] = change.after
    left = [(*decode_keys([key])[0], value) for key, value in fold.items() if value is not None]
    assert case.fold(left) == case.fold(case.found), case


UPDATES = {
    1: [("a", False), ("b", False), ("a", False)],
    2: [("a", True), ("a", False), ("c", True)],
    3: [("a", False)],
}


def words(topology: TridentTopology, batches: Any = UPDATES) -> Any:
    return topology.new_stream("s", RowsSpout("word: string, gone: boolean", batches, SpoutType.OPAQUE))


@pytest.mark.sample(1)
def test_several_streams_remove_and_another_spout_may_be_one(engine: str) -> None:
    topology = TridentTopology("t")
    rows = [("a",), ("b",), ("c",)]
    added = topology.new_stream("added", RowsSpout("word: string", {1: rows, 2: [("d",)]}))
    counts = added.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    behind = keep(counts.new_values_stream().where(col("count") > 0))  # declared in front of what removes
    left = topology.new_stream("left", RowsSpout("n: bigint, name: string", {2: [(1, "a"), (2, "d")]}))
    other = topology.new_stream("other", RowsSpout("word: string", {2: [("b",)]})).shuffle()
    assert counts.remove(left, "name").remove(other, ["word"]) is counts
    with run_all(topology, engine) as running:
        assert list(running.state(counts).get_tuples()) == [("c", 1)]
    assert sorted(behind.rows) == [("a", 1), ("b", 1), ("c", 1)]
    assert (
        "persist count: Count() -> count by word; removes name of left; removes word of other/shuffle"
        in topology.explain()
    )
    assert "sends name; the state removes them" in topology.explain()


def test_a_query_of_the_batch_before_may_choose_what_is_removed() -> None:
    """At two, a word is full: the next batch with it removes it."""
    topology = TridentTopology("t")
    stream = topology.new_stream("s", RowsSpout("word: string", {}, SpoutType.OPAQUE))
    counts = stream.group_by("word").persistent_aggregate(MemoryMapState.opaque(), Count(), "count")
    counts.remove(stream.state_query(counts, "word", MapGet(), "count").where(col("count") >= 2), "word")
    with TopologyTestDriver(topology) as driver:
        for expected in (1, 2, None, 1, 2, None):
            driver.feed("s", "a")
            driver.fail_at("commit:count")
            assert not driver.step().committed  # type: ignore[union-attr]
            driver.run()
            assert driver.state(counts).multi_get(["a"]) == [expected]


def test_a_query_that_may_read_what_a_failed_attempt_wrote_must_not_choose() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", RowsSpout("word: string", {}))
    counts = stream.group_by("word").persistent_aggregate(MemoryMapState.transactional(), Count(), "count")
    counts.remove(stream.state_query(counts, "word", MapGet(), "count").where(col("count") >= 2), "word")
    with pytest.raises(DirtyReadError, match="count"):
        topology.start(engine="in_process")


def test_what_cannot_remove_is_refused() -> None:
    topology = TridentTopology("t")
    stream = words(topology)
    grouped = stream.group_by("word")
    counts = grouped.persistent_aggregate(MemoryMapState(), Count(), "count")
    total = stream.persistent_aggregate(MemoryMapState(), Count(), "total")
    kept = stream.partition_persist(MemoryMapState(), "word", FailsNowAndThen(), state_name="kept")
    static = topology.new_static_state(MemoryMapState(), name="static")
    requests = topology.new_drpc_stream("words")
    now = stream.state_query(counts, "word", MapGet(), "count", sees="this_batch")
    behind = now.group_by("word").persistent_aggregate(MemoryMapState(), "count", Max(), "most")
    for state, gone, fields, why in [
        (total, stream, "word", r"remove keys of state 'total': it is a single value and has no keys"),
        (kept, stream, "word", r"remove keys of state 'kept': its updater chooses the keys. Merge the streams"),
        (static, stream, "word", r"remove keys of state 'static': it is static"),
        (counts, stream, "nothing", r"nothing"),
        (counts, stream, "gone", r"the fields \(gone: boolean\) of stream 's' must be as many as the key has \(word: string\)"),
        (counts, "s", "word", r"remove takes streams, got 's'"),
        (counts, requests, "args", r"remove cannot take the requests of DRPC function 'words'"),
        (counts, counts.new_values_stream(), "word", r"exists only after the state's own update"),
        (counts, now, "word", r"exists only after the state's own update"),
        (counts, behind.new_values_stream(), "word", r"exists only after the state's own update"),
        (counts, words(TridentTopology("other")), "word", r"of another topology"),
    ]:  # fmt: skip
        with pytest.raises(TopologyError, match=why):
            state.remove(gone, fields)
    behind.remove(counts.new_values_stream(), "word")  # the other way round it is in order
    with pytest.raises(TopologyError, match="only after the state's own update"):
        counts.remove(behind.new_values_stream(), "word")


class OwnMap:
    """A map of a user's own that cannot remove."""

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> OwnMap:
        return self

    def begin_commit(self, txid: int) -> None: ...

    def commit(self, txid: int) -> None: ...

    def multi_get(self, keys: Any) -> list[Any]:
        return [None] * len(keys)

    def multi_update(self, keys: Any, updaters: Any) -> list[Any]:
        return [updater.update(None) for updater in updaters]


def test_a_map_without_multi_remove_is_refused_at_the_start() -> None:
    topology = TridentTopology("t")
    stream = words(topology)
    counts = stream.group_by("word").persistent_aggregate(OwnMap(), Count(), "count")
    counts.remove(stream.where(col("gone")))
    with pytest.raises(
        TopologyError, match=r"state 'count' \(OwnMap\) has no method 'multi_remove': a stream removes keys"
    ):
        topology.start(engine="in_process")


@pytest.mark.parametrize("aggregate", [Count(), CountAll()])
def test_the_other_updates_of_a_batch_stay_columns_or_pieces(aggregate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "PIECE", 3)
    topology = TridentTopology("t")
    rows = {1: [(f"w{at}", False) for at in range(20)], 2: [(f"w{at}", at % 2 == 0) for at in range(20)]}
    stream = words(topology, rows)
    grouped = stream.where(~col("gone")).group_by("word")
    counts = grouped.persistent_aggregate(MemoryMapState.opaque(), aggregate, "count")
    counts.remove(stream.where(col("gone")))
    with run_all(topology, "in_process") as running:
        assert dict(running.state(counts).get_tuples()) == {f"w{at}": 2 for at in range(1, 20, 2)}


def removing(spec: Any, rows: list[tuple[str, bool]]) -> TridentTopology:
    topology = TridentTopology("removing")
    stream = topology.new_stream("s", FixedBatchSpout("word: string, gone: boolean", 2, *rows))
    counts = stream.where(~col("gone")).group_by("word").persistent_aggregate(spec, Count(), "count")
    counts.remove(stream.where(col("gone")))
    return topology


@pytest.mark.slow
def test_a_removal_is_explained_and_verified_as_any_batch(tmp_path: Path) -> None:
    rows = [(word, at in (3, 4)) for at, word in enumerate("ababacac")]
    topology, log_dir = removing(DeltaState.opaque(tmp_path / "table"), rows), str(tmp_path / "log")
    run_all(topology, "in_process", log_dir=log_dir, history="7d")
    origins = trident.why(topology, "count", "a", log_dir=log_dir)
    assert [(each.batch.txid, each.count, each.partial, each.before, each.after) for each in origins] == [
        (1, 1, 1, None, 1), (2, 1, 1, 1, 2), (3, 0, None, 2, None), (4, 1, 1, None, 1),
    ]  # fmt: skip
    (verified,) = trident.verify_state(topology, "count", log_dir=log_dir)
    assert (verified.equal, list(verified.wrong), verified.refused) == (2, [], "")


def test_a_batch_with_removals_repeats_itself() -> None:
    topology = removing(MemoryMapState.opaque(), [("a", False)])
    with TopologyTestDriver(topology) as driver:
        for _ in range(5):
            driver.feed("s", ("a", False), ("b", False), ("a", True), ("c", True))
        driver.check_replays()


@pytest.mark.slow
def test_runs_with_faults_end_as_one_without() -> None:
    draw = random.Random(0)
    rows = [(draw.choice("abcd"), draw.random() < 0.3) for _ in range(30)]
    declared = removing(MemoryMapState.opaque(), rows)
    assert simulate(declared, {"s": rows}, seeds=30, same_batches=True).seeds == 30
