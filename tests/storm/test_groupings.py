"""Declarations are checked; which values may be emitted, in which form, and which tasks get them."""

import datetime as dt
import math
import re
import threading
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import pytest

from tests.storm.random_trees import Count, Split, word_count
from trident.errors import ConfigError, TopologyError
from trident.fields import Fields
from trident.storm import (
    BaseBasicBolt,
    BaseRichBolt,
    BaseRichSpout,
    LocalCluster,
    StormConfig,
    StreamDeclarer,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from trident.storm.builder import BoltDeclarer
from trident.storm.execution.out_streams import OutStream, _by_hash
from trident.storm.storm_topology import lay_out
from trident.storm.storm_tuples import Origin, StreamSpec
from trident.storm.testing import MockedSpout, SteppedCluster

KEYS = [1, 1.0, True, "a", b"a", None, -0.0, 0.0, "b", "c", "d"] * 4


class Keep(BaseRichBolt):
    """Keeps the values that its task gets."""

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self.got: list[Any] = []

    def execute(self, tuple: Tuple) -> None:
        self.got.append(tuple[0])
        self.collector.ack(tuple)


def spread(
    group: Callable[[BoltDeclarer], Any],
    tasks: int = 4,
    keys: Sequence[Any] = KEYS,
    field: str = "key",
    **settings: Any,
) -> list[list[Any]]:
    builder = TopologyBuilder()
    builder.set_spout("spout", MockedSpout(field, *[[key] for key in keys]))
    group(builder.set_bolt("keep", Keep(), tasks))
    with SteppedCluster(builder.create_topology(), **settings) as cluster:
        cluster.run()
        assert len(cluster.spout("spout").acked) == len(keys)
        return [cluster.instance("keep", at).got for at in range(tasks)]


def test_equal_keys_go_to_one_task_and_types_differ() -> None:
    got = spread(lambda bolt: bolt.fields_grouping("spout", "key"))
    owners: dict[Any, set[int]] = {}
    for task, keys in enumerate(got):
        for key in keys:
            owners.setdefault((type(key), key), set()).add(task)
    assert all(len(tasks) == 1 for tasks in owners.values())
    assert got == spread(lambda bolt: bolt.fields_grouping("spout", "key"), seed=9)  # and to the same one every time


NOON = dt.datetime(2024, 10, 27, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("type_", "forms"),
    [
        ("double", [7, 7.0]),
        ("double", [0, 0.0, -0.0]),
        ("float", [7, 7.0]),
        ("double", [math.nan, -math.nan, math.inf - math.inf]),
        ("decimal(10,2)", [7, Decimal(7), Decimal("7.00"), Decimal("0.7E+1")]),
        ("timestamp", [NOON, NOON.astimezone(dt.timezone(dt.timedelta(hours=9)))]),
        ("array<double>", [[0, None], [-0.0, None], (0.0, None)]),
        ("array<decimal(10,2)>", [[7], [Decimal("7.00")]]),
        ("struct<a:timestamp,b:float>", [{"a": NOON, "b": 1}, {"b": 1.0, "a": NOON.astimezone(dt.timezone.max)}]),
        ("map<double,array<float>>", [{0: [1]}, {-0.0: [1.0]}]),
    ],
)
@pytest.mark.parametrize("grouping", [BoltDeclarer.fields_grouping, BoltDeclarer.partial_key_grouping])
def test_a_value_of_a_declared_type_is_emitted_in_one_form(type_: str, forms: list[Any], grouping: Any) -> None:
    for tasks in (2, 7, 31):
        got = spread(lambda bolt: grouping(bolt, "spout", "key"), tasks, forms, field=f"key: {type_}")
        texts = [repr(value) for keys in got for value in keys]
        assert texts == [texts[0]] * len(forms)
        assert sum(map(bool, got)) <= (1 if grouping is BoltDeclarer.fields_grouping else 2)


def test_values_without_a_declared_type_are_emitted_as_they_are() -> None:
    (got,) = spread(lambda bolt: bolt.fields_grouping("spout", "key"), 1, [1, 1.0, True, -0.0, Decimal("1.00")])
    assert list(map(repr, got)) == ["1", "1.0", "True", "-0.0", "Decimal('1.00')"]


class Pair(NamedTuple):
    one: Any
    other: Any


@pytest.mark.parametrize(
    "forms",
    [
        [[0.0], [-0.0]],
        [{"a": 1, "b": [0.0]}, {"b": [-0.0], "a": 1}],
        [({1: 2, 3: 4},), ({3: 4, 1: 2},)],
        [Pair({1: 2, 3: 4}, 5), Pair({3: 4, 1: 2}, 5), ({1: 2, 3: 4}, 5)],
        [[Pair(1, 0.0)], [(1, -0.0)]],
        [{0.0, 1.5}, {-0.0, 1.5}],
    ],
)
def test_equal_values_without_a_declared_type_go_to_one_task(forms: list[Any]) -> None:
    assert sum(map(bool, spread(lambda bolt: bolt.fields_grouping("spout", "key"), 31, forms))) == 1


def test_a_moment_that_is_before_the_year_1_in_utc_is_refused_by_name() -> None:
    early = dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    with pytest.raises(TopologyError, match="'v' is declared as timestamp but got datetime"):
        stream("timestamp").accept([early])
    with pytest.raises(TopologyError, match="grouping by .*datetime.* in UTC"):
        _by_hash([0], Fields("v"), [2, 3])([early])


def test_keys_of_a_map_that_are_no_numbers_stay_two() -> None:
    two = {math.nan: 1.0, -math.nan: 2.0}
    ((got,),) = spread(lambda bolt: bolt.fields_grouping("spout", "key"), 1, [two], field="key: map<double,double>")
    assert len(got) == 2


@pytest.mark.parametrize("key", ["a", "aa", "", 0, 1, None])
def test_a_partial_key_goes_to_two_tasks_evenly(key: Any) -> None:
    for tasks in (2, 3, 5, 8):
        got = spread(lambda bolt: bolt.partial_key_grouping("spout", "key"), tasks, [key] * 10)
        assert sorted(map(len, got))[-2:] == [5, 5]


@pytest.mark.parametrize(
    ("group", "workers", "sizes"),
    [
        (BoltDeclarer.shuffle_grouping, 1, [[11, 11, 11, 11]]),
        (BoltDeclarer.none_grouping, 1, [[11, 11, 11, 11]]),
        (BoltDeclarer.all_grouping, 1, [[44, 44, 44, 44]]),
        (BoltDeclarer.global_grouping, 1, [[44, 0, 0, 0]]),
        # It stays in the worker of the spout, which has two of the four tasks.
        (BoltDeclarer.local_or_shuffle_grouping, 2, [[0, 22, 0, 22], [22, 0, 22, 0]]),
    ],
)
def test_what_each_task_gets(group: Callable[[BoltDeclarer, str], Any], workers: int, sizes: list[list[int]]) -> None:
    assert [len(got) for got in spread(lambda bolt: group(bolt, "spout"), workers=workers)] in sizes


class ByLength:
    """A custom grouping."""

    def prepare(self, context: TopologyContext, source: tuple[str, str], target_tasks: Sequence[int]) -> None:
        self.tasks = target_tasks

    def choose_tasks(self, task_id: int, values: Sequence[Any]) -> Sequence[int]:
        return [self.tasks[len(values[0]) % len(self.tasks)]] if values[0] != "wrong" else [99]


def test_a_custom_grouping_chooses() -> None:
    assert spread(lambda bolt: bolt.custom_grouping("spout", ByLength()), 2, ["a", "bb", "c"]) == [["bb"], ["a", "c"]]


def test_a_custom_grouping_that_chooses_a_wrong_task_is_named() -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout", MockedSpout("key", ["wrong"]))
    builder.set_bolt("keep", Keep()).custom_grouping("spout", ByLength())
    with SteppedCluster(builder.create_topology()) as cluster:
        cluster.step()
        assert (
            "ByLength.choose_tasks for stream 'default' of component 'spout' returned (99,)" in cluster.errors[0].text
        )


class Directs(BaseRichSpout):
    """Emits to the second task of `keep`, then to one that does not read it."""

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("key", direct=True)

    def open(self, conf: Any, context: TopologyContext, collector: Any) -> None:
        self.collector, self.tasks, self.sent = collector, context.component_tasks("keep"), 0

    def next_tuple(self) -> None:
        self.sent += 1
        if self.sent == 1:
            self.collector.emit_direct(self.tasks[1], ["here"], "id")
        elif self.sent == 2:
            with pytest.raises(
                TopologyError, match="emit_direct to task 77, which does not read it; the tasks that do are"
            ):
                self.collector.emit_direct(77, ["there"])
            with pytest.raises(TopologyError, match="is direct: name the task with emit_direct"):
                self.collector.emit(["there"])


def test_a_direct_emit_goes_to_the_named_task() -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout", Directs())
    builder.set_bolt("keep", Keep(), 2).direct_grouping("spout")
    with SteppedCluster(builder.create_topology()) as cluster:
        for _ in range(9):
            cluster.step()
        assert [cluster.instance("keep", at).got for at in range(2)] == [[], ["here"]]
        assert (cluster.errors, cluster.pending) == ([], 0)


def stream(ddl: str) -> OutStream:
    fields = Fields(f"v: {ddl}")
    return OutStream(Origin("bolt", 1, "default", fields), StreamSpec(fields), [lambda values: [2]], frozenset())


@pytest.mark.parametrize(
    ("ddl", "value", "said"),
    [
        ("bigint", 1.5, "got 1.5, a float, which is not such a value"),
        ("bigint", 2**63, "got 9223372036854775808, a int, which"),
        ("int", 3_000_000_000, "got 3000000000, a int, which"),
        ("tinyint", -129, "got -129, a int, which"),
        ("double", 2**53 + 1, "got 9007199254740993, a int, which"),
        ("float", 1e300, r"got 1e\+300, a float, which"),
        ("decimal(5,2)", Decimal("1.005"), r"got Decimal\('1.005'\), a Decimal, which"),
        ("date", dt.datetime(2024, 1, 1), "got .* a datetime, which"),
        ("timestamp_ntz", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "got .* a datetime, which"),
        ("array<int>", [1, 1.5], r"got 1.5, a float at v\[1\], which"),
        ("array<string>", "text", "got 'text', a str, which"),
        ("array<struct<a:int>>", [{"a": 1}, {"a": "x"}], r"got 'x', a str at v\[1\].a, which"),
        ("struct<a:bigint>", {"b": 1}, r"got {'b': 1}, a dict, which"),
        ("map<string,int>", {"k": 2**31}, r"got 2147483648, a int at v\['k'\], which"),
        ("map<string,int>", {None: 1}, "got {None: 1}, a dict, which"),
    ],
)
def test_what_is_not_of_its_type_is_refused_with_its_place(ddl: str, value: Any, said: str) -> None:
    declared = re.escape(f"field 'v' is declared as {ddl} but ")
    with pytest.raises(TopologyError, match=declared + said):
        stream(ddl).accept([value])


@pytest.mark.parametrize(
    ("ddl", "values"),
    [
        ("int", [0, -(2**31), 2**31 - 1, None]), ("double", [1, 0.5, None]), ("float", [0.1, None]),
        ("decimal(5,2)", [1, Decimal("1.50")]), ("array<array<int>>", [[[1], None, []], None, []]),
        ("map<string,array<double>>", [{"a": [1.5, 1]}, {}]), ("struct<a:int,b:string>", [{"b": None, "a": 1}]),
    ],
)  # fmt: skip
def test_what_is_of_its_type_travels_equal(ddl: str, values: list[Any]) -> None:
    out = stream(ddl)
    assert [out.accept([value]) for value in values] == [(value,) for value in values]


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
