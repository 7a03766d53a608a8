"""DeltaSpout on an object store that leaves any one request without its answer: no version is skipped, whatever the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from deltalake import DeltaTable, write_deltalake

from spouts import DeltaSpout
from tests.harness.commands import until
from tests.harness.withheld import How, WithheldApart
from tests.spouts.delta.test_delta_versions import FEED, numbers
from tests.spouts.withheld_lives import Life
from tests.states.delta.delta_bucket import Bucket
from tests.states.delta.test_delta_object_store import storage
from trident.errors import SourceAwayError

URL = "s3://bucket/tables/people"
HOW: tuple[How, ...] = ("error", "dropped", "never")
BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    bucket = Bucket()
    yield bucket
    bucket.close()


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[WithheldApart]:
    proxy = WithheldApart(urlsplit(bucket.url).port or 0, BUSY)
    yield proxy
    proxy.close()


def lived(bucket: Bucket, proxy: WithheldApart, start: str | int, number: int, how: How) -> tuple[Life, int]:
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


def check(bucket: Bucket, proxy: WithheldApart, start: str | int, number: int, how: How) -> int:
    life, found = lived(bucket, proxy, start, number, how)
    expected = range({"earliest": 0, "latest": 10, 1: 5}[start], 25)
    assert all(isinstance(error, SourceAwayError) for error in life.errors), f"{how}: {life.errors}"
    assert Counter(row[0] for row in life.rows) == Counter(expected), f"{how}: the answer to request {number}"
    return found


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("start", ["earliest", "latest", 1])
@pytest.mark.timeout(300)
def test_no_version_is_skipped_if_an_answer_is_withheld(bucket: Bucket, proxy: WithheldApart, start: str | int) -> None:
    requests = check(bucket, proxy, start, 0, "error")
    for number in range(3, requests + 1, 19):
        check(bucket, proxy, start, number, ("error", "dropped")[number % 2])


@pytest.mark.soak
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("start", ["earliest", "latest", 1])
@pytest.mark.timeout(1800)
def test_no_version_is_skipped_whichever_answer_is_withheld(
    bucket: Bucket, proxy: WithheldApart, start: str | int, how: How
) -> None:
    for number in range(check(bucket, proxy, start, 0, how) + 1):
        check(bucket, proxy, start, number, how)
