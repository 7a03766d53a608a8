"""Files as sources: lines of text, and rows of CSV, JSON lines and Parquet, as the files grow.

Begin with `line_spouts.py` or `parquet_spout.py`; `file_coordinator.py` says for all of them which bytes make up a batch.
"""

from spouts.files.line_spouts import CsvFileSpout, JsonFileSpout, TextFileSpout
from spouts.files.parquet_spout import ParquetFileSpout

__all__ = ["CsvFileSpout", "JsonFileSpout", "ParquetFileSpout", "TextFileSpout"]
