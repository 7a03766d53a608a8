"""Rows of CSV, JSON-lines and Parquet files.

Begin with `csv_spout.py`, `json_spout.py` or `parquet_spout.py`. CSV and JSON are text whose lines are rows: `row_reading.py`
makes tables of lines, and finds the line that cannot be read. What all spouts of files share is in `spouts/byte_ranges/`.
"""

from spouts.files.csv_spout import CsvFileSpout
from spouts.files.json_spout import JsonFileSpout
from spouts.files.parquet_spout import ParquetFileSpout

__all__ = ["CsvFileSpout", "JsonFileSpout", "ParquetFileSpout"]
