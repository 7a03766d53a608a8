"""DeltaSpout: an entry of the log that its writer has not written to its end is no version yet, wherever it is met."""

import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from deltalake import DeltaTable, write_deltalake

from spouts import DeltaSpout
from states.memory import MemoryMapState
from tests.harness.commands import until
from tests.harness.withheld import How, WithheldApart
from tests.spouts.delta.test_delta_versions import FEED, append, entry_of, ids, numbers
from tests.spouts.reading import Life, batches, definitions, first_batch, refuse_both, rows_of
from tests.states.delta.delta_bucket import Bucket, storage
from trident import TridentTopology
from trident.errors import ReplayMismatchError, SourceAwayError, SpoutError
from trident.operations import Count

pytestmark = pytest.mark.slow

CUTS = (0, 0.3, 0.99)
"""Which share of an entry was written: none of it, a part of its first line, all but the end of its last one."""


def begun(path: Path, start: int, end: int, share: float) -> bytes:
    """Append rows as a writer does that is in the middle of writing the entry; return the entry as it will be."""
    append(path, start, end)
    entry = entry_of(path, DeltaTable(path).version())
    whole = entry.read_bytes()
    entry.write_bytes(whole[: int(len(whole) * share)])
    return whole


@pytest.mark.parametrize("share", CUTS)
def test_an_entry_that_is_being_written_is_read_once_it_is_whole(
    tmp_path: Path, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    append(tmp_path, 0, 10)
    spout = DeltaSpout(tmp_path)
    coordinator = spout.get_coordinator({})
    made = list(definitions(coordinator))
    whole = begun(tmp_path, 10, 20, share)
    assert list(definitions(coordinator, made[-1], 2)) == []
    assert list(definitions(coordinator, made[-1], 2)) == []
    assert [record.getMessage().partition(" of the Delta table")[0] for record in caplog.records] == [
        "the entry of version 1 in the log"
    ]
    entry_of(tmp_path, 1).write_bytes(whole)
    append(tmp_path, 20, 30)
    made += definitions(coordinator, made[-1], 2)
    assert ids([rows_of(spout, coordinator, one) for one in made]) == [list(range(10)), list(range(10, 30))]


@pytest.mark.parametrize("start", ["earliest", "latest", 0, 1])
def test_a_stream_never_begins_behind_an_entry_that_is_being_written(tmp_path: Path, start: Any) -> None:
    append(tmp_path, 0, 10)
    spout = DeltaSpout(tmp_path, starting_version=start)
    whole = begun(tmp_path, 10, 20, 0)
    coordinator = spout.get_coordinator({})
    made = list(definitions(coordinator))
    entry_of(tmp_path, 1).write_bytes(whole)
    append(tmp_path, 20, 30)
    made += definitions(spout.get_coordinator({}), made[-1], len(made) + 1)
    found = sorted(row[0] for one in made for row in rows_of(spout, coordinator, one))
    assert found == list(range(0 if start in ("earliest", 0) else 10, 30))


@pytest.mark.parametrize("share", CUTS)
def test_an_entry_that_was_never_finished_is_refused_as_soon_as_there_is_a_later_one(
    tmp_path: Path, share: float
) -> None:
    append(tmp_path, 0, 10)
    spout = DeltaSpout(tmp_path)
    coordinator, first = first_batch(spout)
    whole = begun(tmp_path, 10, 20, share)
    entry_of(tmp_path, 2).write_bytes(whole)
    with pytest.raises(
        SpoutError, match="the entry of version 1 in the log .* ends in the middle, and version 2 is th"
    ):
        coordinator.initialize_transaction(2, first)
    entry_of(tmp_path, 1).write_text('{"commitInfo":{}}')  # what the message advises where the version had no rows
    assert ids(batches(spout, first)) == [list(range(10, 20))]


def test_an_entry_that_grew_after_it_was_read_is_refused(tmp_path: Path) -> None:
    append(tmp_path, 0, 10)
    spout = DeltaSpout(tmp_path)
    coordinator, first = first_batch(spout)
    append(tmp_path, 10, 20)
    whole = entry_of(tmp_path, 1).read_bytes()
    entry_of(tmp_path, 1).write_bytes(whole.splitlines()[0] + b"\n")  # whole lines: nothing tells that more are to come
    (second,) = definitions(coordinator, first, 2)
    entry_of(tmp_path, 1).write_bytes(whole)
    said = "a writer that is not atomic had not finished this version"
    refuse_both(spout, coordinator, second, SpoutError, said, txid=3)


URL = "s3://bucket/tables/people"

HOW: tuple[How, ...] = ("error", "dropped", "never")

BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with closing(Bucket()) as bucket:
        yield bucket


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[WithheldApart]:
    with closing(WithheldApart(urlsplit(bucket.url).port or 0, BUSY)) as proxy:
        yield proxy


def lived(bucket: Bucket, proxy: WithheldApart, start: Any, number: int, how: How) -> tuple[Life, int]:
    """Look for the first time, read, be idle, read, and start again: with versions added before each of these."""
    options, url = storage(bucket), f"{URL}-{start}-{number}"

    def append(start: int, end: int) -> None:
        write_deltalake(url, numbers(start, end), mode="append", configuration=FEED, storage_options=options)

    append(0, 5)
    append(5, 10)
    through = {**options, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}", "timeout": "2s"}
    life = Life(DeltaSpout(url, "id: bigint", starting_version=start, max_batch_files=2, storage_options=through))
    proxy.withhold(number, how)
    until(lambda: life.committed or not life.step(), "it has begun")  # what is new from here on must come
    append(10, 15)
    life.run()
    life.restart()
    append(15, 20)
    DeltaTable(url, storage_options=options).create_checkpoint()
    append(20, 25)
    life.run()
    return life, proxy.withhold(0, how)


def check(bucket: Bucket, proxy: WithheldApart, start: Any, number: int, how: How) -> int:
    life, found = lived(bucket, proxy, start, number, how)
    expected = range({"earliest": 0, "latest": 10, 1: 5}[start], 25)
    assert all(isinstance(error, SourceAwayError) for error in life.errors), f"{how}: {life.errors}"
    assert Counter(row[0] for row in life.rows) == Counter(expected), f"{how}: the answer to request {number}"
    return found


@pytest.mark.parametrize(
    "how", [pytest.param(None, marks=pytest.mark.long), *(pytest.param(how, marks=pytest.mark.soak) for how in HOW)]
)
@pytest.mark.parametrize("start", ["earliest", "latest", 1])
@pytest.mark.timeout(1800)
def test_no_version_is_skipped_if_an_answer_is_withheld(
    bucket: Bucket, proxy: WithheldApart, start: Any, how: How | None
) -> None:
    """Whichever it is; without `how` some of them, in two ways."""
    requests = check(bucket, proxy, start, 0, how or "error")
    for number in range(3, requests + 1, 19) if how is None else range(requests + 1):
        check(bucket, proxy, start, number, how or HOW[number % 2])


def test_a_table_in_a_bucket_is_read_as_one_in_a_folder(bucket: Bucket) -> None:
    options = storage(bucket)
    write_deltalake(URL, numbers(0, 10), partition_by=["name"], configuration=FEED, storage_options=options)
    spout = DeltaSpout(URL, mode="changes", max_batch_files=4, storage_options=options)
    coordinator = spout.get_coordinator({})
    first = list(definitions(coordinator))
    DeltaTable(URL, storage_options=options).delete("id = 3")
    write_deltalake(URL, numbers(10, 12), mode="append", storage_options=options)
    again = spout.get_coordinator({})
    rest = list(definitions(again, first[-1], len(first) + 1))
    assert ids([rows_of(spout, coordinator, one) for one in first]) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert sorted(row[:4] for one in rest for row in rows_of(spout, again, one, 2)) == [
        (3, "n3", "delete", 1),
        (10, "n10", "insert", 2),
        (11, "n11", "insert", 2),
    ]


def test_a_bucket_without_the_table_is_named_and_secrets_are_not(bucket: Bucket) -> None:
    with pytest.raises(SpoutError, match="there is no Delta table at s3://bucket/tables/people") as caught:
        DeltaSpout(URL, storage_options=storage(bucket))
    assert "secret" not in str(caught.value)


def test_a_bucket_that_is_away_is_waited_for_however_often_that_is_tried(bucket: Bucket) -> None:
    options = storage(bucket)
    write_deltalake(URL, numbers(0, 10), storage_options=options)
    topology = TridentTopology("away")
    people = topology.new_stream("people", DeltaSpout(URL, storage_options=options))
    counts = people.persistent_aggregate(MemoryMapState(), Count(), "count")
    with topology.start(engine="in_process", max_batch_attempts=2, retry_backoff_max_ms=100) as running:
        running.process_all_available()
        write_deltalake(URL, numbers(10, 15), mode="append", storage_options=options)
        bucket.refuse("everything")
        until(lambda: running.status["failures"] >= 4 or not running.is_active, "it is tried more often than may fail")
        assert running.is_active
        assert running.status["waiting"].startswith("waiting for its source (step 'people') since 2")
        bucket.refuse("nothing")
        running.process_all_available()
        assert running.state(counts).get() == 15


def test_files_in_a_bucket_that_is_away_are_waited_for(bucket: Bucket) -> None:
    options = storage(bucket)
    write_deltalake(URL, numbers(0, 10), storage_options=options)
    spout = DeltaSpout(URL, storage_options=options)
    coordinator, first = first_batch(spout)
    bucket.close()
    with pytest.raises(
        SourceAwayError, match="the file part-.* of the Delta table s3://bucket/tables/people cannot be read"
    ):
        rows_of(spout, coordinator, first)
    with pytest.raises(SourceAwayError, match="the Delta table s3://bucket/tables/people cannot be opened"):
        spout.get_coordinator({})


def test_a_table_that_was_made_again_in_a_bucket_is_refused(bucket: Bucket) -> None:
    options = storage(bucket)
    write_deltalake(URL, numbers(0, 10), storage_options=options)
    spout = DeltaSpout(URL, storage_options=options)
    coordinator, first = first_batch(spout)
    for name in bucket.facts()["names"]:
        urllib.request.urlopen(urllib.request.Request(f"{bucket.url}/bucket/{name}", method="DELETE")).close()
    write_deltalake(URL, numbers(0, 1), storage_options=options)
    refuse_both(spout, coordinator, first, ReplayMismatchError, "is another table now")
