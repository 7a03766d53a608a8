"""`trident.verify_state`: what is equal, what is found wrong, what is refused; nothing is written."""

import math
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

import trident
from spouts import CsvFileSpout, FixedBatchSpout, TextFileSpout, TransactionalRedisStreamSpout
from spouts.kafka import OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from states.delta import DeltaState
from states.memory import LRUMemoryMapState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness.commands import until
from tests.harness.kafka_topics import Topics
from tests.harness.servers import Server
from tests.harness.sqlite_map import sqlite_state
from tests.harness.topology_runs import Keep, RowsState, dict_state, run_all, start
from trident import TridentCollector, TridentTopology, TridentTuple
from trident.errors import HistoryStartError, ReplayFailedError, UnsupportedOperation, WrongKeyError
from trident.operations import BaseStateUpdater, Count, Last, MapGet, Max, Split, Sum
from trident.replay.verifying import Verified, is_same
from trident.state import StateSpec

pytestmark = [pytest.mark.slow, pytest.mark.server]


class Words:
    """A word count over the files of a folder, in a store and in Delta."""

    def __init__(self, folder: Path, spec: StateSpec) -> None:
        self.books, self.log_dir = folder / "books", str(folder / "log")
        self.books.mkdir()
        self.topology = TridentTopology("words")
        words = self.topology.new_stream("lines", TextFileSpout(str(self.books))).each("line", Split(), "word")
        words.group_by("word").persistent_aggregate(spec, Count(), "count").parallelism_hint(2)
        words.persistent_aggregate(DeltaState.opaque(str(folder / "total")), Count(), "total")

    def run(self, **files: str) -> None:
        for name, text in files.items():
            (self.books / f"{name}.txt").write_text(text)
            run(self.topology, self.log_dir)

    def verify(self, *states: str, **more: Any) -> list[Verified]:
        return trident.verify_state(self.topology, *states, log_dir=self.log_dir, **more)


def run(topology: TridentTopology, log_dir: str, **conf: Any) -> None:
    run_all(topology, "in_process", log_dir=log_dir, **{"history": "7d", **conf})


@pytest.fixture
def url(postgres_server: Server) -> str:
    return f"postgresql://trident@{postgres_server.address}/postgres"


@pytest.fixture
def table(tmp_path: Path) -> str:
    return tmp_path.name[-30:].replace("-", "_")


@pytest.fixture
def words(tmp_path: Path, url: str, table: str) -> Words:
    made = Words(tmp_path, PostgresState.opaque(url, table=table))
    made.run(a="the cow\nthe moon\nold sun\n", b="the cow\n", c="a dish\n")
    return made


def test_a_value_that_was_changed_by_hand_is_found_with_what_should_be_there(
    words: Words, url: str, table: str
) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(f"UPDATE {table} SET count = 99 WHERE word = 'the'")
    (count,) = words.verify("count")
    assert (count.equal, list(count.wrong)) == (6, [(("the",), 99, 3, "since batch 2")])
    assert words.verify("count", keys=["cow", "moon"])[0].equal == 2
    assert words.verify("count", keys=["the"])[0].wrong == count.wrong


def test_a_key_that_is_nowhere_is_no_equal_key(words: Words) -> None:
    (count,) = words.verify("count", keys=["cow", "cwo"])
    assert (count.equal, list(count.wrong)) == (1, [])
    assert count.notes == ["no batch has written the key 'cwo', and the store has no value for it"]


def test_a_value_that_is_gone_and_one_that_no_batch_wrote_are_found(words: Words, url: str, table: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(f"DELETE FROM {table} WHERE word = 'moon'")
        connection.execute(f"UPDATE {table} SET word = 'cat' WHERE word = 'old'")
    (count,) = words.verify("count")
    wrong = {key: (found, expected) for key, found, expected, _ in count.wrong}
    assert wrong == {("moon",): (None, 1), ("old",): (None, 1), ("cat",): (1, None)}
    assert (
        next(one.since for one in count.wrong if one.key == ("cat",))
        == "batch 1 wrote it, but no batch has a row for it"
    )


@pytest.mark.long
def test_a_share_of_the_keys_is_the_same_each_time_and_the_rest_is_the_rest(words: Words) -> None:
    words.run(d=" ".join(f"w{number}" for number in range(200)))
    once, again = words.verify("count", share=0.3)[0], words.verify("count", share=0.3)[0]
    assert once == again
    assert 0 < once.equal < 120


@pytest.mark.parametrize("change", ["deleted", "changed"])
def test_a_source_that_does_not_have_the_rows_any_more_is_named(words: Words, change: str) -> None:
    path = words.books / "b.txt"
    path.unlink() if change == "deleted" else path.write_text("the cat\n")
    with pytest.raises(ReplayFailedError, match=r"batch 2 .* at step 'lines': .*b\.txt") as raised:
        words.verify()
    assert (raised.value.txid, raised.value.step) == (2, "lines")


def test_a_history_that_begins_later_is_refused(tmp_path: Path) -> None:
    topology = TridentTopology("many")
    rows = topology.new_stream("rows", FixedBatchSpout("n: bigint", 1, *[[number] for number in range(130)]))
    rows.persistent_aggregate(dict_state({}), "n", Sum(), "total")
    for _ in range(3):  # each start begins a segment, whose header has the last hundred batches
        run(topology, str(tmp_path / "log"), history=None)
    with pytest.raises(HistoryStartError, match="begins with batch 31, and totals are made of all") as raised:
        trident.verify_state(topology, log_dir=str(tmp_path / "log"))
    assert raised.value.first == 31
    with pytest.raises(HistoryStartError, match="begins with batch 31"):
        trident.why(topology, "total", log_dir=str(tmp_path / "log"))


@pytest.mark.parametrize(("history", "notes"), [(None, 1), ("7d", 0)])
def test_a_log_that_remembers_its_batches_without_a_history_says_what_it_does_not(
    tmp_path: Path, history: str | None, notes: int
) -> None:
    topology = TridentTopology("few")
    rows = topology.new_stream("rows", FixedBatchSpout("n: bigint", 1, [1], [2]))
    rows.persistent_aggregate(dict_state({}), "n", Sum(), "total")
    for _ in range(3):
        run(topology, str(tmp_path / "log"), history=history)
    (done,) = trident.verify_state(topology, log_dir=str(tmp_path / "log"))
    assert (done.equal, len(done.notes)) == (1, notes)


def test_a_log_without_batches_is_refused(tmp_path: Path) -> None:
    words = Words(tmp_path, DeltaState.opaque(str(tmp_path / "table")))
    (words.books / "empty.txt").write_text("")
    run(words.topology, words.log_dir)
    with pytest.raises(HistoryStartError, match="has no batch, and totals"):
        words.verify()


def test_states_behind_a_query_and_a_join_over_time_are_computed_with_them(tmp_path: Path) -> None:
    orders = [(1, "ann", 200), (2, "ann", 950), (3, "ann", 990)]
    topology = TridentTopology("orders")
    moves = FixedBatchSpout("user: string, town: string, since: bigint", 1, ("ann", "Oslo", 100), ("ann", "Rome", 900))
    towns = topology.new_stream("moves", moves).group_by("user")
    newest = towns.persistent_aggregate(dict_state({}), "town, since", Last(by="since"), "newest")
    ordered = topology.new_stream("orders", FixedBatchSpout("id: int, user: string, ordered: bigint", 1, *orders))
    located = ordered.state_query(newest, "user", MapGet(), "town, since", sees="this_batch")
    located.group_by("town").persistent_aggregate(dict_state({}), Count(), "per_town")
    payments = FixedBatchSpout("order: int, amount: int, paid: bigint", 1, (2, 70, 960), (1, 30, 450), (3, 5, 9_000))
    paid = topology.join_within(
        ordered, "id", topology.new_stream("payments", payments), "order", "id, user, ordered, amount, paid",
        times=("ordered", "paid"), within=(timedelta(0), timedelta(seconds=1)), delay=timedelta(seconds=1),
        state=dict_state({}), state_name="kept",
    )  # fmt: skip
    paid.group_by("user").persistent_aggregate(dict_state({}), "amount", Sum(), "paid_in_time")
    run(topology, str(tmp_path / "log"))
    done = {each.state: each for each in trident.verify_state(topology, log_dir=str(tmp_path / "log"))}
    assert [(done[name].equal, len(done[name].wrong)) for name in ("newest", "per_town", "paid_in_time")] == [
        (1, 0), (2, 0), (1, 0)
    ]  # fmt: skip
    assert "or of a join, in a form of its own" in done["kept"].refused


def test_a_state_that_was_declared_later_begins_with_the_first_batch_that_wrote_it(tmp_path: Path) -> None:
    def declared(with_total: bool) -> TridentTopology:
        topology = TridentTopology("later")
        words = topology.new_stream("lines", TextFileSpout(str(tmp_path / "in")))
        words.group_by("line").persistent_aggregate(DeltaState.opaque(str(tmp_path / "one")), Count(), "count")
        if with_total:
            words.persistent_aggregate(DeltaState.opaque(str(tmp_path / "two")), Count(), "total")
        return topology

    (tmp_path / "in").mkdir()
    for name, with_total in (("a", False), ("b", True), ("c", True)):
        (tmp_path / "in" / name).write_text("x\ny\n")
        run(declared(with_total), str(tmp_path / "log"))
    done = trident.verify_state(declared(True), log_dir=str(tmp_path / "log"))
    found = [(each.state, each.equal, list(each.wrong), list(each.notes)) for each in done]
    assert found == [("count", 2, [], []), ("total", 1, [], [])]
    with trident.open_state(declared(True), "total", log_dir=str(tmp_path / "log")) as total:
        assert total.get() == 4


def test_code_that_was_changed_is_noted(tmp_path: Path) -> None:
    def declared(aggregate: Any) -> TridentTopology:
        topology = TridentTopology("changed")
        rows = topology.new_stream("rows", CsvFileSpout(str(tmp_path / "in"), "shop: string, n: bigint"))
        table = DeltaState.opaque(str(tmp_path / "table"))
        rows.group_by("shop").persistent_aggregate(table, "n", aggregate, "n", state_name="n")
        return topology

    (tmp_path / "in").mkdir()
    for name, aggregate in (("a", Sum()), ("b", Max())):
        (tmp_path / "in" / f"{name}.csv").write_text("shop,n\noslo,2\noslo,1\n")
        run(declared(aggregate), str(tmp_path / "log"), allow_changed_topology=name == "b")
    (done,) = trident.verify_state(declared(Max()), log_dir=str(tmp_path / "log"))
    assert [(one.found, one.expected) for one in done.wrong] == [(3, 2)]
    assert list(done.notes) == ["from batch 2 on it means something else; the batches before ran other code"]


def test_a_window_by_the_time_of_its_batches_gives_what_it_gave(tmp_path: Path) -> None:
    topology = TridentTopology("timed")
    words = topology.new_stream("words", FixedBatchSpout("word: string", 1, ["a"], ["b"], ["a"]))
    window = words.tumbling_window(
        timedelta(milliseconds=40), dict_state({}), "word", Count(), "n", state_name="window"
    )
    window.persistent_aggregate(dict_state({}), "n", Sum(), "sum", state_name="sum")
    with start(topology, "in_process", log_dir=str(tmp_path / "log"), history="7d") as running:
        until(lambda: running.state("sum").get() == 3, "the windows have given all three rows")
    done = {each.state: each for each in trident.verify_state(topology, log_dir=str(tmp_path / "log"))}
    assert (done["sum"].equal, list(done["sum"].wrong)) == (1, [])
    assert "in a form of its own" in done["window"].refused


def test_a_state_that_cannot_be_compared_is_refused_by_name(tmp_path: Path) -> None:
    topology, own = TridentTopology("mixed"), RowsState()
    words = topology.new_stream("words", FixedBatchSpout("word: string", 1, ["a"], ["b"]))
    words.group_by("word").persistent_aggregate(DeltaState.opaque(str(tmp_path / "one")), Count(), "count")
    words.group_by("word").persistent_aggregate(LRUMemoryMapState(5), Count(), "recent")
    words.partition_persist(own, "word", Keep(), "kept: string", state_name="rows")
    run(topology, str(tmp_path / "log"), allow_inexact=True)
    calls = list(own.calls)
    count, recent, rows = trident.verify_state(topology, log_dir=str(tmp_path / "log"))
    assert (count.equal, recent.equal, rows.equal) == (2, 0, 0)
    assert "in the memory of the process" in recent.refused
    assert "of a kind of its own" in rows.refused
    assert own.calls == calls
    for state in ("recent", "rows"):
        with pytest.raises(UnsupportedOperation, match=f"verify state '{state}': "):
            trident.verify_state(topology, state, log_dir=str(tmp_path / "log"))


def test_keys_need_one_state_and_a_share_is_a_part(words: Words) -> None:
    with pytest.raises(WrongKeyError, match="name the one state that they are keys of"):
        words.verify(keys=["the"])
    with pytest.raises(WrongKeyError, match="it is a single value; name no key"):
        words.verify("total", keys=["the"])
    with pytest.raises(ValueError, match="share=0: give more than 0"):
        words.verify(share=0)


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        (0.1 + 0.2, 0.3, True),
        (0.1, 0.2, False),
        (float("nan"), float("nan"), True),
        ({"a": 1.0}, {"a": 1.0 + 1e-15}, True),
        ({"a": 1}, {"b": 1}, False),
        ([1, 2], (1, 2), True),
        ([1, 2], [1], False),
        (None, 0, False),
        ({"k": 1.0}, [("k", 1.0 + 1e-15)], True),  # a map may be given as pairs, and a store gives a dictionary
        ({"a": [{}]}, {"a": [[]]}, True),
        ({"k": 1}, [("k", 2)], False),
        ({"k": 1}, [1, 2], False),
        ({"k": 1}, 5, False),
    ],
)
def test_values_are_the_same_but_for_the_last_digits_of_doubles(found: Any, expected: Any, same: bool) -> None:
    assert is_same(found, expected) is same


@pytest.mark.parametrize("share", [1.0, 0.99999])
def test_keys_that_a_store_lists_are_those_of_the_batches_also_nan(tmp_path: Path, share: float) -> None:
    rows = [[math.nan], [-0.0], [1.5], [None], [0.0], [math.nan]]
    topology, log_dir = TridentTopology("odd"), str(tmp_path / "log")
    numbers = topology.new_stream("rows", FixedBatchSpout("k: double", 2, *rows)).group_by("k")
    numbers.persistent_aggregate(sqlite_state(str(tmp_path / "db")), Count(), "n")
    run(topology, log_dir)
    (n,) = trident.verify_state(topology, log_dir=log_dir, share=share)
    assert (n.equal, list(n.wrong), n.notes) == (4, [], [])


class PutOdd(BaseStateUpdater[Any]):
    """Puts values under keys that are equal to each other in a dict."""

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        state.multi_put([(1,), (1.0,), (True,)], ["int", "float", "bool"])


@pytest.mark.parametrize("keys", [(), [1, 1.0, True]])
def test_keys_that_are_equal_in_a_dict_are_compared_each_for_itself(tmp_path: Path, keys: list[Any]) -> None:
    topology, log_dir = TridentTopology("odd"), str(tmp_path / "log")
    one = topology.new_stream("rows", FixedBatchSpout("n: bigint", 1, [1]))
    one.partition_persist(sqlite_state(str(tmp_path / "db")), "n", PutOdd(), state_name="kept")
    run(topology, log_dir)
    (kept,) = trident.verify_state(topology, "kept", log_dir=log_dir, keys=keys)
    assert (kept.equal, list(kept.wrong), kept.notes) == (3, [], [])


def test_a_replay_follows_a_topology_that_runs(words: Words) -> None:
    seen: list[int] = []

    def progress(txid: int) -> None:
        if not seen:
            words.run(d="the end\n")  # committed while the replay is under way
        seen.append(txid)

    (count,) = words.verify("count", progress=progress)
    assert (count.txid, count.equal, list(count.wrong)) == (4, 8, [])
    assert seen[:3] == [1, 2, 3]


def test_a_stream_of_redis_as_a_log_and_a_state_there(tmp_path: Path, redis_server: Server) -> None:
    url, name = f"redis://{redis_server.address}/0", tmp_path.name[-30:]
    client = redis.Redis.from_url(url)
    topology = TridentTopology(name)
    words = topology.new_stream("words", TransactionalRedisStreamSpout(url, name, "word: string", max_entries=2))
    words.group_by("word").persistent_aggregate(
        RedisState.transactional(url, prefix=f"{name}-counts"), Count(), "count"
    ).parallelism_hint(3)
    for word in ["the", "cow", "the", "moon", "the"]:
        client.xadd(name, {"word": word})
    log_dir = str(tmp_path / "log")
    run_all(topology, "in_process", log_dir=log_dir, history="7d")
    (done,) = trident.verify_state(topology, log_dir=log_dir)
    assert (done.txid, done.equal, list(done.wrong)) == (3, 3, [])
    client.xtrim(name, maxlen=1, approximate=False)
    with pytest.raises(ReplayFailedError, match="batch 1 .* at step 'words'"):
        trident.verify_state(topology, log_dir=log_dir)


@pytest.mark.long
@pytest.mark.parametrize("kind", [OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout])
def test_topics_of_kafka_are_read_again(kind: Any, tmp_path: Path, kafka_topics: Topics) -> None:
    topic = kafka_topics.create(2)
    topology = TridentTopology("words")
    words = topology.new_stream("words", kind(kafka_topics.bootstrap, topic, value="text", first_poll="earliest"))
    words.group_by("value").persistent_aggregate(DeltaState.opaque(str(tmp_path / "counts")), Count(), "count")
    log_dir = str(tmp_path / "log")
    for number in range(3):
        kafka_topics.produce(topic, [b"the", f"w{number}".encode(), b"the"])
        run_all(topology, "in_process", log_dir=log_dir, history="7d")
    (done,) = trident.verify_state(topology, log_dir=log_dir)
    assert (done.txid, done.equal, list(done.wrong)) == (3, 4, [])
    assert [each.after for each in trident.why(topology, "count", "the", log_dir=log_dir)] == [2, 4, 6]
    kafka_topics.delete_records(topic, 4)
    with pytest.raises(ReplayFailedError, match="batch 1 .* at step 'words'"):
        trident.verify_state(topology, log_dir=log_dir)
