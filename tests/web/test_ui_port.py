"""`ui_port`: a topology serves its own page while it runs, and a port that is taken is known before anything is opened."""

import socket
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from states.memory import MemoryMapState
from tests.harness.servers import free_ports
from tests.harness.topology_runs import WAIT_S
from tests.observe.watching import failing, listens, started, threads_of, word_topology
from trident import BatchFailedError, Config, QueryBatches, TridentTopology
from trident.errors import ConfigError, EnvironmentProblem
from trident.operations import Count
from trident.run.running import RunningTopology
from trident.servers import server_thread
from trident.state import StateConf
from trident.web import running_pages

pytestmark = pytest.mark.slow  # each test starts an HTTP server


def port_of(running: RunningTopology) -> int:
    return urlsplit(running.ui_url or "").port or 0


@pytest.fixture
def taken() -> Any:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.fixture
def free() -> int:
    return free_ports(1)[0]


class Asked:
    """A factory that looks at the page while the topology is being opened, and may fail then."""

    def __init__(self, port: int, fails: bool = False) -> None:
        self.port, self.fails, self.memory = port, fails, MemoryMapState()
        self.facts, self.kind = self.memory.facts, self.memory.kind
        self.requests: list[socket.socket] = []

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> Any:
        request = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        request.sendall(b"GET /api/v1/topology/early HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        self.requests.append(request)
        if self.fails:
            raise ConfigError("no such table")
        return self.memory.make_state(conf, partition_index, num_partitions)


def test_a_topology_serves_its_page_while_it_runs() -> None:
    with started(word_topology("words", 1, "the cow the"), ui_port=0) as running:
        running.process_all_available()
        assert running.ui_url == f"http://127.0.0.1:{port_of(running)}"
        with httpx.Client(base_url=running.ui_url) as client:
            assert client.get("/api/v1/topology/words").json()["txid"] == 3
            found = client.get("/api/v1/topology/words/lookup", params={"state": "count", "key": "the"})
            assert found.json()["value"] == 2
            assert "<title>" in client.get("/").text
            assert client.post("/api/v1/topology/words/kill/0").status_code == 403
            running.stop()  # with a connection that is kept open
        assert not listens(port_of(running))
    assert f"trident-ui-{port_of(running)}" not in [each.name for each in threading.enumerate()]


@pytest.mark.parametrize(("what", "said"), [("ui", "the page cannot"), ("metrics", "metrics cannot")])
def test_a_port_that_is_taken_is_refused_before_all_else(taken: int, tmp_path: Path, what: str, said: str) -> None:
    factory = Asked(taken)
    ports: dict[str, Any] = {"ui_port": 0, "metrics_port": 0, f"{what}_port": taken}
    text = (
        f"^{said} be served at 127.0.0.1:{taken}: Address already in use; another program or topology has the port, "
        "choose another one, or 0 for a free one$"
    )
    with pytest.raises(ConfigError, match=text):
        started(word_topology("late", 1, "a", factory), log_dir=tmp_path / "log", **ports)
    assert (factory.requests, list(tmp_path.iterdir()), threads_of("late")) == ([], [], [])


def test_who_asks_before_the_topology_runs_gets_the_answer_when_it_does(free: int) -> None:
    factory = Asked(free)
    with started(word_topology("early", 1, "a", factory), ui_port=free):
        answer = b"".join(iter(lambda: factory.requests[0].recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'"name":"early"' in answer.replace(b'": "', b'":"')
    factory.requests[0].close()


def test_a_start_that_fails_frees_the_port(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[socket.socket] = []  # or the garbage collector would close it

    def listening(cannot: str, host: str, port: int) -> socket.socket:
        held.append(server_thread.listening(cannot, host, port))
        return held[-1]

    monkeypatch.setattr(running_pages, "listening", listening)
    factory = Asked(free, fails=True)
    with pytest.raises(ConfigError, match="no such table"):
        started(word_topology("early", 1, "a", factory), ui_port=free)
    factory.requests[0].close()
    assert (len(held), listens(free)) == (1, False)


def test_the_page_ends_with_a_topology_that_fails(tmp_path: Path) -> None:
    topology = failing("broken", tmp_path)
    with pytest.raises(BatchFailedError), started(topology, ui_port=0, max_batch_attempts=1) as broken:
        broken.await_termination(WAIT_S)
    assert not listens(port_of(broken))


def test_without_the_packages_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    factory = Asked(free)
    with pytest.raises(EnvironmentProblem, match=r"the page needs the package uvicorn .*'trident-spark\[ui\]'"):
        started(word_topology("without", 1, "a", factory), ui_port=free)
    assert (factory.requests, listens(free)) == ([], False)


@pytest.mark.parametrize("port", [-1, 65536, "http"])
@pytest.mark.parametrize("what", ["ui", "metrics"])
def test_what_is_no_port_is_refused(what: str, port: Any) -> None:
    conf: dict[str, Any] = {f"{what}_port": port}
    with pytest.raises(ConfigError, match=f"{what}_port={port!r}: give a whole number from 0 to 65535 or None"):
        started(word_topology("port", 1, "a"), **conf)


@pytest.mark.parametrize(("what", "said"), [("ui", "the page cannot"), ("metrics", "metrics cannot")])
def test_an_address_of_another_machine_is_refused(what: str, said: str) -> None:
    conf: dict[str, Any] = {f"{what}_port": 0, f"{what}_host": "192.0.2.1"}
    with pytest.raises(ConfigError, match=f"^{said} be served at 192.0.2.1:0: Cannot assign requested address$"):
        started(word_topology("elsewhere", 1, "a"), **conf)


@pytest.mark.parametrize("conf", [{"ui_port": 0}, Config(ui_port=0)])
def test_a_function_for_foreach_batch_has_no_page(conf: Any) -> None:
    topology = TridentTopology("query")
    words = topology.new_stream("words", QueryBatches("word: string"))
    words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    with pytest.raises(ConfigError, match="ui_port=0: a function for foreachBatch has no page.*leave ui_port out"):
        topology.foreach_batch(conf)
