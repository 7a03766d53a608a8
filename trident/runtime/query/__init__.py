"""Topologies whose batches a query of Spark gives, through `writeStream.foreachBatch`; the states and the log are Trident's.

Begin with `foreach_batch.py`: the function that the query calls.
"""
