"""What a window's state holds: few entries, small chunks; several aggregates by name are those of a window each."""

import random
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.crashing_stores import DictMap
from tests.harness.topology_runs import RowsSpout, keep, run_all, stream_of
from tests.windows.test_windows import fed
from tests.windows.test_windows_model import CONFIGS, Numbers
from trident import BatchFailedError, Fields, TridentTopology
from trident.arrow import schema_of
from trident.errors import CorruptValueError
from trident.graph import WindowNode
from trident.operations import (
    ArgMax,
    Avg,
    Collect,
    Count,
    CountDistinct,
    Last,
    Max,
    StdDev,
    Sum,
    TumblingDurationWindow,
)
from trident.spout import SpoutType, TransactionAttempt
from trident.state import OpaqueMap, StateConf
from trident.state.encoding.codec import encode
from trident.state.interfaces import state_of
from trident.state.txid import Txid, Winners
from trident.steps.failures import TupleErrors
from trident.steps.rows import StepRun as Running
from trident.testing import TopologyTestDriver
from trident.windows import window_state
from trident.windows.firing import update_over_time
from trident.windows.grid import Grid
from trident.windows.window_partitions import Now, Share, moment_of
from trident.windows.window_rows import window_input
from trident.windows.window_state import DIRECTORY, MAX_CHUNK_BYTES, Directory, TupleRun, WindowStore, mergeable

FIELDS = Fields("n: bigint")
S = timedelta(seconds=1)


def opened(
    entries: dict[Any, Any], txid: int = 1, fields: Fields = FIELDS, width: int = 1
) -> tuple[OpaqueMap, WindowStore]:
    state = OpaqueMap(DictMap(entries))
    state.begin_commit(txid)
    return state, WindowStore(state, fields, width)


def numbers(*values: int) -> pa.Table:
    return pa.table([list(values)], schema=schema_of(FIELDS))


def pane_of(store: WindowStore, pane: int) -> list[int]:
    runs = store.directory.panes[pane]
    read = store.read(runs)
    return [number for run in runs for rows in read[run] for number in rows["n"].to_pylist()]


@pytest.mark.parametrize(("length", "slide"), [(4, 4), (4, 2), (6, 4), (7, 3), (10, 1)])
def test_every_pane_is_in_the_windows_that_the_definition_says(length: int, slide: int) -> None:
    grid = Grid(length, slide)
    for pane in range(-20, 20):
        inside = range(pane * grid.width, (pane + 1) * grid.width)
        holding = [at for at in range(-200, 200) if at % slide == 0 and all(at - length <= one < at for one in inside)]
        assert list(grid.ends_of(pane)) == holding
        assert all(grid.panes_of(end)[0] <= pane < grid.panes_of(end)[1] for end in holding)
        assert next(frontier for frontier in range(-200, 200) if grid.is_over(pane, frontier)) == holding[-1]


def test_ends_are_those_of_windows_that_hold_something() -> None:
    grid = Grid(6, 4)  # panes of 2; the windows end at the multiples of 4
    assert grid.ends([0], None, 100) == [4]
    assert grid.ends([0, 1, 1_000_000], None, 100) == [4, 8]
    assert grid.ends([0, 1, 1_000_000], 4, 1 << 60) == [8, 2_000_004]
    assert grid.ends([0, 1], 8, 100) == []
    assert grid.ends([], None, 100) == []
    assert [grid.holds([4, 12], pane) for pane in range(7)] == [True, True, False, True, True, True, False]


def test_eight_runs_of_a_level_become_one_of_the_next() -> None:
    small = [TupleRun(0, 10, slot, 1) for slot in range(7)]
    assert len(mergeable(small[:6], combines=False)) == 0
    assert len(mergeable(small, combines=False)) == 7
    assert len(mergeable([TupleRun(1, 10, 9, 1), *small], combines=False)) == 7
    assert len(mergeable([*(TupleRun(1, 10, slot, 1) for slot in range(10, 17)), *small], combines=False)) == 14
    large = TupleRun(0, MAX_CHUNK_BYTES, 7, 1)
    assert len(mergeable([large, *small[1:]], combines=False)) == 0  # tuples that are many are not written again
    assert len(mergeable([large, *small[1:]], combines=True)) == 7  # of partial results equal keys become one


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("sums", [True, False])
def test_thousands_of_batches_in_one_window_leave_a_small_directory_and_no_orphans(sums: bool) -> None:
    config = TumblingDurationWindow.of(1000 * S).by_event_time("n")
    topology, stream = stream_of(FixedBatchSpout("n: bigint", 1, (1,)))
    stream.window(config, "n", *([Sum(), "n"] if sums else [Numbers(), "v: array<bigint>"]))
    node = topology.graph().nodes[-1]
    assert isinstance(node, WindowNode)
    entries: dict[Any, Any] = {}
    state, batches = OpaqueMap(DictMap(entries)), 1000 if sums else 3000
    for txid in range(1, batches + 1):
        run = Running(TransactionAttempt(txid, 0), TupleErrors(), lambda name: None)
        state.begin_commit(txid)
        table = window_input(node, numbers(txid), run)
        assert update_over_time(node, state, Share([table], moment_of(node, [table]), run)).num_rows == 0
        state.commit(txid)
    directory = entries[DIRECTORY].curr
    runs = Directory.of(directory).panes[0]
    assert len(runs) <= 7 * 4  # 8 to the power of 4 is more than 3000
    assert len(directory) < 500
    live = {key for key, stored in entries.items() if key[0] == "chunk" and stored.curr is not None}
    assert live == {key for run in runs for key in run.keys_in()}
    _, store = opened(entries, batches + 1, width=1_000_000)
    kept = pane_of(store, 0)
    assert kept == list(range(1, batches + 1)) if not sums else sum(kept) == batches * (batches + 1) // 2


@pytest.mark.slow
def test_what_fired_is_deleted_from_the_store(topology: TridentTopology) -> None:
    state = MemoryMapState()
    batches = {txid: [(txid,), (txid,)] for txid in range(1, 101)}
    counts = keep(topology.new_stream("s", RowsSpout("n: int", batches)).tumbling_window(10, state, Count(), "c"))
    run_all(topology, "in_process")
    assert counts.rows == [(10,)] * 20
    assert len(_entries(state, "c-window")) < 30  # the directory, and what was removed in the last batches


class _NoRemovals:
    """A map that cannot remove keys."""

    def __init__(self, state: OpaqueMap) -> None:
        self.multi_get, self.multi_put = state.multi_get, state.multi_put


def test_where_keys_cannot_be_removed_they_are_emptied() -> None:
    entries: dict[Any, Any] = {}
    state, _ = opened(entries)
    store = WindowStore(state_of(_NoRemovals(state)), FIELDS)
    store.add(0, numbers(1))
    store.write()
    store = WindowStore(state_of(_NoRemovals(state)), FIELDS)
    store.remove(0)
    store.write()
    assert entries["chunk", 0].curr is None
    assert Directory.of(entries[DIRECTORY].curr).panes == {}


def test_a_batch_without_anything_writes_nothing() -> None:
    entries: dict[Any, Any] = {}
    state, _ = opened(entries)
    run = Running(TransactionAttempt(1, 0), TupleErrors(), lambda name: None)
    for config, now in (
        (TumblingDurationWindow.of(S).by_event_time("n"), None),
        (TumblingDurationWindow.of(S), Now(5)),
    ):
        topology = TridentTopology("t")
        topology.new_stream("s", FixedBatchSpout("n: bigint", 1, (1,))).window(config, Count(), "count")
        node = topology.graph().nodes[-1]
        assert isinstance(node, WindowNode)
        assert update_over_time(node, state, Share([], moment_of(node, [], now), run)).num_rows == 0
    assert entries.keys() <= {("\x00trident-sentinel", 0)}


def test_large_batches_are_cut_into_chunks_that_every_store_takes() -> None:
    entries: dict[Any, Any] = {}
    state, _ = opened(entries)
    table = pa.table({"text": ["x" * 100] * 20_000 + ["y" * 50_000] * 20})
    store = WindowStore(state, Fields("text: string"))
    store.add(0, table)
    store.write()
    (run,) = store.directory.panes[0]
    assert run.slots > 10
    assert all(len(entries[key].curr) <= MAX_CHUNK_BYTES + 1000 for key in run.keys_in())
    assert pa.Table.from_batches(store.read([run])[run]).equals(table)
    one = pa.table({"text": ["z" * (2 * MAX_CHUNK_BYTES)]})  # a row that is larger is a chunk of its own
    store.add(1, one)
    store.write()
    ((rows,),) = store.read(store.directory.panes[1]).values()
    assert rows.to_pylist() == one.to_pylist()


def test_a_replay_writes_over_what_the_failed_attempt_left() -> None:
    entries: dict[Any, Any] = {}
    for attempt, values in ((0, (1, 2, 3)), (1, (4,))):
        state = OpaqueMap(DictMap(entries))
        state.begin_commit(Txid(1, attempt, Winners()))
        store = WindowStore(state, FIELDS)
        assert store.directory == Directory(f"{FIELDS}; in panes of 1")
        for pane, value in enumerate(values):
            store.add(pane, numbers(value))
        store.write()
    state = OpaqueMap(DictMap(entries))
    state.begin_commit(Txid(2, 1, Winners.of([(1, 1)])))
    store = WindowStore(state, FIELDS)
    assert list(store.directory.panes) == [0]
    assert pane_of(store, 0) == [4]
    store.add(5, numbers(9))
    assert store.directory.panes[5] == [TupleRun(0, store.directory.panes[5][0].size, 1, 1)]  # the orphan's slot


def test_a_chunk_that_the_store_lost_is_found() -> None:
    entries: dict[Any, Any] = {}
    state, store = opened(entries)
    store.add(0, numbers(1))
    store.write()
    state.commit(1)
    del entries[("chunk", 0)]
    _, again = opened(entries, 2)
    with pytest.raises(CorruptValueError, match=r"read \('chunk', 0\) of a window: it is not there; the store lost"):
        pane_of(again, 0)


def test_a_chunk_that_is_damaged_or_of_other_fields_is_found() -> None:
    entries: dict[Any, Any] = {}
    state, store = opened(entries)
    store.add(0, numbers(1))
    store.write()
    state.commit(1)
    said = r"it holds \(n: bigint; in panes of 1\), but this topology keeps \(n: string; in"
    with pytest.raises(CorruptValueError, match=said):
        opened(entries, 2, Fields("n: string"))
    why = r"but this topology keeps \(n: bigint; in panes of 5\).*another state_name"
    with pytest.raises(CorruptValueError, match=why):
        WindowStore(state, FIELDS, 5)
    entries[("chunk", 0)] = entries[("chunk", 0)]._replace(curr=b"\x01damaged")
    _, again = opened(entries, 2)
    with pytest.raises(CorruptValueError, match="it is damaged"):
        pane_of(again, 0)


def test_a_directory_of_another_version_is_found() -> None:
    with pytest.raises(CorruptValueError, match="it is of version 9, this program knows 1"):
        Directory.of(encode([9, "", None, 0, []]))


@pytest.mark.parametrize(
    ("length", "stored", "message"),
    [
        (9, [7, 9, 9, 1, [1]], "read the records of a window: one is of version 7 with 1 columns"),
        (4, [1, 9, 9, 7, [7]], "one is of length 9 and slide 9, this topology has 4 and"),
        (10, [1, 9, 9, 7, [7]], "one is of length 9 and slide 9, this topology has 10 and"),
    ],
)
def test_a_window_of_each_key_does_not_take_over_what_others_left(length: int, stored: list[Any], message: str) -> None:
    topology, state = TridentTopology("t"), MemoryMapState()
    topology.new_stream("s", RowsSpout("w: string", {})).group_by("w").tumbling_window(length, state, Count(), "n")
    with TopologyTestDriver(topology, max_batch_attempts=1) as driver:
        fed(driver, ["a"])
        (record,) = [found for key, found in _entries(state).items() if key == ("key", "a")]
        _entries(state)["key", "a"] = record._replace(curr=encode(stored))
        driver.feed("s", "a")
        with pytest.raises(BatchFailedError, match=message):
            driver.step()


def _entries(state: MemoryMapState, name: str = "n-window") -> dict[Any, Any]:
    entries: dict[Any, Any] = state.make_state(StateConf("t", name), 0, 1).data.values.entries
    return entries


MS = timedelta(milliseconds=1)
SEVERAL_FIELDS = "key: string, n: int, at: bigint"
NATIVE: dict[str, Any] = {"total": Sum("n"), "rows": Count(), "most": Max("n"), "mean": Avg("n")}
OTHERS: dict[str, Any] = {
    "total": Sum("n"), "best": ArgMax("at", by="n"), "kinds": CountDistinct("n"), "spread": StdDev("n"),
    "all": Collect("n"), "last": ("n, at", Last(by="at")),
}  # fmt: skip
POINTS = ("process", "begin_commit:w", "put:w", "commit:w", "record")


def in_any_order(rows: Any) -> list[Any]:
    return sorted((tuple(sorted(each) if isinstance(each, list) else each for each in row) for row in rows), key=repr)


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("aggregates", [NATIVE, OTHERS], ids=["kernels", "rows"])
@pytest.mark.parametrize("name", CONFIGS)
def test_each_result_is_that_of_a_window_of_its_own(name: str, aggregates: dict[str, Any]) -> None:
    chosen, topology = random.Random(name), TridentTopology("t")
    stream = topology.new_stream("s", RowsSpout(SEVERAL_FIELDS, {}, SpoutType.OPAQUE)).group_by("key")
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


def test_late_rows_come_as_they_were_beside_several_results(engine: str, topology: TridentTopology) -> None:
    ten = TumblingDurationWindow.of(10 * MS).by_event_time("at")
    rows = [("a", 1, 1), ("a", 2, 3), ("b", 5, 12), ("a", 9, 2), ("a", 3, 13), ("c", 0, 90)]
    stream = topology.new_stream("s", FixedBatchSpout(SEVERAL_FIELDS, 3, *rows))
    windows, late = stream.group_by("key").window_with_late_rows(ten, NATIVE, "found")
    kept, kept_late = keep(windows, "k"), keep(late, "l")
    run_all(topology, engine, parallelism=2)
    assert sorted(kept.rows) == [("a", 3, 1, 3, 3.0), ("a", 3, 2, 2, 1.5), ("b", 5, 1, 5, 5.0)]
    assert kept_late.rows == [("a", 9, 2)]


def test_a_window_of_a_whole_stream_and_one_wide_aggregate_by_itself(topology: TridentTopology) -> None:
    stream = topology.new_stream("s", FixedBatchSpout(SEVERAL_FIELDS, 4, *[("a", n, n) for n in range(8)]))
    several, mean = keep(stream.tumbling_window(4, NATIVE), "k"), keep(stream.tumbling_window(4, Avg("n"), "mean"), "m")
    run_all(topology, "in_process")
    assert several.rows == [(6, 4, 3, 1.5), (22, 4, 7, 5.5)]
    assert mean.rows == [(1.5,), (5.5,)]


def test_explain_names_them(topology: TridentTopology) -> None:
    stream = topology.new_stream("s", FixedBatchSpout(SEVERAL_FIELDS, 1, ("a", 1, 1)))
    stream.group_by("key").tumbling_window(4, {"total": Sum("n"), "rows": Count()})
    assert "window aggregates-window: tumbling count of 4 by key: Sum(n), Count" in topology.explain()
