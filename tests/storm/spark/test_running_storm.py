"""Topologies of spouts and bolts on a local Spark, and what is said when something of theirs goes wrong."""

import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.harness.commands import until
from tests.storm.spark.journaled import CountBolt, Journal, QueueSpout, SplitBolt, pids, settings, word_count
from trident.errors import ConfigError, EnvironmentProblem, TopologyError
from trident.observe.component_statistics import Figures
from trident.storm import BaseRichBolt, TopologyBuilder, TopologyContext, TopologyDiedError, Tuple
from trident.storm.spark.running_storm import RunningStormTopology

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def figures(running: RunningStormTopology, component: str) -> Figures:
    return running.status.statistics.over().components[component].figures


def tasks(running: RunningStormTopology) -> dict[str, set[int]]:
    found = running.status.statistics.over().components
    return {name: {task for one in each.executors for task in one.tasks} for name, each in found.items()}


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def test_words_are_counted_exactly_and_nothing_is_left_behind(journal: Journal, spark: SparkSession) -> None:
    threads = set(threading.enumerate())
    with word_count(journal, 300).start(settings()) as running:
        until(lambda: len(journal.acked()) == 300, "all messages are acknowledged")
        until(lambda: figures(running, "sentences").acked == 300, "the driver has heard of it")
        until(lambda: figures(running, "split").emitted == 1500, "the driver has heard of the other worker")
        until(lambda: figures(running, "count").executed == 1500, "the driver has heard of it")
        status, workers = running.status, running.workers
        connections = psutil.Process().net_connections()
    assert not journal.check(300)
    assert (status.active, status.pending, running.deaths) == (True, 0, 0)
    assert [each["state"] for each in workers] == ["running", "running"]
    assert {each["pid"] for each in workers} == {each.pid for each in status.workers}
    assert len(status.workers) == 2
    assert repr(running) == "RunningStormTopology('words', stopped, 2 workers)"
    assert (running.status.active, running.exception()) == (False, None)
    until(lambda: not set(threading.enumerate()) - threads, "its threads have ended")
    assert len(psutil.Process().net_connections()) < len(connections)
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()


@pytest.mark.sample(1)
@pytest.mark.parametrize("worker", [0, 1])
def test_a_killed_worker_is_back_within_ten_seconds_and_nothing_is_lost(journal: Journal, worker: int) -> None:
    with word_count(journal, 1500).start(settings()) as running:
        until(lambda: len(journal.acked()) > 200, "it is in the middle")
        killed, other = pids(running)[worker], pids(running)[1 - worker]
        os.kill(killed, signal.SIGKILL)
        began = time.monotonic()
        until(lambda: pids(running)[worker] not in (0, killed), "the death is seen")
        until(lambda: all(each["state"] == "running" for each in running.workers), "the worker is back")
        assert time.monotonic() - began < 10
        until(lambda: len(journal.acked()) == 1500, "all messages are acknowledged")
        assert pids(running)[1 - worker] == other
        assert running.deaths == 1
    extra = journal.check(1500)
    assert len(extra) <= 200, "no more than what was pending, of the spout that died and of the one that came back"


@pytest.mark.long
def test_a_stopped_process_is_replaced_and_ends_when_it_wakes_up(journal: Journal) -> None:
    with word_count(journal, 1500).start(settings(worker_timeout_s=3.0)) as running:
        until(lambda: len(journal.acked()) > 100, "it is in the middle")
        stopped = psutil.Process(pids(running)[0])
        stopped.suspend()
        until(lambda: running.deaths == 1, "it is missed")
        until(lambda: pids(running)[0] not in (0, stopped.pid), "another one runs in its place")
        if stopped.is_running():
            stopped.resume()
        stopped.wait(30)
        until(lambda: len(journal.acked()) == 1500, "all messages are acknowledged")
        assert running.deaths == 1
    journal.check(1500)


def test_deactivated_spouts_emit_nothing_until_they_are_activated(journal: Journal) -> None:
    with word_count(journal, 2000).start(settings(), active=False) as running:
        assert running.is_deactivated
        assert running.drain(20)
        assert not journal.acked()
        running.activate()
        until(lambda: len(journal.acked()) > 50, "it runs")
        assert not running.is_deactivated
        running.deactivate()
        assert running.drain(20)
        acked = len(journal.acked())
        assert acked < 2000
        assert not running.status.active
        assert running.pending == 0
        assert len(journal.acked()) == acked
        running.activate()
        until(lambda: len(journal.acked()) == 2000, "it goes on")
    assert not journal.check(2000)


def test_stop_waits_for_what_is_pending(journal: Journal) -> None:
    running = word_count(journal, 100_000).start(settings())
    until(lambda: len(journal.acked()) > 50, "it runs")
    running.stop()
    emitted = {int(line[1]) for line in journal.lines() if line[0] == "L"}
    assert emitted == journal.acked()
    assert running.await_termination(0)
    running.stop()


def test_a_rebalance_moves_tasks_and_loses_nothing(journal: Journal) -> None:
    with word_count(journal, 2000).start(settings()) as running:
        until(lambda: len(journal.acked()) > 50, "it runs")
        before = tasks(running)
        running.rebalance(workers=1, executors={"count": 2})
        assert len(running.workers) == 1
        until(lambda: len(journal.acked()) == 2000, "it goes on")
        assert tasks(running) == before
        assert len(running.status.statistics.over().components["count"].executors) == 2
        assert running.deaths == 0
    assert not journal.check(2000)


class FailsOnce(CountBolt):
    """Raises at message 50, in its first life only."""

    def execute(self, tuple: Tuple) -> None:
        if tuple["id"] == 50 and not self.journal.path.with_suffix(".raised").exists():
            self.journal.path.with_suffix(".raised").touch()
            raise ValueError("word 50 is bad")
        super().execute(tuple)


class CannotBePrepared(SplitBolt):
    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: Any) -> None:
        raise ConnectionError("the store is away")


class Blocks(QueueSpout):
    """Its 20th call does not return."""

    def next_tuple(self) -> None:
        super().next_tuple()
        if self.messages - len(self.waiting) == 20:
            threading.Event().wait()


class SlowToPrepareAgain(SplitBolt):
    """From its second life on it is prepared only once a test says so."""

    def __init__(self, journal: Journal) -> None:
        self.lived, self.go = journal.path.with_suffix(".lived"), journal.path.with_suffix(".go")

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: Any) -> None:
        super().prepare(conf, context, collector)
        if self.lived.exists():
            until(self.go.exists, "it may be prepared")
        self.lived.touch()


def with_split(journal: Journal, split: BaseRichBolt) -> TopologyBuilder:
    builder = TopologyBuilder()
    builder.set_spout("sentences", QueueSpout(journal, 100))
    builder.set_bolt("split", split).shuffle_grouping("sentences")
    return builder


def test_an_exception_is_reported_and_the_worker_comes_back_with_fresh_instances(journal: Journal) -> None:
    builder = TopologyBuilder()
    builder.set_spout("sentences", QueueSpout(journal, 300))
    builder.set_bolt("split", SplitBolt()).shuffle_grouping("sentences")
    builder.set_bolt("count", FailsOnce(journal)).fields_grouping("split", "word")
    with builder.start(settings()) as running:
        until(lambda: len(journal.acked()) == 300, "all messages are acknowledged")
        (error,) = running.status.errors
        assert running.deaths == 1
    journal.check(300)
    assert (error.component, error.task, error.host) == ("count", 3, os.uname().nodename)
    assert abs(error.time - time.time()) < 100
    assert "ValueError: word 50 is bad" in error.text
    assert ", in execute\n" in error.text
    assert [line[1] for line in journal.lines() if line[0] == "O"].count("count") == 2


def test_a_bolt_that_cannot_be_prepared_fails_the_start(journal: Journal) -> None:
    with pytest.raises(TopologyDiedError, match="'split', task 2: prepare.*the store is away"):
        with_split(journal, CannotBePrepared()).start(settings(max_worker_deaths=1))


def test_a_spout_that_blocks_is_named_and_hangs_no_stop(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    builder = TopologyBuilder()
    builder.set_spout("sentences", Blocks(journal, 100))
    builder.set_bolt("split", SplitBolt()).shuffle_grouping("sentences")
    with caplog.at_level(logging.WARNING, "trident.storm"):
        running = builder.start(settings(message_timeout_s=1.0, drain_timeout_s=1.0, workers=1))
        until(lambda: "`sentences` (task 1) has been in one call for " in caplog.text, "it is warned of")
        began = time.monotonic()
        running.stop()
    assert time.monotonic() - began < 30
    assert "worker 0 ended, but a call of its code does not return: sentences-1: in next_tuple (" in caplog.text
    assert "messages are still pending after drain_timeout_s=1" in caplog.text


def test_fewer_slots_than_workers_are_an_error_at_once(journal: Journal) -> None:
    with pytest.raises(
        EnvironmentProblem,
        match=r"topology 'words' has 3 workers, .* but local\[2\] has 2 slots; .* start Spark with master='local\[3\]'",
    ):
        word_count(journal, 1).start(settings(workers=3))
    with (
        word_count(journal, 1).start(settings(workers=1)),
        pytest.raises(EnvironmentProblem, match="has 2 slots, of which 1 run other topologies"),
    ):
        word_count(journal, 1).start(settings())


@pytest.mark.parametrize("was_active", [True, False])
def test_a_rebalance_with_late_workers_leaves_a_topology_as_it_was(journal: Journal, was_active: bool) -> None:
    builder = with_split(journal, SlowToPrepareAgain(journal))
    builder.set_bolt("count", CountBolt(journal)).shuffle_grouping("split")
    with builder.start(settings(workers=1)) as running:
        if not was_active:
            running.deactivate()
        running._launch = replace(running._launch, conf=replace(running.conf, start_timeout_s=0.5))
        with pytest.raises(EnvironmentProblem, match="not all workers are up after start_timeout_s=0.5"):
            running.rebalance(executors={"count": 1}, wait_s=0)
        assert running.is_deactivated is not was_active
        journal.path.with_suffix(".go").touch()
        until(lambda: all(each["state"] == "running" for each in running.workers), "its worker is up")
        if was_active:
            until(lambda: len(journal.acked()) == 100, "it goes on")
        assert running.is_deactivated is not was_active


def test_a_rebalance_that_cannot_be_is_refused_and_the_topology_goes_on(journal: Journal) -> None:
    with word_count(journal, 200).start(settings()) as running:
        with pytest.raises(
            TopologyError, match=r"no component 'counts' among \['__acker', 'count', 'sentences', 'split'\]"
        ):
            running.rebalance(executors={"counts": 1})
        with pytest.raises(
            TopologyError, match="component 'count' has 2 tasks, so it can have 1 to 2 executors, not 3"
        ):
            running.rebalance(executors={"count": 3})
        with pytest.raises(EnvironmentProblem, match=r"local\[2\] has 2 slots"):
            running.rebalance(workers=3)
        with pytest.raises(ConfigError, match="workers=0: give a whole number from 1 to 10000"):
            running.rebalance(workers=0)
        until(lambda: len(journal.acked()) == 200, "it goes on")
        assert all(pids(running))
    assert not journal.check(200)
