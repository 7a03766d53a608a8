"""Rows at a given rate, for load tests.

Begin with `spout.py` (`RateSpout`); `schedule.py` says when which row is due.
"""

from spouts.rate.spout import RateSpout

__all__ = ["RateSpout"]
