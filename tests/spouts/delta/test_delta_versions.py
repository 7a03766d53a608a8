"""DeltaSpout: which files are in which batch, and which rows they give."""

import datetime
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spouts import DeltaSpout
from tests.spouts.reading import batches, definitions, first_batch, rows_of
from trident.spout import Lag, TransactionAttempt

pytestmark = pytest.mark.slow

FEED = {"delta.enableChangeDataFeed": "true"}


def numbers(start: int, end: int) -> pa.Table:
    return pa.table({"id": pa.array(range(start, end)), "name": pa.array([f"n{k}" for k in range(start, end)])})


def append(path: Path, start: int, end: int, **arguments: Any) -> None:
    write_deltalake(path, numbers(start, end), mode="append", **arguments)


def ids(found: list[list[Any]]) -> list[list[int]]:
    return [sorted(row[0] for row in batch) for batch in found]


def test_first_the_table_then_what_is_appended_however_often_it_is_compacted(tmp_path: Path) -> None:
    for start in (0, 10, 20):
        append(tmp_path, start, start + 10)
    table = DeltaTable(tmp_path)
    table.delete("id >= 5 and id < 15")
    table.optimize.compact()
    spout = DeltaSpout(f"file://{tmp_path}", "id")
    coordinator, first = first_batch(spout)
    assert sorted(rows_of(spout, coordinator, first)) == [(k,) for k in range(30) if not 5 <= k < 15]
    append(tmp_path, 30, 35)
    DeltaTable(tmp_path).optimize.compact()
    append(tmp_path, 35, 40)
    DeltaTable(tmp_path).optimize.compact()
    again = spout.get_coordinator({})
    found = list(definitions(again, first, 2))
    assert ids([rows_of(spout, again, one) for one in found]) == [list(range(30, 40))]
    assert found[-1]["version"] == DeltaTable(tmp_path).version()
    (empty,) = definitions(spout.get_coordinator({}), first | {"version": found[-1]["version"] - 1, "crc": 0}, 2)
    assert empty["commits"] == []  # only the compaction: its place is kept


@pytest.mark.parametrize(("max_batch_files", "max_batch_bytes", "most"), [(3, 1 << 20, 3), (9, 1700, 2), (9, 1, 1)])
def test_batches_are_bounded_within_a_version_and_restarts_give_the_same_rest(
    tmp_path: Path, max_batch_files: int, max_batch_bytes: int, most: int
) -> None:
    data = numbers(0, 10).append_column("part", pa.array([f"p{k}" for k in range(10)]))
    for _ in range(3):
        write_deltalake(tmp_path, data, mode="append", partition_by=["part"])
    spout = DeltaSpout(tmp_path, "id, part", max_batch_files=max_batch_files, max_batch_bytes=max_batch_bytes)
    coordinator = spout.get_coordinator({})
    made = list(definitions(coordinator))
    for _ in range(2):
        write_deltalake(tmp_path, data, mode="append")
    made += definitions(coordinator, made[-1], len(made) + 1)
    assert len(made) > 10
    assert max(sum(len(files) for _, _, files in one["commits"]) for one in made) == most
    found = Counter(row for one in made for row in rows_of(spout, coordinator, one))
    assert found == {(k, f"p{k}"): 5 for k in range(10)}
    snapshot = next(at for at, one in enumerate(made) if not one["snapshot"])
    for at in (0, snapshot // 2, snapshot - 1, snapshot, len(made) - 3):
        rest = list(definitions(spout.get_coordinator({}), made[at], at + 2))
        assert [one["commits"] for one in rest] == [one["commits"] for one in made[at + 1 :]] or at < snapshot
        assert rest[-1]["version"] == 4
    fresh = spout.get_coordinator({})
    assert [rows_of(spout, fresh, one) for one in made] == [rows_of(spout, coordinator, one) for one in made]


def test_it_begins_at_a_version_or_with_the_next_one(tmp_path: Path) -> None:
    for start in (0, 10, 20):
        append(tmp_path, start, start + 10)
    assert ids(batches(DeltaSpout(tmp_path, starting_version=1))) == [list(range(10, 30))]
    assert ids(batches(DeltaSpout(tmp_path, starting_version=2))) == [list(range(20, 30))]
    begun = []
    for later in ("latest", 3):
        spout = DeltaSpout(tmp_path, starting_version=later)
        (first,) = definitions(spout.get_coordinator({}))
        assert (first["version"], first["commits"]) == (2, [])  # an empty batch, so that a restart knows where it began
        begun.append((spout, first))
    append(tmp_path, 30, 35)
    for spout, first in begun:
        assert ids(batches(spout, first)) == [list(range(30, 35))]


def test_values_of_partition_columns_have_their_types(tmp_path: Path) -> None:
    utc = datetime.UTC
    data = pa.table(
        {
            "id": pa.array([1, 2]),
            "text": pa.array(["a b/c%", None]),
            "day": pa.array([datetime.date(2024, 2, 29)] * 2),
            "at": pa.array([datetime.datetime(2024, 1, 1, 5, tzinfo=utc)] * 2, pa.timestamp("us", "UTC")),
            "yes": pa.array([True, False]),
            "number": pa.array([7, None], pa.int32()),
        }
    )
    columns = ["text", "day", "at", "yes", "number"]
    write_deltalake(tmp_path, data, partition_by=columns)
    write_deltalake(tmp_path, data, mode="append")
    spout = DeltaSpout(tmp_path)
    assert str(spout.get_output_fields()) == (
        "id: bigint, text: string, day: date, at: timestamp, yes: boolean, number: int"
    )
    for start in ("earliest", 1):
        (found,) = batches(DeltaSpout(tmp_path, starting_version=start))
        when = (datetime.date(2024, 2, 29), datetime.datetime(2024, 1, 1, 5, tzinfo=utc))
        assert set(found) == {(1, "a b/c%", *when, True, 7), (2, None, *when, False, None)}
    (only,) = batches(DeltaSpout(tmp_path, "number, text", starting_version=1))
    assert Counter(only) == {(7, "a b/c%"): 1, (None, None): 1}


@pytest.mark.parametrize("writer", ["delta-rs", "Spark"])
def test_a_binary_partition_value_is_one_value_at_first_and_in_what_is_appended(tmp_path: Path, writer: str) -> None:
    values = [b"abc", b"\xc3\xa4b", None] if writer == "Spark" else [b"abc", b"\xff\x00", b"\\u0061", b"", None]
    data = pa.table({"id": pa.array(range(len(values))), "key": pa.array(values, pa.binary())})
    for version in range(2):
        write_deltalake(tmp_path, data, mode="append", partition_by=["key"])
        if writer == "Spark":  # whose log has the bytes as UTF-8, and not each of them escaped
            text = entry_of(tmp_path, version).read_text()
            for value in filter(None, values):
                escaped = "".join(f"\\\\u{byte:04X}" for byte in value)
                text = text.replace(f'"key":"{escaped}"', f'"key":"{value.decode()}"')
            entry_of(tmp_path, version).write_text(text)
    expected = {(at, value or None) for at, value in enumerate(values)}  # no bytes are null in Delta's logs
    for start in ("earliest", 0, 1):
        (found,) = batches(DeltaSpout(tmp_path, starting_version=start))
        assert Counter(found) == dict.fromkeys(expected, 1 if start == 1 else 2)


def test_a_text_of_a_partition_column_that_is_empty_is_null_wherever_it_is_read(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1, 2], "key": ["", "a"]}), partition_by=["key"])
    for start in ("earliest", 0):
        (found,) = batches(DeltaSpout(tmp_path, starting_version=start))
        assert sorted(found) == [(1, None), (2, "a")]


def changes_by_delta_rs(path: Path, first: int) -> Counter[Any]:
    found = pa.table(DeltaTable(path).load_cdf(first)).select(["id", "name", "_change_type", "_commit_version"])
    return Counter(zip(*(column.to_pylist() for column in found.columns), strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_changes_are_those_of_the_change_data_feed_and_lead_to_the_table(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    append(tmp_path, 0, 50, configuration=FEED)
    for step in range(12):
        low = chance.randrange(0, 200)
        if (what := chance.choice(["append", "append", "update", "delete", "compact", "overwrite"])) == "append":
            append(tmp_path, 50 + step * 10, 60 + step * 10)
        elif what == "update":
            DeltaTable(tmp_path).update(updates={"name": f"'u{step}'"}, predicate=f"id > {low} and id < {low + 30}")
        elif what == "delete":
            DeltaTable(tmp_path).delete(f"id > {low} and id < {low + 9}")
        elif what == "compact":
            DeltaTable(tmp_path).optimize.compact()
        else:
            write_deltalake(tmp_path, numbers(low, low + 5), mode="overwrite")
    expected = pa.table(DeltaTable(tmp_path).to_pyarrow_table()).select(["id", "name"])
    table = Counter(zip(*(column.to_pylist() for column in expected.columns), strict=True))
    for start in (0, 5, "earliest"):
        spout = DeltaSpout(tmp_path, mode="changes", starting_version=start, max_batch_files=2)
        rows = [row for batch in batches(spout) for row in batch]
        if isinstance(start, int):
            assert Counter(row[:4] for row in rows) == changes_by_delta_rs(tmp_path, start)
        if start != 5:
            assert +net(rows) == table
        assert {row[4].tzinfo is not None for row in rows} == {True}


def net(rows: list[Any]) -> Counter[Any]:
    """Apply changes to an empty table."""
    found: Counter[Any] = Counter()
    for id_, name, change, *_ in rows:
        found[id_, name] += 1 if change in ("insert", "update_postimage") else -1
    return found


def test_a_table_and_its_later_changes_meet_without_a_gap(tmp_path: Path) -> None:
    append(tmp_path, 0, 10, configuration=FEED)
    spout = DeltaSpout(tmp_path, mode="changes")
    coordinator, first = first_batch(spout)
    DeltaTable(tmp_path).update(updates={"name": "'x'"}, predicate="id = 3")
    DeltaTable(tmp_path).delete("id = 4")
    made = [first, *definitions(spout.get_coordinator({}), first, 2)]
    rows = [row for one in made for row in rows_of(spout, coordinator, one)]
    assert {row[:4] for row in rows[10:]} == {
        (3, "n3", "update_preimage", 1),
        (3, "x", "update_postimage", 1),
        (4, "n4", "delete", 2),
    }
    assert +net(rows) == {(k, "x" if k == 3 else f"n{k}"): 1 for k in range(10) if k != 4}


def test_removals_may_be_skipped_or_their_new_files_read(tmp_path: Path) -> None:
    append(tmp_path, 0, 4)
    DeltaTable(tmp_path).delete("id = 1")
    append(tmp_path, 4, 6)
    skipped = batches(DeltaSpout(tmp_path, starting_version=0, on_removal="skip"))
    assert ids(skipped) == [[0, 1, 2, 3, 4, 5]]
    added = batches(DeltaSpout(tmp_path, starting_version=0, on_removal="added_files"))
    assert ids(added) == [[0, 0, 1, 2, 2, 3, 3, 4, 5]]


def test_row_groups_of_a_file_are_for_several_tasks(tmp_path: Path) -> None:
    chance = random.Random(1)
    data = pa.table({"id": range(300_000), "x": [chance.random() for _ in range(300_000)]})
    write_deltalake(tmp_path, data)
    spout = DeltaSpout(tmp_path, "id")
    coordinator, made = first_batch(spout)
    assert len(coordinator.parts(TransactionAttempt(1, 0), made, 2)) == 2
    assert coordinator.size(made) == sum(file.stat().st_size for file in tmp_path.glob("*.parquet"))
    for parallelism in (1, 2, 8):
        assert sorted(rows_of(spout, coordinator, made, parallelism)) == [(k,) for k in range(300_000)]


def test_a_column_that_is_added_is_null_in_older_files_and_not_in_older_streams(tmp_path: Path) -> None:
    append(tmp_path, 0, 1)
    old = DeltaSpout(tmp_path)
    coordinator = old.get_coordinator({})
    (first,) = definitions(coordinator)
    wider = numbers(1, 2).append_column("town", pa.array(["Oslo"]))
    write_deltalake(tmp_path, wider, mode="append", schema_mode="merge")
    (second,) = definitions(coordinator, first, 2)
    assert rows_of(old, coordinator, second) == [(1, "n1")]
    for start in ("earliest", 0):
        assert sorted(batches(DeltaSpout(tmp_path, starting_version=start))[0]) == [(0, "n0", None), (1, "n1", "Oslo")]
    assert batches(DeltaSpout(tmp_path), first) == [[(1, "n1", "Oslo")]]


def test_lag_counts_versions_and_a_throttled_batch_takes_fewer_files(tmp_path: Path) -> None:
    for start in range(6):
        append(tmp_path, start, start + 1)
    spout = DeltaSpout(tmp_path, starting_version=0, max_batch_files=4)
    coordinator = spout.get_coordinator({})
    coordinator.throttle(0.5)
    first = coordinator.initialize_transaction(1, None)
    assert coordinator.lag(first) == Lag(4, "versions")
    coordinator.throttle(0.001)
    second = coordinator.initialize_transaction(2, first)
    assert coordinator.lag(second) == Lag(3, "versions")
    assert ids([rows_of(spout, coordinator, one) for one in (first, second)]) == [[0, 1], [2]]
    coordinator.throttle(1)
    last = list(definitions(coordinator, second, 3))[-1]
    assert coordinator.lag(last) == Lag(0, "versions")


def test_the_log_may_have_checkpoints_and_lose_what_was_read(tmp_path: Path) -> None:
    append(tmp_path, 0, 1)
    spout = DeltaSpout(tmp_path)
    _, first = first_batch(spout)
    append(tmp_path, 1, 2)
    DeltaTable(tmp_path).create_checkpoint()
    (tmp_path / "_delta_log" / f"{0:020}.json").unlink()
    append(tmp_path, 2, 3)
    assert ids(batches(spout, first)) == [[1, 2]]
    assert ids(batches(DeltaSpout(tmp_path))) == [[0, 1, 2]]


def entry_of(path: Path, version: int) -> Path:
    return path / "_delta_log" / f"{version:020}.json"


def actions(path: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in entry_of(path, version).read_text().splitlines()]
