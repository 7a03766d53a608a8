"""Rows that are made in the driver: a list that may repeat, rows that a program feeds, or rows at a given rate.

Begin with `driver_rows.py`, which also has how rows are checked and typed.
"""

from spouts.rows.driver_rows import FeederBatchSpout, FixedBatchSpout
from spouts.rows.rate import RateSpout

__all__ = ["FeederBatchSpout", "FixedBatchSpout", "RateSpout"]
