"""DataFrames of Spark as sources, whose rows stay in Spark.

Begin with `dataframe_spout.py`, or `streaming_spout.py` for streaming ones. `chunks.py` has the form in which rows stay: files
that tasks write and tasks read.
"""

from spouts.spark.dataframe_spout import DataFrameSpout
from spouts.spark.streaming_spout import StructuredStreamingSpout

__all__ = ["DataFrameSpout", "StructuredStreamingSpout"]
