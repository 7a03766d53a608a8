"""`trident state forget`: no byte of a key is left in the store, its changes or dead letters; the rest is as it was."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

import trident
from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memcached import MemcachedState
from tests.harness.commands import trident as command
from tests.harness.commands import write_module
from tests.harness.server_states import postgres_url, state_on
from tests.harness.servers import Server
from tests.harness.topology_runs import run_all, start
from trident import Config, TridentTopology
from trident.errors import BatchFailedError, FencedError, LogHeldError, UnsupportedOperation, WrongKeyError
from trident.log.log_reader import LogReader
from trident.operations import BaseFunction, Count, Sum
from trident.read.open_partitions import open_state
from trident.run.dead_letters import DeadLetters, waiting
from trident.state import StateSpec, Txid
from trident.state.txid import RETRY_BITS
from trident.testing import TopologyTestDriver
from trident.testing.backend.schedules import Add

pytestmark = [pytest.mark.slow, pytest.mark.server]

ANN, BOB = "ann@example.com", "bob@example.com"
ROWS = [(ANN, 1), (BOB, 2), (ANN, 3), (BOB, -1), (ANN, -1), ("x", 5)]


class RefusesNegative(BaseFunction):
    def execute(self, tuple: Any, collector: Any) -> None:
        if tuple["n"] < 0:
            raise ValueError(f"negative visits of {tuple['user']}")
        collector.emit([])


class Visits:
    """A topology that sums visits by user, and the places where a byte of it may be."""

    def __init__(self, folder: Path, spec: StateSpec, servers: dict[str, Server]) -> None:
        self.folder, self.spec, self.servers, self.name = folder, spec, servers, folder.name[-30:].replace("-", "_")

    def topology(self, *rows: tuple[Any, ...]) -> TridentTopology:
        topology = TridentTopology(self.name)
        visits = topology.new_stream("visits", FixedBatchSpout("user: string, n: bigint", 2, *rows))
        counted = visits.each(("user", "n"), RefusesNegative(), "")
        counted.group_by("user").persistent_aggregate(self.spec, "n", Sum(), "visits", state_name="visits")
        return topology

    def run(self, *rows: tuple[Any, ...], on_poison: str = "dead_letter") -> None:
        config: dict[str, Any] = {"log_dir": str(self.folder / "log"), "on_poison": on_poison, "max_batch_attempts": 1}
        run_all(self.topology(*rows), "in_process", **config)

    def forget(self, *keys: Any) -> Any:
        return trident.forget_keys(self.topology(*ROWS), "visits", keys, log_dir=str(self.folder / "log"))

    def rows(self) -> dict[str, int]:
        with trident.open_state(self.topology(*ROWS), "visits", log_dir=str(self.folder / "log")) as state:
            return dict(state.get_tuples())

    def bytes_of(self) -> bytes:
        """Return all that is anywhere: of the server, and of the folder with the log and the dead letters."""
        found = [path.read_bytes() for path in self.folder.rglob("*") if path.is_file()]
        return b"\n".join([*found, *self._on_servers()])

    def _on_servers(self) -> Iterator[bytes]:
        if "postgres" in self.servers:
            with psycopg.connect(postgres_url(self.servers["postgres"]), autocommit=True) as beside:
                tables = beside.execute(
                    "SELECT tablename FROM pg_tables WHERE tablename LIKE %s", (f"{self.name}%",)
                ).fetchall()
                for (table,) in tables:
                    beside.execute(f'VACUUM FULL "{table}"'.encode())
                beside.execute("VACUUM FULL trident_sentinels")
                beside.execute("CHECKPOINT")
                (folder,) = beside.execute("SHOW data_directory").fetchone() or ("",)
                names = [*(table for (table,) in tables), "trident_sentinels"]
                for name in names:
                    row = beside.execute("SELECT pg_relation_filepath(%s::regclass)", (f'"{name}"',)).fetchone()
                    yield Path(folder, row[0] if row else "").read_bytes()
        if "redis" in self.servers:
            client = redis.Redis(host="127.0.0.1", port=self.servers["redis"].port)
            for key in client.scan_iter(match=f"*{self.name}*"):
                yield key
                kind = client.type(key)
                if kind == b"stream":
                    yield repr(client.xrange(key)).encode()
                elif kind == b"hash":
                    yield repr(client.hgetall(key)).encode()
                else:
                    yield repr(client.get(key)).encode()
            client.close()


@pytest.fixture(params=["postgres", "postgres bytes", "redis", "redis fields"])
def visits(request: pytest.FixtureRequest, tmp_path: Path) -> Visits:
    layouts: dict[str, dict[str, Any]] = {
        "postgres": {"changes": "7d"},
        "postgres bytes": {"layout": "binary"},
        "redis": {"changes": "7d", "cache": 100},
        "redis fields": {"changes": "7d", "layout": "fields"},
    }
    store = request.param.split()[0]
    server = request.getfixturevalue(f"{store}_server")
    spec = state_on(store, server, tmp_path.name[-30:].replace("-", "_"), **layouts[request.param])
    return Visits(tmp_path, spec, {store: server})


def test_no_byte_of_a_key_is_left_and_all_else_is_as_it_was(visits: Visits) -> None:
    visits.run(*ROWS)
    assert visits.rows() == {ANN: 4, BOB: 2, "x": 5}
    assert ANN.encode() in visits.bytes_of()
    done = visits.forget(ANN, "nobody@example.com")
    assert (done.keys, done.letters) == (1, 1)
    assert ANN.encode() not in visits.bytes_of()
    assert BOB.encode() in visits.bytes_of()
    assert visits.rows() == {BOB: 2, "x": 5}
    assert visits.forget(ANN).keys == 0
    visits.run(*ROWS, (ANN, 10), (BOB, 20))
    assert visits.rows() == {ANN: 10, BOB: 22, "x": 5}


def test_a_key_takes_no_letters_along_that_do_not_name_it(visits: Visits) -> None:
    visits.run(*ROWS)
    found = [visits.forget(key).letters for key in ("", None, "exampl", "nn@example.com", BOB, ANN)]
    assert found == [0, 0, 0, 0, 1, 1]


def test_letters_that_were_forgotten_wait_no_more(visits: Visits) -> None:
    visits.run(*ROWS)
    visits.forget(ANN)
    done = command("dead-letters", "list", "log", cwd=visits.folder)
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["2-0"]
    assert (done.stderr, waiting(LogReader(visits.folder / "log").refresh())) == ("", 1)


def test_a_batch_in_flight_goes_on_without_the_letter_that_was_forgotten(visits: Visits) -> None:
    visits.run(*ROWS)
    log = visits.folder / "log"
    folder = DeadLetters(log / "dead_letters")
    with TopologyTestDriver(visits.topology(*ROWS), log_dir=str(log)) as driver:
        folder.request(driver.log_state, {3: [[0, 1]]})
        with pytest.raises(BatchFailedError, match="negative visits of ann"):
            driver.step()
    visits.forget(ANN)
    visits.run(*ROWS, (BOB, 20), on_poison="stop")
    assert visits.rows() == {BOB: 22, "x": 5}
    topology = visits.topology(*ROWS, (BOB, 20))
    (verified,) = trident.verify_state(topology, "visits", conf={"log_dir": str(log), "on_poison": "dead_letter"})
    assert [row.key for row in verified.wrong] == [(ANN,)]


def test_a_driver_that_runs_is_not_disturbed(visits: Visits) -> None:
    visits.run(*ROWS)
    with start(visits.topology(*ROWS), "in_process", log_dir=str(visits.folder / "log")) as running:
        with pytest.raises(LogHeldError):
            visits.forget(ANN)
        running.process_all_available()
    assert visits.rows()[ANN] == 4


def test_a_driver_of_before_that_wakes_up_brings_no_key_back(visits: Visits) -> None:
    visits.run(*ROWS)
    graph, log = visits.topology(*ROWS).graph(), LogReader(visits.folder / "log").refresh()
    writer = open_state(visits.name, graph.state("visits"), Config().as_mapping(), 0, 1, read_only=False)
    attempt = log.epoch << RETRY_BITS | 1
    winners, expected = log.winners_of("visits"), log.expected_sentinel("visits", 0)
    commit = Txid(log.txid + 1, attempt, winners, log.incarnation, expected, log.epochs)
    writer.begin_commit(commit)
    writer.multi_update([(ANN,)], [Add(1)])
    visits.forget(ANN)
    with pytest.raises(FencedError):
        writer.commit(commit)
    writer.close()
    assert ANN not in visits.rows()


def test_what_cannot_be_forgotten_is_said(tmp_path: Path, memcached_server: Server) -> None:
    visits = Visits(tmp_path, DeltaState.opaque(str(tmp_path / "table")), {})
    visits.run(*ROWS)
    with pytest.raises(WrongKeyError, match="key"):
        visits.forget((ANN, 1))
    done = visits.forget(ANN)
    assert (done.keys, visits.rows()) == (1, {BOB: 2, "x": 5})
    assert "earlier versions until they are deleted, 24 hours after" in done.remains
    total = TridentTopology("total")
    stream = total.new_stream("visits", FixedBatchSpout("user: string", 2, ("ann",)))
    stream.persistent_aggregate(DeltaState.opaque(str(tmp_path / "total")), Count(), "count", state_name="count")
    with pytest.raises(UnsupportedOperation, match="it holds a single value, and no keys"):
        trident.forget_keys(total, "count", ["ann"])
    kept = Visits(tmp_path / "kept", MemcachedState.opaque([memcached_server.address], prefix="kept"), {})
    kept.run(*ROWS)
    with pytest.raises(UnsupportedOperation):
        kept.forget(ANN)


@pytest.mark.long
def test_the_command_says_what_is_gone_and_where_bytes_remain(tmp_path: Path, redis_server: Server) -> None:
    write_module(
        tmp_path,
        "users",
        f"""
        from spouts import FixedBatchSpout
        from states.redis import RedisState
        from trident import TridentTopology
        from trident.operations import Count

        topology = TridentTopology("users")
        visits = topology.new_stream("visits", FixedBatchSpout("user: string", 2, ("ann",), ("bob",), ("ann",)))
        state = RedisState.opaque("redis://{redis_server.address}/0", prefix="{tmp_path.name}")
        visits.group_by("user").persistent_aggregate(state, Count(), "visits", state_name="visits")
        """,
    )
    assert command("run", "users:topology", "--once", "--conf", "engine=in_process", cwd=tmp_path).returncode == 0
    done = command("state", "forget", "users:topology", "visits", "ann", "eve", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "visits: 1 of 2 keys forgotten, and 0 dead letters" in said
    assert "their bytes are in the append-only file until it is rewritten (BGREWRITEAOF)" in said
    assert '"value": null' in command("get", "users:topology", "visits", "ann", "--json", cwd=tmp_path).stdout
