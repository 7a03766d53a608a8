"""Files as sources: lines of text, and rows of CSV, JSON lines and Parquet, as the files grow.

Begin with `line_spouts.py` or `parquet_spout.py`. `file_coordinator.py` is the coordinator of all of them: which of the
files' bytes make up a batch, and what it asks of a kind of file. CSV and JSON are text whose lines are rows:
`line_reading.py` makes tables of lines, and finds the line that cannot be read.
"""

from spouts.files.line_spouts import CsvFileSpout, JsonFileSpout, TextFileSpout
from spouts.files.parquet_spout import ParquetFileSpout

__all__ = ["CsvFileSpout", "JsonFileSpout", "ParquetFileSpout", "TextFileSpout"]
