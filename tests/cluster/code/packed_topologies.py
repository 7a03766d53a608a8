"""Sources of topologies that tests pack, and a folder with them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

__all__ = ["BOLTS", "COUNTS_OF_WORDS", "write_files"]

COUNTS_OF_WORDS = """
    from spouts import FixedBatchSpout
    from states.memory import MemoryMapState
    from trident import TridentTopology
    from trident.operations import Count, Split

    topology = TridentTopology("word-counts")
    lines = topology.new_stream("lines", FixedBatchSpout("line: string", 2, ["the cow"], ["the moon"]))
    words = lines.each("line", Split(), "word").group_by("word")
    words.persistent_aggregate(MemoryMapState(), Count(), "count")
"""

BOLTS = """
    from trident.storm import BaseBasicBolt, BaseRichSpout, TopologyBuilder

    class Words(BaseRichSpout):
        def declare_output_fields(self, declarer):
            declarer.declare("word")

        def next_tuple(self):
            pass

    class Nothing(BaseBasicBolt):
        def execute(self, tuple, collector):
            pass

    builder = TopologyBuilder()
    builder.set_spout("words", Words())
    builder.set_bolt("count", Nothing(), 2).set_num_tasks(4).shuffle_grouping("words")
"""


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files below a folder, by their paths; returns the folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return folder
