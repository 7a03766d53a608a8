"""Sessions: what is one, when it is complete, what comes too late; compared with sessions made from a list of all rows."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spouts import FixedBatchSpout
from tests.harness.topology_runs import Fold, RowsSpout, dict_state, keep, run_all, stream_of
from tests.windows.test_windows_model import Numbers, in_any_order, ordinate
from tests.windows.window_model import Row, SessionModel, WindowModel
from trident import TridentTopology
from trident.errors import BatchFailedError
from trident.operations import Count, SessionWindow, Sum, TumblingDurationWindow, WindowConfig
from trident.spout import SpoutType
from trident.state.values import OpaqueValue
from trident.testing import TopologyTestDriver
from trident.windows.grid import Spans, sessions_of

MS = timedelta(milliseconds=1)
FIELDS = "key: string, n: int, at: bigint"
GAP, DELAY = 10, 25
SESSIONS = SessionWindow.of(GAP * MS, "at", delay=DELAY * MS)


def test_an_aggregator_without_input_fields_counts_tuples(topology: TridentTopology) -> None:
    stream = topology.new_stream("s", FixedBatchSpout("key: string, at: timestamp", 2, *TIMED))
    kept = keep(stream.group_by("key").window(SESSIONS, Fold(), "n: bigint", bounds="first, last"))
    run_all(topology, "in_process")
    assert kept.rows == [("a", TIMED[0][1], TIMED[1][1], 2)]


TIMED = [("a", datetime(2026, 11, 25, 12, 0, 0, ms * 1000, UTC)) for ms in (0, 9, 500)]


def test_keys_with_nulls_and_several_fields_have_sessions_of_their_own(topology: TridentTopology) -> None:
    rows = [(None, 1.5, 0), ("a", 0.0, 5), ("a", -0.0, 6), ("a", None, 7), (None, 1.5, 8), ("z", 1.0, 900)]
    stream = topology.new_stream("s", FixedBatchSpout("k: string, x: double, at: bigint", 1, *rows))
    kept = keep(stream.group_by("k", "x").window(SESSIONS, Count(), "n"))
    run_all(topology, "in_process")
    assert sorted(kept.rows, key=repr) == [("a", 0.0, 2), ("a", None, 1), (None, 1.5, 2)]


def test_spans_within_others_do_not_end_a_session() -> None:
    for seed in range(200):
        chosen = random.Random(seed)
        count, gap = chosen.randint(0, 12), chosen.randint(1, 5)
        rows = [(chosen.randint(0, 2), at := chosen.randint(-30, 30), at + chosen.randint(0, 9)) for _ in range(count)]
        columns = zip(*rows, strict=True) if rows else ((), (), ())
        numbers, found = sessions_of(Spans(*(np.array(column, np.int64) for column in columns)), gap)
        shown = list(zip(*(column.tolist() for column in found), strict=True))
        assert shown == brute(rows, gap), seed
        for number, (key, start, last) in zip(numbers.tolist(), rows, strict=True):
            assert (shown[number][0], shown[number][1] <= start, last <= shown[number][2]) == (key, True, True)


def brute(rows: Sequence[tuple[int, int, int]], gap: int) -> list[tuple[int, int, int]]:
    """Put two spans together until none are close."""
    left = list(rows)
    while True:
        pairs = ((a, b) for at, a in enumerate(left) for b in left[at + 1 :])
        same = ((a, b) for a, b in pairs if a[0] == b[0])
        near = next(((a, b) for a, b in same if max(a[1], b[1]) - min(a[2], b[2]) <= gap), None)
        if near is None:
            return sorted(left)
        for one in near:
            left.remove(one)
        left.append((near[0][0], min(near[0][1], near[1][1]), max(near[0][2], near[1][2])))


def disordered(chosen: random.Random, count: int) -> list[Row]:
    """Rows of four keys, none more than the delay behind the latest before it."""
    rows: list[Row] = []
    now = 1_000
    for number in range(count):
        now += chosen.choice([0, 1, 3, 3, 9, 40])
        rows.append((chosen.choice("abcd"), number, now - chosen.randint(0, DELAY)))
    return rows


POINTS = ("process", "begin_commit:w", "put:w", "commit:w", "record")
BY_TIME = TumblingDurationWindow.of(GAP * MS).by_event_time("at", delay=3 * MS, allowed_lateness=4 * MS)


@pytest.mark.sample(4)
@pytest.mark.parametrize("aggregator", [Sum(), Numbers()], ids=["combiner", "tuples"])
@pytest.mark.parametrize("config", [SessionWindow.of(4 * MS, "at", delay=3 * MS), BY_TIME], ids=["sessions", "windows"])
@pytest.mark.parametrize("seed", range(2))
def test_each_tuple_fires_once_or_is_late_once_whatever_replays_bring(
    seed: int, config: WindowConfig, aggregator: Any
) -> None:
    chosen = random.Random(seed)
    model = SessionModel(config) if isinstance(config, SessionWindow) else WindowModel(config, grouped=True)
    topology, stream = stream_of(RowsSpout(FIELDS, {}, SpoutType.OPAQUE))
    out = "v" if isinstance(aggregator, Sum) else "v: array<bigint>"
    options: dict[str, Any] = {"bounds": "first, last", "state_name": "w", "parallelism": seed + 1}
    fired, late = stream.group_by("key").window_with_late_rows(config, "n", aggregator, out, **options)
    wanted, wanted_late = {}, {}
    with TopologyTestDriver(topology, max_batch_attempts=99) as driver:
        rows = disordered(chosen, 120)
        for at in range(0, len(rows), 10):
            given = rows[at : at + 10]
            driver.feed("s", *given)
            for _ in range(chosen.randint(0, 2)):
                driver.fail_at(chosen.choice(POINTS))
                result = driver.step()
                assert result is not None
                assert not result.committed
                given = chosen.sample(given, chosen.randint(1, len(given)))
                driver.replay("s", *given)
            driver.run()
            before = len(model.late_rows)
            wanted[driver.txid] = model.take(given, 0)
            wanted_late[driver.txid] = model.late_rows[before:]
        found, found_late = driver.captured(fired), driver.captured(late)
        assert driver._progress.metrics()["w/late"] == len(model.late_rows) > 0

    def shown(value: Any) -> Any:
        return value if not isinstance(value, list) else sum(value) if isinstance(aggregator, Sum) else sorted(value)

    for txid, batch in wanted.items():
        of_batch = [(key, ordinate(first), ordinate(last), shown(value)) for key, first, last, value in found[txid]]
        assert in_any_order(of_batch) == in_any_order([(*head, shown(numbers)) for *head, numbers in batch])
        assert sorted(map(tuple, found_late[txid])) == sorted(wanted_late[txid])


@pytest.mark.slow
def test_what_is_complete_leaves_nothing_behind(tmp_path: Path, topology: TridentTopology) -> None:
    entries: dict[Any, OpaqueValue] = {}
    batches = {n + 1: [("abc"[n % 3], n, n * 30)] for n in range(60)} | {
        61: [("end", 0, 9_999_999)],
        62: [("end", 0, 9_999_999)],
    }
    stream = topology.new_stream("s", RowsSpout(FIELDS, batches))
    kept = keep(stream.group_by("key").window(SESSIONS, dict_state(entries), "n", Sum(), "n"))
    run_all(topology, "in_process", log_dir=str(tmp_path))
    assert len(kept.rows) == 60
    left = {key for key, value in entries.items() if isinstance(value, OpaqueValue) and value.curr is not None}
    assert {key for key in left if key[0] == "key"} == {("key", "end")}
    assert len([key for key in left if key[0] == "chunk"]) == 1


def test_records_of_another_topology_are_refused(tmp_path: Path) -> None:
    entries: dict[Any, OpaqueValue] = {}

    def topology(inputs: Sequence[str], *times: int) -> TridentTopology:
        declared = TridentTopology("t")
        stream = declared.new_stream("s", RowsSpout(FIELDS, {n: [("a", 1, at)] for n, at in enumerate(times, 1)}))
        out = "v: array<bigint>"
        stream.group_by("key").window(SESSIONS, dict_state(entries), inputs, Numbers(), out, state_name="w")
        return declared

    run_all(topology(["n"], 1), "in_process", log_dir=str(tmp_path))
    changed: dict[str, Any] = {"log_dir": str(tmp_path), "allow_changed_topology": True, "max_batch_attempts": 1}
    said = r"one is of version 1 with 1 columns.* keeps version 1 with \['n', 'at'\]"
    with pytest.raises(BatchFailedError, match=said):
        run_all(topology(["n", "at"], 1, 2), "in_process", **changed)


def test_explain_names_the_window(topology: TridentTopology) -> None:
    stream = topology.new_stream("s", FixedBatchSpout(FIELDS, 1, ("a", 1, 1)))
    stream.group_by("key").window(SESSIONS, Count(), "n")
    window = "sessions with gap 0:00:00.010000 by event time at, delay 0:00:00.025000 by key"
    assert f"window n-window: {window}" in topology.explain()
