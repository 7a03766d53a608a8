"""What goes wrong in the user's code or settings, and what is said of it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.harness.commands import until
from tests.storm.spark.journaled import CountBolt, Journal, QueueSpout, SplitBolt, pids, settings, word_count
from trident.errors import ConfigError, EnvironmentProblem, TopologyError
from trident.storm import BaseRichBolt, TopologyBuilder, TopologyContext, TopologyDiedError, Tuple

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


class FailsOnce(CountBolt):
    """Raises at message 50, in its first life only."""

    def execute(self, tuple: Tuple) -> None:
        if tuple["id"] == 50 and not self.journal.path.with_suffix(".raised").exists():
            self.journal.path.with_suffix(".raised").touch()
            raise ValueError("word 50 is bad")
        super().execute(tuple)


class FailsAlways(SplitBolt):
    def execute(self, tuple: Tuple) -> None:
        raise KeyError("no such word")


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


class Unsendable(SplitBolt):
    def execute(self, tuple: Tuple) -> None:
        self.collector.emit([tuple["id"], "\ud800"], tuple)
        self.collector.ack(tuple)


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


@pytest.mark.long
def test_workers_that_die_too_often_end_the_topology_with_their_cause(journal: Journal) -> None:
    running = with_split(journal, FailsAlways()).start(settings(max_worker_deaths=2))
    with pytest.raises(
        TopologyDiedError, match="its workers died 3 times .* of: component 'split', task 2: execute .*no such"
    ):
        running.await_termination(60)
    assert isinstance(running.exception(), TopologyDiedError)
    assert not running.is_active
    assert "failed: topology 'words' ended" in repr(running)
    running.stop()
    with pytest.raises(TopologyError, match="topology 'words' has ended"):
        running.rebalance(workers=1)


def test_a_bolt_that_cannot_be_prepared_fails_the_start(journal: Journal) -> None:
    with pytest.raises(TopologyDiedError, match="'split', task 2: prepare.*the store is away"):
        with_split(journal, CannotBePrepared()).start(settings(max_worker_deaths=1))


def test_a_spout_that_blocks_does_not_hang_the_stop_and_is_named(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_value_that_cannot_be_sent_names_stream_and_field(journal: Journal) -> None:
    builder = with_split(journal, Unsendable())
    builder.set_bolt("count", CountBolt(journal)).shuffle_grouping("split")
    running = builder.start(settings(max_worker_deaths=0))
    with pytest.raises(TopologyDiedError, match="field 'word'.*lone surrogate"):
        running.await_termination(60)


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
def test_a_rebalance_whose_workers_are_late_leaves_the_topology_as_active_as_it_was(
    journal: Journal, was_active: bool
) -> None:
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
