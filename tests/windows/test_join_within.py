"""`join_within`: each pair once, whichever row comes first, however batches are cut, whatever failed and was replayed."""

import datetime as dt
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import RowsSpout, keep, run_all
from tests.windows.join_model import Row, model_of
from tests.windows.test_window_partitions import joined_in_life
from trident import JoinType, Stream, TopologyError, TridentTopology
from trident.errors import BatchFailedError, TopologyChangedError
from trident.operations import Count
from trident.spout import SpoutType
from trident.testing import TopologyTestDriver
from trident.windows.window_state import DIRECTORY, Directory

MS = timedelta(milliseconds=1)
FIELDS = "key: string, n: int, at: bigint"
OUT = "key, l, l_at, r, r_at"
INNER, OUTER = JoinType.INNER, JoinType.OUTER


def joined(topology: TridentTopology, left: Stream, right: Stream, **options: Any) -> Stream:
    given_options = {"times": "at", "within": 5 * MS, "state_name": "j", **options}
    return topology.join_within(left, "key", right, "key", OUT, **given_options)


def streams(topology: TridentTopology, kind: SpoutType = SpoutType.OPAQUE, batches: Any = ({}, {})) -> list[Stream]:
    return [topology.new_stream(name, RowsSpout(FIELDS, side, kind)) for name, side in zip("lr", batches, strict=True)]


@pytest.mark.slow
def test_a_long_window_has_few_panes_and_rows_come_a_pane_later_at_most(topology: TridentTopology) -> None:
    left, right = streams(topology)
    out = joined(topology, left, right, within=timedelta(hours=1), join_type=JoinType.mixed(INNER, OUTER))
    hour = 3_600_000
    with TopologyTestDriver(topology) as driver:
        for batch in range(100):
            driver.feed("l", *[(f"k{batch}.{n}", n, batch * hour // 10 + n) for n in range(10)])
            driver.feed("r", ("other", batch, batch * hour // 10))
            driver.run()
        alone = [row for rows in driver.captured(out).values() for row in rows]
        times = [row[2] for row in alone]
        watermark = 99 * hour // 10
        assert times == sorted(times)
        assert watermark - hour - 2 * hour / 16 - 10 <= times[-1] < watermark - hour
        assert len(set(alone)) == len(alone) == times[-1] // (hour // 10) * 10 + times[-1] % (hour // 10) + 1
        assert panes_of(driver) <= 100  # what is over is gone


def test_a_row_that_ends_at_the_first_moment_there_is_comes_alone_too() -> None:
    topology, year_1 = TridentTopology("t"), -62_135_596_800_000
    left, right = streams(topology)
    out = joined(topology, left, right, within=(0 * MS, 5 * MS), join_type=OUTER)
    with TopologyTestDriver(topology) as driver:
        driver.feed("r", ("a", 1, year_1))
        driver.run()
        driver.feed("l", ("b", 2, 10**9))
        driver.run()
        assert [row for rows in driver.captured(out).values() for row in rows] == [("a", None, None, 1, year_1)]


def test_a_row_can_be_met_until_its_last_moment_and_does_not_come_alone_then() -> None:
    """A left row can be met for 8 ms, and the watermark of the right side is 2 ms behind."""
    sides: list[Any] = [([("a", 0, 0)], [("b", 0, 10)]), ([], [("a", 1, 8)]), ([], [("b", 1, 20)])]
    joined_in_life("left outer", [(one, 1, []) for one in sides])


@pytest.mark.parametrize("ahead", ["l", "r"])
def test_a_side_that_runs_far_ahead_needs_few_panes(ahead: str, topology: TridentTopology) -> None:
    """One side is a year ahead in the first batch, the other one comes up to it step by step: every pair is found."""
    left, right = streams(topology)
    second, count = 1000, 600
    out = joined(topology, left, right, within=timedelta(seconds=10), join_type=OUTER)
    times = [n * 52_560 * second for n in range(count)]
    with TopologyTestDriver(topology) as driver:
        driver.feed(ahead, *[(f"k{n}", n, at) for n, at in enumerate(times)])
        driver.run()
        most = panes_of(driver)
        for first in range(0, count, 50):
            behind = [(f"k{n}", n, times[n] + (-1) ** n * 9 * second) for n in range(first, first + 50) if n % 3]
            driver.feed("r" if ahead == "l" else "l", *behind)
            driver.run()
            most = max(most, panes_of(driver))
        found = [row for rows in driver.captured(out).values() for row in rows]
    assert sorted(row[1] for row in found if None not in row) == [n for n in range(count) if n % 3]
    alone = [row[0] for row in found if None in row]
    assert sorted(alone, key=lambda key: int(key[1:])) == [f"k{n}" for n in range(0, count, 3)]
    assert most <= 150


def panes_of(driver: TopologyTestDriver) -> int:
    kept = driver._drive.opened.states["j"][0]
    return len(Directory.of(kept.multi_get([DIRECTORY])[0]).panes)


@pytest.mark.slow
def test_a_row_that_is_over_leaves_nothing_in_the_store(topology: TridentTopology) -> None:
    left, right = streams(topology)
    joined(topology, left, right).persistent_aggregate(MemoryMapState(), Count(), "count")
    with TopologyTestDriver(topology) as driver:
        for batch in range(50):
            driver.feed("l", *[(f"l{batch}.{n}", n, batch) for n in range(20)])
            driver.feed("r", *[(f"r{batch}.{n}", n, batch) for n in range(20)], ("a", 1, None))
            driver.run()
        assert driver._progress.metrics()["j/no_event_time"] == 50
        keys = [row for row in driver.state("j").get_tuples() if row[0] == "key"]
    assert 0 < len(keys) <= (5 + 2) * 40


def random_rows(side: int, count: int = 120) -> list[Row]:
    return [("abcde"[(n * 3 + side) % 5], n, n + n * (7 + side) % 11) for n in range(count)]


def test_both_engines_give_what_the_model_gives(engine: str, topology: TridentTopology) -> None:
    sides = [random_rows(0, 60), random_rows(1, 60)]
    left, right = (
        topology.new_stream(name, FixedBatchSpout(FIELDS, size, *rows))
        for name, size, rows in zip("lr", (20, 15), sides, strict=True)
    )
    kept = keep(joined(topology, left, right.shuffle().parallelism_hint(2), delay=15 * MS, join_type=OUTER))
    run_all(topology, engine)
    model = model_of(5 * MS, 15 * MS, (OUTER, OUTER))
    for txid in range(1, 5):
        rows = [side[(txid - 1) * size : txid * size] for side, size in zip(sides, (20, 15), strict=True)]
        found, wanted = kept.batches.get(txid, []), model.take(rows)
        assert {row for row in wanted if None not in row} == {row for row in found if None not in row}
    assert model.late == 0
    alone = [row for row in kept.rows if None in row]
    assert alone
    assert len(set(kept.rows)) == len(kept.rows)


def test_keys_of_several_fields_values_of_every_type_and_times_of_other_kinds(engine: str) -> None:
    at = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
    topology = TridentTopology("t")
    orders = topology.new_stream(
        "orders",
        FixedBatchSpout("shop: int, id: double, items: array<string>, at: timestamp", 1,
                        (1, 0.0, ["pen"], at), (1, float("nan"), [], at), (2, 1.0, None, at)),
    )  # fmt: skip
    ms = int(at.timestamp() * 1000)
    payments = topology.new_stream(
        "payments",
        FixedBatchSpout("order: double, store: int, how: struct<card: string, n: int>, ms: bigint", 1,
                        (-0.0, 1, {"card": "x", "n": 1}, ms + 5), (float("nan"), 1, None, ms - 5), (1.0, 2, None, ms + 6)),
    )  # fmt: skip
    out = topology.join_within(
        orders, ["id", "shop"], payments, ["order", "store"], "id, shop, items, ordered, how, paid",
        times=("at", "ms"), within=5 * MS, delay=15 * MS,
    )  # fmt: skip
    of_orders, of_payments = "items: array<string>, ordered: timestamp", "how: struct<card:string,n:int>, paid: bigint"
    assert str(out.fields) == f"id: double, shop: int, {of_orders}, {of_payments}"
    kept = keep(out)
    run_all(topology, engine)
    assert [row[1:] for row in kept.rows] == [
        (1, ["pen"], at, {"card": "x", "n": 1}, ms + 5),
        (1, [], at, None, ms - 5),
    ]


def test_a_stream_may_be_joined_with_itself(engine: str, topology: TridentTopology) -> None:
    stream = topology.new_stream("s", FixedBatchSpout(FIELDS, 1, ("a", 1, 0), ("a", 2, 3), ("b", 3, 4), ("a", 4, 6)))
    kept = keep(joined(topology, stream, stream.filter("n", lambda n: n != 2), within=(MS, 5 * MS)))
    run_all(topology, engine)
    assert kept.rows == [("a", 2, 3, 4, 6)]


def test_too_many_pairs_fail_the_batch_before_they_are_made(topology: TridentTopology) -> None:
    left, right = streams(topology)
    joined(topology, left, right).persistent_aggregate(MemoryMapState(), Count(), "count")
    with TopologyTestDriver(topology, max_batch_attempts=1, max_rows_per_step=99) as driver:
        driver.feed("l", *[("a", n, 0) for n in range(10)])
        driver.feed("r", *[("a", n, 0) for n in range(10)])
        with pytest.raises(BatchFailedError, match="the step makes 100 rows or more of the 20"):
            driver.step()


def test_another_time_or_bound_is_refused_on_the_log_of_the_first(tmp_path: Path) -> None:
    state = MemoryMapState.opaque()
    for within, refused in ((5 * MS, False), (6 * MS, True)):
        topology = TridentTopology("t")
        left, right = streams(topology, SpoutType.TRANSACTIONAL, ({1: [("a", 1, 0)]}, {1: [("a", 1, 0)]}))
        keep(joined(topology, left, right, within=within, state=state))
        if not refused:
            run_all(topology, "in_process", log_dir=str(tmp_path))
            continue
        with pytest.raises(TopologyChangedError, match=r"0:00:00.005000.*0:00:00.006000"):
            run_all(topology, "in_process", log_dir=str(tmp_path))


def test_explain_names_the_sides_and_the_bounds(topology: TridentTopology) -> None:
    left, right = streams(topology)
    keep(joined(topology, left, right, within=(timedelta(0), timedelta(minutes=10)), delay=(MS, 0 * MS)))
    text = topology.explain()
    assert "join within j: (key) = (key), at - at in 0:00:00 to 0:10:00 (inner, inner)" in text
    assert "at delay 0:00:00.001000, at delay 0:00:00" in text
    assert "sends key, n, at, as the right side" in text
    assert topology.describe()[0]["window"].startswith("join (key) = (key)")


WRONG: dict[str, tuple[Callable[[TridentTopology, Stream, Stream], Any], str]] = {
    "transactional": (lambda t, a, b: joined(t, a, b, state=MemoryMapState.transactional()),
        "the join keeps what it holds in state 'j', which is transactional; only an opaque state"),
    "no such time": (lambda t, a, b: joined(t, a, b, times="when"), "no field 'when' of stream 'l'"),
    "no time": (lambda t, a, b: joined(t, a, b, times="key"), "the event time 'key' is string; it must be a timestamp"),
    "three times": (lambda t, a, b: joined(t, a, b, times=("at", "at", "at")), "name the time of each side: ('at', 'at')"),
    "negative": (lambda t, a, b: joined(t, a, b, within=-MS), "give a timedelta that is not negative, or two"),
    "upside down": (lambda t, a, b: joined(t, a, b, within=(MS, -MS)), "give a timedelta that is not negative, or two"),
    "a number": (lambda t, a, b: joined(t, a, b, within=5), "join_within got within=5; give a timedelta"),
    "a delay of a number": (lambda t, a, b: joined(t, a, b, delay=5), "join_within got delay=5; give a timedelta, or one"),
    "a negative delay": (lambda t, a, b: joined(t, a, b, delay=-MS), "give a timedelta, or one for each side"),
    "other keys": (lambda t, a, b: t.join_within(a, "key", b, "n", OUT, times="at", within=MS),
        "join_within: the key of stream 'r' (n: int) must have as many fields as that of stream 'l' (key: string)"),
    "too few fields": (lambda t, a, b: t.join_within(a, "key", b, "key", "key, l", times="at", within=MS),
        "join_within gives 5 fields (key: string, n: int, at: bigint, n2: int, at2: bigint), but 2 output fields are named"),
    "a request": (lambda t, a, b: joined(t, t.new_drpc_stream("f"), t.new_drpc_stream("g")), "cannot bring stream"),
    "a name of its own": (lambda t, a, b: joined(t, a.each("n", lambda n: n, "$id: int"), b),
        "join_within cannot take '$id': names that begin with $ are reserved"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_refused_with_what_to_do(case: str, topology: TridentTopology) -> None:
    call, text = WRONG[case]
    with pytest.raises(TopologyError) as caught:
        call(topology, *streams(topology))
    assert text in str(caught.value)
