"""Spouts of rows that are given: fed, fixed, and by the clock."""

import datetime
import decimal
import gc
import math
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts import FeederBatchSpout, FixedBatchSpout, RateSpout
from spouts.rows.rate import RowSchedule
from tests.spouts.reading import begun, definitions, is_plain, rows_of
from trident.arrow import schema_of
from trident.errors import ReplayMismatchError, SpoutError, TopologyError
from trident.spout import ITridentSpout, Lag, SpoutType, TransactionAttempt


class Driver:
    """What a topology does with a spout, in a thread of its own until `close`."""

    def __init__(self, spout: FeederBatchSpout) -> None:
        self.committed: list[list[tuple[Any, ...]]] = []
        self._spout, self._stopping = spout, Event()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        coordinator, previous, txid = self._spout.get_coordinator({}), None, 1
        while not self._stopping.is_set():
            definition = coordinator.initialize_transaction(txid, previous)
            if definition is None:
                self._stopping.wait(0.001)
                continue
            self.committed.append(rows_of(self._spout, coordinator, definition))
            coordinator.success(txid, definition)
            previous, txid = definition, txid + 1
        coordinator.close()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()


def test_feeds_are_batches_in_order_and_each_is_committed_when_feed_returns() -> None:
    spout = FeederBatchSpout("word: string", "n: int")
    assert isinstance(spout, ITridentSpout)
    with closing(Driver(pickle.loads(pickle.dumps(spout)))) as driver:
        spout.feed([("a", 1), ("b", 2)])
        assert driver.committed == [[("a", 1), ("b", 2)]]
        spout.feed([])
        spout.feed(pa.table({"x": ["c"], "y": pa.array([3], pa.int64())}))
        assert driver.committed == [[("a", 1), ("b", 2)], [], [("c", 3)]]


def test_what_is_fed_before_the_start_is_queued() -> None:
    spout = FeederBatchSpout("n: int")
    assert [spout.feed_nowait([(1,)]), spout.feed_nowait([(2,)])] == [0, 1]
    with closing(Driver(spout)) as driver:
        spout.feed([(3,)])
        assert driver.committed == [[(1,)], [(2,)], [(3,)]]


def test_many_threads_may_feed_at_once() -> None:
    spout = FeederBatchSpout("n: int")
    with closing(Driver(spout)) as driver, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: spout.feed([(n,)]), range(100)))
    assert sorted(driver.committed) == [[(n,)] for n in range(100)]


def test_a_feed_that_is_not_committed_in_time_says_where_it_is_and_stays_queued() -> None:
    spout = FeederBatchSpout("n: int")
    with pytest.raises(SpoutError, match=r"feed 0 was not committed within 0 s \(no batch has it yet\)"):
        spout.feed([(1,)], timeout_s=0)
    coordinator, definition = begun(spout)
    with pytest.raises(SpoutError, match=r"feed 1 was not committed within 0.01 s \(no batch has it yet\)"):
        spout.feed([(2,)], timeout_s=0.01)
    assert rows_of(spout, coordinator, definition) == [(1,)]
    assert rows_of(spout, coordinator, coordinator.initialize_transaction(2, definition)) == [(2,)]


def test_a_feed_may_wait_for_ever() -> None:
    spout = FeederBatchSpout("n: bigint")
    with ThreadPoolExecutor(1) as pool:
        fed = pool.submit(spout.feed, [(1,)], math.inf)
        with pytest.raises(TimeoutError):
            fed.result(0.05)
        driver = Driver(spout)
        fed.result(30)
        driver.close()
    assert driver.committed == [[(1,)]]


def test_a_feed_is_told_that_the_topology_stopped() -> None:
    spout = FeederBatchSpout("n: int")
    coordinator = spout.get_coordinator({})
    with ThreadPoolExecutor(1) as pool:
        feeding = pool.submit(spout.feed, [(1,)])
        while coordinator.initialize_transaction(1, None) is None:
            pass
        while not feeding.done():  # a close before the wait began is of an earlier topology
            coordinator.close()
        with pytest.raises(SpoutError, match=r"the topology stopped before \(it is batch 1\). The rows stay queued"):
            feeding.result()
    again = spout.get_coordinator({})
    assert rows_of(spout, again, again.initialize_transaction(1, None)) == [(1,)]


def test_a_batch_is_given_again_until_it_is_committed() -> None:
    spout = FeederBatchSpout("n: int")
    spout.feed_nowait([(1,)])
    spout.feed_nowait([(2,)])
    coordinator, first = begun(spout)
    second = coordinator.initialize_transaction(2, first)
    assert coordinator.initialize_transaction(3, second) is None
    assert rows_of(spout, coordinator, first) == rows_of(spout, coordinator, first) == [(1,)]
    coordinator.success(1, first)
    assert rows_of(spout, coordinator, second) == [(2,)]
    assert rows_of(spout, spout.get_coordinator({}), spout.get_coordinator({}).initialize_transaction(2, None)) == [
        (2,)
    ]
    coordinator.success(2, second)
    coordinator.success(1, first)
    assert spout.get_coordinator({}).initialize_transaction(3, None) is None
    with pytest.raises(ReplayMismatchError, match="batch 1 is feed 0 of the feeder .* lost with its process"):
        coordinator.parts(TransactionAttempt(1, 0), first, 1)


def test_a_log_of_an_earlier_process_takes_new_feeds_and_refuses_its_open_batch() -> None:
    spout = FeederBatchSpout("n: int")
    spout.feed_nowait([(1,)])
    coordinator, earlier = spout.get_coordinator({}), {"feeder": "other", "feed": 41}
    assert rows_of(spout, coordinator, coordinator.initialize_transaction(42, earlier)) == [(1,)]
    with pytest.raises(ReplayMismatchError, match="batch 9 is feed 41 of the feeder other, which this process does"):
        coordinator.parts(TransactionAttempt(9, 0), earlier, 1)
    coordinator.success(41, earlier)
    assert rows_of(spout, coordinator, coordinator.initialize_transaction(42, earlier)) == [(1,)]


@pytest.mark.slow
def test_in_another_process_it_can_be_held_but_not_fed() -> None:
    spout = FeederBatchSpout("n: int")
    code = "import pickle, sys; pickle.load(sys.stdin.buffer).feed([(1,)])"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(spout), capture_output=True, check=False)
    assert b"was made in another process" in done.stderr


def test_what_was_fed_goes_with_the_last_copy_of_the_spout() -> None:
    spout = FeederBatchSpout("n: int")
    data = pickle.dumps(spout)
    del spout
    gc.collect()
    with pytest.raises(SpoutError, match="was made in another process"):
        pickle.loads(data).feed_nowait([(1,)])


def test_rows_and_fields_are_checked_at_the_call() -> None:
    with pytest.raises(TopologyError, match="the type of field 'n' is not known"):
        FeederBatchSpout("n")
    spout = FeederBatchSpout("n: int")
    with pytest.raises(TopologyError, match="row 1: the value 'x' of field 'n' is not of type int"):
        spout.feed_nowait([(1,), ("x",)])
    assert spout.feed_nowait([(1,)]) == 0


WORDS = [("the",), ("cow",), ("jumped",), ("over",), ("moon",)]


def batches(spout: FixedBatchSpout, limit: int = 20) -> list[list[Any]]:
    coordinator = spout.get_coordinator({})
    return [rows_of(spout, coordinator, one) for one in islice(definitions(coordinator), limit)]


def numbers(count: int, start: int = 0) -> pa.Table:
    return pa.table({"n": pa.array(range(start, start + count), pa.int64())})


@pytest.mark.parametrize(
    ("spout", "expected"),
    [
        (FixedBatchSpout("word", 2, *WORDS), [WORDS[:2], WORDS[2:4], WORDS[4:]]),
        (FixedBatchSpout("word", 2, WORDS[:3], *WORDS[3:]), [WORDS[:2], WORDS[2:4], WORDS[4:]]),
        (FixedBatchSpout("word", 3, *WORDS, cycle=True), [WORDS[:3], WORDS[3:], WORDS[:3], WORDS[3:], WORDS[:3]]),
        (FixedBatchSpout("word: string", 3, cycle=True), []),
        (FixedBatchSpout.of_tables([numbers(3), numbers(0), numbers(2, 3)]), [[(0,), (1,), (2,)], [(3,), (4,)]]),
        (FixedBatchSpout.of_tables([numbers(1), numbers(1, 1)], cycle=True), [[(0,)], [(1,)], [(0,)], [(1,)], [(0,)]]),
        (FixedBatchSpout.of_tables([numbers(0)], cycle=True), []),
    ],
    ids=["rows", "batches", "a cycle", "no rows", "tables", "a cycle of tables", "empty tables"],
)
def test_rows_come_in_order_in_batches_and_a_cycle_begins_with_one_of_its_own(
    spout: FixedBatchSpout, expected: list[list[Any]]
) -> None:
    assert isinstance(spout, ITridentSpout)
    assert spout.spout_type is SpoutType.TRANSACTIONAL
    assert batches(spout, 5) == batches(pickle.loads(pickle.dumps(spout)), 5) == expected


def test_a_cycle_may_be_set_later() -> None:
    spout = FixedBatchSpout("word", 3, *WORDS)
    spout.set_cycle(True)
    assert len(batches(spout, 5)) == 5
    spout.set_cycle(False)
    assert len(batches(spout, 5)) == 2


def test_a_list_row_may_hold_lists() -> None:
    spout = FixedBatchSpout("tags, n", 5, [["a", "b"], 1], [[], 2])
    assert str(spout.get_output_fields()) == "tags: array<string>, n: bigint"
    assert batches(spout) == [[(["a", "b"], 1), ([], 2)]]


def test_types_that_are_not_declared_are_those_of_the_values() -> None:
    day, moment = datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1)
    row = (1, 1.5, "a", True, b"b", day, moment, decimal.Decimal(1), {"a": 1})
    fields = FixedBatchSpout([f"f{k}" for k in range(9)], 5, row, [None] * 9).get_output_fields()
    assert fields.types == (
        "bigint", "double", "string", "boolean", "binary", "date", "timestamp", "decimal(38,18)", "map<string,bigint>",
    )  # fmt: skip


def test_a_declared_type_stands() -> None:
    spout = FixedBatchSpout("n: int, x", 5, (1, 2))
    assert schema_of(spout.get_output_fields()) == pa.schema([("n", pa.int32()), ("x", pa.int64())])
    assert batches(spout) == [[(1, 2)]]


@pytest.mark.parametrize(
    ("fields", "rows", "message"),
    [
        ("a, b", [(1, 2), (1,)], r"row 1 has 1 values, but there are 2 fields \(a, b\): \(1,\)"),
        ("a", ["word"], r"row 0 is 'word', not a list or tuple of 1 values"),
        ("a", [(1,), ("x",)], r"field 'a' are of several types: bigint \(row 0\), string \(row 1\)"),
        ("a", [(1,), (True,)], r"bigint \(row 0\), boolean \(row 1\)"),
        ("a", [(None,)], r"field 'a' cannot be taken from the rows: none has a value"),
        ("a", [], r"field 'a' cannot be taken from the rows: none has a value"),
        ("a", [(object(),)], r"field 'a' cannot be taken from row 0: .* is a object; declare it"),
        ("a", [([1, "x"],)], r"field 'a' cannot be taken from row 0: \[1, 'x'\] is a list"),
        ("a: int, b: string", [(1, "x"), (2, 3)], r"row 1: the value 3 of field 'b' is not of type string"),
        ("a: tinyint", [(1,), (300,)], r"row 1: the value 300 of field 'a' is not of type tinyint"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_its_number(fields: str, rows: list[Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        FixedBatchSpout(fields, 2, *rows)


def test_a_batch_without_room_for_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="max_batch_size=0 of FixedBatchSpout: give a whole number of at least 1"):
        FixedBatchSpout("a", 0, (1,))


def test_a_definition_beyond_the_rows_is_refused() -> None:
    coordinator = FixedBatchSpout("word", 9, *WORDS).get_coordinator({})
    message = "batch 7 was defined as the rows 3 to 6 .* the spout has 5 rows now; give it the rows"
    with pytest.raises(ReplayMismatchError, match=message):
        coordinator.parts(TransactionAttempt(7, 0), {"start": 3, "end": 6}, 1)
    with pytest.raises(ReplayMismatchError, match="has 5 rows now"):
        coordinator.parts(TransactionAttempt(7, 0), {"start": 5, "end": 6}, 1)


def test_a_definition_that_spans_tables_is_refused() -> None:
    coordinator = FixedBatchSpout.of_tables([numbers(3), numbers(2)]).get_coordinator({})
    with pytest.raises(ReplayMismatchError, match="the rows 2 to 4"):
        coordinator.parts(TransactionAttempt(1, 0), {"start": 2, "end": 4}, 1)


def address_of(table: pa.Table) -> int:
    """Return where the buffer of a table's one column lies, of which a slice is a view."""
    (batch,) = table.to_batches()
    buffer = batch.column(0).buffers()[1]
    assert buffer is not None
    return int(buffer.address)


def test_parts_are_equal_slices_that_share_the_memory_of_the_table() -> None:
    table = numbers(10_000)
    coordinator = FixedBatchSpout.of_tables([table]).get_coordinator({})
    parts = coordinator.parts(TransactionAttempt(1, 0), {"start": 0, "end": 10_000}, 4)
    assert [part.table.num_rows for part in parts] == [2500] * 4
    assert [address_of(part.table) for part in parts] == [address_of(table)] * 4


def test_a_pickled_part_carries_its_own_rows_only() -> None:
    coordinator = FixedBatchSpout.of_tables([numbers(10_000)]).get_coordinator({})
    part = coordinator.parts(TransactionAttempt(1, 0), {"start": 0, "end": 10_000}, 8)[1]
    data = pickle.dumps(part)
    assert len(data) < 1250 * 8 + 1000
    assert pickle.loads(data).table == numbers(1250, 1250)


def test_a_few_rows_are_one_part_and_keep_their_order() -> None:
    spout = FixedBatchSpout("n", 500, [(n,) for n in range(500)])
    coordinator = spout.get_coordinator({})
    assert len(coordinator.parts(TransactionAttempt(1, 0), {"start": 0, "end": 500}, 8)) == 1


def test_a_table_may_be_given_instead_of_rows() -> None:
    spout = FixedBatchSpout("n, m: string", 2, pa.table({"a": [1, 2, 3], "b": ["x", "y", None]}))
    assert str(spout.get_output_fields()) == "n: bigint, m: string"
    assert batches(spout) == [[(1, "x"), (2, "y")], [(3, None)]]


@pytest.mark.parametrize(
    ("fields", "given", "message"),
    [
        ("n", [numbers(1), (1,)], "rows and tables cannot be mixed"),
        ("n, m", [numbers(1)], r"the table has 1 columns \['n'\], but there are 2 fields"),
        ("n: int", [pa.table({"n": ["x"]})], r"cannot be read as \(n: int\)"),
        ("n", [pa.table({"n": pa.array([1], pa.time64("us"))})], "column 'n' is of Arrow type time64"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(fields: str, given: list[Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        FixedBatchSpout(fields, 2, *given)


def test_tables_of_several_schemas_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"table 1 has the schema \(n: string\), table 0 has \(n: int64\)"):
        FixedBatchSpout.of_tables([numbers(1), pa.table({"n": ["x"]})])


def test_no_table_at_all_is_refused() -> None:
    with pytest.raises(TopologyError, match="takes Arrow tables, at least one"):
        FixedBatchSpout.of_tables([])


def test_spark_types_survive_a_round_trip_through_a_schema() -> None:
    ddl = "a: array<int>, b: map<string,double>, c: struct<x:bigint,y:string>, d: decimal(10,2), e: timestamp, "
    ddl += "f: timestamp_ntz"
    spout = FixedBatchSpout(ddl, 1, ([1], {"k": 1.0}, {"x": 1, "y": "z"}, decimal.Decimal("1.50"), None, None))
    table = spout.get_coordinator({}).parts(TransactionAttempt(1, 0), {"start": 0, "end": 1}, 1)[0].table
    assert FixedBatchSpout.of_tables([table]).get_output_fields() == spout.get_output_fields()


BEGAN = 1_700_000_000.0


class Now:
    """A clock that stands still until it is told to go on."""

    def __init__(self, time: float = BEGAN) -> None:
        self.time = time

    def __call__(self) -> float:
        return self.time


def seconds(row: tuple[Any, ...]) -> float:
    moment: datetime.datetime = row[1]
    return moment.timestamp() - BEGAN


def test_rows_of_a_second_come_when_it_is_over_with_the_time_they_were_due() -> None:
    now, spout = Now(), RateSpout(4)
    coordinator = spout.get_coordinator({}, now)
    assert coordinator.initialize_transaction(1, None) is None
    now.time += 0.999
    assert coordinator.initialize_transaction(1, None) is None
    now.time += 0.002
    first = coordinator.initialize_transaction(1, None)
    assert is_plain(first)
    rows = rows_of(spout, coordinator, first)
    assert [(row[0], seconds(row)) for row in rows] == [(0, 0.0), (1, 0.25), (2, 0.5), (3, 0.75)]
    assert coordinator.initialize_transaction(2, first) is None


def test_a_restart_takes_the_rows_that_became_due_meanwhile_and_no_row_twice() -> None:
    now, spout = Now(), RateSpout(1000, rows_per_batch=1500)
    before = spout.get_coordinator({}, now)
    assert before.initialize_transaction(1, None) is None
    now.time += 1
    first = before.initialize_transaction(1, None)
    now.time += 2
    after = spout.get_coordinator({}, now)
    found = list(definitions(after, first, 2))
    assert [(one["start"], one["end"]) for one in found] == [(1000, 2500), (2500, 3000)]
    times = [seconds(row) for row in rows_of(spout, after, found[1])]
    assert times[::100] == pytest.approx([2.5, 2.6, 2.7, 2.8, 2.9], abs=1e-6)


def test_another_rate_goes_on_after_the_last_row_of_the_old_one() -> None:
    now = Now()
    slow = RateSpout(2).get_coordinator({}, now)
    assert slow.initialize_transaction(1, None) is None
    now.time += 3
    first = slow.initialize_transaction(1, None)
    now.time += 1
    spout = RateSpout(5, tick_s=0.2)
    (second,) = definitions(spout.get_coordinator({}, now), first, 2)
    rows = rows_of(spout, spout.get_coordinator({}, now), second)
    assert [(row[0], round(seconds(row), 6)) for row in rows] == [(6, 3.0), (7, 3.2), (8, 3.4), (9, 3.6), (10, 3.8)]
    again = spout.get_coordinator({}, now)
    assert [row[0] for row in rows_of(spout, again, first)] == [0, 1, 2, 3, 4, 5]


def test_without_a_rate_each_batch_has_the_given_rows_until_all_are_emitted() -> None:
    spout = RateSpout(rows_per_batch=40, rows=100)
    coordinator = spout.get_coordinator({}, Now())
    found = list(definitions(coordinator))
    assert [row[0] for one in found for row in rows_of(spout, coordinator, one, 3)] == list(range(100))
    assert [one["end"] for one in found] == [40, 80, 100]
    assert {seconds(row) for row in rows_of(spout, coordinator, found[0])} == {0.0}


def test_a_ramp_gives_half_of_the_rows_and_ends_at_the_rate() -> None:
    now, spout = Now(), RateSpout(100, ramp_up_s=10)
    coordinator = spout.get_coordinator({}, now)
    assert coordinator.initialize_transaction(1, None) is None
    ends = []
    previous = None
    for second in range(1, 13):
        now.time = BEGAN + second
        previous = coordinator.initialize_transaction(second, previous)
        assert previous is not None
        ends.append(previous["end"])
    assert ends == [5, 20, 45, 80, 125, 180, 245, 320, 405, 500, 600, 700]


@given(
    st.floats(0.01, 1e6), st.sampled_from([0.0, 0.5, 7.0]), st.lists(st.integers(0, 5_000_000), min_size=1, max_size=8)
)
def test_a_row_is_never_emitted_before_it_is_due_and_times_do_not_fall(
    rate: float, ramp_up_s: float, waits: list[int]
) -> None:
    schedule = RowSchedule(0, 1_000_000, rate, ramp_up_s)
    at, last = schedule.from_us, 0
    for wait in waits:
        at += wait
        due = schedule.due(at)
        assert due >= last
        if due > last:
            times = schedule.times_of(max(last, due - 1000), due)
            assert (times[1:] >= times[:-1]).all()
            assert times[-1] <= at
            assert schedule.times_of(due - 1, due) == times[-1:]
        last = due


def test_throttled_it_takes_its_share_and_lag_tells_what_waits() -> None:
    now, spout = Now(), RateSpout(1000, rows_per_batch=500)
    coordinator = spout.get_coordinator({}, now)
    assert coordinator.initialize_transaction(1, None) is None
    now.time += 2
    coordinator.throttle(0.1)
    first = coordinator.initialize_transaction(1, None)
    assert first is not None
    assert (first["end"], coordinator.lag(first), coordinator.size(first)) == (50, Lag(1950, "records"), 800)
    coordinator.throttle(0.0001)
    second = coordinator.initialize_transaction(2, first)
    assert second is not None
    assert second["end"] == 51
    assert RateSpout(rows_per_batch=5).get_coordinator({}).lag(first) is None


def test_parts_are_as_many_as_said_and_have_all_rows() -> None:
    spout = RateSpout(rows_per_batch=100_000, rows=100_001, partitions=3)
    coordinator = spout.get_coordinator({})
    one, rest = definitions(coordinator)
    sizes = [end - start for _, start, end in coordinator.parts(TransactionAttempt(1, 0), one, 8)]
    assert sizes == [33333, 33333, 33334]
    assert len(coordinator.parts(TransactionAttempt(2, 0), rest, 8)) == 1
    wide = RateSpout(rows_per_batch=100_000).get_coordinator({})
    assert [len(wide.parts(TransactionAttempt(1, 0), one, cores)) for cores in (1, 4, 64)] == [1, 4, 6]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({}, "needs a rate"),
        ({"rows_per_second": 0}, "rows_per_second=0 of RateSpout: give a number above 0 or None"),
        ({"rows_per_second": float("inf")}, "rows_per_second=inf of RateSpout: give a number above 0, at most"),
        ({"rows_per_batch": 0}, "rows_per_batch=0 of RateSpout: give a whole number of at least 1 or None"),
        ({"rows_per_batch": 1, "partitions": 0}, "partitions=0 of RateSpout: give a whole number of at least 1"),
        ({"rows_per_batch": 1, "ramp_up_s": 1}, "there is no rate to reach"),
        ({"rows_per_second": 1, "ramp_up_s": -1}, "ramp_up_s=-1 of RateSpout: give seconds of at least 0"),
        ({"rows_per_second": 1, "rows": -1}, "rows=-1 of RateSpout: give a whole number of at least 0"),
        ({"rows_per_second": 1, "tick_s": 0}, "tick_s=0 of RateSpout: give seconds of at least 0.001"),
        ({"rows_per_second": 1, "tick_s": math.inf}, "tick_s=inf of RateSpout: give seconds of at least 0.001"),
        ({"rows_per_second": 1, "ramp_up_s": math.nan}, "ramp_up_s=nan of RateSpout: give seconds"),
        ({"rows_per_batch": math.inf}, "rows_per_batch=inf of RateSpout: give a whole number of at least 1"),
        ({"rows_per_batch": 1, "rows": 1.5}, "rows=1.5 of RateSpout: give a whole number"),
        ({"rows_per_batch": 1, "rows": math.nan}, "rows=nan of RateSpout: give a whole number"),
        ({"rows_per_batch": 1, "partitions": 1.5}, "partitions=1.5 of RateSpout: give a whole number"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(arguments: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        RateSpout(**arguments)
