"""Topologies that are stuck, and how much is still to be read: page, REST, `trident show`, metrics and the log say the same."""

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.request import urlopen

import pytest

from spouts import FeederBatchSpout, FixedBatchSpout, TextFileSpout
from states.memory import MemoryMapState
from tests.harness.cluster_states import assigned, submitted
from tests.harness.commands import until
from tests.web.chromium import expect, opened, tile
from tests.web.page_servers import get, trident_server
from tests.web.stuck_topologies import stuck_batches, stuck_bolts
from trident import TridentTopology
from trident.cli.cluster_commands import print_topology
from trident.cluster.pages import ClusterOverview
from trident.cluster.topology_overviews import overview
from trident.cluster_state.cluster_address import open_cluster_state
from trident.cluster_state.cluster_records import WorkerHeartbeat
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.naming import amount
from trident.observe import health
from trident.observe.topology_status import heartbeat_of
from trident.operations import Count
from trident.run.running import RunningTopology
from trident.web.cluster_pages import OneTopology, TopologyPages
from trident.web.rest import UIServer
from trident.web.running_pages import StormPages, TridentPages

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

T = "/api/v1/topology"


class Stuck(NamedTuple):
    """A stuck topology, and what must be said of it."""

    name: str
    pages: TopologyPages
    metrics_url: str
    lines: tuple[str, ...]
    stalled: str


IN_CALL = (
    r"`count` \(task \d\) has been in one call for \d+ s: execute \(.*/stuck_topologies.py, line \d+\): "
    r"Sticks.let_go.wait\(60\). Its tuples, acks and timeouts wait for it\."
)
UNANSWERED = r"Nothing was acknowledged for \d+ s with 3 pending\."
BATCH = (
    r"Batch 3 has run for \d+ s in step `words/stick_at_cow`: it is in stick_at_cow \(.*/stuck_topologies.py, line \d+\): "
    r"let_cows_go.wait\(60\)\."
)


@pytest.fixture(params=["bolts", "trident"])
def stuck(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    """A topology that has been stuck for as long as is a warning, which is shorter than it is for users."""
    monkeypatch.setattr(health, "_LONG_S", 1.5)
    monkeypatch.setattr(health, "_NOTED_S", 0.5)
    with ExitStack() as stack:
        if request.param == "bolts":
            running = stack.enter_context(stuck_bolts(metrics_port=0))
            found = Stuck(
                "bolts", StormPages(running), str(running.metrics_url), (IN_CALL, UNANSWERED),
                "trident_storm_stalled",
            )  # fmt: skip
        else:
            of_batches = stack.enter_context(stuck_batches(metrics_port=0))
            found = Stuck("words", TridentPages(of_batches), str(of_batches.metrics_url), (BATCH,), "trident_stalled")
        until(lambda: len(warnings(found.pages.topology())) == len(found.lines))
        yield found


def warnings(page: dict[str, Any]) -> list[str]:
    return [each["text"] for each in page["verdict"]["lines"] if each["tone"] == "warn"]


def assert_said(found: list[str], stuck: Stuck) -> None:
    assert len(found) == len(stuck.lines)
    for line, expected in zip(found, stuck.lines, strict=True):
        assert re.fullmatch(expected, line), line


@pytest.mark.sample(1)
def test_a_stuck_topology_is_not_well(stuck: Stuck, caplog: pytest.LogCaptureFixture) -> None:
    with UIServer(OneTopology(stuck.name, stuck.pages), port=0) as server:
        page = get(server, f"{T}/{stuck.name}")
        (row,) = get(server, f"{T}/summary")["topologies"]
    assert_said(warnings(page), stuck)
    assert not [each for each in page["verdict"]["lines"] if "well" in each["text"] or "keeps up" in each["text"]]
    assert (page["verdict"]["tone"], row["verdict"]["tone"]) == ("warn", "warn")
    until(lambda: all(re.search(line, caplog.text) for line in stuck.lines))
    assert f" topology {stuck.name}: " in f" {caplog.text}"


@pytest.mark.sample(1)
def test_the_metrics_of_a_stuck_topology_say_so(stuck: Stuck) -> None:
    with urlopen(stuck.metrics_url, timeout=30) as answer:
        told = answer.read().decode()
    assert f'{stuck.stalled}{{topology="{stuck.name}"}} 1.0' in told
    if stuck.name == "bolts":
        [seconds] = re.findall(r'trident_storm_running_call_seconds{component="count",topology="bolts"} ([\d.]+)', told)
        assert re.search(r'trident_storm_unanswered_seconds{topology="bolts"} [1-9]', told)
    else:
        (seconds,) = re.findall(r'trident_running_batch_seconds{topology="words"} ([\d.]+)', told)
    assert float(seconds) > 1


def test_a_call_that_runs_counts_for_the_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    with stuck_bolts() as running:
        pages = StormPages(running)

        def capacity() -> float:
            (count,) = (each for each in pages.topology(600)["bolts"] if each["boltId"] == "count")
            return float(count["capacity"])

        until(lambda: capacity() > 0.5)
        nodes = {each["id"]: each["capacity"] for each in pages.view("visualization", 600)["nodes"]}
        assert nodes["count"] > 0.5 > nodes["split"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("answers", [True, False], ids=["the driver answers", "only its heartbeat is there"])
def test_a_cluster_tells_of_it(stuck: Stuck, answers: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = StormClusterState(open_cluster_state(tmp_path))
    storm_id = submitted(cluster, stuck.name, kind="bolts" if stuck.name == "bolts" else "trident")
    start = assigned(cluster, storm_id)
    with ExitStack() as stack:
        stack.callback(cluster.disconnect)
        served = stack.enter_context(UIServer(OneTopology(storm_id, stuck.pages), port=0))
        stats = heartbeat_of(stuck.pages.topology(0))
        url = served.url if answers else ""
        beat = WorkerHeartbeat(time.time(), 30.0, storm_id, "host", 99, 1, start, "active", url, stats)
        cluster.worker_heartbeat(storm_id, "a", 6700, beat)
        server = stack.enter_context(UIServer(ClusterOverview(cluster, None), port=0))
        assert_said(warnings(get(server, f"{T}/{storm_id}")), stuck)
        (row,) = get(server, f"{T}/summary")["topologies"]
        assert_said(warnings(row), stuck)
        found = overview(cluster, *cluster.find_storm(stuck.name))
        assert_said(warnings(found.as_json()), stuck)
        print_topology(found)
        told = capsys.readouterr().out
        assert "well" not in told
        assert re.search(r"Batch 3 has run for|`count` \(task \d\) has been in one", told)


SEEN = "/api/v1/topology/seen"
LINE = b"one line of forty bytes, with its end..\n"


def seen(*sources: Any) -> TridentTopology:
    topology = TridentTopology("seen")
    streams = [topology.new_stream(name, spout) for name, spout in zip(("files", "clicks"), sources, strict=True)]
    lines = topology.merge("line", *streams)
    lines.group_by("line").persistent_aggregate(MemoryMapState(), Count(), "count")
    return topology


@pytest.fixture
def one_is_idle(tmp_path: Path) -> Iterator[tuple[RunningTopology, UIServer]]:
    """A source of 200,000 bytes of which one batch was read, and one that had nothing yet, so it cannot say."""
    (tmp_path / "lines.txt").write_bytes(LINE * 5_000)
    files = TextFileSpout(str(tmp_path / "*.txt"), max_batch_bytes=2_048)
    conf = {"batch_emit_interval_ms": 600_000, "metrics_port": 0}
    with trident_server(seen(files, FeederBatchSpout("line: string")), conf=conf) as (running, server):
        until(lambda: running.status["batches"] == 1)
        yield running, server


def test_what_one_source_has_is_the_lag_if_another_does_not_say(one_is_idle: tuple[RunningTopology, UIServer]) -> None:
    running, server = one_is_idle
    page = get(server, f"{SEEN}?window=600")
    [left] = page["lags"]
    assert {each["source"]: each["lag"] for each in page["sources"]} == {"files": left, "clicks": None}
    assert 190_000 < left["amount"] < 200_000
    assert get(server, f"{SEEN}/series?window=600")["lags"]["bytes"][-1] == left["amount"]
    assert page["lagTrend"] is None  # of all sources it is not known
    with urlopen(str(running.metrics_url)) as answer:
        metrics = re.findall(r"^trident_source_lag\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert list(map(float, metrics)) == [left["amount"]]
    assert running.at_work.left == f"{amount(left['amount'], 'bytes')} to be read"


def test_a_lag_in_bytes_says_how_long_it_takes_at_this_rate(one_is_idle: tuple[RunningTopology, UIServer]) -> None:
    _, server = one_is_idle
    files, clicks = get(server, SEEN)["sources"]
    rate = files["tuplesPerSecond"] * len(LINE)
    assert files["secondsBehind"] == pytest.approx(files["lag"]["amount"] / rate)
    assert clicks["secondsBehind"] is None


def test_lags_of_one_unit_are_one_sum() -> None:
    rows = [["a"], ["b"], ["c"], ["d"]]
    topology = seen(*(FixedBatchSpout("line", 1, *rows) for _ in range(2)))
    with trident_server(topology, conf={"batch_emit_interval_ms": 600_000}) as (running, server):
        until(lambda: running.status["batches"] == 1)
        assert get(server, SEEN)["lags"] == [{"amount": 6, "unit": "records"}]
        assert get(server, f"{SEEN}/series")["lags"] == {"records": [6]}


def test_tile_and_line_agree_on_unknown_lag(browser: "Browser", one_is_idle: tuple[RunningTopology, UIServer]) -> None:
    running, server = one_is_idle
    with opened(browser, server.url) as page:
        shown = amount(running.status["sources"][0]["lag"]["amount"], "bytes")
        assert shown.endswith(" KiB")
        expect(tile(page, "Lag")).to_have_text(shown)
        note = page.locator(".tile", has=page.get_by_text("Lag", exact=True)).locator(".note")
        said = r"^still to be read; about .* (s|min|h|d) at the rate of now; not known of clicks$"
        expect(note).to_have_text(re.compile(said))
        line = page.get_by_role("region", name="Over time").locator("figure", has_text="Lag")
        expect(line.locator("strong")).to_have_text(shown)
        expect(line).to_contain_text(f"at most {shown}; not known of clicks")
        expect(page.get_by_role("region", name="Sources").first.get_by_role("row", name="files")).to_contain_text(shown)
        sizes = [0, 1, 812, 1023, 1024, 1536, 99_999, 102_400, 197_973, 1 << 20, 12_300_000, 3 << 30, 7 << 40, 5 << 50]
        told = page.evaluate(
            """async (sizes) => { const { amount } = await import('./static/format.js');
            return sizes.map((size) => amount(size, 'bytes')); }""",
            sizes,
        )
        assert told[2:] == [amount(each, "bytes") for each in sizes[2:]]
        assert told[:2] == ["0 bytes", "1 byte"]
