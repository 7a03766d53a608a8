"""Spouts: the sources of topologies, one package a source.

`rows` has sources whose rows are in the driver (`FixedBatchSpout`, `FeederBatchSpout`), `text_files` has `TextFileSpout`.
Begin with the module `spout.py` of a source: it has the class that topologies name.
"""

from spouts.rows import FeederBatchSpout, FixedBatchSpout
from spouts.text_files import TextFileSpout

__all__ = ["FeederBatchSpout", "FixedBatchSpout", "TextFileSpout"]
