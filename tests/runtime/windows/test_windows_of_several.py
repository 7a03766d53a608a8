"""Windows of several aggregates by name: each result is that of a window of this aggregate alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from spouts import FixedBatchSpout
from states.redis import RedisState
from tests.harness.servers import Server
from tests.harness.topology_runs import RowsSpout, keep, run_all
from tests.runtime.windows.test_windows_model import CONFIGS
from trident import Stream, TopologyError, TridentTopology
from trident.operations import (
    ArgMax,
    Avg,
    Collect,
    Count,
    CountDistinct,
    Last,
    Max,
    SessionWindow,
    StdDev,
    Sum,
    TumblingDurationWindow,
)
from trident.runtime.windows import window_state
from trident.spout import SpoutType
from trident.testing import TopologyTestDriver

MS = timedelta(milliseconds=1)
FIELDS = "key: string, n: int, at: bigint"
NATIVE: dict[str, Any] = {"total": Sum("n"), "rows": Count(), "most": Max("n"), "mean": Avg("n")}
OTHERS: dict[str, Any] = {
    "total": Sum("n"),
    "best": ArgMax("at", by="n"),
    "kinds": CountDistinct("n"),
    "spread": StdDev("n"),
    "all": Collect("n"),
    "last": ("n, at", Last(by="at")),
}
POINTS = ("process", "begin_commit:w", "put:w", "commit:w", "record")


def in_any_order(rows: Any) -> list[Any]:
    return sorted((tuple(sorted(each) if isinstance(each, list) else each for each in row) for row in rows), key=repr)


@pytest.mark.sample(3)
@pytest.mark.parametrize("aggregates", [NATIVE, OTHERS], ids=["kernels", "rows"])
@pytest.mark.parametrize("name", CONFIGS)
def test_each_result_is_that_of_a_window_of_its_own(name: str, aggregates: dict[str, Any]) -> None:
    chosen, topology = random.Random(name), TridentTopology("t")
    stream = topology.new_stream("s", RowsSpout(FIELDS, {}, SpoutType.OPAQUE)).group_by("key")
    together = stream.window(CONFIGS[name], aggregates, bounds="start, end", state_name="w").parallelism_hint(2)
    apart = {}
    for one, given in aggregates.items():
        args = given if isinstance(given, tuple) else (given,)
        fields = [*args[:-1], args[-1]] if len(args) > 1 else [args[0]]
        if type(fields[-1]) in (Sum, Max):
            fields = ["n", *fields]
        apart[one] = stream.window(CONFIGS[name], *fields, one, bounds="start, end", state_name=f"w-{one}")
        apart[one].parallelism_hint(2)
    with patch.object(window_state, "_FAN_IN", 2), TopologyTestDriver(topology, max_batch_attempts=99) as driver:
        for number in range(12):
            rows = [(chosen.choice("abc"), chosen.randrange(9), number * 5 + chosen.randrange(9)) for _ in range(8)]
            driver.feed("s", *rows)
            if number % 3 == 0:
                driver.fail_at(chosen.choice(POINTS))
                driver.step()
                driver.replay("s", *rows[:6])
            driver.run()
            driver.clock.advance(0.003)
            driver.run()
        found = driver.captured(together)
        alone = {one: driver.captured(each) for one, each in apart.items()}
    assert sum(map(len, found.values())) > 8
    assert together.fields.names == ("key", "start", "end", *aggregates)
    for at, one in enumerate(aggregates):
        for txid, rows in found.items():
            assert in_any_order([(*row[:3], row[3 + at]) for row in rows]) == in_any_order(alone[one][txid])


def test_late_rows_come_as_they_were_beside_several_results(engine: str) -> None:
    ten = TumblingDurationWindow.of(10 * MS).by_event_time("at")
    topology = TridentTopology("t")
    rows = [("a", 1, 1), ("a", 2, 3), ("b", 5, 12), ("a", 9, 2), ("a", 3, 13), ("c", 0, 90)]
    stream = topology.new_stream("s", FixedBatchSpout(FIELDS, 3, *rows))
    windows, late = stream.group_by("key").window_with_late_rows(ten, NATIVE, "found")
    kept, kept_late = keep(windows, "k"), keep(late, "l")
    run_all(topology, engine, parallelism=2)
    assert sorted(kept.rows) == [("a", 3, 1, 3, 3.0), ("a", 3, 2, 2, 1.5), ("b", 5, 1, 5, 5.0)]
    assert kept_late.rows == [("a", 9, 2)]


def test_a_window_of_a_whole_stream_and_one_wide_aggregate_by_itself() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout(FIELDS, 4, *[("a", n, n) for n in range(8)]))
    several, mean = keep(stream.tumbling_window(4, NATIVE), "k"), keep(stream.tumbling_window(4, Avg("n"), "mean"), "m")
    run_all(topology, "in_process")
    assert several.rows == [(6, 4, 3, 1.5), (22, 4, 7, 5.5)]
    assert mean.rows == [(1.5,), (5.5,)]


def test_sessions_of_several_aggregates_go_on_after_a_restart(redis_server: Server, tmp_path: Path) -> None:
    rows = [[("a", 1, 0), ("b", 2, 4)], [("a", 3, 8)], [("a", 5, 12), ("z", 0, 99)]]
    found: list[Any] = []
    for last, partitions in ((1, 1), (2, 3), (3, 2)):
        topology = TridentTopology("several-sessions")
        spout = RowsSpout(FIELDS, {txid: rows[txid - 1] for txid in range(1, last + 1)})
        state = RedisState.opaque(f"redis://{redis_server.address}/0")
        stream = topology.new_stream("s", spout).group_by("key")
        kept = keep(stream.window(SessionWindow.of(9 * MS, "at"), state, NATIVE).parallelism_hint(partitions))
        run_all(topology, "in_process", log_dir=str(tmp_path))
        found += kept.rows
    assert sorted(found) == [("a", 9, 3, 5, 3.0), ("b", 2, 1, 2, 2.0)]


CALLS: list[tuple[Callable[[Stream], Any], str]] = [
    (lambda s: s.tumbling_window(4, Avg("n")), "does not say what its output is called"),
    (lambda s: s.group_by("key").tumbling_window(4, {"key": Count()}), "'key'"),
    (lambda s: s.group_by("key").tumbling_window(4, {"start": Count()}, bounds="start, end"), "'start'"),
]


@pytest.mark.parametrize(("call", "text"), CALLS)
def test_a_wrong_call_is_refused(call: Callable[[Stream], Any], text: str) -> None:
    topology = TridentTopology("t")
    with pytest.raises(TopologyError, match=text):
        call(topology.new_stream("s", FixedBatchSpout(FIELDS, 1, ("a", 1, 1))))


def test_explain_names_them() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout(FIELDS, 1, ("a", 1, 1)))
    stream.group_by("key").tumbling_window(4, {"total": Sum("n"), "rows": Count()})
    assert "window aggregates-window: tumbling count of 4 by key: Sum(n), Count" in topology.explain()
