"""Spouts keep the contract of spouts, check by check; `test_all_spouts` has those on Kafka and on Spark, too."""

from __future__ import annotations

import pytest

from tests.harness.servers import Server
from tests.spouts.file_sources import CsvSource, DeltaSource, JsonSource, ParquetSource, TextSource
from tests.spouts.row_sources import OpaquePartitions, Partitions, WrittenRows
from tests.spouts.server_sources import StreamRanges
from trident.testing import SpoutContract

pytestmark = pytest.mark.slow


class TestTextFileSpout(SpoutContract):
    source = TextSource


class TestCsvFileSpout(SpoutContract):
    source = CsvSource


class TestJsonFileSpout(SpoutContract):
    source = JsonSource


class TestParquetFileSpout(SpoutContract):
    source = ParquetSource


class TestDataFrameSpout(SpoutContract):
    source = WrittenRows


class TestPartitionedSpout(SpoutContract):
    source = Partitions


class TestOpaquePartitionedSpout(SpoutContract):
    source = OpaquePartitions


class TestDeltaSpout(SpoutContract):
    source = DeltaSource

    @pytest.mark.long
    def test_random_failures_end_exact(self) -> None:
        super().test_random_failures_end_exact()


@pytest.mark.server
class TestRedisStreamSpout(SpoutContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: Server) -> None:
        self.source = lambda: StreamRanges(redis_server)
