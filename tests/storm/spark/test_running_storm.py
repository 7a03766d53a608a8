"""Topologies of spouts and bolts on a local Spark."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.harness.commands import until
from tests.storm.spark.journaled import Journal, pids, settings, word_count
from trident.observe.component_statistics import Figures
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
