"""What states and streams mean: what belongs to it, and what does not."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from spouts import (
    FeederBatchSpout,
    FixedBatchSpout,
    JsonFileSpout,
    OpaqueTridentKafkaSpout,
    TransactionalRedisStreamSpout,
)
from spouts.kafka import Json
from states.delta import DeltaState
from states.memory import MemoryBackingMap, MemoryMapState
from states.redis import RedisState
from tests.harness.topology_runs import Keep, RowsState, run_all
from trident import Stream, TridentTopology
from trident.errors import TopologyChangedError
from trident.operations import (
    BaseStateUpdater,
    Collect,
    Count,
    CountDistinct,
    FilterNull,
    Max,
    Min,
    SessionWindow,
    Split,
    Sum,
    TopN,
    TumblingCountWindow,
    TumblingDurationWindow,
    col,
)
from trident.plan.meaning import READS, Meaning, compare, meaning_of
from trident.spout import SpoutType
from trident.state import map_state
from trident.state.txid import renamed_facts

KAFKA = Json("word: string, n: bigint")


def meaning(
    field: str = "word",
    state: Any = None,
    aggregate: tuple[Any, ...] = ("n", Sum(), "total"),
    spout: Any = None,
    more: Callable[[TridentTopology, Stream], Stream] = lambda topology, stream: stream,
) -> Meaning:
    topology = TridentTopology("t")
    stream = topology.new_stream(
        "lines", spout or FixedBatchSpout("word: string, other: int, n: bigint", 1, ["a", 1, 1])
    )
    stream = more(topology, stream)
    stream.group_by(field).persistent_aggregate(state or MemoryMapState(), *aggregate, state_name="total")
    return meaning_of(topology.graph())


def test_what_belongs_to_a_state_and_to_a_stream() -> None:
    assert meaning() == Meaning(
        {
            "total": {
                "kind": "opaque",
                "key": ["word: string"],
                "value": ["total: bigint"],
                "by": "Sum",
                "of": ["n: bigint"],
                "streams": ["lines"],
                "members": {"total": ["Sum", ["n: bigint"], ["total: bigint"]]},
            }
        },
        {
            "lines": {
                "spout": "FixedBatchSpout",
                "promise": "transactional",
                "fields": ["word: string", "other: int", "n: bigint"],
            }
        },
    )


def promising(promise: SpoutType) -> FixedBatchSpout:
    spout = FixedBatchSpout("word: string, other: int, n: bigint", 1, ["a", 1, 1])
    spout.spout_type = promise
    return spout


@pytest.mark.parametrize(
    ("changed", "expected", "remedy"),
    [
        ({"field": "other"}, "state 'total': key (word: string) -> (other: int)", "count again beside it"),
        ({"state": MemoryMapState.transactional()}, "state 'total': kind opaque -> transactional", "declare it opaque"),
        (
            {"aggregate": ("n", Max(), "total")},
            "state 'total': 'total' Sum(n: bigint) -> Max(n: bigint)",
            "count again beside it",
        ),
        ({"aggregate": ("n", Sum(), "sum")}, "state 'total': value total -> sum", 'rename={"total": "sum"}'),
        (
            {"aggregate": ("other", Sum(), "total")},
            "state 'total': 'total' Sum(n: bigint) -> Sum(other: int)",
            "count again beside it",
        ),
        (
            {"spout": promising(SpoutType.OPAQUE)},
            "stream 'lines': promise transactional -> opaque",
            'new_stream("lines-2", …)',
        ),
        (
            {"spout": FeederBatchSpout("word: string, other: int, n: bigint")},
            "stream 'lines': spout FixedBatchSpout -> FeederBatchSpout",
            'new_stream("lines-2", …)',
        ),
        (
            {"spout": FixedBatchSpout("word: string, other: smallint, n: bigint", 1, ["a", 1, 1])},
            "stream 'lines': field 'other' int -> smallint",
            "or the type int",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_change_is_named_with_what_to_do(changed: dict[str, Any], expected: str, remedy: str) -> None:
    compared = compare(meaning(), meaning(**changed))
    (found,) = [one for one in compared.refused if one.text == expected]
    assert remedy in found.remedy
    assert compared.dropped == ()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"spout": FixedBatchSpout("word: string, n: bigint", 1, ["a", 1])},
            ["stream 'lines': field 'other' is no longer there"],
        ),
        (
            {"spout": FixedBatchSpout("n: bigint, word: string, other: bigint, more: date", 1, [1, "a", 1, None])},
            ["stream 'lines': field 'more' is new", "stream 'lines': field 'other' int -> bigint"],
        ),
    ],
)
def test_a_source_may_have_other_fields(changed: dict[str, Any], expected: list[str]) -> None:
    compared = compare(meaning(), meaning(**changed))
    assert (list(compared.taken), compared.refused) == (expected, ())


def test_a_log_of_a_version_that_did_not_note_aggregates_is_compared_as_a_whole() -> None:
    before, now = meaning(), meaning(aggregate=("n", Max(), "total"))
    states = {"total": {fact: value for fact, value in before.states["total"].items() if fact != "members"}}
    assert not compare(Meaning(states, before.streams), before).refused
    assert compare(Meaning(states, before.streams), now).refused


def test_what_lies_in_between_and_beside_does_not_matter() -> None:
    def busy(topology: TridentTopology, stream: Stream) -> Stream:
        topology.new_stream("more", FixedBatchSpout("n: bigint", 1, [1])).partition_persist(
            RowsState(), Keep(), state_name="rows"
        )
        topology.new_static_state(MemoryMapState(), "towns")
        return stream.filter("word", FilterNull()).shuffle().each("word", Split(), "part").name("x")

    compared = compare(meaning(), meaning(more=busy))
    assert (compared.taken, compared.refused, compared.dropped) == ((), (), ())
    assert compared.added == ("state 'rows'", "stream 'more'")
    assert compare(meaning(more=busy), meaning()).dropped == compared.added
    assert meaning(more=busy).states["rows"]["by"] == "Keep"


def test_a_stream_may_join_a_state_but_not_leave_it() -> None:
    def merged(topology: TridentTopology, stream: Stream) -> Stream:
        second = topology.new_stream("second", FixedBatchSpout("word: string, other: int, n: bigint", 1, ["a", 1, 1]))
        return topology.merge(stream, second)

    assert not compare(meaning(), meaning(more=merged)).refused
    ((text, remedy),) = compare(meaning(more=merged), meaning()).refused
    assert text == "state 'total': streams lines, second -> lines"
    assert remedy.endswith(
        "what 'second' brings, start once with allow_changed_topology=True (--conf allow_changed_topology=true)"
    )


def test_a_spout_names_what_it_reads(tmp_path: Path) -> None:
    whole = OpaqueTridentKafkaSpout("localhost:1", ["orders", "refunds"], value=KAFKA)
    parts = OpaqueTridentKafkaSpout("localhost:1", {"orders": [0, 2]}, value=KAFKA)
    every = OpaqueTridentKafkaSpout("localhost:1", re.compile("or.*"), value=KAFKA)
    entries = TransactionalRedisStreamSpout("redis://localhost:1", ["a", "b"], "word: string, n: bigint")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    files = JsonFileSpout(tmp_path / "link", "word: string, n: bigint")
    assert [meaning(spout=one).streams["lines"]["reads"] for one in (whole, parts, every, entries, files)] == [
        ["orders", "refunds"], ["orders/0", "orders/2"], ["pattern 'or.*'"], ["a", "b"], [f"{tmp_path}/in"],
    ]  # fmt: skip


def test_streams_that_exchange_partitions_are_refused_unless_the_log_is_older_than_their_names() -> None:
    def beside(*partitions: int) -> Meaning:
        first, second = (OpaqueTridentKafkaSpout("localhost:1", {"orders": [at]}, value=KAFKA) for at in partitions)
        return meaning(
            spout=first, more=lambda topology, stream: topology.merge(stream, topology.new_stream("b", second))
        )

    before, exchanged = beside(0, 1), beside(1, 0)
    assert [text for text, _ in compare(before, exchanged).refused] == [
        "stream 'lines': it reads 'orders/1' now, which stream 'b' has read for state 'total'",
        "stream 'b': it reads 'orders/0' now, which stream 'lines' has read for state 'total'",
    ]
    older = {name: {fact: one[fact] for fact in one if fact != READS} for name, one in before.streams.items()}
    assert not compare(replace(before, streams=older), exchanged).refused


def test_a_renamed_stream_is_noticed_by_its_states() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("rows", FixedBatchSpout("word: string, other: int, n: bigint", 1, ["a", 1, 1]))
    stream.group_by("word").persistent_aggregate(MemoryMapState(), "n", Sum(), "total")
    ((text, remedy),) = compare(meaning(), meaning_of(topology.graph())).refused
    assert text == "state 'total': streams lines -> rows"
    assert remedy.startswith(
        "call the stream 'lines' as before: under the name 'rows' its source is read from its start"
    )


def test_states_change_their_names_and_go_on_but_do_not_exchange_them() -> None:
    facts = meaning().states["total"]
    before = Meaning({"a": facts, "b": facts}, {})
    compared = compare(before, Meaning({"c": facts, "b": facts}, {}, {"a": "c"}))
    assert (compared.renamed, compared.taken, compared.added, compared.dropped) == (
        {"a": "c"},
        ("state 'a' is called 'c'",),
        (),
        (),
    )
    (refused,) = compare(before, Meaning({"c": facts, "b": facts}, {})).refused
    assert refused.remedy.startswith('if it has another name and is the same: TridentTopology(…, rename={"a": "c"})')
    (refused,) = compare(before, Meaning({"a": facts, "b": facts}, {}, {"a": "b", "b": "a"})).refused
    assert refused.text == "states 'a' and 'b': each has the name of the other now"
    gone_on = compare(Meaning({"b": facts}, {}), Meaning({"a": facts, "b": facts}, {}, {"a": "b"}))
    (refused,) = compare(before, Meaning({"b": facts}, {}, {"a": "b"})).refused
    assert refused.text == "state 'a': its name is 'b' now, and the log has another state of that name"
    (refused,) = compare(Meaning({"b": renamed_facts(facts, "a")}, {}), Meaning({"a": facts, "b": facts}, {})).refused
    assert refused.text == "state 'a' is new, and 'b', which used to have this name, is kept in its store under it"
    assert (gone_on.renamed, gone_on.refused, gone_on.added) == ({}, (), ("state 'a'",))


def test_aggregates_without_fields_and_keys() -> None:
    topology = TridentTopology("t")
    topology.new_stream("lines", FixedBatchSpout("n: bigint", 1, [1])).persistent_aggregate(
        MemoryMapState(), Count(), "c"
    )
    assert [meaning_of(topology.graph()).states["c"][fact] for fact in ("key", "of")] == [[], []]


@pytest.mark.parametrize(
    ("names", "rename", "remedy"),
    [
        ("ab", {"a": "b", "b": "a"}, "three starts, each with a batch and one change of name: 'a' to a third"),
        ("b", {"a": "b"}, "give 'a' a new name; or leave it out of rename=, if 'b' is to go on with what it had"),
        ("ab", {"a": "b"}, ""),
        ("ab", {"c": "b"}, ""),
    ],
)
def test_an_aggregate_does_not_take_the_name_of_another_one(names: str, rename: dict[str, str], remedy: str) -> None:
    before, now = (meaning(aggregate=({name: Sum("n") for name in of}, "v")) for of in ("ab", names))
    refused = compare(before, replace(now, rename=rename)).refused
    assert [one.remedy for one in refused if one.remedy.startswith(remedy)] == [one.remedy for one in refused]
    assert len(refused) == bool(remedy)


@pytest.mark.parametrize(
    ("stays", "remedy"), [({"rows": Count()}, "; to begin 'new' with"), ({}, "; if not, count again")]
)
def test_only_what_leaves_an_aggregate_can_be_left_out_for_a_batch(stays: dict[str, Any], remedy: str) -> None:
    before, now = (meaning(aggregate=({**stays, name: Sum("n")}, "v")) for name in ("old", "new"))
    (refused,) = compare(before, now).refused
    assert remedy in refused.remedy


def test_a_type_that_follows_from_an_input_is_not_to_be_declared() -> None:
    before, now = (
        meaning(spout=FixedBatchSpout(f"word: string, n: {type_}", 1, ["a", 1])) for type_ in ("int", "double")
    )
    (refused,) = compare(before, now).refused
    assert refused.text == "state 'total': 'total' total: bigint -> total: double"
    assert refused.remedy.startswith(
        "it follows from its input: declare that as before (n: int); or count again beside it"
    )


AGGREGATES = {"rows": Count(), "top": TopN(3, "n"), "different": CountDistinct("n")}


@pytest.mark.parametrize(
    ("changed", "text", "remedy"),
    [
        ({"top": TopN(2, "n")}, "", ""),
        ({"top": TopN(4, "n")}, "'top' TopN(n: bigint, keeps 3) -> TopN(n: bigint, keeps 4)", "top_2"),
        (
            {"different": CountDistinct("n", approximate=True)},
            "'different' CountDistinct(n: bigint, different_values: array<bigint>) -> CountDistinct(n: bigint, "
            "different_sketch: binary)",
            "different_2",
        ),
    ],
)
def test_an_aggregate_cannot_remember_more_than_it_did(changed: dict[str, Any], text: str, remedy: str) -> None:
    before = meaning(aggregate=(AGGREGATES, "v"))
    refused = compare(before, meaning(aggregate=({**AGGREGATES, **changed}, "v"))).refused
    assert [one.text for one in refused] == ([f"state 'total': {text}"] if text else [])
    assert all(remedy in one.remedy for one in refused)


@pytest.mark.parametrize(("most", "is_refused"), [(2, False), (3, False), (4, True)])
def test_an_open_window_cannot_remember_more_than_it_did(most: int, is_refused: bool) -> None:
    def kept(most: int) -> Meaning:
        topology = TridentTopology("t")
        stream = topology.new_stream("s", FixedBatchSpout("k: string, n: int", 1, ["a", 1])).group_by("k")
        stream.window(TumblingCountWindow.of(9), MemoryMapState(), {"all": Collect("n", most)})
        return meaning_of(topology.graph())

    assert bool(compare(kept(3), kept(most)).refused) == is_refused


@pytest.mark.parametrize("aggregates", [{"n": Count()}, {"m": Count()}, {"n": Max("n"), "rows": Count()}])
def test_a_struct_that_knows_no_writer_is_declared_as_it_was(aggregates: dict[str, Any]) -> None:
    state = MemoryMapState.transactional()
    before = meaning(state=state, aggregate=({"n": Sum("n"), "rows": Count()}, "v"))
    (refused,) = compare(before, meaning(state=state, aggregate=(aggregates, "v"))).refused
    assert refused.remedy.startswith(
        "a transactional state does not say which declaration wrote a value. Declare it as it"
    )


def test_a_state_with_another_name_is_found_also_if_more_of_it_changes() -> None:
    before = Meaning({"a": meaning(aggregate=({"rows": Count(), "most": Max("n")}, "v")).states["total"]}, {})
    for aggregates, is_refused in (({"rows": Count(), "least": Min("n")}, True), ({"least": Min("n")}, False)):
        facts = meaning(aggregate=(aggregates, "v")).states["total"]
        compared = compare(before, Meaning({"b": facts}, {}))
        assert ["its name is 'b' now" in one.text for one in compared.refused] == [True] * is_refused
        assert not compare(before, Meaning({"b": facts}, {}, {"a": "b"})).refused or not is_refused


@pytest.mark.slow
def test_what_a_source_gives_in_another_type_is_taken_as_it_is_told(tmp_path: Path) -> None:
    """As the changes of a state, whose members have other names: no declaration of this topology gives the former ones."""

    def run(member: str, **settings: Any) -> int | None:
        topology, rows = TridentTopology("t"), [["a", {member: 1}], ["a", {member: 2}]][: 1 if member == "n" else 2]
        given = topology.new_stream("s", FixedBatchSpout(f"k: string, after: struct<{member}:int>", 1, *rows))
        sums = given.each("after", lambda after: after[member], "n: int").group_by("k")
        sums.persistent_aggregate(DeltaState(str(tmp_path / "sums")), "n", Sum(), "sum")
        running = run_all(topology, "in_process", log_dir=str(tmp_path / "log"), **settings)
        return cast("int | None", running.state("sum").multi_get(["a"])[0])

    assert run("n") == 1
    with pytest.raises(
        TopologyChangedError, match="and the steps read it so, start once with .*allow_changed_topology=true"
    ):
        run("m")
    assert [run("m", allow_changed_topology=True), run("m")] == [3, 3]


def test_a_state_with_another_name_is_found_also_if_its_key_has_another_one() -> None:
    before = Meaning({"a": meaning("word").states["total"]}, {})
    facts = meaning("term", spout=FixedBatchSpout("term: string, n: bigint", 1, ["a", 1])).states["total"]
    (refused,) = compare(before, Meaning({"b": facts}, {}, {"word": "term"})).refused
    assert "its name is 'b' now" in refused.text
    assert not compare(before, Meaning({"b": facts}, {}, {"word": "term", "a": "b"})).refused
    assert not compare(before, Meaning({"b": facts}, {})).refused


WINDOWS = {
    "session": SessionWindow.of(timedelta(seconds=60), "at"),
    "pane": TumblingDurationWindow.of(timedelta(seconds=60)).by_event_time("at"),
    "count": TumblingCountWindow.of(4),
}


def windowed(folder: Path, kind: str, rows: int, key: str = "k", out: str = "sum", **more: Any) -> TridentTopology:
    """Return a topology whose first two rows wait in an open window."""
    topology = TridentTopology("t", rename=more.pop("rename", None))
    given = [["a", 1, 1], ["a", 2, 2], ["a", 4, 3], ["a", 8, 61_000], ["b", 0, 130_000]][:rows]
    stream = topology.new_stream("s", FixedBatchSpout(f"{key}: string, n: int, at: bigint", 1, *given))
    state = DeltaState(str(folder / more.get("state_name", "windows")))
    sums = stream.group_by(key).window(WINDOWS[kind], state, "n", Sum(), out, **more)
    sums.select(k=col(key), total=col(out)).group_by("k").persistent_aggregate(
        DeltaState(str(folder / "all")), "total", Sum(), "all"
    )
    return topology


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("kind", WINDOWS)
def test_an_open_window_goes_on_when_its_key_has_another_name(kind: str, partitions: int, tmp_path: Path) -> None:
    log: dict[str, Any] = {"log_dir": str(tmp_path / "log"), "parallelism": partitions}
    run_all(windowed(tmp_path, kind, 2), "in_process", **log)
    run_all(windowed(tmp_path, kind, 3, "user", rename={"k": "user"}), "in_process", **log)
    running = run_all(windowed(tmp_path, kind, 5, "user"), "in_process", **log)
    assert running.state("all").multi_get(["a"]) == [15]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WINDOWS)
def test_an_open_window_under_another_name_is_not_left_behind(kind: str, tmp_path: Path) -> None:
    log: dict[str, Any] = {"log_dir": str(tmp_path / "log")}
    run_all(windowed(tmp_path, kind, 2), "in_process", **log)
    with pytest.raises(
        TopologyChangedError, match="(?s)state 'sum-window': its name is 'w' now.*rename=.*\"w\""
    ) as refused:
        windowed(tmp_path, kind, 5, state_name="w").start(engine="in_process", **log)
    with pytest.raises(
        TopologyChangedError, match=r"declare its fields as they were \(sum: bigint\), with state_name=\"sum-w"
    ):
        windowed(tmp_path, kind, 5, out="n_sum").start(engine="in_process", **log)
    assert "begin with nothing" in str(refused.value)
    running = run_all(windowed(tmp_path, kind, 5), "in_process", **log)
    assert running.state("all").multi_get(["a"]) == [15]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*WINDOWS, "join"])
def test_what_keeps_rows_gets_its_names_back_in_a_step(kind: str, tmp_path: Path) -> None:
    def declared(rows: int, name: str, step: bool = False) -> TridentTopology:
        topology = TridentTopology("t", rename={"n": name})
        given = [["a", 1, 1], ["a", 2, 2], ["a", 4, 3], ["a", 8, 61_000], ["b", 0, 130_000]][:rows]
        stream = topology.new_stream("s", FixedBatchSpout(f"k: string, {name}: int, at: bigint", 1, *given))
        if step:
            stream, name = stream.select(k=col("k"), n=col(name), at=col("at")), "n"
        state, to = DeltaState(str(tmp_path / "kept")), DeltaState(str(tmp_path / "all"))
        if kind == "join":
            out, within = "k, one, at, other, then", timedelta(hours=1)
            found = topology.join_within(stream, "k", stream, "k", out, times="at", within=within, state=state)
        else:
            found = stream.group_by("k").window(WINDOWS[kind], state, name, Sum(), "one")
        found.group_by("k").persistent_aggregate(to, "one", Sum(), "all")
        return topology

    log: dict[str, Any] = {"log_dir": str(tmp_path / "log")}
    run_all(declared(2, "n"), "in_process", **log)
    with pytest.raises(TopologyChangedError, match=r'give them back in a step before it, select\(n=col\("m"\), …\)'):
        declared(5, "m").start(engine="in_process", **log)
    running = run_all(declared(5, "m", step=True), "in_process", **log)
    assert running.state("all").multi_get(["a"]) == [60 if kind == "join" else 15]


@pytest.mark.parametrize(
    "store", [DeltaState, RedisState, lambda place, **options: map_state(lambda *_: MemoryBackingMap[Any](), **options)]
)
def test_a_total_under_another_key_would_begin_with_nothing_and_is_refused(store: Any) -> None:
    def total(grouped: bool = False, **options: Any) -> Meaning:
        topology = TridentTopology("t")
        stream = topology.new_stream("words", FixedBatchSpout("word: string", 1, ["a"]))
        of = stream.group_by("word") if grouped else stream
        of.persistent_aggregate(store("redis://localhost", **options), Count(), "n", state_name="total")
        return meaning_of(topology.graph())

    (refused,) = compare(total(), total(snapshot_key="all")).refused
    assert refused.text == "state 'total': snapshot_key '$GLOBAL$' -> 'all'"
    assert "declare it with snapshot_key='$GLOBAL$'" in refused.remedy
    (refused,) = compare(total(snapshot_key=("all", 1)), total()).refused
    assert "snapshot_key=('all', 1)" in refused.remedy

    assert not compare(total(snapshot_key="all"), total(snapshot_key=("all",))).refused, "one key, given in two ways"
    assert not compare(total(True), total(True, snapshot_key="all")).refused, "a state with keys has no such total"
    earlier = Meaning({"total": {**total().states["total"], "snapshot_key": None}}, total().streams)
    assert not compare(earlier, total(snapshot_key="all")).refused, "a log that does not know it"


class AddOnes(BaseStateUpdater[Any]):
    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        state.set((state.get() or 0) + len(tuples))


@pytest.mark.parametrize("updater", [None, AddOnes()])
def test_a_total_goes_on_under_its_key_once_the_advice_is_followed(tmp_path: Path, updater: AddOnes | None) -> None:
    def run(*words: str, **options: Any) -> int:
        topology = TridentTopology("t")
        stream = topology.new_stream("words", FixedBatchSpout("word: string", 1, *([word] for word in words)))
        state = DeltaState(tmp_path / "total", **options)
        if updater is None:
            stream.persistent_aggregate(state, Count(), "n", state_name="total")
        else:
            stream.partition_persist(state, "word", updater, state_name="total")
        with topology.start(engine="in_process", log_dir=tmp_path / "log") as running:
            running.process_all_available()
            return cast("int", running.state("total").get())

    assert run("a", "b") == 2
    with pytest.raises(TopologyChangedError, match="it begins with nothing"):
        run("a", "b", "c", snapshot_key="all")
    assert run("a", "b", "c", snapshot_key="$GLOBAL$") == 3
