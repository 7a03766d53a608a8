"""The spouts of files keep the contract of spouts."""

from __future__ import annotations

import pytest

from tests.spouts.file_sources import CsvSource, JsonSource, ParquetSource, TextSource
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
