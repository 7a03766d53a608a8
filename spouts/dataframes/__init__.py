"""DataFrameSpout: a DataFrame of Spark as a source. Begin with `spout.py`.

`chunks.py` has the form in which rows stay in Spark: files that tasks write and tasks read.
"""

from spouts.dataframes.spout import DataFrameSpout

__all__ = ["DataFrameSpout"]
