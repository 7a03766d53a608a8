"""A client and a Nimbus: a submission is one topology, whatever is lost on the way, and errors say what is wrong."""

import io
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from tests.cluster.code.packed_topologies import package_of
from tests.harness.cluster_states import ON_SERVERS, address_on
from tests.harness.commands import until
from tests.harness.proxy import Point, Proxy
from trident.cluster.client import ClusterClient, leader_url
from trident.cluster.nimbus import NimbusDaemon
from trident.cluster.package_archive import ComponentFacts, read_manifest
from trident.cluster.topology_package import TopologyPackage
from trident.cluster_state.cluster_address import open_cluster_state
from trident.cluster_state.cluster_records import ErrorInfo
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

pytestmark = pytest.mark.server

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


def test_errors_are_those_of_nimbus(client: ClusterClient) -> None:
    client.submit(packed())
    wrong: Any = "two"
    for call, error, said in (
        (lambda: client.submit(packed()), NameTaken, "the cluster has a topology 'mine', submitted at"),
        (lambda: client.activate("none"), NoSuchTopology, "no topology 'none' in this cluster; its topologies are: mine"),
        (lambda: client.submit(packed(python="2.7"), "other"), BadPackage, "made with Python 2.7"),
        (lambda: client.submit(packed(), "other", {"max_spout_pendin": "1"}), ConfigError, "max_spout_pending"),
        (lambda: client.submit(packed(), "a/b"), ClusterError, "'a/b' cannot name a topology"),
        (lambda: client.rebalance("mine", executors={"lines": 2}), ClusterError, "parallelism_hint"),
        (lambda: client.submit(packed(), "other", workers=wrong), ClusterError,
         "workers: expected a whole number from 1 to 10,000, not 'two'"),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            call()
    assert [each.base.storm_name for each in client.topologies()] == ["mine"]


def test_a_package_goes_through_whole_and_another_hash_is_refused(nimbus: NimbusDaemon, client: ClusterClient) -> None:
    package = packed()
    client.submit(package)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    path, other = (f"{nimbus.url}/api/v1/code/{each}" for each in (package.sha256, "0" * 64))
    assert (httpx.get(path, headers=headers).content, httpx.get(path).status_code) == (package.data, 401)
    answer = httpx.put(other, content=b"x", headers=headers)
    assert (answer.status_code, answer.json()["kind"]) == (400, "BadPackage")
    assert "was announced with the hash" in answer.json()["errorMessage"]
    assert httpx.get(other, headers=headers).status_code == 404
    assert nimbus.submissions.code.hashes() == [package.sha256]


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


def test_the_token_of_a_cluster_on_this_machine_is_found(address: str, nimbus: NimbusDaemon) -> None:
    Path(address, "token").write_text(f"{TOKEN}\n")
    with ClusterClient(address) as client:
        assert client.submit(packed()).startswith("mine-")


def test_where_no_cluster_is_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnreachable, match="there is no cluster in .*none. Start one there \\(`trident up`\\)"):
        ClusterClient(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    with pytest.raises(ClusterUnreachable, match="there is no cluster in"):
        ClusterClient(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ON_SERVERS)
def test_who_only_asks_makes_no_cluster_on_a_server(kind: str, request: pytest.FixtureRequest) -> None:
    address = address_on(kind, request)
    for _ in range(2):  # the first time has made nothing
        with pytest.raises(ClusterUnreachable, match=r"is not there\. Correct the address \(--cluster"):
            ClusterClient(address)
    open_cluster_state(address).close()
    with ClusterClient(address) as client:
        assert client.topologies() == []


def test_without_a_leader_topologies_are_seen_and_not_changed(address: str, tmp_path: Path) -> None:
    with NimbusDaemon(address, TOKEN, tmp_path / "code") as nimbus:
        nimbus.wait_until_known()
        with ClusterClient(address, TOKEN) as client:
            storm_id = client.submit(packed())
            client.cluster.report_error(storm_id, "split", ErrorInfo(2.0, "second", "host", 6700))
            client.cluster.report_error(storm_id, "count", ErrorInfo(1.0, "first", "host", 6700))
    with ClusterClient(address, TOKEN, patience_s=0.2) as client:
        assert client.show("mine").why_waiting == "no Nimbus leads the cluster, so it is not assigned"
        told = [(each["component"], each["error"]) for each in client.errors("mine")]
        assert told == [("split", "second"), ("count", "first")]
        with pytest.raises(NoLeader, match="no Nimbus leads the cluster. Start one: `trident nimbus`"):
            client.kill("mine")


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


def test_a_client_waits_for_the_next_leader(address: str, tmp_path: Path) -> None:
    open_cluster_state(address).close()
    with ClusterClient(address, TOKEN, patience_s=20.0) as client, ThreadPoolExecutor(1) as threads:
        submitted = threads.submit(client.submit, packed())
        with NimbusDaemon(address, TOKEN, tmp_path / "code"):
            assert submitted.result(20).startswith("mine-")


@pytest.mark.parametrize("lost", ["PUT", "POST"])
def test_an_answer_that_is_lost_makes_no_second_topology(client: ClusterClient, lost: str) -> None:
    with LosingProxy(client.cluster, lost) as proxy:
        storm_id = client.submit(packed())
        assert proxy.lost == 1
    assert [each.storm_id for each in client.topologies()] == [storm_id]


def test_an_upgrade_whose_answer_is_lost_is_one_and_is_said_to_be(client: ClusterClient) -> None:
    client.submit(packed())
    with LosingProxy(client.cluster, "POST"):
        done = client.upgrade("mine", packed("2"))
    assert (done["generation"], done["changed"]) == (2, True)


def test_a_rebalance_whose_answer_is_lost_is_not_sent_again(client: ClusterClient) -> None:
    client.submit(packed())
    with LosingProxy(client.cluster, "POST"), pytest.raises(ClusterUnreachable, match="It is not known whether"):
        client.rebalance("mine", workers=2)
    assert client.show("mine").base.generation == 2


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


class LosingProxy(Proxy):
    """Stands for the leader in the cluster's state; loses the first answer to a request of one method.

    The real leader's record is there again when the block ends. `meanwhile` is called before the client hears of the loss.
    """

    def __init__(self, cluster: StormClusterState, method: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._state, self._method, self._meanwhile, self.lost = cluster.state, f"{method} ".encode(), meanwhile, 0
        self._before = json.loads(self._state.get_data(LEADER) or b"{}")
        super().__init__(int(leader_url(cluster).rpartition(":")[2]))

    def __enter__(self) -> Self:
        self._lead({**self._before, "url": f"http://127.0.0.1:{self.port}"})
        return self

    def __exit__(self, *raised: object) -> None:
        self._lead(self._before)
        self.close()

    def _lead(self, about: dict[str, object]) -> None:
        self._state.set_ephemeral_node(LEADER, json.dumps(about).encode())

    def _pass_on(self, data: bytes, target: socket.socket, points: tuple[Point, ...]) -> bool:
        if self.lost == 0 and data.startswith(self._method):
            self.lost += 1
            self.arm("reply", self._meanwhile)  # Nimbus has answered then: it has done what was asked
        return super()._pass_on(data, target, points)
