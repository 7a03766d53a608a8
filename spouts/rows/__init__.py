"""Rows that are made in the driver: a list that may repeat, rows that a program feeds, or rows at a given rate."""

from spouts.rows.driver_rows import FeederBatchSpout, FixedBatchSpout
from spouts.rows.rate import RateSpout

__all__ = ["FeederBatchSpout", "FixedBatchSpout", "RateSpout"]
