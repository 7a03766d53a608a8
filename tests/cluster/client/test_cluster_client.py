"""A client and a Nimbus: a submission is one topology, whatever is lost on the way, and errors say what is wrong."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import pytest

from tests.cluster.code.packed_topologies import package_of, put
from tests.harness.cluster_states import ON_SERVERS, address_on
from tests.harness.commands import started, until
from trident.cluster.client import ClusterClient, leader_url, left_of
from trident.cluster.code_store import CodeStore
from trident.cluster.nimbus import NimbusDaemon
from trident.cluster.package_archive import ComponentFacts, read_manifest
from trident.cluster.topology_package import TopologyPackage
from trident.cluster_state.cluster_address import STATE_FILE, open_cluster_state
from trident.cluster_state.cluster_records import ErrorInfo, SupervisorInfo
from trident.cluster_state.storm_cluster_state import LEADER, StormClusterState
from trident.errors import (
    BadPackage,
    ClusterError,
    ClusterUnreachable,
    ConfigError,
    NameTaken,
    NoLeader,
    NoSuchTopology,
    NotAllowed,
)
from trident.log.file_log import FileLog

TOKEN = "the-token"


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "cluster")


@pytest.fixture
def nimbus(address: str, tmp_path: Path) -> Iterator[NimbusDaemon]:
    with NimbusDaemon(address, TOKEN, tmp_path / "code") as daemon:
        daemon.wait_until_known()
        yield daemon


@pytest.fixture
def client(address: str, nimbus: NimbusDaemon) -> Iterator[ClusterClient]:
    with ClusterClient(address, TOKEN, patience_s=5.0) as made:
        yield made


def packed(text: str = "1", **manifest: Any) -> TopologyPackage:
    """Return a package without a real topology: Nimbus runs none of its code."""
    _, data = package_of({"a.py": text.encode()}, **{"name": "mine", **manifest})
    return TopologyPackage(read_manifest(io.BytesIO(data)), data)


@pytest.mark.server
def test_the_page_that_is_shown_is_read_without_a_token(client: ClusterClient, nimbus: NimbusDaemon) -> None:
    storm_id = client.submit(packed(), "words")
    shown = client.show(storm_id)
    address, _, fragment = shown.page.partition("/#/")
    assert (address, fragment, shown.as_json()["page"]) == (nimbus.url, f"topology/{storm_id}", shown.page)
    assert TOKEN not in shown.page
    assert httpx.get(shown.page).headers["content-type"].startswith("text/html")
    assert httpx.get(f"{address}/api/v1/page").json()["tokenForAll"] is False
    assert httpx.get(f"{address}/api/v1/{fragment}").json()["name"] == "words"
    nimbus.close()
    assert client.show(storm_id).page == ""


@pytest.mark.server
def test_a_topology_is_submitted_and_seen(client: ClusterClient) -> None:
    sent: list[int] = []
    package = packed("x" * 200_000)
    storm_id = client.submit(package, "words", {"max_spout_pending": "2"}, 3, progress=sent.append)
    assert (sum(sent), max(sent)) == (len(package.data), 1 << 16)
    [found] = client.topologies()
    assert found == client.show("words") == client.show(storm_id)
    assert (found.base.storm_name, found.base.num_workers, found.base.conf) == ("words", 3, {"max_spout_pending": "2"})
    assert (found.driver, found.why_waiting) == ("waiting", "no supervisor is there")
    assert json.loads(json.dumps(found.as_json()))["reason"] == "no supervisor is there"
    client.submit(package, "again", progress=sent.append)
    assert sum(sent) == len(package.data)  # Nimbus had it


@pytest.mark.server
def test_why_a_topology_waits_is_told(client: ClusterClient) -> None:
    info = SupervisorInfo(0.0, "host", "s", (), (), {}, 0.0)
    client.cluster.supervisor_heartbeat("s", info)  # offers no slot at all
    client.submit(packed())
    assert client.show("mine").why_waiting == (
        "no free slot: 0 of 0 are used. Start another supervisor, or kill a topology"
    )


@pytest.mark.server
def test_a_topology_is_steered(client: ClusterClient) -> None:
    bolts: dict[str, Any] = {"kind": "bolts", "components": {"count": ComponentFacts("bolt", 1, 4)}}
    client.submit(packed(**bolts))
    client.deactivate("mine")
    assert client.show("mine").base.status.kind == "inactive"
    client.activate("mine")
    client.rebalance("mine", 12345.678, 2, {"count": 4})
    base = client.show("mine").base
    assert (base.status.kind, base.num_workers, base.component_executors) == ("active", 2, {"count": 4})
    assert base.status.wait_secs == 12345.678
    done = client.upgrade("mine", packed("2", **bolts))
    assert (done["generation"], done["changed"]) == (2, True)
    assert client.upgrade("mine", packed("2", **bolts))["changed"] is False
    assert client.kill("mine", 60).base.status.kind == "killed"


@pytest.mark.server
def test_errors_are_those_of_nimbus(client: ClusterClient) -> None:
    client.submit(packed())
    with pytest.raises(NameTaken, match="the cluster has a topology 'mine', submitted at"):
        client.submit(packed())
    with pytest.raises(NoSuchTopology, match="no topology 'none' in this cluster; its topologies are: mine"):
        client.activate("none")
    with pytest.raises(BadPackage, match="made with Python 2.7"):
        client.submit(packed(python="2.7"), "other")
    with pytest.raises(ConfigError, match="max_spout_pending"):
        client.submit(packed(), "other", {"max_spout_pendin": "1"})
    with pytest.raises(ClusterError, match="'a/b' cannot name a topology"):
        client.submit(packed(), "a/b")
    with pytest.raises(ClusterError, match="parallelism_hint"):
        client.rebalance("mine", executors={"lines": 2})
    with pytest.raises(ClusterError, match="workers: expected a whole number from 1 to 10,000, not 'two'"):
        client.submit(packed(), "other", workers="two")  # type: ignore[arg-type]
    assert [each.base.storm_name for each in client.topologies()] == ["mine"]


@pytest.mark.server
def test_a_package_of_another_hash_is_refused(nimbus: NimbusDaemon, client: ClusterClient) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = httpx.put(f"{nimbus.url}/api/v1/code/{'0' * 64}", content=b"x", headers=headers)
    assert (answer.status_code, answer.json()["kind"]) == (400, "BadPackage")
    assert "was announced with the hash" in answer.json()["errorMessage"]
    answer = httpx.get(f"{nimbus.url}/api/v1/code/{'0' * 64}", headers=headers)
    assert answer.status_code == 404


@pytest.mark.server
@pytest.mark.parametrize(("token", "said"), [(None, "needs the token.*; give it with --token"), ("other", "is wrong")])
def test_without_the_token_nothing_is_changed(
    address: str, nimbus: NimbusDaemon, token: str | None, said: str, client: ClusterClient
) -> None:
    client.submit(packed())
    with ClusterClient(address, token) as stranger:
        assert [each.base.storm_name for each in stranger.topologies()] == ["mine"]
        for act in (lambda: stranger.submit(packed("2"), "other"), lambda: stranger.kill("mine")):
            with pytest.raises(NotAllowed, match=said):
                act()
    assert [each.base.status.kind for each in client.topologies()] == ["active"]


@pytest.mark.server
def test_the_token_of_a_cluster_on_this_machine_is_found(address: str, nimbus: NimbusDaemon) -> None:
    Path(address, "token").write_text(f"{TOKEN}\n")
    with ClusterClient(address) as client:
        assert client.submit(packed()).startswith("mine-")


@pytest.mark.server
def test_a_package_goes_through_as_it_was_sent(nimbus: NimbusDaemon, client: ClusterClient) -> None:
    package = packed()
    client.submit(package)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    path = f"{nimbus.url}/api/v1/code/{package.sha256}"
    assert httpx.get(path, headers=headers).content == package.data
    assert httpx.get(path).status_code == 401
    assert nimbus.submissions.code.hashes() == [package.sha256]


@pytest.mark.server
def test_where_no_cluster_is_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnreachable, match="there is no cluster in .*none. Start one there \\(`trident up`\\)"):
        ClusterClient(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    with pytest.raises(ClusterUnreachable, match="there is no cluster in"):
        ClusterClient(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.server
@pytest.mark.parametrize("kind", ON_SERVERS)
def test_who_only_asks_makes_no_cluster_on_a_server(kind: str, request: pytest.FixtureRequest) -> None:
    address = address_on(kind, request)
    for _ in range(2):  # the first time has made nothing
        with pytest.raises(ClusterUnreachable, match=r"is not there\. Correct the address \(--cluster"):
            ClusterClient(address)
    open_cluster_state(address).close()
    with ClusterClient(address) as client:
        assert client.topologies() == []


@pytest.mark.server
def test_without_a_leader_topologies_are_seen_and_not_changed(address: str, tmp_path: Path) -> None:
    with NimbusDaemon(address, TOKEN, tmp_path / "code") as nimbus:
        nimbus.wait_until_known()
        with ClusterClient(address, TOKEN) as client:
            storm_id = client.submit(packed())
            client.cluster.report_error(storm_id, "split", ErrorInfo(2.0, "second", "host", 6700))
            client.cluster.report_error(storm_id, "count", ErrorInfo(1.0, "first", "host", 6700))
    with ClusterClient(address, TOKEN, patience_s=0.2) as client:
        assert client.show("mine").why_waiting == "no Nimbus leads the cluster, so it is not assigned"
        assert [(each["component"], each["error"]) for each in client.errors("mine")] == [
            ("split", "second"), ("count", "first"),
        ]  # fmt: skip
        with pytest.raises(NoLeader, match="no Nimbus leads the cluster. Start one: `trident nimbus`"):
            client.kill("mine")


@pytest.mark.server
def test_a_nimbus_that_is_gone_and_one_of_another_version_are_told(address: str, client: ClusterClient) -> None:
    state = client.cluster.state
    for leader, said in (
        ({}, "the Nimbus at http://127.0.0.1:1 does not answer"),
        ({"version": "99.0"}, "at http://127.0.0.1:1 has Trident 99.0, and this client"),
    ):
        state.delete_node(LEADER)
        state.set_ephemeral_node(LEADER, json.dumps({"url": "http://127.0.0.1:1", "id": "x", **leader}).encode())
        with ClusterClient(address, TOKEN, patience_s=0.1) as hasty, pytest.raises(ClusterError, match=said):
            hasty.submit(packed())


@pytest.mark.server
def test_a_client_waits_for_the_next_leader(address: str, tmp_path: Path) -> None:
    open_cluster_state(address).close()
    with ClusterClient(address, TOKEN, patience_s=20.0) as client, ThreadPoolExecutor(1) as threads:
        submitted = threads.submit(client.submit, packed())
        with NimbusDaemon(address, TOKEN, tmp_path / "code"):
            assert submitted.result(20).startswith("mine-")


@pytest.mark.server
@pytest.mark.parametrize("lost", ["PUT", "POST"])
def test_an_answer_that_is_lost_makes_no_second_topology(client: ClusterClient, lost: str) -> None:
    with LosingProxy(client.cluster, lost) as proxy:
        storm_id = client.submit(packed())
        assert proxy.lost == 1
    assert [each.storm_id for each in client.topologies()] == [storm_id]


@pytest.mark.server
def test_an_upgrade_whose_answer_is_lost_is_one_and_is_said_to_be(client: ClusterClient) -> None:
    client.submit(packed())
    with LosingProxy(client.cluster, "POST"):
        done = client.upgrade("mine", packed("2"))
    assert (done["generation"], done["changed"]) == (2, True)


@pytest.mark.server
def test_a_rebalance_whose_answer_is_lost_is_not_sent_again(client: ClusterClient) -> None:
    client.submit(packed())
    with LosingProxy(client.cluster, "POST"), pytest.raises(ClusterUnreachable, match="It is not known whether"):
        client.rebalance("mine", workers=2)
    assert client.show("mine").base.generation == 2


@pytest.mark.server
def test_a_topology_that_is_forgotten_at_once_was_killed(client: ClusterClient, nimbus: NimbusDaemon) -> None:
    storm_id = client.submit(packed())  # has no driver that ends first

    def forgotten() -> None:
        until(lambda: nimbus.submissions.cluster.storm_base(storm_id) is None, "it is forgotten")

    with LosingProxy(client.cluster, "POST", forgotten) as proxy:
        found = client.kill("mine", 0)
    assert proxy.lost == 1
    assert (found.storm_id, found.base.status.kind, found.driver) == (storm_id, "killed", "ending")
    with pytest.raises(NoSuchTopology):
        client.kill("mine", 0)


_CLIENT = """
import io, sys
from tests.cluster.client.test_cluster_client import packed
from trident.cluster.client import ClusterClient
with ClusterClient(sys.argv[1], "the-token") as client:
    package = packed("x" * 5_000_000)
    def told(sent):
        print("sent", flush=True)
        sys.stdin.readline()
    print(client.submit(package, progress=told))
"""


@pytest.mark.server
@pytest.mark.long
@pytest.mark.slow
def test_a_client_that_is_killed_while_it_submits_leaves_nothing(client: ClusterClient, nimbus: NimbusDaemon) -> None:
    root = str(Path(__file__).parents[3])
    command = [sys.executable, "-c", _CLIENT, str(nimbus.submissions.code.folder.parent / "cluster")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n"  # and the next piece is not
        process.kill()
    folder, gone = nimbus.submissions.code.folder, threading.Event()
    for _ in range(200):
        if not list(folder.iterdir()):
            break
        gone.wait(0.05)
    assert list(folder.iterdir()) == []
    assert client.topologies() == []
    assert client.submit(packed("x" * 5_000_000)).startswith("mine-1-")


@pytest.mark.server
@pytest.mark.slow
def test_of_clients_side_by_side_one_gets_the_name(address: str, client: ClusterClient) -> None:
    def submit(number: int) -> str:
        with ClusterClient(address, TOKEN) as other:
            try:
                return other.submit(packed(str(number % 3)))
            except NameTaken:
                return "taken"

    with ThreadPoolExecutor(8) as threads:
        said = list(threads.map(submit, range(16)))
    assert said.count("taken") == 15
    assert [each.storm_id for each in client.topologies()] == [each for each in said if each != "taken"]


class LosingProxy:
    """Stands for the leader in the cluster's state; loses the first answer to a request of one method.

    The real leader's record is there again when the block ends. `meanwhile` is called before the client hears of the loss.
    """

    def __init__(self, cluster: StormClusterState, method: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._state, self._method, self.lost = cluster.state, method.encode(), 0
        self._meanwhile = meanwhile
        self._before = self._state.get_data(LEADER)
        target = urlsplit(leader_url(cluster))
        self._target = (str(target.hostname), int(target.port or 0))
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                proxy._serve(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._set({**json.loads(self._before or b"{}"), "url": url})
        return self

    def __exit__(self, *raised: object) -> None:
        self._set(json.loads(self._before or b"{}"))
        self._server.shutdown()
        self._server.server_close()

    def _set(self, about: dict[str, object]) -> None:
        self._state.set_ephemeral_node(LEADER, json.dumps(about).encode())

    def _serve(self, client: socket.socket) -> None:
        with socket.create_connection(self._target) as server, contextlib.suppress(OSError):
            lose = threading.Event()
            back = threading.Thread(target=self._back, args=(server, client, lose), daemon=True)
            back.start()
            while data := client.recv(1 << 16):
                if self.lost == 0 and data.startswith(self._method + b" "):
                    self.lost += 1
                    lose.set()
                server.sendall(data)

    def _back(self, server: socket.socket, client: socket.socket, lose: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if lose.is_set():
                    self._meanwhile()
                    client.shutdown(socket.SHUT_RDWR)  # Nimbus has answered: it has done what was asked
                    return
                client.sendall(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make what a cluster has that ran `words`, and `old` whose code is gone; without its state."""
    made = tmp_path / "trident-cluster"
    sha256, data = package_of({"a.py": b"1"}, name="words")
    put(CodeStore(made / "code"), sha256, data)
    (made / "code" / f"{'0' * 64}.zip").write_bytes(b"damaged")
    FileLog.open(made / "transactional" / "old", "old").close()
    return made


def test_what_is_left_is_named_with_what_to_do(folder: Path) -> None:
    said = left_of(folder)
    assert f"{folder / STATE_FILE}, is gone, but not the code and the logs of old, words." in said
    assert "submit the topologies again under the names that they had" in said
    (folder / STATE_FILE).touch()
    assert left_of(folder) == ""


@pytest.mark.parametrize("nothing", ["", "code"])
def test_of_a_new_cluster_nothing_is_left(tmp_path: Path, nothing: str) -> None:
    (tmp_path / "new" / nothing).mkdir(parents=True)
    assert left_of(tmp_path / "new") == ""


def test_a_client_is_not_led_to_an_empty_cluster(folder: Path) -> None:
    with pytest.raises(ClusterUnreachable, match="is gone, but not the code and the logs of old, words"):
        ClusterClient(str(folder))


@pytest.mark.slow
def test_who_starts_an_empty_cluster_there_is_told(folder: Path) -> None:
    with started("up", "--port", "0", cwd=folder.parent) as up:
        assert up.says("warning: starting with an empty cluster: .*of old, words")
