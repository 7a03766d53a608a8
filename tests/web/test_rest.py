"""The REST interface over HTTP, against topologies that run: shapes, every kind of error, who may ask."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from spouts import FeederBatchSpout, FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.commands import until
from tests.storm.random_trees import SENTENCES, word_count
from tests.storm.random_trees import Split as SplitBolt
from tests.web.page_servers import NASTY, TOKEN, allowed, ask, counting, get, storm_server, trident_server
from trident import TridentTopology
from trident.errors import (
    ClusterUnreachable,
    ConfigError,
    NameTaken,
    NoLeader,
    NoSuchTopology,
    NotAllowed,
    TridentError,
)
from trident.operations import Count, Last
from trident.run.dead_letters import DeadLetters, state_of
from trident.run.running import RunningTopology
from trident.storm import LocalCluster, TopologyBuilder
from trident.storm.testing import MockedSpout
from trident.web.cluster_pages import HttpTopologyPages, OneTopology
from trident.web.rest import UIServer
from trident.web.running_pages import StormPages, TridentPages, pages_of

pytestmark = pytest.mark.slow  # each test starts an HTTP server

T = "/api/v1/topology"
WC = f"{T}/word-count"


@pytest.fixture(scope="module")
def trident() -> Iterator[tuple[RunningTopology, UIServer]]:
    with trident_server() as (running, server):
        running.process_all_available()
        yield running, server


@pytest.fixture(scope="module")
def server(trident: tuple[RunningTopology, UIServer]) -> UIServer:
    return trident[1]


@pytest.fixture(scope="module")
def bolts() -> Iterator[UIServer]:
    with storm_server() as (running, server):
        until(lambda: running.status.statistics.over().figures.acked == len(SENTENCES))
        yield server


class Nothing(OneTopology):
    """Pages that raise what they are told to."""

    def __init__(self, error: Exception) -> None:
        super().__init__("gone", self)  # type: ignore[arg-type]
        self._error = error

    def of_topology(self, topology_id: str) -> Any:
        raise self._error


def test_the_summaries_are_storms(server: UIServer) -> None:
    cluster = get(server, "/api/v1/cluster/summary")
    slots = {"slotsTotal", "slotsUsed", "slotsFree"}
    assert {"stormVersion", "supervisors", *slots, "executorsTotal", "tasksTotal"} <= {*cluster}
    assert cluster["oneTopology"] == "word-count"
    assert get(server, "/api/v1/nimbus/summary") == {"nimbuses": []}
    assert get(server, "/api/v1/supervisor/summary") == {"supervisors": []}
    (row,) = get(server, "/api/v1/topology/summary")["topologies"]
    assert {name: row[name] for name in ("id", "name", "status", "kind")} == {
        "id": "word-count", "name": "word-count", "status": "ACTIVE", "kind": "trident",
    }  # fmt: skip


def test_the_page_of_a_trident_topology_agrees_with_it(trident: tuple[RunningTopology, UIServer]) -> None:
    running, server = trident
    page = get(server, f"{WC}?window=600")
    assert (page["txid"], page["tuples"], page["batches"]) == (running.txid, 3, running.status["batches"])
    assert page["rates"]["tuplesPerSecond"] > 0
    assert [(each["source"], each["tuples"]) for each in page["sources"]] == [("lines", 3)]
    assert set(page["phases"]["meanMs"]) == {"define", "process", "wait", "commit", "record", "total"}
    (state,) = page["states"]
    told = {name: state[name] for name in ("state", "kind", "store", "guarantee", "lastTxid", "key", "placement")}
    assert told == {
        "state": "count", "kind": "opaque", "store": "MemoryMapState", "guarantee": "exact", "lastTxid": running.txid,
        "key": ["word: string"], "placement": "driver",
    }  # fmt: skip
    assert page["health"] == {
        "failures": 0, "lastFailure": None, "deadLetters": 0, "fenced": False, "leftOut": [], "waiting": "",
        "error": None,
    }  # fmt: skip


def test_the_picture_of_a_plan_has_stages_and_rates_its_components_have_inputs(server: UIServer) -> None:
    drawn = get(server, f"{WC}/visualization")
    assert [edge["tuplesPerSecond"] > 0 for edge in drawn["edges"] if edge["source"] == "lines"] == [True]
    assert drawn["stages"][0]["title"].startswith("stage 1")
    found = get(server, f"{WC}/component/{quote('state count')}")
    assert (found["componentType"], found["guarantee"]) == ("state", "exact")
    assert (len(found["inputs"]), found["outputs"]) == (1, [])


def test_workers_and_executors_say_where_they_run() -> None:
    with LocalCluster() as cluster:
        declared = word_count()
        running = cluster.submit_topology("words", {"user": {"db_password": "s3cret", "size": 3}}, declared)
        pages = StormPages(running, "words-1")
        page = pages.topology()
        (worker,) = page["workers"]
        assert (worker["topologyId"], worker["topologyName"]) == ("words-1", "words")
        for each in pages.view("component/split")["executorStats"]:
            assert (each["host"], each["port"], each["worker"]) == (worker["host"], worker["port"], 0)
            assert each["uptime"].endswith("s")
            assert each["uptimeSeconds"] >= 0
        assert page["configuration"]["user"] == {"db_password": "***", "size": 3}
        assert page["configuration"]["message_timeout_s"] == 30.0


def test_the_picture_of_bolts_has_groupings_and_rates(bolts: UIServer) -> None:
    drawn = get(bolts, f"{T}/bolts/visualization?window=600")
    kinds = {node["id"]: node["kind"] for node in drawn["nodes"]}
    assert [*kinds.items()] == [("sentences", "spout"), ("split", "bolt"), ("count", "bolt")]
    told = [(edge["source"], edge["target"], edge["grouping"]) for edge in drawn["edges"]]
    assert told == [("sentences", "split", "shuffle"), ("split", "count", "fields (word)")]
    assert all(edge["tuplesPerSecond"] > 0 for edge in drawn["edges"])


def test_a_key_is_looked_up_at_the_last_batch(trident: tuple[RunningTopology, UIServer]) -> None:
    running, server = trident
    found = get(server, f"{WC}/lookup?state=count&key=the")
    assert found == {"state": "count", "key": ["the"], "value": 4, "found": True, "txid": running.txid}
    assert get(server, f"{WC}/lookup?state=count&key=none")["found"] is False


@pytest.mark.parametrize(
    ("query", "status", "part"),
    [
        ("", 400, "name the state"),
        ("?state=nothing&key=a", 404, "has no state 'nothing'; it has count"),
        ("?state=count", 400, "name a key (word)"),
        ("?state=count&key=a&key=b", 400, "expected"),
    ],
)
def test_a_wrong_lookup_is_told(server: UIServer, query: str, status: int, part: str) -> None:
    found = ask(server, "GET", f"{WC}/lookup{query}")
    assert (found.status_code, part in found.json()["errorMessage"]) == (status, True), found.text


@pytest.mark.parametrize(
    ("path", "status", "part"),
    [
        (f"{T}/other", 404, "no topology 'other' here, only 'word-count'"),
        (f"{WC}/component/other", 404, "has no component 'other'; it has lines"),
        (f"{WC}?window=7", 400, "expected one of 600, 10800, 86400, 0"),
        ("/api/v1/other", 404, "there is no such page"),
        (f"{WC}/", 404, "there is no such page"),
        ("/other", 404, "there is no such page"),
    ],
)
def test_a_wrong_address_is_told(server: UIServer, path: str, status: int, part: str) -> None:
    found = ask(server, "GET", path)
    assert found.status_code == status
    assert found.json()["error"].startswith(f"{status} ")
    assert part in found.json()["errorMessage"]


@pytest.mark.parametrize(("error", "status"), [
    (NoSuchTopology("x"), 404), (NotAllowed("x"), 401), (NameTaken("x"), 409), (ClusterUnreachable("x"), 503),
    (NoLeader("x"), 503), (TridentError("x"), 500), (RuntimeError("secret"), 500),
])  # fmt: skip
def test_every_error_has_its_status(error: Exception, status: int, caplog: pytest.LogCaptureFixture) -> None:
    with UIServer(Nothing(error), port=0) as server:
        found = ask(server, "GET", f"{T}/gone")
    assert (found.status_code, found.json()["kind"]) == (status, type(error).__name__)
    assert "secret" not in found.text
    assert ("secret" in caplog.text) is (type(error) is RuntimeError)


def test_bolts_have_no_states_to_look_up(bolts: UIServer) -> None:
    found = ask(bolts, "GET", f"{T}/bolts/lookup?state=a&key=b")
    assert (found.status_code, "no states" in found.json()["errorMessage"]) == (400, True)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Basic x"}, allowed("wrong"), {"Authorization": "Bearer"}])
def test_an_action_without_the_token_is_refused(bolts: UIServer, headers: dict[str, str]) -> None:
    found = ask(bolts, "POST", f"{T}/bolts/deactivate", **headers)
    assert (found.status_code, found.headers["www-authenticate"]) == (401, "Bearer")
    assert get(bolts, f"{T}/bolts")["status"] == "ACTIVE"


def test_actions_change_the_topology_and_a_killed_one_says_so() -> None:
    with storm_server() as (running, server):
        done = ask(server, "POST", f"{T}/bolts/deactivate", **allowed())
        told = {"topologyOperation": "deactivate", "topologyId": "bolts", "status": "success"}
        assert (done.status_code, done.json()) == (200, told)
        assert get(server, f"{T}/bolts")["status"] == "INACTIVE"
        assert ask(server, "POST", f"{T}/bolts/activate", **allowed()).status_code == 200
        assert get(server, f"{T}/bolts")["status"] == "ACTIVE"
        refused = ask(server, "POST", f"{T}/bolts/rebalance/1", {"rebalanceOptions": {"numWorkers": 2}}, **allowed())
        assert (refused.status_code, "rebalance is not possible" in refused.text) == (409, True)
        assert ask(server, "POST", f"{T}/bolts/kill/0", **allowed()).status_code == 200
        assert running.await_termination(30)
        assert get(server, f"{T}/bolts")["status"] == "STOPPED"
        after = ask(server, "POST", f"{T}/bolts/activate", **allowed())
        assert (after.status_code, after.json()["errorMessage"]) == (409, "topology 'bolts' has ended")


def test_dead_letters_are_listed_and_put_back_or_discarded_over_the_page(tmp_path: Path) -> None:
    feeder, topology = FeederBatchSpout("word: string"), TridentTopology("word-count")
    words = topology.new_stream("s", feeder).each("word", lambda word: word[3], "letter: string")
    words.group_by("letter").persistent_aggregate(MemoryMapState(), Count(), "count", state_name="count")
    settings: dict[str, Any] = {"on_poison": "dead_letter", "dead_letter_dir": str(tmp_path), "poll_interval_ms": 1}
    with topology.start(engine="in_process", **settings) as running:
        feeder.feed([["a"], ["b"]])
        running.process_all_available()
        with UIServer(OneTopology("word-count", TridentPages(running)), port=0, token=TOKEN) as server:
            page = get(server, WC)
            assert page["configurationOrigins"]["on_poison"] == "argument"
            assert "dead-letters" in page["actions"]
            letters = get(server, f"{WC}/dead-letters")["deadLetters"]
            assert [each["id"] for each in letters] == ["1-0", "1-1"]
            assert [each["error"] for each in letters] == ["IndexError: string index out of range"] * 2
            refused = ask(server, "POST", f"{WC}/dead-letters", body={"letters": ["1-0"], "reason": None})
            assert refused.status_code == 401
            for body, status in [
                ({"letters": "1-0"}, 400),
                ({"letters": ["9-9"]}, 400),
                ({"letters": [], "reason": ""}, 400),
            ]:
                assert ask(server, "POST", f"{WC}/dead-letters", body=body, **allowed()).status_code == status
            for body in ({"letters": ["1-0"], "reason": "a test"}, {"letters": ["1-1"], "reason": None}):
                assert ask(server, "POST", f"{WC}/dead-letters", body=body, **allowed()).status_code == 200
            running.process_all_available()
            states = [state_of(each, running.log_state) for each in DeadLetters(tmp_path).all(running.log_state)]
            assert states == ["discarded: a test", "put back", "waiting"]  # the last: it has failed again
            assert [each["id"] for each in get(server, f"{WC}/dead-letters")["deadLetters"]] == ["2-0"]


def test_kill_ends_a_trident_topology() -> None:
    with trident_server(counting(cycle=True)) as (running, server):
        assert ask(server, "POST", f"{WC}/kill/0", **allowed()).status_code == 200
        assert running.await_termination(30)
        assert get(server, WC)["status"] == "STOPPED"


class Noted:
    """Takes note of what is asked of it."""

    def __init__(self) -> None:
        self.acts: list[tuple[str, Mapping[str, Any]]] = []

    def act(self, action: str, parameters: Mapping[str, Any]) -> Any:
        self.acts.append((action, dict(parameters)))
        return {}

    def lookup(self, state: str, key: Sequence[Any]) -> Any:
        return {"state": state, "key": list(key)}


def test_the_parameters_of_a_rebalance_come_whole_also_through_another_process() -> None:
    noted: Any = Noted()
    with (
        UIServer(OneTopology("a/b c", noted), port=0, token=TOKEN, token_for_all=True) as server,
        HttpTopologyPages(server.url, TOKEN, "a/b c") as pages,
    ):
        pages.act("rebalance", {"wait_s": 2.5, "workers": 3, "executors": {"split/<b>": 4}})
        pages.act("activate", {})
        pages.act("kill", {"wait_s": 0.0})
        assert pages.lookup("s&x=1", ["ü/ä", 7, True]) == {"state": "s&x=1", "key": ["ü/ä", "7", "true"]}
    assert noted.acts == [
        ("rebalance", {"wait_s": 2.5, "workers": 3, "executors": {"split/<b>": 4}}),
        ("activate", {}),
        ("kill", {"wait_s": 0.0}),
    ]


@pytest.mark.parametrize(("path", "body", "status"), [
    ("kill/-1", None, 400), ("kill/nan", None, 400), ("kill/99999999", None, 400), ("kill", None, 404),
    ("rebalance/1", [1], 400), ("rebalance/1", {"rebalanceOptions": {"numWorkers": 0}}, 400),
    ("rebalance/1", {"rebalanceOptions": {"executors": {"a": "x"}}}, 400),
    ("rebalance/1", {"x": "y" * (65 << 10)}, 413), ("log", None, 405),
])  # fmt: skip
def test_a_wrong_action_is_refused(bolts: UIServer, path: str, body: Any, status: int) -> None:
    found = ask(bolts, "POST", f"{T}/bolts/{path}", body, **allowed())
    assert found.status_code == status, found.text
    assert found.json()["error"].startswith(str(status))


def test_nothing_changes_without_a_token_or_where_pages_are_read_only() -> None:
    noted: Any = Noted()
    with UIServer(OneTopology("a", noted), port=0) as server:
        assert ask(server, "POST", f"{T}/a/activate", **allowed()).status_code == 403
        assert get(server, "/api/v1/page")["readOnly"] is True
    only_read = OneTopology("a", noted)
    only_read.read_only = True
    with UIServer(only_read, port=0, token=TOKEN) as server:
        assert ask(server, "POST", f"{T}/a/activate", **allowed()).status_code == 403
        assert get(server, "/api/v1/page")["readOnly"] is True
    with UIServer(OneTopology("a", noted), port=0, token=TOKEN) as server:
        assert get(server, "/api/v1/page")["readOnly"] is False
    assert noted.acts == []


def test_with_a_token_for_all_the_data_need_it_and_the_files_of_the_page_do_not() -> None:
    with trident_server(token_for_all=True) as (_, server):
        for path in ("/api/v1/cluster/summary", "/api/v1/page", WC):
            assert ask(server, "GET", path).status_code == 401
            assert ask(server, "GET", path, **allowed()).status_code == 200
        assert ask(server, "GET", "/").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example", "[::1", "192.0.2.1"])
def test_a_name_that_was_made_to_lead_here_is_refused(server: UIServer, host: str) -> None:
    assert ask(server, "GET", WC, Host=host).status_code in (400, 403)


@pytest.mark.parametrize("host", ["localhost:1", "LOCALHOST", "127.0.0.2:8080", "[::1]:8080"])
def test_this_machine_is_let_in_by_all_its_names(server: UIServer, host: str) -> None:
    assert ask(server, "GET", WC, Host=host).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_a_page_of_another_site_is_refused_even_with_the_token(server: UIServer, origin: str) -> None:
    found = ask(server, "POST", f"{WC}/kill/0", Origin=origin, **allowed())
    assert (found.status_code, "may not ask" in found.text) == (403, True)
    assert ask(server, "GET", WC, Origin=origin).status_code == 403
    assert ask(server, "GET", WC, Origin=server.url).status_code == 200


def test_every_answer_keeps_browsers_careful(server: UIServer) -> None:
    for path in ("/", WC, "/nothing", "/static/../rest.py"):
        headers = ask(server, "GET", path).headers
        policy = headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers
    assert ask(server, "GET", WC).headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["/static/../rest.py", "/static/%2e%2e/rest.py", "/static/..%2frest.py", "/static//etc/passwd"]
)
def test_no_file_beside_the_page_is_served(server: UIServer, path: str) -> None:
    with httpx.Client(base_url=server.url) as client:
        request = client.build_request("GET", "/")
        request.url = request.url.copy_with(raw_path=path.encode())
        assert client.send(request).status_code == 404


def test_hostile_names_come_as_they_are() -> None:
    builder = TopologyBuilder()
    builder.set_spout(NASTY, MockedSpout("sentence: string", ["a"]))
    builder.set_bolt("a/b", SplitBolt()).shuffle_grouping(NASTY)
    with storm_server(builder.create_topology(), name=NASTY) as (_, server):
        path = f"{T}/{quote(NASTY, safe='')}"
        page = get(server, path)
        assert (page["name"], page["spouts"][0]["spoutId"]) == (NASTY, NASTY)
        assert get(server, f"{path}/component/{quote(NASTY, safe='')}")["id"] == NASTY
        assert get(server, f"{path}/component/a%2Fb")["id"] == "a/b"
        assert ask(server, "GET", path).headers["content-type"] == "application/json"


def test_a_token_that_is_empty_is_refused() -> None:
    with pytest.raises(ConfigError, match="must not be empty"):
        UIServer(Nothing(KeyError()), port=0, token="")


def test_a_page_that_takes_long_does_not_hold_up_others() -> None:
    asked, go_on = threading.Event(), threading.Event()

    class Slow(OneTopology):
        def nimbus_summary(self) -> Any:
            asked.set()
            go_on.wait(30)
            return {"nimbuses": []}

    noted: Any = Noted()
    with UIServer(Slow("a", noted), port=0) as server:
        slow = threading.Thread(target=get, args=(server, "/api/v1/nimbus/summary"))
        slow.start()
        assert asked.wait(30)
        assert get(server, "/api/v1/supervisor/summary") == {"supervisors": []}
        go_on.set()
        slow.join()


def test_pages_of_another_process_are_the_same(trident: tuple[RunningTopology, UIServer]) -> None:
    _, server = trident
    with HttpTopologyPages(server.url, TOKEN, "word-count") as pages:
        assert pages.topology(600)["txid"] == get(server, WC)["txid"]
        batches = pages.view("batches")["batches"]
        assert batches == get(server, f"{WC}/batches")["batches"]
        assert [each["batchId"] for each in batches] == list(range(1, len(batches) + 1))
        assert sum(each["numInputRows"] for each in batches) == 3
        assert pages.view("component/lines")["id"] == "lines"
        assert len(pages.view("visualization")["nodes"]) == len(get(server, f"{WC}/visualization")["nodes"])
        assert pages.lookup("count", ["the"])["value"] == 4
        with pytest.raises(KeyError, match="has no component 'x'"):
            pages.view("component/x")
        with pytest.raises(ValueError, match="name a key"):
            pages.lookup("count", [])
    with HttpTopologyPages(server.url, "wrong", "word-count") as pages, pytest.raises(NotAllowed, match="wrong"):
        pages.act("kill", {"wait_s": 0})
    with (
        HttpTopologyPages(server.url, None, "other") as pages,
        pytest.raises(NoSuchTopology, match="no topology 'other'"),
    ):
        pages.topology()


def test_a_key_that_is_none_is_not_the_text_null() -> None:
    topology = TridentTopology("nulls")
    spout = FixedBatchSpout("a: string, b: string", 9, ["null", "x"], [None, "x"], [None, None])
    rows = topology.new_stream("rows", spout)
    rows.group_by("a").persistent_aggregate(MemoryMapState(), Count(), "n", state_name="one")
    rows.group_by("a, b").persistent_aggregate(MemoryMapState(), Count(), "n", state_name="two")
    with topology.start(engine="in_process", ui_port=0) as running:
        running.process_all_available()
        assert running.ui_url is not None
        with HttpTopologyPages(running.ui_url, None, "nulls") as far:
            near = pages_of(running)
            assert [near.lookup("one", [key])["value"] for key in ("null", None)] == [1, 2]
            for pages in (near, far):
                found = pages.lookup("two", [None, "x"]) | {"txid": 0}
                assert found == {"state": "two", "key": [None, "x"], "value": 1, "found": True, "txid": 0}
                assert pages.lookup("two", ["null", "x"])["value"] == pages.lookup("two", [None, None])["value"] == 1
                assert pages.lookup("one", ["null"])["value"] == 1
            with pytest.raises(ValueError, match="the key None has no text to ask another process for"):
                far.lookup("one", [None])
            with pytest.raises(ValueError, match="expected 2 parts of a key"):
                near.lookup("two", [None])
            with pytest.raises(ValueError, match=r"expected 1 part of a key \(a\)"):
                near.lookup("one", ["a", "b"])


def test_a_value_that_json_has_not_is_a_text_on_the_page() -> None:
    topology = TridentTopology("odd")
    spout = FixedBatchSpout("k: string, x: double", 9, ["nan", float("nan")], ["inf", float("inf")])
    rows = topology.new_stream("rows", spout)
    rows.group_by("k").persistent_aggregate(MemoryMapState(), "x", Last(), "x")
    with (
        topology.start(engine="in_process", ui_port=0) as running,
        HttpTopologyPages(running.ui_url or "", None, "odd") as pages,
    ):
        running.process_all_available()
        found = [pages.lookup("x", [key]) for key in ("nan", "inf", "none")]
        assert [(each["value"], each["found"]) for each in found] == [("nan", True), ("inf", True), (None, False)]


def test_a_process_that_is_gone_or_silent_is_unreachable() -> None:
    noted: Any = Noted()
    with UIServer(OneTopology("a", noted), port=0) as server:
        url = server.url
    with HttpTopologyPages(url, None, "a") as pages, pytest.raises(ClusterUnreachable, match="cannot be read"):
        pages.topology()
    never = threading.Event()

    class Silent(OneTopology):
        def of_topology(self, topology_id: str) -> Any:
            never.wait(30)
            raise NoSuchTopology(topology_id)

    with UIServer(Silent("a", noted), port=0) as server, HttpTopologyPages(server.url, None, "a", 0.2) as pages:
        with pytest.raises(ClusterUnreachable, match=r"did not answer within 0.2 s"):
            pages.topology()
        never.set()
