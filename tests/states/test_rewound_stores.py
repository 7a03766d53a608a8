"""Real stores that were set back are brought forward again (`state_recovery="rewind"`), also from the middle of a commit."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest
import redis
from deltalake import DeltaTable

import trident
from spouts import FixedBatchSpout, TextFileSpout
from states.cassandra import CassandraState
from states.delta import DeltaState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness import topology_runs
from tests.harness.servers import Server
from tests.replay.set_back import Killed
from tests.states.redis.redis_cluster import Cluster
from trident import TridentTopology
from trident.errors import StateMismatchError
from trident.operations import BaseFilter, CombinerAggregator, Count
from trident.run.running import RunningTopology
from trident.state import StateSpec

pytestmark = [pytest.mark.slow, pytest.mark.server]

WORDS = [f"word {number * number % 13}" for number in range(27)]
HOOKS: dict[str, Callable[[], object]] = {}


def pass_by(place: str) -> None:
    HOOKS.pop(place, lambda: None)()


class NoticedCount(CombinerAggregator[int]):
    """Counts, and tells when a commit combines."""

    def init(self, tuple: Any) -> int:
        return 1

    def combine(self, one: int, other: int) -> int:
        if one > 2:
            pass_by("commit")
        return one + other

    def zero(self) -> int:
        return 0


class Noticed(BaseFilter):
    """Keeps all, and tells when a certain word comes by."""

    def is_keep(self, tuple: Any) -> bool:
        if tuple["word"] == WORDS[16]:
            pass_by("row")
        return True


class Home(Protocol):
    """A store."""

    def spec(self, name: str) -> StateSpec: ...

    def copy(self) -> Callable[[], object]:
        """Copy all that is there; return what brings it back."""


class RedisHome:
    def __init__(self, start: Callable[..., Server]) -> None:
        self.server = start("--save", "3600 1")

    def spec(self, name: str) -> StateSpec:
        return RedisState.opaque(f"redis://{self.server.address}", prefix=name, backoff_s=0.01)

    def copy(self) -> Callable[[], object]:
        with redis.Redis(port=self.server.port) as raw:
            raw.save()
        data = (self.server.work / "dump.rdb").read_bytes()

        def bring_back() -> None:
            self.server.kill()
            (self.server.work / "dump.rdb").write_bytes(data)
            self.server.start()

        return bring_back


class PostgresHome:
    def __init__(self, server: Server, schema: str) -> None:
        self.url, self.schema = f"postgresql://trident@{server.address}/postgres", schema
        self._execute(f"CREATE SCHEMA {schema}", f"CREATE SCHEMA {schema}_copy")

    def spec(self, name: str) -> StateSpec:
        return PostgresState.opaque(self.url, schema=self.schema, table=name)

    def copy(self) -> Callable[[], object]:
        with psycopg.connect(self.url) as session:
            session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            query = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s"
            tables = [f"{self.schema}.{name}" for (name,) in session.execute(query, [self.schema])]
            copies = {table: f"{self.schema}_copy.{table.partition('.')[2]}" for table in tables}
            for table, copied in copies.items():
                session.execute(f"CREATE TABLE {copied} AS TABLE {table}")
        return lambda: self._execute(
            *(f"TRUNCATE {table}" for table in copies),
            *(f"INSERT INTO {table} SELECT * FROM {copied}" for table, copied in copies.items()),
        )

    def _execute(self, *statements: str) -> None:
        with psycopg.connect(self.url) as session:
            for statement in statements:
                session.execute(statement)


class DeltaHome:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def spec(self, name: str) -> StateSpec:
        return DeltaState.opaque(str(self.folder / name))

    def copy(self) -> Callable[[], object]:
        paths = [str(path / "_trident" / "changes") for path in self.folder.iterdir()]  # where the state itself is
        versions = {path: DeltaTable(path).version() for path in paths}
        return lambda: [DeltaTable(path).restore(version) for path, version in versions.items()]


@pytest.fixture(params=["redis", "postgres", "delta"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    if request.param == "redis":
        return RedisHome(request.getfixturevalue("start"))
    if request.param == "postgres":
        return PostgresHome(
            request.getfixturevalue("postgres_server"), f"rewound_{tmp_path.name[-20:].replace('-', '_')}"
        )
    (tmp_path / "tables").mkdir()
    return DeltaHome(tmp_path / "tables")


@pytest.fixture(autouse=True)
def no_hooks() -> Iterator[None]:
    yield
    HOOKS.clear()


class Words:
    """Counts words in up to three states, the last of them behind a query of the first."""

    def __init__(self, home: Home, folder: Path, states: int = 3) -> None:
        self._home, self._log, self._states = home, str(folder / "log"), states

    def topology(self, rows: int) -> TridentTopology:
        topology = TridentTopology("words")
        spout = FixedBatchSpout("word: string", 3, *[[word] for word in WORDS[:rows]])
        words = topology.new_stream("words", spout).filter(Noticed())
        count = words.group_by("word").persistent_aggregate(self._home.spec("a"), Count(), "count")
        count.parallelism_hint(2)
        if self._states > 1:
            words.persistent_aggregate(self._home.spec("b"), NoticedCount(), "total")
        if self._states > 2:
            reached = count.new_values_stream().group_by("count")
            reached.persistent_aggregate(self._home.spec("c"), Count(), "reached").parallelism_hint(3)
        return topology

    def start(self, rows: int, **conf: Any) -> RunningTopology:
        return topology_runs.start(self.topology(rows), "in_process", log_dir=self._log, history="7d", **conf)

    def run(self, rows: int, **conf: Any) -> None:
        with self.start(rows, **conf) as running:
            running.process_all_available()

    def judge(self, rows: int) -> None:
        done = trident.verify_state(self.topology(rows), log_dir=self._log)
        states = ("count", "total", "reached")[: self._states]
        assert [(one.state, list(one.wrong)) for one in done] == [(state, []) for state in states]
        with trident.open_state(self.topology(rows), "count", log_dir=self._log) as state:
            assert dict(state.get_tuples()) == Counter(WORDS[:rows])


@pytest.mark.sample(1)
@pytest.mark.parametrize("moment", ["commit", pytest.param("between", marks=pytest.mark.long)])
def test_a_store_that_came_back_from_a_copy_is_exact_again(home: Home, moment: str, tmp_path: Path) -> None:
    words, copied = Words(home, tmp_path), []
    words.run(6)
    if moment == "commit":
        HOOKS["commit"] = lambda: copied.append(home.copy())
        words.run(12)
    else:
        copied.append(home.copy())
    words.run(21)
    copied[0]()
    with pytest.raises(StateMismatchError, match=r"log expects batch \d"):
        words.start(21)
    HOOKS["row"] = lambda: (_ for _ in ()).throw(Killed)
    with suppress(Killed):
        words.start(21, state_recovery="rewind").stop()
    assert not HOOKS  # it was killed on the way
    words.run(21, state_recovery="rewind")
    words.judge(21)
    words.run(27)  # they belong together again
    words.judge(27)


@pytest.mark.parametrize("store", [pytest.param("redis", marks=pytest.mark.long), "postgres"])
def test_the_feed_of_changes_is_as_if_the_store_had_not_been_set_back(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    home: RedisHome | PostgresHome
    if store == "redis":
        home = RedisHome(request.getfixturevalue("start"))
        spec = RedisState.opaque(f"redis://{home.server.address}", prefix="fed", backoff_s=0.01, changes="7d")
    else:
        home = PostgresHome(request.getfixturevalue("postgres_server"), f"fed_{tmp_path.name[-20:].replace('-', '_')}")
        spec = PostgresState.opaque(home.url, schema=home.schema, table="fed", changes="7d")

    def run(rows: int, since: int | None, **conf: Any) -> list[Any]:
        topology = TridentTopology("fed")
        words = topology.new_stream("words", FixedBatchSpout("word: string", 3, *[[word] for word in WORDS[:rows]]))
        words.group_by("word").persistent_aggregate(spec, Count(), "count").parallelism_hint(2)
        topology_runs.run_all(topology, "in_process", log_dir=str(tmp_path / "log"), history="7d", **conf)
        with trident.changes(topology, "count", since=since, log_dir=str(tmp_path / "log")) as feed:
            return [(batch.txid, sorted(batch.changes)) for batch in feed.read()]

    run(6, None)
    bring_back = home.copy()
    before = run(21, 2)
    assert len(before) == 5  # of batches 3 to 7
    bring_back()
    assert run(21, 2, state_recovery="rewind") == before


class NodeHome:
    """A Redis Cluster, of which one node is set back."""

    def __init__(self, cluster: Cluster) -> None:
        self._node, self._url = cluster.clients[0], f"redis://{cluster.nodes[0].address}"

    def spec(self, name: str) -> StateSpec:
        return RedisState.opaque(self._url, prefix=name, cluster=True, backoff_s=0.01)

    def copy(self) -> Callable[[], object]:
        there = {key: self._node.dump(key) for key in self._node.scan_iter()}

        def bring_back() -> None:
            self._node.flushall()
            for key, data in there.items():
                self._node.restore(key, 0, data)

        return bring_back

    def close(self) -> None:
        """The cluster is of all tests."""


@pytest.mark.long
def test_a_state_that_tasks_of_spark_commit_is_exact_again(
    start: Callable[..., Server], spark: Any, tmp_path: Path
) -> None:
    home, books = RedisHome(start), tmp_path / "books"
    books.mkdir()

    def run(name: str, text: str, **conf: Any) -> TridentTopology:
        topology = TridentTopology("books")
        words = topology.new_stream("lines", TextFileSpout(str(books)))
        words.group_by("line").persistent_aggregate(home.spec("a"), Count(), "count").parallelism_hint(3)
        (books / name).write_text(text)
        placed = {"state_placement": "executors", "log_dir": str(tmp_path / "log"), "history": "7d"}
        topology_runs.run_all(topology, "spark", **placed, **conf)
        return topology

    run("a", "the\ncow\nthe\n")
    bring_back = home.copy()
    run("b", "moon\nthe\n")
    run("c", "sun\ncow\n")
    bring_back()
    topology = run("d", "the\n", state_recovery="rewind")
    (done,) = trident.verify_state(topology, log_dir=str(tmp_path / "log"))
    assert (done.equal, list(done.wrong)) == (4, [])


class CassandraHome:
    """A table whose rows are copied with their times, as files of Cassandra are."""

    def __init__(self, server: Server, table: str, layout: str) -> None:
        from cassandra.cluster import Cluster as Driver

        self._driver, self.table = Driver(["127.0.0.1"], port=server.port), table
        self._session = self._driver.connect()
        self._options: dict[str, Any] = {"port": server.port, "keyspace": "tests", "replication": 1, "layout": layout}

    def spec(self, name: str) -> StateSpec:
        return CassandraState.opaque(table=self.table, **self._options)

    def copy(self) -> Callable[[], object]:
        query = "SELECT column_name, kind FROM system_schema.columns WHERE keyspace_name = 'tests' AND table_name = %s"
        columns = {row.column_name: row.kind for row in self._session.execute(query, [self.table])}
        rows = []
        for name in (name for name, kind in columns.items() if kind == "regular"):
            keys = [key for key, kind in columns.items() if kind not in ("regular", "static")]
            found = self._session.execute(
                f"SELECT {', '.join(keys)}, {name}, WRITETIME({name}) FROM tests.{self.table}"
            )
            rows += [([*keys, name], row[:-1], row[-1]) for row in map(tuple, found) if row[-1] is not None]

        def bring_back() -> None:
            self._session.execute(f"TRUNCATE tests.{self.table}")
            for names, values, time in rows:
                marks = ", ".join(["%s"] * len(names))
                insert = f"INSERT INTO tests.{self.table} ({', '.join(names)}) VALUES ({marks}) USING TIMESTAMP {time}"
                self._session.execute(insert, values)

        return bring_back

    def close(self) -> None:
        self._driver.shutdown()


@pytest.mark.long
@pytest.mark.parametrize("rows", [0, 6])
@pytest.mark.parametrize("store", ["binary", "columns", "one node"])
def test_a_table_of_cassandra_or_one_node_of_a_cluster_that_was_set_back_is_exact_again(
    store: str, rows: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    home: NodeHome | CassandraHome
    if store == "one node":
        home = NodeHome(request.getfixturevalue("cluster"))
    else:
        home = CassandraHome(request.getfixturevalue("cassandra_server"), f"back_{store}_{rows}", store)
    with closing(home):
        words = Words(home, tmp_path, 2 if store == "one node" else 1)
        if rows:
            words.run(rows)
        bring_back = home.copy()
        words.run(21)
        bring_back()
        with pytest.raises(StateMismatchError):
            words.start(21)
        words.run(27, state_recovery="rewind")
        words.judge(27)
