"""Metrics over HTTP: a real scrape of a running topology, read by a parser of OpenMetrics; ports that are taken, and freed."""

import http.client
import re
import socket
import struct
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client import CollectorRegistry, parser
from prometheus_client import generate_latest as prometheus_text
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text

from spouts import FeederBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import WAIT_S
from tests.observe.watching import failing, listens, started, threads_of, word_topology
from trident import BatchFailedError, Config, TridentTopology
from trident.counts import KeyCounts
from trident.errors import EnvironmentProblem
from trident.observe import open_metrics
from trident.observe.batch_committed import BatchCommitted, Phases, Read
from trident.observe.component_statistics import Figures, TopologyStatistics, WindowStatistics
from trident.observe.health import AtWork
from trident.observe.open_metrics import BOUNDS_S, OTHER, Metrics
from trident.observe.time_series import WINDOWS_S, TimeSeries
from trident.observe.topology_status import TopologyStatus
from trident.operations import Count, Function
from trident.run.running import RunningTopology
from trident.tuples import TridentCollector, TridentTuple

pytestmark = pytest.mark.slow  # each test starts an HTTP server

openmetrics: Any = openmetrics_parser.text_string_to_metric_families
prometheus: Any = parser.text_string_to_metric_families
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(running: RunningTopology, accept: str = OPENMETRICS) -> str:
    """Ask for the metrics of a topology, as Prometheus does."""
    assert running.metrics_url is not None
    address = urlsplit(running.metrics_url)
    with closing(http.client.HTTPConnection(address.netloc, timeout=30)) as connection:
        connection.request("GET", address.path, headers={"Accept": accept})
        response = connection.getresponse()
        assert response.status == 200
        assert response.headers["Content-Type"].startswith(accept.partition(";")[0])
        return response.read().decode()


def samples(text: str) -> Samples:
    """Return the value of each sample of ours, without the label `topology`."""
    found: Samples = {}
    for family in openmetrics(text):
        for sample in family.samples:
            if sample.name.startswith("trident_"):
                labels = frozenset((name, value) for name, value in sample.labels.items() if name != "topology")
                found[sample.name, labels] = sample.value
    return found


def scraped(topology: TridentTopology, **conf: Any) -> Samples:
    """Run a topology until all is committed; return what it tells then."""
    with started(topology, metrics_port=0, **conf) as running:
        running.process_all_available()
        return samples(scrape(running))


def of(found: Samples, name: str, **labels: str) -> float:
    return found[f"trident_{name}", frozenset(labels.items())]


class Skips(Function):
    """Counts what it passes on."""

    output_types = ("string",)

    def prepare(self, conf: object, context: object) -> None:
        self.passed = context.register_counter("passed")  # type: ignore[attr-defined]

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        self.passed.incr()
        collector.emit([tuple[0]])


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}])
def test_a_page_of_another_site_does_not_read_metrics(headers: dict[str, str]) -> None:
    with started(word_topology("words", 1, "the"), metrics_port=0) as running:
        assert running.metrics_url is not None
        connection = http.client.HTTPConnection(urlsplit(running.metrics_url).netloc, timeout=30)
        with closing(connection):
            connection.request("GET", "/metrics", headers=headers)
            response = connection.getresponse()
            assert (response.status, b"trident_" in response.read()) == (403, False)
        assert "trident_" in scrape(running)


@pytest.mark.sample(1)
def test_a_scrape_tells_of_a_running_topology(engine: str) -> None:
    topology, feeder = TridentTopology("scraped"), FeederBatchSpout("word: string")
    words = topology.new_stream("words", feeder).each("word", Skips(), "w")
    words.group_by("w").persistent_aggregate(MemoryMapState(), Count(), "count")
    with started(topology, engine=engine, metrics_port=0, max_spout_pending=1) as running:
        before = samples(scrape(running))
        for batch in ([["the"], ["cow"], ["the"]], [["the"]]):
            feeder.feed(batch)
        running.process_all_available()
        after = samples(scrape(running))
    assert (of(before, "batches_committed_total"), of(before, "last_txid")) == (0, 0)
    assert (of(after, "batches_committed_total"), of(after, "last_txid")) == (2, 2)
    assert of(after, "tuples_total", source="words") == 4
    keys = {op: of(after, "state_keys_total", state="count", op=op) for op in ("read", "cached", "written")}
    assert keys == {"read": 3, "cached": 0, "written": 3}
    assert of(after, "operation_count_total", counter="Skips/passed") == 4
    assert of(after, "throttle_ratio") == 1
    assert of(after, "state_placement", state="count", placement="driver") == 1
    assert (of(after, "collected_bytes_total") > 0) == (engine == "spark")
    for phase in ("define", "process", "wait", "commit", "record", "total"):
        assert of(after, "batch_seconds_count", phase=phase) == 2
        assert of(after, "batch_seconds_bucket", phase=phase, le="+Inf") == 2
    assert of(after, "batch_seconds_sum", phase="total") > 0


def test_a_scrape_is_in_the_format_that_is_asked_for() -> None:
    with started(word_topology("formats", 1, "a b"), metrics_port=0) as running:
        running.process_all_available()
        text, older = scrape(running), scrape(running, "text/plain")
    assert text.endswith("# EOF\n")
    families = {family.name: family.type for family in openmetrics(text)}
    assert families["trident_batches_committed"] == "counter"
    assert families["trident_batch_seconds"] == "histogram"
    assert families["trident_throttle_ratio"] == "gauge"
    assert ("process_resident_memory_bytes" in families) == sys.platform.startswith("linux")
    assert "trident_batches_committed" in {family.name for family in prometheus(older)}


def test_the_page_explains_every_metric() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "monitoring.md").read_text(encoding="utf-8")
    explained = dict(re.findall(r"^\| `(trident_\w+)` \| (\w+) \|", page, re.MULTILINE))
    metrics = Metrics("t", lambda: [{"name": "L", "dropped": 1, "errors": 0}])
    metrics.take(batch(1, 0.1, {}))
    statistics = TopologyStatistics(tuple(WindowStatistics(each, 1.0, Figures(), {}) for each in (*WINDOWS_S, 0)))
    rest: Any = (AtWork(), (), statistics, TimeSeries(0.0), 0.0)
    metrics.status = lambda: TopologyStatus("t", "trident", "ACTIVE", 1.0, 30.0, 0, 0, *rest)
    there = {family.name + ("_total" if family.type == "counter" else ""): family.type for family in metrics.collect()}
    assert explained == there


def test_batches_that_were_processed_twice_are_counted() -> None:
    found = scraped(word_topology("verified", 1, "a b"), verify_replays=1.0)
    for outcome, count in {"checked": 2, "skipped": 0, "differed": 0}.items():
        assert of(found, "replays_verified_total", outcome=outcome) == count


def test_failed_attempts_and_dead_letters_are_counted(tmp_path: Path) -> None:
    letters: dict[str, Any] = {"on_poison": "dead_letter", "dead_letter_dir": tmp_path / "letters"}
    found = scraped(failing("failures", tmp_path), max_spout_pending=1, max_batch_attempts=3, **letters)
    assert (of(found, "attempts_failed_total"), of(found, "dead_letters_total")) == (2, 1)
    assert of(found, "batches_committed_total") == 2


def test_two_topologies_of_a_process_have_ports_and_a_page_each() -> None:
    conf = Config(engine="in_process", metrics_port=0, ui_port=0)
    first, second = word_topology("first", 1, "a b c"), word_topology("second", 1, "a")
    with first.start(conf) as one, second.start(conf) as other:
        for running in (one, other):
            found = httpx.get(f"{running.ui_url}/api/v1/topology/summary").json()["topologies"]
            assert [each["name"] for each in found] == [running.name]
        one.process_all_available()
        other.process_all_available()
        assert one.metrics_url != other.metrics_url
        assert of(samples(scrape(one)), "batches_committed_total") == 3
        assert of(samples(scrape(other)), "batches_committed_total") == 1
        assert 'topology="first"' in scrape(one)
        assert 'topology="second"' not in scrape(one)


def test_the_port_is_freed_at_the_end_whatever_ends_the_topology(tmp_path: Path) -> None:
    with started(word_topology("freed", 1, "a"), metrics_port=0) as running:
        port = urlsplit(running.metrics_url or "").port or 0
        assert listens(port)
        idle = socket.create_connection(("127.0.0.1", port))  # a client that never asks
    assert not listens(port)
    idle.close()
    topology = failing("broken", tmp_path)
    with pytest.raises(BatchFailedError), started(topology, metrics_port=port, max_batch_attempts=1) as broken:
        broken.await_termination(WAIT_S)
    assert not listens(port)
    assert threads_of("freed") + threads_of("broken") == []


def test_half_a_request_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(open_metrics, "_CLIENT_S", 0.02)
    server = open_metrics.MetricsServer("t", Metrics("t"), "127.0.0.1", 0)
    for sent in (b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nHost: loc", b"\x16\x03\x01\x02\x00\x01\x00\n\xfc"):
        for end in ("closes", "resets", "waits"):
            with socket.create_connection((server.host, server.port), WAIT_S) as client:
                client.sendall(sent)
                if end == "resets":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                elif end == "waits":
                    with suppress(ConnectionResetError):
                        client.recv(9999)
    server.close()  # which waits for what it answers
    assert capfd.readouterr().err == ""


def test_without_a_port_nothing_is_served() -> None:
    with started(word_topology("silent", 1, "a")) as running:
        assert (running.metrics_url, running.ui_url, threads_of("silent")) == (None, None, [])


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(EnvironmentProblem, match=r"needs the package prometheus-client .*'trident-spark\[metrics\]'"):
        started(word_topology("without", 1, "a"), metrics_port=0)


def batch(txid: int, seconds: float, counters: dict[str, int]) -> BatchCommitted:
    read, phases, keys = Read({"s": 1}, {"s": None}), Phases(0.0, seconds, 0.0, 0.0, 0.0), {"state": KeyCounts(1, 2, 3)}
    return BatchCommitted("t", "run", 0, txid, 1, 1, "spark", read, phases, 0.0, 1.0, {}, {}, keys, 5, 7, 0, counters)


def told(metrics: Metrics) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(value for name, value in sample.labels.items() if name != "topology")): sample.value
        for family in metrics.collect()
        for sample in family.samples
    }


def test_times_are_in_the_buckets_up_to_their_bound() -> None:
    metrics = Metrics("t")
    for txid, seconds in enumerate([0.0005, 0.001, 0.0011, 1e9], 1):
        metrics.take(batch(txid, seconds, {}))
    found = told(metrics)
    counts = [found["trident_batch_seconds_bucket", "process", str(bound)] for bound in BOUNDS_S[:2]]
    assert (counts, found["trident_batch_seconds_bucket", "process", "+Inf"]) == ([2, 3], 4)
    assert found["trident_shuffled_bytes_total",] == 20


def test_counters_with_ever_new_names_do_not_become_ever_more_metrics() -> None:
    metrics = Metrics("t")
    for txid in range(1, 1001):
        metrics.take(batch(txid, 0.1, {f"Parse/user {txid}": 1}))
    found = [key for key in told(metrics) if key[0] == "trident_operation_count_total"]
    assert len(found) == 201
    assert told(metrics)["trident_operation_count_total", OTHER] == 800


def test_a_name_that_has_no_form_in_utf_8_does_not_end_the_scrape() -> None:
    metrics, registry = Metrics("t"), CollectorRegistry()
    metrics.take(batch(1, 0.1, {"Parse/caf\udce9": 1}))
    registry.register(metrics)
    writers: tuple[Any, Any] = openmetrics_text, prometheus_text
    for text in (each(registry) for each in writers):
        assert rb'counter="Parse/caf\\udce9"' in text


def test_a_scrape_tells_what_each_operation_did() -> None:
    found = scraped(word_topology("t", 2, "a b a"))
    assert of(found, "operation_emitted_total", operation="words") == 3
    state = {"operation": "words/Count@count"}
    assert (of(found, "operation_executed_total", **state), of(found, "operation_failed_total", **state)) == (3, 0)
    assert of(found, "operation_busy_seconds_total", **state) > 0
    assert 0 < of(found, "operation_capacity_ratio", **state) < 1
