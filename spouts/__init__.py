"""Spouts: the sources of topologies, one module each."""

from spouts.feeder import FeederBatchSpout
from spouts.fixed_batch import FixedBatchSpout
from spouts.text_files import TextFileSpout

__all__ = ["FeederBatchSpout", "FixedBatchSpout", "TextFileSpout"]
