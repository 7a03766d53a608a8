"""Random batches, failures, replays and restarts: what windows give equals a program that was fed each batch once."""

import datetime as dt
from copy import deepcopy
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from states.memory import MemoryMapState
from tests.harness.topology_runs import RowsSpout, stream_of
from tests.windows.window_model import Fired, Row, model_of
from trident import TridentTuple
from trident.operations import (
    ReducerAggregator,
    SessionWindow,
    SlidingCountWindow,
    SlidingDurationWindow,
    Sum,
    TumblingCountWindow,
    TumblingDurationWindow,
    WindowConfig,
)
from trident.spout import SpoutType
from trident.steps.key_columns import partition_of
from trident.testing import TopologyTestDriver
from trident.windows import window_rows as window_results
from trident.windows import window_state as window_store

MS = timedelta(milliseconds=1)
CONFIGS: dict[str, WindowConfig] = {
    "tumbling count": TumblingCountWindow.of(3),
    "sliding count": SlidingCountWindow.of(6, 4),
    "tumbling time": TumblingDurationWindow.of(4 * MS),
    "sliding time": SlidingDurationWindow.of(6 * MS, 4 * MS),
    "tumbling event time": TumblingDurationWindow.of(4 * MS).by_event_time("at", 2 * MS),
    "sessions": SessionWindow.of(4 * MS, "at", 5 * MS),
    "sliding event time": SlidingDurationWindow.of(6 * MS, 4 * MS).by_event_time("at", 1 * MS, 5 * MS),
}
OVER = [pytest.param(name, True, id=f"{name}-keys") for name in CONFIGS] + [
    pytest.param(name, False, id=f"{name}-stream") for name in CONFIGS if name != "sessions"
]
POINTS = ("define", "process", "begin_commit:w", "put:w", "commit:w", "begin_commit:total", "put:total", "record")

rows = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.none() | st.integers(0, 40)), max_size=6)
PARTITIONS = st.sampled_from([1, 2, 5])
batches = st.lists(
    st.tuples(
        rows,
        st.integers(0, 5),  # milliseconds since the batch before
        st.lists(st.tuples(st.sampled_from(POINTS), st.none() | rows, st.integers(0, 5)), max_size=2),  # failures
    ),
    max_size=14,
)


class Numbers(ReducerAggregator[list[int]]):
    """The numbers of a window, in its order."""

    def init(self) -> list[int]:
        return []

    def reduce(self, curr: list[int], tuple: TridentTuple) -> list[int]:
        curr.append(tuple[0])
        return curr


def in_any_order(fired: list[Fired]) -> list[Fired]:
    return sorted(fired, key=repr)


def ordinate(value: Any) -> int:
    return round(value.timestamp() * 1000) if isinstance(value, dt.datetime) else int(value)


def examples(few: int, many: int) -> Any:
    """Give a test so many examples: few, and many when it soaks."""
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.soak)], ids=["few", "many"])


@pytest.mark.sample(2)
@pytest.mark.slow
@examples(8, 300)
@pytest.mark.parametrize("sums", [False, True], ids=["tuples", "combiner"])
@pytest.mark.parametrize(("name", "grouped"), OVER)
def test_a_window_gives_what_the_model_gives(name: str, grouped: bool, sums: bool, count: int) -> None:
    @given(life=batches, partitions=PARTITIONS)
    @settings(max_examples=count)
    def lives(life: Any, partitions: int) -> None:
        lived(name, grouped, sums, life, partitions)

    lives()


def lived(name: str, grouped: bool, sums: bool, life: Any, partitions: int) -> None:
    """Let a topology live, and compare what fired in each batch, and what was summed up behind it, with the model.

    Whatever the number of partitions, the same fires in the same batch; a window of the stream has one of them.
    """
    config, model = CONFIGS[name], model_of(CONFIGS[name], grouped)
    topology, stream = stream_of(RowsSpout("key: string, n: int, at: bigint", {}, SpoutType.OPAQUE))
    over: Any = stream.group_by("key") if grouped else stream
    aggregator: Any = Sum() if sums else Numbers()
    out = "v" if sums else "v: array<bigint>"
    fired = over.window(config, "n", aggregator, out, bounds="start, end", state_name="w").parallelism_hint(partitions)
    count = fired.each("v", lambda v: v if sums else sum(v), "value: bigint")
    total = count.persistent_aggregate(MemoryMapState(), "value", Sum(), "total")

    def in_order(value: Any) -> Any:
        """By event time the numbers are in the order of panes, which is nobody's promise; else in that of the tuples."""
        return sorted(value) if config.event_time is not None and not sums else value

    def shown(numbers: list[int]) -> Any:
        return sum(numbers) if sums else in_order(numbers)

    # Merging, cutting and going in several passes must happen with few rows too.
    with (
        patch.object(window_store, "_FAN_IN", 2),
        patch.object(window_store, "MAX_CHUNK_BYTES", 40),
        patch.object(window_results, "_MANY", 5),
        TopologyTestDriver(topology, max_batch_attempts=99) as driver,
    ):
        expected: dict[int, list[Fired]] = {}
        for given_rows, wait, failures in life:
            driver.clock.advance(wait / 1000)
            due = config.by_batch_time and deepcopy(model).take([], driver.clock.wall_ms())
            alone = driver.run()  # time alone
            assert len(alone) == 1 or not due
            for result in alone:
                expected[result.txid] = model.take([], driver.clock.wall_ms())
            final, now = fed_batch(driver, given_rows, failures)
            expected[driver.txid] = model.take(final, now)
        found = {
            txid: [(row[0] if grouped else None, *map(ordinate, row[-3:-1]), in_order(row[-1])) for row in batch]
            for txid, batch in driver.captured(fired).items()
        }
        wanted = {txid: [(*head, shown(numbers)) for *head, numbers in batch] for txid, batch in expected.items()}
        assert {txid: in_any_order(batch) for txid, batch in found.items()} == {
            txid: in_any_order(batch) for txid, batch in wanted.items()
        }
        everything = sum(sum(numbers) for batch in expected.values() for *_, numbers in batch)
        assert (driver.state(total).get() or 0) == everything
        counted = driver._progress.metrics()
        assert (counted.get("w/late", 0), counted.get("w/no_event_time", 0)) == (len(model.late_rows), model.nowhere)
        for batch in found.values():
            for share in shared(batch, partitions):
                ends = [row[2] for row in share]
                assert ends == sorted(ends)


def shared(batch: list[Fired], partitions: int) -> list[list[Fired]]:
    """What each partition gave, where the rows of a batch come partition by partition."""
    places = [0 if row[0] is None else partition_of((row[0],), partitions) for row in batch]
    assert places == sorted(places)
    return [[row for row, place in zip(batch, places, strict=True) if place == one] for one in range(partitions)]


def fed_batch(driver: TopologyTestDriver, given_rows: list[Row], failures: Any) -> tuple[list[Row], int]:
    """Feed a batch and let attempts at it fail, with other rows and at another time; return what won, and its time."""
    driver.feed("s", *given_rows)
    now: int | None = None
    for point, replay, wait in failures:
        driver.fail_at(point)
        result = driver.step()
        assert result is not None
        if now is None and point != "define":
            now = driver.clock.wall_ms()
        if result.committed:  # it did not come by that point: the total of nothing is not written
            driver._points._left.clear()
            return given_rows, now or driver.clock.wall_ms()
        if replay is not None:
            driver.replay("s", *replay)
            given_rows = replay
        driver.clock.advance(wait / 1000)
    result = driver.step()
    assert result is not None, "nothing was left to do"
    assert result.committed, result
    return given_rows, driver.clock.wall_ms() if now is None else now
