"""Windows stay exact: after failures at every point of a commit, with the same and with other rows, and over restarts."""

import signal
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from states.memory import MemoryMapState
from states.redis import RedisState
from tests.harness.forked import exit_code_of, live
from tests.harness.servers import Server
from tests.harness.topology_runs import RowsSpout, keep, open_view, run_all, stream_of
from tests.windows.lives import CLOCK_ROWS, clock_in
from tests.windows.test_windows import Collect, fed, texts
from trident import TridentTopology
from trident.config import Config
from trident.log.file_log import FileLog
from trident.log.log_reader import LogReader
from trident.log.records import TIME, DefineRecord
from trident.operations import Count, Sum
from trident.spout import SpoutType
from trident.testing import TopologyTestDriver

POINTS = ["define", "process", "begin_commit:w", "put:w", "commit:w", "begin_commit:total", "commit:total", "record"]


def collecting(slide: int, kind: SpoutType) -> tuple[TridentTopology, Any]:
    topology, stream = stream_of(RowsSpout("t: string", {}, kind))
    fired = stream.sliding_window(4, slide, "t", Collect(), "ts", state_name="w")
    fired.each("ts", len, "n: bigint").persistent_aggregate(MemoryMapState(), "n", Sum(), "total")
    return topology, fired


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("failures", [1, 3])
def test_the_tuples_of_a_retried_batch_count_once(point: str, failures: int) -> None:
    # Storm: [t0, t1, t2, t0] (H13)
    topology, fired = collecting(4, SpoutType.TRANSACTIONAL)
    with TopologyTestDriver(topology, max_batch_attempts=9) as driver:
        for batch in (texts(0, 2), texts(3, 5), texts(6, 9)):
            driver.feed("s", *batch)
            driver.fail_at(point, failures)
            assert [result.committed for result in driver.run()] == [False] * failures + [True]
        assert driver.captured(fired) == {1: [], 2: [(texts(0, 3),)], 3: [(texts(4, 7),)]}
        assert driver.state("total").get() == 8


@pytest.mark.parametrize("point", POINTS[1:])
@pytest.mark.parametrize(
    ("first", "then"), [(texts(0, 2), ["x"]), (["x"], texts(0, 2)), (texts(0, 8), []), ([], texts(0, 8))]
)
def test_a_replay_with_other_tuples_leaves_nothing_of_the_failed_attempt(
    point: str, first: Sequence[str], then: Sequence[str]
) -> None:
    topology, fired = collecting(2, SpoutType.OPAQUE)
    with TopologyTestDriver(topology, max_batch_attempts=9) as driver:
        fed(driver, ["a"])
        driver.feed("s", *first)
        driver.fail_at(point)
        result = driver.step()
        assert result is not None
        if not result.committed:  # without tuples a window has nothing to do, so it does not come by
            driver.replay("s", *then)
            driver.run()
            first = then
        fed(driver, ["y", "z"])
        came = ["a", *first, "y", "z"]
        wanted = [(came[max(0, end - 4) : end],) for end in range(2, len(came) + 1, 2)]
        assert [row for batch in driver.captured(fired).values() for row in batch] == wanted
        assert driver.state("total").get() == sum(len(window) for (window,) in wanted)


def test_a_state_that_is_begun_anew_on_an_old_log_has_empty_windows(tmp_path: Path) -> None:
    states = [MemoryMapState.opaque(), MemoryMapState.opaque()]
    batches, kept = {}, []
    for last, policy in ((1, "refuse"), (2, "discard_totals"), (3, "refuse")):
        batches[last] = [("a",), ("b",), ("c",)]
        topology, stream = stream_of(RowsSpout("t: string", batches))
        if last == 2:
            states = [MemoryMapState.opaque(), MemoryMapState.opaque()]  # what was kept is gone
        kept.append(keep(stream.tumbling_window(4, states[0], Count(), "n", bounds="start, end")))
        stream.tumbling_window(timedelta(days=999), states[1], Count(), "n", state_name="by_time")
        run_all(topology, "in_process", log_dir=str(tmp_path), state_recovery=policy)
    assert [rows.rows for rows in kept] == [[], [], [(0, 4, 4)]]


@pytest.mark.slow
def test_batches_that_are_processed_together_are_committed_in_order(topology: TridentTopology) -> None:
    batches = {txid: [(f"t{txid * 3 + n}",) for n in range(3)] for txid in range(40)}
    stream = topology.new_stream("s", RowsSpout("t: string", {txid + 1: rows for txid, rows in batches.items()}))
    fired = keep(stream.sliding_window(10, 5, "t", Collect(), "ts", bounds="start, end"), "k1")
    by_time = keep(stream.tumbling_window(timedelta(milliseconds=1), Count(), "n"), "k2")
    run_all(topology, "in_process", max_spout_pending=3)
    assert fired.rows == [(max(0, end - 10), end, texts(max(0, end - 10), end - 1)) for end in range(5, 121, 5)]
    assert sum(n for (n,) in by_time.rows) <= 120


def test_a_window_in_redis_goes_on_after_a_restart(redis_server: Server, tmp_path: Path) -> None:
    fired = []
    given = {txid: [("ab"[n % 2], n) for n in range(txid * 5, txid * 5 + 5)] for txid in range(1, 7)}
    for last in (2, 3, 6):
        topology = TridentTopology("windows-in-redis")
        spout = RowsSpout("key: string, n: int", {txid: given[txid] for txid in range(1, last + 1)})
        stream = topology.new_stream("s", spout)
        state = RedisState.opaque(f"redis://{redis_server.address}/0")
        fired.append(keep(stream.sliding_window(8, 4, state, "n", Sum(), "sum"), "k1"))
        fired.append(keep(stream.group_by("key").tumbling_window(4, state, "n", Sum(), "s2"), "k2"))
        run_all(topology, "in_process", log_dir=str(tmp_path))
    rows = [row for of_batch in given.values() for row in of_batch]
    numbers = [n for _, n in rows]
    sums = [(sum(numbers[max(0, end - 8) : end]),) for end in range(4, 31, 4)]
    assert [row for kept in fired[::2] for row in kept.rows] == sums
    mine = {key: [n for of, n in rows if of == key] for key in "ab"}
    of_keys = [(key, sum(mine[key][at : at + 4])) for key in "ab" for at in range(0, 12, 4)]
    assert sorted(row for kept in fired[1::2] for row in kept.rows) == of_keys


DEATHS = ["defined", "processed", "committing", "committed", "recorded"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "point"),
    [
        *(("in_process", point) for point in DEATHS),
        pytest.param("spark", "committed", marks=[pytest.mark.spark, pytest.mark.slow]),
    ],
)
def test_windows_give_all_once_if_time_restarts(engine: str, point: str, redis_server: Server, tmp_path: Path) -> None:
    url, ahead = f"redis://{redis_server.address}/0", 4_000_000_000_000
    folder = tmp_path / f"{engine}-{point}"
    with closing(FileLog.open(folder / "log", folder.name)) as log:
        # The clock of the first driver is wrong; batch 1, which it has begun without the source, has no rows.
        log.append(DefineRecord(1, TIME, {"now": ahead}))

    driver = partial(live, partial(clock_in, url=url), folder)
    apart = {"engine": "spark", "state_placement": "executors", "master": "local[2]"} if engine == "spark" else {}
    # With two batches at once and no new time, batch 4 would have the wrong time already.
    assert exit_code_of(partial(driver, "recorded", 3, max_spout_pending=1)) == -signal.SIGKILL
    again: dict[str, Any] = {**apart, "max_spout_pending": 2, "reset_batch_time": True}
    assert exit_code_of(partial(driver, point, 4, **again)) == -signal.SIGKILL
    assert exit_code_of(partial(driver, max_spout_pending=1, **apart)) == 0
    state = LogReader(folder / "log").refresh()
    times = [record.spouts[TIME] for record in state.history]
    assert [time["now"] == ahead for time in times] == [True] * 3 + [False] * (len(times) - 3)
    assert [record.txid for record in state.history if "begins_again" in record.spouts[TIME]] == [4]
    graph = clock_in(folder, url).graph()
    with closing(open_view(graph, Config(), "total", partial(state.snapshot, "total"))) as view:
        found = view.multi_get([(key,) for key in "abc"])
    assert found == [sum(number for key, number in CLOCK_ROWS[:4] if key == one) for one in "abc"]
