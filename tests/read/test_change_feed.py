"""`trident.changes`: what it gives beside commits, what it refuses, and what a reader that comes too late is told."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

import trident
from spouts import FeederBatchSpout
from states.cassandra import CassandraState
from states.delta import DeltaState
from states.memory import MemoryMapState
from states.postgres import PostgresState
from states.redis import RedisState
from states.redis.fence import RedisFence
from tests.harness.commands import until
from tests.harness.servers import Server, start_redis
from tests.harness.topology_runs import start
from trident import TridentTopology
from trident.errors import BackendError, ChangesGoneError, ConfigError, StateReadError, UnsupportedOperation
from trident.operations import Count, Sum
from trident.read import change_feed
from trident.state import StateSpec

pytestmark = pytest.mark.slow

Made = Callable[..., StateSpec]


class Words:
    """A topology that sums numbers by word, fed batch by batch."""

    def __init__(self, folder: Path, spec: StateSpec, log_dir: str = "") -> None:
        self.log_dir, self.spout = log_dir or str(folder / "log"), FeederBatchSpout("word: string, n: bigint")
        self.topology = TridentTopology(folder.name[-30:])
        words = self.topology.new_stream("words", self.spout).group_by("word")
        words.persistent_aggregate(spec, "n", Sum(), "total", state_name="totals").parallelism_hint(2)

    def run(self, *batches: list[tuple[Any, ...]], **conf: Any) -> None:
        with start(self.topology, "in_process", log_dir=self.log_dir, **conf) as running:
            for batch in batches:
                self.spout.feed(batch)
                running.process_all_available()

    def changes(self, since: Any = 0) -> Any:
        return trident.changes(self.topology, "totals", since, log_dir=self.log_dir)

    def txids(self, since: int = 0) -> list[int]:
        with self.changes(since) as feed:
            return [batch.txid for batch in feed.read()]

    def has_lost(self, since: int, said: str) -> None:
        """Make sure that a feed says which changes are gone."""
        with self.changes(since) as feed, pytest.raises(ChangesGoneError, match=said):
            feed.read()


@pytest.fixture(params=["postgres", "redis", "redis fields"])
def made(request: pytest.FixtureRequest, tmp_path: Path, postgres_server: Server, redis_server: Server) -> Made:
    """Return what makes a state of a store, in a place of its own."""
    name = tmp_path.name[-30:].replace("-", "_")
    if request.param == "postgres":
        url = f"postgresql://trident@{postgres_server.address}/postgres"
        return lambda **options: PostgresState.opaque(url, **{"table": name, "changes": "7d", **options})
    more = {"layout": "fields"} if request.param == "redis fields" else {}
    url = f"redis://{redis_server.address}/0"
    return lambda **options: RedisState.opaque(url, **{"prefix": name, **more, "changes": "7d", **options})


FIRST, SECOND = [("the", 1), ("cow", 2), (None, 5)], [("the", 3), ("", 0)]


@pytest.mark.server
@pytest.mark.sample(2)
def test_each_change_is_given_once_with_before_and_after(made: Made, tmp_path: Path) -> None:
    words = Words(tmp_path, made())
    words.run(FIRST, [], SECOND)
    with words.changes() as feed:
        one, two = feed.read()
        assert (one.txid, two.txid) == (1, 3)  # the one between wrote nothing
        assert {change.key: change[1:] for change in one.changes} == {
            ("the",): (None, 1),
            ("cow",): (None, 2),
            (None,): (None, 5),
        }
        assert {change.key: change[1:] for change in two.changes} == {("the",): (1, 4), ("",): (None, 0)}
        assert (feed.read(), feed.txid) == ([], 3)
        places = feed.place_of(1), feed.at
    for since, left in [(1, [two]), (None, []), (places[0], [two]), (places[1], [])]:
        with words.changes(since) as feed:
            assert feed.read() == left


@pytest.mark.server
def test_an_iteration_waits_for_what_comes_and_ends_with_close(made: Made, tmp_path: Path) -> None:
    words, seen = Words(tmp_path, made()), list[Any]()
    words.run(FIRST)
    feed, came = words.changes(), threading.Semaphore(0)

    def follow() -> None:
        for batch in feed:
            seen.append((batch.txid, len(batch.changes), feed.txid))
            came.release()

    thread = threading.Thread(target=follow)
    thread.start()
    assert came.acquire(timeout=30)
    words.run(SECOND, FIRST)
    assert came.acquire(timeout=30)
    assert came.acquire(timeout=30)
    feed.close()
    thread.join(30)
    assert not thread.is_alive()
    assert seen == [(1, 3, 1), (2, 2, 2), (3, 3, 3)]


@pytest.mark.server
@pytest.mark.long
def test_a_snapshot_and_the_changes_behind_it_are_the_state_beside_commits(made: Made, tmp_path: Path) -> None:
    words = Words(tmp_path, made(max_keys_per_call=7))
    words.run([(f"w{number}", number) for number in range(100)])
    ended = threading.Event()

    def commit() -> None:
        words.run(*[[(f"w{(number + at) % 130}", at) for at in range(9)] for number in range(60)])
        ended.set()

    writer, folds = threading.Thread(target=commit), list[dict[Any, Any]]()
    writer.start()
    while not folds or not ended.is_set():
        with words.changes(since=None) as feed:
            txid, rows = feed.snapshot()
            assert feed.txid == txid
            folds.append({row[:-1]: row[-1] for row in rows})
            for batch in feed.read():
                for key, before, after in batch.changes:
                    assert folds[-1].get(key) == before, (txid, batch.txid, key)
                    folds[-1][key] = after
    writer.join()
    with words.changes(since=None) as feed:
        assert sorted(feed.snapshot()[1]) == sorted(read(words))
    assert len(folds) > 1


def read(words: Words) -> list[tuple[Any, ...]]:
    with trident.open_state(words.topology, "totals", log_dir=words.log_dir) as state:
        return list(state.get_tuples())


@pytest.mark.server
def test_the_change_of_a_single_value_has_an_empty_key(made: Made, tmp_path: Path) -> None:
    words = Words(tmp_path, made())
    words.topology = TridentTopology(f"{tmp_path.name[-20:]}-total")
    stream = words.topology.new_stream("words", words.spout)
    stream.persistent_aggregate(made(), Count(), "count", state_name="totals")
    words.run(FIRST, SECOND)
    with words.changes() as feed:
        assert [batch.changes for batch in feed.read()] == [[((), None, 3)], [((), 3, 5)]]


@pytest.mark.server
@pytest.mark.sample(2)
def test_who_comes_too_late_is_told_and_begins_with_a_snapshot(made: Made, tmp_path: Path) -> None:
    words = Words(tmp_path, made(changes=10))
    words.run(*[[("the", 1)] for _ in range(66)])
    with words.changes(since=53) as feed:
        said = r"since batch 53: those up to batch 54 are not kept .*snapshot.*count both"
        with pytest.raises(ChangesGoneError, match=said):
            feed.read()
        assert feed.snapshot() == (66, [("the", 66)])
        assert feed.read() == []
        words.run([("the", 1)])
        assert [(batch.txid, batch.changes[0].after) for batch in feed.read()] == [(67, 67)]
    assert words.txids(54) == list(range(55, 68))


@pytest.mark.server
@pytest.mark.sample(2)
def test_changes_go_by_their_age(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_server: Server
) -> None:
    words = Words(tmp_path, made(changes="2h"))
    words.run(*[[("the", 1)] for _ in range(50)])
    with psycopg.connect(f"postgresql://trident@{postgres_server.address}/postgres", autocommit=True) as beside:
        name = tmp_path.name[-30:].replace("-", "_")
        if beside.execute("SELECT to_regclass(%s)", (f"{name}_changes",)).fetchone() != (None,):
            older = f"UPDATE {name}_changes SET trident_at = now() - interval '3 hours' WHERE trident_txid < 40"
            beside.execute(older.encode())
            first = 39
        else:
            # The clock of this process is three hours ahead for the batches from now on.
            now = time.time()
            monkeypatch.setattr(time, "time", lambda: now + 3 * 3600)
            first = 50
    words.run(*[[("the", 1)] for _ in range(16)])
    words.has_lost(first - 1, f"up to batch {first} are not kept")
    assert words.txids(first) == list(range(first + 1, 67))


@pytest.mark.server
def test_a_feed_that_was_off_for_a_while_begins_anew(made: Made, tmp_path: Path) -> None:
    words, off = Words(tmp_path, made()), Words(tmp_path, made(changes=0))
    off.run(FIRST)
    with words.changes() as feed:
        with pytest.raises(ChangesGoneError, match="those up to batch 1 are not kept"):
            feed.read()
        words.run(SECOND)
    assert words.txids(1) == [2]
    off.run(FIRST)
    words.run(SECOND)
    words.has_lost(2, "those up to batch 3 are not kept")
    assert words.txids(3) == [4]


@pytest.mark.server
def test_a_start_that_is_silent_keeps_the_changes(made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trident.run.recovery")
    words, silent = Words(tmp_path, made()), Words(tmp_path, made(changes=None))
    words.run(FIRST)
    silent.run(SECOND)
    assert silent.txids(0) == [1, 2]
    assert [message.count("keeps changes='7d', which its log has") for message in caplog.messages] == [1]
    silent.run(SECOND)
    assert words.txids(2) == [3]


@pytest.mark.server
def test_a_state_that_was_emptied_or_adopted_begins_a_new_feed(made: Made, tmp_path: Path) -> None:
    Words(tmp_path, made()).run(FIRST)
    again = Words(tmp_path, made(), log_dir=str(tmp_path / "new"))
    again.run(SECOND, state_recovery="keep_totals_even_if_wrong")
    again.has_lost(0, "those up to batch 1 are not kept")
    with again.changes(since=1) as feed:
        assert [len(batch.changes) for batch in feed.read()] == [2]
    last = Words(tmp_path, made())
    last.run(SECOND, state_recovery="discard_totals")
    with last.changes(since=1) as feed:
        ((txid, changes),) = feed.read()
    assert (txid, {change.key: change[1:] for change in changes}) == (2, {("the",): (None, 3), ("",): (None, 0)})


@pytest.mark.server
@pytest.mark.sample(2)
def test_a_feed_begins_again_where_a_state_was_moved_to(made: Made, tmp_path: Path, postgres_server: Server) -> None:
    words = Words(tmp_path, made())
    words.run(FIRST)
    name = f"{tmp_path.name[-28:].replace('-', '_')}_2"
    url = f"postgresql://trident@{postgres_server.address}/postgres"
    moved = Words(tmp_path, PostgresState.opaque(url, table=name, changes="7d"), log_dir=words.log_dir)
    trident.move_state(words.topology, "totals", moved.topology, called="its new place", log_dir=words.log_dir)
    moved.run(SECOND)
    moved.has_lost(0, "those up to batch 1 are not kept")
    with moved.changes(since=1) as feed:
        assert [len(batch.changes) for batch in feed.read()] == [2]


@pytest.mark.server
def test_batches_that_wrote_nothing_are_not_read_beyond_the_last_asked_for(made: Made, tmp_path: Path) -> None:
    words = Words(tmp_path, made())
    words.run(FIRST, [], [], [], SECOND, FIRST)
    with words.changes() as feed:
        assert [batch.txid for batch in feed.between(1, 4)] == []
        assert [batch.txid for batch in feed.between(1, 5)] == [5]
        assert [batch.txid for batch in feed.read(1)] == [6]
    with words.changes(since=1) as feed:
        assert ([batch.txid for batch in feed.read(2)], feed.txid) == ([5], 5)


@pytest.mark.server
def test_a_store_that_was_set_back_gives_no_silence_for_what_it_lost(
    made: Made, tmp_path: Path, postgres_server: Server, redis_server: Server
) -> None:
    words, name = Words(tmp_path, made()), tmp_path.name[-30:].replace("-", "_")
    words.run(FIRST)
    url = f"postgresql://trident@{postgres_server.address}/postgres"
    with (
        psycopg.connect(url, autocommit=True) as beside,
        redis.Redis(host="127.0.0.1", port=redis_server.port) as server,
    ):
        tables = [name, f"{name}_changes", "trident_sentinels"]
        in_postgres = beside.execute("SELECT to_regclass(%s)", (name,)).fetchone() != (None,)
        for table in tables if in_postgres else ():
            beside.execute(f"CREATE TABLE {table}_of_{name[-20:]} AS TABLE {table}".encode())
        keys = [] if in_postgres else list(server.scan_iter(match=f"{name}*"))
        kept = {key: server.dump(key) for key in keys}
        words.run(SECOND)
        for table in tables if in_postgres else ():
            where = f" WHERE state = '{name}'" if table == "trident_sentinels" else ""
            beside.execute(f"DELETE FROM {table}{where}".encode())
            beside.execute(f"INSERT INTO {table} SELECT * FROM {table}_of_{name[-20:]}{where}".encode())
            beside.execute(f"DROP TABLE {table}_of_{name[-20:]}".encode())
        for key in keys:
            server.restore(key, 0, kept[key], replace=True)
    with words.changes(since=1) as feed, pytest.raises(StateReadError, match="the log expects|rolled back|set back"):
        feed.read()


@pytest.mark.server
def test_a_log_that_began_again_is_told_from_one_where_nothing_has_come(made: Made, tmp_path: Path) -> None:
    Words(tmp_path, made()).run(FIRST, SECOND, FIRST)
    again = Words(tmp_path, made(), log_dir=str(tmp_path / "again"))
    again.run(FIRST, state_recovery="discard_totals")
    again.has_lost(3, "the log ends with batch 1; it was lost")


@pytest.mark.server
def test_a_reading_that_has_many_rows_ends_and_the_next_goes_on_there(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_feed, "_ROWS", 1)
    words = Words(tmp_path, made())
    words.run(FIRST, SECOND, FIRST)
    with words.changes() as feed:
        assert [[batch.txid for batch in feed.read()] for _ in range(4)] == [[1], [2], [3], []]


@pytest.mark.server
def test_changes_that_another_program_dropped_are_missed(tmp_path: Path, postgres_server: Server) -> None:
    url, name = f"postgresql://trident@{postgres_server.address}/postgres", tmp_path.name[-30:].replace("-", "_")
    words = Words(tmp_path, PostgresState.opaque(url, table=name, changes="7d"))
    words.run([], FIRST)
    with psycopg.connect(url, autocommit=True) as beside:
        beside.execute(f"DROP TABLE {name}_changes".encode())
    with (
        words.changes() as feed,
        pytest.raises(BackendError, match=f'there is no table "{name}_changes"; another program dropped it'),
    ):
        feed.read()
    words.run(SECOND)
    words.has_lost(0, "those up to batch 2 are not kept")
    assert words.txids(2) == [3]


@pytest.mark.server
def test_a_state_that_no_batch_has_written_to_has_no_changes(made: Made, tmp_path: Path) -> None:
    words = Words(tmp_path, made())
    words.run([], [])
    with words.changes() as feed:
        assert (feed.read(), feed.txid) == ([], 2)
        assert feed.snapshot() == (2, [])


@pytest.mark.server
def test_what_keeps_no_changes_is_refused_by_name(made: Made, tmp_path: Path, postgres_server: Server) -> None:
    words = Words(tmp_path, made(changes=None))
    words.run(FIRST)
    said = "'totals' of .* keeps no changes: .* Redis does .* declared with changes="
    with pytest.raises(UnsupportedOperation, match=said):
        words.changes()
    with pytest.raises(ConfigError, match="changes='soon': must be a time with its unit"):
        made(changes="soon")
    url = f"postgresql://trident@{postgres_server.address}/postgres"
    with pytest.raises(ConfigError, match=r"changes='7d' of a PostgreSQL state: a transactional state does not hold"):
        PostgresState.transactional(url, changes="7d")
    with pytest.raises(ConfigError, match="no option 'changes'"):
        CassandraState.opaque(["127.0.0.1"], changes="7d")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"changes= of .* needs columns, and there are none: layout='binary'"):
        Words(tmp_path, PostgresState.opaque(url, changes="7d", layout="binary"), log_dir=str(tmp_path / "binary"))
    for odd in (date(2024, 1, 1), 1.5, True, -1):  # a day is not batch 2024
        with pytest.raises(ConfigError, match="since=.*: give a whole number of at least 0"):
            words.changes(odd)


@pytest.mark.server
def test_a_table_of_other_columns_is_refused_by_name(tmp_path: Path, postgres_server: Server) -> None:
    url, name = f"postgresql://trident@{postgres_server.address}/postgres", tmp_path.name[-30:].replace("-", "_")
    with psycopg.connect(url, autocommit=True) as beside:
        beside.execute(f"CREATE TABLE {name}_changes (word text, total text)".encode())
    words = Words(tmp_path, PostgresState.opaque(url, table=name, changes="7d"))
    with pytest.raises(Exception, match="its column total is text, not bigint; drop the table"):
        words.run(FIRST)


def kept_of(folder: Path, spec: Any) -> Any:
    """Run a batch, and return the options of the state that is opened, and what the log says of it."""
    spout, topology = FeederBatchSpout("word: string"), TridentTopology("words")
    words = topology.new_stream("words", spout).group_by("word")
    words.persistent_aggregate(spec, Count(), "count", state_name="count")
    with topology.start(engine="in_process", log_dir=folder / "log", state_recovery="discard_totals") as running:
        spout.feed([["the"]])
        running.process_all_available()
        facts = running.opened.plan.states["count"].spec.facts
        return dict(facts.kept), running.log_state.declared["states"]["count"].get("kept")


def test_a_silent_start_keeps_the_files_of_a_delta_state(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trident.run.recovery")
    path = tmp_path / "table"
    week: dict[str, Any] = {"vacuum_after_hours": 168, "retained_versions": None}
    assert kept_of(tmp_path, DeltaState.opaque(path, **week)) == (week, week)
    assert not caplog.messages
    assert kept_of(tmp_path, DeltaState.opaque(path)) == (week, week)
    assert caplog.messages == [
        "topology words: state count keeps vacuum_after_hours=168, which its log has and its declaration does not set",
        "topology words: state count keeps retained_versions=None, which its log has and its declaration does not set",
    ]
    day = {**week, "vacuum_after_hours": 24}
    assert kept_of(tmp_path, DeltaState.opaque(path, vacuum_after_hours=24)) == (day, day)


def test_a_store_that_cannot_keep_what_the_log_has_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept_of(tmp_path, DeltaState.opaque(tmp_path / "table", vacuum_after_hours=168))
    assert kept_of(tmp_path, MemoryMapState()) == ({}, None)
    assert "the store of state count cannot keep what the log has: vacuum_after_hours=168" in caplog.text


def test_a_replica_that_lags_and_catches_up_loses_no_changes(
    redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_redis(tmp_path) as server, redis.Redis(port=server.port) as replica:
        primary, copy = (
            Words(tmp_path, RedisState.opaque(f"redis://{each.address}/0", prefix=tmp_path.name, changes="7d"))
            for each in (redis_server, server)
        )
        read = RedisFence.read

        def catch_up(fence: RedisFence) -> Any:
            replica.replicaof("127.0.0.1", str(redis_server.port))
            until(lambda: replica.info("replication").get("master_link_status") == "up", "the replica has all")
            return read(fence)

        primary.run([("a", 1)])
        replica.replicaof("127.0.0.1", str(redis_server.port))
        until(lambda: replica.exists(f"{tmp_path.name}:changes"), "the replica has the first batch")
        with trident.open_state(copy.topology, "totals", log_dir=copy.log_dir) as state, copy.changes(0) as feed:
            reads: list[Callable[[], Any]] = [
                lambda: state.multi_get(["a"]),
                lambda: [feed.read()[-1].changes[0].after],
            ]
            for txid, read_now in enumerate(reads, start=2):
                replica.replicaof("NO", "ONE")
                primary.run([("a", 1)])
                with monkeypatch.context() as patched:
                    patched.setattr(RedisFence, "read", catch_up)
                    assert read_now() == [txid]
