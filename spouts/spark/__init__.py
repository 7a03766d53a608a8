"""DataFrames of Spark as sources, whose rows stay in Spark: in files that tasks write and tasks read (`chunks.py`).

Begin with `dataframe_spout.py`, which has both spouts; `query_batches.py` is the driver's side of a streaming one.
"""

from spouts.spark.dataframe_spout import DataFrameSpout, StructuredStreamingSpout

__all__ = ["DataFrameSpout", "StructuredStreamingSpout"]
