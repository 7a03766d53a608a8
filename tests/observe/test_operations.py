"""What Trident's operations count: exact on both engines, in windows of time, in replays; what the pages show of it."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from spouts import FeederBatchSpout, FixedBatchSpout
from states.memory import MemoryMapState
from states.redis import RedisState
from tests.harness.topology_runs import FailTimes, keep, operation, run_all, start, stream_of
from trident import BatchFailedError, FailedException, TridentTopology
from trident.drawing import edges_of_plan, operations_of_plan
from trident.engine.fragment_runs import TaskOutput
from trident.observe.batch_committed import BatchCommitted, Phases, Read
from trident.observe.component_statistics import Figures, WindowStatistics, statistics_of
from trident.observe.events import WHOLE_TOPOLOGY, ErrorFeed
from trident.observe.time_series import BUCKETS, WINDOWS_S
from trident.observe.topology_status import HEARTBEAT_BYTES, heartbeat_of
from trident.operations import BaseFilter, Count, Split
from trident.plan import make_plan
from trident.run.committer import Committed
from trident.run.progress import OperationTotals

SENTENCES = ["the cow jumped over the moon", "the man went", "", "four score and seven years ago"]
WORDS = [word for sentence in SENTENCES for word in sentence.split(" ") if word]


NotThe = operation("NotThe", BaseFilter, None, is_keep=lambda row: row[0] != "the")


def sentences(per_batch: int = 2) -> FixedBatchSpout:
    return FixedBatchSpout("sentence: string", per_batch, *([sentence] for sentence in SENTENCES))


def figures(window: WindowStatistics) -> dict[str, Figures]:
    return {each.described.label: each.figures for each in window.components.values()}


def rows_along(window: WindowStatistics) -> dict[tuple[str, str], int]:
    ends = {(each.edge.source, each.edge.target): each.tuples for each in window.edges}
    return {(source.rpartition("/")[2], target.rpartition("/")[2]): rows for (source, target), rows in ends.items()}


def test_operations_count_what_they_are_given_and_give(engine: str, topology: TridentTopology) -> None:
    words = topology.new_stream("s", sentences()).each("sentence", Split(), "word: string")
    words.each("word", NotThe()).group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    running = run_all(topology, engine)
    kept = [word for word in WORDS if word != "the"]
    window = running.statistics.over()
    found = figures(window)
    assert list(found) == ["s", "Split", "NotThe", "Count@count"]
    assert [(each.executed, each.emitted) for each in found.values()] == [
        (0, len(SENTENCES)),
        (len(SENTENCES), len(WORDS)),
        (len(WORDS), len(kept)),
        (len(kept), 0),
    ]
    assert rows_along(window)["s", "Split"] == len(SENTENCES)
    assert rows_along(window)["Split", "NotThe"] == len(WORDS)
    assert len(set(kept)) <= rows_along(window)["NotThe", "Count@count"] <= len(kept)
    assert (window.figures.batches, window.figures.tuples, window.figures.failed) == (2, len(SENTENCES), 0)
    assert found["Count@count"].keys == sum(len(set(kept_of(batch))) for batch in (SENTENCES[:2], SENTENCES[2:]))
    assert all(each.busy_s > 0 and each.capacity > 0 for each in found.values())
    assert found["Count@count"].commit_latency_ms is not None
    assert found["Count@count"].commit_latency_ms > 0


def kept_of(batch: list[str]) -> list[str]:
    return [word for sentence in batch for word in sentence.split(" ") if word and word != "the"]


def test_an_exchange_counts_what_arrives_and_what_it_gives(engine: str, topology: TridentTopology) -> None:
    words = topology.new_stream("s", sentences()).each("sentence", Split(), "word: string").partition_by("word")
    kept = words.parallelism_hint(3).each("word", NotThe()).group_by("word")
    kept.persistent_aggregate(MemoryMapState(), Count(), "count")
    window = run_all(topology, engine).statistics.over()
    exchange = next(each for each in window.components.values() if each.described.kind == "exchange")
    assert (exchange.figures.executed, exchange.figures.emitted) == (len(WORDS), len(WORDS))
    assert (exchange.described.tasks, exchange.described.stage) == (3, 2)
    assert [each.tuples for each in exchange.inputs] == [len(WORDS)]
    assert [each.edge.grouping for each in exchange.inputs] == ["by word"]
    assert figures(window)["NotThe"].executed == len(WORDS)


def test_branches_and_merges_count_each_way(engine: str, topology: TridentTopology) -> None:
    words = topology.new_stream("s", sentences()).each("sentence", Split(), "word: string").project("word")
    merged = topology.merge(words.each("word", NotThe()), words)
    keep(merged)
    window = run_all(topology, engine).statistics.over()
    merge = next(each for each in window.components.values() if "merge" in each.described.label)
    both = len(WORDS) + len([word for word in WORDS if word != "the"])
    assert (merge.figures.executed, merge.figures.emitted) == (both, both)
    assert sum(each.tuples for each in merge.inputs) == both


def test_steps_behind_a_state_and_queries_of_it_count(engine: str, topology: TridentTopology) -> None:
    words = topology.new_stream("s", sentences()).each("sentence", Split(), "word: string")
    counts = words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    counts.new_values_stream().each("word", NotThe()).peek(lambda row: None)
    window = run_all(topology, engine).statistics.over()
    found = figures(window)
    updated = sum(len({w for s in batch for w in s.split(" ") if w}) for batch in (SENTENCES[:2], SENTENCES[2:]))
    assert found["Count@count"].emitted == updated
    assert found["NotThe"].executed == updated
    assert found["peek"].executed == found["NotThe"].emitted == updated - 1


def test_states_that_executors_commit_count_the_same(spark: Any, redis_url: str, tmp_path: Path) -> None:
    topology, feeder = TridentTopology("auto"), FeederBatchSpout("word: string")
    words = topology.new_stream("s", feeder).each("word", NotThe())
    counts = words.group_by("word").persistent_aggregate(RedisState.opaque(redis_url), Count(), "n").parallelism_hint(2)
    counts.new_values_stream().each("word", NotThe()).peek(lambda row: None)
    settings: dict[str, Any] = {"auto_bytes": 1000, "log_dir": str(tmp_path / "log"), "state_placement": "executors"}
    with start(topology, "auto", **settings) as running:
        for size in (1, 3000, 2, 4000):  # small batches are committed here, large ones by executors
            feeder.feed([[f"w{number % 7}"] for number in range(size)] + [["the"]])
            running.process_all_available()
        assert [entry["engine"] for entry in running.recent_progress] == ["in_process", "spark"] * 2
        window = running.statistics.over()
        assert running.pages.status().as_mapping()["states"][0]["placement"] == "executors"
    found = window.components["s/NotThe/Count@n"].figures
    assert (window.components["s/NotThe"].figures.executed, found.executed) == (7007, 7003)
    assert (found.emitted, found.commits) == (1 + 7 + 2 + 7, 4)
    assert window.components["s/NotThe/Count@n/NotThe"].figures.executed == 17
    assert found.commit_latency_ms is not None
    assert found.commit_latency_ms > 0


def test_attempts_that_failed_count_as_failed_and_nothing_else(engine: str, tmp_path: Path) -> None:
    topology, lines = stream_of(FixedBatchSpout("x: string", 1, ["a"], ["b"], ["c"]))
    keep(lines.each("x", FailTimes(tmp_path, "b", 2, FailedException("no")), "y"))
    window = run_all(topology, engine).statistics.over()
    found = figures(window)
    assert (found["FailTimes"].executed, found["FailTimes"].emitted, found["FailTimes"].failed) == (3, 3, 2)
    assert (window.figures.failed, window.figures.retries, window.figures.tuples) == (2, 2, 3)


def test_tuples_that_are_left_out_count_where_they_raised(engine: str, tmp_path: Path) -> None:
    topology, lines = stream_of(FixedBatchSpout("x: string", 3, ["a"], ["b"], ["c"]))
    keep(lines.each("x", FailTimes(tmp_path, "b", 9, ValueError("poison")), "y"))
    letters = {"on_poison": "dead_letter", "max_batch_attempts": 1, "dead_letter_dir": str(tmp_path / "letters")}
    running = run_all(topology, engine, **letters)
    found = figures(running.statistics.over())["FailTimes"]
    assert (found.executed, found.emitted, found.dead_letters, found.failed) == (3, 2, 1, 0)
    (error,) = running.errors
    assert error.component == "s/FailTimes"
    assert "left out" in error.text
    assert "ValueError: poison" in error.text


def test_each_error_is_told_once_with_its_stack_trace(tmp_path: Path, topology: TridentTopology) -> None:
    lines = topology.new_stream("s", FixedBatchSpout("x: string", 1, ["a"]))
    keep(lines.each("x", FailTimes(tmp_path, "a", 9, RuntimeError("lost")), "y"))
    running = start(topology, "in_process", max_batch_attempts=2)
    with pytest.raises(BatchFailedError):
        running.process_all_available()
    feed = ErrorFeed(lambda: running.errors)
    first, second, last = feed.new()
    assert [each.component for each in (first, second, last)] == ["s/FailTimes", "s/FailTimes", WHOLE_TOPOLOGY]
    assert "attempt 1 (start 1) failed on tuple [x='a']: RuntimeError: lost" in first.text
    assert "in execute\n    raise self.error" in first.text
    assert "batch 1 failed 2 times" in last.text
    assert feed.new() == []
    page = running.pages.status().as_mapping()
    assert (page["status"], len(page["errors"])) == ("FAILED", 3)
    assert page["bolts"][0]["lastError"] == second.text


def test_ten_errors_of_a_component_are_kept(tmp_path: Path, topology: TridentTopology) -> None:
    lines = topology.new_stream("s", FixedBatchSpout("x: string", 1, ["a"]))
    keep(lines.each("x", FailTimes(tmp_path, "a", 14, FailedException("no")), "y"))
    running = run_all(topology, "in_process", max_batch_attempts=15, retry_backoff_max_ms=1)
    assert len(running.errors) == 10
    assert len(running.pages.status().component_as_mapping("s/FailTimes")["componentErrors"]) == 10
    assert running.statistics.over().components["s/FailTimes"].figures.failed == 14


@pytest.fixture
def counted() -> Any:
    topology = TridentTopology("words")
    stream = topology.new_stream("s", sentences()).each("sentence", Split(), "word: string")
    stream.group_by("word").persistent_aggregate(MemoryMapState.opaque(), Count(), "count")
    return run_all(topology, "in_process")


def test_the_page_of_a_topology_has_the_shape_of_storm_ui(counted: Any) -> None:
    page = counted.pages.status().as_mapping(600)
    assert (page["id"], page["kind"], page["window"], page["windowHint"]) == ("words", "trident", "600", "10m 0s")
    assert [each["window"] for each in page["topologyStats"]] == ["600", "10800", "86400", ":all-time"]
    whole = page["topologyStats"][-1]
    assert (whole["batches"], whole["tuples"], whole["acked"], whole["failed"]) == (2, 4, 4, 0)
    assert set(whole["phasesMs"]) == {"define", "process", "wait", "commit", "record", "total"}
    assert float(whole["completeLatency"]) == pytest.approx(whole["phasesMs"]["total"], abs=0.001)
    assert [each["spoutId"] for each in page["spouts"]] == ["s"]
    assert [(each["boltId"], each["kind"]) for each in page["bolts"]] == [
        ("s/Split", "step"),
        ("s/Split/Count@count", "state"),
    ]
    (state,) = page["states"]
    assert (state["state"], state["component"], state["lastTxid"]) == ("count", "s/Split/Count@count", 2)
    assert (state["commits"], state["kind"], state["exact"]) == (2, "opaque", True)
    assert state["lastCommitTime"] == counted.progress._recent[-1].timestamp_ms
    json.dumps(page)


def test_the_page_of_an_operation_has_its_inputs_and_outputs(counted: Any) -> None:
    page = counted.pages.status().component_as_mapping("s/Split", 0)
    assert (page["componentType"], page["kind"]) == ("bolt", "step")
    assert page["detail"] == "each Split(sentence) -> word: string"
    assert [each["window"] for each in page["boltStats"]] == ["600", "10800", "86400", ":all-time"]
    assert [(each["component"], each["transferred"]) for each in page["inputStats"]] == [("s", 4)]
    assert counted.pages.status().component_as_mapping("s")["componentType"] == "spout"
    with pytest.raises(KeyError, match="no component 'x'; it has s, s/Split, s/Split/Count@count, state count"):
        counted.pages.status().component_as_mapping("x")
    with pytest.raises(KeyError, match="no window of 7 seconds"):
        counted.pages.status().as_mapping(7)


def test_the_picture_joins_operations_by_edges(counted: Any) -> None:
    drawn = counted.pages.status().visualization()
    assert [node["id"] for node in drawn["nodes"]] == ["s", "s/Split", "s/Split/Count@count", "state count"]
    edges = {(edge["source"], edge["target"]): (edge["tuples"], edge["grouping"]) for edge in drawn["edges"]}
    assert edges["s", "s/Split"] == (4, "same task")
    assert edges["s/Split", "s/Split/Count@count"][1] == "by word"
    assert [stage["number"] for stage in drawn["stages"]] == [1, 2]


def test_a_heartbeat_tells_the_page_in_a_few_kilobytes(counted: Any) -> None:
    page = counted.pages.status().as_mapping()
    told = heartbeat_of(page)
    assert told["omitted"] == 0
    assert {each["boltId"] for each in told["bolts"]} == {"s/Split/Count@count", "s/Split"}
    assert told["topologyStats"][-1]["tuples"] == 4
    assert len(json.dumps(told)) < 4000
    surrogate = {**page, "health": {"lastFailure": "caf\udce9"}}  # of the name of a file, in an error
    assert heartbeat_of(surrogate)["bolts"] == told["bolts"]


@pytest.mark.parametrize(("components", "omits"), [(20, False), (500, True)])
def test_a_heartbeat_is_bounded_whatever_the_topology_has(counted: Any, components: int, omits: bool) -> None:
    page = counted.pages.status().as_mapping()
    page["spouts"] = [{**page["spouts"][0], "spoutId": f"source {n}"} for n in range(components // 10)]
    page["bolts"] = [
        {**page["bolts"][0], "boltId": f"{'ü' * (500 if omits else 10)}{n}", "capacity": f"0.{n:03}"}
        for n in range(components)
    ]
    told = heartbeat_of(page)
    assert len(json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()) < HEARTBEAT_BYTES + 50
    assert told["bolts"]
    assert (told["omitted"] > 0) is omits
    assert len(told["spouts"]) + len(told["bolts"]) + told["omitted"] == components + components // 10
    capacities = [float(each["capacity"]) for each in told["bolts"]]
    assert capacities == sorted(capacities, reverse=True)


def test_what_a_topology_that_has_ended_says_does_not_change(counted: Any) -> None:
    first = counted.pages.status().as_mapping(600)
    assert counted.pages.status().as_mapping(600) == {**first}
    assert first["status"] == "STOPPED"


@pytest.mark.slow
def test_statistics_are_read_while_batches_run() -> None:
    topology, feeder = TridentTopology("t"), FeederBatchSpout("sentence: string")
    stream = topology.new_stream("s", feeder).each("sentence", Split(), "word: string")
    stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    with start(topology, "in_process") as running:
        for _ in range(300):
            feeder.feed_nowait([["the cow"]])
        seen = 0
        while seen < 300:
            now = running.statistics.over().components["s/Split"].figures
            assert (now.emitted, now.executed >= seen) == (2 * now.executed, True)
            seen = now.executed
            if running.txid == 300:
                running.process_all_available()
    assert running.statistics.over().components["s/Split"].figures.executed == 300


PHASES = Phases(0.001, 0.002, 0.003, 0.004, 0.005)
MS = 1_000_000
START = 5000.0


def batch(txid: int, at: float, rows: int, tries: int = 1) -> tuple[BatchCommitted, TaskOutput, Committed]:
    """A batch that took 3 ms in the source, 2 ms in the step, 1 ms in the combiner and 4 ms in the commit."""
    event = BatchCommitted(
        "t", "run", 0, txid, 0, tries, "in_process", Read({"s": rows}, {"s": None}), PHASES, at, 1.0, {}, {"count": rows},
        {}, 0, 0, 0, {},
    )  # fmt: skip
    figures = {"s": [rows, 6 * MS, 2 * rows, 2 * MS, rows, 1 * MS]}
    return event, TaskOutput(figures=figures), Committed(took_ns={"s/Split/Count@count": 4 * MS})


@pytest.mark.parametrize("seed", range(5))
def test_windows_have_what_was_committed_within_them(seed: int, topology: TridentTopology) -> None:
    stream = topology.new_stream("s", FixedBatchSpout("line", 1, ["a b"])).each("line", Split(), "word")
    stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "n", state_name="count")
    graph = topology.graph()
    plan = make_plan(graph)
    operations, edges = operations_of_plan(graph, plan), edges_of_plan(plan)
    randomly, now = random.Random(seed), START
    totals = OperationTotals(plan, [], now)
    happened: list[tuple[float, int, int]] = []
    for txid in range(1, 400):
        now += randomly.choice((0.0, 1.5, 40.0, 700.0, 20_000.0))
        rows, tries = randomly.randint(0, 9), randomly.choice((1, 1, 1, 3))
        for _ in range(tries - 1):
            totals.add_failure("s/Split", now)
        event, output, committed = batch(txid, now, rows, tries)
        totals.add_batch(event, output, committed, in_executors=False)
        happened.append((now, rows, tries))
        if randomly.random() < 0.3:
            check(totals, happened, now + randomly.choice((0.0, 5.0)), operations, edges)
    check(totals, happened, now, operations, edges)


def check(totals: OperationTotals, happened: list[tuple[float, int, int]], now: float, operations, edges) -> None:  # type: ignore[no-untyped-def]
    statistics = statistics_of(totals.over_all(now), operations, edges)
    for window_s in (*WINDOWS_S, 0):
        window = statistics.over(window_s)
        bucket = window_s / BUCKETS
        if window_s:
            assert window.seconds <= window_s + bucket
        within = [each for each in happened if each[0] >= now - window.seconds]
        rows, batches = sum(each[1] for each in within), len(within)
        figures = window.figures
        assert (figures.batches, figures.tuples) == (batches, rows)
        assert figures.retries == figures.failed == sum(each[2] - 1 for each in within)
        source, step, state = (each.figures for each in window.components.values())
        assert (source.emitted, step.executed, step.emitted, state.executed) == (rows, rows, 2 * rows, 2 * rows)
        assert (state.keys, state.commits) == (rows, batches)
        busy_s = [each * batches for each in (0.003, 0.002, 0.005)]
        assert [each.busy_s for each in (source, step, state)] == pytest.approx(busy_s)
        if rows:
            assert step.execute_latency_ms == pytest.approx(2 * batches / rows)
        if batches:
            assert figures.complete_latency_ms == pytest.approx(15)
            assert state.commit_latency_ms == pytest.approx(4)
    latest = statistics.over(600)
    busy = latest.components["s/Split"].figures
    assert busy.capacity == pytest.approx(busy.busy_s / max(latest.seconds, 1e-9), rel=1e-6)
