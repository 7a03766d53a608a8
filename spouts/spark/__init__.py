"""DataFrames of Spark as sources, whose rows stay in Spark.

Begin with `dataframe_spout.py`, which has both spouts; `query_batches.py` is the driver's side of a streaming one. `chunks.py`
has the form in which rows stay: files that tasks write and tasks read.
"""

from spouts.spark.dataframe_spout import DataFrameSpout, StructuredStreamingSpout

__all__ = ["DataFrameSpout", "StructuredStreamingSpout"]
