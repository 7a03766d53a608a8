"""Rows that are in the driver: a list that may repeat, or rows that a program feeds.

Begin with `fixed_batch.py`; `driver_rows.py` has what both sources share.
"""

from spouts.rows.feeder import FeederBatchSpout
from spouts.rows.fixed_batch import FixedBatchSpout

__all__ = ["FeederBatchSpout", "FixedBatchSpout"]
