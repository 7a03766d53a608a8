"""Every spout keeps what it claims: check by check, or by the suite that users run; `tests/spouts/report.py` prints all."""

import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import spouts
from spouts.messages import MessageSpout
from tests.harness.servers import Server
from tests.spouts import report
from tests.spouts.catalog import SPOUTS
from tests.spouts.file_sources import CsvSource, DeltaSource, JsonSource, ParquetSource, TextSource
from tests.spouts.row_sources import NumberedRows, OpaquePartitions, Partitions, WrittenRows
from tests.spouts.server_sources import StreamRanges
from trident.spout import SpoutType
from trident.spout.interfaces import coordinator_of
from trident.testing import SpoutContract, SpoutPromise, SpoutReport, SpoutSource, Status, spout_suite

# Of the others pytest makes each check, below; those on Kafka and on Spark have tests of their own in their folders.
LOCAL = ["fixed", "feeder", "rate", "batches", "csv-example", "rich"]


def check(source: Callable[[], SpoutSource]) -> SpoutReport:
    found = spout_suite(source, seconds=0, seed=1, out=io.StringIO())
    found.raise_if_violated()
    return found


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", LOCAL)
def test_a_spout_without_a_server_keeps_what_it_claims(name: str) -> None:
    found = check(SPOUTS[name].source)
    assert {found.status(promise) for promise in (SpoutPromise.NO_GAP, SpoutPromise.NO_OVERLAP)} == {Status.OK}


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with report.servers() as started:
        yield started


@pytest.mark.soak
@pytest.mark.parametrize("name", SPOUTS)
def test_a_spout_stands_outages_and_many_schedules(name: str, started: Any) -> None:
    found = report.examine(SPOUTS[name], started, 60.0, 1)
    assert found.violated == set(SPOUTS[name].broken), str(found)
    assert not found.not_run


def test_every_spout_of_batches_is_checked() -> None:
    named = {name for name in spouts.__all__ if name.endswith("Spout")}
    of_batches = {name for name in named if not issubclass(vars(spouts)[name], MessageSpout)}
    assert {spout.makes for spout in SPOUTS.values() if spout.makes} == of_batches


@pytest.mark.parametrize("source", [TextSource, CsvSource, JsonSource, ParquetSource, DeltaSource, NumberedRows])
def test_a_source_of_rows_is_transactional_knows_size_and_lag_and_is_throttled(source: Callable[[], Any]) -> None:
    filled = source()
    spout = pickle.loads(pickle.dumps(filled.spout()))
    assert spout.spout_type is SpoutType.TRANSACTIONAL
    coordinator = coordinator_of(spout.get_coordinator({}))
    assert all(map(coordinator.offers, ("size", "lag", "throttle")))
    filled.close()


@pytest.mark.slow
class Contract(SpoutContract):
    """Of one spout."""


LISTED = {
    "TestTextFileSpout": TextSource, "TestCsvFileSpout": CsvSource, "TestJsonFileSpout": JsonSource,
    "TestParquetFileSpout": ParquetSource, "TestDataFrameSpout": WrittenRows, "TestPartitionedSpout": Partitions,
    "TestOpaquePartitionedSpout": OpaquePartitions,
}  # fmt: skip
globals().update({name: type(name, (Contract,), {"source": source}) for name, source in LISTED.items()})


class TestDeltaSpout(Contract):
    source = DeltaSource

    @pytest.mark.long
    def test_random_failures_end_exact(self) -> None:
        super().test_random_failures_end_exact()


@pytest.mark.server
class TestRedisStreamSpout(Contract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: Server) -> None:
        self.source = lambda: StreamRanges(redis_server)
