"""What a running topology says of itself, put together of workers' snapshots: status, log, metrics, Storm UI's shape."""

import json
import logging
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser

from tests.harness.commands import until
from tests.storm.random_trees import SENTENCES, Count, chain, word_count
from trident.errors import ConfigError
from trident.observe.topology_status import TopologyStatus, pretty_seconds
from trident.storm import (
    BaseBasicBolt,
    BaseRichSpout,
    BasicOutputCollector,
    FailedException,
    LocalCluster,
    LocalTopology,
    StormTopology,
    StreamDeclarer,
    TopologyBuilder,
    Tuple,
)
from trident.storm.execution.storm_worker import WorkerSnapshot, WorkerSnapshots
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import lay_out
from trident.storm.testing import MockedSpout, SteppedCluster
from trident.storm.topology_monitor import Collected, TopologyMonitor

parsed: Callable[[str], Any] = parser.text_string_to_metric_families
WORDS = sum(len(sentence.split()) for (sentence,) in SENTENCES)


class Slow(BaseBasicBolt):
    """Takes half a second for each sentence, on the clock of the test; fails the empty one."""

    cluster: SteppedCluster

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("word: string")
        declarer.declare_stream("lengths", "length: bigint")

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        if tuple.is_tick:
            return
        Slow.cluster.advance(0.5)
        if not tuple["sentence"]:
            raise FailedException("empty")
        for word in tuple["sentence"].split():
            collector.emit([word])
        collector.emit([len(tuple["sentence"])], "lengths")


def slow_topology() -> StormTopology:
    builder = TopologyBuilder()
    builder.set_spout("sentences", MockedSpout("sentence: string", *SENTENCES, replay=False))
    builder.set_bolt("split", Slow()).shuffle_grouping("sentences").add_configuration("tick_tuple_freq_s", 0.1)
    builder.set_bolt("count", Count(), 2).fields_grouping("split", "word").set_num_tasks(3)
    return builder.create_topology()


@pytest.fixture
def seen() -> TopologyStatus:
    """The status of a topology that has come to rest after three seconds of its own clock; all else takes no time."""
    topology = slow_topology()
    with SteppedCluster(topology, name="slow") as cluster:
        Slow.cluster = cluster
        monitor = TopologyMonitor(
            cluster.conf, topology, lambda: cluster.layout, lambda: True, list, lambda: cluster.now
        )
        snapshots = WorkerSnapshots(0, cluster.executors)
        monitor.take(snapshots.take())
        cluster.advance(1)
        cluster.run()
        monitor.take(msgpack.unpackb(msgpack.packb(snapshots.take())))
        return monitor.status


def test_figures_of_a_spout_of_executors_and_of_the_topology(seen: TopologyStatus) -> None:
    over = seen.statistics.over()
    figures, count = over.components["sentences"].figures, seen.statistics.over(600).components["count"]
    assert (figures.emitted, figures.transferred, figures.acked, figures.failed) == (4, 4, 3, 1)
    assert (figures.executed, figures.execute_latency_ms, figures.process_latency_ms) == (0, None, None)
    assert figures.complete_latency_ms is not None
    assert 500 <= figures.complete_latency_ms <= 2000
    assert (count.tasks, [len(each.tasks) for each in count.executors]) == (3, [1, 2])
    assert sum(each.figures.executed for each in count.executors) == count.figures.executed == WORDS
    whole = over.figures
    assert (whole.emitted, whole.acked, whole.failed, whole.executed) == (4 + WORDS + 3 + WORDS, 3, 1, 0)
    assert over.components["__acker"].figures.executed > 0


def test_figures_of_a_bolt_and_its_streams(seen: TopologyStatus) -> None:
    split = seen.statistics.over().components["split"]
    assert (split.figures.executed, split.figures.acked, split.figures.failed) == (4, 3, 1)
    assert split.figures.execute_latency_ms == pytest.approx(500)
    assert split.figures.process_latency_ms == pytest.approx(500)
    assert split.figures.capacity == pytest.approx(2.0 / seen.uptime_s)
    assert [(each.edge.source, each.edge.stream, each.figures.executed) for each in split.inputs] == [
        ("sentences", "default", 4)
    ]
    outputs = {each.edge.stream: (each.figures.emitted, each.figures.transferred) for each in split.outputs}
    assert outputs == {"default": (WORDS, WORDS), "lengths": (3, 0)}  # lengths has no reader


def test_a_window_that_is_not_there_is_an_error(seen: TopologyStatus) -> None:
    with pytest.raises(KeyError, match=r"no window of 60 seconds; there are \[600, 10800, 86400, 0\]"):
        seen.statistics.over(60)


def test_the_page_of_a_topology_has_the_shape_of_storm_ui(seen: TopologyStatus) -> None:
    page = json.loads(json.dumps(seen.as_mapping(600)))
    assert (page["name"], page["status"], page["window"], page["windowHint"]) == ("slow", "ACTIVE", "600", "10m 0s")
    assert [(each["window"], each["windowPretty"]) for each in page["topologyStats"]] == [
        ("600", "10m 0s"),
        ("10800", "3h 0m 0s"),
        ("86400", "1d 0h 0m 0s"),
        (":all-time", "All time"),
    ]
    assert {each["acked"] for each in page["topologyStats"]} == {3}
    (spout,), bolts = page["spouts"], {each["boltId"]: each for each in page["bolts"]}
    named = "spoutId executors tasks emitted transferred completeLatency acked failed"
    assert set(spout) >= set(named.split())
    assert set(bolts) == {"split", "count"}
    assert bolts["split"]["executeLatency"] == bolts["split"]["processLatency"] == "500.000"
    assert (bolts["count"]["executors"], bolts["count"]["tasks"], bolts["count"]["executed"]) == (2, 3, WORDS)
    assert (page["executorsTotal"], page["tasksTotal"]) == (5, 6)
    assert page["workers"][0]["componentNumTasks"] == {"sentences": 1, "split": 1, "count": 3, "__acker": 1}


def test_the_page_of_a_component_has_the_shape_of_storm_ui(seen: TopologyStatus) -> None:
    split, spout = seen.component_as_mapping("split"), seen.component_as_mapping("sentences")
    assert (split["componentType"], spout["componentType"]) == ("bolt", "spout")
    assert len(split["boltStats"]) == len(spout["spoutSummary"]) == 4
    assert [each["component"] for each in split["inputStats"]] == ["sentences"]
    assert [each["stream"] for each in split["outputStats"]] == ["default", "lengths"]
    assert [each["id"] for each in seen.component_as_mapping("count")["executorStats"]] == ["[3-3]", "[4-5]"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59, "59s"), (3_600, "1h 0m 0s"), (90_061, "1d 1h 1m 1s"), (600, "10m 0s"), (-5, "0s")],
)
def test_durations_are_written_as_in_storm_ui(seconds: float, text: str) -> None:
    assert pretty_seconds(seconds) == text


@contextmanager
def running(topology: StormTopology, **conf: Any) -> Iterator[LocalTopology]:
    with LocalCluster() as cluster:
        yield cluster.submit_topology("words", conf, topology)


def test_status_of_a_running_topology() -> None:
    with running(word_count(), workers=2) as topology:
        until(lambda: topology.status.statistics.over().figures.acked == len(SENTENCES), "all is acked")
        status = topology.status
        assert (status.name, status.active, status.executors, status.tasks) == ("words", True, 8, 8)
        assert [each.number for each in status.workers] == [0, 1]
        assert status.pending == 0
        assert status.statistics.over(600).components["count"].figures.executed == WORDS
        topology.deactivate()
        assert not topology.status.active
    assert topology.status.statistics.over().figures.acked == len(SENTENCES)  # there after the end, too


class DiesAtFirst(Count):
    """Its first instance raises at the third tuple."""

    died = threading.Event()

    def execute(self, tuple: Tuple) -> None:
        if len(self.counts) == 2 and not DiesAtFirst.died.is_set():
            DiesAtFirst.died.set()
            raise ValueError("the third one")
        super().execute(tuple)


def test_what_a_worker_did_before_it_died_is_counted_and_its_error_is_shown() -> None:
    DiesAtFirst.died.clear()
    words = MockedSpout("word: string", *[[f"w{n}"] for n in range(10)])
    with running(chain(words=words, count=DiesAtFirst()), message_timeout_s=0.5) as topology:
        until(lambda: topology.status.statistics.over().components["count"].figures.acked >= 12, "all is acked")
        status = topology.status
    figures = status.statistics.over().components["count"].figures
    assert figures.executed == figures.acked + 1  # the one that raised
    (error,) = status.errors
    assert (error.component, error.task) == ("count", 2)
    assert "ValueError: the third one" in error.text
    shown = status.as_mapping()["bolts"][0]
    assert "the third one" in shown["lastError"]
    assert shown["errorHost"] == error.host


def test_metrics_are_served_in_open_metrics() -> None:
    with running(word_count(), metrics_port=0) as topology:
        until(lambda: topology.status.statistics.over().figures.acked == len(SENTENCES), "all is acked")
        assert topology.metrics_url is not None
        request = urllib.request.Request(topology.metrics_url, headers={"Accept": "application/openmetrics-text"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            families = {each.name: each.samples for each in parsed(answer.read().decode())}
    executed = {(s.labels["component"], s.labels["source"]): s.value for s in families["trident_storm_executed"]}
    assert executed == {("split", "sentences"): len(SENTENCES), ("count", "split"): WORDS}
    (acked,) = (s.value for s in families["trident_storm_acked"] if s.labels["component"] == "sentences")
    assert acked == len(SENTENCES)
    components = {s.labels["component"] for s in families["trident_storm_capacity_ratio"]}
    assert components == {"sentences", "split", "count", "__acker"}
    assert families["trident_storm_complete_seconds"][0].value < 10
    page = (Path(__file__).parents[2] / "docs" / "storm" / "bolts.md").read_text(encoding="utf-8")
    served = {name for name in families if name.startswith("trident_")}
    assert {name.removesuffix("_total") for name in re.findall(r"`(trident_\w+)`", page)} == served


def test_a_port_that_is_taken_is_an_error_before_anything_runs() -> None:
    with running(word_count(), metrics_port=0) as topology:
        assert topology.metrics_url is not None
        taken = int(topology.metrics_url.rpartition(":")[2].partition("/")[0])
        before = threading.active_count()
        with pytest.raises(ConfigError, match="another program or topology has the port"), LocalCluster() as other:
            other.submit_topology("other", {"metrics_port": taken}, word_count())
        assert threading.active_count() == before


def test_a_line_with_the_statistics_is_logged_from_time_to_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trident.storm")
    with running(word_count(), log_interval_s=0.001) as topology:
        until(lambda: topology.status.statistics.over().figures.acked == len(SENTENCES), "all is acked")
        until(lambda: any("messages/s acked in " in each.getMessage() for each in caplog.records), "a line is logged")
    line = next(each.getMessage() for each in caplog.records if "messages/s acked in " in each.getMessage())
    assert line.startswith("topology words: ")
    assert "0 failed" in line
    assert "busiest: " in line


class Blocks(BaseRichSpout):
    go = threading.Event()

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("word")

    def next_tuple(self) -> None:
        Blocks.go.wait(20)


def test_a_spout_that_blocks_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    Blocks.go.clear()
    with running(chain(blocks=Blocks(), count=Count()), message_timeout_s=0.1) as topology:
        until(lambda: "has been in one call" in caplog.text, "it is told of")
        assert topology.status.errors == ()
        Blocks.go.set()
    (warning,) = (each.getMessage() for each in caplog.records if "has been in one call" in each.getMessage())
    assert re.search(r"`blocks` \(task 1\) has been in one call for \d+ s: next_tuple \(", warning)
    assert "): Blocks.go.wait(20). Its tuples, acks and timeouts wait for it." in warning
    assert "next_tuple must return" in warning


LAYOUT = lay_out(word_count(), workers=2, ackers=1)
SPLIT, COUNT = LAYOUT.tasks["split"], LAYOUT.tasks["count"]


@dataclass
class Worker:
    """Counts tuples of one task since it started, as a worker's process does."""

    number: int
    task: int
    start: int = 1
    snapshots: int = 0
    executed: int = 0
    pending: int = 0
    sent: list[WorkerSnapshot] = field(default_factory=list)

    def snapshot(self) -> WorkerSnapshot:
        self.snapshots += 1
        taken: WorkerSnapshot = {
            "worker": self.number,
            "start": self.start,
            "number": self.snapshots,
            "host": "here",
            "pid": 1,
            "uptime_s": 0.0,
            "totals": [((self.task, "executed", "split", "default"), self.executed)],
            "pending": self.pending,
            "port": 0,
            "calls": [],
        }
        self.sent.append(taken)
        return taken

    def restart(self) -> None:
        self.start, self.snapshots, self.executed, self.sent = self.start + 1, 0, 0, []


ACTIONS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(["work", "snapshot", "restart", "again"]), st.integers(1, 5)),
    max_size=60,
)


@given(ACTIONS)
def test_totals_are_what_was_told_whichever_workers_start_again(actions: list[tuple[int, str, int]]) -> None:
    collected = Collected(word_count(), 0)
    workers = [Worker(0, COUNT[0]), Worker(1, COUNT[1])]
    told = 0
    for second, (at, action, amount) in enumerate(actions):
        worker = workers[at]
        before = worker.sent[-1]["totals"][0][1] if worker.sent else 0
        if action == "work":
            worker.executed += amount
        elif action == "restart":
            worker.restart()
        elif action == "snapshot":
            told += worker.executed - int(before)
            collected.take(msgpack.unpackb(msgpack.packb(worker.snapshot())), second)
        elif worker.sent:
            collected.take(worker.sent[0], second)
    found = collected.statistics(LAYOUT, len(actions), {}).over().components["count"]
    assert found.figures.executed == told == sum(each.figures.executed for each in found.executors)


def test_figures_stay_with_their_tasks_when_executors_change() -> None:
    collected = Collected(word_count(), 0)
    for number, task in enumerate(COUNT[:2]):
        worker = Worker(number, task, executed=10 + number)
        collected.take(worker.snapshot(), 1)
    rebalanced = lay_out(word_count(), workers=1, ackers=1, executors={"count": 1})
    found = collected.statistics(rebalanced, 2, {}).over().components["count"]
    assert [(each.name, each.figures.executed) for each in found.executors] == [(f"[{COUNT[0]}-{COUNT[-1]}]", 21)]


def test_what_a_worker_had_pending_that_a_rebalance_took_away_is_not_waited_for() -> None:
    layouts, now = [LAYOUT], [0.0]
    monitor = TopologyMonitor(StormConfig(), word_count(), lambda: layouts[-1], lambda: True, list, lambda: now[0])
    for worker in (Worker(0, COUNT[0], pending=1), Worker(1, COUNT[1], pending=5)):
        monitor.take(worker.snapshot())
    assert (monitor.status.pending, monitor.status.at_work.left) == (6, "6 pending")
    layouts.append(lay_out(word_count(), workers=1, ackers=1))
    now[0] = 600.0
    monitor.take(Worker(0, COUNT[0], start=2).snapshot())
    status = monitor.status
    assert (status.pending, status.at_work.left, status.at_work.moved_s) == (0, "", 0.0)


def _totals(task: int, executed: int, seconds: float) -> WorkerSnapshot:
    worker = Worker(task, task, executed=executed).snapshot()
    worker["totals"] += [
        ((task, "execute_s", "split", "default"), seconds),
        ((task, "execute_s", "__system", "__tick"), 1),
    ]
    return worker


def test_capacity_is_the_busy_share_of_the_busiest_executor_in_the_last_ten_minutes() -> None:
    collected = Collected(word_count(), 0)
    collected.take(_totals(COUNT[0], 100, 49.0), 100)
    collected.take(_totals(COUNT[1], 100, 24.0), 100)
    for window in collected.statistics(LAYOUT, 100, {}).windows:  # it is of the last ten minutes in all windows
        found = window.components["count"]
        assert [each.figures.capacity for each in found.executors] == [0.5, 0.25, 0.0]
        assert found.figures.capacity == 0.5
        assert found.figures.execute_latency_ms == 73.0 / 200 * 1000  # without that of ticks
        assert [each.edge.source for each in found.inputs] == ["split"]
    later = collected.statistics(LAYOUT, 100 + 640, {})
    assert later.over(600).components["count"].figures.capacity == 0
    assert later.over(600).components["count"].figures.execute_latency_ms is None
    assert later.over(10_800).components["count"].figures.executed == 200
