"""DeltaSpout under the URL of an object store: on a bucket that speaks S3."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest
from deltalake import DeltaTable, write_deltalake

from spouts import DeltaSpout
from states.memory import MemoryMapState
from tests.harness.commands import until
from tests.spouts.delta.test_delta_versions import FEED, ids, numbers
from tests.spouts.reading import definitions, first_batch, rows_of
from tests.states.delta.delta_bucket import Bucket
from tests.states.delta.test_delta_object_store import storage
from trident import TridentTopology
from trident.errors import ReplayMismatchError, SourceAwayError, SpoutError
from trident.operations import Count

URL = "s3://bucket/tables/people"


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    bucket = Bucket()
    yield bucket
    bucket.close()


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
    for one in (coordinator, spout.get_coordinator({})):
        with pytest.raises(ReplayMismatchError, match="is another table now"):
            one.initialize_transaction(2, first)
