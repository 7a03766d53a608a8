"""Declarations are checked at the call, or when the topology is created; errors name component, stream and field."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.storm.components import Count, Split, word_count
from trident.errors import ConfigError, TopologyError
from trident.storm import BaseBasicBolt, LocalCluster, StormConfig, StreamDeclarer, TopologyBuilder
from trident.storm.builder import BoltDeclarer
from trident.storm.storm_topology import lay_out
from trident.storm.testing import MockedSpout


class TwoStreams(BaseBasicBolt):
    """Declares a stream of its own and a direct one."""

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare_stream("errors", "text: string")
        declarer.declare_stream("direct", "text: string", direct=True)


class RichPrepare(BaseBasicBolt):
    """Has the `prepare` of a rich bolt."""

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:  # type: ignore[override]
        pass


class Twice(BaseBasicBolt):
    """Declares one stream twice."""

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("a")
        declarer.declare("b")


def built(connect: Callable[[BoltDeclarer], Any]) -> TopologyBuilder:
    builder = TopologyBuilder()
    builder.set_spout("sentences", MockedSpout("sentence: string"))
    builder.set_bolt("two", TwoStreams()).shuffle_grouping("sentences")
    connect(builder.set_bolt("split", Split()))
    return builder


@pytest.mark.parametrize(
    ("connect", "text"),
    [
        (lambda bolt: bolt, "bolt 'split' reads nothing"),
        (
            lambda bolt: bolt.shuffle_grouping("sentence"),
            "component 'sentence', which is not set; did you mean 'sentences'",
        ),
        (
            lambda bolt: bolt.shuffle_grouping("two", "error"),
            "stream 'error' of component 'two'.*did you mean 'errors'",
        ),
        (lambda bolt: bolt.fields_grouping("sentences", "word"), "by field 'word', but it has \\['sentence'\\]"),
        (lambda bolt: bolt.partial_key_grouping("sentences", "sentense"), "did you mean 'sentence'"),
        (lambda bolt: bolt.shuffle_grouping("two", "direct"), "the stream is direct; use direct_grouping"),
        (lambda bolt: bolt.direct_grouping("sentences"), "the stream is not direct; use another grouping"),
    ],
)
def test_create_topology_refuses(connect: Callable[[BoltDeclarer], Any], text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        built(connect).create_topology()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda b: b.set_bolt("spout", Split()), "'spout' is set twice"),
        (lambda b: b.set_bolt("__acker", Split()), "cannot name a component"),
        (lambda b: b.set_bolt("bolt", Split(), 0), "parallelism=0 must be a whole number from 1 to 10,000"),
        (lambda b: b.set_bolt("bolt", Split(), 1 << 70), "must be a whole number from 1 to 10,000"),
        (lambda b: b.set_bolt("bolt", object()), "object has no prepare"),
        (lambda b: b.set_spout("other", object()), "object has no open"),
        (lambda b: b.set_bolt("bolt", Split(), 3).set_num_tasks(2), "it has 3 executors"),
        (lambda b: b.set_bolt("bolt", Split()).fields_grouping("spout", []), "needs at least one field"),
        (lambda b: b.set_bolt("bolt", Split()).custom_grouping("spout", object()), "object needs prepare"),
        (
            lambda b: b.set_bolt("bolt", Split()).shuffle_grouping("spout").all_grouping("spout"),
            "reads stream 'default' of 'spout' twice \\(shuffle and all\\)",
        ),
        (lambda b: TopologyBuilder().create_topology(), "has no spout"),
        (lambda b: StreamDeclarer("x").declare_stream("__tick", "a"), "does not begin with '__'"),
        (lambda b: b.set_bolt("bolt", Split), "Split is a class; give an instance of it, Split\\(…\\)"),
        (lambda b: b.set_spout("other", MockedSpout), "MockedSpout is a class"),
        (lambda b: b.set_bolt("bolt", RichPrepare()), "so it is a basic bolt, which needs prepare\\(conf, context\\)"),
        (lambda b: b.set_bolt("bolt", Twice()), "component 'bolt' declares stream 'default' twice"),
    ],
)
def test_a_wrong_call_is_refused(call: Callable[[TopologyBuilder], Any], text: str) -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout", MockedSpout("a"))
    with pytest.raises(TopologyError, match=text):
        call(builder)


def test_a_component_that_holds_a_lock_is_refused_by_name() -> None:
    split = Split()
    split.lock = threading.Lock()  # type: ignore[attr-defined]
    with LocalCluster() as cluster, pytest.raises(TopologyError, match="component 'split': Split cannot be pickled"):
        cluster.submit_topology("words", None, word_count(split))


def test_storms_names_of_settings_are_read() -> None:
    conf = StormConfig.of({"topology.workers": "3", "topology.message.timeout.secs": 5, "topology.acker.executors": 0})
    assert (conf.workers, conf.message_timeout_s, conf.ackers) == (3, 5, 0)
    assert StormConfig.of(workers=4).ackers == 4


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"worker": 1}, "unknown setting 'worker'; did you mean 'workers'"),
        ({"workers": 0}, "workers=0: give a whole number from 1 to 10000"),
        ({"message_timeout_s": 0}, "message_timeout_s=0: give seconds above 0"),
        ({"acker_executors": -1}, "acker_executors=-1: give a whole number from 0 to 10000 or None"),
        ({"metrics_port": 70000}, "metrics_port=70000: give a whole number from 0 to 65535 or None"),
        ({"debug": "maybe"}, "debug='maybe': give true or false"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        StormConfig.of(settings)


def test_a_setting_of_the_whole_topology_cannot_be_set_for_one_component() -> None:
    bolt = TopologyBuilder().set_bolt("count", Count())
    bolt.add_configuration("topology.tick.tuple.freq.secs", 2).add_configuration("mine", 1)
    with pytest.raises(ConfigError, match="workers cannot be set for one component"):
        bolt.add_configuration("topology.workers", 2)


def test_executors_share_tasks_evenly_and_are_dealt_to_workers_in_turn() -> None:
    builder = TopologyBuilder()
    builder.set_spout("sentence", MockedSpout("sentence"), 1)
    builder.set_bolt("split", Split(), 2).set_num_tasks(4).shuffle_grouping("sentence")
    layout = lay_out(builder.create_topology(), 2, 1)
    assert [(each.component, each.tasks, each.worker) for each in layout.executors] == [
        ("sentence", (1,), 0),
        ("split", (2, 3), 1),
        ("split", (4, 5), 0),
        ("__acker", (6,), 1),
    ]
    moved = lay_out(builder.create_topology(), 3, 1, {"split": 4})
    assert moved.tasks == layout.tasks
    assert [each.tasks for each in moved.executors if each.component == "split"] == [(2,), (3,), (4,), (5,)]
